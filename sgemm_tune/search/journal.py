"""The file that studies are kept in by default: Optuna's journal, made to survive what happens to processes.

Optuna's own file lock is a symbolic link that stays behind when its holder is killed, and a line that a
crash cut short makes its journal unreadable for ever. The journal here is locked by the system, which lets
go when a process dies, and a torn tail is moved aside. What a process does in one turn is one write.

This module imports Optuna, so import it inside functions only.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend  # noqa: TID251, TID253
from optuna.trial import TrialState  # noqa: TID251, TID253

from sgemm_tune.errors import SgemmTuneError, StorageError
from sgemm_tune.store.files import DiskWait, append_lines, locked

_to_json = json.JSONEncoder(separators=(",", ":")).encode


def open_journal(path: Path) -> Journal:
    """The journal at `path`, made where it is missing, mended where a crash has cut it short.

    Raises:
        OSError: it cannot be opened.
        StorageError: it is no journal.
        FileWriteError: another process holds it all the time.
    """
    if path.parent.exists() and not path.parent.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path):
        _mend(path)
        path.touch()
    return Journal(path)


class Journal(BaseJournalBackend):  # type: ignore[misc]  # mypy does not follow Optuna
    """Optuna's journal format, a JSON object a line; processes append by turns.

    What is appended during a turn is read back from memory and written when the turn ends, all of it at once
    and in its order. Where that fails, Optuna remembers what the file lacks and would miscount what others
    write: the journal is of no use to this process any more, and says so each time.

    A write survives a kill at once. The disk is asked for it where a trial ends, and waited for by the next
    such write or by `wait_for_disk`: a power cut can cost the outcomes of a moment, which are tried again.

    One thread uses it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_open = False  # a turn has begun
        self._count, self._size = 0, 0  # lines of the file that were read, and their bytes
        self._is_all = False  # nobody has written more: it was looked up in this turn
        self._held: list[str] = []  # lines of this turn, which follow those of the file
        self._ends_a_trial = False  # one of them does
        self._failure: SgemmTuneError | None = None
        self._disk = DiskWait(path)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Keep other processes out, and what is appended in memory until the outermost turn ends.

        What was appended until an exception is written, too.

        Raises:
            FileWriteError: it cannot be written, now or at the end of an earlier turn.
            StorageError: an earlier turn's writing was interrupted.
        """
        if self._is_open:
            yield
            return
        if self._failure is not None:
            raise self._failure
        with locked(self.path):
            self._is_open, self._is_all = True, False
            try:
                yield
            finally:
                self._is_open = False
                if self._held:
                    self._write()

    def wait_for_disk(self) -> None:
        """Return when all trials that ended are on the disk.

        Raises:
            FileWriteError: the disk failed.
        """
        with self._failing_for_good():
            self._disk.end()

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        with self.turn():
            self._held += [_to_json(log) for log in logs]
            self._ends_a_trial |= any(_ends_a_trial(log) for log in logs)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        with self.turn():  # a write that fails halfway is taken back: nobody may read it meanwhile
            lines = self._lines(log_number_from)
        for number, line in enumerate(lines, log_number_from + 1):
            try:
                yield json.loads(line)
            except ValueError as error:
                raise StorageError(
                    f"{self.path} is damaged: line {number} is no JSON: "
                    "delete that line, or move the file away to start anew"
                ) from error

    def _lines(self, first: int) -> list[bytes | str]:
        """All lines from this one on, counted from 0."""
        if first < self._count:
            self._count, self._size, self._is_all = 0, 0, False
        start = self._count
        lines: list[bytes | str] = [*self._read_on(), *self._held]
        return lines[first - start :]

    def _read_on(self) -> list[bytes]:
        """Lines of the file that were not read yet; but for a torn one, which the next append moves aside."""
        lines: list[bytes] = []
        if not self._is_all and self.path.stat().st_size != self._size:
            with self.path.open("rb") as file:
                file.seek(self._size)
                lines = file.readlines()
            if lines and not lines[-1].endswith(b"\n"):
                lines.pop()
            self._count += len(lines)
            self._size += sum(map(len, lines))
        self._is_all = True
        return lines

    def _write(self) -> None:
        lines, durably = self._held, self._ends_a_trial
        self._held, self._ends_a_trial = [], False
        with self._failing_for_good():
            if durably:
                self._disk.end()
            append_lines(self.path, lines, durably=False)
            if durably:
                self._disk.begin()
        if self._is_all:
            self._count += len(lines)
            self._size += sum(len(line) + 1 for line in lines)  # all ASCII, as JSON is here

    @contextlib.contextmanager
    def _failing_for_good(self) -> Iterator[None]:
        """What fails within is said again whenever the journal is used."""
        try:
            yield
        except SgemmTuneError as error:
            self._failure = error
            raise
        except BaseException:
            self._failure = StorageError(f"writing {self.path} was interrupted: start again")
            raise


def _ends_a_trial(log: Mapping[str, Any]) -> bool:
    return "state" in log and TrialState(log["state"]).is_finished()


def _mend(path: Path) -> None:
    """Move trailing lines that are no JSON (a crash's, or a full disk's) to `<name>.torn`."""
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    whole = len(lines)
    while whole and not _is_json(lines[whole - 1]):
        whole -= 1
    if whole == len(lines):
        return
    if whole == 0:
        raise StorageError(f"{path} is no journal of Optuna: move it away or give another --storage")
    torn = [line.decode("utf-8", errors="replace").rstrip("\n") for line in lines[whole:]]
    append_lines(path.with_name(path.name + ".torn"), torn)
    os.truncate(path, sum(map(len, lines[:whole])))


def _is_json(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and isinstance(json.loads(line), dict)
    except ValueError:
        return False
