"""The command line where there is a GPU: a scripted one in the real worker process."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from sgemm_tune.arch import ARCHS, Arch
from sgemm_tune.bench import bench as bench_module
from sgemm_tune.cli import diagnosis
from sgemm_tune.cli.options import SearchRequest
from sgemm_tune.compiler.cache import BinaryCache
from sgemm_tune.compiler.nvrtc import Binary
from sgemm_tune.compiler.pool import CompilePool
from sgemm_tune.errors import DeviceUnavailable
from sgemm_tune.kernel import Kernel, stage_named
from sgemm_tune.measure.worker import GpuWorker
from sgemm_tune.problem import Problem
from sgemm_tune.store.configs import load_config, merge_predicted, predicted_entry
from sgemm_tune.store.results import ResultsFile
from tests.command_line import Cli
from tests.fakes import Script, compiler, fake_compile, opener

SEARCH = "search --arch sm_90 --size 512 --stage naive --stage coalesced --trials 6 --jobs 1"
NAIVE = stage_named("naive").legal(ARCHS["sm_90"])


def play(monkeypatch: pytest.MonkeyPatch, script: Script) -> None:
    """From here on GPU 0 is a scripted H200, and so is the compiler."""

    def open_scripted(ordinal: int) -> GpuWorker:
        if ordinal:
            raise DeviceUnavailable(f"there is no GPU {ordinal}: this machine shows 1, numbered from 0")
        return GpuWorker(opener(script))

    def compile_it(kernel: Kernel, arch: Arch, cache: BinaryCache | None) -> Binary:
        return fake_compile(script, kernel, arch, cache)

    def compilers(request: SearchRequest, arch: Arch) -> CompilePool:
        return CompilePool(arch, request.jobs, BinaryCache(), compile_fn=compiler(script))

    monkeypatch.setattr("sgemm_tune.cli.gpu.open_worker", open_scripted)
    monkeypatch.setattr("sgemm_tune.cli.bench.open_worker", open_scripted)
    monkeypatch.setattr("sgemm_tune.cli.diagnosis.open_worker", open_scripted)
    monkeypatch.setattr("sgemm_tune.cli.search._compilers", compilers)
    monkeypatch.setattr(bench_module, "compile_kernel", compile_it)


def test_a_search_ends_with_its_best_and_where_it_is_kept(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, Script(faults={str(NAIVE[0]): "last_k_skipped", str(NAIVE[1]): "spills"}))
    ran = cli(f"{SEARCH} --sampler exhaustive --trials 17")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("NVIDIA H200, 132 SMs: searching 17 fp32 configurations of naive, coalesced")
    assert re.search(r"^ best +coalesced\(", ran.out, re.MULTILINE)
    assert re.search(r"^ +cuBLAS +2\.000 .* 1\.000", ran.out, re.MULTILINE)
    assert re.search(r"17 trials in .*; stopped by trials; failed: 1 spill, 1 wrong", ran.out)
    assert "row 7, column 9" in ran.out
    assert "the best is stored in configs/h100.yaml" in ran.out
    [entry] = load_config(here / "configs" / "h100.yaml").entries
    assert (entry.stage, entry.device) == ("coalesced", "NVIDIA H200")
    assert len(ResultsFile(here / "results" / "results.csv").frame()) == 17


def test_the_same_search_resumes_and_as_json_is_one_document(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, Script())
    first = json.loads(cli(f"{SEARCH} --json").out)
    assert (first["mode"], first["arch"], first["device"]["name"]) == ("measured", "sm_90", "NVIDIA H200")
    [result] = first["results"]
    assert (result["trials"], result["new"], result["resumed"], result["stopped"]) == (6, 6, 0, "trials")
    assert result["best"]["ms"] > 0
    assert result["best"]["error"] <= result["best"]["error_bound"]
    assert Path(result["config_file"]).is_file()
    [again] = json.loads(cli(f"{SEARCH} --json").out)["results"]
    assert (again["trials"], again["new"], again["resumed"]) == (6, 0, 6)


def test_where_every_candidate_fails_the_reasons_are_told_and_nothing_is_stored(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, Script(faults={str(kernel): "nothing_written" for kernel in NAIVE}))
    ran = cli("search --arch sm_90 --size 512 --stage naive --jobs 1")
    assert ran.code == 1
    assert f"{len(NAIVE)} wrong" in ran.out
    assert "4096 elements of C were never written" in ran.out
    assert not (here / "configs" / "h100.yaml").exists()


def test_another_architecture_than_the_gpus_is_planned(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, Script())
    ran = cli("search --arch sm_100 --size 64 --stage naive --trials 1")
    assert ran.code == 0
    reason = "this GPU (NVIDIA H200) is sm_90, and sm_100 was asked for"
    assert ran.out.splitlines()[0] == f"cannot measure: {reason}; planning for sm_100 instead"
    assert (here / "configs" / "b200.yaml").is_file()


def shortlist(path: Path) -> None:
    """A plan's two predictions for the naive kernel at 512."""
    predictions = [
        predicted_entry(
            Problem.parse_size(512),
            kernel,
            ARCHS["sm_90"],
            rank=i,
            predicted_ms=i,
            registers=32,
            nvrtc="12.9",
        )
        for i, kernel in enumerate(NAIVE, start=1)
    ]
    merge_predicted(path, ARCHS["sm_90"], predictions)


