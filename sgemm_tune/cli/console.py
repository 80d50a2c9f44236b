"""Rich helpers that every command shares. With --json, all but the document goes to stderr."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from sgemm_tune.measure.outcome import Measurement
from sgemm_tune.problem import Problem

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

PIPE_WIDTH = 200
"""Columns where nobody looks: a log or a pipe should not have its tables folded."""


def console(*, json_mode: bool = False) -> Console:
    """Where people read: stdout, or stderr where stdout belongs to one JSON document."""
    stream = sys.stderr if json_mode else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(file=stream, width=width, highlight=False, soft_wrap=False)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Table:
    """A plain table: the first `left` columns are text, the others figures that line up on the right."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None)
    for place, column in enumerate(columns):
        made.add_column(column, justify="left" if place < left else "right", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def progress(*columns: ProgressColumn) -> Progress:
    """A bar on stderr that is gone when it is done; nothing where stderr is no terminal."""
    where = console(json_mode=True)
    return Progress(*columns, console=where, transient=True, disable=not where.is_terminal)


@contextlib.contextmanager
def steps() -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on stderr; what it yields is called as (steps done, steps in all, what comes next)."""
    bar = progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def print_json(document: Mapping[str, Any]) -> None:
    """Print the one JSON document of a command to stdout."""
    print(json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False))


def plain(value: Any) -> Any:
    """`value` as JSON knows it: dataclasses as objects, paths and enums as text, NaN and Inf as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def figures(problem: Problem, measurement: Measurement) -> dict[str, Any]:
    """What a script is told of a measurement, whichever command made it."""
    return {
        "ms": measurement.ms,
        "tflops": problem.tflops(measurement.ms),
        "cublas_ms": measurement.cublas_ms,
        "vs_cublas": measurement.vs_cublas,
        "error": measurement.accuracy.error,
        "error_bound": measurement.accuracy.bound,
        "throttled": measurement.throttled,
    }


def one_line(text: str) -> str:
    """`text` with every run of white space as one blank."""
    return " ".join(text.split())


def figure(value: float | None, digits: int = 1, unit: str = "") -> str:
    """A number for a table, a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.{digits}f}{unit}"


def milliseconds(value: float | None) -> str:
    """A time in ms with four significant digits, whatever its size."""
    if value is None or not math.isfinite(value) or value <= 0:
        return "-"
    return f"{value:.{max(0, min(6, 3 - math.floor(math.log10(value))))}f}"


def counted(reasons: Mapping[str, int]) -> str:
    """`12 spill, 3 wrong`, most frequent first; `none` where there is nothing to count."""
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {reason}" for reason, count in ordered if count) or "none"
