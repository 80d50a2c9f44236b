"""Rung 08."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sgemm_tune.arch import REGISTERS_PER_SM, REGISTERS_PER_THREAD, WARP
from sgemm_tune.kernel import Rules, TiledKernel, Traits, register, tune
from sgemm_tune.problem import FLOAT_BYTES, Precision
from sgemm_tune.stages._tiles import divides


def padded(floats: int, residue: int) -> int:
    """The row stride, at least `floats` (a multiple of 4), that is an odd multiple of `residue`, 4 or 8."""
    while floats % (2 * residue) != residue:
        floats += 4
    return floats


@register
@dataclass(frozen=True)
class Tf32Mma(TiledKernel):
    """Products on tensor cores in TF32 by mma.sync, double-buffered padded tiles."""

    source: ClassVar[str] = "08_tf32_mma.cu"
    precision: ClassVar[Precision] = Precision.TF32
    traits: ClassVar[Traits] = Traits(vector=4, split_fragments=True, buffers=2)

    WARPS_M: int = tune(1, 2, 4, default=2)
    WARPS_N: int = tune(1, 2, 4, default=2)
    WM: int = tune(16, 32, 64, 128, default=64)
    WN: int = tune(8, 16, 32, 64, 128, default=64)
    BK: int = tune(4, 8, 16, 32, default=16)
    MMA_K: int = tune(4, 8, default=8)

    @property
    def tile(self) -> tuple[int, int, int]:
        return self.WARPS_M * self.WM, self.WARPS_N * self.WN, self.BK

    @property
    def thread_tile(self) -> tuple[int, int]:
        return self.WM // 8, self.WN // 4

    @property
    def warp_tile(self) -> tuple[int, int]:
        return self.WM, self.WN

    @property
    def mma_k(self) -> int:
        return self.MMA_K

    @property
    def threads(self) -> int:
        return self.WARPS_M * self.WARPS_N * WARP

    @property
    def smem_bytes(self) -> int:
        bm, bn, bk = self.tile
        a_stride = padded(bk, 4)
        b_stride = padded(bn, 8)
        return FLOAT_BYTES * 2 * (bm * a_stride + bk * b_stride)

    @property
    def register_estimate(self) -> int:
        """Registers a thread needs: sums, fragments, staged floats, and 40 for addresses."""
        bm, bn, bk = self.tile
        sums = self.WM * self.WN // WARP
        fragments = self.WM // 16 * self.MMA_K // 2 + self.WN // 8 * self.MMA_K // 4
        return sums + fragments + bk * (bm + bn) // self.threads + 40

    def rules(self) -> Rules:
        bm, bn, bk = self.tile
        yield divides(self.MMA_K, bk), "a K tile is made of whole MMAs: MMA_K must divide BK"
        yield (
            divides(self.threads, bm * bk),
            "the A tile must give every thread the same number of floats to copy",
        )
        yield (
            divides(self.threads, bk * bn),
            "the B tile must give every thread the same number of floats to copy",
        )
        yield (
            self.register_estimate <= REGISTERS_PER_THREAD,
            "a thread's sums, fragments and staged floats must fit its 255 registers",
        )
        yield (
            self.threads * self.register_estimate <= REGISTERS_PER_SM,
            "the block's registers must fit the SM's 65536",
        )
