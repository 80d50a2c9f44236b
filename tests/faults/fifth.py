"""A search in which every fifth candidate is a faulty kernel, and the same search without faults.

A candidate that is replaced keeps its place and its name: what is compiled and launched in its stead is the
fault's. The tests on a scripted device and those on a GPU share this.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from sgemm_tune.arch import parse_arch
from sgemm_tune.compiler.nvrtc import Binary
from sgemm_tune.kernel import Code, Kernel, stage_named
from sgemm_tune.measure.outcome import Measurement, Outcome, Rejected, Status
from sgemm_tune.measure.protocol import Policy, Request
from sgemm_tune.measure.worker import GpuWorker, Opener
from sgemm_tune.problem import Problem
from sgemm_tune.search.pipeline import Compiles
from sgemm_tune.search.search import search
from sgemm_tune.search.types import Progress, SearchResult, SearchSettings
from tests.faults.faulty import kernel_for

EVERY = 5

Expected = Mapping[str, tuple[Status, str]]
"""Fault -> (status, words that its reason holds)."""


class FaultyFifth:
    """Satisfies `Compiles`: every fifth kernel that it has not seen is compiled as a fault.

    Args:
        healthy: compiles the kernels themselves.
        faulty: compiles those of `kernel_for`.
        faults: names, one for each kernel replaced; when they are used up, no more are replaced.

    Attributes:
        given: the fault of each kernel replaced.
    """

    def __init__(self, healthy: Compiles, faulty: Compiles, faults: Iterable[str]) -> None:
        self.given: dict[Kernel, str] = {}
        self._healthy, self._faulty, self._faults = healthy, faulty, iter(faults)
        self._seen: set[Kernel] = set()

    def submit(self, kernel: Kernel) -> Future[Binary]:
        """The kernel's binary, or that of the fault in its place."""
        if kernel not in self._seen:  # the last round asks for its finalists again
            self._seen.add(kernel)
            fault = next(self._faults, None) if len(self._seen) % EVERY == 0 else None
            if fault is not None:
                self.given[kernel] = fault
        if kernel in self.given:
            return self._faulty.submit(kernel_for(self.given[kernel]))
        return self._healthy.submit(kernel)

    def start(self) -> None:
        """Both pools."""
        self._healthy.start()
        self._faulty.start()

    def compiled(self, kernels: Iterable[Kernel]) -> AbstractSet[Code]:
        """As the healthy pool says."""
        return self._healthy.compiled(kernels)


class ReplacingWorker(GpuWorker):
    """Launches a fault with the fault's own geometry: with another's it would be wrong for another reason."""

    def __init__(
        self, opener: Opener, deadline: Callable[[Problem], float], given: Mapping[Kernel, str]
    ) -> None:
        super().__init__(opener, deadline)
        self._given = given

    def evaluate(self, request: Request) -> Outcome:
        """As `GpuWorker.evaluate`."""
        fault = self._given.get(request.kernel)
        return super().evaluate(request if fault is None else replace(request, kernel=kernel_for(fault)))


@dataclass(frozen=True)
class Searched:
    """What came of one search.

    Attributes:
        outcomes: of every trial, in the order in which they ended.
        faults: which candidates were replaced, and by what.
        restarts: how often the GPU's process was replaced.
    """

    result: SearchResult
    outcomes: Mapping[Kernel, Outcome]
    faults: Mapping[Kernel, str]
    restarts: int

    @property
    def others(self) -> dict[Kernel, Outcome]:
        """Outcomes of the candidates that were not replaced."""
        return {kernel: found for kernel, found in self.outcomes.items() if kernel not in self.faults}

    def lost(self) -> int:
        """How many of its outcomes cost the GPU's process."""
        return sum(found.status in (Status.CRASHED, Status.TIMEOUT) for found in self.outcomes.values())

    def misjudged(self, expected: Expected) -> list[str]:
        """The faults that were not rejected for their own reason, with what became of them."""
        return [
            f"{fault}: {self.outcomes[kernel]}"
            for kernel, fault in self.faults.items()
            if not _is(self.outcomes[kernel], *expected[fault])
        ]


@dataclass(frozen=True)
class Plan:
    """A search of 200 random candidates that can be repeated, with faults or without.

    Every candidate is timed in full: an early cut depends on which was the best so far.

    Attributes:
        jobs: compiler processes behind `healthy`.
    """

    stages: tuple[str, ...]
    problem: Problem
    opener: Opener
    deadline: Callable[[Problem], float]
    healthy: Compiles
    faulty: Compiles
    jobs: int = 2
    trials: int = 200

    def search(self, root: Path, faults: Iterable[str] = ()) -> Searched:
        """Search with all files below `root`, which is to be empty, and `faults` in every fifth's place."""
        pool = FaultyFifth(self.healthy, self.faulty, faults)
        outcomes: dict[Kernel, Outcome] = {}

        def note(progress: Progress) -> None:
            if progress.last is not None:
                outcomes.update([progress.last])

        settings = SearchSettings(
            trials=self.trials,
            sampler="random",  # what it proposes does not depend on what became of the trials before
            seed=0,
            jobs=self.jobs,
            policy=Policy(early_cut=0),
            configs_dir=root / "configs",
            results_dir=root / "results",
        )
        stages = [stage_named(name) for name in self.stages]
        with ReplacingWorker(self.opener, self.deadline, pool.given) as worker:
            arch = parse_arch(worker.info.arch)
            (result,) = search({self.problem: stages}, arch, worker, pool, settings=settings, on_event=note)
        return Searched(result, outcomes, pool.given, worker.restarts)


@dataclass(frozen=True)
class Agreement:
    """How far the times of the same configurations agree between two searches.

    Attributes:
        count: configurations measured in full by both.
        median: of one search's time relative to cuBLAS over the other's.
        within_95: 95 % of those quotients are as close to 1 as this.
    """

    count: int
    median: float
    within_95: float


def agreement(one: Mapping[Kernel, Outcome], other: Mapping[Kernel, Outcome]) -> Agreement:
    """Compare what both have measured in full, by the ratios to cuBLAS: drifting clocks cancel out."""
    pairs = [(_in_full(found), _in_full(other[kernel])) for kernel, found in one.items()]
    quotients = [b.vs_cublas / a.vs_cublas for a, b in pairs if a is not None and b is not None]
    deviations = sorted(abs(quotient - 1) for quotient in quotients)
    within = deviations[math.ceil(0.95 * len(deviations)) - 1]
    return Agreement(len(quotients), statistics.median(quotients), within)


def _in_full(outcome: Outcome) -> Measurement | None:
    return outcome if isinstance(outcome, Measurement) and not outcome.early_cut else None


def _is(outcome: Outcome, status: Status, words: str) -> bool:
    return isinstance(outcome, Rejected) and outcome.status is status and words in outcome.reason
