"""The table of results: rows, older and newer files, torn lines, dtypes."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd  # noqa: TID253
import pytest

from sgemm_tune.arch import ARCHS
from sgemm_tune.errors import ResultsFileError, SgemmTuneError
from sgemm_tune.measure.outcome import Origin, Rejected, Status
from sgemm_tune.problem import Precision, Problem
from sgemm_tune.store.results import COLUMNS, ResultsFile, predicted_row, row
from tests.stored import DATE, H200, PROBLEM, Lower, Tensor, good_row, measurement, own_stages


@dataclass(frozen=True)
class Compiled:
    registers: int = 96
    spill_bytes: int = 8


@pytest.fixture(autouse=True)
def _stages() -> Iterator[None]:
    with own_stages():
        yield


@pytest.fixture
def table(tmp_path: Path) -> ResultsFile:
    return ResultsFile(tmp_path / "results" / "results.csv")


def test_a_measurement_is_a_row_with_all_its_figures(table: ResultsFile) -> None:
    table.append(
        [
            row(
                PROBLEM,
                Precision.FP32,
                Lower(BM=16, BN=64),
                measurement(),
                H200,
                origin=Origin.BENCH,
                seed=7,
                binary=Compiled(),
                row_id="study/1",
            )
        ]
    )
    frame = table.frame()
    found = frame.iloc[0]
    assert found["row_id"] == "study/1"
    assert (found["status"], found["source"], found["date"]) == ("ok", "bench", DATE)
    assert (found["device"], found["uuid"], found["sms"], found["arch"]) == (
        H200.name,
        H200.uuid,
        132,
        "sm_90",
    )
    assert (found["precision"], found["m"], found["n"], found["k"]) == ("fp32", 4096, 4096, 4096)
    assert (found["stage"], json.loads(found["config"])) == ("lower", {"BM": 16, "BN": 64})
    assert (found["ms"], found["cublas_ms"], found["vs_cublas"]) == (2.5, 2.0, 0.8)
    assert found["tflops"] == pytest.approx(2 * 4096**3 / 2.5e9)
    assert found["cublas_tflops"] == pytest.approx(2 * 4096**3 / 2.0e9)
    assert (found["ms_p10"], found["ms_p90"], found["samples"]) == (2.475, 2.55, 20)
    assert (found["error"], found["error_bound"]) == (1.2e-6, 8.1e-6)
    assert (found["norm_error"], found["cublas_norm_error"]) == (2.3e-7, 2.2e-7)
    assert (found["early_cut"], found["throttled"], found["cache"]) == (False, False, "cold")
    assert (found["sm_mhz"], found["watts"], found["throttle"]) == (1980, 650.2, "sw_power_cap")
    assert found["other_processes"] == 0
    assert (found["vs_p10"], found["vs_p90"]) == (0.79, 0.81)
    assert (found["seed"], found["registers"], found["spill_bytes"]) == (7, 96, 8)
    assert (found["driver"], found["runtime"], found["nvrtc"], found["cublas"]) == (
        "575.57",
        "12.9",
        "12.9",
        "12.9.1",
    )
    assert found["source_hash"] == f"{11:016x}"
    assert found["version"] == "0.1.0"
    assert pd.isna(found["predicted_ms"])
    assert pd.isna(found["reason"])


@pytest.mark.parametrize("status", [s for s in Status if s not in (Status.OK, Status.PREDICTED)])
def test_a_rejection_has_its_reason_and_no_time(table: ResultsFile, status: Status) -> None:
    why = Rejected(status, 'a "reason", with\nline ends,\x00 commas and ×')
    table.append([row(PROBLEM, Precision.FP32, Lower(), why, H200, origin=Origin.SEARCH, seed=7)])
    found = table.frame().iloc[0]
    assert (found["status"], found["reason"]) == (status.value, 'a "reason", with line ends, commas and ×')
    for name in (
        "ms",
        "ms_p10",
        "ms_p90",
        "tflops",
        "cublas_ms",
        "vs_cublas",
        "error",
        "predicted_ms",
        "samples",
    ):
        assert pd.isna(found[name]), name
    assert len(table.path.read_text(encoding="utf-8").splitlines()) == 2


def test_a_prediction_has_no_time(table: ResultsFile) -> None:
    dropped = Rejected(Status.SPILL, "spills 40 bytes")
    arch = ARCHS["sm_100"]
    made = [
        predicted_row(PROBLEM, Precision.TF32, Tensor(), arch, outcome, nvrtc="12.9", binary=Compiled())
        for outcome in (1.25, dropped)
    ]
    table.append(made)
    frame = table.frame()
    assert list(frame["source"]) == ["predicted", "predicted"]
    assert list(frame["status"]) == ["predicted", "spill"]
    assert frame["predicted_ms"].tolist()[0] == 1.25
    assert pd.isna(frame["predicted_ms"][1])
    assert frame["ms"].isna().all()
    assert frame["tflops"].isna().all()
    assert (frame["device"][0], frame["sms"][0], frame["arch"][0]) == ("NVIDIA B200", 148, "sm_100")


def test_a_measured_row_cannot_claim_to_be_predicted() -> None:
    with pytest.raises(ValueError, match="predicted_row"):
        row(PROBLEM, Precision.FP32, Lower(), measurement(), H200, origin=Origin.PREDICTED, seed=1)


def test_an_early_cut_without_baseline_has_no_baseline(table: ResultsFile) -> None:
    cut = replace(measurement(early_cut=True), cublas_ms=0.0, vs_cublas=0.0)
    table.append([row(PROBLEM, Precision.FP32, Lower(), cut, H200, origin=Origin.SEARCH, seed=7)])
    found = table.frame().iloc[0]
    assert bool(found["early_cut"])
    assert found["ms"] == 2.5
    assert found[["cublas_ms", "cublas_tflops", "vs_cublas"]].isna().all()


def test_a_missing_file_is_an_empty_table(table: ResultsFile) -> None:
    frame = table.frame()
    assert frame.empty
    assert list(frame.columns) == list(COLUMNS)
    assert frame["ms"].dtype == "float64"
    assert frame["m"].dtype == "Int64"
    assert frame["early_cut"].dtype == "boolean"
    assert not table.path.parent.exists()


def test_a_row_is_stored_once(table: ResultsFile) -> None:
    ids = ["a", "b,with comma", 'c"quote', "×"]
    rows = [good_row(row_id) for row_id in ids]
    assert table.append(rows[:2]) == 2
    assert ResultsFile(table.path).append(rows[:3]) == 1
    assert table.reconcile([*rows, rows[3]]) == 1
    assert table.append([]) == 0
    assert table.append([good_row(), good_row()]) == 2
    assert list(table.frame()["row_id"])[:4] == ids
    assert table.frame()["row_id"].is_unique


def old_file(table: ResultsFile, drop: set[str], extra: dict[str, str] | None = None) -> None:
    """Two rows as another version wrote them: without some columns, with others of its own."""
    names = [name for name in COLUMNS if name not in drop] + list(extra or {})
    table.path.parent.mkdir(parents=True)
    with table.path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for size in (512, 1024):
            made = {**good_row(f"old-{size}", Problem.parse_size(size)), **(extra or {})}
            writer.writerow(["" if made[name] is None else made[name] for name in names])


def test_an_older_table_gets_its_missing_columns(table: ResultsFile) -> None:
    old_file(table, drop={"row_id", "watts", "source_hash", "sms"})
    before = table.frame()
    assert before["watts"].isna().all()
    assert before["m"].tolist() == [512, 1024]
    table.append([good_row("new")])
    frame = table.frame()
    assert frame["m"].tolist() == [512, 1024, 4096]
    assert frame["watts"].isna().tolist() == [True, True, False]
    assert frame["ms"].tolist() == [2.5, 2.5, 2.5]
    assert table.append([good_row("new")]) == 0


def test_a_newer_table_keeps_its_columns(table: ResultsFile) -> None:
    old_file(table, drop=set(), extra={"shiny": "from, the future"})
    header = table.path.read_bytes().split(b"\r\n")[0]
    table.append([good_row("new")])
    frame = table.frame()
    assert table.path.read_bytes().startswith(header), "not rewritten"
    assert frame["shiny"].fillna("").tolist() == ["from, the future", "from, the future", ""]
    assert frame["row_id"].tolist() == ["old-512", "old-1024", "new"]


def test_an_older_table_with_columns_of_its_own_keeps_them(table: ResultsFile) -> None:
    old_file(table, drop={"nvrtc"}, extra={"mine": "note"})
    assert table.append([good_row("old-512"), good_row("new")]) == 1
    assert table.frame()["mine"].fillna("").tolist() == ["note", "note", ""]


def test_columns_in_another_order(table: ResultsFile) -> None:
    table.append([good_row("a"), good_row("b")])
    table.frame()[list(reversed(COLUMNS))].to_csv(table.path, index=False)
    assert table.append([good_row("b"), good_row("c")]) == 1
    assert table.frame()["row_id"].tolist() == ["a", "b", "c"]


def test_a_table_saved_by_a_spreadsheet(table: ResultsFile) -> None:
    table.append([good_row("a")])
    text = table.path.read_text(encoding="utf-8").replace(",4096,4096,4096,", ",4096.0,4096.0,4096.0,")
    table.path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    table.append([good_row("a"), good_row("b")])
    frame = table.frame()
    assert frame["row_id"].tolist() == ["a", "b"]
    assert frame["m"].tolist() == [4096, 4096]


def test_a_file_cut_at_any_byte_of_its_last_row(table: ResultsFile) -> None:
    table.append([good_row("first"), good_row("×-last")])
    whole = table.path.read_bytes()
    start = whole[:-1].rfind(b"\n") + 1
    for cut in range(start, len(whole)):
        table.path.write_bytes(whole[:cut])
        seen = table.frame()["row_id"].tolist()
        # without its line end alone the row lacks nothing
        assert seen == (["first", "×-last"] if cut == len(whole) - 1 else ["first"])
        if cut % 7 == 0 or cut > len(whole) - 3:
            table.append([good_row("×-last"), good_row("third")])
            assert table.frame()["row_id"].tolist() == ["first", "×-last", "third"]


def test_a_file_cut_within_its_header(table: ResultsFile) -> None:
    table.path.parent.mkdir()
    table.path.write_text("row_id,date,dev")
    with pytest.raises(ResultsFileError, match=r"results\.csv:1: is no table of results"):
        table.append([good_row()])
    table.path.write_text(",".join(COLUMNS))
    assert table.append([good_row("a")]) == 1
    assert table.frame()["row_id"].tolist() == ["a"]
    assert list(table.path.parent.glob("*.torn")) == []


BROKEN: dict[str, tuple[Callable[[str], str], int, str]] = {
    "text for a number": (lambda text: text.replace(",2.5,", ",fast,", 1), 2, "ms cannot be 'fast'"),
    "infinity": (lambda text: text.replace(",2.5,", ",inf,", 1), 2, "ms cannot be 'inf'"),
    "fraction of a side": (lambda text: text.replace(",4096,", ",4096.5,", 1), 2, "m cannot be '4096.5'"),
    "huge side": (lambda text: text.replace(",4096,", "," + "9" * 30 + ",", 1), 2, "m cannot be"),
    "neither true nor false": (
        lambda text: text.replace(",false,", ",maybe,", 1),
        2,
        "early_cut cannot be 'maybe'",
    ),
    "too many values": (lambda text: text.replace(",2.5,", ",2.5,7,", 1), 2, "values are needed (found"),
    "too few values": (lambda text: text + "a,b\n", 4, "values are needed (found 2)"),
    "quotes": (lambda text: text + '"a"b\n', 4, "is not CSV"),
    "no header": (lambda text: text.split("\n", 1)[1], 1, "is no table of results"),
    "other table": (lambda _: "name,age\nx,1\n", 1, "it has no column k, m, n, stage"),
    "column twice": (lambda text: text.replace("watts", "seed", 1), 1, "name is repeated"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_told_by_line(table: ResultsFile, name: str) -> None:
    edit, line, words = BROKEN[name]
    table.append([good_row("a"), good_row("b")])
    text = table.path.read_text(encoding="utf-8")
    assert edit(text) != text
    table.path.write_text(edit(text), encoding="utf-8")
    with pytest.raises(ResultsFileError) as caught:
        table.frame()
    assert str(caught.value).startswith(f"{table.path}:{line}: ")
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


def test_what_is_no_table_is_left_alone(table: ResultsFile) -> None:
    table.path.parent.mkdir()
    for content in (b"name,age\nx,1\n", b"\xff\xfe\n", b'"open\n'):
        table.path.write_bytes(content)
        with pytest.raises(ResultsFileError, match=r"results\.csv:1: "):
            table.append([good_row()])
        assert table.path.read_bytes() == content


def test_a_full_disk_loses_nothing(table: ResultsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append([good_row("a")])
    before = table.path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(SgemmTuneError, match=r"cannot write .*results\.csv: No space left on device"):
            table.append([good_row("b")])
    assert table.path.read_bytes() == before
    assert table.append([good_row("b")]) == 1


def test_appending_does_not_load_pandas() -> None:
    code = (
        "import sys, sgemm_tune.report.report, sgemm_tune.store.results; "
        "print(sorted({'pandas', 'matplotlib'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
