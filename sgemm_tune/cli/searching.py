"""The part of `sgemm-tune search` that measures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from sgemm_tune.arch import Arch
from sgemm_tune.cli import console
from sgemm_tune.cli.options import SearchRequest
from sgemm_tune.kernel import Kernel
from sgemm_tune.measure.outcome import Measurement
from sgemm_tune.measure.protocol import Policy
from sgemm_tune.measure.worker import GpuWorker
from sgemm_tune.search.finalists import Finalist
from sgemm_tune.search.pipeline import Compiles
from sgemm_tune.search.search import search
from sgemm_tune.search.types import OnEvent, SearchResult, SearchSettings, Stop
from sgemm_tune.search.types import Progress as Standing

COLUMNS = ("", "configuration", "ms", "TFLOP/s", "of cuBLAS", "error", "bound")


def run_search(
    request: SearchRequest, arch: Arch, worker: GpuWorker, pool: Compiles, *, as_json: bool
) -> None:
    """Search every problem of the request and show what was found."""
    defaults = SearchSettings()
    settings = SearchSettings(
        trials=request.trials or defaults.trials,
        timeout=request.timeout,
        sampler=request.sampler or defaults.sampler,
        seed=request.seed,
        jobs=request.jobs,
        storage=request.storage,
        policy=Policy(seed=request.seed),
        configs_dir=request.configs_dir,
        results_dir=request.results_dir,
    )
    device = f"{worker.info.name}, {worker.info.sms} SMs"
    out = console.console(json_mode=as_json)
    for line in announced(request, arch):
        out.print(f"{device}: searching {line}", markup=False)
    with _progress() as on_event:
        found = search(request.asked, arch, worker, pool, settings=settings, on_event=on_event)
    if as_json:
        results = [document(result) for result in found]
        console.print_json({"mode": "measured", "arch": arch.name, "device": worker.info, "results": results})
    else:
        for result in found:
            show(out, result, device)
    if any(result.stopped is Stop.INTERRUPTED for result in found):
        raise typer.Exit(console.INTERRUPTED)
    if any(result.why_nothing for result in found):
        raise typer.Exit(1)


def announced(request: SearchRequest, arch: Arch) -> list[str]:
    """What is searched, a line for each set of stages; shapes are named where there are several sets."""
    shapes: dict[tuple[type[Kernel], ...], list[str]] = {}
    for problem, stages in request.asked.items():
        shapes.setdefault(tuple(stages), []).append(problem.shape)
    lines = []
    for stages, of_them in shapes.items():
        legal = sum(len(stage.legal(arch)) for stage in stages)
        where = f" at {', '.join(of_them)}" if len(shapes) > 1 else ""
        names = ", ".join(stage.name() for stage in stages)
        lines.append(f"{legal} {request.precision} configurations of {names}{where}")
    return lines


def show(out: Console, result: SearchResult, device: str) -> None:
    """Print one result: the last round, what became of the others, and where the best is kept."""
    rows = [_row(finalist, result) for finalist in result.verdict.finalists]
    best = result.verdict.measurement
    if best is not None:
        rate = result.problem.tflops(best.cublas_ms)
        rows.append(("", "cuBLAS", console.milliseconds(best.cublas_ms), f"{rate:.2f}", "1.000", "", ""))
    if rows:
        title = f"The last round of {result.problem.shape} on {device}"
        out.print(console.table(title, COLUMNS, rows, left=2))
    resumed = f" ({result.resumed} of them by earlier runs)" if result.resumed else ""
    failed = {status.value: failures.count for status, failures in result.failures.items()}
    lines = [
        f"{result.done} trials{resumed} in {result.seconds:.0f} s, the GPU busy for {result.gpu_busy:.0%}; "
        f"stopped by {result.stopped}; failed: {console.counted(failed)}"
    ]
    if not result.why_nothing:
        lines += [
            f"  {status}: such as {console.one_line(f.example)}" for status, f in result.failures.items()
        ]
    if best is not None:
        lines += best.doubts
    if result.why_nothing:
        lines.append(result.why_nothing)
    elif result.verdict.kept:
        lines.append(f"nothing beat the stored best beyond the noise: it stays in {result.path}")
    else:
        lines.append(f"the best is stored in {result.path}")
    for line in lines:
        out.print(line, markup=False)


def document(result: SearchResult) -> dict[str, Any]:
    """One result for a script."""
    best, kernel = result.verdict.measurement, result.verdict.kernel
    return {
        "source": "search",
        "shape": result.problem.shape,
        "best": None
        if best is None or kernel is None
        else {
            "stage": kernel.name(),
            "params": kernel.params,
            **console.figures(result.problem, best),
            "cublas_tflops": result.problem.tflops(best.cublas_ms),
        },
        "tied": [str(tied) for tied in result.verdict.tied],
        "kept": result.verdict.kept,
        "trials": result.done,
        "new": result.new,
        "resumed": result.resumed,
        "failures": result.failures,
        "stopped": result.stopped,
        "study": result.study,
        "seconds": result.seconds,
        "search_seconds": result.search_seconds,
        "gpu_busy": result.gpu_busy,
        "bookkeeping": result.bookkeeping,
        "compiled": result.compiled,
        "config_file": result.path,
        "why_nothing": result.why_nothing or None,
    }


def _row(finalist: Finalist, result: SearchResult) -> tuple[str, ...]:
    outcome = finalist.outcome
    if not isinstance(outcome, Measurement):
        return (outcome.status.value, str(finalist.kernel), "-", "-", "-", "-", "-")
    verdict = result.verdict
    place = "best" if finalist.kernel == verdict.kernel else "tied" if finalist.kernel in verdict.tied else ""
    return (
        place,
        str(finalist.kernel),
        console.milliseconds(outcome.ms),
        f"{result.problem.tflops(outcome.ms):.2f}",
        f"{outcome.vs_cublas:.3f}",
        f"{outcome.accuracy.error:.1e}",
        f"{outcome.accuracy.bound:.1e}",
    )


@contextmanager
def _progress() -> Iterator[OnEvent]:
    bar = console.progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[said]}"),
    )

    def update(standing: Standing) -> None:
        said = "last round" if standing.last_round else _said(standing)
        bar.update(
            task, completed=standing.done, total=standing.total, description=standing.problem.shape, said=said
        )

    with bar:
        task = bar.add_task("", total=None, said="starting")
        yield update


def _said(standing: Standing) -> str:
    """Best so far, rate, time left, failures."""
    parts = []
    if standing.best is not None:
        kernel, measured = standing.best
        ratio = f" ({measured.vs_cublas:.2f}x cuBLAS)" if measured.vs_cublas else ""
        parts.append(f"best {standing.problem.tflops(measured.ms):.1f} TFLOP/s{ratio} {kernel.name()}")
    parts.append(f"{standing.rate:.1f}/s")
    if standing.eta is not None:
        parts.append(f"{standing.eta:.0f} s left")
    failed = sum(failures.count for failures in standing.failures.values())
    if failed:
        parts.append(f"{failed} failed")
    return ", ".join(parts)
