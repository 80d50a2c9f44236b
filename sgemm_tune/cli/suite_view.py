"""What `sgemm-tune bench --suite` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sgemm_tune.bench.suite import Goal, SuiteResult, SuiteRow
from sgemm_tune.cli import console
from sgemm_tune.measure.cublaslt import CublasLtTime
from sgemm_tune.measure.outcome import Measurement, Rejected
from sgemm_tune.report.report import HOLE
from sgemm_tune.report.suite import LEGEND, conclusion, group_table


@dataclass
class SuiteView:
    """Everything that was measured.

    Attributes:
        result: of the suite.
        files: the report's files.
    """

    result: SuiteResult
    files: Sequence[Path]

    def show(self, out: Console) -> None:
        """Print one table, group by group, then what is to be known about its rows, one line each."""
        info = self.result.info
        out.print(f"{info.name}, {info.arch}, {info.sms} SMs, {self.result.precision}", markup=False)
        tables = [group_table(group) for group in self.result.groups]
        drawn = Table(
            title=f"Suite {self.result.suite}",
            title_justify="left",
            title_style="bold",
            header_style="bold",
            box=None,
        )
        for name, right in zip(tables[0].columns, tables[0].numeric, strict=True):
            drawn.add_column(name, justify="right" if right else "left", overflow="fold")
        for table in tables:
            drawn.add_row(table.title, table.caption, style="bold")
            *shapes, mean, minimum = table.rows()
            for cells in shapes:
                drawn.add_row(*cells)
            for cells in (mean, minimum):
                drawn.add_row(*(cell if cell != HOLE else "" for cell in cells))
            drawn.add_row()
        out.print(drawn)
        out.print(LEGEND, style="dim", markup=False)
        for line in [*self._remarks(), *conclusion(self.result)]:
            out.print(line, markup=False)
        out.print(f"written: {', '.join(str(file) for file in self.files)}", markup=False)

    def document(self) -> dict[str, Any]:
        """The same for a script."""
        result = self.result
        return {
            "device": result.info,
            "failed": result.failed,
            "suite": result.suite,
            "precision": result.precision,
            "groups": [
                {
                    "name": group.name,
                    "geometric_mean": group.geometric_mean,
                    "minimum": group.minimum,
                    "shapes": [_described(row) for row in group.rows],
                }
                for group in result.groups
            ],
            "goals": [_told(goal) for goal in result.goals],
            "goals_reached": sum(goal.reached for goal in result.goals),
            "files": self.files,
        }

    def _remarks(self) -> list[str]:
        lines = []
        for row in self.result.rows:
            where = f"{row.kernel} at {row.problem.shape}"
            if isinstance(row.outcome, Measurement):
                lines += [f"{where}: {doubt}" for doubt in row.outcome.doubts]
            else:
                lines.append(f"{where}: {row.outcome.status}: {console.one_line(row.outcome.reason)}")
            if isinstance(row.cublaslt, Rejected):
                reason = console.one_line(row.cublaslt.reason)
                lines.append(f"cublasLt at {row.problem.shape}: {row.cublaslt.status}: {reason}")
            elif row.cublaslt is not None and row.cublaslt.throttled:
                lines.append(f"cublasLt at {row.problem.shape}: the GPU throttled while this was timed")
        return lines


def _described(row: SuiteRow) -> dict[str, Any]:
    described: dict[str, Any] = {
        "shape": row.problem.shape,
        "stage": row.kernel.name(),
        "params": row.kernel.params,
        "borrowed_from": row.tuned_at.shape if row.borrowed else None,
        "status": row.outcome.status,
        "goal": row.wanted,
        "reached": row.goal.reached,
        "cublaslt": asdict(row.cublaslt) if isinstance(row.cublaslt, CublasLtTime) else None,
    }
    if isinstance(row.outcome, Rejected):
        return {**described, "reason": row.outcome.reason}
    return {**described, **console.figures(row.problem, row.outcome)}


def _told(goal: Goal) -> dict[str, Any]:
    return {**asdict(goal), "reached": goal.reached}
