"""How many validated configurations a second does a search get through, and how many does Kernel Tuner?

    python benchmarks/throughput.py --size 4096 --trials 500 --json

Six parts, each in folders of its own and with a fresh process on the GPU:

    1. all fp32 stages that suit the shape, no compiled kernel in the cache
    2. the same search again with the cache that part 1 has filled
    3. one stage, an empty cache
    4. the same job as Kernel Tuner's: that stage, only configurations that it can launch, drawn at random
    5. the same draws again, with the cache that part 4 has filled
    6. Kernel Tuner, where it is installed, on that stage's source and legal configurations, those tunables
       made constants of the source that the searches give at the launch

A configuration counts as validated when its result was right and it has a time, early cuts included: they
are validated before they are timed. Kernel Tuner compiles and times one after another and is asked to check
no result, which favours it. Its CUDA context exists before its clock starts, and its compiler is loaded; so
are those of the searches, whose processes the command starts while the GPU is opened.

A second search compiles nothing that the first one has compiled: `second_recompiled` counts the cubins of
part 2 that part 1 had compiled already, `same_draws_compiled` what part 5 had to compile: both must be 0.
What the sampler of part 2 proposes follows from measured times, which are never twice the same, so with `gp`
and `tpe` it asks for configurations that part 1 has not tried, too: `second_compiled` of them were compiled.

Needs a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small matrices: threads would only wait for one another

import numpy as np
from pebble import ProcessExpired, ProcessPool

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout needs no installation

from sgemm_tune import declare
from sgemm_tune.arch import KIB, Arch, parse_arch
from sgemm_tune.cli.gpu import open_worker
from sgemm_tune.cli.options import at_least, stages_from
from sgemm_tune.compiler.cache import BinaryCache
from sgemm_tune.compiler.nvrtc import Binary
from sgemm_tune.compiler.pool import CompilePool
from sgemm_tune.compiler.sources import kernels_dir, source_text
from sgemm_tune.errors import SgemmTuneError
from sgemm_tune.kernel import DEFINE_PREFIX, ENTRY_POINT, Code, Kernel, Rules, stage_named, suited
from sgemm_tune.measure.outcome import DeviceInfo, Measurement, Outcome
from sgemm_tune.measure.protocol import Policy
from sgemm_tune.measure.worker import GpuWorker
from sgemm_tune.problem import Precision, Problem
from sgemm_tune.search.pipeline import Compiles
from sgemm_tune.search.types import DEFAULT_SAMPLER, Progress, SearchResult, SearchSettings, Stop

PEER = "Kernel Tuner"
PEER_SMEM_BYTES = 48 * KIB
"""Kernel Tuner's CuPy backend never raises a kernel's limit, and a refused launch ends its whole run."""
PEER_GRACE_SECONDS = 120.0
"""What its start and its last configuration may take beyond its time limit before it is given up."""
_UUID_BYTES = 16
BLOCK_SIZE = "block_size_x"
"""Kernel Tuner takes the threads of a block from a tunable of this name."""

EMPTY, FILLED, ONE_STAGE = "all stages, empty cache", "all stages, filled cache", "one stage, empty cache"
AS_PEER = "one stage as Kernel Tuner, empty cache"
SAME_DRAWS = "the same draws again, filled cache"


# ------------------------------------------------------------------------------------------ our searches


@dataclass(frozen=True)
class Request:
    """What is to be measured.

    Attributes:
        trials: of each search, or the whole space where that is smaller.
        jobs: compiler processes.
        stage: what part 3 and Kernel Tuner are restricted to.
        peer_seconds: Kernel Tuner's time limit.
    """

    problem: Problem
    trials: int
    jobs: int
    stage: type[Kernel]
    peer_seconds: float
    seed: int
    sampler: str


@dataclass(frozen=True)
class Run:
    """One search. Times are in s.

    Attributes:
        legal: configurations of the space.
        trials: configurations that have an outcome; `validated` and `failed` add up to it.
        validated: right and timed; `early_cut` of them by a few samples.
        failed: by status.
        seconds: from the call of the search to its last outcome, without the last round:
            `setup_seconds` (the space, its predictions, the study) and `search_seconds`.
        last_round_seconds: what the finalists took after that.
        validated_per_second: validated / seconds.
        gpu_busy: share of search_seconds in which the GPU's process worked on a candidate.
        bookkeeping: share of search_seconds that the main process spent on proposing and storing.
        compiled, cached: trials that cost a compilation or failed in one, and those whose cubin was in the
            cache or was compiled for another trial.
        best, best_ms: the winner; None where there is none.
    """

    name: str
    legal: int
    trials: int
    validated: int
    early_cut: int
    failed: dict[str, int]
    seconds: float
    setup_seconds: float
    search_seconds: float
    last_round_seconds: float
    validated_per_second: float
    gpu_busy: float
    bookkeeping: float
    compiled: int
    cached: int
    best: str | None
    best_ms: float | None


def figures(name: str, legal: int, result: SearchResult, outcomes: Sequence[Outcome], elapsed: float) -> Run:
    """The figures of one search.

    Args:
        name: what to call it.
        legal: configurations of its space.
        result: what the search returned.
        outcomes: of its trials, in any order.
        elapsed: seconds that the call took.
    """
    measured = [outcome for outcome in outcomes if isinstance(outcome, Measurement)]
    failed = Counter(outcome.status.value for outcome in outcomes if not isinstance(outcome, Measurement))
    setup = max(0.0, elapsed - result.seconds)
    seconds = setup + result.search_seconds
    best = result.verdict.measurement
    return Run(
        name=name,
        legal=legal,
        trials=len(outcomes),
        validated=len(measured),
        early_cut=sum(outcome.early_cut for outcome in measured),
        failed=dict(failed),
        seconds=seconds,
        setup_seconds=setup,
        search_seconds=result.search_seconds,
        last_round_seconds=result.seconds - result.search_seconds,
        validated_per_second=len(measured) / seconds,
        gpu_busy=result.gpu_busy,
        bookkeeping=result.bookkeeping,
        compiled=result.compiled,
        cached=len(outcomes) - result.compiled,
        best=None if best is None else str(result.verdict.kernel),
        best_ms=None if best is None else best.ms,
    )


class WatchedPool:
    """A pool that remembers what it had to compile: `new`, by the kernels' code."""

    def __init__(self, pool: Compiles) -> None:
        self._pool = pool
        self.new: set[Code] = set()

    def submit(self, kernel: Kernel) -> Future[Binary]:
        """As the pool's own."""
        future = self._pool.submit(kernel)
        future.add_done_callback(lambda done: self._note(kernel, done))
        return future

    def start(self) -> None:
        """As the pool's own."""
        self._pool.start()

    def compiled(self, kernels: Iterable[Kernel]) -> AbstractSet[Code]:
        """As the pool's own."""
        return self._pool.compiled(kernels)

    def _note(self, kernel: Kernel, done: Future[Binary]) -> None:
        if not done.cancelled() and (done.exception() is not None or not done.result().cached):
            self.new.add(kernel.code)


