"""Searching processes that are killed, starved of disk, or many at a time: nothing is lost, nothing wiped.

Processes come from a fork server that has everything imported, so that a hundred of them start quickly. Their
GPU is scripted; in the tests that say so, so are the worker's and the compilers' processes' places.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sgemm_tune.errors import SgemmTuneError, StorageError
from sgemm_tune.measure.outcome import Measurement
from sgemm_tune.problem import Problem
from sgemm_tune.search.types import Progress
from sgemm_tune.store.configs import load_config
from sgemm_tune.store.results import ResultsFile
from tests.fakes import Bench, Script

STAGES = ("vectorized", "block_tile_2d")
SHAPES = tuple(Problem(2048, 2048, 256 * (i + 1)) for i in range(32))
BUDGET = 120
"""Trials of each shape; the stages have some more configurations."""
Known = dict[str, tuple[str, float | None]]
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["sgemm_tune.search.search", "tests.fakes"])


def search(bench: Bench, told: Path, settings: dict[str, Any]) -> None:
    """What a process does: search, and say of each trial when it is finished."""

    def on_event(event: Progress) -> None:
        if event.last is not None:
            handle = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(handle, f"{event.problem.shape} {event.last[0]}\n".encode())
            os.close(handle)

    bench.search(on_event=on_event, **settings)


def start(bench: Bench, **settings: Any) -> Any:
    process = PROCESSES.Process(target=search, args=(bench, bench.root / "told", settings))
    process.start()
    return process


def told(bench: Bench) -> set[str]:
    """What processes took for finished; a kill may cut the last line short."""
    path = bench.root / "told"
    return (
        {line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")}
        if path.exists()
        else set()
    )


def finished(bench: Bench) -> Known:
    """Of each trial that ended: (its row's id, its time) by shape and configuration."""
    found: Known = {}
    for trial in bench.trials():
        if trial.state.name in ("COMPLETE", "PRUNED"):
            row = trial.user_attrs["result"]["row"]
            name = f"{row['m']}x{row['n']}x{row['k']} {trial.params}"
            assert name not in found, "no configuration is measured twice"
            found[name] = (row["row_id"], trial.value)
    return found


def assert_whole(bench: Bench, before: Known) -> Known:
    """Both files parse, and what was finished before still is. Returns what is finished now."""
    if bench.yaml.exists():
        load_config(bench.yaml)
    ResultsFile(bench.root / "results" / "results.csv").frame()
    now = finished(bench) if bench.journal.exists() else {}
    assert before.items() <= now.items(), "no finished trial is lost"
    return now


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found |= {int(child)} | descendants(int(child))
    return found


def lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def wait_until(holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.02)
    return False


def assert_resumes(bench: Bench, known: Known, trials: int) -> None:
    """The next run ends what was begun: every trial once, in the study and in the table."""
    results = bench.search(trials=trials)
    assert [result.done for result in results] == [trials] * len(bench.problems)
    now = assert_whole(bench, known)
    assert len(now) == trials * len(bench.problems)
    states = {trial.state.name for trial in bench.trials()}
    assert states <= {"COMPLETE", "PRUNED", "FAIL"}, "no trial stays RUNNING"
    rows = bench.rows()
    assert sorted(row["row_id"] for row in rows) == sorted(row_id for row_id, _ in now.values())
    names = {f"{row['m']}x{row['n']}x{row['k']} {row['stage']}" + row["config"] for row in rows}
    assert len(names) == len(rows)
    assert len(told(bench)) <= len(rows)
    assert load_config(bench.yaml).entries


def wait_for_a_moment(bench: Bench, process: Any, moments: random.Random) -> None:
    """Return at a random moment of the process's life: as it starts, or around some trial's end."""
    seen, more = len(told(bench)), moments.randrange(5)
    if more == 0:
        time.sleep(moments.uniform(0.0, 1.0))
        return
    assert wait_until(lambda: len(told(bench)) >= seen + more or not process.is_alive(), 60)
    time.sleep(moments.uniform(0.0, 0.04))


def kill_again_and_again(bench: Bench, kills: int, seed: int) -> tuple[Bench, Known]:
    """Kill searching processes and look at the files after each; a shape that is done gives way to the next.

    Returns:
        The bench with the shapes that it came to, and the trials that are finished.
    """
    moments = random.Random(seed)
    known: Known = {}
    shape = 0
    while kills:
        process = start(replace(bench, problems=SHAPES[shape : shape + 1]), trials=BUDGET)
        wait_for_a_moment(bench, process, moments)
        children = descendants(process.pid)
        process.kill()
        process.join()
        known = assert_whole(bench, known)
        assert wait_until(lambda: not any(map(lives, children))), "its processes end with it"  # noqa: B023
        if process.exitcode == 0:
            shape += 1
        else:
            assert process.exitcode == -signal.SIGKILL
            kills -= 1
    assert any(trial.state.name == "FAIL" for trial in bench.trials()), "trials were lost in flight"
    return replace(bench, problems=SHAPES[: shape + 1], real=False), known


def test_85_kills_at_random_moments(tmp_path: Path) -> None:
    bench, known = kill_again_and_again(Bench(tmp_path, Script(pause=0.004), STAGES), 85, seed=1)
    assert len(known) >= 85
    assert_resumes(bench, known, BUDGET + 5)


def test_15_kills_with_real_worker_and_compilers(tmp_path: Path) -> None:
    script = Script(pause=0.01, compile_pause=0.01)
    bench, known = kill_again_and_again(Bench(tmp_path, script, STAGES, real=True), 15, seed=2)
    assert len(known) >= 15
    assert_resumes(bench, known, BUDGET + 5)


def test_a_live_process_keeps_its_trials_when_another_one_resumes(tmp_path: Path) -> None:
    """Only what a process that is gone left behind is settled."""
    slow = Bench(tmp_path, Script(pause=0.5), ("coalesced",))
    first = start(slow, trials=15, jobs=1)
    assert wait_until(lambda: len(told(slow)) >= 1)
    (second,) = replace(slow, script=Script()).search(trials=15)
    first.join()
    assert first.exitcode == 0
    assert second.new > 0
    assert len(finished(slow)) == len(slow.rows()) == 15
    assert {trial.state.name for trial in slow.trials()} == {"COMPLETE"}


def test_eight_processes_of_50_trials_leave_400_rows_and_every_entry(tmp_path: Path) -> None:
    shapes = [Problem(1024, 2048, 256 * (i + 1)) for i in range(8)]
    benches = [Bench(tmp_path, Script(), STAGES, (shape,)) for shape in shapes]
    processes = [start(bench, trials=50) for bench in benches]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 8
    assert len(benches[0].rows()) == len(finished(benches[0])) == 400
    entries = load_config(benches[0].yaml).entries
    assert {(entry.m, entry.n, entry.k) for entry in entries} == {(s.m, s.n, s.k) for s in shapes}
    assert {trial.state.name for trial in benches[0].trials()} == {"COMPLETE"}


@pytest.mark.parametrize("storage", [None, "sqlite"])
def test_processes_that_share_one_study_share_its_budget(tmp_path: Path, storage: str | None) -> None:
    url = f"sqlite:///{tmp_path}/studies.db" if storage else None
    bench = Bench(tmp_path, Script(), STAGES)
    budget = 60 if storage else 150
    processes = [start(bench, trials=budget, storage=url) for _ in range(4 if storage else 8)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(processes)
    rows = bench.rows()
    assert len(rows) == len({row["stage"] + row["config"] for row in rows}) == budget
    (entry,) = load_config(bench.yaml).entries
    assert entry.ms <= min(float(row["ms"]) for row in rows) * 1.01


def limited(bench: Bench, bytes_left: int, answer: Any) -> None:
    """Search with a file size limit, which fails as a full disk does: in the middle of a write."""
    size = max(path.stat().st_size for path in bench.root.rglob("*") if path.is_file())
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + bytes_left, resource.RLIM_INFINITY))
    try:
        bench.search(trials=40)
    except SgemmTuneError as error:
        answer.put(str(error))
    else:
        answer.put("no error")


