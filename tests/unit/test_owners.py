"""Whether the process that began a trial still lives."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from sgemm_tune.search.owners import FOREIGN_PATIENCE, is_alive, owner_token

NOW = datetime.now(UTC)


def token(**changes: str) -> str:
    names = ("host", "boot", "namespace", "pid", "start")
    return "|".join((dict(zip(names, owner_token().split("|"), strict=True)) | changes).values())


def test_this_process_is_alive() -> None:
    assert is_alive(owner_token(), NOW)
    assert is_alive(owner_token(), None)
    assert str(os.getpid()) in owner_token().split("|")


def test_another_living_process_is_alive_until_it_ends() -> None:
    program = "from sgemm_tune.search.owners import owner_token; print(owner_token(), flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    its = other.stdout.readline().strip()
    assert is_alive(its, NOW)
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # dead, but not yet waited for
    assert not is_alive(its, NOW)
    other.communicate()
    assert not is_alive(its, NOW)


@pytest.mark.parametrize(
    "changes",
    [{"pid": "4194305"}, {"start": "1"}, {"boot": "an earlier one"}],
    ids=["no such process", "its number was given to another one", "the machine was started anew"],
)
def test_a_process_that_is_gone(changes: dict[str, str]) -> None:
    assert not is_alive(token(**changes), NOW)


@pytest.mark.parametrize("changes", [{"host": "elsewhere"}, {"namespace": "1"}], ids=["machine", "container"])
def test_processes_that_cannot_be_looked_at_are_given_time(changes: dict[str, str]) -> None:
    assert is_alive(token(**changes), NOW - FOREIGN_PATIENCE + timedelta(minutes=30))
    assert not is_alive(token(**changes), NOW - FOREIGN_PATIENCE - timedelta(minutes=1))
    assert not is_alive(token(**changes), None)


@pytest.mark.parametrize("text", ["", "rubbish", "a|b", "a|b|c|d|e", "|||"])
def test_what_is_no_token_is_gone(text: str) -> None:
    assert not is_alive(text, NOW)