def run_search(
    name: str,
    *,
    problem: Problem,
    stages: Sequence[type[Kernel]],
    arch: Arch,
    worker: GpuWorker,
    pool: Compiles,
    settings: SearchSettings,
) -> tuple[Run, set[Code]]:
    """Search once; its figures, and what it compiled.

    Raises:
        SgemmTuneError: what `search` raises.
        KeyboardInterrupt: the search was interrupted: it has no rate.
    """
    from sgemm_tune.search.search import search  # the spawned processes import this module, without Optuna

    outcomes: list[Outcome] = []

    def note(progress: Progress) -> None:
        if progress.last is not None:
            outcomes.append(progress.last[1])

    watched = WatchedPool(pool)
    started = time.perf_counter()
    (result,) = search({problem: stages}, arch, worker, watched, settings=settings, on_event=note)
    elapsed = time.perf_counter() - started
    if result.stopped is Stop.INTERRUPTED:
        raise KeyboardInterrupt
    legal = sum(len(stage.legal(arch)) for stage in stages)
    return figures(name, legal, result, outcomes, elapsed), watched.new


# ------------------------------------------------------------------------------------------ Kernel Tuner


@dataclass(frozen=True)
class PeerJob:
    """What Kernel Tuner is asked for.

    Attributes:
        scratch: an empty folder for its compiled kernels and whatever it writes.
    """

    problem: Problem
    stage: str
    arch: str
    seconds: float
    seed: int
    scratch: Path


