"""The throughput benchmark on a scripted GPU and a scripted Kernel Tuner."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from benchmarks import throughput
from benchmarks.throughput import (
    AS_PEER,
    EMPTY,
    FILLED,
    ONE_STAGE,
    SAME_DRAWS,
    Peer,
    PeerJob,
    PeerSpace,
    Request,
    WatchedPool,
    document,
    figures,
    launchable,
    main,
    measure,
    peer_arguments,
    peer_params,
    peer_source,
    run_peer,
    shown,
    takes_more,
    within_peer_limit,
)
from sgemm_tune.arch import Arch, parse_arch
from sgemm_tune.compiler.sources import source_text
from sgemm_tune.errors import UsageError
from sgemm_tune.kernel import Code, ladder, stage_named, tune
from sgemm_tune.measure.outcome import Accuracy, Measurement, Outcome, Rejected, Status
from sgemm_tune.problem import Precision, Problem
from sgemm_tune.search.finalists import Verdict
from sgemm_tune.search.types import SearchResult, Stop
from tests.fakes import INFO, CachingPool, InlineWorker, Script, kernels_of

SM_90 = parse_arch("sm_90")
FP32 = [stage for stage in ladder() if stage.precision is Precision.FP32]
LEGAL = sum(len(stage.legal(SM_90)) for stage in FP32 if stage.name() != "skinny")  # it is no shape for it
MEASURED = Measurement(1.0, 1.0, 1.0, 10, 2.0, 2.0, Accuracy(0.0, 1.0, 0.0, 0.0))
TRIALS = 12
ABSENT = Peer(space=1, left_out=0, why="not installed")


def result(**changed: Any) -> SearchResult:
    """A search of 12 s, of which the last round took 4."""
    values: dict[str, Any] = {
        "problem": Problem(64, 64, 64),
        "study": "study",
        "stopped": Stop.TRIALS,
        "verdict": Verdict(kernel=None, measurement=None, tied=(), finalists=(), kept=False),
        "failures": {},
        "done": 5,
        "new": 5,
        "resumed": 0,
        "path": None,
        "seconds": 12.0,
        "search_seconds": 8.0,
        "gpu_busy": 0.75,
        "bookkeeping": 0.125,
        "compiled": 4,
    }
    return SearchResult(**values | changed)


def request_of(stage: str = "vectorized", **changed: Any) -> Request:
    values: dict[str, Any] = {
        "problem": Problem(256, 256, 256),
        "trials": TRIALS,
        "jobs": 2,
        "stage": stage_named(stage),
        "peer_seconds": 5.0,
        "seed": 3,
        "sampler": "random",
    }
    return Request(**values | changed)


def measured(
    request: Request,
    script: Script | None = None,
    peer: Callable[[PeerJob], Peer] | None = None,
    forgets: bool = False,
) -> dict[str, Any]:
    """The benchmark on a scripted GPU; `forgets`: no cache is kept between searches."""
    caches: dict[Path, set[Code]] = {}
    what = script or Script()

    @contextlib.contextmanager
    def worker() -> Iterator[Any]:
        yield InlineWorker(what)

    @contextlib.contextmanager
    def pool(arch: Arch, _: int, folder: Path) -> Iterator[CachingPool]:
        yield CachingPool(what, arch, set() if forgets else caches.setdefault(folder, set()))

    return measure(request, worker=worker, pool=pool, peer=peer or (lambda _: ABSENT))


# ------------------------------------------------------------------------------------------ our searches


def test_the_figures_of_a_search() -> None:
    outcomes: list[Outcome] = [MEASURED, MEASURED, replace(MEASURED, early_cut=True)]
    outcomes += [Rejected(Status.SPILL, ""), Rejected(Status.WRONG, ""), Rejected(Status.SPILL, "")]
    run = figures("some", 99, result(), outcomes, elapsed=14.0)
    assert (run.trials, run.validated, run.early_cut) == (6, 3, 1)
    assert run.failed == {"spill": 2, "wrong": 1}
    assert (run.setup_seconds, run.search_seconds, run.seconds) == (2.0, 8.0, 10.0)
    assert run.last_round_seconds == 4.0
    assert run.validated_per_second == pytest.approx(0.3)
    assert (run.compiled, run.cached) == (4, 2)
    assert (run.gpu_busy, run.bookkeeping, run.legal) == (0.75, 0.125, 99)
    assert (run.best, run.best_ms) == (None, None)


def test_the_winner_is_named() -> None:
    kernel = kernels_of("coalesced")[0]
    verdict = Verdict(kernel=kernel, measurement=MEASURED, tied=(), finalists=(), kept=False)
    run = figures("some", 1, result(verdict=verdict), [MEASURED], elapsed=12.0)
    assert (run.best, run.best_ms) == (str(kernel), 1.0)


@pytest.fixture(scope="module")
def seen() -> list[PeerJob]:
    """What Kernel Tuner was asked for by `found`."""
    return []


@pytest.fixture(scope="module")
def found(seen: list[PeerJob]) -> dict[str, Any]:
    """All of it for the stage vectorized, Kernel Tuner not being there."""

    def peer(job: PeerJob) -> Peer:
        assert not any(job.scratch.iterdir())
        seen.append(job)
        return ABSENT

    return measured(request_of(), peer=peer)


def test_five_searches_of_the_same_budget(found: dict[str, Any]) -> None:
    assert [run["name"] for run in found["runs"]] == [EMPTY, FILLED, ONE_STAGE, AS_PEER, SAME_DRAWS]
    assert [run["trials"] for run in found["runs"]] == [TRIALS] * 5
    of_stage = kernels_of("vectorized")
    legal = [LEGAL, LEGAL, len(of_stage), *[len(within_peer_limit(of_stage))] * 2]
    assert [run["legal"] for run in found["runs"]] == legal
    assert all(run["best"] for run in found["runs"])
    for run in found["runs"]:
        assert run["validated_per_second"] == pytest.approx(run["validated"] / run["seconds"])
        assert run["seconds"] == pytest.approx(run["setup_seconds"] + run["search_seconds"])
    assert (found["device"], found["shape"], found["seed"]) == ("NVIDIA H200", "256x256x256", 3)


def test_searches_compile_what_no_earlier_one_of_their_cache_has_compiled(found: dict[str, Any]) -> None:
    first, second, third, fourth, again = found["runs"]
    assert (first["compiled"], first["cached"]) == (TRIALS, 0)
    assert (second["compiled"], second["cached"]) == (0, TRIALS)
    assert (third["compiled"], third["cached"]) == (fourth["compiled"], fourth["cached"]) == (TRIALS, 0)
    assert (again["compiled"], again["cached"]) == (0, TRIALS)
    assert (found["second_compiled"], found["second_recompiled"], found["same_draws_compiled"]) == (0, 0, 0)


def test_kernel_tuner_gets_the_same_stage_and_a_folder_of_its_own(
    found: dict[str, Any], seen: list[PeerJob]
) -> None:
    (job,) = seen
    assert (job.stage, job.arch, job.seconds, job.seed) == (found["stage"], "sm_90", 5.0, 3)
    assert not job.scratch.exists()


def test_the_table_names_the_device_and_has_a_row_for_each_search(found: dict[str, Any]) -> None:
    lines = shown(found)
    assert lines[0].startswith("NVIDIA H200, 132 SMs, 256x256x256, 2 compiler processes")
    rows = [line for line in lines if line.startswith("| ")]
    names = [row.split(" | ", maxsplit=1)[0] for row in rows]
    assert names == [f"| {name}" for name in ("search", EMPTY, FILLED, ONE_STAGE, AS_PEER, SAME_DRAWS)]
    assert len({row.count("|") for row in rows}) == 1
    assert lines[-1] == "Kernel Tuner did not run: not installed."


def test_what_was_compiled_is_told_by_code() -> None:
    """Two configurations that share a cubin are one compilation, whichever of them cost it."""

    @dataclass(frozen=True)
    class Launched(stage_named("coalesced")):  # type: ignore[misc]
        """With a tunable that is a launch argument."""

        LATE: int = tune(0, 1, at_launch=True)

    one, other = Launched(LATE=0), Launched(LATE=1)
    runs = []
    for first, second in ((one, other), (other, one)):
        pool = CachingPool(Script(), SM_90, set())
        watched = WatchedPool(pool)
        assert not watched.submit(first).result().cached
        assert watched.submit(second).result().cached
        runs.append(watched.new)
    assert runs == [{one.code}, {one.code}]
    watched = WatchedPool(CachingPool(Script({str(one): "does_not_compile"}), SM_90, set()))
    assert watched.submit(one).exception() is not None
    assert watched.new == {one.code}


def test_a_stage_that_the_gpu_cannot_run_is_said_to_be() -> None:
    def pool(arch: Arch, _: int, __: Path) -> contextlib.AbstractContextManager[CachingPool]:
        return contextlib.nullcontext(CachingPool(Script(), arch, set()))

    def worker() -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext(InlineWorker(Script(), replace(INFO, arch="sm_86")))

    with pytest.raises(UsageError, match="no stage for 256x256x256 has a legal configuration on sm_86"):
        measure(request_of("tma"), worker=worker, pool=pool, peer=lambda _: ABSENT)


def test_a_cache_that_forgets_shows() -> None:
    found = measured(request_of(), forgets=True)
    assert (found["second_compiled"], found["second_recompiled"]) == (TRIALS, TRIALS)
    assert found["same_draws_compiled"] == TRIALS


def test_failures_are_counted_by_status_and_a_smaller_space_is_searched_as_a_whole() -> None:
    kernels = kernels_of("coalesced")
    faults = {str(kernels[0]): "spills", str(kernels[1]): "half_unwritten", str(kernels[2]): "spills"}
    found = measured(request_of("coalesced", trials=20), Script(faults))
    assert found["runs"][2]["failed"] == {"spill": 2, "wrong": 1}
    assert (found["runs"][2]["legal"], found["runs"][2]["trials"]) == (15, 15)
    assert found["runs"][2]["validated"] == 12


# ------------------------------------------------------------------------------------------ Kernel Tuner


def document_of(peer: Peer, runs: int = 5) -> dict[str, Any]:
    """Runs of 0.1, 0.2, 0.3, ... validated configurations a second beside `peer`."""
    searched = [figures("some", 99, result(), [MEASURED] * n, elapsed=14.0) for n in range(1, runs + 1)]
    return document(request_of(), INFO, searched, 0, peer)


def test_the_ratios_are_those_of_the_third_and_fourth_search() -> None:
    timed = Peer(space=9, left_out=2, version="1.5.0", timed=1, failed=1, seconds=20.0, timed_per_second=0.05)
    found = document_of(timed)
    assert (found["ratio"], found["ratio_same_job"]) == pytest.approx((6.0, 8.0))
    text = "\n".join(shown(found))
    assert "1 of 9 configurations timed, 1 failed, in 20.0 s: 0.05 / s (2 legal ones above 48 KiB" in text
    assert "The search of vectorized alone is 6.0 times as fast." in text
    assert "Drawing at random from the same, it is 8.0 times as fast." in text


def test_a_stage_that_kernel_tuner_cannot_launch_has_no_search_of_its_own() -> None:
    timed = Peer(space=0, left_out=2, version="1.5.0", timed=1, failed=0, seconds=20.0, timed_per_second=0.05)
    found = document_of(timed, runs=3)
    assert (found["ratio"], found["ratio_same_job"]) == (pytest.approx(6.0), None)
    assert found["same_draws_compiled"] is None
    assert "at random" not in "\n".join(shown(found))


def test_the_fourth_search_has_what_kernel_tuner_can_launch() -> None:
    stage = stage_named("warp_tile")
    fit = launchable(stage).legal(SM_90)
    assert [kernel.params for kernel in fit] == [
        kernel.params for kernel in within_peer_limit(stage.legal(SM_90))
    ]
    assert {kernel.name() for kernel in fit} == {"warp_tile"}


@pytest.mark.parametrize("timed", [None, 0, 5])
def test_a_kernel_tuner_that_did_not_get_to_its_end_gives_no_ratio(timed: int | None) -> None:
    rate = None if timed is None else timed / 2.0
    ended = Peer(
        9, 2, version="1.5.0", timed=timed, failed=0, seconds=2.0, timed_per_second=rate, why="it broke"
    )
    found = document_of(ended)
    assert (found["ratio"], found["ratio_same_job"]) == (None, None)
    text = "\n".join(shown(found))
    assert "it broke" in text
    assert "times as fast" not in text
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("stage", ["coalesced", "vectorized", "warp_tile"])
@pytest.mark.parametrize("problem", [Problem(256, 256, 256), Problem(1000, 77, 513)], ids=str)
def test_kernel_tuner_launches_what_a_search_launches(stage: str, problem: Problem) -> None:
    kernels = kernels_of(stage)
    space = PeerSpace(kernels, problem)
    for kernel in kernels:
        params = peer_params(kernel)
        assert space.legal(params)
        assert space.grid(params) == (kernel.grid(problem), 1, 1)
        assert space.smem_bytes(params) == kernel.smem_bytes
        assert params.pop("block_size_x") == kernel.threads
        given = {f"-D{name}={value}" for name, value in params.items()}
        assert given >= set(kernel.defines)
        assert len(given) == len(kernel.params), "what a search gives at the launch is defined as well"


def test_kernel_tuner_chooses_from_exactly_the_legal_configurations() -> None:
    kernels = kernels_of("vectorized")
    space = PeerSpace(kernels, Problem(256, 256, 256))
    names = list(space.tune_params)
    product = itertools.product(*space.tune_params.values())
    every = [dict(zip(names, values, strict=True)) for values in product]
    chosen = [params for params in every if space.legal(params)]
    assert len(every) > len(chosen) == len(kernels)
    assert all(peer_params(kernel) in chosen for kernel in kernels)


def test_what_kernel_tuner_cannot_launch_is_left_out() -> None:
    kernels = kernels_of("warp_tile")
    fit = within_peer_limit(kernels)
    assert 0 < len(fit) < len(kernels)
    assert max(kernel.smem_bytes for kernel in fit) <= 49152
    assert min(kernel.smem_bytes for kernel in set(kernels) - set(fit)) > 49152


def test_the_arguments_are_those_of_the_signature() -> None:
    problem = Problem(4, 5, 6, alpha=0.5, beta=0.25, lda=7, ldb=9, ldc=8)
    text = peer_source(stage_named("warp_tile"))
    signature = text.split("sgemm(int M", 1)[1].split(")", 1)[0]
    kinds = [word.split()[0] if "*" not in word else "pointer" for word in f"int M{signature}".split(",")]
    given = peer_arguments(problem, 0)
    names = {np.int32: "int", np.float32: "float", np.ndarray: "pointer"}
    assert [names[type(value)] for value in given] == kinds
    scalars = [value for value in given if not isinstance(value, np.ndarray)]
    assert scalars == [4, 5, 6, 0.5, 7, 9, 0.25, 8]
    arrays = [value for value in given if isinstance(value, np.ndarray)]
    assert [array.size for array in arrays] == [4 * 7, 6 * 9, 4 * 8]
    assert {array.dtype for array in arrays} == {np.dtype(np.float32)}


def test_what_a_search_gives_at_the_launch_is_a_constant_of_kernel_tuners_source() -> None:
    stage = stage_named("warp_tile")
    before, after = source_text(stage.source).text, peer_source(stage)
    assert before.count("int group") == 1
    assert "int ldc, int group) {\n" in before
    assert after == before.replace(
        "int ldc, int group) {\n", "int ldc) {\n    constexpr int group = TUNE_GROUP;\n"
    )


def test_several_launch_arguments_become_constants_in_their_order() -> None:
    """The source takes more of its own before them, which is no matter here."""
    after = peer_source(stage_named("tma"))
    signature = after.split("\nsgemm(", 1)[1].split(")", 1)[0]
    assert "int stages" not in signature
    assert "int stream_k" not in signature
    constants = "    constexpr int stages = TUNE_STAGES;\n    constexpr int stream_k = TUNE_STREAM_K;\n"
    assert after.split("\nsgemm(", 1)[1].split(") {\n", 1)[1].startswith(constants)


@pytest.mark.parametrize("stage", ["naive", "vectorized", "async_copy"])
def test_a_source_without_launch_arguments_is_given_as_it_is(stage: str) -> None:
    assert peer_source(stage_named(stage)) == source_text(stage_named(stage).source).text


def test_a_source_that_does_not_take_its_launch_arguments_last_is_refused() -> None:
    @dataclass(frozen=True)
    class Launched(stage_named("vectorized")):  # type: ignore[misc]
        """With a tunable that its source knows nothing of."""

        LATE: int = tune(0, 1, at_launch=True)

    @dataclass(frozen=True)
    class Longer(stage_named("warp_tile")):  # type: ignore[misc]
        """With one more than its source takes."""

        LATE: int = tune(0, 1, at_launch=True)

    with pytest.raises(ValueError, match=r"vectorized\.cu: sgemm should end in late"):
        peer_source(Launched)
    with pytest.raises(ValueError, match=r"warp_tile\.cu: sgemm should end in group, late"):
        peer_source(Longer)


@pytest.fixture
def job(tmp_path: Path) -> PeerJob:
    return PeerJob(Problem(256, 256, 256), "double_buffer", "sm_90", 5.0, 0, tmp_path)


def install(
    monkeypatch: pytest.MonkeyPatch, tune_kernel: Callable[..., tuple[list[dict[str, Any]], dict[str, Any]]]
) -> None:
    """Put a stand-in where Kernel Tuner would be."""
    module = types.ModuleType("kernel_tuner")
    module.tune_kernel = tune_kernel  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kernel_tuner", module)
    monkeypatch.setattr(throughput, "_make_context", lambda: None)
    monkeypatch.setattr(throughput, "_mend_uuids", lambda: None)
    monkeypatch.setattr("importlib.metadata.version", lambda _: "1.5.0")


@pytest.mark.parametrize("stage", ["double_buffer", "warp_tile"])
def test_kernel_tuner_is_asked_for_the_stage_and_its_timed_configurations_are_counted(
    monkeypatch: pytest.MonkeyPatch, job: PeerJob, stage: str
) -> None:
    asked: dict[str, Any] = {}
    kernels = within_peer_limit(kernels_of(stage))

    def tune_kernel(
        name: str, source: str, grid: Any, arguments: Any, space: Any, **options: Any
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        asked.update(options, name=name, source=source, space=space, arguments=arguments)
        results: list[dict[str, Any]] = []
        for number, kernel in enumerate(kernels[:7]):
            params: dict[str, Any] = dict(peer_params(kernel))
            assert options["restrictions"](params)
            assert grid(params) == (kernel.grid(job.problem), 1, 1)
            assert options["smem_args"]["size"](params) == kernel.smem_bytes
            if number == 3:
                results.append({**params, "__error__": "RuntimeFailedConfig"})
                continue
            params["time"] = 2.0 - 0.1 * number
            options["metrics"]["noted"](params)
            results.append(params)
        return results, {}

    install(monkeypatch, tune_kernel)
    found = throughput._tune(replace(job, stage=stage))
    assert (found.timed, found.failed, found.why, found.version) == (6, 1, "", "1.5.0")
    assert found.best_ms == pytest.approx(1.4)
    assert (found.space, found.space + found.left_out) == (len(kernels), len(kernels_of(stage)))
    assert found.seconds is not None
    assert found.timed_per_second == pytest.approx(6 / found.seconds)
    assert found.startup_seconds is not None
    assert 0 <= found.startup_seconds <= found.seconds
    assert asked["name"] == "sgemm"
    assert asked["source"] == peer_source(stage_named(stage))
    assert asked["lang"] == "CUPY"
    assert asked["strategy_options"] == {"fraction": 1.0, "time_limit": 5.0}
    assert {"answer", "verify", "iterations", "cache"}.isdisjoint(asked)
    assert set(asked["space"]) == set(peer_params(kernels[0]))
    include = next(option for option in asked["compiler_options"] if option.startswith("-I"))
    assert (Path(include[2:]) / "common" / "tile.cuh").is_file()
    assert "lambda" not in inspect.getsource(asked["restrictions"])  # Kernel Tuner would take it for the rule


def test_a_kernel_tuner_that_breaks_off_says_why_and_what_it_had_timed(
    monkeypatch: pytest.MonkeyPatch, job: PeerJob
) -> None:
    def tune_kernel(*_: Any, **options: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        options["metrics"]["noted"]({"time": 1.0})
        raise RuntimeError("invalid argument\nat line 3")

    install(monkeypatch, tune_kernel)
    found = throughput._tune(job)
    assert (found.timed, found.why) == (1, "RuntimeError: invalid argument at line 3")


def test_a_uuid_that_cupy_cut_off_at_its_first_zero_is_long_enough_for_kernel_tuner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = types.ModuleType("cupy.cuda")
    cuda.runtime = types.SimpleNamespace(  # type: ignore[attr-defined]
        getDeviceProperties=lambda device: {"name": b"GPU %d" % device, "uuid": bytes(range(1, 12))}
    )
    monkeypatch.setitem(sys.modules, "cupy", types.ModuleType("cupy"))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    throughput._mend_uuids()
    found = cuda.runtime.getDeviceProperties(3)
    assert found == {"name": b"GPU 3", "uuid": bytes(range(1, 12)) + bytes(5)}
    assert UUID(bytes=found["uuid"]).bytes == found["uuid"]


def test_a_kernel_tuner_that_is_not_installed_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch, job: PeerJob
) -> None:
    monkeypatch.setitem(sys.modules, "kernel_tuner", None)
    found = run_peer(job)
    assert found.why == "not installed: pip install kernel_tuner"
    assert {found.timed, found.failed, found.seconds, found.timed_per_second, found.version} == {None}
    assert found.space + found.left_out == len(kernels_of("double_buffer"))


def test_a_stage_that_takes_more_than_matrices_is_none_for_kernel_tuner(
    monkeypatch: pytest.MonkeyPatch, job: PeerJob
) -> None:
    assert [stage.name() for stage in FP32 if takes_more(stage())] == ["tma", "skinny"]
    install(monkeypatch, lambda *_, **__: pytest.fail("it was run"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: True)
    found = run_peer(replace(job, stage="skinny"))
    assert (found.timed, found.why) == (None, "skinny takes arguments that it cannot be given")


# ----------------------------------------------------------------------------------------- command line


def test_without_a_gpu_it_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["--size", "256", "--json"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = [line for line in err.splitlines() if not line.endswith(" ...")]
    assert line.startswith("throughput: ")


@pytest.mark.parametrize(
    "wrong",
    [
        "--size 0",
        "--trials 0",
        "--jobs 0",
        "--seed -1",
        "--peer-seconds 0",
        "--stage none",
        "--stage tf32_mma",
    ],
)
def test_a_wrong_request_is_refused_before_the_gpu_is_opened(
    wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(throughput, "measure", lambda _: pytest.fail("it began"))
    with pytest.raises(SystemExit, match="2"):
        main(wrong.split())
    assert wrong.split(maxsplit=1)[0].removeprefix("--") in capsys.readouterr().err
