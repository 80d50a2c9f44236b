"""Counts the evaluations that a sampler needs on a table of measured configurations, without a GPU.

    python benchmarks/replay.py TABLE.csv.gz --seeds 20 --json

A table has one column per tunable and then `time_ms`; a row without a time is a configuration that
fails, and an empty cell a tunable that the configuration's stage does not have. A combination that is not in
the table is no legal point. `replay_table.py` makes such tables. The search runs as in the product: an
Optuna study, `make_sampler`, `suggest`, ask and tell, one configuration after another.

An evaluation is one distinct configuration looked up, failing ones included. A seed that does not get
there within the budget counts as budget + 1 in medians and percentiles, so that such a figure above the
budget says "not reached", and `reached_95` and `reached_99` count the seeds that did.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small matrices: threads would only wait for one another

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout needs no installation

from sgemm_tune.search.space import Point, Space, Value

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Table:
    """A measured space.

    Attributes:
        name: the file's name.
        space: its rows as points.
        times: ms per point; NaN where the configuration fails.
    """

    name: str
    space: Space
    times: tuple[float, ...]


@dataclass(frozen=True)
class Replay:
    """One seed's search.

    Attributes:
        to_95: evaluations until best / time >= 0.95, or None.
        to_99: the same for 0.99.
        evaluations: how many configurations were looked up.
        invalid_asks: draws that were no legal point.
        repeated_asks: draws that had been proposed before.
        seconds_asking: time spent in ask and suggest, in s.
    """

    to_95: int | None
    to_99: int | None
    evaluations: int
    invalid_asks: int
    repeated_asks: int
    seconds_asking: float


def read_table(path: Path) -> Table:
    """Reads a table. Names whose cell is empty are absent from that row's point.

    Raises:
        OSError: it cannot be read.
        ValueError: there is no column `time_ms`, no tunable, no time at all, a row without a value, or a
            row twice.
    """
    import pandas as pd

    frame = pd.read_csv(path)
    if "time_ms" not in frame or frame.shape[1] < 2:
        raise ValueError(f"{path}: expected tunable columns and time_ms, found {', '.join(frame.columns)}")
    tunables = frame.drop(columns="time_ms")
    if tunables.duplicated().any():
        raise ValueError(f"{path}: row {int(tunables.duplicated().argmax()) + 2} repeats a configuration")
    times = pd.to_numeric(frame["time_ms"], errors="coerce")
    if not (times > 0).any():
        raise ValueError(f"{path}: no row has a time")
    if tunables.isna().all(axis=1).any():
        raise ValueError(
            f"{path}: row {int(tunables.isna().all(axis=1).argmax()) + 2} has no tunable's value"
        )
    points = _points(tunables)
    good = times.where(np.isfinite(times) & (times > 0))
    return Table(path.name, Space.of(points), tuple(float(t) for t in good))


def _points(tunables: pd.DataFrame) -> list[Point]:
    """A point per row. A column of whole numbers that has empty cells was read as one of floats."""
    columns: dict[str, list[Value | None]] = {}
    for name, column in tunables.items():
        given = column.notna()
        whole = column.dtype.kind == "f" and not given.all() and (column[given] % 1 == 0).all()
        cells = zip(column.tolist(), given.tolist(), strict=True)
        columns[str(name)] = [(int(value) if whole else value) if there else None for value, there in cells]
    rows = zip(*columns.values(), strict=True)
    return [
        {name: value for name, value in zip(columns, row, strict=True) if value is not None} for row in rows
    ]


def replay(
    table: Table,
    sampler_name: str,
    seed: int,
    budget: int,
    *,
    ahead: int = 1,
    prior: Sequence[float] | None = None,
) -> Replay:
    """Searches the table once.

    Args:
        table: what is looked up.
        sampler_name: one of `sgemm_tune.search.samplers.SAMPLERS`.
        seed: the sampler's seed.
        budget: evaluations at most.
        ahead: how many trials are asked for before the oldest of them is told.
        prior: a predicted time per point, for `make_sampler`; `model.py` has those of the static model.

    Raises:
        UnknownName: no sampler has this name.
        ValueError: `prior` has another length than the table.
    """
    import optuna  # noqa: TID251

    from sgemm_tune.search.samplers import make_sampler, remaining, suggest

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = make_sampler(sampler_name, table.space, seed, prior)
    study = optuna.create_study(direction="minimize", sampler=sampler)
    best = np.nanmin(table.times)
    hits: dict[float, int] = {}
    queue: list[tuple[optuna.trial.Trial, float]] = []
    asked = told = 0
    asking = 0.0
    budget = min(budget, len(table.space))
    while told < budget and 0.99 not in hits:
        while len(queue) < ahead and asked < budget and remaining(study, table.space):
            started = time.perf_counter()
            trial = study.ask()
            point = suggest(trial, table.space)
            asking += time.perf_counter() - started
            place = table.space.index(point)
            assert place is not None
            queue.append((trial, table.times[place]))
            asked += 1
        trial, value = queue.pop(0)
        told += 1
        if math.isnan(value):
            trial.set_constraint("legal", 1.0)
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            continue
        study.tell(trial, value)
        for share in (0.95, 0.99):
            if best / value >= share:
                hits.setdefault(share, told)
    return Replay(hits.get(0.95), hits.get(0.99), told, sampler.invalid_asks, sampler.repeated_asks, asking)


def summary(table: Table, sampler_name: str, budget: int, runs: Sequence[Replay]) -> dict[str, object]:
    """The figures of several seeds; see the module's text for how missing ones count."""
    out: dict[str, object] = {"table": table.name, "sampler": sampler_name, "budget": budget}
    for share, hits in (("95", [r.to_95 for r in runs]), ("99", [r.to_99 for r in runs])):
        counted = [budget + 1 if hit is None else hit for hit in hits]
        out[f"median_{share}"] = float(np.median(counted))
        out[f"p90_{share}"] = float(np.percentile(counted, 90))
        out[f"max_{share}"] = max(counted)
        out[f"reached_{share}"] = sum(hit is not None for hit in hits)
    out["seeds"] = len(runs)
    out["invalid_asks"] = sum(r.invalid_asks for r in runs)
    out["repeated_asks"] = sum(r.repeated_asks for r in runs)
    out["ms_per_ask"] = round(1e3 * sum(r.seconds_asking for r in runs) / sum(r.evaluations for r in runs), 2)
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads the command line, replays, prints; returns the exit code."""
    from sgemm_tune.errors import SgemmTuneError
    from sgemm_tune.search.samplers import DEFAULT_SAMPLER, SAMPLERS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("table", type=Path, help="tunable columns, then time_ms; .csv or .csv.gz")
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds (20)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them (0)")
    parser.add_argument(
        "--sampler", default=DEFAULT_SAMPLER, help=f"{', '.join(SAMPLERS)} ({DEFAULT_SAMPLER})"
    )
    parser.add_argument("--budget", type=int, default=400, help="evaluations per seed at most (400)")
    parser.add_argument("--ahead", type=int, default=1, help="trials under way at a time (1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    args = parser.parse_args(arguments)
    if min(args.seeds, args.budget, args.ahead) < 1:
        parser.error("--seeds, --budget and --ahead must be at least 1")
    try:
        table = read_table(args.table)
        seeds = range(args.first_seed, args.first_seed + args.seeds)
        runs = [replay(table, args.sampler, seed, args.budget, ahead=args.ahead) for seed in seeds]
    except (OSError, ValueError, SgemmTuneError) as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2
    figures = summary(table, args.sampler, args.budget, runs)
    if args.json:
        print(json.dumps(figures))
        return 0
    from rich.console import Console
    from rich.table import Table as RichTable

    shown = RichTable("evaluations", "median", "p90", "max", "seeds that got there", title=table.name)
    for share in ("95", "99"):
        cells = [f"{figures[f'{key}_{share}']:g}" for key in ("median", "p90", "max")]
        shown.add_row(f"to {share} %", *cells, f"{figures[f'reached_{share}']} of {len(runs)}")
    Console().print(shown)
    draws = f"{figures['invalid_asks']} invalid and {figures['repeated_asks']} repeated draws"
    print(f"{args.sampler}: {draws}, {figures['ms_per_ask']} ms per ask, budget {args.budget} per seed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
