"""Suites: the shipped file, what a broken one is told, which goals are reached, what is shown and written."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sgemm_tune.arch import ARCHS, Arch
from sgemm_tune.bench import bench as bench_module
from sgemm_tune.bench.bench import Bench
from sgemm_tune.bench.suite import Goal, GroupResult, SuiteResult, SuiteRow, bench_suite
from sgemm_tune.bench.suite_file import Suite, find_suite, load_suite, shipped_suites
from sgemm_tune.compiler.cache import BinaryCache
from sgemm_tune.compiler.nvrtc import Binary
from sgemm_tune.errors import ConfigFileError, UnknownName
from sgemm_tune.kernel import Kernel, stage_named
from sgemm_tune.measure.cublaslt import CublasLtTime
from sgemm_tune.measure.outcome import Accuracy, Measurement, Outcome, Rejected, Status
from sgemm_tune.measure.protocol import Policy
from sgemm_tune.measure.worker import GpuWorker
from sgemm_tune.problem import Precision, Problem
from sgemm_tune.report.suite import COLUMNS, conclusion, group_table, write_suite
from sgemm_tune.store.configs import load_config, measured_entry, merge_entries
from sgemm_tune.store.results import ResultsFile
from tests.command_line import Cli
from tests.fakes import INFO, FakeAlgorithm, InlineWorker, Script, fake_compile, opener

SM_90 = ARCHS["sm_90"]
NAIVE, COALESCED = (stage_named(name)() for name in ("naive", "coalesced"))
SQUARE, TALL, WIDE = (Problem.parse_shape(text) for text in ("512x512x512", "900x512x512", "64x8192x512"))
SMALL = """\
precision: fp32
minimum: 1.0
groups:
- name: squares
  goal: 1.5
  shapes: [512x512x512]
- name: others
  goal: 1
  geometric_mean: 1.4
  shapes:
  - 900x512x512
  - 64x8192x512
"""


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return load_suite(path)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The naive kernel is stored for the square, another one for the wide shape."""
    path = tmp_path / "configs" / "h100.yaml"
    store(path, SQUARE, NAIVE)
    store(path, WIDE, COALESCED)
    return path


def measured(vs_cublas: float) -> Measurement:
    ms = 2.0 / vs_cublas
    return Measurement(ms, ms, ms, 20, 2.0, vs_cublas, Accuracy(1e-7, 1e-5, 1e-7, 1e-7))


def store(path: Path, problem: Problem, kernel: Kernel, device: str = INFO.name) -> None:
    info = replace(INFO, name=device)
    merge_entries(path, SM_90, [measured_entry(problem, kernel, measured(1.0), info, seed=0)])


# ---------------------------------------------------------------------------------------------- the file


def test_the_shipped_suite_has_the_goals_of_every_shape() -> None:
    assert shipped_suites() == ["fp32"]
    found = find_suite("fp32")
    assert (found.name, found.precision, found.minimum) == ("fp32", Precision.FP32, 1.0)
    squares, [ragged] = found.groups[:-1], found.groups[-1:]
    goals = {shape: group.goal for group in squares for shape in group.shapes}
    assert goals == {
        Problem.parse_size(size).shape: goal
        for goal, sizes in (
            (1.15, (4096, 8192)),
            (1.10, (2048, 6144, 16384)),
            (1.25, (1536, 3072, 5120)),
            (1.20, (256, 512, 768, 1024, 1280, 1792)),
        )
        for size in sizes
    }
    assert all(group.geometric_mean is None for group in squares)
    assert (ragged.goal, ragged.geometric_mean, len(ragged.shapes)) == (1.0, 1.2, 40)


