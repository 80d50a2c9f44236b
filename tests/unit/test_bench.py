"""Measuring what is stored: a configuration file and the ladder, on a scripted GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from sgemm_tune.arch import ARCHS, Arch
from sgemm_tune.bench import bench as bench_module
from sgemm_tune.bench.bench import Bench, bench_file
from sgemm_tune.bench.ladder import LADDER_SIZES, Known, bench_ladder, best_known, known_of
from sgemm_tune.compiler.cache import BinaryCache
from sgemm_tune.compiler.nvrtc import Binary
from sgemm_tune.errors import ConfigFileError
from sgemm_tune.kernel import Kernel, stage_named
from sgemm_tune.measure.outcome import Accuracy, DeviceInfo, Measurement, Outcome, Rejected, Status
from sgemm_tune.measure.protocol import Policy, Request
from sgemm_tune.problem import Problem
from sgemm_tune.store.configs import (
    Entry,
    load_config,
    measured_entry,
    merge_entries,
    merge_predicted,
    predicted_entry,
)
from sgemm_tune.store.results import ResultsFile
from tests.fakes import INFO, InlineWorker, Script, fake_compile

SM_90 = ARCHS["sm_90"]
PROBLEM = Problem.parse_size(512)
NAIVE, COALESCED, TILED = (stage_named(name)() for name in ("naive", "coalesced", "smem_tile"))


class MakeBench(Protocol):
    """What the fixture `make` is."""

    def __call__(self, script: Script, info: DeviceInfo = INFO) -> Bench:
        """A bench on a scripted GPU."""


class ScriptedGpu(InlineWorker):
    """Measures in this process, and remembers what was compared."""

    def __init__(self, script: Script, info: DeviceInfo = INFO) -> None:
        super().__init__(script, info)
        self.compared: list[list[str]] = []

    def compare(self, requests: Sequence[Request]) -> list[Outcome]:
        """As the worker's process does it."""
        self.compared.append([str(request.kernel) for request in requests])
        return super().compare(requests)


@pytest.fixture
def results(tmp_path: Path) -> ResultsFile:
    return ResultsFile(tmp_path / "results.csv")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "configs" / "h100.yaml"


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, results: ResultsFile, tmp_path: Path) -> MakeBench:
    """`make(script)` is a bench on a scripted GPU with a scripted compiler."""

    def made(script: Script, info: DeviceInfo = INFO) -> Bench:
        def compile_it(kernel: Kernel, arch: Arch, cache: BinaryCache | None) -> Binary:
            return fake_compile(script, kernel, arch, cache)

        monkeypatch.setattr(bench_module, "compile_kernel", compile_it)
        return Bench(ScriptedGpu(script, info), results, BinaryCache(tmp_path / "cache"), Policy(seed=3))

    return made


def silent(done: int, total: int, what: str) -> None:
    """Progress that nobody looks at."""
    assert 0 <= done <= total


def measured(ms: float, *, early_cut: bool = False) -> Measurement:
    return Measurement(
        ms, 0.999 * ms, 1.001 * ms, 20, 2.0, 2.0 / ms, Accuracy(1e-7, 1e-5, 1e-7, 1e-7), early_cut
    )


def store(path: Path, kernel: Kernel, ms: float = 1.5, info: DeviceInfo = INFO) -> Entry:
    """Put an entry into the file."""
    entry = measured_entry(PROBLEM, kernel, measured(ms), info, seed=0)
    merge_entries(path, SM_90, [entry])
    return entry


def shortlist(path: Path, *kernels: Kernel) -> None:
    """Put predictions into the file, best first."""
    merge_predicted(
        path,
        SM_90,
        [
            predicted_entry(PROBLEM, kernel, SM_90, rank=rank, predicted_ms=rank, registers=64, nvrtc="12.9")
            for rank, kernel in enumerate(kernels, start=1)
        ],
    )


def test_an_entry_gets_its_fresh_figures_and_a_row(path: Path, make: MakeBench, results: ResultsFile) -> None:
    store(path, NAIVE, ms=1.9)
    [again] = bench_file(make(Script(ms={str(NAIVE): 1.25})), path, silent)
    assert (again.kernel, again.flags, again.failed) == (NAIVE, (), False)
    [entry] = load_config(path).entries
    assert entry.ms == pytest.approx(1.25, rel=1e-3)
    assert entry.vs_cublas == pytest.approx(1.6, rel=1e-2)
    assert entry.provenance.seed == 3
    [line] = results.frame().to_dict("records")
    assert (line["source"], line["status"], line["stage"], line["m"]) == ("bench", "ok", "naive", 512)
    assert line["ms"] == pytest.approx(1.25, rel=1e-3)


