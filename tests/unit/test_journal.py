"""The journal: a turn is one write, which nobody sees half of; what cannot be written is not passed over."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sgemm_tune.errors import StorageError
from sgemm_tune.search import journal as module
from sgemm_tune.search.journal import Journal, open_journal
from sgemm_tune.store import files
from sgemm_tune.store.files import FileWriteError

Log = dict[str, Any]
RUNNING, COMPLETE, PRUNED = 0, 1, 2  # as Optuna numbers the states of trials


def log(number: int, **more: Any) -> Log:
    return {"op_code": 8, "worker_id": "w", "number": number, **more}


def numbers(journal: Journal, first: int = 0) -> list[int]:
    return [found["number"] for found in journal.read_logs(first)]


def lines(path: Path) -> list[int]:
    """What the file holds, as another program would read it."""
    return [json.loads(line)["number"] for line in path.read_text().splitlines()]


class Counts:
    """How often the journal's file is appended to, waited for, read, and asked for its size."""

    def __init__(self) -> None:
        self.zero()

    def zero(self) -> None:
        """Start anew."""
        self.appends = self.syncs = self.reads = self.looks = 0

    @property
    def all(self) -> tuple[int, int, int]:
        """(appends, syncs, reads)."""
        return self.appends, self.syncs, self.reads


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "my.journal"


@pytest.fixture
def counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> Counts:
    counts = Counts()
    append, sync, open_, stat = files.append_lines, os.fsync, Path.open, Path.stat

    def counted_append(*args: Any, **more: Any) -> None:
        counts.appends += 1
        append(*args, **more)

    def counted_sync(handle: int) -> None:
        counts.syncs += os.path.samestat(os.fstat(handle), stat(path))
        sync(handle)

    def counted_open(self: Path, mode: str = "r", *args: Any, **more: Any) -> Any:
        counts.reads += self == path and mode == "rb"
        return open_(self, mode, *args, **more)

    def counted_stat(self: Path, **more: Any) -> Any:
        counts.looks += self == path
        return stat(self, **more)

    monkeypatch.setattr(Path, "stat", counted_stat)
    monkeypatch.setattr(module, "append_lines", counted_append)
    monkeypatch.setattr(os, "fsync", counted_sync)
    monkeypatch.setattr(Path, "open", counted_open)
    return counts


@pytest.fixture
def journal(path: Path) -> Journal:
    return open_journal(path)


def test_a_turn_is_one_write_which_is_read_back_before_it_happens(
    path: Path, journal: Journal, counts: Counts
) -> None:
    journal.append_logs([log(0)])
    other = open_journal(path)
    with journal.turn():
        assert numbers(other) == [0]
        counts.zero()
        journal.append_logs([log(1)])
        assert numbers(journal, 0) == [0, 1]
        with journal.turn():
            journal.append_logs([log(2), log(3, params=("a", 1))])
        assert numbers(journal, 1) == [1, 2, 3]
        assert numbers(journal, 3) == [3]
        assert numbers(journal, 4) == []
        assert next(journal.read_logs(3))["params"] == ["a", 1], "as whoever reads the file will see it"
        assert lines(path) == [0], "nothing is written before the outermost turn ends"
        assert (*counts.all, counts.looks) == (0, 0, 1, 1), "in its turn, nobody else writes"
    assert lines(path) == [0, 1, 2, 3]
    assert counts.appends == 1
    assert numbers(other, 1) == [1, 2, 3]
    assert numbers(journal, 4) == []


def test_an_append_without_a_turn_is_a_turn(path: Path, journal: Journal, counts: Counts) -> None:
    journal.append_logs([log(0)])
    journal.append_logs([log(1)])
    assert lines(path) == numbers(journal) == [0, 1]
    assert counts.appends == 2


def test_a_turn_that_appends_nothing_writes_nothing(path: Path, journal: Journal, counts: Counts) -> None:
    with journal.turn():
        assert numbers(journal) == []
    assert (counts.appends, path.read_bytes()) == (0, b"")


def test_the_disk_is_waited_for_once_and_only_where_a_trial_ends(journal: Journal, counts: Counts) -> None:
    for states, syncs in [
        ((), 0),
        ((RUNNING,), 0),
        ((COMPLETE,), 1),
        ((RUNNING, PRUNED, COMPLETE), 1),
        ((), 0),
    ]:
        counts.zero()
        with journal.turn():
            journal.append_logs([log(0)])
            for state in states:
                journal.append_logs([log(1, state=state)])
            journal.append_logs([log(2)])
        journal.wait_for_disk()
        assert (counts.appends, counts.syncs) == (1, syncs), states


