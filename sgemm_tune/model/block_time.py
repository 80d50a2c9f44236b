"""How long an SM takes over its resident blocks: issue slots, shared memory, L2, and waiting.

Waiting is a closed queue, at two levels. A scheduler serves its resident warps, each of which waits for its
operands between passes; an SM serves its resident blocks, each of which waits between tiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from sgemm_tune.arch import KIB, WARP, Arch
from sgemm_tune.kernel import Kernel, ceil_div
from sgemm_tune.model.instructions import STEP_OVERHEAD, Copy, Pass, Rows, inner_pass, tile_copy
from sgemm_tune.model.occupancy import SCHEDULERS
from sgemm_tune.problem import FLOAT_BYTES, Problem
from sgemm_tune.reads import found_once

GLOBAL_LATENCY = 600.0
"""Cycles from a global load to its use (270 for a hit of L2, 600 to 800 for a miss)."""

LDS_LATENCY = 30.0
"""Cycles from an LDS to its use, besides those in which shared memory serves it."""

FFMA_LATENCY = 4.0
"""Cycles until an FFMA's sum can be added to again."""

STALL_CYCLES = 0.2
"""Cycles per FFMA in which its warp waits and another can issue. On an H200 at 1024, one warp a scheduler
with 8 x 16 patches takes 11 % longer than two with 8 x 8, which load more per FFMA."""

BARRIER = 30.0
"""Cycles of a __syncthreads()."""

EPILOGUE_INSTRUCTIONS = 3.0
"""Instructions per element of C: scale, address, store (a third of the stores where they are vectors)."""

CLUSTER_CYCLES = 1500.0
"""Cycles in which a cluster's blocks start together and meet twice."""

CLUSTER_STALLS = 1.005
"""How much longer a tile of K takes whose B comes with a cluster's other block, which may be late: set by
ten configurations of `tma` at 4096 and others on an H200, 0.2 to 0.9 %. All pairs at 4096 say 1.5 % in the
median, and it was not set again (docs/model.md)."""

SHARING_CYCLES = 8000.0
"""Cycles in which blocks that share out K through the workspace wait for one another: for the last one's
sums, a ticket, a count, the others' sums in a few rounds, C, each of them GLOBAL_LATENCY or more. Set by an
H200, from 14.5 us at 512 to 625 us at 1024x1024x16384."""

CLUSTER_BYTES_PER_CLOCK = 10.0
"""Bytes per clock that an SM reads from the others of a cluster while they read from it. Set by the H200's
figures; 7 and 14 order split kernels about as well."""

STORE_CYCLES_UNALIGNED = 1.25
"""Cycles of an SM for each float of C in unaligned rows, a part of a sector that goes to the L2 by itself.
Set by an H200 at 4095: with a pre-pass that aligns A and B, 2.54 ms rather than 2.41 at 4096, of which B's
copy takes 2 %."""

L2_BYTES_PER_CLOCK = 28.0
"""L2 bytes per clock that each SM gets when all read (measured bandwidths lie between 16 and 32)."""

CODE_CACHE = 20 * KIB
"""Bytes of a loop that the instruction cache next to a scheduler supplies (12 KiB on Volta: Jia et al.,
"Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", 2018). On an H200 at 2048, 128 x 128
tiles of 8 x 16 patches take 0.355 ms where the loop has 18 KB, and 0.400 to 0.411 ms where it has 67 KB."""

UNROLL = 8
"""Steps of K in one body of the loop of 11_tma.cu, whatever BK is."""

FETCH_CYCLES = 0.22
"""Share by which an instruction takes longer where it comes from further away."""

INSTRUCTION_BYTES = 16
"""All of sm_70 and newer."""

OVERLAP = 6.0
"""Exponent of the power mean that joins resources which work at the same time."""


class Flow(NamedTuple):
    """Cycles for some resident blocks to advance one tile: each resource alone, together, with waiting."""

    blocks: int
    issue: float
    smem: float
    l2: float
    work: float
    step: float


