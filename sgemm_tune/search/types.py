"""What a search is told, and what it tells while it runs and when it has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from sgemm_tune.kernel import Kernel
from sgemm_tune.measure.outcome import Measurement, Outcome, Rejected, Status
from sgemm_tune.measure.protocol import Policy
from sgemm_tune.problem import Problem
from sgemm_tune.search.finalists import Verdict

DEFAULT_SAMPLER = "gp"
"""Of `samplers.SAMPLERS`; named here because that module loads Optuna."""


class Stop(StrEnum):
    """Why a search came to its end."""

    TRIALS = "trials"
    TIMEOUT = "timeout"
    EXHAUSTED = "exhausted"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class SearchSettings:
    """How to search.

    Attributes:
        trials: per problem, over all runs of its study together.
        timeout: seconds per problem of this run; None: no limit.
        sampler: one of `samplers.SAMPLERS`.
        seed: of the sampler; that of the operands is the policy's.
        jobs: compile processes; a few more candidates than those are proposed ahead.
        storage: an Optuna storage URL or the path of a journal; None: `<results>/studies/<arch>.journal`.
        finalists: how many take part in the last round.
        policy: how candidates are measured.
        configs_dir, results_dir: where the YAML files and the table are.
    """

    trials: int = 200
    timeout: float | None = None
    sampler: str = DEFAULT_SAMPLER
    seed: int = 0
    jobs: int = 2
    storage: str | None = None
    finalists: int = 5
    policy: Policy = field(default_factory=Policy)
    configs_dir: Path = Path("configs")
    results_dir: Path = Path("results")


@dataclass(frozen=True)
class Failures:
    """Candidates that failed for one reason.

    Attributes:
        count: how many.
        example: the first of them, and what was wrong with it.
    """

    count: int
    example: str


@dataclass(frozen=True)
class Progress:
    """Where a search stands.

    Attributes:
        done, total: trials of the study that ended, and at how many it stops.
        new: trials that this run has ended.
        best: the fastest so far with its measurement.
        rate: trials per second of this run.
        eta: seconds left, None before the first trial.
        failures: by reason.
        compiling: candidates in the compiler or waiting for it.
        last: the trial that has just ended; None in between.
        last_round: the finalists are being timed.
    """

    problem: Problem
    done: int
    total: int
    new: int
    best: tuple[Kernel, Measurement] | None
    rate: float
    eta: float | None
    failures: Mapping[Status, Failures]
    compiling: int
    last: tuple[Kernel, Outcome] | None = None
    last_round: bool = False


@dataclass(frozen=True)
class SearchResult:
    """What one problem's search has found.

    Attributes:
        study: its name in the storage.
        stopped: why it ended.
        verdict: the last round: winner, ties, finalists.
        failures: by reason, those of earlier runs included.
        done, new, resumed: trials of the study, of this run, and those it began with.
        path: the configuration file; None where there is no winner to store.
        seconds: how long this run took, the last round included.
        search_seconds: how long until the last round.
        gpu_busy: share of `search_seconds` in which the GPU's process worked on a candidate.
        bookkeeping: share of `search_seconds` in which proposals were made and outcomes stored.
        compiled: candidates of this run that cost a compilation, or failed in one.
    """

    problem: Problem
    study: str
    stopped: Stop
    verdict: Verdict
    failures: Mapping[Status, Failures]
    done: int
    new: int
    resumed: int
    path: Path | None
    seconds: float
    search_seconds: float
    gpu_busy: float
    bookkeeping: float
    compiled: int

    @property
    def why_nothing(self) -> str:
        """One line that says why there is no winner; empty where there is one."""
        if self.verdict.measurement is not None:
            return ""
        if not self.done:
            return f"nothing was tried at {self.problem.shape} ({self.stopped}): give it more time or trials"
        reasons = [f"{f.count} {status} (such as {f.example})" for status, f in self.failures.items()]
        reasons += [
            f"{f.kernel} in the last round: {f.outcome.reason}"
            for f in self.verdict.finalists
            if isinstance(f.outcome, Rejected)
        ]
        return f"none of {self.done} candidates at {self.problem.shape} is healthy: {'; '.join(reasons)}"


OnEvent = Callable[[Progress], None]
