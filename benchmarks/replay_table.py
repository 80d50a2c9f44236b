"""Makes a table for `replay.py` and `model.py` out of tables of results.

    python benchmarks/replay_table.py RESULTS.csv[.gz] ... --shape 4096x4096x4096 --to TABLE.csv.gz

The tables are of the form of results.csv. Of each configuration the newest row of the shape and precision
counts; predictions, which nobody measured, do not. What comes out has one column per tunable, `stage` first,
empty where a stage does not have it, and then `time_ms`, empty where the configuration failed. Rows are
sorted and gzip is given no date, so that the same rows make the same bytes.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout needs no installation

STAGE, TIME = "stage", "time_ms"

_NEEDED = ("date", "precision", "m", "n", "k", STAGE, "config", "status", "ms")
_OK, _PREDICTED = "ok", "predicted"

Row = Mapping[str, str]


def read_results(path: Path) -> list[Row]:
    """The rows of a table of results, as text.

    Args:
        path: .csv, or .csv.gz.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not whole CSV, or lacks a column that is needed.
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
        rows: list[Row] = list(reader)
    except (csv.Error, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise ValueError(f"{path}: is not a whole table of results ({error})") from None
    if missing:
        raise ValueError(f"{path}: is no table of results: it has no column {', '.join(missing)}")
    if any(None in row.values() or None in row for row in rows):
        raise ValueError(f"{path}: a row has more or fewer values than there are columns")
    return rows


def shape_of(row: Row) -> str:
    """The row's problem as MxNxK."""
    return "x".join(row[side] for side in ("m", "n", "k"))


def replay_lines(rows: Iterable[Row], shape: str, precision: str) -> list[list[str]]:
    """The lines of the replay table, its header first.

    Args:
        rows: of tables of results; of two rows of one date the later one counts.
        shape: MxNxK.
        precision: as results say it, such as fp32.

    Raises:
        ValueError: nothing was measured there, or a row's date or configuration makes no sense.
    """
    newest: dict[tuple[str, str], tuple[datetime, dict[str, int], str]] = {}
    for row in rows:
        if (shape_of(row), row["precision"]) != (shape, precision) or row["status"] == _PREDICTED:
            continue
        params = json.loads(row["config"])
        key = (row[STAGE], json.dumps(params, sort_keys=True))
        date = datetime.fromisoformat(row["date"])
        if key not in newest or date >= newest[key][0]:
            newest[key] = (date, params, row["ms"] if row["status"] == _OK else "")
    if not newest:
        raise ValueError(f"no row was measured at {shape} in {precision}")
    names = sorted({name for _, params, _ in newest.values() for name in params})
    # values as numbers where they are compared: 8 comes before 16
    order = sorted(newest, key=lambda key: (key[0], [newest[key][1].get(name, -1) for name in names]))
    lines = [[STAGE, *names, TIME]]
    for key in order:
        _, params, ms = newest[key]
        lines.append([key[0], *(str(params.get(name, "")) for name in names), ms])
    return lines


def write_table(path: Path, lines: Iterable[Sequence[str]]) -> None:
    """Writes the lines as CSV; compressed, without a date or name in it, where the name ends in .gz.

    Raises:
        OSError: it cannot be written.
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    data = text.getvalue().encode("utf-8")
    path.write_bytes(gzip.compress(data, compresslevel=9, mtime=0) if path.suffix == ".gz" else data)


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads the command line, writes the table; returns the exit code."""
    from sgemm_tune.errors import SgemmTuneError
    from sgemm_tune.problem import Precision, Problem

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="tables of results; .csv or .csv.gz")
    parser.add_argument("--shape", required=True, help="MxNxK")
    parser.add_argument("--precision", default="fp32", choices=[p.value for p in Precision], help="(fp32)")
    parser.add_argument("--to", type=Path, required=True, help="what to write; .csv or .csv.gz")
    args = parser.parse_args(arguments)
    try:
        shape = Problem.parse_shape(args.shape).shape
        rows = (row for path in args.results for row in read_results(path))
        lines = replay_lines(rows, shape, args.precision)
        write_table(args.to, lines)
    except (OSError, ValueError, SgemmTuneError) as error:
        print(f"replay_table: {error}", file=sys.stderr)
        return 2
    failed = sum(not line[-1] for line in lines)
    print(f"{args.to}: {len(lines) - 1} configurations, {failed} of them without a time")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
