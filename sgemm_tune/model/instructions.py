"""What a block executes, counted from its configuration: instructions, shared-memory cycles, bytes.

Everything is per warp. A pass is one step of the inner loop: one k of FFMAs, or one mma.sync depth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from sgemm_tune.arch import WARP, Arch
from sgemm_tune.kernel import Kernel, ceil_div
from sgemm_tune.model.occupancy import SCHEDULERS
from sgemm_tune.problem import FLOAT_BYTES, Problem
from sgemm_tune.reads import found_once

VECTOR = 4
"""Floats in the widest load of a thread."""

FFMA_CYCLES = 1.25
"""Issue cycles of an FFMA where a scheduler could start one a cycle: two register banks, three operands. 1.19
to 1.37 were counted in the SASS of kernels on an H200 (kernels.md)."""

FFMA_CYCLES_PLACED = 1.14
"""The same in the loop of common/async_tile.cuh, whose `place_sums` counts 1.06 at the best, where the outer
product goes back and forth, so that operands are reused at the turns. Both such ORDERs measure alike."""

FFMA_CYCLES_APART = 1.09
"""The same where other warps copy: 1.05 to 1.10 were counted in the SASS of tma, before it first ran."""

FFMA_CYCLES_PACKED = 1.13
"""The same for each half of an FFMA2, which no GPU has run for this project: 1.12 to 1.15 were counted in the
SASS of warp_tile for sm_100a, taking a pair as one read of either bank. A quarter of FFMA2s get no operand
from the reuse cache, and then take 3 cycles instead of 2.

Packing raises no peak, it halves issue slots. On a B300 (sm_103), 128 FFMAs per SM and clock were measured
either way: 4.00 instructions without, 2.04 with FFMA2, which keep both halves of the FMA pipe busy; one LOP3
for every two FFMA2s came at no cost (github.com/ademeure/QuickRunCUDA, audit "FFMA2 + ALU co-issue" of April
2026; two register reads a clock: D6_RF_PORT_RIGOR.md there). For sm_100 nothing was found; it is taken to be
the same."""

ROW_BY_ROW = 0
"""The ORDER of an outer product that does not."""

FFMA_CYCLES_LATE = 1.4
"""The same where a pass loads its own fragments: ptxas then orders FFMAs by what has arrived, not by what can
be reused (1.8 with no reuse at all)."""

MMA_SYNC_FLOPS = 768
"""TF32 FLOP per SM and clock of mma.sync between its loads. Hopper's full rate, 2048, needs wgmma, and
mma.sync is said to reach 62 % of it; the tf32_mma stage, loading by single LDS, was fastest at 149 TFLOP/s on
an H200."""

GLOBAL_WAVEFRONTS = 1.75
"""Cycles of the L1 cache for a warp's consecutive 4-byte loads; 32 where every lane hits another line. With
the next one, an H200's 33.7 cycles a step of K of naive, and 2.5 to 2.8 of coalesced with 128 to 512
threads."""

BROADCAST_WAVEFRONTS = 1.0
"""The same where all lanes read one word."""

L1_MISSES = 0.5
"""Share of such loads that reaches L2: an SM's blocks have rows and columns in common."""

LOAD_OVERHEAD = 3.0
"""Instructions besides the load itself for each global load of a tile: address, bounds, predicate."""

ASYNC_CYCLES = 2.0
"""Issue cycles of an LDGSTS: its addresses are a register and a constant each."""

ASYNC_CYCLES_UNALIGNED = 14.0
"""The same of one float of B in the copying warps of tma, where B's rows are not aligned: an address of 64
bits, its bounds, two lines of the cache. Set by an H200 with 128 x 256 tiles, 2.70 ms at 4095 and 2.38 at
4096, of which C's unaligned rows take 4 %. With ASYNC_CYCLES it would be 1 %."""

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
        math: FFMA, FFMA2 or mma instructions.
        loads: loads of operands.
        ideal: cycles of a scheduler's arithmetic unit at its peak rate.
        issue: cycles that a scheduler is busy with all of them.
        wavefronts: cycles that the SM's shared memory (or L1) is busy.
        spare: those of `issue` in which other instructions can start, as the math takes longer than a cycle.
    """

    depth: int
    math: int
    loads: float
    ideal: float
    issue: float
    wavefronts: float
    spare: float = 0.0


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


class Rows(NamedTuple):
    """Whether the rows of each operand begin on 16 bytes: all that a tile's copies depend on of a problem."""

    of_a: bool
    of_b: bool
    of_c: bool

    @classmethod
    def of(cls, problem: Problem) -> Rows:
        """Those of a problem."""
        return cls(problem.lda % VECTOR == 0, problem.ldb % VECTOR == 0, problem.ldc % VECTOR == 0)


