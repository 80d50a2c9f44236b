"""Architectures as data: limits, peaks and names. Nothing here asks a device.

Limits are those of the CUDA C++ Programming Guide 13, table "Technical Specifications per Compute
Capability"; SM counts, clocks, L2 sizes and bandwidths of the named board are its vendor's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from sgemm_tune.errors import UnknownName

KIB = 1024
REGISTERS_PER_SM = 65536
REGISTERS_PER_THREAD = 255
THREADS_PER_BLOCK = 1024
WARP = 32
SMEM_RESERVED_PER_BLOCK = 1 * KIB


@dataclass(frozen=True)
class Board:
    """The board that a plan assumes where no GPU of the architecture is at hand.

    Attributes:
        sms: streaming multiprocessors.
        boost_mhz: boost clock.
        l2_mib: L2 cache.
        gbytes_per_s: device memory bandwidth in GB/s.
    """

    name: str
    sms: int
    boost_mhz: int
    l2_mib: float
    gbytes_per_s: float


@dataclass(frozen=True)
class Arch:
    """One compute capability.

    Attributes:
        name: `sm_90`.
        target: what NVRTC is asked for; `sm_90a` where the family has architecture-specific features.
        config: stem of its file under configs/.
        aliases: names of boards and generations that mean it.
        smem_per_sm, smem_per_block: bytes of shared memory (per block: opt-in limit).
        warps_per_sm, blocks_per_sm: residency limits.
        fp32_lanes: FFMA results per SM and clock.
        tf32_flops: dense TF32 tensor-core FLOP per SM and clock.
        board: the board a plan assumes.
    """

    name: str
    target: str
    config: str
    aliases: tuple[str, ...]
    smem_per_sm: int
    smem_per_block: int
    warps_per_sm: int
    blocks_per_sm: int
    fp32_lanes: int
    tf32_flops: int
    board: Board

    def __hash__(self) -> int:
        return hash(self.name)  # caches ask for it often

    @property
    def capability(self) -> tuple[int, int]:
        """(major, minor): (9, 0) for sm_90."""
        digits = self.name.removeprefix("sm_")
        return int(digits[:-1]), int(digits[-1])

    @property
    def packed_ffma(self) -> bool:
        """Whether one instruction makes two FFMAs (FFMA2).

        PTX has `fma.rn.f32x2` from sm_100 on, but NVRTC 12.9, 13.0 and 13.5 make two FFMAs of it for sm_110,
        sm_120 and sm_121.
        """
        return self.capability[0] == 10

    @property
    def multicast(self) -> bool:
        """Whether one fetch of the copy engine serves all blocks of a cluster at full speed.

        Others with clusters can do it, too, but PTX warns of "substantially reduced performance", and advises
        it for sm_90a, sm_100, sm_103 and sm_110 alone.
        """
        return self.capability[0] in (9, 10)

    def fp32_peak_tflops(self, sms: int, mhz: float) -> float:
        """FFMA peak in TFLOP/s of `sms` multiprocessors at `mhz`."""
        return sms * self.fp32_lanes * 2 * mhz * 1e-6

    def tf32_peak_tflops(self, sms: int, mhz: float) -> float:
        """Dense TF32 tensor-core peak in TFLOP/s of `sms` multiprocessors at `mhz`."""
        return sms * self.tf32_flops * mhz * 1e-6


@dataclass(frozen=True)
class Feature:
    """What only some architectures have, so that a tunable is for those (`declare.tune`).

    Attributes:
        on: whether an architecture has it.
        lacking: what is to be said of one that has not.
    """

    on: Callable[[Arch], bool]
    lacking: str


PACKED_FFMA = Feature(lambda arch: arch.packed_ffma, "has no instruction that makes two FFMAs")
CLUSTERS = Feature(lambda arch: arch.capability >= (9, 0), "has no clusters of blocks")
MULTICAST = Feature(lambda arch: arch.multicast, "is slow to copy to several blocks at once")


def _arch(
    name: str,
    config: str,
    aliases: str,
    board: Board,
    *,
    smem: tuple[int, int],
    residency: tuple[int, int],
    lanes: int = 128,
    tf32: int,
) -> Arch:
    specific = "a" if int(name.removeprefix("sm_")) >= 90 else ""
    return Arch(
        name=name,
        target=name + specific,
        config=config,
        aliases=tuple(aliases.split()),
        smem_per_sm=smem[0] * KIB,
        smem_per_block=smem[1] * KIB,
        warps_per_sm=residency[0],
        blocks_per_sm=residency[1],
        fp32_lanes=lanes,
        tf32_flops=tf32,
        board=board,
    )


_TABLE = (
    _arch(
        "sm_80", "a100", "a100", Board("NVIDIA A100 80GB", 108, 1410, 40, 2039),
        smem=(164, 163), residency=(64, 32), lanes=64, tf32=1024,
    ),
    _arch(
        "sm_86", "rtx3090", "rtx3090 a6000", Board("NVIDIA GeForce RTX 3090", 82, 1695, 6, 936),
        smem=(100, 99), residency=(48, 16), tf32=256,
    ),
    _arch(
        "sm_89", "rtx4090", "rtx4090 l40s ada", Board("NVIDIA GeForce RTX 4090", 128, 2520, 72, 1008),
        smem=(100, 99), residency=(48, 24), tf32=256,
    ),
    _arch(
        "sm_90", "h100", "h100 h200 gh200 hopper", Board("NVIDIA H100 80GB HBM3", 132, 1980, 50, 3350),
        smem=(228, 227), residency=(64, 32), tf32=2048,
    ),
    _arch(
        "sm_100", "b200", "b200 gb200", Board("NVIDIA B200", 148, 1965, 126, 8000),
        smem=(228, 227), residency=(64, 32), tf32=4096,
    ),
    _arch(
        "sm_103", "b300", "b300 gb300", Board("NVIDIA B300", 148, 1965, 126, 8000),
        smem=(228, 227), residency=(64, 32), tf32=4096,
    ),
    _arch(
        "sm_120", "rtx5090", "rtx5090 rtxpro6000", Board("NVIDIA GeForce RTX 5090", 170, 2407, 96, 1792),
        smem=(100, 99), residency=(48, 24), tf32=256,
    ),
    _arch(
        "sm_121", "gb10", "gb10 spark", Board("NVIDIA GB10", 48, 2418, 24, 273),
        smem=(100, 99), residency=(48, 24), tf32=256,
    ),
)  # fmt: skip

ARCHS: dict[str, Arch] = {arch.name: arch for arch in _TABLE}
"""Every known architecture by its name, oldest first."""


def parse_arch(text: str) -> Arch:
    """The architecture meant by `sm_90`, `sm_90a`, `SM90`, `9.0`, `90`, `compute_90` or `h100`.

    Raises:
        UnknownName: none of them; the message lists the known ones.
    """
    plain = re.sub(r"[\s_-]", "", text.lower())
    for arch in ARCHS.values():
        if plain in (arch.config, *arch.aliases):
            return arch
    match = re.fullmatch(r"(?:sm|compute|cc)?(\d{1,2}\.\d|\d{2,3})([af]?)", plain)
    if match is not None:
        found = ARCHS.get("sm_" + match.group(1).replace(".", ""))
        if found is not None and (not match.group(2) or found.target.endswith("a")):
            return found
    raise UnknownName("architecture", text, [f"{arch.name} ({arch.config})" for arch in ARCHS.values()])


def arch_of_capability(major: int, minor: int) -> Arch:
    """The architecture of a device's compute capability.

    Raises:
        UnknownName: a capability that is not in the table.
    """
    return parse_arch(f"sm_{major}{minor}")
