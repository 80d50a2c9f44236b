"""The table of everything that was tried: results/results.csv, one row per measurement or prediction.

Appending uses the csv module alone, so that a search does not load pandas; `ResultsFile.frame` reads.
"""

from __future__ import annotations

import csv
import io
import math
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from sgemm_tune.errors import ResultsFileError
from sgemm_tune.store.files import append_lines, locked, replace_atomically, split_tail
from sgemm_tune.store.result_rows import COLUMNS, Row, Value, predicted_row, row

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "ResultsFile", "Row", "Value", "predicted_row", "row"]

_NEEDED = {"stage", "m", "n", "k"}
_DIGEST_LENGTH = 16
_TRUTH = {"true": True, "1": True, "false": False, "0": False}
_FIRST_FIELD = re.compile(r'^("(?:[^"]|"")*"|[^,\r\n]*)', re.MULTILINE)


class ResultsFile:
    """The table at `path`, shared by any number of processes.

    Args:
        path: the CSV file; made at the first append.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: _Seen | None = None

    def append(self, rows: Iterable[Mapping[str, Value]], *, durably: bool = True) -> int:
        """Store the rows whose `row_id` the file does not have; they are on the disk when this returns.

        A file of an older version gets the columns that it lacks; columns that this version does not know
        keep their values.

        Args:
            rows: by column; whatever `COLUMNS` does not name is dropped.
            durably: False for rows that something else could restore: the disk is not waited for.

        Returns:
            How many rows were new.

        Raises:
            ResultsFileError: what stands there is no such table; it is left alone.
            FileWriteError: it cannot be written; it is left alone.
        """
        wanted = list(rows)
        if not wanted:
            return 0
        with locked(self.path):
            header, known = self._known()
            fresh = []
            for found in wanted:
                identified = {**found, "row_id": found.get("row_id") or uuid.uuid4().hex}
                row_id = _line([_text(identified["row_id"])])
                if row_id not in known:
                    known.add(row_id)
                    fresh.append(_line([_text(identified.get(name)) for name in header]))
            self._seen = None  # unless all of it gets there
            if fresh:
                append_lines(self.path, fresh, lambda tail: _is_whole(tail, header), durably=durably)
            self._seen = _Seen(_identity(self.path), header, known)
        return len(fresh)

    def reconcile(self, rows: Iterable[Mapping[str, Value]]) -> int:
        """Store those of `rows` that a crash kept from being appended; it is what `append` does.

        Returns:
            How many rows were missing.
        """
        return self.append(rows)

    def frame(self) -> pd.DataFrame:
        """Every row, with the dtypes of `COLUMNS`; columns that are unknown are text.

        A missing file gives no rows. A last line that a crash cut short is not there.

        Raises:
            ResultsFileError: it cannot be read or a value is not what its column holds; names file and line.
        """
        import pandas as pd

        header, records = self._parse(self._read())
        names = [*COLUMNS, *(name for name in header if name not in COLUMNS)]
        columns = {}
        for name in names:
            dtype: Any = COLUMNS.get(name, "string")
            values = [self._convert(name, dtype, record.get(name, ""), line) for line, record in records]
            columns[name] = pd.array(values, dtype=dtype)
        return pd.DataFrame(columns, columns=names)

    def _known(self) -> tuple[list[str], set[str]]:
        """(column names, ids of the rows), of a file that was brought up to date; the caller holds the lock.

        A search appends row by row: as long as nobody else has written, what was known then still is.
        """
        if self._seen is not None and self._seen.identity == _identity(self.path):
            return self._seen.header, self._seen.ids
        text = self._read()
        header = self._header(text)
        # ids are looked up in the first column; a lone header may be what an editor left
        if header[:1] != ["row_id"] or not set(COLUMNS) <= set(header) or "\n" not in text:
            header = [*COLUMNS, *(name for name in header if name not in COLUMNS)]
            text = _table(header, self._parse(text)[1])
            replace_atomically(self.path, text)
        whole, tail = split_tail(text)
        return header, set(_FIRST_FIELD.findall(whole + tail if _is_whole(tail, header) else whole))

    def _read(self) -> str:
        try:
            data = self.path.read_bytes()
            end = data.rfind(b"\n") + 1
            # a torn last line may end within a character
            return data[:end].decode("utf-8-sig") + data[end:].decode("utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            reason = error.strerror or str(error)
            raise ResultsFileError(f"{self.path}: cannot be read: {reason}: check the path") from error
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise ResultsFileError(f"{self.path}:{line}: is not UTF-8: save it as UTF-8") from None

    def _header(self, text: str) -> list[str]:
        return self._parse(text.partition("\n")[0])[0]

    def _parse(self, text: str) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
        """(column names, (line number, values by name) of each whole row)."""
        whole, tail = split_tail(text)
        reader = csv.reader(io.StringIO(whole or text, newline=""), strict=True)
        records: list[tuple[int, dict[str, str]]] = []
        header: list[str] = []
        try:
            header = self._checked(next(reader, []))
            for values in reader:
                if len(values) not in (0, len(header)):
                    self._refuse(reader.line_num, f"{len(header)} values are needed (found {len(values)})")
                if values:
                    records.append((reader.line_num, dict(zip(header, values, strict=True))))
        except csv.Error as error:
            self._refuse(reader.line_num, f"is not CSV ({error})")
        if whole and _is_whole(tail, header):
            values = next(csv.reader([tail]))
            records.append((reader.line_num + 1, dict(zip(header, values, strict=True))))
        return header, records

    def _checked(self, header: list[str]) -> list[str]:
        if header and not set(header) >= _NEEDED:
            missing = ", ".join(sorted(_NEEDED - set(header)))
            self._refuse(1, f"is no table of results (it has no column {missing})")
        if len(set(header)) < len(header):
            self._refuse(1, "a column's name is repeated")
        return header

    def _convert(self, name: str, dtype: str, text: str, line: int) -> Any:
        """The value of one cell; None, or NaN in a column of floats, where it is empty."""
        try:
            if dtype == "string":
                return text or None
            if dtype == "boolean":
                return _TRUTH[text.lower()] if text else None
            number = float(text) if text else math.nan
            if dtype == "float64" and not math.isinf(number):
                return number
            return None if math.isnan(number) else _whole_number(text, number)
        except (ValueError, KeyError, OverflowError):
            self._refuse(line, f"{name} cannot be {text[:40]!r}")

    def _refuse(self, line: int, problem: str) -> NoReturn:
        raise ResultsFileError(f"{self.path}:{line}: {problem}: mend or remove that line")


@dataclass(frozen=True)
class _Seen:
    """What a table held when it was last written here."""

    identity: tuple[int, ...]
    header: list[str]
    ids: set[str]


def _identity(path: Path) -> tuple[int, ...]:
    """Changes whenever somebody writes to the file, replaces or removes it."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _whole_number(text: str, number: float) -> int:
    # older tables passed through pandas, which wrote 256.0 where a column had holes
    value = int(number) if "." in text or "e" in text.lower() else int(text)
    if value != number or abs(value) >= 2**63:
        raise ValueError(text)
    return value


def _is_whole(tail: str, header: Sequence[str]) -> bool:
    """Whether a line without its end lacks nothing else: the digest at its end has its full length."""
    try:
        values = next(csv.reader([tail], strict=True), [])
    except csv.Error:
        return False
    return len(values) == len(header) and header[-1] == "source_hash" and len(values[-1]) == _DIGEST_LENGTH


def _table(header: Sequence[str], records: Iterable[tuple[int, Mapping[str, str]]]) -> str:
    lines = [_line(header), *(_line([record.get(name, "") for name in header]) for _, record in records)]
    return "\n".join(lines) + "\n"


def _line(values: Sequence[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="").writerow(values)
    return buffer.getvalue()


def _text(value: Value) -> str:
    """A cell: one line, so that a row is a line; empty for None and for what is no finite number."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.9g}"
    text = str(value)
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(text.split())
