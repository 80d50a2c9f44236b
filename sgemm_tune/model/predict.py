"""How long a kernel will take, from its configuration and what the compiler reports. No GPU is asked.

What the model knows, in the order in which it multiplies up:

1. Occupancy: registers, threads and shared memory against the SM's limits (CUDA C++ Programming Guide,
   "Compute Capabilities"; cuda_occupancy.h). Clusters of 3 blocks and more leave some SMs idle. See
   `occupancy`.
2. Instructions per FFMA: the fragments of a TM x TN patch cost (TM + TN) / (4 TM TN) LDS.128 per FFMA, and
   loading, storing, barriers and addresses are spread over a tile's BK TM TN FFMAs. An LDS.128 keeps shared
   memory busy for 4 cycles, bank conflicts for more. An FFMA itself costs 1.14 to 1.4 issue cycles for lack
   of register banks: 1.06 to 1.37 were counted in SASS (kernels.md). An FFMA2 does two in the time of two,
   but in one issue slot: the other is free for loads and copies. TF32 has the rate of mma.sync instead. A
   loop that is larger than the caches next to the schedulers waits for instructions. See `instructions` and
   `block_time`.
3. Latency: a closed queue at two levels. A scheduler serves its resident warps, each of which waits for its
   operands between passes; an SM serves its resident blocks, each of which waits at barriers and, where a
   stage loads and computes by turns, for global memory between tiles. Exact mean value analysis (Reiser
   and Lavenberg, 1980): with one block every wait shows, with many none does. Double buffering hides a
   tile's latency behind the other tile's arithmetic. See `block_time`.
4. Bandwidths: shared memory 128 bytes a clock and SM; L2, from which every block reads its own panels, so
   that A is read N / BN times; device memory, from which a wave of blocks reads the panels it covers once,
   and all of it only once where the problem fits in L2; other SMs of a cluster, for partial sums.
5. Waves: the SM with most blocks decides. 144 tiles on 132 SMs take as long as 264, which is what sizes
   1536, 3072 and 5120 suffer from. Edge tiles cost as much as whole ones. Where a stage shares its last waves
   out along K, or all of fewer tiles than blocks, no SM waits; partial sums then go through C or the L2.
6. A launch costs microseconds whatever it computes, and so does a block's first load and last store. A
   pre-pass, which lays the operands out anew, is a second launch that reads and writes them.

Resources that overlap are joined by a power mean, which is their maximum where one dominates. Every
constant here, in `block_time` and in `instructions` has a name and a reason; there are no other fitted
coefficients. Those that no source gives were set once by measurements on an H200: docs/model.md says by
which, and how well the model orders others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sgemm_tune.arch import KIB, Arch
from sgemm_tune.kernel import Kernel, ceil_div
from sgemm_tune.model.block_time import CLUSTER_CYCLES, CLUSTER_STALLS, Block, overlap
from sgemm_tune.model.instructions import Rows, estimate_registers
from sgemm_tune.model.occupancy import Occupancy, clustered, occupancy
from sgemm_tune.problem import FLOAT_BYTES, Problem

DRAM_EFFICIENCY = 0.85
"""Share of the vendor's bandwidth that streaming reaches."""

LAUNCH_MS = 0.0025
"""Start and end of a kernel in a CUDA graph."""

PREPASS_MS = 0.0015
"""The same of a pre-pass, whose end the kernel waits for in the same graph."""

PREPASS_EFFICIENCY = 0.65
"""Share of the vendor's bandwidth that it reaches, by single floats and squares of 32 x 32. Set by an H200,
which takes 3 us longer with it at 1024, 12 at 2048 and 29 at 4096."""

GROUP = 8
"""Rows of tiles that blocks walk column by column (`tile_of_block` in kernels_cu/common/tile.cuh)."""


