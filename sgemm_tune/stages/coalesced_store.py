"""Rung 06."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sgemm_tune.kernel import Traits, register, tune
from sgemm_tune.stages._tiles import WarpTiledKernel


@register
@dataclass(frozen=True)
class CoalescedStore(WarpTiledKernel):
    """An explicit place for every warp and lane: conflict-free LDS, whole sectors of C."""

    source: ClassVar[str] = "06_coalesced_store.cu"
    traits: ClassVar[Traits] = Traits(vector=4, split_fragments=True)

    BM: int = tune(64, 128, 256, default=128)
    BN: int = tune(64, 128, 256, default=128)
    BK: int = tune(8, 16, 32)
    TM: int = tune(4, 8, 16, default=8)
    TN: int = tune(4, 8, 16, default=8)
    PAD: int = tune(0, 4, default=4)
    LANES_M: int = tune(2, 4, 8, 16, default=4)