def test_bench_upgrades_a_shortlist_and_says_what_it_found(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, Script(ms={str(NAIVE[0]): 1.25, str(NAIVE[1]): 1.0}))
    path = here / "configs" / "h100.yaml"
    shortlist(path)
    ran = cli("bench --config configs/h100.yaml")
    assert (ran.code, ran.err) == (0, "")
    assert "Stored configurations, measured again" in ran.out
    assert ran.out.count("predicted") == len(NAIVE)
    config = load_config(path)
    assert config.predicted == []
    assert [entry.params for entry in config.entries] == [NAIVE[1].params]
    document = json.loads(cli("bench --config configs/h100.yaml --json").out)
    assert document["failed"] is False
    [entry] = document["entries"]
    assert (entry["stored_as"], entry["status"], entry["flags"]) == ("entry", "ok", [])
    assert entry["stored_vs_cublas"] == pytest.approx(2.0, rel=1e-2)


def test_bench_fails_where_a_stored_result_is_wrong(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, Script())
    shortlist(here / "configs" / "h100.yaml")
    assert cli("bench --config configs/h100.yaml").code == 0
    stored = load_config(here / "configs" / "h100.yaml").entries[0]
    wrong = str(stage_named(stored.stage).from_params(stored.params))
    before = (here / "configs" / "h100.yaml").read_bytes()
    play(monkeypatch, Script(faults={wrong: "write_past_end"}))
    ran = cli("bench --config configs/h100.yaml")
    assert ran.code == 1
    assert f"{wrong} at 512x512x512: wrong: " in ran.out
    assert "words outside the matrices were overwritten" in ran.out
    assert (here / "configs" / "h100.yaml").read_bytes() == before


def test_bench_refuses_another_architectures_file(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, Script())
    (here / "b200.yaml").write_text("schema: 1\narch: sm_100\nentries: []\npredicted: []\n", encoding="utf-8")
    ran = cli("bench --config b200.yaml")
    assert ran.code == 1
    assert re.fullmatch(r"error: b200\.yaml: arch: is sm_100 and this GPU is sm_90[^\n]*\n", ran.err)
    assert not (here / "results").exists()


