"""Rung 05."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sgemm_tune.kernel import Traits, register, tune
from sgemm_tune.stages._tiles import VectorKernel


@register
@dataclass(frozen=True)
class Vectorized(VectorKernel):
    """128-bit loads and stores, A transposed on its way into shared memory."""

    source: ClassVar[str] = "05_vectorized.cu"
    traits: ClassVar[Traits] = Traits(vector=4)

    BM: int = tune(64, 128, 256, default=128)
    BN: int = tune(64, 128, 256, default=128)
    BK: int = tune(8, 16, 32)
    TM: int = tune(4, 8, 16, default=8)
    TN: int = tune(4, 8, 16, default=8)
    PAD: int = tune(0, 4, default=4)
