"""Writing: whole or not at all, with one clear line where it cannot be done."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sgemm_tune.errors import SgemmTuneError
from sgemm_tune.store.files import FileWriteError, append_lines, locked, replace_atomically


def full_disk(taken: int = 5) -> Callable[[int, bytes], int]:
    """An os.write for a disk with room for `taken` bytes."""
    real = os.write
    room = taken

    def write(handle: int, data: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(handle, bytes(data)[:room])
        room -= written
        return written

    return write


def no_sync(handle: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_replaces_the_whole_and_makes_folders(tmp_path: Path) -> None:
    path = tmp_path / "new" / "für.yaml"
    replace_atomically(path, "long text\n" * 100)
    replace_atomically(path, "kurz ×\n")
    assert path.read_text(encoding="utf-8") == "kurz ×\n"
    assert list(path.parent.iterdir()) == [path]


def test_bytes_are_written_as_they_are(tmp_path: Path) -> None:
    replace_atomically(tmp_path / "picture.png", b"\x89PNG\r\n\xff")
    assert (tmp_path / "picture.png").read_bytes() == b"\x89PNG\r\n\xff"


def test_permissions_follow_the_mask_and_then_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    old = os.umask(0o022)
    try:
        replace_atomically(path, "a")
        assert path.stat().st_mode & 0o777 == 0o644
        path.chmod(0o640)
        replace_atomically(path, "b")
        assert path.stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(old)


def test_a_link_keeps_pointing(tmp_path: Path) -> None:
    target, link = tmp_path / "real", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    replace_atomically(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


@pytest.mark.parametrize(("name", "fake"), [("write", full_disk()), ("fsync", no_sync)])
def test_a_failed_replacement_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fake: Callable[..., int]
) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(os, name, fake)
    with pytest.raises(FileWriteError, match=r"file: (No space left|Input/output error)") as e:
        replace_atomically(path, "much longer than five bytes")
    assert "\n" not in str(e.value)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path], "the temporary file went"


def test_a_directory_that_cannot_be_one(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("kept")

    def lock() -> None:
        with locked(blocked / "x"):
            pass

    writers: list[Callable[[], None]] = [
        lambda: replace_atomically(blocked / "sub" / "x", "text"),
        lambda: append_lines(blocked / "x", ["text"]),
        lock,
    ]
    for write in writers:
        with pytest.raises(FileWriteError, match=r"cannot write .*x: (Not a directory|File exists)"):
            write()
    assert blocked.read_text() == "kept"


def test_what_a_killed_writer_left_is_swept_when_it_is_old(tmp_path: Path) -> None:
    old, young = tmp_path / ".file-1.writing", tmp_path / ".file-2.writing"
    for leftover in (old, young):
        leftover.write_text("half")
    os.utime(old, (0, 0))
    replace_atomically(tmp_path / "file", "text")
    assert not old.exists()
    assert young.exists(), "somebody may be writing it now"


def test_appends_lines(tmp_path: Path) -> None:
    path = tmp_path / "new" / "table"
    append_lines(path, ["one", "zwei ×"])
    append_lines(path, ["three"])
    assert path.read_text(encoding="utf-8") == "one\nzwei ×\nthree\n"


def test_a_torn_line_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_bytes(b"one\ntw" + "×".encode()[:1])
    append_lines(path, ["three"])
    assert path.read_text() == "one\nthree\n"
    assert (tmp_path / "table.torn").read_text(encoding="utf-8") == "tw�\n"


def test_a_line_that_lacks_only_its_end_stays(tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_text("one\ntwo")
    append_lines(path, ["three"], is_whole=lambda tail: tail == "two")
    assert path.read_text() == "one\ntwo\nthree\n"
    assert not (tmp_path / "table.torn").exists()


@pytest.mark.parametrize(("name", "fake"), [("write", full_disk()), ("fsync", no_sync)])
def test_a_failed_append_leaves_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fake: Callable[..., int]
) -> None:
    path = tmp_path / "table"
    path.write_text("one\n")
    with monkeypatch.context() as patch:
        patch.setattr(os, name, fake)
        with pytest.raises(FileWriteError, match=r"table: (No space left|Input/output error)"):
            append_lines(path, ["longer than five bytes"])
    assert path.read_text() == "one\n"
    append_lines(path, ["two"])
    assert path.read_text() == "one\ntwo\n"


def test_a_full_device() -> None:
    # the real thing: every write fails with ENOSPC
    with pytest.raises(FileWriteError, match="No space left on device"):
        append_lines(Path("/dev/full"), ["text"])


def test_a_lock_excludes_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "file"
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(path):
            inside.set()
            leave.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert inside.wait(20)
        started = time.monotonic()
        with (
            pytest.raises(FileWriteError, match=r"another process has held file\.lock for 0\.2 s"),
            locked(path, 0.2),
        ):
            pass
        assert time.monotonic() - started < 10
    finally:
        leave.set()
        holder.join()
    with locked(path, 5):
        assert (tmp_path / "file.lock").exists()


def test_a_lock_is_released_by_an_error(tmp_path: Path) -> None:
    def fail() -> None:
        with locked(tmp_path / "file"):
            raise SgemmTuneError("inside")

    with pytest.raises(SgemmTuneError, match="inside"):
        fail()
    with locked(tmp_path / "file", 1):
        pass
