"""What a block executes, counted from its configuration: instructions, shared-memory cycles, bytes.

Everything is per warp. A pass is one step of the inner loop: one k of FFMAs, or one mma.sync depth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from sgemm_tune.arch import WARP, Arch
from sgemm_tune.kernel import Kernel, ceil_div
from sgemm_tune.model.occupancy import SCHEDULERS
from sgemm_tune.problem import FLOAT_BYTES, Problem

FFMA_CYCLES = 1.33
"""Issue cycles of an FFMA where a scheduler could start one a cycle: two register banks, three operands. 1.33
to 1.37 counted in the SASS of kernels that reach 47 TFLOP/s on an H200, 1.19 at the best (kernels.md)."""

FFMA_CYCLES_LATE = 1.6
"""The same where a pass loads its own fragments: ptxas then orders FFMAs by what has arrived, not by what can
be reused (1.8 with no reuse at all). It is what the published 29 to 36 TFLOP/s of such kernels say."""

MMA_SYNC_FLOPS = 1280
"""TF32 FLOP per SM and clock that mma.sync reaches at most; Hopper's and Blackwell's full rate needs wgmma
and tcgen05, and mma.sync tops out at about 62 % of wgmma's 2048."""

GLOBAL_WAVEFRONTS = 2.5
"""Cycles of the L1 cache for a warp's consecutive 4-byte loads; 32 where every lane hits another line. Their
ratio is what makes the coalesced stage 7 times the naive one, as published."""

LOAD_OVERHEAD = 3.0
"""Instructions besides the load itself for each global load of a tile: address, bounds, predicate."""

STEP_OVERHEAD = 24.0
"""Instructions per tile besides loads, stores and arithmetic: loop, barriers, addresses."""

BASE_REGISTERS = 24
"""Registers besides accumulators, fragments and staged tiles: pointers, indices, bounds."""

_BANKS = 32


@dataclass(frozen=True)
class Pass:
    """One step of the inner loop of one warp.

    Attributes:
        depth: how many k it covers.
        math: FFMA or mma instructions.
        loads: loads of operands.
        ideal: cycles of a scheduler's arithmetic unit at its peak rate.
        issue: cycles that a scheduler is busy with all of them.
        wavefronts: cycles that the SM's shared memory (or L1) is busy.
    """

    depth: int
    math: int
    loads: int
    ideal: float
    issue: float
    wavefronts: float


@dataclass(frozen=True)
class Copy:
    """Moving one tile of A and of B into shared memory: one warp's part.

    Attributes:
        loads: global loads.
        stores: stores to shared memory.
        issue: cycles of a scheduler, bookkeeping of the step included.
        wavefronts: cycles of shared memory.
        bytes: read from L2, all warps together.
    """

    loads: float
    stores: float
    issue: float
    wavefronts: float
    bytes: int