@dataclass(frozen=True)
class Prediction:
    """A time and where it comes from.

    Attributes:
        ms: per launch; infinite where no block fits on an SM.
        tflops: rate of that.
        registers: per thread, as compiled or as estimated.
        occupancy: what an SM holds.
        blocks: of the grid.
        waves: grid / what the device holds at a time.
        wave_efficiency: blocks / blocks that would keep every SM as busy as the busiest.
        useful: share of the computed tiles that lies within C.
        loads_per_math: operand loads per FFMA (or FFMA2, or mma).
        overhead_per_math: other issue cycles per FFMA (or FFMA2, or mma): copies, conversions, loop.
        issue_efficiency: share of the issue cycles that an FFMA would take at peak rate.
        latency_efficiency: share of the time in which the busiest resource works rather than waits.
        issue_ms, smem_ms, l2_ms, dram_ms: what each resource alone would take.
        launch_ms: fixed cost.
        prepass_ms: another kernel that lays the operands out anew; 0 where there is none.
        bound: the resource that takes longest.
    """

    ms: float
    tflops: float
    registers: int
    occupancy: Occupancy
    blocks: int
    waves: float
    wave_efficiency: float
    useful: float
    loads_per_math: float
    overhead_per_math: float
    issue_efficiency: float
    latency_efficiency: float
    issue_ms: float
    smem_ms: float
    l2_ms: float
    dram_ms: float
    launch_ms: float
    prepass_ms: float
    bound: str

    def explain(self) -> str:
        """A few lines for people."""
        if math.isinf(self.ms):
            return f"does not fit on an SM: {self.occupancy.limiter}"
        return "\n".join(
            (
                f"{self.ms:.4g} ms, {self.tflops:.1f} TFLOP/s, bound by {self.bound}",
                f"occupancy: {self.occupancy} ({self.registers} registers)",
                f"waves: {self.blocks} blocks in {self.waves:.2f} waves keep the SMs busy for "
                f"{self.wave_efficiency:.0%} of the time; {self.useful:.0%} of their tiles lie within C",
                f"issue: {self.loads_per_math:.3f} operand loads and {self.overhead_per_math:.3f} other "
                f"cycles per FFMA, FFMA2 or mma, {self.issue_efficiency:.0%} of peak",
                f"latency: {self.latency_efficiency:.0%} hidden",
                f"alone: issue {self.issue_ms:.4g} ms, shared memory {self.smem_ms:.4g} ms, "
                f"L2 {self.l2_ms:.4g} ms, device memory {self.dram_ms:.4g} ms, launch {LAUNCH_MS:.4g} ms"
                + (f", pre-pass {self.prepass_ms:.4g} ms" if self.prepass_ms else ""),
            )
        )


def predict(
    kernel: Kernel,
    problem: Problem,
    arch: Arch,
    *,
    registers: int | None = None,
    static_smem: int = 0,
    sms: int,
    mhz: float,
    l2_bytes: int,
    gbytes_per_s: float,
) -> Prediction:
    """Predict one launch on a device with these figures.

    Args:
        registers: per thread as the compiler reports; None: `estimate_registers`.
        static_smem: bytes of static shared memory per block as the compiler reports.
        sms: streaming multiprocessors.
        mhz: SM clock.
        l2_bytes: size of the L2 cache.
        gbytes_per_s: device memory bandwidth in GB/s; 0 where it is not known, and then it never limits.
    """
    used = estimate_registers(kernel) if registers is None else registers
    held = occupancy(arch, registers=used, threads=kernel.threads, smem_bytes=kernel.smem_bytes + static_smem)
    splits = kernel.splits(problem, sms)
    block = Block.of(kernel, problem, arch, splits)
    grid = kernel.grid(problem) // kernel.split_k * splits
    if not held.blocks:
        return _impossible(used, held, grid)
    read = _dram_bytes(
        kernel, problem, grid, wave=min(grid, held.blocks * sms), splits=splits, l2_bytes=l2_bytes
    )
    parts = kernel.blocks(problem, sms) if kernel.even_waves else 0
    few = parts > grid > 0  # tiles, of which each is then shared by several blocks
    if few:
        block, grid = block.sharing(kernel, grid, parts), parts
    used_sms = clustered(sms, kernel.cluster)
    queue = ceil_div(grid, used_sms)
    full, rest = divmod(queue, held.blocks)
    first = block.loop.flow(min(held.blocks, max(1, queue)))
    cycles = full * block.run(held.blocks, first)
    if rest:
        cycles += block.run(rest, block.loop.flow(rest) if full else first)
    shared = kernel.even_waves and grid > held.blocks * used_sms
    if shared:  # the last tiles are cut such that all end together, which costs one more epilogue
        cycles = (grid / (held.blocks * used_sms) + 1) * block.run(held.blocks, first)
        cycles -= block.steps * first.step
    if kernel.b_shared_by > 1:  # they meet once, as such blocks stay, however many tiles they have
        cycles = cycles * CLUSTER_STALLS + CLUSTER_CYCLES
    ms_per_cycle = 1e-3 / mhz
    share = queue / first.blocks * block.steps * ms_per_cycle
    dram_ms = read / (gbytes_per_s * DRAM_EFFICIENCY * 1e6) if gbytes_per_s else 0.0
    prepass_ms = _prepass_ms(kernel, problem, gbytes_per_s)
    ms = overlap(cycles * ms_per_cycle, dram_ms) + LAUNCH_MS + prepass_ms
    alone = (
        (first.issue * share, "issue"),
        (first.smem * share, "shared memory"),
        (first.l2 * share, "L2"),
        (dram_ms, "device memory"),
    )
    bm, bn, bk = kernel.tile
    loop, inner, copy = block.loop, block.loop.inner, block.loop.copy
    return Prediction(
        ms=ms,
        tflops=problem.tflops(ms),
        registers=used,
        occupancy=held,
        blocks=grid,
        waves=grid / (held.blocks * used_sms),
        wave_efficiency=1.0 if shared or few or not grid else grid / (queue * sms),
        useful=problem.m * problem.n * problem.k / max(1, grid * bm * bn * block.steps * bk),
        loads_per_math=inner.loads / inner.math,
        overhead_per_math=copy.issue / (loop.passes * inner.math),
        issue_efficiency=inner.ideal * loop.passes / (inner.issue * loop.passes + loop.copying),
        latency_efficiency=first.work / first.step,
        issue_ms=alone[0][0],
        smem_ms=alone[1][0],
        l2_ms=alone[2][0],
        dram_ms=dram_ms,
        launch_ms=LAUNCH_MS,
        prepass_ms=prepass_ms,
        bound=max(alone)[1] if ms > 2 * LAUNCH_MS else "launch",
    )


