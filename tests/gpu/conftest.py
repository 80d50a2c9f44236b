"""One device in this process for the tests that launch nothing faulty."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sgemm_tune.arch import Arch, parse_arch
from sgemm_tune.compiler.sources import source_text
from sgemm_tune.device.gpu import GpuDevice
from sgemm_tune.kernel import ladder


@pytest.fixture(scope="session")
def device() -> GpuDevice:
    return GpuDevice(0)


@pytest.fixture(scope="session")
def arch(device: GpuDevice) -> Arch:
    return parse_arch(device.info.arch)


def _validated(path: Path, counts: dict[str, int], failures: list[str]) -> None:
    """Write what was validated: every kernel's source hash, where and when, how many tests, which failed."""
    info = GpuDevice(0).info
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": info.name,
        "arch": info.arch,
        "driver": info.driver,
        "nvrtc": info.nvrtc,
        "counts": counts,
        "failures": failures,
        "kernels": {stage.source: {"source_hash": source_text(stage.source).digest} for stage in ladder()},
    }
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """With --validation PATH, a run of GPU tests that skipped none is recorded there, failures by name."""
    path = config.getoption("--validation")
    outcomes = ("passed", "failed", "error", "skipped")
    counts = {kind: len(terminalreporter.stats.get(kind, ())) for kind in outcomes}
    failed = [
        report.nodeid for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, ())
    ]
    if path and exitstatus in (0, 1) and counts["skipped"] == 0 and counts["passed"]:
        _validated(Path(path), counts, sorted(set(failed)))