def wavefronts(lanes: int, stride: int, vector: int) -> int:
    """Cycles in which shared memory serves one load of a warp.

    Args:
        lanes: lanes with distinct addresses (others are served by broadcast).
        stride: floats from one of them to the next.
        vector: floats per load.
    """
    groups = _BANKS // vector
    return ceil_div(lanes, groups // math.gcd(groups, max(1, stride // vector)))


def inner_pass(kernel: Kernel, arch: Arch) -> Pass:
    """One step of the inner loop."""
    return _mma_pass(kernel, arch) if kernel.mma_k else _ffma_pass(kernel, arch)


def _ffma_pass(kernel: Kernel, arch: Arch) -> Pass:
    traits, (tm, tn), (wm, wn) = kernel.traits, kernel.thread_tile, kernel.warp_tile
    ffma = tm * tn
    width_m, width_n = min(traits.vector, tm), min(traits.vector, tn)
    loads_m, loads_n = ceil_div(tm, width_m), ceil_div(tn, width_n)
    if not traits.shared:
        busy = (
            GLOBAL_WAVEFRONTS * loads_n
            + (GLOBAL_WAVEFRONTS if traits.coalesced else min(WARP, kernel.tile[0])) * loads_m
        )
    else:
        # without vectors A keeps its rows of BK elements; with them it was transposed on its way
        rows = tm * kernel.tile[2] if traits.vector == 1 else width_m if traits.split_fragments else tm
        columns = width_n if traits.split_fragments else tn
        busy = loads_m * wavefronts(max(1, wm // tm), rows, width_m)
        busy += loads_n * wavefronts(max(1, wn // tn), columns, width_n)
    ideal = ffma * SCHEDULERS * WARP / arch.fp32_lanes
    cycles = FFMA_CYCLES if traits.early_fragments else FFMA_CYCLES_LATE
    issue = max(ideal, ffma * cycles + loads_m + loads_n)
    return Pass(1, ffma, loads_m + loads_n, ideal, issue, busy)


def _mma_pass(kernel: Kernel, arch: Arch) -> Pass:
    depth, (wm, wn) = kernel.mma_k, kernel.warp_tile
    tiles_m, tiles_n = ceil_div(wm, 16), ceil_div(wn, 8)
    mmas = tiles_m * tiles_n
    # A comes as depth / 4 floats for each of two rows, B as vectors over neighbouring tiles
    loads = 2 * tiles_m + depth // 4 * ceil_div(tiles_n, kernel.traits.vector)
    floats = _mma_fragments(kernel)
    flops = mmas * 16 * 8 * depth * 2 * SCHEDULERS
    issue = max(flops / min(arch.tf32_flops, MMA_SYNC_FLOPS), mmas + loads)
    return Pass(depth, mmas, loads, flops / arch.tf32_flops, issue, floats)


def _mma_fragments(kernel: Kernel) -> int:
    """Floats of A and B that a lane holds for one pass."""
    wm, wn = kernel.warp_tile
    return ceil_div(wm, 16) * kernel.mma_k // 2 + ceil_div(wn, 8) * kernel.mma_k // 4


def tile_copy(kernel: Kernel, problem: Problem) -> Copy:
    """Loading one tile of A and of B. Where rows do not start on whole vectors all loads are scalar."""
    traits, (bm, bn, bk) = kernel.traits, kernel.tile
    size = FLOAT_BYTES * bk * (bm + bn)
    if not traits.shared:
        return Copy(0.0, 0.0, 2.0 * bk, 0.0, size)
    a, b = bm * bk / kernel.threads, bn * bk / kernel.threads
    aligned = problem.lda % traits.vector == 0 == problem.ldb % traits.vector
    loads = (a + b) / (traits.vector if aligned else 1)
    issue = STEP_OVERHEAD + loads * (1 + LOAD_OVERHEAD)
    if traits.async_copy:
        return Copy(loads, 0.0, issue, a + b, size)
    if kernel.mma_k:  # rounded to TF32 float by float, stored as they lie
        stores = (a + b) / traits.vector
        return Copy(loads, stores, issue + a + b + stores, a + b, size)
    stores = a + b / traits.vector  # A is transposed on its way, float by float
    conflicts = 1
    if traits.vector > 1:
        # what shared memory holds besides the two tiles is the padding of A's transposed rows
        stride = kernel.smem_bytes // (FLOAT_BYTES * bk * traits.buffers) - bn
        conflicts = transposing_conflicts(bk // traits.vector, stride)
    return Copy(loads, stores, issue + stores, a * conflicts + b, size)


@cache
def transposing_conflicts(vectors: int, stride: int) -> int:
    """Cycles of one store of a warp that transposes A.

    Args:
        vectors: float4s in a row of A's tile.
        stride: floats from one k to the next in shared memory.
    """
    banks = [(lane % vectors * 4 * stride + lane // vectors) % _BANKS for lane in range(WARP)]
    return max(banks.count(bank) for bank in set(banks))


def estimate_registers(kernel: Kernel) -> int:
    """Registers that a thread needs, before the compiler has said: sums, fragments, staged tiles, the rest.

    It may be more than a thread can have: such a kernel spills. ptxas takes more than this where it may.
    """
    traits, (tm, tn), (bm, bn, bk) = kernel.traits, kernel.thread_tile, kernel.tile
    fragments = _mma_fragments(kernel) if kernel.mma_k else (tm + tn) * (1 + traits.early_fragments)
    staged = 0
    if traits.shared and not traits.async_copy:
        floats = ceil_div(bk * (bm + bn), kernel.threads)
        staged = floats + floats // traits.vector  # and an address each
    return tm * tn + fragments + staged + BASE_REGISTERS