def wavefronts(lanes: int, stride: int, vector: int) -> int:
    """Cycles in which shared memory serves one load of a warp.

    Args:
        lanes: lanes with distinct addresses (others are served by broadcast).
        stride: floats from one of them to the next.
        vector: floats per load.
    """
    groups = _BANKS // vector
    return ceil_div(lanes, groups // math.gcd(groups, max(1, stride // vector)))


def load_cycles(lanes: int, stride: int, vector: int) -> int:
    """Cycles in which shared memory serves one load of a warp, of which it takes 128 bytes at a time.

    So an LDS.128 is four loads of 8 lanes each, whether or not they read the same: 4 cycles at least. Kernels
    of 4 x 8 patches, 3 such loads, take an H200 12.0 cycles a warp and pass at 6144.

    Args:
        lanes: of 32 / vector neighbouring lanes those with distinct addresses.
        stride, vector: as for `wavefronts`.
    """
    return vector * wavefronts(lanes, stride, vector)


def inner_pass(kernel: Kernel, arch: Arch) -> Pass:
    """One step of the inner loop."""
    return _mma_pass(kernel, arch) if kernel.mma_k else _ffma_pass(kernel, arch)


def _ffma_pass(kernel: Kernel, arch: Arch) -> Pass:
    traits, (tm, tn), (_, wn) = kernel.traits, kernel.thread_tile, kernel.warp_tile
    ffma = tm * tn
    if not traits.shared:  # every load is scalar, and where a warp reads one row of A, that is one word
        loads_m, loads_n = float(tm), float(tn)
        rows = min(WARP, kernel.tile[0]) if not traits.coalesced else BROADCAST_WAVEFRONTS
        busy = GLOBAL_WAVEFRONTS * loads_n + rows * loads_m
    else:
        # where A keeps its rows of BK elements, ptxas reads four k at once: the same loads, other strides
        along_k = traits.vector == 1
        width_m = min(VECTOR, kernel.tile[2] if along_k else tm)
        width_n = min(VECTOR, tn)
        loads_m, loads_n = tm / width_m, tn / width_n
        rows = tm * kernel.tile[2] if along_k else width_m if traits.split_fragments else tm
        columns = width_n if traits.split_fragments else tn
        lanes_n = max(1, wn // tn)
        busy = loads_m * load_cycles(max(1, WARP // width_m // lanes_n), rows, width_m)
        busy += loads_n * load_cycles(min(WARP // width_n, lanes_n), columns, width_n)
    ideal = ffma * SCHEDULERS * WARP / arch.fp32_lanes
    loads = loads_m + loads_n
    if kernel.packed:
        slots = ffma // 2 + loads
        issue = max(ideal, ffma * FFMA_CYCLES_PACKED, slots)
        return Pass(1, ffma // 2, loads, ideal, issue, busy, issue - slots)
    issue = max(ideal, ffma * _ffma_cycles(kernel) + loads)
    return Pass(1, ffma, loads, ideal, issue, busy)


def _ffma_cycles(kernel: Kernel) -> float:
    if not kernel.traits.early_fragments:
        return FFMA_CYCLES_LATE
    if kernel.traits.copying_warps:
        return FFMA_CYCLES_APART
    placed = kernel.traits.async_copy and getattr(kernel, "ORDER", None) != ROW_BY_ROW
    return FFMA_CYCLES_PLACED if placed else FFMA_CYCLES


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


def tile_copy(kernel: Kernel, rows: Rows) -> Copy:
    """Loading one tile of A and of B. Where rows do not start on whole vectors all loads are scalar."""
    traits, (bm, bn, bk) = kernel.traits, kernel.tile
    size = FLOAT_BYTES * bk * (bm + bn)
    if not traits.shared:
        return Copy(0.0, 0.0, 2.0 * bk, 0.0, round(size * L1_MISSES))
    a, b = bm * bk / kernel.computing_threads, bn * bk / kernel.computing_threads
    if traits.copying_warps:
        return _copy_apart(kernel, rows, a, b)
    aligned = rows.of_a and rows.of_b
    loads = (a + b) / (traits.vector if aligned else 1)
    issue = STEP_OVERHEAD + loads * (1 + LOAD_OVERHEAD)
    if traits.async_copy:  # A float by float, so that it arrives transposed
        loads = a + b / (traits.vector if aligned else 1)
        return Copy(loads, 0.0, STEP_OVERHEAD + loads * ASYNC_CYCLES, 0.0, size)
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


def _copy_apart(kernel: Kernel, rows: Rows, a: float, b: float) -> Copy:
    """`tile_copy` where other warps copy, `a` and `b` floats for each thread that computes.

    What the copy engine fetches is one instruction for a whole tile: B where its rows are aligned, and both
    operands after a pre-pass. Such a B leaves the L2 once for all blocks of a cluster that need it.
    """
    bm, bn, bk = kernel.tile
    a_loads = 0.0 if kernel.box_of_a else a
    b_loads = 0.0 if kernel.box_of_a or rows.of_b else b
    issue = STEP_OVERHEAD + a_loads * ASYNC_CYCLES + b_loads * ASYNC_CYCLES_UNALIGNED
    fetched = bm + bn // (1 if b_loads else kernel.b_shared_by)
    return Copy(a_loads + b_loads, 0.0, issue, 0.0, FLOAT_BYTES * bk * fetched)


@cache
def transposing_conflicts(vectors: int, stride: int) -> int:
    """Cycles of one store of a warp that transposes A.

    Args:
        vectors: float4s in a row of A's tile.
        stride: floats from one k to the next in shared memory.
    """
    banks = [(lane % vectors * 4 * stride + lane // vectors) % _BANKS for lane in range(WARP)]
    return max(banks.count(bank) for bank in set(banks))


@found_once
def estimate_registers(kernel: Kernel) -> int:
    """Registers that a thread needs, before the compiler has said: sums, fragments, staged tiles, the rest.

    It may be more than a thread can have: such a kernel spills. ptxas takes more than this where it may.
    """
    if kernel.launch_registers is not None:
        return kernel.launch_registers
    traits, (tm, tn), (bm, bn, bk) = kernel.traits, kernel.thread_tile, kernel.tile
    fragments = _mma_fragments(kernel) if kernel.mma_k else (tm + tn) * (1 + traits.early_fragments)
    staged = 0
    if traits.shared and not traits.async_copy:
        floats = ceil_div(bk * (bm + bn), kernel.threads)
        staged = floats + floats // traits.vector  # and an address each
    return tm * tn + fragments + staged + BASE_REGISTERS
