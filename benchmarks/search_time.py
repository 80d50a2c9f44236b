"""How long does a search take from nothing, how good is what it finds, and do several shapes at once pay?

    python benchmarks/search_time.py --size 1024 --size 4096 --shape 8192x512x2048 --json

Each problem alone, then all of them in one command, `--repeat` times by turns. Each run is one of a user: a
fresh process of `sgemm-tune search` with its defaults, in empty folders and with an empty cache of compiled
kernels. Its seconds are those from the start of the process to its end, so that the start of Python and of
the GPU are among them.

With `--table`, an exhaustive table of one of the problems (`replay_table.py`; `--table-shape` says which),
every winner of that problem is looked up in it: `behind` is how much longer than the fastest of the table it
took there, `close_after_s` the seconds from the start of the process to the first candidate that took at most
1 % longer than the fastest there. Rows of results tell whole seconds: it may have been one second sooner.

Needs a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout needs no installation

from benchmarks.command import searched
from benchmarks.replay import Table, read_table
from benchmarks.replay_table import STAGE, Row, read_results, shape_of
from sgemm_tune.errors import SgemmTuneError
from sgemm_tune.problem import Problem

CLOSE = 1.01
"""What is within 1 % of the fastest."""

Search = Callable[[Sequence[Problem], Path], dict[str, Any]]
"""Searches problems with all files below a folder, and returns what the command told (`searched`)."""


@dataclass(frozen=True)
class Run:
    """One command.

    Attributes:
        problems: that it searched.
        began: when its process started, seconds since 1970.
        seconds: from the start of the process to its end.
        told: its JSON document.
        rows: that it stored.
    """

    problems: tuple[Problem, ...]
    began: float
    seconds: float
    told: dict[str, Any]
    rows: tuple[Row, ...]


def as_a_user(problems: Sequence[Problem], folder: Path) -> dict[str, Any]:
    """One command with its defaults, and a cache of compiled kernels in the folder.

    Raises:
        SystemExit: the search failed, or there is no GPU to measure on.
    """
    shapes = [part for problem in problems for part in ("--shape", problem.shape)]
    return searched(*shapes, folder=folder, cache=folder / "cubins")


def run_once(problems: Sequence[Problem], search: Search) -> Run:
    """Search in an empty folder, which is removed then.

    Raises:
        SystemExit: what `search` raises.
        ValueError: the results are no table.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began, started = time.time(), time.perf_counter()
        told = search(problems, folder)
        seconds = time.perf_counter() - started
        rows = read_results(folder / "results" / "results.csv")
    return Run(tuple(problems), began, seconds, told, tuple(rows))


def measure(
    problems: Sequence[Problem],
    repeat: int,
    table: tuple[Problem, Table] | None = None,
    search: Search = as_a_user,
) -> dict[str, Any]:
    """All runs, as one document.

    Args:
        problems: each is searched alone, and where there are several, all together as well.
        repeat: how often, by turns.
        table: an exhaustive table and the problem that it is of.
        search: a stand-in for the command.

    Raises:
        SystemExit: a search failed, or there is no GPU to measure on.
        ValueError: the results are no table.
    """
    asked: list[tuple[Problem, ...]] = [(problem,) for problem in problems]
    if len(problems) > 1:
        asked.append(tuple(problems))
    runs: list[Run] = []
    for _ in range(repeat):
        for each in asked:
            run = run_once(each, search)
            runs.append(run)
            shapes = " ".join(problem.shape for problem in each)
            print(f"{shapes}: {run.seconds:.1f} s", file=sys.stderr, flush=True)
    return document(runs, table)


def document(runs: Sequence[Run], table: tuple[Problem, Table] | None = None) -> dict[str, Any]:
    """What the runs took and found; `ratio` is the time of all together / that of the slowest alone."""
    device = runs[0].told["device"]
    medians = {problems: _median(runs, problems) for problems in dict.fromkeys(run.problems for run in runs)}
    alone = {problems[0].shape: median for problems, median in medians.items() if len(problems) == 1}
    slowest = max(alone, key=alone.__getitem__)
    together = next((median for problems, median in medians.items() if len(problems) > 1), None)
    found: dict[str, Any] = {
        "device": device["name"],
        "sms": device["sms"],
        "driver": device["driver"],
        "nvrtc": device["nvrtc"],
        "date": runs[0].rows[-1]["date"],
        "runs": [
            {
                "shapes": [problem.shape for problem in run.problems],
                "seconds": round(run.seconds, 2),
                "results": [_said(result) for result in run.told["results"]],
            }
            for run in runs
        ],
        "alone_s": {shape: round(median, 2) for shape, median in alone.items()},
        "slowest_alone": slowest,
        "together_s": None if together is None else round(together, 2),
        "ratio": None if together is None else round(together / alone[slowest], 3),
    }
    return found if table is None else found | {"table": against(runs, *table)}


