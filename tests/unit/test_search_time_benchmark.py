"""The benchmark of a search's time from start to end, on searches that are made up."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks import search_time
from benchmarks.command import searched
from benchmarks.replay import Table
from benchmarks.search_time import Run, document, main, measure, shown
from sgemm_tune.problem import Problem
from sgemm_tune.search.space import Space

SMALL, LARGE, WIDE = Problem(8, 8, 8), Problem(64, 64, 64), Problem(64, 8, 16)
DEVICE = {"name": "NVIDIA H200", "sms": 132, "driver": "580", "nvrtc": "13.0"}
TIMES = {1: 4.0, 2: 2.0, 3: 2.019, 4: math.nan}
TABLE = Table("made.csv", Space.of([{"stage": "one", "BX": bx} for bx in TIMES]), tuple(TIMES.values()))


def result_of(problem: Problem, bx: int | None = 2) -> dict[str, Any]:
    best = None
    if bx is not None:
        best = {"stage": "one", "params": {"BX": bx}, "ms": 2.5, "vs_cublas": 1.5, "tflops": 9.0}
    counted = {"trials": 3, "compiled": 2, "search_seconds": 1.0, "gpu_busy": 0.5}
    return {"shape": problem.shape, "best": best, "tied": [], **counted}


def row_of(problem: Problem, bx: int, second: int) -> dict[str, str]:
    sides = {"m": str(problem.m), "n": str(problem.n), "k": str(problem.k)}
    date = datetime.fromtimestamp(second, UTC).isoformat()
    return {"date": date, "precision": "fp32", **sides, "stage": "one", "config": json.dumps({"BX": bx})}


def run_of(
    *problems: Problem, seconds: float, bx: int | None = 2, rows: Sequence[dict[str, str]] = ()
) -> Run:
    told = {"device": DEVICE, "results": [result_of(problem, bx) for problem in problems]}
    return Run(problems, 1000.25, seconds, told, tuple(rows) or (row_of(problems[0], 1, 1001),))


def test_medians_of_all_together_are_told_beside_the_slowest_alone() -> None:
    runs = [run_of(SMALL, seconds=s) for s in (1.0, 9.0, 2.0)]
    runs += [run_of(LARGE, seconds=s) for s in (4.0, 5.0, 3.0)]
    runs += [run_of(SMALL, LARGE, seconds=s) for s in (7.0, 5.0, 6.0)]
    found = document(runs)
    assert found["alone_s"] == {"8x8x8": 2.0, "64x64x64": 4.0}
    assert (found["slowest_alone"], found["together_s"], found["ratio"]) == ("64x64x64", 6.0, 1.5)
    assert (found["device"], found["sms"], len(found["runs"])) == ("NVIDIA H200", 132, 9)
    assert "all in one command: 6.0 s, 1.50 times 64x64x64 alone" in shown(found)
    assert json.loads(json.dumps(found)) == found


def test_one_problem_has_no_ratio() -> None:
    found = document([run_of(LARGE, seconds=4.0)])
    assert (found["together_s"], found["ratio"], "table" in found) == (None, None, False)
    assert not any("in one command" in line for line in shown(found))


def test_a_winner_is_looked_up_in_the_table_and_so_is_who_came_close_first() -> None:
    rows = (
        row_of(SMALL, 2, 1001),  # of another problem
        row_of(LARGE, 4, 1001),  # failed there
        row_of(LARGE, 1, 1002),
        row_of(LARGE, 2, 1007),
        row_of(LARGE, 3, 1005),  # 0.95 % behind
    )
    found = document(
        [run_of(SMALL, LARGE, seconds=9.0, bx=3, rows=rows), run_of(LARGE, seconds=9.0)], (LARGE, TABLE)
    )
    table = found["table"]
    assert (table["configurations"], table["failed"], table["fastest_ms"]) == (4, 1, 2.0)
    first, second = table["found"]
    assert (first["ms"], first["table_ms"], first["behind"]) == (2.5, 2.019, 0.0095)
    assert first["close_after_s"] == pytest.approx(1005 + 1 - 1000.25, abs=0.051)
    assert (second["behind"], second["close_after_s"]) == (0.0, None)
    text = "\n".join(shown(found))
    assert "there 0.95 % behind; one within 1 % after at most 6 s" in text
    assert "there 0.00 % behind; none was close" in text


@pytest.mark.parametrize("bx", [None, 4, 77])
def test_no_winner_and_one_that_the_table_does_not_time_are_not_placed(bx: int | None) -> None:
    (one,) = document([run_of(LARGE, seconds=9.0, bx=bx)], (LARGE, TABLE))["table"]["found"]
    assert (one["behind"], one["table_ms"]) == (None, None)


def test_every_run_begins_in_an_empty_folder_and_all_take_turns() -> None:
    asked: list[tuple[Problem, ...]] = []

    def search(problems: Sequence[Problem], folder: Path) -> dict[str, Any]:
        assert not any(folder.iterdir())
        asked.append(tuple(problems))
        (folder / "results").mkdir()
        rows = [row_of(problem, 2, 1001) | {"status": "ok", "ms": "2.0"} for problem in problems]
        with (folder / "results" / "results.csv").open("w", encoding="utf-8", newline="") as file:
            out = csv.DictWriter(file, rows[0])
            out.writeheader()
            out.writerows(rows)
        return {"device": DEVICE, "results": [result_of(problem) for problem in problems]}

    found = measure([SMALL, WIDE], 2, search=search)
    assert asked == [(SMALL,), (WIDE,), (SMALL, WIDE)] * 2
    assert [run["shapes"] for run in found["runs"]] == [[p.shape for p in each] for each in asked]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Problem]]:
    """What `measure` is asked for by the command line."""
    asked: list[Sequence[Problem]] = []

    def note(problems: Sequence[Problem], repeat: int, table: object) -> dict[str, Any]:
        asked.append(problems)
        return document([run_of(*problems[:1], seconds=1.0)])

    monkeypatch.setattr(search_time, "measure", note)
    return asked


def test_sizes_and_shapes_are_problems(
    measured: list[Sequence[Problem]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--size", "8", "--shape", "64x8x16", "--size", "64", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["device"] == "NVIDIA H200"
    assert main([]) == 0
    assert measured == [(SMALL, LARGE, WIDE), (Problem(4096, 4096, 4096),)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--size 0", "size is 0"),
        ("--shape 3x4", "shape is '3x4'"),
        ("--repeat 0", "--repeat must be at least 1, not 0"),
        ("--table absent.csv", "No such file"),
    ],
)
def test_a_wrong_request_is_said_in_one_line(
    measured: list[Sequence[Problem]], arguments: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not measured


def test_a_table_of_what_is_not_searched_is_an_error(
    tmp_path: Path, measured: list[Sequence[Problem]], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "table.csv").write_text("stage,BX,time_ms\none,1,2\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["--size", "8", "--table", str(tmp_path / "table.csv")])
    assert "--table is of 4096x4096x4096, which is not searched" in capsys.readouterr().err
    assert not measured


def test_a_plan_is_no_search(tmp_path: Path) -> None:
    """On an architecture that no GPU here has, and on a machine without one."""
    with pytest.raises(SystemExit, match="no GPU to measure on"):
        searched(
            *("--arch", "sm_80", "--size", "64", "--stage", "naive", "--trials", "1", "--jobs", "1"),
            folder=tmp_path,
            cache=tmp_path / "cubins",
        )


def test_a_command_that_fails_is_told_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"ended with 2: .*size is 0"):
        searched("--size", "0", folder=tmp_path)
