"""Rung 07."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sgemm_tune.kernel import Traits, register, tune
from sgemm_tune.stages._tiles import PipelinedKernel


@register
@dataclass(frozen=True)
class DoubleBuffer(PipelinedKernel):
    """The next tile is loaded while this one is computed, one barrier per tile."""

    source: ClassVar[str] = "07_double_buffer.cu"
    traits: ClassVar[Traits] = Traits(vector=4, split_fragments=True, buffers=2, early_fragments=True)

    BM: int = tune(64, 128, 256, default=128)
    BN: int = tune(64, 128, 256, default=128)
    BK: int = tune(8, 16, 32)
    TM: int = tune(4, 8, 16, default=16)
    TN: int = tune(4, 8, 16, default=8)
    PAD: int = tune(0, 4, default=4)
    LANES_M: int = tune(2, 4, 8, 16, default=8)
    ORDER: int = tune(0, 1, 2, default=2)
    MIN_BLOCKS: int = tune(1, 2)
