"""What the stages with asynchronous copies share: rules and sizes of the ring of tiles."""

from __future__ import annotations

from sgemm_tune.arch import REGISTERS_PER_THREAD
from sgemm_tune.kernel import Rules
from sgemm_tune.problem import FLOAT_BYTES
from sgemm_tune.stages._tiles import VECTOR, WarpTiledKernel, divides, fit_an_sms_registers

A_LANES = 8
"""Lanes that share a row of A."""

A_PAD = 4
"""Floats between rows of the transposed A tile."""


class AsyncKernel(WarpTiledKernel):
    """A warp-tiled stage whose tiles travel to a ring of buffers without passing through registers."""

    STAGES: int
    MIN_BLOCKS: int

    @property
    def smem_bytes(self) -> int:
        return FLOAT_BYTES * self.STAGES * self.BK * (self.BM + A_PAD + self.BN)

    @property
    def register_estimate(self) -> int:
        """Per thread: sums, two pairs of fragments, two for each address in A and B, 28 for the rest."""
        if not self.threads:
            return 0
        rows = self.BM * A_LANES // self.threads + self.BK * self.BN // VECTOR // self.threads
        return self.TM * self.TN + 2 * (self.TM + self.TN) + 2 * rows + 28

    def rules(self) -> Rules:
        yield from self.warp_rules()
        yield from self.compact_rules()
        yield (
            128 <= self.MIN_BLOCKS * self.threads <= 512,
            "MIN_BLOCKS blocks must give each of the SM's 4 schedulers 1 to 4 warps",
        )
        yield (
            divides(self.threads, A_LANES * self.BM),
            "the A tile must be copied in whole passes of 8 floats of each row",
        )
        yield (
            divides(VECTOR * self.threads, self.BK * self.BN),
            "the B tile must be copied in whole passes of one float4 per thread",
        )
        yield (
            16 <= (self.STAGES - 1) * self.BK <= 48,
            "16 to 48 entries of K must be on their way: fewer hide no latency, more only take shared memory",
        )
        yield (
            self.register_estimate <= REGISTERS_PER_THREAD,
            "a thread's sums, two pairs of fragments and addresses must fit its 255 registers",
        )
        yield from fit_an_sms_registers(self.MIN_BLOCKS * self.threads * self.register_estimate)