def predict_on_board(
    kernel: Kernel, problem: Problem, arch: Arch, *, registers: int | None = None, static_smem: int = 0
) -> Prediction:
    """`predict` for the board that stands for `arch` where no GPU is asked."""
    board = arch.board
    return predict(
        kernel,
        problem,
        arch,
        registers=registers,
        static_smem=static_smem,
        sms=board.sms,
        mhz=board.boost_mhz,
        l2_bytes=int(board.l2_mib * KIB * KIB),
        gbytes_per_s=board.gbytes_per_s,
    )


def _dram_bytes(
    kernel: Kernel, problem: Problem, grid: int, *, wave: int, splits: int, l2_bytes: int
) -> float:
    """Bytes from device memory: each wave reads the panels it covers, in groups of GROUP rows of tiles."""
    if problem.bytes <= l2_bytes or wave == 0:
        return problem.bytes
    bm, bn, _ = kernel.tile
    waves = grid / wave
    tiles = ceil_div(wave, splits * kernel.b_shared_by)
    bm *= kernel.b_shared_by  # such tiles are walked as one
    columns = ceil_div(problem.n, bn)
    groups = ceil_div(tiles, GROUP * columns)
    rows_read = min(problem.m, GROUP * groups * bm)
    columns_read = min(problem.n, ceil_div(tiles, GROUP) * bn)
    operands = FLOAT_BYTES * problem.k * (rows_read + columns_read) * waves
    return max(problem.bytes, operands + FLOAT_BYTES * problem.m * problem.n)


def _prepass_ms(kernel: Kernel, problem: Problem, gbytes_per_s: float) -> float:
    """A pre-pass reads and writes A, and B where its rows are not aligned, through device memory."""
    if kernel.box_of_a is None or not problem.k:
        return 0.0
    columns = 0 if Rows.of(problem).of_b else problem.n
    moved = 2 * FLOAT_BYTES * problem.k * (problem.m + columns)
    return PREPASS_MS + (moved / (gbytes_per_s * PREPASS_EFFICIENCY * 1e6) if gbytes_per_s else 0.0)


def _impossible(registers: int, held: Occupancy, grid: int) -> Prediction:
    return Prediction(
        math.inf, 0.0, registers, held, grid, math.inf,
        0.0, 0.0, 0.0, 0.0, 0.0, 0.0, math.inf, math.inf, math.inf, math.inf, LAUNCH_MS, 0.0, "occupancy",
    )  # fmt: skip