def test_the_shipped_suite_has_every_kind_of_rectangle() -> None:
    ragged = find_suite("fp32").groups[-1].problems
    sides = {(p.m, p.n, p.k) for p in ragged}
    assert {(side, side, side) for side in (1000, 1023, 4095, 4097)} <= sides
    assert {(1, 4096, 4096), (4096, 1, 4096), (128, 128, 65536), (16384, 16384, 256)} <= sides
    assert sum(p.m >= 8 * p.n for p in ragged) >= 5, "tall"
    assert sum(p.n >= 8 * p.m for p in ragged) >= 5, "wide"
    assert sum(p.k >= 8 * max(p.m, p.n) for p in ragged) >= 5, "deep K"
    assert sum(p.k <= max(p.m, p.n) // 16 for p in ragged) >= 3, "shallow K"


def test_the_wheel_carries_the_suites() -> None:
    import tomllib

    root = Path(__file__).resolve().parents[2]
    build = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"]["packages"] == ["sgemm_tune"], "with every file below it"
    assert (root / "sgemm_tune" / "bench" / "suites" / "fp32.yaml").is_file()


BROKEN = {
    "unknown key": (
        "  goal: 1.5",
        "  gaol: 1.5",
        r":5: groups\[0\]\.gaol: is no known key: did you mean 'goal'",
    ),
    "unknown key on top": ("minimum", "maximum", r":2: maximum: is no known key: did you mean 'minimum'"),
    "missing key": ("  goal: 1.5\n", "", r":4: groups\[0\]\.goal: is missing: add it"),
    "text for a number": (
        "goal: 1.5",
        "goal: fast",
        r":5: groups\[0\]\.goal: must be a number \(found \"fast\"\)",
    ),
    "no goal": ("goal: 1.5", "goal: 0", r"groups\[0\]\.goal: must be greater than 0.*\(found 0\)"),
    "a bare size": ("[512x512x512]", "[512]", r":6: groups\[0\]\.shapes\[0\]: must be text \(found 512\)"),
    "no shape": (
        "[512x512x512]",
        "[512x512]",
        r":6: groups\[0\]\.shapes\[0\]: shape is '512x512': give MxNxK",
    ),
    "no list": ("[512x512x512]", "512x512x512", r"groups\[0\]\.shapes: must be a list"),
    "empty list": ("[512x512x512]", "[]", r"groups\[0\]\.shapes: must not be empty"),
    "precision": ("precision: fp32", "precision: fp8", r":1: precision: must be .*\(found \"fp8\"\)"),
    "repeated shape": (
        "900x512x512",
        "512x512x512",
        r":11: .*shapes\[0\]: repeats 512x512x512 of line 6: keep one",
    ),
    "repeated name": ("name: others", "name: squares", r":7: groups\[1\]\.name: repeats 'squares' of line 4"),
    "no mapping": (
        SMALL,
        "- 1\n",
        r":1: file: the file must be a mapping with precision, minimum and groups",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_told_in_one_line(case: str, tmp_path: Path) -> None:
    old, new, said = BROKEN[case]
    assert old in SMALL
    path = tmp_path / "broken.yaml"
    path.write_text(SMALL.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ConfigFileError, match=said) as found:
        find_suite(str(path))
    assert "\n" not in str(found.value)
    assert str(found.value).startswith(f"{path}:")


def test_an_unknown_suite_names_the_known_ones() -> None:
    with pytest.raises(UnknownName, match=r"unknown suite 'fp16': choose one of fp32, a file .*\.yaml"):
        find_suite("fp16")


# ----------------------------------------------------------------------------------------------- goals


def result(*ratios: float | None, wanted: float | None = 1.2) -> SuiteResult:
    """One group with a goal of 1.1 for every shape."""
    outcomes: list[Outcome] = [
        Rejected(Status.WRONG, "last k skipped") if ratio is None else measured(ratio) for ratio in ratios
    ]
    rows = tuple(
        SuiteRow(Problem(64 + i, 64, 64), NAIVE, Problem(64, 64, 64), outcome, None, 1.1)
        for i, outcome in enumerate(outcomes)
    )
    return SuiteResult("mine", INFO, Precision.FP32, (GroupResult("all", rows, wanted),), 1.0)


def test_a_goal_is_reached_at_its_value_and_not_below() -> None:
    assert Goal("it", 1.1, 1.1).reached
    assert not Goal("it", 1.1, 1.0999).reached
    assert not Goal("it", 1.1, None).reached


def test_a_group_has_a_geometric_mean_and_a_minimum() -> None:
    [group] = result(0.9, 1.6, 1.2).groups
    assert group.geometric_mean == pytest.approx(math.prod((0.9, 1.6, 1.2)) ** (1 / 3))
    assert group.minimum == 0.9
    assert group.goal == Goal("all", 1.2, group.geometric_mean)


def test_every_shape_group_and_the_whole_count_as_goals() -> None:
    found = result(0.9, 1.6, 1.2)
    assert [goal.reached for goal in found.goals] == [False, True, True, True, False]
    assert [goal.wanted for goal in found.goals] == [1.1, 1.1, 1.1, 1.2, 1.0]
    assert [goal.reached for goal in result(1.1, 1.6, wanted=None).goals] == [True, True, True]
    assert not found.failed


def test_a_shape_without_a_time_reaches_nothing_that_depends_on_it() -> None:
    found = result(1.6, None)
    assert found.failed
    assert [goal.reached for goal in found.goals] == [True, False, False, False]
    assert found.groups[0].geometric_mean is None
    assert conclusion(found)[0].startswith("minimum of all 2 shapes: 1.600 at 64x64x64, 1 without a time;")
    assert conclusion(result(None))[1] == "0 of 3 goals reached"


# ----------------------------------------------------------------------------------------- measuring it


@pytest.fixture
def run(
    tmp_path: Path, suite: Suite, config: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Script], SuiteResult]:
    def measure(script: Script) -> SuiteResult:
        def compile_it(kernel: Kernel, arch: Arch, cache: BinaryCache | None) -> Binary:
            return fake_compile(script, kernel, arch, cache)

        monkeypatch.setattr(bench_module, "compile_kernel", compile_it)
        results = ResultsFile(tmp_path / "results.csv")
        bench = Bench(InlineWorker(script), results, BinaryCache(tmp_path / "cache"), Policy(seed=3))
        steps: list[tuple[int, int, str]] = []
        found = bench_suite(bench, suite, load_config(config), lambda *step: steps.append(step))
        assert steps[0] == (0, 3, "fp32 512x512x512")
        assert steps[-1] == (3, 3, "")
        return found

    return measure


def test_each_shape_is_measured_in_its_own_configuration_or_the_nearest_shapes(
    run: Callable[[Script], SuiteResult], config: Path, tmp_path: Path
) -> None:
    before = config.read_bytes()
    found = run(Script(ms={str(NAIVE): 1.25, str(COALESCED): 1.6}))
    assert [(row.problem, row.kernel, row.borrowed) for row in found.rows] == [
        (SQUARE, NAIVE, False),
        (TALL, NAIVE, True),
        (WIDE, COALESCED, False),
    ]
    assert [row.tuned_at for row in found.rows] == [SQUARE, SQUARE, WIDE]
    assert [row.ratio for row in found.rows] == pytest.approx([1.6, 1.6, 1.25])
    assert [goal.reached for goal in found.goals] == [True, True, True, True, True]
    assert not found.failed
    rows = ResultsFile(tmp_path / "results.csv").frame()
    assert list(rows["source"]) == ["bench"] * 3
    assert list(rows["m"]) == [512, 900, 64]
    assert config.read_bytes() == before


def test_no_configuration_is_borrowed_that_does_not_suit_the_shape(
    run: Callable[[Script], SuiteResult], config: Path
) -> None:
    skinny = stage_named("skinny")()
    store(config, Problem(900, 512, 500), skinny)
    assert [(row.kernel, row.tuned_at) for row in run(Script()).rows][:2] == [(NAIVE, SQUARE)] * 2
    store(config, SQUARE, skinny)  # its own, whatever it suits
    own, borrowed, _ = run(Script()).rows
    assert (own.kernel, own.tuned_at) == (skinny, SQUARE)
    assert (borrowed.kernel, borrowed.tuned_at) == (COALESCED, WIDE)


def test_the_best_of_cublaslt_is_measured_beside_it(run: Callable[[Script], SuiteResult]) -> None:
    heuristics = (FakeAlgorithm(1.9), FakeAlgorithm(1.5))
    found = run(Script(ms={str(NAIVE): 1.25, str(COALESCED): 1.6}, heuristics=heuristics))
    theirs = [row.cublaslt for row in found.rows]
    assert all(isinstance(one, CublasLtTime) and one.rank == 1 for one in theirs)
    assert [one.vs_cublaslt for one in theirs if isinstance(one, CublasLtTime)] == pytest.approx(
        [1.2, 1.2, 0.9375]
    )


def test_a_wrong_configuration_fails_and_is_set_beside_nothing(run: Callable[[Script], SuiteResult]) -> None:
    found = run(Script(faults={str(COALESCED): "last_k_skipped"}))
    assert found.failed
    assert [row.cublaslt is None for row in found.rows] == [False, False, True]


def test_a_device_of_which_nothing_is_stored_is_told_to_search(tmp_path: Path, suite: Suite) -> None:
    path = tmp_path / "other.yaml"
    store(path, SQUARE, NAIVE, device="NVIDIA H100 PCIe")
    bench = Bench(InlineWorker(Script()), ResultsFile(tmp_path / "r.csv"), BinaryCache(tmp_path), Policy())
    with pytest.raises(
        ConfigFileError, match=r"no fp32 configuration is stored for NVIDIA H200 with 132 SMs"
    ):
        bench_suite(bench, suite, load_config(path), lambda *_: None)


# ---------------------------------------------------------------------------------------------- report


def test_a_group_is_shown_with_its_mean_and_minimum() -> None:
    [group] = result(0.9, 1.6, None).groups
    table = group_table(group)
    assert tuple(table.columns) == COLUMNS
    assert table.caption == "Goal: 1.10 for every shape, 1.20 for the geometric mean."
    by_shape = {cells[0]: dict(zip(COLUMNS, cells, strict=True)) for cells in table.rows()}
    assert by_shape["64x64x64"]["of cuBLAS"] == "0.900"
    assert by_shape["64x64x64"]["origin"] == "own"
    assert by_shape["65x64x64"]["origin"] == "borrowed from 64x64x64"
    assert [by_shape[f"{m}x64x64"]["reached"] for m in (64, 65, 66)] == ["no", "yes", "no (wrong)"]
    assert (by_shape["geometric mean"]["of cuBLAS"], by_shape["geometric mean"]["reached"]) == ("–", "no")
    assert list(by_shape)[-1] == "minimum"


def test_the_report_has_every_figure(run: Callable[[Script], SuiteResult], tmp_path: Path) -> None:
    found = run(Script(ms={str(NAIVE): 1.25, str(COALESCED): 2.5}))
    markdown, table = write_suite(found, tmp_path / "report")
    assert (markdown.name, table.name) == ("suite_small.md", "suite_small.csv")
    with table.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["shape"] for line in lines] == [problem.shape for problem in (SQUARE, TALL, WIDE)]
    assert [line["group"] for line in lines] == ["squares", "others", "others"]
    assert [float(line["of cuBLAS"]) for line in lines] == pytest.approx([1.6, 1.6, 0.8])
    assert [float(line["of cublasLt"]) for line in lines] == pytest.approx([1.44, 1.44, 0.72])
    text = markdown.read_text(encoding="utf-8")
    assert text.startswith("# sgemm-tune: suite small\n\nNVIDIA H200 (132 SMs), ")
    assert "- minimum of all 3 shapes: 0.800 at 64x8192x512; goal 1.00: not reached" in text
    assert "- 2 of 5 goals reached" in text
    assert "### squares" in text
    assert "| geometric mean |" in text


def scripted(monkeypatch: pytest.MonkeyPatch, script: Script) -> None:
    """GPU 0 is a scripted H200 in the real worker process, and so is the compiler."""

    def compile_it(kernel: Kernel, arch: Arch, cache: BinaryCache | None) -> Binary:
        return fake_compile(script, kernel, arch, cache)

    monkeypatch.setattr("sgemm_tune.cli.bench.open_worker", lambda ordinal: GpuWorker(opener(script)))
    monkeypatch.setattr(bench_module, "compile_kernel", compile_it)


def test_one_command_measures_prints_and_writes(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, Script(ms={str(NAIVE): 1.25, str(COALESCED): 1.6}))
    (here / "small.yaml").write_text(SMALL, encoding="utf-8")
    store(here / "configs" / "h100.yaml", SQUARE, NAIVE)
    ran = cli("bench --suite small.yaml")
    assert (ran.code, ran.err) == (0, "")
    assert "NVIDIA H200, sm_90, 132 SMs, fp32\nSuite small" in ran.out
    assert ran.out.count("borrowed from 512x512x512") == 2
    shown = ran.out.splitlines()
    assert shown[-2] == "5 of 5 goals reached"
    assert shown[-1] == "written: results/report/suite_small.md, results/report/suite_small.csv"
    assert (here / "results" / "report" / "suite_small.md").is_file()
    document = json.loads(cli("bench --suite small.yaml --config configs/h100.yaml --json").out)
    assert (document["suite"], document["goals_reached"], document["failed"]) == ("small", 5, False)
    [square] = document["groups"][0]["shapes"]
    assert (square["shape"], square["borrowed_from"], square["reached"]) == (SQUARE.shape, None, True)
    assert square["cublaslt"]["proposed"] == 1
    assert len(ResultsFile(here / "results" / "results.csv").frame()) == 6


def test_a_wrong_result_is_said_and_fails(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, Script(faults={str(COALESCED): "write_past_end"}, heuristics=()))
    (here / "small.yaml").write_text(SMALL, encoding="utf-8")
    store(here / "configs" / "h100.yaml", SQUARE, NAIVE)
    store(here / "configs" / "h100.yaml", WIDE, COALESCED)
    ran = cli("bench --suite small.yaml")
    assert ran.code == 1
    assert f"{COALESCED} at 64x8192x512: wrong: " in ran.out
    assert "cublasLt at 512x512x512: launch: cublasLt proposes no fp32 algorithm" in ran.out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("bench --suite fp32 --ladder", "--suite and --ladder are measured one at a time"),
        ("bench --suite fp32 --size 512", "--size and --stage restrict the ladder"),
        ("bench --suite fp16", "unknown suite 'fp16': choose one of fp32"),
    ],
)
def test_a_suite_stands_alone(line: str, said: str, cli: Cli) -> None:
    ran = cli(line)
    assert ran.code == 2
    assert ran.err.startswith(f"error: {said}")
