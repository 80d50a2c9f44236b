"""Rung 04."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sgemm_tune.kernel import Traits, register, tune
from sgemm_tune.stages._tiles import PatchKernel


@register
@dataclass(frozen=True)
class BlockTile2D(PatchKernel):
    """Each thread accumulates a TM x TN patch of C in registers."""

    source: ClassVar[str] = "04_block_tile_2d.cu"
    traits: ClassVar[Traits] = Traits(vector=1)

    BM: int = tune(64, 128)
    BN: int = tune(64, 128)
    BK: int = tune(8, 16)
    TM: int = tune(4, 8, default=8)
    TN: int = tune(4, 8, default=8)
