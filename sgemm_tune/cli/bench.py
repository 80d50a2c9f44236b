"""`sgemm-tune bench`: measure again what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sgemm_tune.arch import parse_arch
from sgemm_tune.cli import console
from sgemm_tune.cli.gpu import open_worker
from sgemm_tune.cli.options import (
    CONFIGS_DIR,
    RESULTS_DIR,
    DeviceOption,
    JsonOption,
    ResultsDirOption,
    SeedOption,
    at_least,
    can_write,
)
from sgemm_tune.errors import DeviceUnavailable, UsageError
from sgemm_tune.kernel import Kernel, stage_named, suited
from sgemm_tune.kernel import ladder as every_stage
from sgemm_tune.measure.worker import GpuWorker
from sgemm_tune.problem import Problem

if TYPE_CHECKING:
    from sgemm_tune.bench.bench import Bench
    from sgemm_tune.bench.ladder import Rung
    from sgemm_tune.store.configs import ConfigFile

EXAMPLE = "sgemm-tune bench --config configs/h100.yaml --ladder"


def command(
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="Measure every entry and prediction of this file; with --suite, take its configurations.",
        ),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            "--suite", help="Measure a suite of shapes against its goals: fp32, or a file that ends in .yaml."
        ),
    ] = None,
    ladder: Annotated[
        bool, typer.Option("--ladder", help="Measure each stage's best configuration over sizes.")
    ] = False,
    size: Annotated[
        list[int] | None, typer.Option("--size", help="Restrict the ladder to this size; repeatable.")
    ] = None,
    stage: Annotated[
        list[str] | None, typer.Option("--stage", help="Restrict the ladder to this stage; repeatable.")
    ] = None,
    seed: SeedOption = 0,
    device: DeviceOption = 0,
    results_dir: ResultsDirOption = RESULTS_DIR,
    as_json: JsonOption = False,
) -> None:
    """Validate and measure stored configurations on this GPU, interleaved with cuBLAS.

    With --config, the file is brought up to date: entries of this device get fresh figures, and the best of a
    shortlist of predictions becomes an entry. With --ladder, each stage is measured over sizes in the best
    configuration that the results know, or its declared default.

    With --suite, each shape is measured in its stored configuration, or else in that of the nearest stored
    shape, beside cuBLAS and the best of cublasLt's heuristics. The report goes to RESULTS_DIR/report, and the
    file of configurations stays as it is.

    Exits with 1 where a stored configuration gives a wrong result.
    """
    if config is None and not ladder and suite is None:
        raise UsageError("there is nothing to measure: give --config FILE, --ladder or both, or --suite")
    if suite is not None and ladder:
        raise UsageError("--suite and --ladder are measured one at a time: leave one of them out")
    if not ladder and (size or stage):
        raise UsageError("--size and --stage restrict the ladder: give --ladder too")
    at_least("--device", device, 0)
    at_least("--seed", seed, 0)
    can_write(results_dir)
    problems = [Problem.parse_size(side) for side in dict.fromkeys(size or ())]
    named = [stage_named(name) for name in dict.fromkeys(stage or ())]

    if suite is not None:
        if _measure_suite(suite, config, seed=seed, device=device, results_dir=results_dir, as_json=as_json):
            raise typer.Exit(1)
        return

    from sgemm_tune.bench.bench import Bench, bench_file, read_for
    from sgemm_tune.bench.ladder import LADDER_POLICY
    from sgemm_tune.cli.bench_view import BenchView
    from sgemm_tune.compiler.cache import BinaryCache
    from sgemm_tune.measure.protocol import Policy
    from sgemm_tune.store.results import ResultsFile

    stored = read_for(config) if config is not None else None
    results = ResultsFile(results_dir / "results.csv")
    with _worker(device) as worker:
        view = BenchView(worker.info)
        if config is not None:
            bench = Bench(worker, results, BinaryCache(), Policy(seed=seed))
            with console.steps() as progress:
                view.stored = bench_file(bench, config, progress)
        if ladder:
            bench = Bench(worker, results, BinaryCache(), replace(LADDER_POLICY, seed=seed))
            view.rungs, ids = _climb(bench, named, problems, stored)
            frame = results.frame()
            view.rows = frame[frame["row_id"].isin(ids)]
    if as_json:
        console.print_json(view.document())
    else:
        view.show(console.console())
    if view.failed:
        raise typer.Exit(1)


def _climb(
    bench: Bench,
    named: Sequence[type[Kernel]],
    problems: Sequence[Problem],
    stored: ConfigFile | None,
) -> tuple[list[Rung], list[str]]:
    """(what was measured, ids of its rows): the named stages, or at each shape those that suit it."""
    from sgemm_tune.bench.ladder import LADDER_SIZES, bench_ladder, known_of

    info = bench.gpu.info
    fitting = [stage for stage in named or every_stage() if stage.legal(parse_arch(info.arch))]
    shapes = problems or [Problem.parse_size(side) for side in LADDER_SIZES]
    asked = {shape: fitting if named else suited(fitting, shape) for shape in shapes}
    known = known_of(bench.results, stored, info)
    with console.steps() as progress:
        return bench_ladder(bench, asked, known, progress), bench.row_ids


def _measure_suite(
    name: str, path: Path | None, *, seed: int, device: int, results_dir: Path, as_json: bool
) -> bool:
    """Measure, report and print; returns whether the command must not exit with 0."""
    from sgemm_tune.bench.bench import Bench, read_for
    from sgemm_tune.bench.suite import bench_suite
    from sgemm_tune.bench.suite_file import find_suite
    from sgemm_tune.cli.suite_view import SuiteView
    from sgemm_tune.compiler.cache import BinaryCache
    from sgemm_tune.measure.protocol import Policy
    from sgemm_tune.report.suite import write_suite
    from sgemm_tune.store.configs import load_best
    from sgemm_tune.store.results import ResultsFile

    suite = find_suite(name)
    if path is not None:
        read_for(path)  # what is wrong with it is told before a GPU is looked for
    with _worker(device) as worker:
        arch = parse_arch(worker.info.arch)
        stored = read_for(path, arch) if path is not None else load_best(CONFIGS_DIR, arch)
        bench = Bench(worker, ResultsFile(results_dir / "results.csv"), BinaryCache(), Policy(seed=seed))
        with console.steps() as progress:
            result = bench_suite(bench, suite, stored, progress)
    view = SuiteView(result, write_suite(result, results_dir / "report"))
    if as_json:
        console.print_json(view.document())
    else:
        view.show(console.console())
    return result.failed


def _worker(device: int) -> GpuWorker:
    """The process that measures.

    Raises:
        DeviceUnavailable: there is no usable GPU, and what else could be done.
    """
    try:
        return open_worker(device)
    except DeviceUnavailable as error:
        raise DeviceUnavailable(
            f"bench measures, and there is no GPU to measure on: {error}: run it on a machine with one, "
            "or see `sgemm-tune doctor`"
        ) from error
