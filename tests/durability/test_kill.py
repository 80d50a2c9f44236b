"""Kill -9 at random moments: the files always parse, and what was acknowledged is there."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sgemm_tune.store.configs import config_path, kernel_of, load_config, merge_entries
from sgemm_tune.store.files import replace_atomically
from sgemm_tune.store.results import ResultsFile
from tests.stored import ARCH, entry, good_row, own_stages

ROUNDS = 100
_DEADLINE = 60.0


@pytest.fixture(autouse=True)
def _stages() -> Iterator[None]:
    with own_stages():
        yield


def killed_while(write: Callable[[int], None], dice: random.Random, first: int) -> list[int]:
    """Fork a process that writes first, first + 1, ... and kill it; returns what it said was stored."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        try:
            for number in range(first, first + 1000):
                write(number)
                os.write(write_end, f"{number}\n".encode())
        finally:
            os._exit(1)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as acknowledged:
        said = [acknowledged.readline()]
        time.sleep(dice.uniform(0, 0.012))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        said += acknowledged.readlines()
    assert os.WIFSIGNALED(status), "the writer failed by itself"
    return [int(line) for line in said]


def test_no_acknowledged_row_is_lost(tmp_path: Path) -> None:
    dice = random.Random(1)
    path = tmp_path / "results.csv"
    stored: set[str] = set()
    unacknowledged = 0
    for turn in range(ROUNDS):
        numbers = killed_while(lambda number: _append(path, number), dice, first=1000 * turn)
        stored |= {f"row-{number}" for number in numbers}
        ids = ResultsFile(path).frame()["row_id"].tolist()
        assert len(ids) == len(set(ids))
        assert stored <= set(ids)
        # of one killed process one row may be stored without its having said so
        assert len(ids) - len(stored) <= turn + 1
        unacknowledged = len(ids) - len(stored)
    assert unacknowledged < ROUNDS
    missing = [good_row(row_id) for row_id in (*sorted(stored), "resumed")]
    assert ResultsFile(path).reconcile(missing) == 1


def _append(path: Path, number: int) -> None:
    ResultsFile(path).append([good_row(f"row-{number}")])


def test_no_acknowledged_entry_is_lost(tmp_path: Path) -> None:
    dice = random.Random(2)
    path = config_path(tmp_path, ARCH)
    stored: set[int] = set()
    for turn in range(ROUNDS):
        numbers = killed_while(lambda number: _merge(path, number), dice, first=1 + 1000 * turn)
        stored |= set(numbers)
        found = load_config(path).entries
        assert stored <= {entry.m for entry in found}
        assert len(found) - len(stored) <= turn + 1
    for one in load_config(path).entries:
        kernel_of(one)


def _merge(path: Path, number: int) -> None:
    merge_entries(path, ARCH, [entry(m=number)])


def test_a_replaced_file_is_always_one_of_its_versions(tmp_path: Path) -> None:
    dice = random.Random(3)
    path = tmp_path / "report.md"
    for turn in range(ROUNDS):
        numbers = killed_while(
            lambda number: replace_atomically(path, f"{number}\n" * 20_000), dice, first=1000 * turn
        )
        lines = path.read_text().splitlines()
        assert len(lines) == 20_000
        assert len(set(lines)) == 1
        assert int(lines[0]) in (numbers[-1], numbers[-1] + 1)


def test_a_dead_holder_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    started = time.monotonic()
    for turn in range(20):
        killed_while(lambda number: _append(path, number), random.Random(turn), first=1000 * turn)
        _append(path, 10**6 + turn)
    assert time.monotonic() - started < _DEADLINE