@dataclass(frozen=True)
class Peer:
    """What Kernel Tuner did; None where it did not run.

    Attributes:
        space: configurations that it chose from.
        left_out: legal configurations that it was not given: they need more than 48 KiB of shared memory.
        timed, failed: configurations that it timed, and that it could not launch.
        seconds: wall time of its run in s, compilation included.
        startup_seconds: the part of that before its first configuration, in s.
        timed_per_second: timed / seconds.
        best_ms: its fastest time.
        why: why it did not run, or did not run to its end; empty where it did.
    """

    space: int
    left_out: int
    version: str | None = None
    timed: int | None = None
    failed: int | None = None
    seconds: float | None = None
    startup_seconds: float | None = None
    timed_per_second: float | None = None
    best_ms: float | None = None
    why: str = ""


def within_peer_limit(kernels: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """Those that Kernel Tuner can launch: dynamic shared memory of at most 48 KiB."""
    return tuple(kernel for kernel in kernels if kernel.smem_bytes <= PEER_SMEM_BYTES)


def launchable(stage: type[Kernel]) -> type[Kernel]:
    """The stage without the configurations that Kernel Tuner cannot launch."""

    @dataclass(frozen=True)
    class Launchable(stage):  # type: ignore[misc,valid-type]
        def _limits(self, arch: Arch) -> Rules:
            yield from super()._limits(arch)
            yield bool(within_peer_limit([self])), "Kernel Tuner launches with 48 KiB at most"

    return Launchable


def takes_more(kernel: Kernel) -> bool:
    """Whether the kernel of `peer_source` takes more than `peer_arguments`."""
    return kernel.box_of_b is not None or kernel.takes_workspace


def peer_source(stage: type[Kernel]) -> str:
    """The stage's source for Kernel Tuner, which gives all configurations the same arguments: tunables that
    are arguments of the launch are constants in it, made of defines as the others are.

    Raises:
        ValueError: the source's entry point does not end in these arguments.
    """
    text, late = source_text(stage.source).text, declare.at_launch(stage)
    if not late:
        return text
    arguments = "".join(rf",\s*int {name.lower()}" for name in late)
    entry = re.compile(rf"^({ENTRY_POINT}\([^)]*?){arguments}\) {{$", re.MULTILINE)
    constants = "".join(f"\n    constexpr int {name.lower()} = {DEFINE_PREFIX}{name};" for name in late)
    found, count = entry.subn(rf"\1) {{{constants}", text)
    if count != 1:
        raise ValueError(f"{stage.source}: {ENTRY_POINT} should end in {', '.join(late).lower()}")
    return found


def peer_params(kernel: Kernel) -> dict[str, int]:
    """A configuration as Kernel Tuner has it: what the source wants defined, and the threads of a block."""
    tunables = {f"{DEFINE_PREFIX}{name}": value for name, value in kernel.params.items()}
    return {**tunables, BLOCK_SIZE: kernel.threads}


class PeerSpace:
    """Translates between Kernel Tuner's parameters and configurations.

    Args:
        kernels: legal configurations of one stage, at least one.
        problem: what the grid is for.
    """

    def __init__(self, kernels: Sequence[Kernel], problem: Problem) -> None:
        self._problem = problem
        self._names = tuple(peer_params(kernels[0]))
        self._kernels = {tuple(peer_params(kernel).values()): kernel for kernel in kernels}

    @property
    def tune_params(self) -> dict[str, list[int]]:
        """Every parameter's values in ascending order."""
        columns = zip(*self._kernels, strict=True)
        return {name: sorted(set(column)) for name, column in zip(self._names, columns, strict=True)}

    def legal(self, params: Mapping[str, int]) -> bool:
        """Whether the parameters stand for one of the configurations."""
        return self._place(params) in self._kernels

    def grid(self, params: Mapping[str, int]) -> tuple[int, int, int]:
        """Blocks per dimension."""
        return (self._kernels[self._place(params)].grid(self._problem), 1, 1)

    def smem_bytes(self, params: Mapping[str, int]) -> int:
        """Dynamic shared memory per block in bytes."""
        return self._kernels[self._place(params)].smem_bytes

    def _place(self, params: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(params[name] for name in self._names)


def peer_arguments(problem: Problem, seed: int) -> list[Any]:
    """What the kernel is called with, in the order of its signature; matrices as packed float32 arrays."""
    random = np.random.default_rng(seed)
    a, b, c = (
        random.random(rows * columns, dtype=np.float32)
        for rows, columns in ((problem.m, problem.lda), (problem.k, problem.ldb), (problem.m, problem.ldc))
    )
    sides = [np.int32(side) for side in (problem.m, problem.n, problem.k)]
    given_a, given_b = [np.float32(problem.alpha), a, np.int32(problem.lda)], [b, np.int32(problem.ldb)]
    return [*sides, *given_a, *given_b, np.float32(problem.beta), c, np.int32(problem.ldc)]


def run_peer(job: PeerJob) -> Peer:
    """Run Kernel Tuner in a process of its own: this one gets no CUDA context, and outlives a crash."""
    legal = stage_named(job.stage).legal(parse_arch(job.arch))
    fit = within_peer_limit(legal)
    nothing = Peer(space=len(fit), left_out=len(legal) - len(fit))
    if importlib.util.find_spec("kernel_tuner") is None:
        return replace(nothing, why="not installed: pip install kernel_tuner")
    if not fit:
        return replace(nothing, why="every legal configuration needs more than 48 KiB")
    if takes_more(fit[0]):
        return replace(nothing, why=f"{job.stage} takes arguments that it cannot be given")
    with ProcessPool(1, context=get_context("spawn")) as pool:
        future = pool.schedule(tune_peer, args=[job], timeout=job.seconds + PEER_GRACE_SECONDS)
        try:
            found: Peer = future.result()
        except TimeoutError:
            return replace(
                nothing, why=f"no end {PEER_GRACE_SECONDS:.0f} s after its time limit, so it was ended"
            )
        except ProcessExpired as error:
            return replace(nothing, why=f"its process died (exit code {error.exitcode})")
        except Exception as error:  # the searches' figures are worth more than its traceback
            return replace(nothing, why=_one_line(error))
    return found


def tune_peer(job: PeerJob) -> Peer:
    """Let Kernel Tuner sample the stage's configurations at random until its time is up.

    Runs in the spawned process.
    """
    os.environ["CUPY_CACHE_DIR"] = str(job.scratch / "cupy")  # else a former run's kernels are found
    os.chdir(job.scratch)
    # whatever it prints would be taken for this program's document
    with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _tune(job)


def _tune(job: PeerJob) -> Peer:
    from kernel_tuner import tune_kernel

    stage = stage_named(job.stage)
    legal = stage.legal(parse_arch(job.arch))
    fit = within_peer_limit(legal)
    space = PeerSpace(fit, job.problem)
    begun: list[float] = []
    timed: list[float] = []

    # Kernel Tuner reads the source of a restriction for lambdas, and copies methods with all they hold
    def legal_params(params: dict[str, int]) -> bool:
        return space.legal(params)

    def grid(params: dict[str, int]) -> tuple[int, int, int]:
        begun.append(time.perf_counter())
        return space.grid(params)

    def note(params: dict[str, Any]) -> float:
        # asked for of each configuration that was timed: known here even where the run ends in an error
        timed.append(float(params["time"]))
        return timed[-1]

    arguments = peer_arguments(job.problem, job.seed)
    _make_context()
    _mend_uuids()
    np.random.seed(job.seed)  # what Kernel Tuner draws from: it has an option for a seed, and ignores it
    why, failed = "", 0
    started = time.perf_counter()
    try:
        results, _ = tune_kernel(
            ENTRY_POINT,
            peer_source(stage),
            grid,
            arguments,
            space.tune_params,
            grid_div_x=[],
            grid_div_y=[],
            grid_div_z=[],
            restrictions=legal_params,
            lang="CUPY",
            smem_args={"size": space.smem_bytes},
            compiler_options=["-std=c++17", f"-I{kernels_dir()}"],
            strategy="random_sample",
            strategy_options={"fraction": 1.0, "time_limit": job.seconds},
            metrics={"noted": note},
            quiet=True,
            seed=job.seed,
        )
        failed = sum("__error__" in result for result in results)
    except Exception as error:
        # any failure but an exhausted resource ends its run: what it did until then is told all the same
        why = _one_line(error)
    seconds = time.perf_counter() - started
    return Peer(
        space=len(fit),
        left_out=len(legal) - len(fit),
        version=metadata.version("kernel_tuner"),
        timed=len(timed),
        failed=failed,
        seconds=seconds,
        startup_seconds=begun[0] - started if begun else None,
        timed_per_second=len(timed) / seconds,
        best_ms=min(timed, default=None),
        why=why,
    )


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _mend_uuids() -> None:
    """CuPy ends a GPU's UUID where it has a byte of 0, and Kernel Tuner then fails: one GPU in sixteen."""
    from cupy.cuda import runtime  # noqa: TID251

    genuine = runtime.getDeviceProperties

    def mended(device: int) -> dict[str, Any]:
        properties = genuine(device)
        return {**properties, "uuid": properties["uuid"].ljust(_UUID_BYTES, b"\0")}

    runtime.getDeviceProperties = mended


def _make_context() -> None:
    import cupy  # noqa: TID251

    cupy.zeros(1)
    cupy.cuda.Device().synchronize()


# --------------------------------------------------------------------------------------------- the whole


OpenWorker = Callable[[], AbstractContextManager[GpuWorker]]
OpenPool = Callable[[Arch, int, Path], AbstractContextManager[Compiles]]


def open_first_gpu() -> GpuWorker:
    """A fresh process on the first GPU, so that no search profits from what another has prepared.

    Raises:
        SgemmTuneError: there is no usable GPU.
    """
    return open_worker(0)


def open_pool(arch: Arch, jobs: int, cache: Path) -> CompilePool:
    """Compiler processes over a cache in the folder `cache`."""
    return CompilePool(arch, jobs, BinaryCache(cache))


def measure(
    request: Request,
    *,
    worker: OpenWorker = open_first_gpu,
    pool: OpenPool = open_pool,
    peer: Callable[[PeerJob], Peer] = run_peer,
) -> dict[str, Any]:
    """All parts, as one object.

    Args:
        request: what to measure.
        worker, pool, peer: stand-ins for a GPU, its compiler and Kernel Tuner.

    Raises:
        SgemmTuneError: there is no usable GPU, or a search failed.
    """
    every = suited(stages_from(None, Precision.FP32)[1], request.problem)
    parts = [
        (EMPTY, every, "all", request.sampler),
        (FILLED, every, "all", request.sampler),
        (ONE_STAGE, (request.stage,), "one", request.sampler),
    ]
    runs: list[Run] = []
    compiled: list[set[Code]] = []
    with worker() as gpu:
        info = gpu.info
    arch = parse_arch(info.arch)
    alike = launchable(request.stage)
    if alike.legal(arch):
        parts += [(name, (alike,), "peer", "random") for name in (AS_PEER, SAME_DRAWS)]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for number, (name, stages, cache, sampler) in enumerate(parts):
            print(f"{name} ...", file=sys.stderr, flush=True)
            settings = SearchSettings(
                trials=request.trials,
                sampler=sampler,
                seed=request.seed,
                jobs=request.jobs,
                policy=Policy(seed=request.seed),
                configs_dir=root / str(number) / "configs",
                results_dir=root / str(number) / "results",
            )
            with pool(arch, request.jobs, root / f"{cache}-cubins") as compiler:
                compiler.start()  # as the command does: while the GPU is opened
                with worker() as gpu:
                    run, new = run_search(
                        name,
                        problem=request.problem,
                        stages=stages,
                        arch=arch,
                        worker=gpu,
                        pool=compiler,
                        settings=settings,
                    )
            runs.append(run)
            compiled.append(new)
            said = f"{run.validated} of {run.trials} validated in {run.seconds:.1f} s"
            print(f"{said}, {run.validated_per_second:.2f} / s", file=sys.stderr, flush=True)
        print(f"{PEER} ...", file=sys.stderr, flush=True)
        scratch = root / "peer"
        scratch.mkdir()
        found = peer(
            PeerJob(
                problem=request.problem,
                stage=request.stage.name(),
                arch=info.arch,
                seconds=request.peer_seconds,
                seed=request.seed,
                scratch=scratch,
            )
        )
    return document(request, info, runs, len(compiled[0] & compiled[1]), found)


def document(
    request: Request, info: DeviceInfo, runs: Sequence[Run], second_recompiled: int, peer: Peer
) -> dict[str, Any]:
    """Everything that was measured, for a script.

    `ratio` is the third run's rate / Kernel Tuner's, `ratio_same_job` the fourth's; None where Kernel Tuner
    did not run to its end. The fourth run and the fifth are missing where it can launch none of the stage's
    configurations: `ratio_same_job` and `same_draws_compiled` are None then.
    """
    _, filled, one, *drawn = runs
    rate = peer.timed_per_second if not peer.why else None
    return {
        "device": info.name,
        "sms": info.sms,
        "arch": info.arch,
        "driver": info.driver,
        "nvrtc": info.nvrtc,
        "shape": request.problem.shape,
        "trials": request.trials,
        "jobs": request.jobs,
        "sampler": request.sampler,
        "seed": request.seed,
        "stage": request.stage.name(),
        "runs": [asdict(run) for run in runs],
        "second_compiled": filled.compiled,
        "second_recompiled": second_recompiled,
        "same_draws_compiled": drawn[1].compiled if drawn else None,
        "peer": {"tool": PEER, "time_limit": request.peer_seconds, **asdict(peer)},
        "ratio": one.validated_per_second / rate if rate else None,
        "ratio_same_job": drawn[0].validated_per_second / rate if rate and drawn else None,
    }


def shown(found: Mapping[str, Any]) -> list[str]:
    """The object as lines of Markdown."""
    columns = (
        "search",
        "trials",
        "validated",
        "early cut",
        "failed",
        "s",
        "validated / s",
        "GPU busy",
        "bookkeeping",
        "compiled",
        "cached",
        "last round, s",
    )
    lines = [
        f"{found['device']}, {found['sms']} SMs, {found['shape']}, {found['jobs']} compiler processes, "
        f"sampler {found['sampler']}, seed {found['seed']}; one stage: {found['stage']}",
        "",
        f"| {' | '.join(columns)} |",
        f"|{'---|' * len(columns)}",
    ]
    for run in found["runs"]:
        failed = ", ".join(f"{count} {status}" for status, count in run["failed"].items()) or "0"
        cells = (
            run["name"],
            run["trials"],
            run["validated"],
            run["early_cut"],
            failed,
            f"{run['seconds']:.1f}",
            f"{run['validated_per_second']:.2f}",
            f"{run['gpu_busy']:.0%}",
            f"{run['bookkeeping']:.0%}",
            run["compiled"],
            run["cached"],
            f"{run['last_round_seconds']:.1f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    peer = found["peer"]
    lines += [
        "",
        f"The second search compiled {found['second_compiled']} kernels, "
        f"{found['second_recompiled']} of them a second time.",
    ]
    if found["same_draws_compiled"] is not None:
        lines.append(f"The same draws again took {found['same_draws_compiled']} compilations.")
    if peer["timed"] is None:
        lines.append(f"{PEER} did not run: {peer['why']}.")
        return lines
    lines.append(
        f"{PEER} {peer['version']}, random_sample, nothing validated: {peer['timed']} of {peer['space']} "
        f"configurations timed, {peer['failed']} failed, in {peer['seconds']:.1f} s: "
        f"{peer['timed_per_second']:.2f} / s ({peer['left_out']} legal ones above 48 KiB of shared memory "
        "left out: it cannot launch them)."
    )
    if peer["why"]:
        lines.append(f"{PEER} did not run to its end, so there is no ratio: {peer['why']}.")
    elif found["ratio"] is not None:
        lines.append(f"The search of {found['stage']} alone is {found['ratio']:.1f} times as fast.")
        if found["ratio_same_job"] is not None:
            lines.append(
                f"Drawing at random from the same, it is {found['ratio_same_job']:.1f} times as fast."
            )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads the command line, measures, prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", type=int, default=4096, help="M = N = K (4096)")
    parser.add_argument("--trials", type=int, default=500, help="of each search (500)")
    parser.add_argument(
        "--jobs",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="compiler processes of the searches (one per core)",
    )
    parser.add_argument("--stage", default="warp_tile", help="of part 3 and Kernel Tuner (warp_tile)")
    parser.add_argument("--peer-seconds", type=float, default=60.0, help="Kernel Tuner's time limit (60)")
    parser.add_argument("--seed", type=int, default=0, help="of samplers and operands (0)")
    parser.add_argument("--sampler", default=DEFAULT_SAMPLER, help=f"of the searches ({DEFAULT_SAMPLER})")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    given = parser.parse_args(arguments)
    try:
        for option in ("trials", "jobs"):
            at_least(f"--{option}", getattr(given, option), 1)
        at_least("--seed", given.seed, 0)
        at_least("--peer-seconds", given.peer_seconds, 0, above=True)
        _, (stage,) = stages_from([given.stage], Precision.FP32)
        problem = Problem.parse_size(given.size)
    except SgemmTuneError as error:
        parser.error(str(error))
    request = Request(
        problem=problem,
        trials=given.trials,
        jobs=given.jobs,
        stage=stage,
        peer_seconds=given.peer_seconds,
        seed=given.seed,
        sampler=given.sampler,
    )
    try:
        found = measure(request)
    except SgemmTuneError as error:
        print(f"throughput: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("throughput: interrupted", file=sys.stderr)
        return 130
    print(json.dumps(found, indent=2) if given.json else "\n".join(shown(found)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
