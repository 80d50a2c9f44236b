"""Rung 10."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sgemm_tune.arch import CLUSTERS, PACKED_FFMA
from sgemm_tune.kernel import Rules, Traits, register, tune
from sgemm_tune.problem import FLOAT_BYTES
from sgemm_tune.stages._async import AsyncKernel


@register
@dataclass(frozen=True)
class WarpTile(AsyncKernel):
    """A tile's K is split among a cluster of blocks, so that any size fills the GPU."""

    source: ClassVar[str] = "10_warp_tile.cu"
    traits: ClassVar[Traits] = Traits(
        vector=4, split_fragments=True, buffers=2, early_fragments=True, async_copy=True
    )

    BM: int = tune(32, 64, 128, 256, default=128)
    BN: int = tune(32, 64, 128, 256, default=256)
    BK: int = tune(8, 16, 32)
    TM: int = tune(4, 8, 16, default=8)
    TN: int = tune(4, 8, 16, default=16)
    LANES_M: int = tune(2, 4, 8, default=4)
    STAGES: int = tune(2, 3, 4, default=3)
    MIN_BLOCKS: int = tune(1, 2)
    GROUP: int = tune(4, 8, 16, default=8, at_launch=True)
    SPLIT_K: int = tune(1, 2, 3, 4, 5, 6, 8, only=CLUSTERS)
    PACKED: int = tune(0, 1, before=0, only=PACKED_FFMA)

    @property
    def smem_bytes(self) -> int:
        """The ring, and after it in the same place the partial sums that the cluster exchanges."""
        partial = FLOAT_BYTES * self.BM * self.BN if self.SPLIT_K > 1 else 0
        return max(super().smem_bytes, partial)

    @property
    def split_k(self) -> int:
        return self.SPLIT_K

    def rules(self) -> Rules:
        yield from super().rules()
        yield (
            self.TM * self.TN >= 64 or self.BM * self.BN <= 64 * 64,
            "fewer than 64 sums per thread need a float4 for 8 or 11 FFMAs: only for tiles of up to 64 x 64",
        )

    def launch_rules(self) -> Rules:
        yield (
            self.GROUP == 8 or (self.SPLIT_K == 1 and self.BM * self.BN >= 128 * 128),
            "only large tiles that are not split are so many waves that GROUP matters: else it is 8",
        )
