"""Rung 02."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sgemm_tune.kernel import TiledKernel, Traits, register, tune


@register
@dataclass(frozen=True)
class Coalesced(TiledKernel):
    """One thread per element of C, a warp on neighbouring columns."""

    source: ClassVar[str] = "02_coalesced.cu"
    traits: ClassVar[Traits] = Traits(vector=1, shared=False)

    BX: int = tune(32, 64, 128)
    BY: int = tune(1, 2, 4, 8, 16, 32, default=32)

    @property
    def tile(self) -> tuple[int, int, int]:
        return self.BY, self.BX, 1

    @property
    def thread_tile(self) -> tuple[int, int]:
        return 1, 1

    @property
    def threads(self) -> int:
        return self.BX * self.BY
