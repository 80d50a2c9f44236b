"""Keep a plan: its shortlist in the configuration file, every candidate as a row, all marked `predicted`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from sgemm_tune.compiler.nvrtc import nvrtc_version
from sgemm_tune.kernel import Kernel
from sgemm_tune.measure.outcome import Rejected
from sgemm_tune.model.plan import Plan
from sgemm_tune.store.configs import config_path, merge_predicted, predicted_entry
from sgemm_tune.store.results import ResultsFile, Row, predicted_row

SHORTLIST = 10
"""Predictions that the configuration file keeps of a plan: what `bench` measures on the right GPU."""


def store_plan(plan: Plan, configs_dir: Path, results: ResultsFile) -> Path:
    """Store `plan`; the same plan made again adds no rows.

    Returns:
        The configuration file.

    Raises:
        ConfigFileError: the configuration file breaks its schema; nothing is written.
        ResultsFileError: the table is none; the shortlist is written.
        FileWriteError: a file cannot be written.
    """
    path = config_path(configs_dir, plan.arch)
    nvrtc = nvrtc_version()
    shortlist = [
        predicted_entry(
            plan.problem,
            candidate.kernel,
            plan.arch,
            rank=candidate.rank,
            predicted_ms=candidate.prediction.ms,
            registers=candidate.binary.registers,
            nvrtc=nvrtc,
        )
        for candidate in plan.candidates[:SHORTLIST]
    ]
    if shortlist:
        merge_predicted(path, plan.arch, shortlist)
    results.append(_rows(plan, nvrtc))
    return path


def _rows(plan: Plan, nvrtc: str) -> Iterator[Row]:
    for candidate in plan.candidates:
        yield _row(plan, candidate.kernel, candidate.prediction.ms, nvrtc) | {
            "registers": candidate.binary.registers,
            "spill_bytes": candidate.binary.spill_bytes,
        }
    for dropped in plan.dropped:
        yield _row(plan, dropped.kernel, dropped.rejected, nvrtc)


def _row(plan: Plan, kernel: Kernel, outcome: float | Rejected, nvrtc: str) -> Row:
    row = predicted_row(plan.problem, plan.precision, kernel, plan.arch, outcome, nvrtc=nvrtc)
    # who plans twice says the same twice: only the date and the commit differ
    said = {name: value for name, value in row.items() if name not in ("row_id", "date", "commit")}
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    return {**row, "row_id": f"plan-{digest[:24]}"}
