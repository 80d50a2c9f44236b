"""Where studies are kept: Optuna's journal file by default, any Optuna storage URL on request.

Optuna's own file lock is a symbolic link that stays behind when its holder is killed, and a line that a
crash cut short makes its journal unreadable for ever. The journal here is locked by the system, which lets
go when a process dies, and a torn tail is moved aside.

This module imports Optuna, so import it inside functions only.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna  # noqa: TID251, TID253
from optuna.storages.journal import JournalFileBackend  # noqa: TID251, TID253
from optuna.trial import TrialState  # noqa: TID251, TID253

from sgemm_tune.errors import SgemmTuneError, StorageError
from sgemm_tune.store.files import append_lines, locked

_LOCKED_SECONDS = 60
"""How long SQLite waits for another process before it says that the database is locked."""

_to_json = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True)
class Storage:
    """An opened storage.

    Attributes:
        backend: what Optuna works with.
        name: for messages; a password in a URL is hidden.
        turn: whose lock a process holds while it proposes a trial (see `files.locked`).
        is_journal: it is a journal file, whose turn is also that of its appends.
    """

    backend: optuna.storages.BaseStorage
    name: str
    turn: Path
    is_journal: bool = False

    @contextlib.contextmanager
    def in_a_row(self) -> Iterator[None]:
        """Several steps for which other processes wait once instead of once a step."""
        with locked(self.turn) if self.is_journal else contextlib.nullcontext():
            yield

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turn what a storage may throw into a StorageError of one line."""
        with _explained(self.name):
            yield


def default_journal(results_dir: Path, arch_name: str) -> Path:
    """The journal of an architecture's studies: `<results>/studies/sm_90.journal`."""
    return results_dir / "studies" / f"{arch_name}.journal"


def open_storage(where: str | Path, results_dir: Path) -> Storage:
    """Open a storage; it is made where it is missing.

    Args:
        where: an Optuna storage URL (`sqlite:///studies.db`, `postgresql://...`, `redis://...`), or the path
            of a journal file, also as `journal:///path`.
        results_dir: where processes take turns if the storage is no file.

    Raises:
        StorageError: it cannot be opened, is damaged, or its driver is missing.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    text = str(where)
    name = re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", text)
    with _explained(name):
        if "://" not in text or text.startswith("journal://"):
            path = Path(text.removeprefix("journal://")).absolute()
            return Storage(_open_journal(path), name, path, is_journal=True)
        if text.startswith("redis"):
            journal = optuna.storages.journal.JournalRedisBackend(text)
            return Storage(optuna.storages.JournalStorage(journal), name, _turn_of(text, results_dir))
        return _open_database(text, name, results_dir)


def _open_journal(path: Path) -> optuna.storages.JournalStorage:
    if path.parent.exists() and not path.parent.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path):
        _mend(path)
        backend = _Journal(path)
    try:
        return optuna.storages.JournalStorage(backend)
    except (KeyError, TypeError, AttributeError) as error:
        raise StorageError(
            f"{path} is no journal of Optuna ({type(error).__name__}: {error}): "
            "move it away or give another --storage"
        ) from error


def _open_database(url: str, name: str, results_dir: Path) -> Storage:
    from sqlalchemy.engine import make_url

    parsed = make_url(url)
    options: dict[str, Any] = {}
    turn = _turn_of(url, results_dir)
    if parsed.get_backend_name() == "sqlite":
        options["connect_args"] = {"timeout": _LOCKED_SECONDS}
        if parsed.database and parsed.database != ":memory:":
            database_file = Path(parsed.database).absolute()
            turn = database_file.with_name(database_file.name + ".turn")
            if not turn.parent.is_dir():
                raise StorageError(
                    f"storage {name} cannot be used (unable to open database file): make {turn.parent} first"
                )
    with locked(turn):  # two processes that make the tables at once get in each other's way
        database = optuna.storages.RDBStorage(url, engine_kwargs=options)
    # Optuna's cache of finished trials, as optuna.create_study would put it around the database
    backend = optuna.storages.get_storage(database)
    return Storage(backend, name, turn)


class _Journal(JournalFileBackend):  # type: ignore[misc]  # mypy does not follow Optuna
    """Optuna's journal format; appended under a lock that dies with its holder, torn tails moved aside."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = [_to_json(log) for log in logs]
        # a trial's steps survive a kill anyway; the disk is waited for where one ends
        ends = any(TrialState(log["state"]).is_finished() for log in logs if "state" in log)
        with locked(self.path):
            append_lines(self.path, lines, durably=ends)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        try:
            yield from super().read_logs(log_number_from)
        except ValueError as error:
            raise StorageError(
                f"{self.path} is damaged: line {_bad_line(self.path)} is no JSON: "
                "delete that line, or move the file away to start anew"
            ) from error


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


def _bad_line(path: Path) -> int:
    lines = path.read_bytes().splitlines(keepends=True)
    return next((i for i, line in enumerate(lines, 1) if not _is_json(line)), len(lines))


def _turn_of(url: str, results_dir: Path) -> Path:
    return results_dir.absolute() / "studies" / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.turn"


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except SgemmTuneError:
        raise
    except ImportError as error:
        cause = error.__cause__ or error
        raise StorageError(
            f"storage {name} needs a driver that is missing ({cause}): install it with pip"
        ) from error
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise StorageError(
            f"storage {name} cannot be used ({reason}): check the path and its permissions"
        ) from error
    except Exception as error:
        # by the name of its module: to load SQLAlchemy takes longer than to open a journal
        library = type(error).__module__.partition(".")[0]
        if library not in ("sqlalchemy", "redis") and not isinstance(
            error, optuna.exceptions.StorageInternalError
        ):
            raise
        reason = _database_reason(error)
        busy = "wait for the other process, or use a journal file"
        advice = busy if "locked" in reason else "check the URL, its permissions and that its server runs"
        raise StorageError(f"storage {name} cannot be used ({reason}): {advice}") from error


def _database_reason(error: BaseException) -> str:
    """The database's own words: the innermost cause, first line."""
    while error.__cause__ is not None:
        error = error.__cause__
    original = getattr(error, "orig", None) or error
    return str(original).splitlines()[0] if str(original) else type(original).__name__
