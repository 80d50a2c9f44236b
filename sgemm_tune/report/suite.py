"""The report on a suite: one table per group, as Markdown and CSV."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgemm_tune import __version__
from sgemm_tune.bench.suite import Goal, GroupResult, SuiteResult, SuiteRow
from sgemm_tune.measure.cublaslt import CublasLtTime
from sgemm_tune.measure.outcome import Measurement
from sgemm_tune.report.report import HOLE, Table
from sgemm_tune.store.files import replace_atomically
from sgemm_tune.store.provenance import now

if TYPE_CHECKING:
    import pandas as pd

LEGEND = (
    "of cuBLAS: cuBLAS time / ours in the same precision, the median of interleaved pairs. "
    "of cublasLt: the same for the fastest algorithm of cublasLt's heuristics that is as exact. "
    "borrowed: no configuration is stored for the shape, so that of the nearest one was measured."
)

_FIGURES = ("ms", "TFLOP/s", "cuBLAS ms", "of cuBLAS", "cublasLt ms", "of cublasLt", "goal")
COLUMNS = ("shape", "configuration", "origin", *_FIGURES, "reached")
"""Headings of every table."""


def group_table(group: GroupResult) -> Table:
    """A group's shapes, then its geometric mean and its minimum as lines of their own."""
    wanted = [f"{goal:.2f} for every shape" for goal in sorted({row.wanted for row in group.rows})]
    if group.wanted is not None:
        wanted.append(f"{group.wanted:.2f} for the geometric mean")
    mean = _goal_line("geometric mean", group.goal, group.geometric_mean)
    lines = [*map(_line, group.rows), mean, _goal_line("minimum", None, group.minimum)]
    return Table(group.name, group.name, f"Goal: {', '.join(wanted)}.", _frame(lines))


def conclusion(result: SuiteResult) -> list[str]:
    """How the slowest shape compares with its goal, and how many goals were reached."""
    goals = result.goals
    ratios = {row.problem.shape: row.ratio for row in result.rows if row.ratio is not None}
    lowest = min(ratios, key=lambda shape: ratios[shape], default=None)
    found = HOLE if lowest is None else f"{ratios[lowest]:.3f} at {lowest}"
    missing = len(result.rows) - len(ratios)
    unmeasured = f", {missing} without a time" if missing else ""
    reached = "reached" if result.minimum.reached else "not reached"
    return [
        f"minimum of all {len(result.rows)} shapes: {found}{unmeasured}; goal {result.wanted:.2f}: {reached}",
        f"{sum(goal.reached for goal in goals)} of {len(goals)} goals reached",
    ]


def write_suite(result: SuiteResult, directory: Path) -> list[Path]:
    """Write `suite_<name>.md` and `suite_<name>.csv`.

    Returns:
        The files, the Markdown first.

    Raises:
        FileWriteError: a file cannot be written.
    """
    markdown, table = (directory / f"suite_{result.suite}.{ending}" for ending in ("md", "csv"))
    replace_atomically(table, _csv(result))
    replace_atomically(markdown, _markdown(result))
    return [markdown, table]


def _line(row: SuiteRow) -> dict[str, Any]:
    line: dict[str, Any] = {
        "shape": row.problem.shape,
        "configuration": str(row.kernel),
        "origin": f"borrowed from {row.tuned_at.shape}" if row.borrowed else "own",
        "goal": row.wanted,
        "reached": _yes(row.goal),
    }
    if isinstance(row.outcome, Measurement):
        line["ms"] = row.outcome.ms
        line["TFLOP/s"] = row.problem.tflops(row.outcome.ms)
        line["cuBLAS ms"] = row.outcome.cublas_ms
        line["of cuBLAS"] = row.outcome.vs_cublas
    else:
        line["reached"] = f"no ({row.outcome.status})"
    if isinstance(row.cublaslt, CublasLtTime):
        line["cublasLt ms"] = row.cublaslt.ms
        line["of cublasLt"] = row.cublaslt.vs_cublaslt
    return line


def _goal_line(what: str, goal: Goal | None, found: float | None) -> dict[str, Any]:
    line: dict[str, Any] = {"shape": what, "of cuBLAS": found}
    return line if goal is None else {**line, "goal": goal.wanted, "reached": _yes(goal)}


def _yes(goal: Goal) -> str:
    return "yes" if goal.reached else "no"


def _frame(lines: Iterable[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    # a column in which nothing was measured is still one of figures
    return pd.DataFrame(list(lines), columns=list(COLUMNS)).astype(dict.fromkeys(_FIGURES, "float64"))


def _csv(result: SuiteResult) -> str:
    """One line per shape, at full precision; a column tells the groups apart."""
    import pandas as pd

    parts = []
    for group in result.groups:
        frame = _frame(map(_line, group.rows))
        frame.insert(0, "device", result.info.name)
        frame.insert(1, "sms", result.info.sms)
        frame.insert(2, "precision", result.precision.value)
        frame.insert(3, "group", group.name)
        parts.append(frame)
    return pd.concat(parts).to_csv(index=False, lineterminator="\n", float_format="%.6g")


def _markdown(result: SuiteResult) -> str:
    info = result.info
    parts = [
        f"# sgemm-tune: suite {result.suite}",
        "",
        f"{info.name} ({info.sms} SMs), {result.precision}, driver {info.driver}, cuBLAS {info.cublas}, "
        f"sgemm-tune {__version__}, {now()[:10]} (UTC). {LEGEND} `{HOLE}`: not measured.",
        "",
        *(f"- {line}" for line in conclusion(result)),
        "",
    ]
    return "\n".join([*parts, *(group_table(group).markdown() for group in result.groups)])