@dataclass(frozen=True, eq=False)
class Loop:
    """What a block does for each tile of K, whatever the product's size.

    `fetched` is the share of its code that the nearest instruction cache does not hold. Configurations that
    differ in nothing of this have one object in common, whose flows are found once for all problems.
    """

    inner: Pass
    copy: Copy
    warps: int
    passes: float
    buffers: int
    early_fragments: bool
    shared: bool
    fetched: float

    @staticmethod
    @found_once
    def of(kernel: Kernel, arch: Arch, rows: Rows) -> Loop:
        """That of this configuration."""
        traits = kernel.traits
        inner, copy = inner_pass(kernel, arch), tile_copy(kernel, rows)
        passes = kernel.tile[2] / inner.depth / kernel.k_parts
        unrolled = min(passes, UNROLL) if traits.copying_warps else passes
        beside = STEP_OVERHEAD if traits.copying_warps else copy.issue
        code = INSTRUCTION_BYTES * (unrolled * (inner.math + inner.loads) + beside)
        return Loop(
            inner=inner,
            copy=copy,
            warps=ceil_div(kernel.computing_threads, WARP),
            passes=passes,
            buffers=traits.buffers,
            early_fragments=traits.early_fragments,
            shared=traits.shared,
            fetched=max(0.0, 1.0 - CODE_CACHE / code),
        )

    @property
    def copying(self) -> float:
        """Issue cycles of a step's copies, but for those that start while a math instruction takes two."""
        return max(0.0, self.copy.issue - self.passes * self.inner.spare)

    @cache  # noqa: B019  (loops are kept anyway)
    def flow(self, blocks: int) -> Flow:
        """What `blocks` resident blocks take to advance one tile."""
        warps = blocks * self.warps
        queue = ceil_div(warps, SCHEDULERS)
        early = self.inner.issue if self.early_fragments else 0.0
        wait = max(0.0, LDS_LATENCY + self.inner.wavefronts - early)
        wait += max(0.0, FFMA_LATENCY - self.inner.math) + STALL_CYCLES * self.inner.math
        issue = self.passes * round_trip(queue, self.inner.issue, wait) + queue * self.copying
        issue *= 1.0 + FETCH_CYCLES * self.fetched
        smem = warps * (self.passes * self.inner.wavefronts + self.copy.wavefronts)
        l2 = blocks * self.copy.bytes / L2_BYTES_PER_CLOCK
        work = step = overlap(issue, smem, l2)
        if self.shared:
            # tf32_mma, with two buffers but no early fragments, takes an H200 as long as if it hid nothing:
            # at 4096 a tile's work and 1400 to 1800 cycles for each of BK = 8, 16 and 32
            early = (self.buffers - 1) * work if self.early_fragments else 0.0
            wait = max(0.0, GLOBAL_LATENCY - early) + (BARRIER if self.buffers > 1 else 2 * BARRIER)
            step = round_trip(blocks, work / blocks, wait)
        return Flow(blocks, issue, smem, l2, work, step)


class Block(NamedTuple):
    """One block's work, and how long an SM takes over several.

    Of its fields, `steps` is the tiles of K, `exchange` the cycles of the SM in which it hands over partial
    sums, `meeting` those in which blocks wait for one another to do so, and `stores` those in which unaligned
    rows of C are stored.
    """

    loop: Loop
    steps: int
    epilogue: float
    exchange: float
    meeting: float
    stores: float

    @classmethod
    def of(cls, kernel: Kernel, problem: Problem, arch: Arch, splits: int) -> Block:
        """A block of this configuration, where `splits` of them share a tile."""
        rows, (tm, tn) = Rows.of(problem), kernel.thread_tile
        stores = 1 / 3 if kernel.traits.split_fragments else 1.0  # of vectors
        return cls(
            loop=Loop.of(kernel, arch, rows),
            steps=ceil_div(ceil_div(problem.k, splits), kernel.tile[2]),
            epilogue=tm * tn * EPILOGUE_INSTRUCTIONS * stores,
            exchange=_exchange(kernel),
            meeting=CLUSTER_CYCLES if kernel.split_k > 1 else 0.0,
            stores=_unaligned_stores(kernel, rows),
        )

    def sharing(self, kernel: Kernel, tiles: int, parts: int) -> Block:
        """One of `parts` blocks among which all of fewer tiles are shared out evenly along K.

        A part that crosses from one tile to the next is two pieces. The sums of each piece are written to
        the workspace in the L2 and read again.
        """
        pieces = parts + tiles - math.gcd(parts, tiles)
        bm, bn, _ = kernel.tile
        return self._replace(
            steps=ceil_div(tiles * self.steps, parts),
            exchange=2 * FLOAT_BYTES * bm * bn * pieces / parts / L2_BYTES_PER_CLOCK,
            meeting=SHARING_CYCLES,
            stores=self.stores * tiles / parts,
        )

    def run(self, blocks: int, flow: Flow) -> float:
        """Cycles for `blocks` resident blocks to run from start to end."""
        queue = ceil_div(blocks * self.loop.warps, SCHEDULERS)
        ends = 2 * GLOBAL_LATENCY + queue * self.epilogue + blocks * (self.exchange + self.stores)
        return self.steps * flow.step + ends + self.meeting


def _exchange(kernel: Kernel) -> float:
    """Cycles in which a block reads its share of the others' partial sums."""
    others = 1 - 1 / kernel.split_k
    bm, bn, _ = kernel.tile
    return FLOAT_BYTES * bm * bn * others / CLUSTER_BYTES_PER_CLOCK


def _unaligned_stores(kernel: Kernel, rows: Rows) -> float:
    """Cycles for a tile of C whose rows are not aligned; known of tma alone."""
    if not kernel.traits.copying_warps or rows.of_c:
        return 0.0
    bm, bn, _ = kernel.tile
    return STORE_CYCLES_UNALIGNED * bm * bn


def round_trip(customers: int, service: float, wait: float) -> float:
    """Time in which a server serves each of `customers` once who wait elsewhere in between.

    Exact mean value analysis of a closed queue: service + wait for one, customers * service for many.
    """
    waiting = 0.0
    trip = 0.0
    for present in range(1, customers + 1):
        stay = service * (1.0 + waiting)
        trip = stay + wait
        waiting = present * stay / trip
    return trip


def overlap(*times: float) -> float:
    """Time of resources that work side by side: a power mean, the largest where one dominates."""
    largest = max(times)
    if largest <= 0.0:
        return 0.0
    total = 0.0
    for time in times:
        total += (time / largest) ** OVERLAP
    return float(largest * total ** (1.0 / OVERLAP))
