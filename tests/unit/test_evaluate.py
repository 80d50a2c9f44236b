"""Validation and measurement over a scripted device, in this process."""

from __future__ import annotations

import math
from dataclasses import replace
from unittest.mock import patch

import pytest

from sgemm_tune.compiler.nvrtc import Binary
from sgemm_tune.errors import DeviceFault, SgemmTuneError
from sgemm_tune.kernel import Kernel, stage_named
from sgemm_tune.measure.cases import hard_cases
from sgemm_tune.measure.evaluate import compare, evaluate
from sgemm_tune.measure.outcome import Measurement, Outcome, Rejected, Status
from sgemm_tune.measure.protocol import Check, Policy, Request
from sgemm_tune.problem import Problem
from tests.fakes import CUBLAS_MS, DEVICE_FAULTS, RIGHT, FakeDevice, Script

PROBLEM = Problem(2048, 2048, 2048)
BINARY = Binary(b"cubin", 64, 0, 0, "12.9", 0.0, "")
KERNEL, OTHER = stage_named("coalesced")(), stage_named("smem_tile")()
IN_PROCESS = [
    fault
    for fault, (status, _) in DEVICE_FAULTS.items()
    if status in (Status.WRONG, Status.LAUNCH) and fault != "refused_when_timed"
]

UNTIMED = [fault for fault in IN_PROCESS if "peak" not in DEVICE_FAULTS[fault][1]]


def request(kernel: Kernel = KERNEL, **changes: object) -> Request:
    base = Request(kernel, BINARY, PROBLEM, Policy())
    return replace(base, **changes)  # type: ignore[arg-type]


def measured(outcome: Outcome) -> Measurement:
    assert isinstance(outcome, Measurement), outcome
    return outcome


def rejected(outcome: Outcome) -> Rejected:
    assert isinstance(outcome, Rejected), outcome
    return outcome


def test_a_healthy_candidate_gets_its_time_with_its_baseline_and_accuracy() -> None:
    device = FakeDevice(Script(ms={str(KERNEL): 1.25}))
    found = measured(evaluate(device, request()))
    assert found.ms == pytest.approx(1.25, rel=1e-3)
    assert found.ms_p10 <= found.ms <= found.ms_p90
    assert found.cublas_ms == pytest.approx(CUBLAS_MS, rel=1e-3)
    assert found.vs_cublas == pytest.approx(CUBLAS_MS / 1.25, rel=1e-6)  # pairwise: the noise cancels out
    assert found.samples >= Policy().min_samples
    assert found.accuracy.error == RIGHT.error
    assert found.accuracy.bound == KERNEL.precision.error_bound(PROBLEM.k)
    assert (found.cache, found.early_cut, found.throttled) == ("cold", False, False)


def test_every_hard_shape_is_checked_before_anything_is_timed() -> None:
    device = FakeDevice(Script())
    evaluate(device, request())
    before = device.calls[: device.calls.index("time")]
    assert before.count("check") == len(hard_cases(KERNEL)) >= 15
    assert before.count("check_tuned") == 2  # the baseline and the candidate


@pytest.mark.parametrize("fault", IN_PROCESS)
def test_a_wrong_candidate_is_rejected_for_its_reason(fault: str) -> None:
    status, reason = DEVICE_FAULTS[fault]
    found = rejected(evaluate(FakeDevice(Script({str(KERNEL): fault})), request()))
    assert found.status is status
    assert reason in found.reason


@pytest.mark.parametrize("fault", UNTIMED)
def test_a_wrong_candidate_is_never_timed(fault: str) -> None:
    device = FakeDevice(Script({str(KERNEL): fault}))
    evaluate(device, request())
    assert "time" not in device.calls


def test_spills_are_rejected_without_touching_the_device() -> None:
    device = FakeDevice(Script())
    found = rejected(evaluate(device, request(binary=replace(BINARY, spill_bytes=128))))
    assert found.status is Status.SPILL
    assert "128 bytes" in found.reason
    assert device.calls == []


def test_spills_within_the_limit_are_measured() -> None:
    allowed = request(binary=replace(BINARY, spill_bytes=8), policy=Policy(spill_limit=8))
    assert measured(evaluate(FakeDevice(Script()), allowed)).ms > 0


def test_a_broken_context_leaves_as_an_exception() -> None:
    with pytest.raises(DeviceFault, match="illegal"):
        evaluate(FakeDevice(Script({str(KERNEL): "illegal_access"})), request())


@pytest.mark.parametrize("norm", [3e-4, math.nan])
def test_a_baseline_that_is_not_strict_fp32_stops_everything(norm: float) -> None:
    device = FakeDevice(Script(baseline=Check(1e-7, norm)))
    with pytest.raises(SgemmTuneError, match="NVIDIA_TF32_OVERRIDE"):
        evaluate(device, request())


def test_a_slow_candidate_keeps_the_estimate_of_a_few_samples() -> None:
    device = FakeDevice(Script(ms={str(KERNEL): 2.1}))
    found = measured(evaluate(device, request(best_ms=1.0)))
    assert found.early_cut
    assert found.samples == Policy().probe
    assert found.ms == pytest.approx(2.1, rel=1e-2)
    assert (found.cublas_ms, found.vs_cublas) == (0.0, 0.0)


