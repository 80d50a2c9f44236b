"""What several declarations share: rules and sizes of tiles. Data only; no stage of its own."""

from __future__ import annotations

from sgemm_tune.arch import REGISTERS_PER_SM, REGISTERS_PER_THREAD, SMEM_RESERVED_PER_BLOCK, WARP, Arch
from sgemm_tune.kernel import Kernel, Rules, TiledKernel
from sgemm_tune.problem import FLOAT_BYTES

VECTOR = 4
"""Floats in the widest load a thread can issue."""


def divides(part: int, whole: int) -> bool:
    """Whether whole is made of whole parts; never where there are no parts at all."""
    return part > 0 and whole % part == 0


def fits_an_sm(kernel: Kernel, blocks: int, arch: Arch) -> Rules:
    """That an SM has the shared memory of so many of the kernel's blocks."""
    needed = blocks * (kernel.smem_bytes + SMEM_RESERVED_PER_BLOCK)
    yield (
        needed <= arch.smem_per_sm,
        f"{arch.name} gives an SM {arch.smem_per_sm} bytes of shared memory, not {needed}",
    )


def fit_an_sms_registers(needed: int) -> Rules:
    """That an SM has the registers that MIN_BLOCKS blocks need."""
    yield needed <= REGISTERS_PER_SM, "the registers of MIN_BLOCKS blocks must fit the SM's 65536"


class PatchKernel(TiledKernel):
    """A stage whose threads each compute a TM x TN patch of a BM x BN block tile, BK steps at a time."""

    BM: int
    BN: int
    BK: int
    TM: int
    TN: int

    @property
    def tile(self) -> tuple[int, int, int]:
        return self.BM, self.BN, self.BK

    @property
    def thread_tile(self) -> tuple[int, int]:
        return self.TM, self.TN

    @property
    def threads(self) -> int:
        return (self.BM // self.TM) * (self.BN // self.TN)

    @property
    def smem_bytes(self) -> int:
        return FLOAT_BYTES * self.BK * (self.BM + self.BN)


class VectorKernel(PatchKernel):
    """A patch stage that copies float4 by float4 and pads the transposed A tile."""

    PAD: int

    @property
    def smem_bytes(self) -> int:
        return FLOAT_BYTES * self.BK * (self.BM + self.PAD + self.BN)

    @property
    def staged(self) -> int:
        """Floats of the next tiles that a thread holds in registers."""
        return self.BK * (self.BM + self.BN) // self.threads if self.threads else 0

    @property
    def register_estimate(self) -> int:
        """Per thread: sums, fragments, staged floats with their addresses, 32 for the rest."""
        return self.TM * self.TN + self.TM + self.TN + self.staged * 3 // 2 + 32

    def size_rules(self) -> Rules:
        """A block that fills an SM's schedulers."""
        yield self.threads >= 64, "a block of fewer than 64 threads leaves schedulers of its SM idle"

    def copy_rules(self) -> Rules:
        """Tiles that the block's threads share out evenly."""
        yield (
            divides(VECTOR * self.threads, self.BM * self.BK),
            "the A tile must be copied in whole passes of one float4 per thread",
        )
        yield (
            divides(VECTOR * self.threads, self.BK * self.BN),
            "the B tile must be copied in whole passes of one float4 per thread",
        )

    def rules(self) -> Rules:
        yield from self.size_rules()
        yield from self.copy_rules()
        yield (
            self.register_estimate <= REGISTERS_PER_THREAD,
            "a thread's sums, fragments and staged floats must fit its 255 registers",
        )
        yield (
            self.threads * self.register_estimate <= REGISTERS_PER_SM,
            "the block's registers must fit the SM's 65536",
        )


class WarpTiledKernel(VectorKernel):
    """A vector stage with explicit warp tiles: LANES_M rows of lanes, each with a patch in pieces."""

    LANES_M: int

    @property
    def warp_tile(self) -> tuple[int, int]:
        """(WM, WN): the part of C that a warp computes."""
        return self.LANES_M * self.TM, WARP // self.LANES_M * self.TN

    @property
    def threads(self) -> int:
        wm, wn = self.warp_tile
        return (self.BM // wm) * (self.BN // wn) * WARP

    def warp_rules(self) -> Rules:
        """Block tiles made of whole warp tiles."""
        wm, wn = self.warp_tile
        yield divides(wm, self.BM), "a block tile is made of whole rows of warp tiles: WM must divide BM"
        yield divides(wn, self.BN), "a block tile is made of whole columns of warp tiles: WN must divide BN"

    def compact_rules(self) -> Rules:
        """Warp tiles that are no strips."""
        wm, wn = self.warp_tile
        yield (
            wm <= 4 * wn and wn <= 4 * wm,
            "a warp tile more than 4 times as long as wide reads too many fragments for its sums",
        )

    def rules(self) -> Rules:
        yield from self.warp_rules()
        yield from super().rules()


class PipelinedKernel(WarpTiledKernel):
    """A warp-tiled stage that holds the next tile in registers while it computes this one."""

    MIN_BLOCKS: int

    @property
    def smem_bytes(self) -> int:
        return 2 * super().smem_bytes

    @property
    def register_estimate(self) -> int:
        """Per thread: sums, two pairs of fragments, staged floats with their addresses, 20 for the rest."""
        return self.TM * self.TN + 2 * (self.TM + self.TN) + self.staged * 3 // 2 + 20

    def rules(self) -> Rules:
        yield from self.warp_rules()
        yield from self.size_rules()
        yield from self.copy_rules()
        yield (
            self.register_estimate <= REGISTERS_PER_THREAD,
            "a thread's sums, two pairs of fragments and staged floats must fit its 255 registers",
        )
        yield from fit_an_sms_registers(self.MIN_BLOCKS * self.threads * self.register_estimate)