def test_a_kernel_that_changed_is_flagged(path: Path, make: MakeBench) -> None:
    stored = store(path, NAIVE)
    stale = stored.model_copy(update={"provenance": replace(stored.provenance, source_hash="0" * 16)})
    merge_entries(path, SM_90, [stale])
    [again] = bench_file(make(Script()), path, silent)
    assert again.flags == ("the kernel changed since it was stored",)
    assert load_config(path).entries[0].provenance.source_hash == stored.provenance.source_hash


def test_another_device_is_flagged_and_measured_but_not_rewritten(
    path: Path, make: MakeBench, results: ResultsFile
) -> None:
    smaller = replace(INFO, name="NVIDIA H100 PCIe", sms=114)
    store(path, NAIVE, info=smaller)
    before = path.read_bytes()
    [again] = bench_file(make(Script()), path, silent)
    assert again.flags == ("stored on NVIDIA H100 PCIe with 114 SMs",)
    assert isinstance(again.outcome, Measurement)
    assert path.read_bytes() == before
    assert list(results.frame()["device"]) == [INFO.name]


def test_another_architecture_is_an_error_and_changes_nothing(
    path: Path, make: MakeBench, results: ResultsFile
) -> None:
    store(path, NAIVE)
    before = path.read_bytes()
    bench = make(Script(), replace(INFO, name="NVIDIA A100", arch="sm_80"))
    with pytest.raises(ConfigFileError, match=r"arch: is sm_90 and this GPU is sm_80.*a100\.yaml"):
        bench_file(bench, path, silent)
    assert path.read_bytes() == before
    assert not results.path.exists()


def test_a_wrong_entry_fails_and_stays_for_whoever_looks_into_it(
    path: Path, make: MakeBench, results: ResultsFile
) -> None:
    store(path, NAIVE)
    before = path.read_bytes()
    [again] = bench_file(make(Script(faults={str(NAIVE): "last_k_skipped"})), path, silent)
    assert again.failed
    assert again.outcome.status is Status.WRONG
    assert path.read_bytes() == before
    [line] = results.frame().to_dict("records")
    assert line["status"] == "wrong"
    assert "row 7, column 9" in line["reason"]


def test_an_entry_that_no_longer_compiles_fails(path: Path, make: MakeBench) -> None:
    store(path, NAIVE)
    [again] = bench_file(make(Script(faults={str(NAIVE): "does_not_compile"})), path, silent)
    assert again.failed
    assert again.outcome.status is Status.COMPILE


def test_the_best_of_a_shortlist_becomes_an_entry_and_the_shortlist_goes(path: Path, make: MakeBench) -> None:
    shortlist(path, NAIVE, COALESCED, TILED)
    script = Script(
        ms={str(NAIVE): 1.9, str(COALESCED): 1.1, str(TILED): 1.0}, faults={str(TILED): "launch_refused"}
    )
    bench = make(script)
    again = bench_file(bench, path, silent)
    assert [one.outcome.status for one in again] == [Status.OK, Status.OK, Status.LAUNCH]
    assert not any(one.failed for one in again), "a prediction may turn out to be unusable"
    config = load_config(path)
    assert config.predicted == []
    [entry] = config.entries
    assert (entry.stage, entry.device) == ("coalesced", INFO.name)
    assert entry.ms == pytest.approx(1.1, rel=1e-3)
    assert len(bench.row_ids) == 3


def test_a_wrong_prediction_fails(path: Path, make: MakeBench) -> None:
    shortlist(path, NAIVE, COALESCED)
    again = bench_file(make(Script(faults={str(NAIVE): "write_past_end"})), path, silent)
    assert [one.failed for one in again] == [True, False]


def test_a_shortlist_of_which_nothing_works_stays(path: Path, make: MakeBench) -> None:
    shortlist(path, NAIVE)
    before = path.read_bytes()
    bench_file(make(Script(faults={str(NAIVE): "launch_refused"})), path, silent)
    assert path.read_bytes() == before


