"""Replay tables made from tables of results."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest

from benchmarks.replay import read_table
from benchmarks.replay_table import main

NAMES = ("date", "precision", "m", "n", "k", "stage", "config", "status", "ms")
OLD, NEW = (
    "2026-11-30T07:05:16+00:00",
    "2026-11-30T08:05:17+01:00",
)  # the later clock shows, but one second on


def write_results(path: Path, *rows: tuple[str, str, str, str, str]) -> Path:
    """Rows of (date, stage, config, status, ms) at 64x32x16 in fp32."""
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow(NAMES)
        for date, *rest in rows:
            out.writerow((date, "fp32", 64, 32, 16, *rest))
    return path


def table_of(path: Path, *results: Path, shape: str = "64x32x16") -> str:
    assert main([*map(str, results), "--shape", shape, "--to", str(path)]) == 0
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def test_names_have_columns_and_failures_no_time(tmp_path: Path) -> None:
    results = write_results(
        tmp_path / "results.csv",
        (OLD, "two", '{"BM": 16, "BK": 8}', "ok", "2.50000001"),
        (OLD, "two", '{"BM": 8, "BK": 8}', "spill", ""),
        (OLD, "one", '{"BX": 32}', "ok", "1.5"),
        (OLD, "one", '{"BX": 64}', "predicted", "0.5"),
    )
    text = table_of(tmp_path / "table.csv", results)
    # sorted by numbers, times as they stand in the results
    assert text == "stage,BK,BM,BX,time_ms\none,,,32,1.5\ntwo,8,8,,\ntwo,8,16,,2.50000001\n"
    points = read_table(tmp_path / "table.csv").space.points
    assert points[0] == {"stage": "one", "BX": 32}


def test_the_newest_row_counts_whatever_its_table(tmp_path: Path) -> None:
    new = write_results(
        tmp_path / "new.csv",
        (NEW, "one", '{"BX": 1, "BY": 2}', "ok", "2"),
        (OLD, "one", '{"BX": 3, "BY": 2}', "ok", "3"),
    )
    old = write_results(
        tmp_path / "old.csv",
        (OLD, "one", '{"BY": 2, "BX": 1}', "ok", "1"),
        (OLD, "one", '{"BX": 3, "BY": 2}', "spill", ""),
    )
    assert table_of(tmp_path / "table.csv", new, old) == "stage,BX,BY,time_ms\none,1,2,2\none,3,2,\n"
    assert table_of(tmp_path / "table.csv", old, new) == "stage,BX,BY,time_ms\none,1,2,2\none,3,2,3\n"


def test_the_same_rows_make_the_same_bytes(tmp_path: Path) -> None:
    rows = [(OLD, "one", f'{{"BX": {bx}}}', "ok", "1") for bx in (32, 8, 16)]
    results = write_results(tmp_path / "results.csv", *rows)
    packed = tmp_path / "results.csv.gz"
    packed.write_bytes(gzip.compress(write_results(tmp_path / "turned.csv", *rows[::-1]).read_bytes()))
    text = table_of(tmp_path / "a.csv.gz", results)
    assert text == table_of(tmp_path / "b.csv.gz", packed)
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
    assert (tmp_path / "a.csv.gz").read_bytes()[4:8] == bytes(4)  # no date


def test_other_shapes_and_precisions_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = write_results(tmp_path / "results.csv", (OLD, "one", '{"BX": 1}', "ok", "1"))
    out = tmp_path / "out.csv"
    for options in (["--shape", "64x32x17"], ["--shape", "64x32x16", "--precision", "tf32"]):
        assert main([str(results), *options, "--to", str(out)]) == 2
        assert "no row was measured" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"stage,config\n", "no column date, precision, m, n, k, status, ms"),
        (gzip.compress(b"stage,config\n" * 99, mtime=0)[:-9], "is not a whole table of results"),
        ((",".join(NAMES) + "\n2026,fp32\n").encode(), "more or fewer values"),
        ((",".join(NAMES) + f"\n{OLD},fp32,64,32,16,one,BX,ok,1\n").encode(), "Expecting value"),
    ],
)
def test_what_is_no_table_of_results_is_said_in_one_line(
    data: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / ("bad.csv.gz" if data[:2] == b"\x1f\x8b" else "bad.csv")
    path.write_bytes(data)
    assert main([str(path), "--shape", "64x32x16", "--to", str(tmp_path / "out.csv")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
