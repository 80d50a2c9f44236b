"""How many blocks of a kernel an SM holds, and what stops it from holding more."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from sgemm_tune.arch import (
    REGISTERS_PER_SM,
    REGISTERS_PER_THREAD,
    SMEM_RESERVED_PER_BLOCK,
    THREADS_PER_BLOCK,
    WARP,
    Arch,
)
from sgemm_tune.kernel import ceil_div

SCHEDULERS = 4
"""Sub-partitions of an SM, each with its own quarter of the registers (all of sm_80 to sm_121)."""

REGISTER_UNIT = 256
"""Registers are handed to a warp in units of this many."""

GPC_SMS = (18, 18, 18, 16, 16, 16, 16, 14)
"""A guess at the SMs of each GPC, within which a cluster lies, on a Hopper of 132. It has room for 15
clusters of 8, as seen on an H100 (accel-sim/gpu-app-collection, pull request 87), and for 31 of 4: 32 take an
H200 twice as long as one wave."""

SMEM_UNIT = 128
"""Shared memory is handed to a block in units of this many bytes."""


@dataclass(frozen=True)
class Occupancy:
    """What one SM holds at a time.

    Attributes:
        blocks: resident blocks; 0 where the kernel cannot run at all.
        warps: resident warps.
        limiter: what stops one more block: `registers`, `smem`, `warps`, `blocks` or `threads`.
    """

    blocks: int
    warps: int
    limiter: str

    def __str__(self) -> str:
        warps = self.warps // max(1, self.blocks)
        return f"{self.blocks} blocks of {warps} warps per SM, limited by {self.limiter}"


@cache
def occupancy(arch: Arch, *, registers: int, threads: int, smem_bytes: int) -> Occupancy:
    """Resident blocks per SM, as the rules of `cuda_occupancy.h` have it.

    A warp takes 32 x registers, rounded up to 256, from one quarter of the register file, so that the
    number of warps is a multiple of 4. A block takes its shared memory rounded up to 128 bytes and 1 KiB
    that the system keeps. Of two limits that are equally tight the one that no kernel can change is named.

    Args:
        registers: per thread.
        threads: per block.
        smem_bytes: static and dynamic shared memory per block.
    """
    if not 0 < threads <= THREADS_PER_BLOCK:
        return Occupancy(0, 0, "threads")
    if registers > REGISTERS_PER_THREAD:
        return Occupancy(0, 0, "registers")
    if smem_bytes > arch.smem_per_block:
        return Occupancy(0, 0, "smem")
    warps = ceil_div(threads, WARP)
    per_warp = max(1, ceil_div(registers * WARP, REGISTER_UNIT)) * REGISTER_UNIT
    warps_in_registers = REGISTERS_PER_SM // SCHEDULERS // per_warp * SCHEDULERS
    per_block = ceil_div(smem_bytes, SMEM_UNIT) * SMEM_UNIT + SMEM_RESERVED_PER_BLOCK
    limits = (
        (arch.warps_per_sm // warps, "warps"),
        (arch.blocks_per_sm, "blocks"),
        (arch.smem_per_sm // per_block, "smem"),
        (warps_in_registers // warps, "registers"),
    )
    blocks, limiter = min(limits, key=lambda limit: limit[0])
    return Occupancy(blocks, blocks * warps, limiter)


@cache
def clustered(sms: int, size: int) -> int:
    """SMs of `sms` that clusters of `size` blocks can use; all boards in proportion to the Hopper above."""
    room = sum(gpc // size * size for gpc in GPC_SMS)
    return max(1, sms * room // sum(GPC_SMS))
