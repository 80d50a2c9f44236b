"""Rung 03."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sgemm_tune.kernel import TiledKernel, Traits, register, tune
from sgemm_tune.problem import FLOAT_BYTES


@register
@dataclass(frozen=True)
class SmemTile(TiledKernel):
    """Square tiles of A and B in shared memory, one element of C per thread."""

    source: ClassVar[str] = "03_smem_tile.cu"
    traits: ClassVar[Traits] = Traits(vector=1)

    TILE: int = tune(16, 32, default=32)

    @property
    def tile(self) -> tuple[int, int, int]:
        return self.TILE, self.TILE, self.TILE

    @property
    def thread_tile(self) -> tuple[int, int]:
        return 1, 1

    @property
    def threads(self) -> int:
        return self.TILE * self.TILE

    @property
    def smem_bytes(self) -> int:
        return FLOAT_BYTES * 2 * self.TILE * self.TILE
