"""Rung 11."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sgemm_tune.arch import MULTICAST, PACKED_FFMA, REGISTERS_PER_SM, WARP, Arch
from sgemm_tune.kernel import Rules, Traits, ceil_div, register, tune
from sgemm_tune.problem import FLOAT_BYTES, Problem
from sgemm_tune.stages._async import A_PAD
from sgemm_tune.stages._tiles import VECTOR, WarpTiledKernel, fits_an_sm

COPYING = 4 * WARP
"""Threads that copy."""

KEPT = 40
"""Registers that a copying thread keeps."""

REGISTER_UNIT = 8
"""Registers are handed over in units of this many per thread."""

BARRIER_BYTES = 8

MOST_STAGES = 6
"""Buffers that shared memory has barriers for."""

BOX_ALIGNMENT = 128
"""Bytes on whose multiples the copy engine puts boxes in shared memory."""

TICKET_BYTES = 16
"""Of a block's two tickets for tiles that it shares with others."""

WORK_BYTES = 32
"""Of what a block does, found once."""

LEAST_SHARE = 64
"""Entries of K of a tile that are worth a block of their own."""


@register
@dataclass(frozen=True)
class Tma(WarpTiledKernel):
    """Some warps only copy, the others only compute; blocks stay for the whole product."""

    source: ClassVar[str] = "11_tma.cu"
    min_arch: ClassVar[tuple[int, int]] = (9, 0)
    traits: ClassVar[Traits] = Traits(
        vector=4,
        split_fragments=True,
        buffers=2,
        early_fragments=True,
        async_copy=True,
        copying_warps=True,
    )

    BM: int = tune(48, 64, 96, 128, 192, 256, default=128)
    BN: int = tune(48, 64, 96, 128, 192, 256, default=256)
    BK: int = tune(8, 16, 32, 64, default=16)
    TM: int = tune(8, 12, 16)
    TN: int = tune(8, 12, 16, default=16)
    LANES_M: int = tune(2, 4, 8, 16, default=4)
    STAGES: int = tune(2, 3, 4, 6, default=3, at_launch=True)
    ORDER: int = tune(1, 2, default=2)
    MIN_BLOCKS: int = tune(1, 2)
    STREAM_K: int = tune(0, 1, default=1, at_launch=True)
    PREPASS: int = tune(0, 1, before=0)
    PACKED: int = tune(0, 1, before=0, only=PACKED_FFMA)
    CLUSTER: int = tune(1, 2, before=1, only=MULTICAST)

    @property
    def computing_threads(self) -> int:
        return super().threads

    @property
    def threads(self) -> int:
        return self.computing_threads + COPYING

    @property
    def launch_registers(self) -> int:
        return REGISTERS_PER_SM // (self.MIN_BLOCKS * self.threads) // REGISTER_UNIT * REGISTER_UNIT

    @property
    def computing_registers(self) -> int:
        """Of a computing thread, after the copying ones have given up theirs."""
        if not self.computing_threads:
            return 0
        left = self.launch_registers * self.threads - KEPT * COPYING
        return left // self.computing_threads // REGISTER_UNIT * REGISTER_UNIT

    @property
    def register_estimate(self) -> int:
        """Of a computing thread: sums, two pairs of fragments, 32 for the rest."""
        return self.TM * self.TN + 2 * (self.TM + self.TN) + 32

    @property
    def smem_bytes(self) -> int:
        """Three barriers for each of the most buffers, the tickets, what the block does, a float4 for each
        computing thread, the ring."""
        before = 3 * MOST_STAGES * BARRIER_BYTES + TICKET_BYTES + WORK_BYTES
        exchange = VECTOR * FLOAT_BYTES * self.computing_threads
        buffer = FLOAT_BYTES * self.BK * (self.BM + (0 if self.PREPASS else A_PAD) + self.BN)
        return ceil_div(before, BOX_ALIGNMENT) * BOX_ALIGNMENT + exchange + self.STAGES * buffer

    @property
    def box_of_a(self) -> tuple[int, int] | None:
        return (self.BK, self.BM) if self.PREPASS else None

    @property
    def box_of_b(self) -> tuple[int, int]:
        return self.BK // self.CLUSTER, self.BN

    @property
    def b_shared_by(self) -> int:
        return self.CLUSTER

    @property
    def even_waves(self) -> bool:
        return bool(self.STREAM_K)

    def grid(self, problem: Problem) -> int:
        """Whole clusters: where tile rows do not fill the last ones, some blocks have a tile outside of C."""
        return self.CLUSTER * ceil_div(problem.m, self.CLUSTER * self.BM) * ceil_div(problem.n, self.BN)

    def blocks(self, problem: Problem, sms: int) -> int:
        """As many clusters as the device holds at a time, or as there is work for; one at least."""
        tiles = self.grid(problem) // self.CLUSTER
        clusters = max(1, self.MIN_BLOCKS * sms // self.CLUSTER)
        work = tiles * problem.k // max(LEAST_SHARE, self.BK) if self.STREAM_K else 0
        return self.CLUSTER * min(clusters, max(tiles, work))

    @property
    def takes_workspace(self) -> bool:
        return True

    def workspace_bytes(self, problem: Problem, sms: int) -> int:
        """Two tiles of sums for each block, where blocks share tiles."""
        blocks = self.blocks(problem, sms)
        return 2 * blocks * FLOAT_BYTES * self.BM * self.BN if blocks > self.grid(problem) else 0

    def rules(self) -> Rules:
        yield from self.warp_rules()
        yield from self.compact_rules()
        yield (
            self.MIN_BLOCKS * self.computing_threads == 256,
            "MIN_BLOCKS blocks must give each of the SM's 4 schedulers 2 computing warps",
        )
        yield (
            not self.PREPASS or self.BM * self.BN >= 128 * 128,
            "only tiles of 128 x 128 and more reuse operands often enough for a pre-pass to pay",
        )
        yield (
            self.CLUSTER == 1 or (self.BM * self.BN >= 128 * 128 and self.BN >= self.BM),
            "only tiles of 128 x 128 and more that are no taller than wide have enough of B to share it",
        )
        yield (
            self.TM * self.TN <= 128,
            "more than 128 sums per thread leave too few registers for all that is no loop",
        )
        yield (
            self.register_estimate <= self.computing_registers,
            "a thread's sums, two pairs of fragments and addresses must fit its registers",
        )

    def launch_rules(self) -> Rules:
        yield (
            16 <= (self.STAGES - 1) * self.BK <= 96,
            "16 to 96 entries of K must be on their way: fewer hide no latency, more only take shared memory",
        )

    def _limits(self, arch: Arch) -> Rules:
        yield from super()._limits(arch)
        yield from fits_an_sm(self, self.MIN_BLOCKS, arch)