def test_the_ladder_prints_both_published_tables(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, Script())
    ran = cli("bench --ladder --size 256 --size 512 --stage naive --stage coalesced")
    assert (ran.code, ran.err) == (0, "")
    assert "GFLOP/s per kernel and size" in ran.out
    assert "The ladder against cuBLAS" in ran.out
    assert "Best per shape" not in ran.out
    document = json.loads(cli("bench --ladder --size 512 --stage naive --json").out)
    [rung] = document["ladder"]
    assert (rung["stage"], rung["shape"], rung["tuned_at"]) == ("naive", "512x512x512", "512x512x512")
    frame = ResultsFile(here / "results" / "results.csv").frame()
    assert list(frame["source"]) == ["bench"] * 5


def test_the_ladder_leaves_out_what_does_not_suit_a_size_unless_it_is_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, Script())
    every = json.loads(cli("bench --ladder --size 64 --size 256 --json").out)["ladder"]
    assert [rung["shape"] for rung in every if rung["stage"] == "skinny"] == ["64x64x64"]
    assert [rung["shape"] for rung in every if rung["stage"] == "tma"] == ["64x64x64", "256x256x256"]
    named = json.loads(cli("bench --ladder --size 256 --stage naive --stage skinny --json").out)["ladder"]
    assert [rung["stage"] for rung in named] == ["naive", "skinny"]


# ---------------------------------------------------------------------------------------------- doctor


def test_the_doctor_finds_a_gpu(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, Script())
    ran = cli("doctor")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[-1] == "can search and measure"
    assert "NVIDIA H200, sm_90, 132 SMs" in ran.out
    assert len(ran.out.splitlines()) <= 24, "a screenful"


def test_without_a_gpu_the_doctor_says_what_is_left(cli: Cli) -> None:
    ran = cli("doctor")
    assert ran.code == 0
    assert ran.out.splitlines()[-1].startswith("can plan, cannot measure: ")
    assert "sm_90a" in ran.out
    document = json.loads(cli("doctor --json").out)
    assert (document["can_plan"], document["can_measure"], document["gpus"]) == (True, False, [])
    assert {finding["check"] for finding in document["findings"]} >= {
        "packages",
        "cupy",
        "NVRTC",
        "GPU",
        "cache",
    }


def test_the_doctor_mends_two_cupys_that_overwrite_each_other(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = diagnosis.installed

    def both(name: str) -> str | None:
        return "14.0" if name in ("cupy-cuda12x", "cupy-cuda13x") else known(name)

    monkeypatch.setattr(diagnosis, "installed", both)
    ran = cli("doctor")
    assert ran.code == 1
    shown = " ".join(ran.out.split())  # wherever the terminal broke its lines
    assert "several that overwrite each other: cupy-cuda12x 14.0, cupy-cuda13x 14.0" in shown
    # with `-m pip`, or with `-m pip --python ...` where this environment has no pip of its own
    assert re.search(r"-m pip (--python \S+ )?uninstall -y cupy-cuda12x cupy-cuda13x && ", shown)


def test_the_doctor_names_the_command_for_what_is_missing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"pandas", "nvidia-ml-py"}
    known = diagnosis.installed
    monkeypatch.setattr(diagnosis, "installed", lambda name: None if name in missing else known(name))
    ran = cli("doctor")
    assert ran.code == 1
    shown = " ".join(ran.out.split())
    for name in missing:
        assert re.search(rf"-m pip (--python \S+ )?install {name}", shown)
    assert ran.out.splitlines()[-1] == "cannot plan: packages: missing pandas"


def test_the_doctor_knows_that_the_quick_starts_environment_has_no_pip(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "installed", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    shown = " ".join(cli("doctor").out.split())
    assert f"python3 -m pip --python {sys.executable} install " in shown


def test_the_doctor_reports_a_cache_that_cannot_be_written(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "taken").write_text("", encoding="utf-8")
    monkeypatch.setenv("SGEMM_TUNE_CACHE", str(here / "taken"))
    ran = cli("doctor")
    assert ran.code == 0
    assert "cannot be written: compiles are not kept" in ran.out
    assert "export SGEMM_TUNE_CACHE=" in ran.out
