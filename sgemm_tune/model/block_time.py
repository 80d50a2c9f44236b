"""How long an SM takes over its resident blocks: issue slots, shared memory, L2, and waiting.

Waiting is a closed queue, at two levels. A scheduler serves its resident warps, each of which waits for its
operands between passes; an SM serves its resident blocks, each of which waits between tiles.
"""

from __future__ import annotations

from typing import NamedTuple

from sgemm_tune.arch import WARP, Arch
from sgemm_tune.kernel import Kernel, ceil_div
from sgemm_tune.model.instructions import Copy, Pass, inner_pass, tile_copy
from sgemm_tune.model.occupancy import SCHEDULERS
from sgemm_tune.problem import Problem

GLOBAL_LATENCY = 750.0
"""Cycles from a global load to its use, misses of L2 included (270 for a hit, 600 to 800 for a miss)."""

LDS_LATENCY = 30.0
"""Cycles from an LDS to its use, besides those in which shared memory serves it."""

FFMA_LATENCY = 4.0
"""Cycles until an FFMA's sum can be added to again."""

BARRIER = 45.0
"""Cycles of a __syncthreads() and the first LDS after it."""

EPILOGUE_INSTRUCTIONS = 3.0
"""Instructions per element of C: scale, address, store (a third of the stores where they are vectors)."""

EXCHANGE_CYCLES = 1500.0
"""Cycles in which a cluster's blocks meet twice and add up their partial sums."""

L2_BYTES_PER_CLOCK = 28.0
"""L2 bytes per clock that each SM gets when all read (measured bandwidths lie between 16 and 32)."""

OVERLAP = 4.0
"""Exponent of the power mean that joins resources which work at the same time."""


class Flow(NamedTuple):
    """Cycles for some resident blocks to advance one tile: each resource alone, together, with waiting."""

    blocks: int
    issue: float
    smem: float
    l2: float
    work: float
    step: float


class Block(NamedTuple):
    """One block's work, and how long an SM takes over several."""

    inner: Pass
    copy: Copy
    warps: int
    passes: float
    steps: int
    buffers: int
    early_fragments: bool
    shared: bool
    epilogue: float
    exchange: float

    @classmethod
    def of(cls, kernel: Kernel, problem: Problem, arch: Arch) -> Block:
        """A block of this configuration."""
        traits, (tm, tn), bk = kernel.traits, kernel.thread_tile, kernel.tile[2]
        inner = inner_pass(kernel, arch)
        stores = 1 / 3 if traits.split_fragments else 1.0
        return cls(
            inner=inner,
            copy=tile_copy(kernel, problem),
            warps=ceil_div(kernel.threads, WARP),
            passes=bk / inner.depth,
            steps=ceil_div(ceil_div(problem.k, kernel.split_k), bk),
            buffers=traits.buffers,
            early_fragments=traits.early_fragments,
            shared=traits.shared,
            epilogue=tm * tn * EPILOGUE_INSTRUCTIONS * stores,
            exchange=EXCHANGE_CYCLES if kernel.split_k > 1 else 0.0,
        )

    def flow(self, blocks: int) -> Flow:
        """What `blocks` resident blocks take to advance one tile."""
        warps = blocks * self.warps
        queue = ceil_div(warps, SCHEDULERS)
        early = self.inner.issue if self.early_fragments else 0.0
        wait = max(0.0, LDS_LATENCY + self.inner.wavefronts - early)
        wait += max(0.0, FFMA_LATENCY - self.inner.math)
        issue = self.passes * round_trip(queue, self.inner.issue, wait) + queue * self.copy.issue
        smem = warps * (self.passes * self.inner.wavefronts + self.copy.wavefronts)
        l2 = blocks * self.copy.bytes / L2_BYTES_PER_CLOCK
        work = step = overlap(issue, smem, l2)
        if self.shared:
            early = (self.buffers - 1) * work
            barriers = BARRIER if self.buffers > 1 else 2 * BARRIER
            step = round_trip(blocks, work / blocks, max(0.0, GLOBAL_LATENCY - early) + barriers)
        return Flow(blocks, issue, smem, l2, work, step)

    def run(self, blocks: int, flow: Flow) -> float:
        """Cycles for `blocks` resident blocks to run from start to end."""
        queue = ceil_div(blocks * self.warps, SCHEDULERS)
        return self.steps * flow.step + 2 * GLOBAL_LATENCY + queue * self.epilogue + self.exchange


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
