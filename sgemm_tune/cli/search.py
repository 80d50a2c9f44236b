"""`sgemm-tune search`: find the fastest configuration, or plan for a GPU that is not here."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from sgemm_tune.arch import Arch, parse_arch
from sgemm_tune.cli import console
from sgemm_tune.cli.gpu import probe
from sgemm_tune.cli.options import (
    CONFIGS_DIR,
    RESULTS_DIR,
    ArchOption,
    ConfigsDirOption,
    DeviceOption,
    JsonOption,
    ResultsDirOption,
    SearchRequest,
    SeedOption,
    at_least,
    can_write,
    problems_from,
    stages_from,
)
from sgemm_tune.errors import UnknownName
from sgemm_tune.kernel import suited

if TYPE_CHECKING:
    from sgemm_tune.compiler.pool import CompilePool

EXAMPLE = "sgemm-tune search --arch sm_90 --size 4096"


def command(
    *,
    arch: ArchOption = None,
    size: Annotated[
        list[int] | None, typer.Option("--size", help="M = N = K; repeatable.", show_default="4096")
    ] = None,
    shape: Annotated[list[str] | None, typer.Option("--shape", help="MxNxK; repeatable.")] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="fp32 (strict FFMA) or tf32 (tensor cores).", show_default="that of --stage, or fp32"
        ),
    ] = None,
    stage: Annotated[
        list[str] | None,
        typer.Option(
            "--stage",
            help="Search this stage only; repeatable. See `sgemm-tune stages`.",
            show_default="all that suit the shape",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            help="Candidates per problem, those of earlier runs included.",
            show_default="200, or 80 for a plan",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds per problem, after which to stop with what was found.",
            show_default="none, or 150 for a plan",
        ),
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(help="gp, tpe, random or exhaustive.", show_default="gp"),
    ] = None,
    seed: SeedOption = 0,
    jobs: Annotated[
        int | None, typer.Option("--jobs", help="Compiler processes.", show_default="one per core")
    ] = None,
    device: DeviceOption = 0,
    storage: Annotated[
        str | None,
        typer.Option(
            help="Optuna storage URL, or a journal file.", show_default="a journal in RESULTS_DIR/studies"
        ),
    ] = None,
    configs_dir: ConfigsDirOption = CONFIGS_DIR,
    results_dir: ResultsDirOption = RESULTS_DIR,
    as_json: JsonOption = False,
) -> None:
    """Search stages and tile geometry together for the fastest configuration of each problem.

    Every candidate is compiled, validated, and timed interleaved with cuBLAS. The same command resumes an
    interrupted search. Without a GPU of the architecture it plans instead: candidates are compiled for real,
    ranked by a model, and stored as predicted.
    """
    asked = parse_arch(arch) if arch is not None else None
    problems = problems_from(size, shape)
    chosen, stages = stages_from(stage, precision)
    for option, value in (("--trials", trials), ("--jobs", jobs)):
        at_least(option, value, 1)
    for option, value in (("--seed", seed), ("--device", device)):
        at_least(option, value, 0)
    at_least("--timeout", timeout, 0, above=True)
    _check_sampler(sampler)
    can_write(configs_dir, results_dir)

    request = SearchRequest(
        asked={problem: stages if stage else suited(stages, problem) for problem in problems},
        precision=chosen,
        trials=trials,
        timeout=timeout,
        sampler=sampler,
        seed=seed,
        jobs=jobs or _cores(),
        storage=storage,
        configs_dir=configs_dir,
        results_dir=results_dir,
    )
    with ExitStack() as kept:
        compilers = kept.enter_context(_compilers(request, asked)) if asked is not None else None
        with ThreadPoolExecutor(1) as meanwhile:  # a GPU takes seconds to open, in a process of its own
            if asked is not None:
                meanwhile.submit(_list_candidates, request, asked)
            found = probe(asked, device)
        if found.worker is not None:
            from sgemm_tune.cli.searching import run_search

            compilers = compilers or kept.enter_context(_compilers(request, found.arch))
            kept.enter_context(found.worker)
            run_search(request, found.arch, found.worker, compilers, as_json=as_json)
            return
    from sgemm_tune.cli.planning import run_plan

    out = console.console(json_mode=as_json)
    notice = f"cannot measure: {console.one_line(found.reason)}; planning for {found.arch.name} instead"
    out.print(notice, markup=False, soft_wrap=True)
    run_plan(request, found.arch, as_json=as_json)


def _compilers(request: SearchRequest, arch: Arch) -> CompilePool:
    """Processes that are on their way while the GPU is opened."""
    from sgemm_tune.compiler.cache import BinaryCache
    from sgemm_tune.compiler.pool import CompilePool

    pool = CompilePool(arch, request.jobs, BinaryCache())
    pool.start()
    return pool


def _list_candidates(request: SearchRequest, arch: Arch) -> None:
    """What searches and plans begin with: both find it done."""
    from sgemm_tune.search.points import space_of

    for stages in request.asked.values():
        space_of(tuple(stages), arch)


def _check_sampler(name: str | None) -> None:
    if name is not None:
        from sgemm_tune.search.samplers import SAMPLERS

        if name not in SAMPLERS:
            raise UnknownName("sampler", name, SAMPLERS)


def _cores() -> int:
    """How many processes can run at once: a container may have fewer cores than its machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
