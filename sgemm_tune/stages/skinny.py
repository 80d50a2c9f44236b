"""Rung 12."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sgemm_tune.arch import REGISTERS_PER_THREAD, WARP, Arch
from sgemm_tune.kernel import Rules, TiledKernel, Traits, register, tune
from sgemm_tune.problem import FLOAT_BYTES, Problem
from sgemm_tune.stages._tiles import VECTOR, divides, fit_an_sms_registers, fits_an_sm

FEW_ROWS, FEW_COLUMNS = 0, 1
"""Values of SIDE."""

ROW_SPAN = WARP * VECTOR
"""Floats of a row of A in one load of a warp, with few columns."""

MOST_TILES = 4096
"""Tiles that several blocks may share: the kernel has a counter for each."""

WIDEST = 64
"""Rows or columns of C up to which the stage is worth a trial."""


@register
@dataclass(frozen=True)
class Skinny(TiledKernel):
    """Few rows or columns of C: the large operand streams through registers, once, K shared out to all."""

    source: ClassVar[str] = "12_skinny.cu"
    traits: ClassVar[Traits] = Traits(
        vector=4, split_fragments=True, buffers=2, early_fragments=True, async_copy=True
    )

    SIDE: int = tune(FEW_ROWS, FEW_COLUMNS)
    TM: int = tune(1, 2, 4, 8, 16, 32, default=8)
    TN: int = tune(1, 2, 4, 8, 16, 32, default=4)
    LANES: int = tune(8, 16, 32, default=32)
    WARPS: int = tune(4, 8, 16, default=8)
    AHEAD: int = tune(4, 8, 16, default=8)
    MIN_BLOCKS: int = tune(1, 2, default=2)

    @property
    def depth(self) -> int:
        """Of K, what a warp's part of its loads covers with few rows, and a block's with few columns."""
        if self.SIDE == FEW_ROWS:
            return WARP // self.LANES * (self.AHEAD * VECTOR // self.TN)
        return max(1, self.AHEAD // self.TM) * ROW_SPAN

    @property
    def tile(self) -> tuple[int, int, int]:
        if self.SIDE == FEW_ROWS:
            return self.TM, self.LANES * self.TN, self.WARPS * self.depth
        return self.WARPS * self.TM, self.TN, self.depth

    @property
    def thread_tile(self) -> tuple[int, int]:
        return self.TM, self.TN

    @property
    def warp_tile(self) -> tuple[int, int]:
        return self.TM, self.LANES * self.TN if self.SIDE == FEW_ROWS else self.TN

    @property
    def threads(self) -> int:
        return self.WARPS * WARP

    @property
    def k_parts(self) -> int:
        return self.WARPS * WARP // self.LANES if self.SIDE == FEW_ROWS else WARP

    @property
    def register_estimate(self) -> int:
        """Per thread: sums, what is on its way, the rest."""
        rest = 40 + (self.TM * (WARP // self.LANES) // 2 if self.SIDE == FEW_ROWS else 8)
        return self.TM * self.TN + self.AHEAD * VECTOR + rest

    @property
    def smem_bytes(self) -> int:
        """What is at hand of the small operand, twice, and later in the same place the sums of warps."""
        bm, bn, bk = self.tile
        if self.SIDE == FEW_ROWS:
            ring = 2 * self.TM * bk
            sums = self.WARPS * (self.TM if self.TM * bn <= 1024 else 1024 // bn) * bn
        else:
            panel = 4096 // (self.TN * bk) * bk if self.TN * bk <= 4096 else bk
            ring = 2 * self.TN * (panel + VECTOR)
            sums = bm * bn
        return FLOAT_BYTES * max(ring, sums)

    @property
    def takes_workspace(self) -> bool:
        return True

    def splits(self, problem: Problem, sms: int) -> int:
        """As many as the device holds at a time, each with a round of the loop at least."""
        tiles = self.grid(problem)
        if not 0 < tiles <= MOST_TILES:
            return 1
        return max(1, min(self.MIN_BLOCKS * sms // tiles, problem.k // self.tile[2]))

    def blocks(self, problem: Problem, sms: int) -> int:
        return self.grid(problem) * self.splits(problem, sms)

    def workspace_bytes(self, problem: Problem, sms: int) -> int:
        blocks, (bm, bn, _) = self.blocks(problem, sms), self.tile
        return FLOAT_BYTES * blocks * bm * bn if blocks > self.grid(problem) else 0

    @classmethod
    def suits(cls, problem: Problem) -> bool:
        return min(problem.m, problem.n) <= WIDEST

    def rules(self) -> Rules:
        few_rows = self.SIDE == FEW_ROWS
        yield (
            not few_rows or self.TN == 4 or (self.TN == 8 and self.TM >= 8),
            "with few rows a thread has one float4 of columns, or two where there are 8 rows or more",
        )
        yield (
            not few_rows or divides(self.TN, self.AHEAD),
            "with few rows, what is on its way is whole rows of B, 4 or a multiple",
        )
        yield (
            few_rows or self.LANES == WARP,
            "with few columns all lanes of a warp lie side by side",
        )
        yield (
            few_rows or self.AHEAD in (self.TM, 2 * self.TM, 4 * self.TM),
            "with few columns 1, 2 or 4 float4s of each of a thread's rows are on their way",
        )
        yield (
            few_rows or (2 <= self.TM <= 8 and (self.TM >= 4 or self.TN < 8)),
            "with few columns a warp has 2 to 8 rows, 4 or 8 where columns are many: fewer read B too often",
        )
        yield (
            64 <= self.MIN_BLOCKS * self.WARPS * self.AHEAD <= 256,
            "an SM must have 32 to 128 KB on their way: fewer hide no latency, more only take registers",
        )
        yield (
            self.AHEAD * VECTOR * (self.TM if few_rows else self.TN) <= 1024,
            "a loop of more than 1024 FFMAs does not fit the instruction caches next to the schedulers",
        )
        yield (
            self.register_estimate <= REGISTERS_PER_THREAD,
            "a thread's sums and what is on its way must fit its 255 registers",
        )
        yield from fit_an_sms_registers(self.MIN_BLOCKS * self.threads * self.register_estimate)

    def _limits(self, arch: Arch) -> Rules:
        yield from super()._limits(arch)
        yield from fits_an_sm(self, self.MIN_BLOCKS, arch)
