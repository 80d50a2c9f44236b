"""What became of a search's candidates so far, and how long the rest may take."""

from __future__ import annotations

import time
from collections.abc import Iterable

from sgemm_tune.kernel import Kernel
from sgemm_tune.measure.outcome import Measurement, Outcome, Status
from sgemm_tune.problem import Problem
from sgemm_tune.search.types import Failures, Progress


class Tally:
    """The candidates of one problem, counted. It begins when it is made.

    Args:
        problem: the shape.
        timeout: after how many seconds it stops; None: never.

    Attributes:
        started: when it began, by `time.monotonic`.
        done: trials of the study that ended, whichever process and run they were of.
        new: those of this run.
        healthy: configurations that were measured, in the order in which they were counted.
        best: the fastest of those.
        failures: the others, by reason.
    """

    def __init__(self, problem: Problem, timeout: float | None) -> None:
        self.started = time.monotonic()
        self.done = self.new = 0
        self.healthy: list[tuple[Kernel, Measurement]] = []
        self.best: tuple[Kernel, Measurement] | None = None
        self.failures: dict[Status, Failures] = {}
        self._problem, self._timeout = problem, timeout

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.started

    def recount(self, ended: Iterable[tuple[Kernel, Outcome]]) -> None:
        """Count these instead of all that were counted so far; `new` stays."""
        self.done = 0
        self.healthy.clear()
        self.best = None
        self.failures.clear()
        for kernel, outcome in ended:
            self._count(kernel, outcome)

    def add(self, kernel: Kernel, outcome: Outcome) -> None:
        """Count one that this run has ended."""
        self._count(kernel, outcome)
        self.new += 1

    def fastest(self) -> list[Kernel]:
        """The healthy configurations, the fastest first."""
        return [kernel for kernel, _ in sorted(self.healthy, key=lambda pair: pair[1].ms)]

    def progress(
        self,
        total: int,
        *,
        compiling: int = 0,
        last: tuple[Kernel, Outcome] | None = None,
        last_round: bool = False,
    ) -> Progress:
        """Where a search stands that stops at `total` trials; the rest is as in `Progress`."""
        elapsed = self.seconds
        rate = self.new / elapsed if elapsed > 0 else 0.0
        eta = (total - self.done) / rate if rate else None
        if eta is not None and self._timeout is not None:
            eta = min(eta, max(0.0, self._timeout - elapsed))
        return Progress(
            problem=self._problem,
            done=self.done,
            total=max(total, self.done),
            new=self.new,
            best=self.best,
            rate=rate,
            eta=eta,
            failures=dict(self.failures),
            compiling=compiling,
            last=last,
            last_round=last_round,
        )

    def _count(self, kernel: Kernel, outcome: Outcome) -> None:
        self.done += 1
        if isinstance(outcome, Measurement):
            self.healthy.append((kernel, outcome))
            if self.best is None or outcome.ms < self.best[1].ms:
                self.best = kernel, outcome
            return
        known = self.failures.get(outcome.status)
        example = known.example if known else f"{kernel}: {outcome.reason}"
        self.failures[outcome.status] = Failures(known.count + 1 if known else 1, example)