@pytest.mark.parametrize("bytes_left", [0, 100, 777, 5000])
def test_a_full_disk_says_so_and_loses_nothing(tmp_path: Path, bytes_left: int) -> None:
    bench = Bench(tmp_path, Script(), STAGES)
    bench.search(trials=10)
    known = finished(bench)
    answer = PROCESSES.Queue()
    process = PROCESSES.Process(target=limited, args=(bench, bytes_left, answer))
    process.start()
    message = answer.get(timeout=60)
    process.join()
    assert "File too large" in message
    assert "\n" not in message
    known = assert_whole(bench, known)
    assert_resumes(bench, known, 40)


TAILS = {
    "cut short": lambda data: data[:-20],
    "cut within a line's end": lambda data: data[:-1],
    "half a line": lambda data: data + b'{"op_code":5,"worker_id":"x","trial_i',
    "zeros of a crashed file system": lambda data: data + b"\0" * 512,
    "a whole line of rubbish": lambda data: data + b"\xff\xfe not json\n",
    "rubbish over several lines": lambda data: data + b"one\ntwo\n\0\0\0",
}


@pytest.mark.parametrize("damage", TAILS)
def test_a_damaged_tail_of_the_journal_costs_at_most_the_trial_it_is_about(
    tmp_path: Path, damage: str
) -> None:
    bench = Bench(tmp_path, Script(), ("coalesced",))
    bench.search(trials=8)
    known = finished(bench)
    bench.journal.write_bytes(TAILS[damage](bench.journal.read_bytes()))
    (result,) = bench.search(trials=12)
    assert result.resumed >= 7
    now = finished(bench)
    kept = {name: value for name, value in now.items() if known.get(name) == value}
    assert len(kept) >= 7
    assert len(now) == 12
    assert {trial.state.name for trial in bench.trials()} <= {"COMPLETE", "FAIL"}
    bench.search(trials=12)  # and it is mended for good


