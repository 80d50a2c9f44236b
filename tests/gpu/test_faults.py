"""The folder of faulty kernels on a real GPU: each is rejected for its own reason, and the GPU goes on."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from sgemm_tune.arch import Arch
from sgemm_tune.device import open_gpu
from sgemm_tune.errors import CompileError
from sgemm_tune.measure.outcome import Measurement, Outcome, Rejected, Status
from sgemm_tune.measure.protocol import Policy, Request
from sgemm_tune.measure.worker import GpuWorker
from sgemm_tune.problem import Problem
from tests.faults.faulty import EXPECTED, compile_fault, kernel_for

pytestmark = pytest.mark.gpu

DEADLINE = 5.0
PAST_32_BITS = Problem(46341, 46341, 16)
TUNED = Problem(1024, 1024, 1024)


@pytest.fixture(scope="module")
def worker() -> Iterator[GpuWorker]:
    def deadline(problem: Problem) -> float:
        return DEADLINE if problem == TUNED else 60.0

    with GpuWorker(functools.partial(open_gpu, 0), deadline) as worker:
        yield worker


def _run(worker: GpuWorker, fault: str, arch: Arch) -> Outcome:
    try:
        binary = compile_fault(fault, arch)
    except CompileError as error:
        return Rejected(Status.COMPILE, str(error))
    problem = PAST_32_BITS if fault == "offset_32_bits" else TUNED
    return worker.evaluate(Request(kernel_for(fault), binary, problem, Policy()))


# the deadline of the compiler is the pool's: tests/unit/test_compile_pool.py
@pytest.mark.parametrize("fault", [fault for fault in EXPECTED if fault != "minutes_in_compiler"])
def test_rejected_for_its_reason(worker: GpuWorker, arch: Arch, fault: str) -> None:
    status, words = EXPECTED[fault]
    outcome = _run(worker, fault, arch)
    assert isinstance(outcome, Rejected), f"{fault} was measured: {outcome}"
    assert (outcome.status, words in outcome.reason) == (status, True), outcome.reason
    assert "\n" not in outcome.reason


def test_healthy_is_measured_as_before_after_every_kind_of_fault(worker: GpuWorker, arch: Arch) -> None:
    before = _run(worker, "healthy", arch)
    assert isinstance(before, Measurement), before
    for fault in ("out_of_bounds_read", "endless_loop", "half_unwritten", "device_trap"):
        assert isinstance(_run(worker, fault, arch), Rejected)
        after = _run(worker, "healthy", arch)
        assert isinstance(after, Measurement), after
        assert after.ms == pytest.approx(before.ms, rel=0.05)