def test_a_prediction_must_beat_the_entry_beyond_the_noise(path: Path, make: MakeBench) -> None:
    store(path, NAIVE, ms=1.5)
    shortlist(path, COALESCED)
    script = Script(ms={str(NAIVE): 1.5, str(COALESCED): 1.499})
    bench_file(make(script), path, silent)
    config = load_config(path)
    assert [entry.stage for entry in config.entries] == ["naive"]
    assert config.predicted == []


def test_contenders_of_one_problem_are_timed_together_and_only_once(path: Path, make: MakeBench) -> None:
    store(path, NAIVE)
    shortlist(path, NAIVE, COALESCED)
    bench = make(Script())
    again = bench_file(bench, path, silent)
    assert len(again) == 3
    assert isinstance(bench.gpu, ScriptedGpu)
    assert bench.gpu.compared == [[str(NAIVE), str(COALESCED)]]


def test_what_breaks_a_rule_is_rejected_and_never_compiled(make: MakeBench, results: ResultsFile) -> None:
    illegal = stage_named("vectorized")(BM=64, BN=64, BK=8, TM=16, TN=16)  # type: ignore[call-arg]
    assert illegal.violations(SM_90)
    bench = make(Script(faults={str(illegal): "compiler_exits"}))
    [outcome] = bench.measure(PROBLEM, [illegal])
    assert isinstance(outcome, Rejected)
    assert outcome.status is Status.RULES
    assert list(results.frame()["status"]) == ["rules"]


def test_the_ladder_takes_the_best_of_the_same_shape_else_of_the_nearest_else_the_default() -> None:
    stage = stage_named("coalesced")
    first, second, third = stage.legal(SM_90)[:3]
    at = {side: Problem.parse_size(side) for side in (256, 1024, 4096)}
    known = [
        Known(first, at[256], 0.02),
        Known(second, at[4096], 30.0),
        Known(third, at[4096], 29.0),
        Known(NAIVE, at[1024], 0.001),
    ]
    assert best_known(stage, at[4096], known) == (third, "4096x4096x4096")
    assert best_known(stage, at[256], known) == (first, "256x256x256")
    assert best_known(stage, Problem.parse_size(300), known) == (first, "256x256x256")
    assert best_known(stage, Problem.parse_size(8192), known) == (third, "4096x4096x4096")
    assert best_known(stage_named("smem_tile"), at[256], known) == (TILED, "")


def test_only_full_measurements_of_this_device_are_known(
    path: Path, make: MakeBench, results: ResultsFile
) -> None:
    make(Script()).measure(PROBLEM, [NAIVE])
    make(Script(faults={str(TILED): "last_k_skipped"})).measure(PROBLEM, [TILED])
    make(Script(), replace(INFO, sms=114)).measure(PROBLEM, [COALESCED])
    text = results.path.read_text(encoding="utf-8")
    stale = text.splitlines()[1].replace("naive", "gone_stage").replace(",", "x,", 1)
    results.path.write_text(text + stale + "\n", encoding="utf-8")
    assert [(one.kernel, one.problem) for one in known_of(results, None, INFO)] == [(NAIVE, PROBLEM)]
    store(path, COALESCED, ms=1.25)
    known = known_of(results, load_config(path), INFO)
    assert [(one.kernel, one.ms) for one in known][1:] == [(COALESCED, 1.25)]


def test_nothing_is_known_where_there_are_no_results(results: ResultsFile) -> None:
    assert known_of(results, None, INFO) == []


def test_the_ladder_measures_each_shape_in_its_own_stages(make: MakeBench, results: ResultsFile) -> None:
    stages = [type(NAIVE), type(COALESCED)]
    asked = {Problem.parse_size(256): stages, Problem.parse_size(512): stages[::-1]}
    seen: list[tuple[int, int, str]] = []
    bench = make(Script())
    rungs = bench_ladder(bench, asked, [], lambda *step: seen.append(step))
    assert [(rung.kernel.name(), rung.problem.m) for rung in rungs] == [
        ("naive", 256),
        ("coalesced", 256),
        ("coalesced", 512),
        ("naive", 512),
    ]
    assert all(rung.tuned_at == "" for rung in rungs)
    assert seen[0] == (0, 4, "naive 256x256x256")
    assert seen[-1] == (4, 4, "")
    frame = results.frame()
    assert list(frame["row_id"]) == bench.row_ids
    assert set(frame["source"]) == {"bench"}


def test_the_ladder_has_the_sizes_of_both_published_tables() -> None:
    assert LADDER_SIZES == (256, 512, 768, 1024, 1280, 1536, 1792, 2048, 4096, 8192)