def test_damage_in_the_middle_is_said_with_its_line_and_nothing_is_wiped(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(), ("coalesced",))
    bench.search(trials=3)
    lines = bench.journal.read_bytes().splitlines(keepends=True)
    lines[4] = b"rubbish\n"
    bench.journal.write_bytes(b"".join(lines))
    with pytest.raises(StorageError, match=r"sm_90\.journal is damaged: line 5"):
        bench.search(trials=8)
    assert bench.journal.read_bytes() == b"".join(lines)


@pytest.mark.parametrize("content", [b"hello\n", b"a,b\n1,2\n", b'{"some": "json"}\n', b"\x7fELF\0\0"])
def test_a_file_that_is_no_journal_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine"
    path.write_bytes(content)
    with pytest.raises(StorageError, match="no journal of Optuna"):
        Bench(tmp_path).search(trials=3, storage=str(path))
    assert path.read_bytes() == content


def test_studies_of_others_in_the_same_storage_are_left_alone(tmp_path: Path) -> None:
    import optuna  # noqa: TID251

    bench = Bench(tmp_path, Script(), ("coalesced",))
    url = f"sqlite:///{tmp_path}/shared.db"
    theirs = optuna.create_study(storage=url, study_name="theirs")
    theirs.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    running = theirs.ask()
    (result,) = bench.search(trials=4, storage=url)
    assert result.done == 4
    again = optuna.load_study(study_name="theirs", storage=url)
    assert [trial.state.name for trial in again.trials] == ["COMPLETE", "COMPLETE", "RUNNING"]
    assert again.trials[2].number == running.number


def test_any_storage_url_resumes(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script({}, log=tmp_path / "log"), ("coalesced",))
    url = f"sqlite:///{tmp_path}/studies.db"
    bench.search(trials=6, storage=url)
    (result,) = bench.search(trials=9, storage=url)
    assert (result.resumed, result.new) == (6, 3)
    assert not bench.journal.exists()
    journal = tmp_path / "elsewhere" / "my.journal"
    (fresh,) = bench.search(trials=2, storage=str(journal))
    assert (fresh.resumed, fresh.new) == (0, 2)
    (again,) = bench.search(trials=4, storage=f"journal://{journal}")
    assert (again.resumed, again.new) == (2, 2)


@pytest.mark.parametrize(
    ("storage", "reason"),
    [
        ("sqlite:///{root}/no/such/x.db", "unable to open database file"),
        ("sqlite:///{root}/text", "not a database"),
        ("postgresql://me:secret@localhost/x", "driver"),
        ("nosuchdb://localhost/x", "nosuchdb"),
        ("{root}/text/below.journal", "Not a directory"),
        ("{root}", "Is a directory"),
    ],
)
def test_a_storage_that_cannot_be_opened_says_why_in_one_line(
    tmp_path: Path, storage: str, reason: str
) -> None:
    (tmp_path / "text").write_text("some text that is no database, long enough to be looked at" * 30)
    with pytest.raises(SgemmTuneError, match=reason) as caught:
        Bench(tmp_path).search(trials=3, storage=storage.format(root=tmp_path))
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "results" / "results.csv").exists()


def test_a_locked_database_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgemm_tune.search.storage._LOCKED_SECONDS", 0.1)
    bench = Bench(tmp_path, Script(), ("coalesced",))
    url = f"sqlite:///{tmp_path}/studies.db"
    bench.search(trials=2, storage=url)
    other = sqlite3.connect(tmp_path / "studies.db")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StorageError, match=r"database is locked\): wait for the other process"):
        bench.search(trials=4, storage=url)
    other.rollback()
    other.close()
    (result,) = bench.search(trials=4, storage=url)
    assert (result.resumed, result.new) == (2, 2)


def test_an_outcome_that_was_stored_a_moment_before_the_kill_counts(tmp_path: Path) -> None:
    """Killed between the outcome and the change of state: the trial is finished, not tried again."""
    bench = Bench(tmp_path, Script(log=tmp_path / "log"), ("coalesced",))
    bench.search(trials=8)
    lines = bench.journal.read_bytes().splitlines(keepends=True)
    ends = [i for i, line in enumerate(lines) if b'"state"' in line]
    here = _token().rsplit("|", 2)[0]
    gone = f"{here}|{2**22 + 1}|1".encode()  # above the highest process id
    kept = [line for i, line in enumerate(lines) if i != ends[-1]]
    bench.journal.write_bytes(b"".join(kept).replace(_token().encode(), gone))
    states = [trial.state.name for trial in bench.trials()]
    assert states.count("RUNNING") == 1
    (result,) = bench.search(trials=8)
    assert (result.resumed, result.new) == (8, 0)
    assert all(isinstance(outcome, Measurement) for outcome in [f.outcome for f in result.verdict.finalists])
    assert {trial.state.name for trial in bench.trials()} == {"COMPLETE"}


def _token() -> str:
    from sgemm_tune.search.owners import owner_token

    return owner_token()
