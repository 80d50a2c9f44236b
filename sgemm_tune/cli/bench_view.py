"""What `sgemm-tune bench` prints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sgemm_tune.bench.bench import Remeasured
from sgemm_tune.bench.ladder import Rung
from sgemm_tune.cli import console
from sgemm_tune.cli.report_view import LADDER_TABLES, document, show
from sgemm_tune.kernel import Kernel
from sgemm_tune.measure.outcome import DeviceInfo, Measurement, Outcome, Status
from sgemm_tune.problem import Problem
from sgemm_tune.report.report import Report, build_report
from sgemm_tune.store.configs import Entry

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    *("precision", "shape", "configuration", "status"),
    *("ms", "TFLOP/s", "cuBLAS ms", "of cuBLAS", "stored", "error", "bound"),
)


@dataclass
class BenchView:
    """Everything that was measured.

    Attributes:
        info: the GPU.
        stored: of the configuration file.
        rungs: of the ladder.
        rows: the ladder's rows as the results' table has them.
    """

    info: DeviceInfo
    stored: list[Remeasured] = field(default_factory=list)
    rungs: list[Rung] = field(default_factory=list)
    rows: pd.DataFrame | None = None

    @property
    def failed(self) -> bool:
        """Whether the command must not exit with 0."""
        return any(one.failed for one in self.stored) or any(
            rung.outcome.status is Status.WRONG for rung in self.rungs
        )

    def show(self, out: Console) -> None:
        """Print tables, then what is to be known about their rows, one line each."""
        if self.stored:
            out.print(f"{self.info.name}, {self.info.arch}, {self.info.sms} SMs", markup=False)
            rows = [_row(one) for one in self.stored]
            out.print(console.table("Stored configurations, measured again", COLUMNS, rows, left=4))
        report = self._report()
        if report is not None:
            show(out, report, LADDER_TABLES)
        for line in self._remarks():
            out.print(line, markup=False)

    def document(self) -> dict[str, Any]:
        """The same for a script."""
        report = self._report()
        return {
            "device": self.info,
            "failed": self.failed,
            "entries": [
                {
                    **_described(one.stored.problem, one.kernel, one.outcome),
                    "stored_as": "entry" if isinstance(one.stored, Entry) else "predicted",
                    "stored_vs_cublas": one.stored.vs_cublas if isinstance(one.stored, Entry) else None,
                    "flags": one.flags,
                }
                for one in self.stored
            ],
            "ladder": [
                {**_described(rung.problem, rung.kernel, rung.outcome), "tuned_at": rung.tuned_at or None}
                for rung in self.rungs
            ],
            "tables": document(report)["sections"] if report is not None else [],
        }

    def _report(self) -> Report | None:
        if self.rows is None or not any(isinstance(rung.outcome, Measurement) for rung in self.rungs):
            return None
        return build_report(self.rows)

    def _remarks(self) -> list[str]:
        lines = [
            f"{one.kernel} at {one.stored.problem.shape}: {flag}" for one in self.stored for flag in one.flags
        ]
        failures = [(one.kernel, one.stored.problem, one.outcome) for one in self.stored]
        failures += [(rung.kernel, rung.problem, rung.outcome) for rung in self.rungs]
        for kernel, problem, outcome in failures:
            if isinstance(outcome, Measurement):
                lines += [f"{kernel} at {problem.shape}: {doubt}" for doubt in outcome.doubts]
            else:
                lines.append(
                    f"{kernel} at {problem.shape}: {outcome.status}: {console.one_line(outcome.reason)}"
                )
        return lines


def _row(one: Remeasured) -> tuple[str, ...]:
    problem, outcome = one.stored.problem, one.outcome
    head = (one.kernel.precision.value, problem.shape, str(one.kernel), outcome.status.value)
    before = f"{one.stored.vs_cublas:.3f}" if isinstance(one.stored, Entry) else "predicted"
    if not isinstance(outcome, Measurement):
        return (*head, "-", "-", "-", "-", before, "-", "-")
    return (
        *head,
        console.milliseconds(outcome.ms),
        console.figure(problem.tflops(outcome.ms), 2),
        console.milliseconds(outcome.cublas_ms),
        console.figure(outcome.vs_cublas, 3),
        before,
        f"{outcome.accuracy.error:.1e}",
        f"{outcome.accuracy.bound:.1e}",
    )


def _described(problem: Problem, kernel: Kernel, outcome: Outcome) -> dict[str, Any]:
    described: dict[str, Any] = {
        "precision": kernel.precision,
        "shape": problem.shape,
        "stage": kernel.name(),
        "params": kernel.params,
        "status": outcome.status,
    }
    if not isinstance(outcome, Measurement):
        return {**described, "reason": outcome.reason}
    return {**described, **console.figures(problem, outcome)}