def test_a_launch_that_lasts_long_enough_tells_the_hopeless_without_further_samples() -> None:
    hopeless = replace(RIGHT, ms=2.1)
    script = Script(ms={str(KERNEL): 2.1})
    with patch.object(FakeDevice, "check_tuned", return_value=hopeless):
        found = measured(evaluate(device := FakeDevice(script), request(best_ms=1.0)))
        assert (found.early_cut, found.samples, found.ms) == (True, 1, 2.1)
        assert "time" not in device.calls
        assert not measured(evaluate(FakeDevice(script), request(policy=Policy(early_cut=0)))).early_cut
    short = replace(RIGHT, ms=0.4)
    script = Script(ms={str(KERNEL): 0.1})
    with patch.object(FakeDevice, "check_tuned", return_value=short):  # mostly the cost of launching
        small = request(problem=Problem(1024, 1024, 1024), best_ms=0.1)
        assert not measured(evaluate(FakeDevice(script), small)).early_cut


def test_a_candidate_that_loses_the_race_keeps_the_samples_it_has() -> None:
    close = Script(ms={str(KERNEL): 1.03})
    found = measured(evaluate(FakeDevice(close), request(best_ms=1.0)))
    assert (found.early_cut, found.samples) == (True, Policy().race)
    assert found.vs_cublas == pytest.approx(CUBLAS_MS / 1.03, rel=1e-2)
    noisy = replace(close, noise=0.05)  # as good as the best, for all one can tell
    assert not measured(evaluate(FakeDevice(noisy), request(best_ms=1.0))).early_cut


@pytest.mark.parametrize(("ms", "factor"), [(1.9, 2.0), (2.1, 0.0), (2.1, 3.0)])
def test_a_candidate_within_the_factors_is_measured_in_full(ms: float, factor: float) -> None:
    policy = Policy(early_cut=factor, race_cut=factor)
    found = measured(evaluate(FakeDevice(Script(ms={str(KERNEL): ms})), request(best_ms=1.0, policy=policy)))
    assert not found.early_cut
    assert found.samples >= policy.min_samples


def test_noisy_samples_are_taken_up_to_the_cap_and_quiet_ones_only_as_many_as_needed() -> None:
    noisy = measured(evaluate(FakeDevice(Script(noise=0.2)), request()))
    quiet = measured(evaluate(FakeDevice(Script(noise=1e-6)), request()))
    assert noisy.samples == Policy().max_samples
    assert quiet.samples == Policy().min_samples


def test_sampling_stays_within_its_seconds() -> None:
    slow = Problem(65536, 65536, 65536)
    script = Script(ms={str(KERNEL): 9000.0})
    found = measured(evaluate(FakeDevice(script), request(problem=slow, policy=Policy(max_seconds=20.0))))
    assert found.samples == Policy().probe


def test_throttled_samples_are_repeated_and_marked() -> None:
    calm, hot = FakeDevice(Script()), FakeDevice(Script(throttled=True))
    assert not measured(evaluate(calm, request())).throttled
    found = measured(evaluate(hot, request()))
    assert found.throttled
    assert found.telemetry.throttle == ("power cap",)
    assert found.doubts == ("the GPU throttled (power cap) while this was timed, also when it was repeated",)
    assert hot.calls.count("time") == calm.calls.count("time") + 1


def test_other_processes_on_the_gpu_are_noticed() -> None:
    assert measured(evaluate(FakeDevice(Script()), request())).doubts == ()
    found = measured(evaluate(FakeDevice(Script(neighbours=2)), request()))
    assert found.doubts == ("2 other processes used the GPU while this was timed",)


def test_no_time_is_divided_by() -> None:
    """A time of 0 is a rejection of that candidate, not a crash of the process that owns the GPU."""
    found = rejected(evaluate(FakeDevice(Script({str(KERNEL): "no_time"})), request()))
    assert found.status is Status.WRONG


def test_finalists_are_timed_in_the_same_passes_and_validated_again() -> None:
    device = FakeDevice(Script(ms={str(KERNEL): 1.5, str(OTHER): 1.25}))
    first, second = (measured(found) for found in compare(device, [request(), request(OTHER)]))
    assert first.ms == pytest.approx(1.5, rel=1e-3)
    assert second.ms == pytest.approx(1.25, rel=1e-3)
    assert first.cublas_ms == second.cublas_ms
    after = device.calls[len(device.calls) - device.calls[::-1].index("time") :]
    assert after.count("check_tuned") == 2


def test_a_finalist_that_is_wrong_after_timing_has_no_time() -> None:
    device = FakeDevice(Script({str(OTHER): "wrong_after_timing"}))
    first, second = compare(device, [request(), request(OTHER)])
    assert measured(first).ms > 0
    assert rejected(second).status is Status.WRONG
    assert "after timing" in rejected(second).reason


def test_a_finalist_that_fails_does_not_cost_the_others_their_time() -> None:
    device = FakeDevice(Script({str(KERNEL): "too_much_smem"}))
    first, second = compare(device, [request(), request(OTHER)])
    assert rejected(first).status is Status.LAUNCH
    assert measured(second).ms > 0


def test_finalists_of_different_problems_are_not_compared() -> None:
    with pytest.raises(ValueError, match="one problem"):
        compare(FakeDevice(Script()), [request(), request(problem=Problem(64, 64, 64))])


def test_nothing_to_compare_is_nothing() -> None:
    assert compare(FakeDevice(Script()), []) == []


def test_a_normwise_error_that_is_no_number_never_passes() -> None:
    with patch.object(FakeDevice, "check_tuned", side_effect=[RIGHT, replace(RIGHT, norm_error=math.nan)]):
        assert "normwise" in rejected(evaluate(FakeDevice(Script()), request())).reason


def test_a_race_stays_within_its_seconds() -> None:
    slow = Problem(65536, 65536, 65536)
    script = Script(ms={str(KERNEL): 9200.0})
    policy = Policy(max_seconds=20.0)
    found = measured(evaluate(FakeDevice(script), request(problem=slow, policy=policy, best_ms=9000.0)))
    assert (found.early_cut, found.samples) == (True, policy.probe)
