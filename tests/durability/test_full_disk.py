"""A limit on the file's size, as a full disk acts: part of a write is taken, then the rest fails."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sgemm_tune.store.configs import config_path, load_config, merge_entries
from sgemm_tune.store.files import FileWriteError
from sgemm_tune.store.results import ResultsFile
from tests.stored import ARCH, entry, good_row, own_stages


@pytest.fixture(autouse=True)
def _stages() -> Iterator[None]:
    with own_stages():
        yield


def in_a_full_place(limit: int, work: Callable[[], object]) -> str:
    """Do `work` in a process whose files may hold `limit` bytes; the FileWriteError's message, or ""."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            work()
        except FileWriteError as error:
            os.write(write_end, str(error).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as said:
        message = said.read().decode()
    os.waitpid(child, 0)
    return message


@pytest.mark.parametrize("room", [0, 1, 100, 300])
def test_a_table_that_finds_no_room_stays_as_it_was(tmp_path: Path, room: int) -> None:
    table = ResultsFile(tmp_path / "results.csv")
    table.append([good_row("a")])
    before = table.path.read_bytes()
    message = in_a_full_place(len(before) + room, lambda: table.append([good_row("b"), good_row("c")]))
    assert message.startswith(f"cannot write {table.path}: File too large: ")
    assert table.path.read_bytes() == before
    assert table.append([good_row("a"), good_row("b")]) == 1
    assert table.frame()["row_id"].tolist() == ["a", "b"]


@pytest.mark.parametrize("room", [0, 1, 200])
def test_a_configuration_that_finds_no_room_stays_as_it_was(tmp_path: Path, room: int) -> None:
    path = config_path(tmp_path, ARCH)
    merge_entries(path, ARCH, [entry()])
    before = path.read_bytes()
    message = in_a_full_place(
        len(before) + room, lambda: merge_entries(path, ARCH, [entry(m=m) for m in (1, 2, 3)])
    )
    assert message.startswith(f"cannot write {path}: File too large: ")
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["h100.yaml", "h100.yaml.lock"]
    merge_entries(path, ARCH, [entry(m=1)])
    assert [found.m for found in load_config(path).entries] == [1, 4096]