def test_the_disk_is_waited_for_by_the_next_trials_end_not_by_this_one(
    path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Semaphore(0), threading.Semaphore(0)

    def slow(handle: int) -> None:
        began.release()
        assert go_on.acquire(timeout=20)

    journal.append_logs([log(0)])  # a new file's folder is waited for
    monkeypatch.setattr(os, "fsync", slow)
    journal.append_logs([log(1, state=COMPLETE)])
    assert began.acquire(timeout=20)
    journal.append_logs([log(2, state=RUNNING)])
    assert lines(path) == numbers(journal) == [0, 1, 2], "a kill would lose nothing"
    next_one = threading.Thread(target=journal.append_logs, args=([log(3, state=PRUNED)],))
    next_one.start()
    next_one.join(0.1)
    assert next_one.is_alive()
    assert lines(path) == [0, 1, 2]
    go_on.release()
    next_one.join(20)
    assert lines(path) == [0, 1, 2, 3]
    go_on.release()
    journal.wait_for_disk()
    assert began.acquire(timeout=20), "and once more, for that one"
    journal.wait_for_disk()


@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_disk_that_fails_is_said_by_whoever_waits_for_it_and_ever_after(
    path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, at_the_end: bool
) -> None:
    def broken(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    journal.append_logs([log(0)])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        journal.append_logs([log(1, state=COMPLETE)])
        waits = journal.wait_for_disk if at_the_end else lambda: journal.append_logs([log(2, state=PRUNED)])
        with pytest.raises(FileWriteError, match=r"cannot write .*my\.journal: Input/output error") as first:
            waits()
    assert lines(path) == [0, 1]
    for use in (*uses(journal), journal.wait_for_disk):
        with pytest.raises(FileWriteError) as later:
            use()
        assert str(later.value) == str(first.value)


def test_what_was_read_is_not_read_again(journal: Journal, counts: Counts) -> None:
    for number in range(5):
        with journal.turn():
            assert numbers(journal, number) == []
            journal.append_logs([log(number)])
            assert numbers(journal, number) == [number]
    assert numbers(journal, 5) == []
    assert counts.all == (5, 0, 0), "nobody else wrote, as the file's size tells"
    assert numbers(journal, 2) == [2, 3, 4], "but whoever fell behind can catch up"
    assert counts.all == (5, 0, 1)
    assert numbers(journal, 5) == []


def test_journals_that_take_turns_agree_on_the_order(path: Path) -> None:
    """Each follows the file from where it stopped, as Optuna does, whatever the other did in between."""
    chance = random.Random(0)
    journals = [open_journal(path) for _ in range(3)]
    seen: list[list[int]] = [[] for _ in journals]
    written: list[int] = []
    for _ in range(300):
        which = chance.randrange(3)
        journal, known = journals[which], seen[which]
        with ExitStack() as turn:
            for _ in range(chance.randrange(3)):
                turn.enter_context(journal.turn())
            for _ in range(chance.randrange(4)):
                if chance.random() < 0.6:
                    written.append(len(written))
                    journal.append_logs([log(written[-1])])
                if chance.random() < 0.6:
                    known += numbers(journal, len(known))
                    assert known == written
    assert len(written) > 200
    assert lines(path) == written
    assert [known + numbers(journal, len(known)) for journal, known in zip(journals, seen, strict=True)] == [
        written
    ] * 3


def take_turns(path: Path, who: int) -> None:
    journal = open_journal(path)
    known: list[int] = []
    for _ in range(40):
        with journal.turn():
            known += numbers(journal, len(known))
            for step in range(3):
                assert known == list(range(len(known))), "it sees all that others wrote, and in its order"
                journal.append_logs([log(len(known), who=who, step=step)])
                known += numbers(journal, len(known))


def test_processes_that_take_turns_do_not_get_between_each_others_lines(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=take_turns, args=(path, who)) for who in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert lines(path) == list(range(4 * 40 * 3))
    stored = [json.loads(line) for line in path.read_text().splitlines()]
    turns = [stored[i : i + 3] for i in range(0, len(stored), 3)]
    assert all([found["step"] for found in turn] == [0, 1, 2] for turn in turns)
    assert all(len({found["who"] for found in turn}) == 1 for turn in turns)
    assert {turn[0]["who"] for turn in turns} == {0, 1, 2, 3}


def test_what_was_appended_before_an_exception_is_written(path: Path, journal: Journal) -> None:
    def break_off() -> None:
        with journal.turn():
            journal.append_logs([log(0)])
            with journal.turn():
                journal.append_logs([log(1)])
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()
    assert lines(path) == [0, 1]
    journal.append_logs([log(2)])
    assert lines(path) == numbers(journal) == [0, 1, 2]


def full(handle: int, data: bytes) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def half_full(handle: int, data: bytes) -> int:
    """Takes the first lines, then no more."""
    if len(data) < 60:
        full(handle, data)
    return os.pwrite(handle, bytes(data[:-40]), os.fstat(handle).st_size)


def test_nobody_reads_a_write_that_fails_halfway(
    path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.append_logs([log(0)])
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    other, write_all = open_journal(path), os.write

    def read() -> None:
        os.write = write_all  # the pipe needs it
        theirs.send(numbers(other))

    reader = context.Process(target=read)

    def write(handle: int, data: bytes) -> int:
        os.pwrite(handle, bytes(data)[: bytes(data).index(b"\n") + 5], os.fstat(handle).st_size)
        assert path.read_text().count("\n") == 2, "one line of the two, and a part"
        reader.start()
        reader.join(0.3)
        return full(handle, data)

    turn = journal.turn()
    turn.__enter__()
    journal.append_logs([log(1), log(2)])
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(FileWriteError):
            turn.__exit__(None, None, None)
    assert ours.poll(20)
    assert ours.recv() == lines(path) == [0]
    reader.join()


def uses(journal: Journal) -> Iterator[Callable[[], Any]]:
    yield lambda: journal.append_logs([log(9)])
    yield lambda: numbers(journal)
    yield journal.turn().__enter__


@pytest.mark.parametrize("write", [full, half_full])
def test_a_turn_that_cannot_be_written_says_so_then_and_whenever_the_journal_is_used(
    path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, write: Callable[[int, bytes], int]
) -> None:
    journal.append_logs([log(0)])
    turn = journal.turn()
    turn.__enter__()
    for number in (1, 2, 3):
        journal.append_logs([log(number)])
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(FileWriteError, match=r"cannot write .*my\.journal: No space left") as first:
            turn.__exit__(None, None, None)
    assert "\n" not in str(first.value)
    assert lines(path) == [0], "all of it, or nothing"
    for use in uses(journal):
        with pytest.raises(FileWriteError) as later:
            use()
        assert str(later.value) == str(first.value)
    assert lines(path) == [0]
    another = open_journal(path)
    another.append_logs([log(1)])
    assert numbers(another) == lines(path) == [0, 1]


def test_a_turn_whose_writing_is_interrupted_is_not_passed_over(
    path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(handle: int, data: bytes) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.append_logs([log(0)])
    assert lines(path) == []
    for use in uses(journal):
        with pytest.raises(StorageError, match=r"my\.journal was interrupted: start again"):
            use()


@pytest.mark.parametrize("looks_first", [False, True])
def test_a_torn_line_is_moved_aside_and_not_counted(path: Path, looks_first: bool) -> None:
    journal = open_journal(path)
    journal.append_logs([log(0)])
    with path.open("ab") as file:
        file.write(b'{"op_code":5,"numb')  # another process was killed here
    with journal.turn():
        known = numbers(journal) if looks_first else []
        journal.append_logs([log(1)])
        known += numbers(journal, len(known))
        journal.append_logs([log(2)])
        known += numbers(journal, len(known))
    assert known == lines(path) == [0, 1, 2]
    journal.append_logs([log(3)])
    assert numbers(journal, 3) == [3]
    assert path.with_name("my.journal.torn").read_text() == '{"op_code":5,"numb\n'


def test_damage_is_said_with_its_line(path: Path, journal: Journal) -> None:
    journal.append_logs([log(0)])
    assert numbers(journal) == [0]
    with path.open("ab") as file:
        file.write(b"rubbish\n" + json.dumps(log(2)).encode() + b"\n")
    with pytest.raises(StorageError, match=r"my\.journal is damaged: line 2 is no JSON"):
        numbers(journal, 1)
