"""The part of `sgemm-tune search` that runs where there is no GPU to measure on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from sgemm_tune.arch import Arch
from sgemm_tune.cli import console
from sgemm_tune.cli.options import SearchRequest
from sgemm_tune.compiler.cache import BinaryCache
from sgemm_tune.model.plan import PLAN_SECONDS, PLAN_TRIALS, Plan, PredictedCandidate, plan
from sgemm_tune.model.plan import Progress as PlanProgress
from sgemm_tune.store.configs import config_path, load_config
from sgemm_tune.store.plans import SHORTLIST, store_plan
from sgemm_tune.store.results import ResultsFile

COLUMNS = (
    "rank",
    "configuration",
    "registers",
    "blocks/SM",
    "waves",
    "predicted ms",
    "predicted TFLOP/s",
    "bound by",
)


def run_plan(request: SearchRequest, arch: Arch, *, as_json: bool) -> None:
    """Plan every problem of the request; each is stored and shown as soon as it is done."""
    results = ResultsFile(request.results_dir / "results.csv")
    stored = config_path(request.configs_dir, arch)
    if stored.exists():
        load_config(stored)  # a damaged file is found before the work, not after it
    documents = []
    for problem, stages in request.asked.items():
        with _progress(f"{arch.name} {problem.shape}") as on_progress:
            found = plan(
                problem,
                request.precision,
                stages,
                arch,
                trials=request.trials or PLAN_TRIALS,
                jobs=request.jobs,
                seed=request.seed,
                cache=BinaryCache(),
                on_progress=on_progress,
                deadline=request.timeout or PLAN_SECONDS,
            )
        path = store_plan(found, request.configs_dir, results)
        documents.append(describe(found, path))
        if not as_json:
            show(console.console(), found, path)
    if as_json:
        console.print_json({"mode": "predicted", "arch": arch.name, "results": documents})
    if not all(document["shortlist"] for document in documents):
        raise typer.Exit(1)


def show(out: Console, found: Plan, path: Path) -> None:
    """Print one plan: its shortlist, what was dropped, and what to run on the right GPU."""
    board = found.arch.board
    rows = [
        (
            str(candidate.rank),
            str(candidate.kernel),
            str(candidate.binary.registers),
            str(candidate.prediction.occupancy.blocks),
            console.figure(candidate.prediction.waves, 2),
            console.milliseconds(candidate.prediction.ms),
            console.figure(candidate.prediction.tflops),
            candidate.prediction.bound,
        )
        for candidate in found.candidates[:SHORTLIST]
    ]
    title = f"Predicted, never run: {found.precision} {found.problem.shape} on {board.name}, {board.sms} SMs"
    out.print(console.table(title, COLUMNS, rows, left=2))
    left = f", {found.uncompiled} left out when time was up" if found.uncompiled else ""
    dropped = {status.value: count for status, count in found.dropped_by_reason.items()}
    out.print(
        f"{len(found.candidates) + len(found.dropped)} of {found.legal} legal configurations compiled in "
        f"{found.seconds:.0f} s{left}; dropped: {console.counted(dropped)}",
        markup=False,
    )
    if found.candidates:
        out.print(f"shortlist in {path}; on a {found.arch.name} GPU measure it with:", markup=False)
        out.print(f"  sgemm-tune bench --config {path}", markup=False)
    else:
        out.print("no candidate is left, and nothing was stored as a shortlist", markup=False)


def describe(found: Plan, path: Path) -> dict[str, Any]:
    """One plan for a script."""
    return {
        "source": "predicted",
        "shape": found.problem.shape,
        "precision": found.precision,
        "board": found.arch.board.name,
        "legal": found.legal,
        "compiled": len(found.candidates) + len(found.dropped),
        "uncompiled": found.uncompiled,
        "dropped": found.dropped_by_reason,
        "shortlist": [
            {
                "rank": candidate.rank,
                "stage": candidate.kernel.name(),
                "params": candidate.kernel.params,
                "registers": candidate.binary.registers,
                "predicted_ms": candidate.prediction.ms,
                "predicted_tflops": candidate.prediction.tflops,
            }
            for candidate in found.candidates[:SHORTLIST]
        ],
        "config_file": path if found.candidates else None,
        "seconds": found.seconds,
    }


@contextmanager
def _progress(label: str) -> Iterator[PlanProgress]:
    bar = console.progress(
        TextColumn("planning {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[best]}"),
        TextColumn("{task.fields[rate]:.1f}/s"),
        TimeRemainingColumn(),
    )

    def update(done: int, total: int, best: PredictedCandidate | None, rate: float) -> None:
        said = f"best predicted {best.prediction.tflops:.1f} TFLOP/s" if best is not None else ""
        bar.update(task, completed=done, total=total, best=said, rate=rate)

    with bar:
        task = bar.add_task(label, total=None, best="", rate=0.0)
        yield update
