"""What `search` does where the GPU is absent: compile for real, rank by the model, promise nothing.

Of all legal configurations the model names a budget's worth before anything is compiled; those are compiled
for the architecture, what the compiler refuses or spills is dropped, and the rest is ranked again with the
registers that ptxas reports.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace

from sgemm_tune.arch import Arch
from sgemm_tune.compiler.cache import BinaryCache
from sgemm_tune.compiler.nvrtc import Binary, compile_kernel
from sgemm_tune.compiler.pool import CompileFunction, CompilePool
from sgemm_tune.errors import CompileError, CompilerDied, CompileTimeout, UsageError
from sgemm_tune.kernel import Kernel
from sgemm_tune.measure.outcome import Rejected, Status
from sgemm_tune.model.predict import Prediction, predict_on_board
from sgemm_tune.problem import Precision, Problem
from sgemm_tune.reads import found_once

PLAN_TRIALS = 80
"""Candidates that a plan compiles unless told otherwise."""

PLAN_SECONDS = 150.0
"""Time after which a plan compiles no more, so that it ends within three minutes on two slow cores."""

VARIANTS = 2
"""Candidates of one geometry at most, so that a budget is not spent on what the model cannot tell apart."""

_EXPLORED = 4
"""One candidate in this many is drawn rather than named by the model, which may be wrong."""

_IN_FLIGHT = 2


@dataclass(frozen=True)
class PredictedCandidate:
    """A configuration that compiles and fits, with the time that the model expects.

    Attributes:
        rank: 1 for the best.
        prediction: made with the registers that the compiler reports.
    """

    rank: int
    kernel: Kernel
    prediction: Prediction
    binary: Binary


@dataclass(frozen=True)
class DroppedCandidate:
    """A configuration that does not compile, spills or does not fit, and why."""

    kernel: Kernel
    rejected: Rejected


@dataclass(frozen=True)
class Plan:
    """The ranked shortlist and what became of the rest.

    Attributes:
        legal: configurations that the requested stages have on this architecture.
        candidates: best first.
        dropped: in the order found.
        uncompiled: chosen, but left when time was up.
        seconds: how long it took.
    """

    problem: Problem
    precision: Precision
    arch: Arch
    legal: int
    candidates: tuple[PredictedCandidate, ...]
    dropped: tuple[DroppedCandidate, ...]
    uncompiled: int
    seconds: float

    @property
    def dropped_by_reason(self) -> dict[Status, int]:
        """How many were dropped for each kind of reason, most frequent first."""
        return dict(Counter(candidate.rejected.status for candidate in self.dropped).most_common())


Progress = Callable[[int, int, PredictedCandidate | None, float], None]
"""Called with (done, total, best so far, candidates per second) after each candidate."""


def plan(
    problem: Problem,
    precision: Precision,
    stages: Sequence[type[Kernel]],
    arch: Arch,
    *,
    trials: int = PLAN_TRIALS,
    jobs: int = 1,
    seed: int = 0,
    cache: BinaryCache | None = None,
    on_progress: Progress | None = None,
    deadline: float = PLAN_SECONDS,
    compile_fn: CompileFunction = compile_kernel,
) -> Plan:
    """Choose, compile and rank candidates for the board that stands for `arch`.

    Args:
        stages: where candidates come from; those of another precision are left out.
        trials: how many candidates are compiled.
        jobs: compiler processes.
        seed: of the part of the choice that is drawn.
        deadline: seconds after which nothing more is compiled.
        compile_fn: `compile_kernel` or a stand-in, importable by name.

    Raises:
        UsageError: no stage of that precision, or none with a legal configuration.
        DeviceUnavailable: CuPy or the NVRTC library is missing.
    """
    started = time.monotonic()
    stages = [stage for stage in stages if stage.precision is precision]
    legal = sum(len(stage.legal(arch)) for stage in stages)
    if not legal:
        raise UsageError(f"no stage of those requested has a legal {precision} configuration on {arch.name}")
    waiting = deque(choose(problem, stages, arch, trials=trials, seed=seed))
    total = len(waiting)
    kept: list[PredictedCandidate] = []
    dropped: list[DroppedCandidate] = []
    running: dict[Future[Binary], Kernel] = {}
    with CompilePool(arch, jobs, cache, compile_fn=compile_fn) as pool:
        while waiting or running:
            left = started + deadline - time.monotonic()
            if left <= 0:
                break
            while waiting and len(running) < _IN_FLIGHT * jobs:
                kernel = waiting.popleft()
                running[pool.submit(kernel)] = kernel
            done, _ = wait(running, timeout=left, return_when=FIRST_COMPLETED)
            for future in done:
                judged = _judge(running.pop(future), future, problem, arch)
                if isinstance(judged, DroppedCandidate):
                    dropped.append(judged)
                else:
                    kept.append(judged)
                if on_progress is not None:
                    finished = len(kept) + len(dropped)
                    rate = finished / max(1e-9, time.monotonic() - started)
                    on_progress(finished, total, min(kept, key=_order, default=None), rate)
    kept.sort(key=_order)
    return Plan(
        problem=problem,
        precision=precision,
        arch=arch,
        legal=legal,
        candidates=tuple(replace(candidate, rank=i) for i, candidate in enumerate(kept, start=1)),
        dropped=tuple(dropped),
        uncompiled=len(waiting) + len(running),
        seconds=time.monotonic() - started,
    )


def choose(
    problem: Problem, stages: Sequence[type[Kernel]], arch: Arch, *, trials: int, seed: int
) -> list[Kernel]:
    """The budget's candidates, in the order in which they are worth compiling.

    The model's best of each stage come first, one stage after the other; then the best of all. A quarter of
    the budget is drawn from the rest. The same arguments give the same list.
    """
    chance = random.Random(seed)
    by_stage = [_ranked(problem, stage, arch, chance) for stage in stages]
    everything = sorted((pair for ranked in by_stage for pair in ranked), key=lambda pair: pair[0])
    if trials >= len(everything):
        return [kernel for _, kernel in everything]
    chosen: dict[Kernel, None] = {}
    for ranked in by_stage:
        chosen.update((kernel, None) for _, kernel in ranked[:1])
    for ranked in by_stage:
        chosen.update((kernel, None) for _, kernel in ranked[: trials // (_EXPLORED * len(stages))])
    variants: Counter[object] = Counter(map(_geometry, chosen))
    for _, kernel in everything:
        if len(chosen) >= trials - trials // _EXPLORED:
            break
        if variants[_geometry(kernel)] < VARIANTS and kernel not in chosen:
            variants[_geometry(kernel)] += 1
            chosen[kernel] = None
    rest = [kernel for _, kernel in everything if kernel not in chosen]
    chosen.update((kernel, None) for kernel in chance.sample(rest, max(0, trials - len(chosen))))
    return list(chosen)[:trials]


def _ranked(
    problem: Problem, stage: type[Kernel], arch: Arch, chance: random.Random
) -> list[tuple[float, Kernel]]:
    """Every legal configuration with its predicted ms, best first; ties in random order."""
    legal = list(stage.legal(arch))
    chance.shuffle(legal)
    expected = found_once(lambda kernel: predict_on_board(kernel, problem, arch).ms)
    pairs = [(expected(kernel), kernel) for kernel in legal]
    return sorted(pairs, key=lambda pair: pair[0])


def _geometry(kernel: Kernel) -> object:
    return type(kernel), kernel.tile, kernel.thread_tile


def _order(candidate: PredictedCandidate) -> tuple[float, int, str]:
    return candidate.prediction.ms, candidate.binary.registers, str(candidate.kernel)


def _judge(
    kernel: Kernel, compiled: Future[Binary], problem: Problem, arch: Arch
) -> PredictedCandidate | DroppedCandidate:
    try:
        binary = compiled.result()
    except CompileError as error:
        status = Status.COMPILE
        if isinstance(error, CompileTimeout):
            status = Status.TIMEOUT
        elif isinstance(error, CompilerDied):
            status = Status.CRASHED
        return DroppedCandidate(kernel, Rejected(status, str(error)))
    if binary.spill_bytes:
        reason = f"{binary.spill_bytes} bytes of registers spilled to memory"
        return DroppedCandidate(kernel, Rejected(Status.SPILL, reason))
    prediction = predict_on_board(
        kernel, problem, arch, registers=binary.registers, static_smem=binary.static_smem
    )
    if not prediction.occupancy.blocks:
        return DroppedCandidate(kernel, Rejected(Status.LAUNCH, prediction.explain()))
    return PredictedCandidate(0, kernel, prediction, binary)
