"""Writing that survives a kill, a full disk and other processes. Knows nothing of what is written.

A file is either replaced as a whole (`replace_atomically`) or grows at its end (`append_lines`); both have
reached the disk when they return, unless told not to wait for it (`DiskWait` does so later). Whoever reads
before writing holds `locked` meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING

from sgemm_tune.errors import SgemmTuneError

if TYPE_CHECKING:
    from filelock import BaseFileLock

LOCK_SECONDS = 60.0
"""How long to wait for another process: a merge takes well under a second, eight of them queue."""


_STALE_SECONDS = 600.0


class FileWriteError(SgemmTuneError):
    """A file cannot be written; what stood there before still does."""


def replace_atomically(path: Path, content: str | bytes) -> None:
    """Make `content` (text as UTF-8) the whole of `path`; a reader sees the old file or the new one.

    Missing folders are made. A symbolic link keeps pointing where it points.

    Raises:
        FileWriteError: full disk, read-only directory and the like; the old file is untouched.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    target = Path(os.path.realpath(path))
    with _explained(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        # not mkstemp, whose files are for their owner alone: results are read by others too
        temporary = target.with_name(f".{target.name}-{uuid.uuid4().hex}.writing")
        try:
            _write_new(temporary, data, like=target)
            temporary.replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        _sync_directory(target.parent)
        _sweep(target)


def append_lines(
    path: Path,
    lines: Sequence[str],
    is_whole: Callable[[str], bool] | None = None,
    *,
    durably: bool = True,
) -> None:
    """Add `lines` (without their line ends) to `path` in one write; all of them, or none.

    With `durably` they are on the disk when this returns. Without, they survive a kill all the same, but not
    a power cut.

    A last line without its line end is a write that a crash cut short, so nobody was told that it was
    stored: it moves to `<name>.torn`. `is_whole` may recognise it as a line that lacks nothing but its end
    (an editor's work), and then it stays.

    The caller holds `locked(path)`.

    Raises:
        FileWriteError: full disk, read-only directory and the like; the file is as long as before.
    """
    data = "".join(f"{line}\n" for line in lines).encode("utf-8")
    with _explained(path):
        with _open_to_append(path) as file:
            data = _mend_tail(path, file, is_whole) + data
            before = os.fstat(file.fileno()).st_size
            try:
                _write_all(file, data, durably)
            except BaseException:
                # should this fail too, the next append finds a torn line and mends it
                with contextlib.suppress(OSError):
                    os.ftruncate(file.fileno(), before)
                raise
        if before == 0:
            _sync_directory(path.parent)


class DiskWait:
    """Waits for the disk in a thread, so that who appends need not: what is written survives a kill anyway.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread: threading.Thread | None = None
        self._failure: FileWriteError | None = None

    def begin(self) -> None:
        """Bring what the file holds by now to the disk; what was begun before must have ended (`end`)."""
        self._thread = threading.Thread(target=self._sync, name="disk")
        self._thread.start()

    def end(self) -> None:
        """Return when that has been done.

        Raises:
            FileWriteError: the disk failed.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            raise self._failure

    def _sync(self) -> None:
        try:
            with _explained(self._path), self._path.open("rb+", buffering=0) as file:
                os.fsync(file.fileno())
        except FileWriteError as error:
            self._failure = error


@contextlib.contextmanager
def locked(path: Path, timeout: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold the lock of `path`, the file `<name>.lock` beside it, against every other process.

    The system releases it when its holder dies. A thread that holds it may take it again, which costs
    nothing: several appends in a row take turns with other processes once.

    Args:
        path: what is about to be read and written; need not exist.
        timeout: seconds to wait.

    Raises:
        FileWriteError: somebody else held it all the time, or the lock file cannot be made.
    """
    from filelock import Timeout

    beside = path.with_name(path.name + ".lock")
    lock = _lock_at(beside, os.getpid())
    if lock.is_locked:
        yield
        return
    with _explained(path):
        if not beside.parent.is_dir():
            beside.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=timeout)
        except Timeout:
            raise FileWriteError(
                f"cannot write {path}: another process has held {beside.name} for {timeout:g} s: "
                "wait for it to end, or stop it"
            ) from None
    try:
        yield
    finally:
        lock.release()


@functools.lru_cache(maxsize=64)
def _lock_at(beside: Path, process: int) -> BaseFileLock:
    """The lock of one file, kept: a search takes three per trial, and making one costs as much again."""
    from filelock import FileLock

    return FileLock(beside)


def _open_to_append(path: Path) -> RawIOBase:
    """The file at `path`, made with its folders where it is missing."""
    try:
        return path.open("ab+", buffering=0)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab+", buffering=0)


def split_tail(text: str) -> tuple[str, str]:
    """(whole lines, the rest after the last line end)."""
    end = text.rfind("\n") + 1
    return text[:end], text[end:]


def _mend_tail(path: Path, file: RawIOBase, is_whole: Callable[[str], bool] | None) -> bytes:
    """Cut a torn last line off; returns the line end that a whole one lacks, otherwise nothing."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return b""
    file.seek(-1, os.SEEK_END)
    if file.read(1) == b"\n":
        return b""
    data = path.read_bytes()
    tail = data[data.rfind(b"\n") + 1 :]
    text = tail.decode("utf-8", errors="replace")
    if is_whole is not None and is_whole(text):
        return b"\n"
    append_lines(path.with_name(path.name + ".torn"), [text])
    file.truncate(size - len(tail))
    return b""


def _write_new(path: Path, data: bytes, like: Path) -> None:
    """Write the new file `path` through to the disk, with the permissions of `like` if that exists."""
    with path.open("xb", buffering=0) as file:
        with contextlib.suppress(OSError):
            path.chmod(like.stat().st_mode & 0o777)
        _write_all(file, data)


def _write_all(file: RawIOBase, data: bytes, durably: bool = True) -> None:
    # one write in all but odd cases: a full disk takes a part, and the next attempt says why
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file.fileno(), rest) :]
    if durably:
        os.fsync(file.fileno())


def _sweep(target: Path) -> None:
    """Remove what processes that were killed while they wrote `target` have left beside it."""
    with contextlib.suppress(OSError):
        for stale in target.parent.glob(f".{glob.escape(target.name)}-*.writing"):
            if time.time() - stale.stat().st_mtime > _STALE_SECONDS:
                stale.unlink()


def _sync_directory(directory: Path) -> None:
    # makes the name durable; some file systems cannot, and the file's content is safe already
    with contextlib.suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn an OSError into one line that names the file and the system's reason."""
    try:
        yield
    except OSError as error:
        raise FileWriteError(
            f"cannot write {path}: {error.strerror or error}: "
            "free space, or choose a directory that can be written"
        ) from error
