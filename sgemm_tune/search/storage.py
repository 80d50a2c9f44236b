"""Where studies are kept: Optuna's journal file by default, any Optuna storage URL on request.

This module imports Optuna, so import it inside functions only.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna  # noqa: TID251, TID253

from sgemm_tune.errors import SgemmTuneError, StorageError
from sgemm_tune.search.journal import Journal, open_journal
from sgemm_tune.store.files import locked

_LOCKED_SECONDS = 60
"""How long SQLite waits for another process before it says that the database is locked."""


@dataclass(frozen=True)
class Storage:
    """An opened storage.

    Attributes:
        backend: what Optuna works with.
        name: for messages; a password in a URL is hidden.
        turn: whose lock a process holds while it proposes a trial (see `files.locked`).
        journal: where the storage is a journal file, whose turn is also that of its appends.
    """

    backend: optuna.storages.BaseStorage
    name: str
    turn: Path
    journal: Journal | None = None

    @contextlib.contextmanager
    def in_a_row(self) -> Iterator[None]:
        """Several steps that a journal takes as one: other processes wait once, and one write stores them."""
        with self.journal.turn() if self.journal is not None else contextlib.nullcontext():
            yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Several steps in a row, during which no other process proposes a trial or settles one."""
        with locked(self.turn), self.in_a_row():
            yield

    def wait_for_disk(self) -> None:
        """Return when all that was told is on the disk; a database has waited itself.

        Raises:
            FileWriteError: the disk failed.
        """
        if self.journal is not None:
            self.journal.wait_for_disk()

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
            journal = open_journal(path)
            return Storage(_read_by_optuna(journal), name, path, journal)
        if text.startswith("redis"):
            redis = optuna.storages.journal.JournalRedisBackend(text)
            return Storage(optuna.storages.JournalStorage(redis), name, _turn_of(text, results_dir))
        return _open_database(text, name, results_dir)


def _read_by_optuna(journal: Journal) -> optuna.storages.JournalStorage:
    try:
        return optuna.storages.JournalStorage(journal)
    except (KeyError, TypeError, AttributeError) as error:
        raise StorageError(
            f"{journal.path} is no journal of Optuna ({type(error).__name__}: {error}): "
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
