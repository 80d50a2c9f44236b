"""One row of results/results.csv: what is known of one candidate, by column. Reads and writes no file."""

from __future__ import annotations

import json
import uuid
from typing import Protocol

from sgemm_tune.arch import Arch
from sgemm_tune.kernel import Kernel
from sgemm_tune.measure.outcome import DeviceInfo, Measurement, Origin, Outcome, Rejected, Status
from sgemm_tune.problem import Precision, Problem
from sgemm_tune.store.provenance import gather, gather_plan

Value = str | int | float | bool | None
Row = dict[str, Value]

COLUMNS: dict[str, str] = {
    **dict.fromkeys(("row_id", "date", "device", "uuid"), "string"),
    "sms": "Int64",
    **dict.fromkeys(("arch", "precision"), "string"),
    **dict.fromkeys(("m", "n", "k"), "Int64"),
    **dict.fromkeys(("stage", "config", "status", "reason", "source"), "string"),
    **dict.fromkeys(("ms", "ms_p10", "ms_p90"), "float64"),
    "samples": "Int64",
    **dict.fromkeys(("tflops", "cublas_ms", "cublas_tflops", "vs_cublas", "vs_p10", "vs_p90"), "float64"),
    **dict.fromkeys(("error", "error_bound", "norm_error", "cublas_norm_error"), "float64"),
    **dict.fromkeys(("early_cut", "throttled"), "boolean"),
    "cache": "string",
    "sm_mhz": "Int64",
    "watts": "float64",
    "throttle": "string",
    "other_processes": "Int64",
    "seed": "Int64",
    "predicted_ms": "float64",
    **dict.fromkeys(("registers", "spill_bytes"), "Int64"),
    **dict.fromkeys(("driver", "runtime", "cublas", "nvrtc", "version", "commit", "source_hash"), "string"),
}
"""Every column with its pandas dtype, in the order of the file."""


class Compiled(Protocol):
    """What a row says of the binary; `compiler.nvrtc.Binary` has it."""

    @property
    def registers(self) -> int:
        """Per thread."""

    @property
    def spill_bytes(self) -> int:
        """Per thread."""


def row(
    problem: Problem,
    precision: Precision,
    kernel: Kernel,
    outcome: Outcome,
    info: DeviceInfo,
    *,
    origin: Origin,
    seed: int,
    binary: Compiled | None = None,
    row_id: str | None = None,
) -> Row:
    """The row of one candidate that was measured, or rejected on the way.

    Args:
        problem: the shape.
        precision: what was searched in.
        kernel: the candidate.
        outcome: only a measurement gives times, rates and errors.
        info: the GPU.
        origin: the command; not `predicted`.
        seed: of the matrices' random numbers.
        binary: the compiled kernel, if it came to that.
        row_id: what the row is told apart by, such as study and trial number; a random one if None.

    Raises:
        ValueError: the origin is `predicted`, which this cannot be.
        FileNotFoundError: the kernel's source is missing.
    """
    if origin is Origin.PREDICTED:
        raise ValueError("a prediction is made by predicted_row")
    measurement = outcome if isinstance(outcome, Measurement) else None
    source = gather(info, kernel, measurement, seed)
    found = _base(problem, precision, kernel, outcome, origin=origin, binary=binary, row_id=row_id)
    for name in ("date", "device", "uuid", "sms", "driver", "runtime", "cublas", "nvrtc"):
        found[name] = getattr(source, name)
    for name in ("seed", "version", "commit", "source_hash"):
        found[name] = getattr(source, name)
    found["arch"] = info.arch
    if measurement is not None:
        found.update(_figures(problem, measurement))
        for name in ("cache", "sm_mhz", "watts", "throttle"):
            found[name] = getattr(source, name)
        found["other_processes"] = measurement.telemetry.other_processes
    return found


def predicted_row(
    problem: Problem,
    precision: Precision,
    kernel: Kernel,
    arch: Arch,
    outcome: float | Rejected,
    *,
    nvrtc: str,
    binary: Compiled | None = None,
    row_id: str | None = None,
) -> Row:
    """The row of one candidate of a plan: `ms` stays empty, whatever the model says.

    Args:
        problem, precision, kernel, binary, row_id: as in `row`.
        arch: what was planned for; its board stands as the device.
        outcome: the model's time in milliseconds, or why the candidate was dropped.
        nvrtc: version of the compiler.

    Raises:
        FileNotFoundError: the kernel's source is missing.
    """
    source = gather_plan(kernel, nvrtc)
    rejected = outcome if isinstance(outcome, Rejected) else Rejected(Status.PREDICTED, "")
    found = _base(problem, precision, kernel, rejected, origin=Origin.PREDICTED, binary=binary, row_id=row_id)
    for name in ("date", "nvrtc", "version", "commit", "source_hash"):
        found[name] = getattr(source, name)
    found.update(arch=arch.name, device=arch.board.name, sms=arch.board.sms)
    found["predicted_ms"] = outcome if isinstance(outcome, float) else None
    return found


def _base(
    problem: Problem,
    precision: Precision,
    kernel: Kernel,
    outcome: Outcome,
    *,
    origin: Origin,
    binary: Compiled | None,
    row_id: str | None,
) -> Row:
    found: Row = dict.fromkeys(COLUMNS)
    found.update(
        row_id=row_id or uuid.uuid4().hex,
        precision=precision.value,
        m=problem.m,
        n=problem.n,
        k=problem.k,
        stage=kernel.name(),
        config=json.dumps(kernel.params, sort_keys=True),
        status=outcome.status.value,
        reason=outcome.reason if isinstance(outcome, Rejected) else "",
        source=origin.value,
        registers=binary.registers if binary is not None else None,
        spill_bytes=binary.spill_bytes if binary is not None else None,
    )
    return found


def _figures(problem: Problem, measurement: Measurement) -> Row:
    # an early cut may have no baseline, and 0 ms would be read as a time
    baseline = measurement.cublas_ms > 0
    return {
        "ms": measurement.ms,
        "ms_p10": measurement.ms_p10,
        "ms_p90": measurement.ms_p90,
        "samples": measurement.samples,
        "tflops": problem.tflops(measurement.ms),
        "cublas_ms": measurement.cublas_ms if baseline else None,
        "cublas_tflops": problem.tflops(measurement.cublas_ms) if baseline else None,
        "vs_cublas": measurement.vs_cublas if baseline else None,
        "vs_p10": measurement.vs_p10 if baseline else None,
        "vs_p90": measurement.vs_p90 if baseline else None,
        "error": measurement.accuracy.error,
        "error_bound": measurement.accuracy.bound,
        "norm_error": measurement.accuracy.norm_error,
        "cublas_norm_error": measurement.accuracy.cublas_norm_error,
        "early_cut": measurement.early_cut,
        "throttled": measurement.throttled,
    }
