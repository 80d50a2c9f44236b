"""Rung 09."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sgemm_tune.kernel import Traits, register, tune
from sgemm_tune.stages._async import AsyncKernel


@register
@dataclass(frozen=True)
class AsyncCopy(AsyncKernel):
    """Tiles travel to shared memory by themselves, several at a time."""

    source: ClassVar[str] = "09_async_copy.cu"
    traits: ClassVar[Traits] = Traits(
        vector=4, split_fragments=True, buffers=2, early_fragments=True, async_copy=True
    )

    BM: int = tune(64, 128, 256, default=128)
    BN: int = tune(64, 128, 256, default=256)
    BK: int = tune(8, 16)
    TM: int = tune(8, 16)
    TN: int = tune(8, 16, default=16)
    LANES_M: int = tune(2, 4, 8, 16, default=4)
    STAGES: int = tune(2, 3, 4, 5, 6, default=3)
    ORDER: int = tune(0, 1, 2, default=2)
    MIN_BLOCKS: int = tune(1, 2)