def against(runs: Sequence[Run], problem: Problem, table: Table) -> dict[str, Any]:
    """What searches of a problem found, beside all that there is."""
    times = np.array(table.times)
    fastest = float(np.nanmin(times))
    return {
        "name": table.name,
        "shape": problem.shape,
        "configurations": len(times),
        "failed": int(np.isnan(times).sum()),
        "fastest_ms": fastest,
        "found": [_placed(run, problem, table, fastest) for run in runs if problem in run.problems],
    }


def _placed(run: Run, problem: Problem, table: Table, fastest: float) -> dict[str, Any]:
    """One search beside the table. `behind` and `close_after_s` are None where there is nothing to say."""
    (result,) = (each for each in run.told["results"] if each["shape"] == problem.shape)
    best = result["best"]
    there = math.nan if best is None else _time_of(table, best["stage"], best["params"])
    close = [
        datetime.fromisoformat(row["date"]).timestamp() + 1 - run.began
        for row in run.rows
        if shape_of(row) == problem.shape
        and _time_of(table, row[STAGE], json.loads(row["config"])) <= CLOSE * fastest
    ]
    return {
        "shapes": [each.shape for each in run.problems],
        "seconds": round(run.seconds, 2),
        "ms": None if best is None else best["ms"],
        "table_ms": None if math.isnan(there) else there,
        "behind": None if math.isnan(there) else round(there / fastest - 1, 5),
        "close_after_s": round(min(close), 1) if close else None,
    }


def _time_of(table: Table, stage: str, params: dict[str, int]) -> float:
    """Of a configuration, in ms; NaN where it failed, or the table lacks it."""
    place = table.space.index({STAGE: stage, **params})
    return math.nan if place is None else table.times[place]


def _said(result: dict[str, Any]) -> dict[str, Any]:
    """What is kept of one problem's result."""
    best = result["best"]
    kept = ("trials", "compiled", "search_seconds", "gpu_busy")
    return {
        "shape": result["shape"],
        **{name: result[name] for name in kept},
        "best": None
        if best is None
        else {name: best[name] for name in ("stage", "params", "ms", "vs_cublas")},
    }


def _median(runs: Sequence[Run], problems: tuple[Problem, ...]) -> float:
    return statistics.median(run.seconds for run in runs if run.problems == problems)


def shown(found: dict[str, Any]) -> list[str]:
    """The document as lines."""
    lines = [f"{found['device']}, {found['sms']} SMs, empty caches, medians from start to end"]
    lines += [f"{shape} alone: {seconds:.1f} s" for shape, seconds in found["alone_s"].items()]
    if found["together_s"] is not None:
        lines.append(
            f"all in one command: {found['together_s']:.1f} s, {found['ratio']:.2f} times "
            f"{found['slowest_alone']} alone"
        )
    if "table" in found:
        table = found["table"]
        lines.append(
            f"{table['shape']}: the fastest of {table['configurations']} in {table['name']} takes "
            f"{table['fastest_ms']:.5g} ms"
        )
        for one in table["found"]:
            behind = (
                "not in the table" if one["behind"] is None else f"there {100 * one['behind']:.2f} % behind"
            )
            soon = one["close_after_s"]
            close = "none was close" if soon is None else f"one within 1 % after at most {soon:.0f} s"
            measured = "nothing" if one["ms"] is None else f"{one['ms']:.5g} ms"
            lines.append(f"found in {one['seconds']:.1f} s: {measured}, {behind}; {close}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads the command line, measures, prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", type=int, action="append", default=[], help="M = N = K; repeatable (4096)")
    parser.add_argument("--shape", action="append", default=[], help="MxNxK; repeatable")
    parser.add_argument("--repeat", type=int, default=1, help="how often (1)")
    parser.add_argument("--table", type=Path, help="an exhaustive table of one of the problems")
    parser.add_argument("--table-shape", default="4096x4096x4096", help="which (4096x4096x4096)")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    given = parser.parse_args(arguments)
    try:
        sizes = given.size or ([] if given.shape else [4096])
        asked = [*map(Problem.parse_size, sizes), *map(Problem.parse_shape, given.shape)]
        problems = tuple(dict.fromkeys(asked))
        table = None
        if given.table is not None:
            table = Problem.parse_shape(given.table_shape), read_table(given.table)
            if table[0] not in problems:
                parser.error(f"--table is of {given.table_shape}, which is not searched")
    except (OSError, ValueError, SgemmTuneError) as error:
        parser.error(str(error))
    if given.repeat < 1:
        parser.error(f"--repeat must be at least 1, not {given.repeat}")
    found = measure(problems, given.repeat, table)
    print(json.dumps(found, indent=2) if given.json else "\n".join(shown(found)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
