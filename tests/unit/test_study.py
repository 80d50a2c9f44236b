"""A study and its journal: what is asked for or told in one go is one write, and comes in its order."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sgemm_tune.arch import parse_arch
from sgemm_tune.kernel import stage_named
from sgemm_tune.measure.outcome import Outcome, Rejected, Status
from sgemm_tune.search import journal
from sgemm_tune.search.builds import builds_of
from sgemm_tune.search.points import space_of
from sgemm_tune.search.samplers import make_sampler
from sgemm_tune.search.storage import open_storage
from sgemm_tune.search.study import TuningStudy
from sgemm_tune.store import files
from sgemm_tune.store.files import FileWriteError
from sgemm_tune.store.results import Row
from tests.stored import measurement

REJECTED = Rejected(Status.WRONG, "never written")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "studies.journal"


def opened(path: Path) -> TuningStudy:
    space = space_of((stage_named("block_tile_2d"),), parse_arch("sm_90"))
    return TuningStudy(open_storage(path, path.parent), "mine", space, make_sampler("random", space, 1))


def steps(path: Path, since: int = 0) -> list[tuple[Any, str]]:
    """(trial, what is said of it) for each line from this one on."""
    found = []
    for text in path.read_text().splitlines()[since:]:
        line = json.loads(text)
        said = [*line.get("system_attr", {}), *line.get("user_attr", {})]
        said += [f"state {line['state']}"] if "state" in line else []
        found.append((line.get("trial_id"), " ".join(said)))
    return found


def counted(monkeypatch: pytest.MonkeyPatch, path: Path, act: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What `act` returns, and what it does with the journal's file."""
    done: list[str] = []
    append, sync, open_ = files.append_lines, os.fsync, Path.open

    def counted_append(*args: Any, **more: Any) -> None:
        done.append("append")
        append(*args, **more)

    def counted_sync(handle: int) -> None:
        done.append("sync")
        sync(handle)

    def counted_open(self: Path, mode: str = "r", *args: Any, **more: Any) -> Any:
        if self == path and mode == "rb":
            done.append("read")
        return open_(self, mode, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(journal, "append_lines", counted_append)
        patch.setattr(os, "fsync", counted_sync)
        patch.setattr(Path, "open", counted_open)
        return act(), done


def test_candidates_that_are_asked_for_together_are_one_write(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = opened(path)
    before = len(steps(path))
    candidates, done = counted(monkeypatch, path, lambda: study.ask(20, 4))
    assert done == ["append"]
    assert steps(path, before) == [(None, "state 0")] * 4
    open_storage(path, path.parent).backend.set_study_user_attr(0, "somebody else", "writes")
    more, done = counted(monkeypatch, path, lambda: study.ask(20, 4))
    assert done == ["read", "append"]
    assert [c.number for c in [*candidates, *more]] == list(range(8))
    assert len({c.kernel for c in [*candidates, *more]}) == 8


def test_outcomes_that_are_told_together_are_one_write_each_before_its_trial_ends(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = opened(path)
    candidates = study.ask(20, 4)
    before = len(steps(path))
    outcomes: list[Outcome] = [measurement(), REJECTED, replace(measurement(), ms=1.5)]
    rows: list[Row] = [{"row_id": name} for name in "abc"]
    told = list(zip((candidates[i] for i in (2, 0, 3)), outcomes, rows, strict=True))

    def tell() -> None:
        study.tell(told)
        study._storage.wait_for_disk()

    _, done = counted(monkeypatch, path, tell)
    assert done == ["append", "sync"]
    assert steps(path, before) == [
        (2, "result"),
        (2, "state 1"),
        (0, "constraints:valid"),
        (0, "result"),
        (0, "state 2"),
        (3, "result"),
        (3, "state 1"),
    ]
    for each in (study, opened(path)):
        known = {f.number: (f.kernel, f.outcome, f.row["row_id"]) for f in each.finished()}
        assert known == {c.number: (c.kernel, outcome, row["row_id"]) for c, outcome, row in told}


@pytest.mark.parametrize("outcome", [measurement(), REJECTED], ids=["measured", "rejected"])
def test_a_trial_that_another_machine_has_given_up_keeps_no_other_from_being_told(
    path: Path, outcome: Outcome
) -> None:
    study = opened(path)
    candidates = study.ask(20, 3)
    storage = open_storage(path, path.parent)
    from optuna.trial import TrialState  # noqa: TID251

    storage.backend.set_trial_state_values(candidates[1].trial_id, TrialState.FAIL)
    study.tell([(candidate, outcome, {}) for candidate in candidates])
    assert [finished.number for finished in study.finished()] == [0, 2]
    (again,) = study.ask(3, 2)
    assert (again.number, again.kernel) == (3, candidates[1].kernel)


def test_outcomes_that_find_no_room_are_told_to_nobody_and_the_study_goes_on_elsewhere(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = opened(path)
    candidates = study.ask(20, 4)
    study.tell([(candidates[0], measurement(), {})])
    before = path.read_bytes()

    def full(handle: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(FileWriteError, match=r"cannot write .*: No space left") as caught:
            study.tell([(candidate, measurement(), {}) for candidate in candidates[1:3]])
    assert path.read_bytes() == before
    uses: list[Callable[[], Any]] = [
        lambda: study.ask(20, 1),
        lambda: study.tell([(candidates[3], measurement(), {})]),
        study.finished,
        study.release,
    ]
    for use in uses:
        with pytest.raises(FileWriteError) as later:
            use()
        assert str(later.value) == str(caught.value)
    assert path.read_bytes() == before
    monkeypatch.setattr("sgemm_tune.search.study.is_alive", lambda *_: False)
    monkeypatch.setattr("sgemm_tune.search.study.owner_token", lambda: "another process")
    another = opened(path)
    assert [finished.number for finished in another.finished()] == [0]
    lost = {candidate.kernel for candidate in candidates[1:]}
    assert {candidate.kernel for candidate in another.ask(4, 4)} == lost, "they are tried again"


@pytest.mark.parametrize("wanted", [0, 5, 12])
def test_as_many_need_no_compiling_as_are_wanted(path: Path, wanted: int) -> None:
    """Where the same is expected of all; that of 12 every one needs none by chance is next to impossible."""
    stages, arch = (stage_named("vectorized"),), parse_arch("sm_90")
    space = space_of(stages, arch)
    there = {kernel.code for kernel in stages[0].legal(arch)[::4]}
    sampler = make_sampler("gp", space, 0, builds=builds_of(stages, arch, lambda _: there))
    study = TuningStudy(open_storage(path, path.parent), "mine", space, sampler)
    study.tell([(candidate, measurement(), {}) for candidate in study.ask(20, 20)])
    ready = [candidate.kernel.code in there for candidate in study.ask(32, 12, wanted)]
    assert all(ready[:wanted])
    assert all(ready) == (wanted == 12)
