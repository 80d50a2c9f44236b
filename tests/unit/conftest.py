"""A working directory and a command line for the tests that need them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from sgemm_tune.cli import run
from tests.command_line import Cli, Ran


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a name that is not ASCII, on a machine that shows no GPU."""
    place = tmp_path / "Zürich 北京"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("SGEMM_TUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return place


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], here: Path) -> Cli:
    """Runs a command line in this process."""

    def ran(line: str) -> Ran:
        code = run(shlex.split(line))
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return ran
