"""Tests marked `gpu` skip with the reason where there is no GPU; with --require-gpu they fail instead."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Generator
from typing import Any

import pytest

_PROBE = """
import sys
from sgemm_tune.device import open_gpu
from sgemm_tune.errors import SgemmTuneError
try:
    open_gpu(0)
except SgemmTuneError as error:
    sys.exit(str(error))
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-gpu",
        action="store_true",
        help="a GPU test that would be skipped fails, with the same reason",
    )
    parser.addoption(
        "--validation", metavar="PATH", help="record a passed run of the GPU tests in this JSON file"
    )


@functools.cache
def why_no_gpu() -> str:
    """Why GPU 0 cannot be opened, or an empty string. Another process looks: this one gets no context."""
    probe = [sys.executable, "-c", _PROBE]
    done = subprocess.run(probe, capture_output=True, text=True, timeout=180, check=False)
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"opening GPU 0 ended with exit code {done.returncode}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and (reason := why_no_gpu()):
        pytest.skip(f"needs a GPU: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, pytest.TestReport]:
    """With --require-gpu, whatever reason a GPU test was skipped for is a failure."""
    report: pytest.TestReport = yield
    required = item.config.getoption("--require-gpu") and item.get_closest_marker("gpu") is not None
    if required and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.longrepr = f"--require-gpu: {reason}"
    return report
