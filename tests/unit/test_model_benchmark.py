"""The benchmark of the static model, on tables made here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.model import H200, best_of_first, figures, main, predictions, spearman
from sgemm_tune.arch import ARCHS
from sgemm_tune.kernel import Kernel, stage_named
from sgemm_tune.problem import Problem
from sgemm_tune.search.points import point_of
from sgemm_tune.search.prior import prior
from tests.fakes import INFO

SM_90 = ARCHS["sm_90"]
CUBE = Problem(4096, 4096, 4096)


def write_table(path: Path, kernels: list[Kernel], times: list[str]) -> Path:
    names = list(dict.fromkeys(name for kernel in kernels for name in point_of(kernel)))
    lines = [",".join([*names, "time_ms"])]
    for kernel, time in zip(kernels, times, strict=True):
        point = point_of(kernel)
        lines.append(",".join([*(str(point.get(name, "")) for name in names), time]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def kernels() -> list[Kernel]:
    naive, blocks = stage_named("naive"), stage_named("block_tile_2d")
    return [*naive.legal(SM_90), *blocks.legal(SM_90)[:6]]


def test_ranks_are_correlated_with_ties_sharing_one() -> None:
    a = np.array([1.0, 2.0, 3.0, 4.0])
    assert spearman(a, a**5) == pytest.approx(1)
    assert spearman(a, -a) == pytest.approx(-1)
    # ranks 1.5 1.5 3 4 against 1 2 3 4: 4.5 / sqrt(4.5 * 5)
    assert spearman(np.array([1.0, 1.0, 3.0, np.inf]), a) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert spearman(a, np.ones(4)) is None
    assert spearman(a[:1], a[:1]) is None


def test_ties_at_the_last_place_count_both_ways() -> None:
    predicted = np.array([1.0, 2.0, 2.0, 2.0, 3.0])
    measured = np.array([8.0, 5.0, 4.0, 6.0, 2.0])
    assert best_of_first(predicted, measured, 1) == (4, 4)
    assert best_of_first(predicted, measured, 2) == (3, 2)  # the 6, or the 4
    assert best_of_first(predicted, measured, 3) == (2.5, 2)  # 6 and 5, or the 4
    assert best_of_first(predicted, measured, 4) == (2, 2)
    assert best_of_first(predicted, measured, 5) == (1, 1)


def test_failures_take_no_part() -> None:
    found = figures(
        ["a", "a", "b", "b"], np.array([1.0, 2.0, 3.0, 4.0]), np.array([10.0, np.nan, 30.0, 50.0])
    )
    assert {name: part["configurations"] for name, part in found.items() if isinstance(part, dict)} == {
        "all": 3,
        "fastest tenth": 1,
        "a": 1,
        "b": 2,
    }
    assert found["all"] == {
        "configurations": 3,
        "spearman": 1.0,
        "best_of_first": {"4": [1.0, 1.0], "16": [1.0, 1.0], "64": [1.0, 1.0]},
        "predicted_over_measured": 0.1,
    }


def test_predictions_are_what_a_search_starts_from(kernels: list[Kernel]) -> None:
    stages = [stage_named("naive"), stage_named("tma")]
    points = [point_of(kernel) for stage in stages for kernel in stage.legal(SM_90)]
    device = {
        "sms": INFO.sms,
        "mhz": INFO.clock_mhz,
        "l2_bytes": INFO.l2_bytes,
        "gbytes_per_s": INFO.gbytes_per_s,
    }
    assert predictions(points, CUBE, SM_90, device).tolist() == prior(stages, CUBE, SM_90, INFO)


def test_a_table_is_checked_and_searched(
    kernels: list[Kernel],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    points = [point_of(kernel) for kernel in kernels]
    times = [f"{2 * ms:.6f}" for ms in predictions(points, CUBE, SM_90, H200)]
    table = write_table(tmp_path / "table.csv", kernels, [*times[:-1], ""])
    results = tmp_path / "results.csv"
    config = json.dumps(kernels[2].params).replace('"', '""')
    results.write_text(
        "date,precision,m,n,k,stage,config,status,ms,registers\n"
        f'2026-11-30,fp32,1,1,1,block_tile_2d,"{config}",ok,1,255\n',
        encoding="utf-8",
    )
    command = [str(table), "--registers-from", str(results), "--seeds", "2", "--budget", "5"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["without registers"]["all"] == {
        "configurations": len(kernels) - 1,
        "spearman": 1.0,
        "best_of_first": {"4": [1.0, 1.0], "16": [1.0, 1.0], "64": [1.0, 1.0]},
        "predicted_over_measured": 0.5,
    }
    assert found["with registers"]["block_tile_2d"]["spearman"] < 1
    assert (found["search"]["seeds"], found["search"]["max_99"]) == (2, 1)
    assert main([*command, "--without", "naive"]) == 0
    shown = capsys.readouterr().out
    assert "block_tile_2d" in shown
    assert "naive" not in shown


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("BM,time_ms\n8,1\n", [], "there is no column stage"),
        ("stage,BLOCK,time_ms\nnaive,17,1\n", [], "choose one of"),
        ("stage,BLOCK,time_ms\nnone,16,1\n", [], "none"),
        ("stage,BLOCK,time_ms\nnaive,16,1\n", ["--without", "naive"], "no configuration with a time is left"),
        ("stage,BLOCK,time_ms\nnaive,16,1\n", ["--arch", "sm_1"], "sm_1"),
    ],
)
def test_what_is_no_table_of_this_project_is_said_in_one_line(
    text: str, options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="utf-8")
    assert main([str(path), *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
