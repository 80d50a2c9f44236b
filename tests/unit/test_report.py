"""The report: right figures, never mixed, holes where nothing was measured, pictures that are pictures."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sgemm_tune.arch import ARCHS
from sgemm_tune.errors import SgemmTuneError
from sgemm_tune.kernel import Kernel
from sgemm_tune.measure.outcome import DeviceInfo, Origin, Rejected, Status
from sgemm_tune.problem import Precision, Problem
from sgemm_tune.report.plots import round_sizes, spread, three_digits
from sgemm_tune.report.report import HOLE, Report, Section, Table, build_report
from sgemm_tune.store.results import ResultsFile, Row, predicted_row, row
from tests.stored import H200, Lower, Tensor, Upper, measurement, own_stages

H100 = replace(H200, name="NVIDIA H100 PCIe", sms=114)

Build = Callable[[list[Row]], Report]


@pytest.fixture(autouse=True)
def _stages() -> Iterator[None]:
    with own_stages():
        yield


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def stored(rows: list[Row]) -> Report:
        table = ResultsFile(tmp_path / "results.csv")
        table.append(rows)
        return build_report(table.frame())

    return stored


def timed(
    kernel: Kernel,
    shape: int | str,
    ms: float,
    cublas_ms: float = 1.0,
    *,
    info: DeviceInfo = H200,
    origin: Origin = Origin.BENCH,
    date: str = "2025-11-29T00:00:00+00:00",
    early_cut: bool = False,
) -> Row:
    problem = Problem.parse_size(shape) if isinstance(shape, int) else Problem.parse_shape(shape)
    outcome = measurement(ms, cublas_ms, early_cut=early_cut)
    made = row(problem, kernel.precision, kernel, outcome, info, origin=origin, seed=1)
    return {**made, "date": date}


def table(section: Section, name: str) -> Table:
    return next(table for table in section.tables if table.name == name)


def rows(section: Section, name: str) -> list[dict[str, Any]]:
    """The figures of a table."""
    records: Any = table(section, name).frame.to_dict("records")
    return list(records)


def test_gflops_by_kernel_and_size(build: Build) -> None:
    (section,) = build(
        [
            timed(Lower(), 256, 0.5, 0.25),
            timed(Lower(), 2048, 4.0, 2.0),
            timed(Upper(), 256, 0.25, 0.27),
            timed(Lower(), 300, 0.1),
            timed(Lower(), "256x256x512", 0.1),
        ]
    ).sections
    found = table(section, "ladder_small")
    assert found.columns == ["precision", "kernel", "256", "2048"]
    assert found.numeric == [False, False, True, True]
    assert found.rows() == [
        ["fp32", "lower", "67.1", "4295"],
        ["fp32", "upper", "134", HOLE],
        ["fp32", "cuBLAS", "129", "8590"],
    ]


def test_the_ladder_against_cublas(build: Build) -> None:
    (section,) = build([timed(Upper(), 4096, 4.0, 3.0), timed(Lower(), 4096, 8.0, 3.1)]).sections
    found = table(section, "ladder_large")
    assert found.columns[:8] == [
        *("precision", "stage", "size", "ms", "TFLOP/s", "cuBLAS ms", "cuBLAS TFLOP/s", "% of cuBLAS")
    ]
    assert found.rows() == [
        ["fp32", "lower", "4096", "8", "17.18", "3.1", "44.34", "38.8", "bench"],
        ["fp32", "upper", "4096", "4", "34.36", "3", "45.81", "75.0", "bench"],
    ]


def test_tf32_is_also_held_against_strict_cublas_of_the_same_command(build: Build) -> None:
    (section,) = build(
        [
            timed(Tensor(), 4096, 1.0, 0.5),
            timed(Tensor(), 2048, 0.2, 0.1),
            timed(Tensor(), 1024, 0.1, 0.1),
            timed(Lower(), 4096, 8.0, 3.0),
            timed(Lower(), 1024, 8.0, 3.0, origin=Origin.SEARCH),
        ]
    ).sections
    found = {(line["stage"], line["size"]): line for line in rows(section, "ladder_large")}
    assert found["tensor", 4096]["% of cuBLAS"] == 50
    assert found["tensor", 4096]["% of cuBLAS fp32"] == 300
    assert table(section, "ladder_large").rows()[-2][8] == HOLE, "no fp32 stage was measured at 2048"
    for stage, size in (("tensor", 2048), ("tensor", 1024), ("lower", 4096)):
        assert math.isnan(found[stage, size]["% of cuBLAS fp32"])


def test_the_ladder_prefers_bench_over_search(build: Build) -> None:
    (section,) = build(
        [
            timed(Lower(BM=16), 4096, 5.0, origin=Origin.SEARCH),
            timed(Lower(BM=32, BN=32), 4096, 6.0),
            timed(Lower(BM=32, BN=64), 4096, 7.0),
            timed(Upper(), 4096, 2.0, origin=Origin.SEARCH),
        ]
    ).sections
    assert [(line["stage"], line["ms"], line["source"]) for line in rows(section, "ladder_large")] == [
        ("lower", 6.0, "bench"),
        ("upper", 2.0, "search"),
    ]


def test_steps_compare_at_4096_or_the_largest_common_size(build: Build) -> None:
    lower = [timed(Lower(), 8192, 60.0), timed(Lower(), 4096, 8.0)]
    upper = [timed(Upper(), 8192, 1.0), timed(Upper(), 4096, 4.0)]
    (section,) = build([*upper, *lower]).sections
    (step,) = rows(section, "steps")
    assert (step["from"], step["to"], step["size"], step["factor"]) == ("lower", "upper", 4096, 2.0)
    assert table(section, "steps").rows()[0][-3:] == ["17.18", "34.36", "×2.00"]


def test_steps_without_4096(build: Build) -> None:
    lower = [timed(Lower(), 512, 1.0), timed(Lower(), 1024, 1.0)]
    upper = [timed(Upper(), 1024, 0.8), timed(Upper(), 2048, 9.0)]
    (section,) = build([*upper, *lower]).sections
    (step,) = rows(section, "steps")
    assert (step["size"], step["factor"]) == (1024, pytest.approx(1.25))


def test_no_step_crosses_precisions_or_missing_sizes(build: Build) -> None:
    (section,) = build(
        [timed(Upper(), 4096, 4.0), timed(Tensor(), 4096, 1.0), timed(Lower(), 2048, 1.0)]
    ).sections
    assert [found.name for found in section.tables] == ["ladder_small", "ladder_large", "best"]


def test_the_best_per_shape(build: Build) -> None:
    (section,) = build(
        [
            timed(Lower(BM=16, BN=16), 4096, 4.0, 3.0),
            timed(Lower(BM=16, BN=32), 4096, 3.0, 2.7, origin=Origin.SEARCH, date="2025-12-01"),
            timed(Upper(), 4096, 1.0, early_cut=True),
            timed(Upper(), "64x32x16", 0.01, 0.02),
            timed(Tensor(), 4096, 1.0),
            row(Problem.parse_size(64), Precision.FP32, Upper(), Rejected(Status.WRONG, "off"), H200,
                origin=Origin.SEARCH, seed=1),
        ]
    ).sections  # fmt: skip
    exact = ["1.2e-06", "8.1e-06", "no"]
    cube = "4096x4096x4096"
    assert table(section, "best").rows() == [
        ["fp32", "64x32x16", "upper", "TM=4", "0.01", "0.01", "200.0", *exact, "bench", "2025-11-29"],
        ["fp32", cube, "lower", "BM=16 BN=32", "3", "45.81", "90.0", *exact, "search", "2025-12-01"],
        ["tf32", cube, "tensor", "WARPS=1", "1", "137.44", "100.0", *exact, "bench", "2025-11-29"],
    ]


def test_measuring_again_is_no_second_chance(build: Build) -> None:
    (section,) = build(
        [
            timed(Lower(), 4096, 3.9, date="2025-11-01T00:00:00+00:00"),
            timed(Lower(), 4096, 4.1, date="2025-11-02T00:00:00+00:00"),
            timed(Upper(), 4096, 4.0, date="2025-11-01T00:00:00+00:00"),
            timed(Upper(), 4096, 3.0, date="2025-11-01T00:00:00+00:00", origin=Origin.SEARCH),
            timed(Upper(), 4096, 4.05, date="2025-11-03T00:00:00+00:00"),
        ]
    ).sections
    ladder = [(line["stage"], line["ms"]) for line in rows(section, "ladder_large")]
    assert ladder == [("lower", 4.1), ("upper", 4.05)]
    assert [(line["stage"], line["ms"]) for line in rows(section, "best")] == [("upper", 4.05)]


def test_devices_and_predictions_have_sections_of_their_own(build: Build) -> None:
    b200 = ARCHS["sm_100"]
    plan = [
        predicted_row(Problem.parse_size(4096), Precision.FP32, kernel, b200, ms, nvrtc="12.9")
        for kernel, ms in ((Upper(TM=4), 0.002), (Upper(TM=8), 0.001))
    ]
    spills = Rejected(Status.SPILL, "x")
    plan.append(predicted_row(Problem.parse_size(64), Precision.FP32, Lower(), b200, spills, nvrtc="12.9"))
    report = build([timed(Lower(), 4096, 8.0), timed(Lower(), 4096, 9.0, info=H100), *plan])
    titles = [section.title for section in report.sections]
    assert titles == [
        "NVIDIA H100 PCIe (114 SMs)",
        "NVIDIA H200 (132 SMs)",
        "NVIDIA B200 (148 SMs): predicted, never run",
    ]
    assert [rows(section, "best")[0]["ms"] for section in report.sections[:2]] == [9.0, 8.0]
    shown = table(report.sections[2], "predicted").rows()
    assert [(line[2], line[4], line[5], line[7]) for line in shown] == [
        ("1", "TM=8", "0.001", "predicted"),
        ("2", "TM=4", "0.002", "predicted"),
    ]
    measured = "".join(found.markdown() for section in report.sections[:2] for found in section.tables)
    assert "upper" not in measured
    assert "0.001" not in measured


def test_a_stage_that_is_gone_comes_last(build: Build) -> None:
    gone = {**timed(Upper(), 4096, 1.0), "stage": "ancient"}
    (section,) = build([gone, timed(Upper(), 4096, 2.0), timed(Lower(), 4096, 3.0)]).sections
    assert [line["stage"] for line in rows(section, "ladder_large")] == ["lower", "upper", "ancient"]


@pytest.mark.parametrize("failures", [0, 3])
def test_nothing_to_report_says_what_to_do(tmp_path: Path, failures: int) -> None:
    results = ResultsFile(tmp_path / "results.csv")
    why = Rejected(Status.WRONG, "off")
    results.append(
        row(Problem.parse_size(64), Precision.FP32, Lower(), why, H200, origin=Origin.SEARCH, seed=i)
        for i in range(failures)
    )
    tried = "no rows" if failures == 0 else "3 rows, none of them ok"
    with pytest.raises(SgemmTuneError, match=f"nothing to report \\({tried}\\): run `sgemm-tune search`"):
        build_report(results.frame())


def test_early_cuts_alone_are_nothing_to_report(build: Build) -> None:
    with pytest.raises(SgemmTuneError, match="nothing to report"):
        build([timed(Lower(), 4096, 1.0, early_cut=True)])


def test_an_older_table_without_counts_and_dates(tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text(
        "device,precision,m,n,k,stage,config,status,ms,tflops,source\n"
        "NVIDIA H200,fp32,4096,4096,4096,lower,not json,ok,8.0,17.2,bench\n"
    )
    report = build_report(ResultsFile(tmp_path / "results.csv").frame())
    assert report.sections[0].title == "NVIDIA H200"
    assert table(report.sections[0], "best").rows()[0][3:7] == ["not json", "8", "17.20", HOLE]
    assert len(report.write(tmp_path / "out")) == 5


def test_what_is_written(build: Build, tmp_path: Path) -> None:
    report = build([timed(Lower(), 4096, 8.0), timed(Upper(), 4096, 4.0), timed(Tensor(), 512, 4.0)])
    out = tmp_path / "new" / "out"
    paths = report.write(out)
    names = "report.md ladder.png steps.png ladder_small.csv ladder_large.csv steps.csv best.csv"
    assert paths == [out / name for name in names.split()]
    assert sorted(paths) == sorted(out.iterdir())
    text = paths[0].read_text(encoding="utf-8")
    assert text.startswith("# sgemm-tune: report\n\nRows on 2025-11-29 (UTC).")
    assert "](ladder.png)" in text
    assert "| fp32 | lower | upper | 4096 | 17.18 | 34.36 | ×2.00 |" in text
    for picture in paths[1:3]:
        assert picture.read_bytes().startswith(b"\x89PNG\r\n")
        assert picture.stat().st_size > 10_000
    with (out / "steps.csv").open(encoding="utf-8", newline="") as file:
        (step,) = csv.DictReader(file)
    assert (step["device"], step["sms"], step["from"], step["factor"]) == ("NVIDIA H200", "132", "lower", "2")
    assert report.write(out) == paths, "written anew"


def test_predictions_alone_have_no_pictures(build: Build, tmp_path: Path) -> None:
    made = predicted_row(Problem.parse_size(64), Precision.FP32, Lower(), ARCHS["sm_100"], 0.5, nvrtc="12.9")
    paths = build([made]).write(tmp_path / "out")
    assert [path.name for path in paths] == ["report.md", "predicted.csv"]
    assert "](" not in paths[0].read_text(encoding="utf-8")


def test_markdown_survives_odd_text(build: Build) -> None:
    (section,) = build([{**timed(Lower(), 4096, 8.0), "config": "a|b"}]).sections
    assert "a\\|b" in table(section, "best").markdown()


def test_labels_keep_their_distance_and_order() -> None:
    heights = [0.5, 0.01, 0.02, 0.52, 0.0, 0.9]
    places = spread(heights, 0.05)
    ordered = sorted(range(len(heights)), key=lambda i: heights[i])
    gaps = [places[b] - places[a] for a, b in itertools.pairwise(ordered)]
    assert min(gaps) >= 0.05 - 1e-12
    assert min(places) >= 0
    assert places[5] == 0.9, "one that has room stays"
    assert places[0] == pytest.approx(0.485)
    assert spread([], 0.05) == []


@pytest.mark.parametrize(
    ("rate", "text"), [(0.5164, "0.516"), (18, "18.0"), (99.97, "100"), (1130.2, "1130")]
)
def test_rates_have_three_digits(rate: float, text: str) -> None:
    assert three_digits(rate) == text


def test_the_picture_leaves_out_sizes_off_every_tile_where_there_are_others() -> None:
    import pandas as pd

    both = pd.DataFrame({"size": [1023, 1024, 4096, 4097]})
    assert round_sizes(both)["size"].tolist() == [1024, 4096]
    ragged = pd.DataFrame({"size": [1023, 4097]})
    assert round_sizes(ragged)["size"].tolist() == [1023, 4097]
