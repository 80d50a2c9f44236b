"""Rung 01."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sgemm_tune.kernel import TiledKernel, Traits, register, tune


@register
@dataclass(frozen=True)
class Naive(TiledKernel):
    """One thread per element of C, neighbouring threads on neighbouring rows."""

    source: ClassVar[str] = "01_naive.cu"
    traits: ClassVar[Traits] = Traits(vector=1, shared=False, coalesced=False)

    BLOCK: int = tune(16, 32, default=32)

    @property
    def tile(self) -> tuple[int, int, int]:
        return self.BLOCK, self.BLOCK, 1

    @property
    def thread_tile(self) -> tuple[int, int]:
        return 1, 1

    @property
    def threads(self) -> int:
        return self.BLOCK * self.BLOCK
