"""Validate a compiled candidate, then measure it. Works over any `Device`, a scripted one in tests.

    load -> hard shapes -> tuned shape against float64 and cuBLAS -> time, interleaved with cuBLAS

A candidate's own faults become `Rejected`; only a broken context (`DeviceFault`) leaves as an exception,
because the process must then be replaced.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sgemm_tune.arch import parse_arch
from sgemm_tune.errors import LaunchError, SgemmTuneError
from sgemm_tune.measure.cases import hard_cases
from sgemm_tune.measure.outcome import (
    Accuracy,
    Measurement,
    Outcome,
    Rejected,
    Samples,
    Status,
)
from sgemm_tune.measure.protocol import CUBLAS, Check, Device, Policy, Request, Timing
from sgemm_tune.problem import Precision, Problem

ROUGH_MS = 0.5
ROUGH_CUT = 1.2
"""The launches that were timed while validating are good to some percent where they last longer than
`ROUGH_MS`: a candidate that the shorter one shows to be this many times slower than the best so far is not
timed further."""

NORM_FACTOR = 8.0
"""How many times cuBLAS's own normwise error a candidate may have; a lower precision errs hundreds of times
more, and 8 terms dropped of 4096 ten thousand times."""

STRICT_FP32_NORM = 2e-5
"""A product of strict fp32 on normal data errs 1e-7 to 3e-6 normwise (K up to 10^6), TF32 about 3e-4."""


@dataclass(frozen=True)
class Valid:
    """A candidate that is right.

    Attributes:
        accuracy: on the tuned shape.
        rough_ms: what one launch on it took, roughly; 0 where the device did not say.
    """

    accuracy: Accuracy
    rough_ms: float


def evaluate(device: Device, request: Request) -> Outcome:
    """Validate and measure one candidate.

    Raises:
        DeviceFault: the candidate broke the context.
        SgemmTuneError: the baseline itself cannot be trusted.
    """
    loaded, valid = _validated(device, request)
    if isinstance(valid, Rejected):
        return valid
    accuracy, policy = valid.accuracy, request.policy
    run = (request.problem, request.kernel.precision, policy)
    best = request.best_ms if request.best_ms is not None and policy.early_cut else math.inf
    if valid.rough_ms > max(ROUGH_MS, ROUGH_CUT * best):
        return _measurement(request, device, Samples((valid.rough_ms,)), None, accuracy, early_cut=True)
    pilot = device.time([loaded], *run, policy.probe)
    probe = pilot.runs[0]
    # a time that is no time at all is rejected as a measurement
    if not 0 < probe.median < math.inf or probe.median / best > policy.early_cut > 0:
        return _measurement(request, device, probe, None, accuracy, early_cut=True)
    first: Timing | None = None
    if best < math.inf:
        first = device.time([loaded, CUBLAS], *run, min(policy.race, policy.affordable(2, probe.median)))
        own, baseline = first.runs
        if own.median * (1 - 2 * _standard_error(own)) > policy.race_cut * best:
            return _measurement(request, device, own, baseline, accuracy, early_cut=True)
    return _measured(device, [request], [loaded], [accuracy], pilot=pilot, begun=first, watched=1)[0]


def compare(device: Device, requests: Sequence[Request]) -> list[Outcome]:
    """Validate and time finalists of one problem together, interleaved, and validate them again.

    Raises:
        DeviceFault: a candidate broke the context.
        ValueError: the requests are not of one problem and precision.
    """
    if len({(r.problem, r.kernel.precision) for r in requests}) > 1:
        raise ValueError("finalists are compared within one problem and precision")
    outcomes: dict[int, Outcome] = {}
    fit: list[tuple[int, Any, Accuracy]] = []
    for i, request in enumerate(requests):
        loaded, valid = _validated(device, request)
        if isinstance(valid, Rejected):
            outcomes[i] = valid
        else:
            fit.append((i, loaded, valid.accuracy))
    if fit:
        first, runs = requests[0], [one for _, one, _ in fit]
        pilot = device.time(runs, first.problem, first.kernel.precision, first.policy, first.policy.probe)
        measured = _measured(
            device,
            [requests[i] for i, _, _ in fit],
            runs,
            [accuracy for _, _, accuracy in fit],
            pilot=pilot,
        )
        for (i, loaded, _), outcome in zip(fit, measured, strict=True):
            again = device.check_tuned(
                loaded, requests[i].problem, requests[i].kernel.precision, requests[i].policy.seed
            )
            flaw = _flaw(again, requests[i].kernel.precision, requests[i].problem)
            outcomes[i] = Rejected(Status.WRONG, f"wrong after timing: {flaw}") if flaw else outcome
    return [outcomes[i] for i in range(len(requests))]


def validate(device: Device, request: Request, loaded: Any) -> Valid | Rejected:
    """Hard shapes, then the tuned shape against float64 and against cuBLAS's own error.

    Returns:
        How exact a right candidate is, or why it is wrong.

    Raises:
        SgemmTuneError: cuBLAS itself is not in the precision asked for.
    """
    kernel, problem, seed = request.kernel, request.problem, request.policy.seed
    for case in hard_cases(kernel):
        flaw = _flaw(device.check(loaded, case, kernel.precision, seed), kernel.precision, case.problem)
        if flaw:
            return Rejected(Status.WRONG, f"{case.why} ({case.problem.shape}): {flaw}")
    baseline = device.check_tuned(CUBLAS, problem, kernel.precision, seed)
    _trust_baseline(baseline, kernel.precision, problem)
    check = device.check_tuned(loaded, problem, kernel.precision, seed)
    flaw = flaw_when_tuned(check, baseline, kernel.precision, problem)
    if flaw:
        return Rejected(Status.WRONG, f"tuned shape ({problem.shape}): {flaw}")
    bound = kernel.precision.error_bound(problem.k)
    return Valid(Accuracy(check.error, bound, check.norm_error, baseline.norm_error), check.ms)


def _validated(device: Device, request: Request) -> tuple[Any, Valid | Rejected]:
    """(what to launch, how exact it is) of a candidate that may be timed, (None, why) of any other."""
    spilled = request.binary.spill_bytes
    if spilled > request.policy.spill_limit:
        reason = f"{spilled} bytes of spills per thread at {request.binary.registers} registers"
        return None, Rejected(Status.SPILL, reason)
    try:
        loaded = device.load(request.kernel, request.binary)
        return loaded, validate(device, request, loaded)
    except LaunchError as error:
        return None, Rejected(Status.LAUNCH, str(error))


def flaw_when_tuned(check: Check, baseline: Check, precision: Precision, problem: Problem) -> str:
    """What is wrong with a result on the tuned shape, cuBLAS being `baseline` there, or an empty string."""
    flaw = _flaw(check, precision, problem)
    admissible = max(NORM_FACTOR * baseline.norm_error, precision.norm_bound(problem.k))
    if not flaw and not check.norm_error <= admissible:
        return (
            f"error {check.norm_error:.2e} normwise, above {admissible:.2e}; cuBLAS's own is "
            f"{baseline.norm_error:.2e}"
        )
    return flaw


def _flaw(check: Check, precision: Precision, problem: Problem) -> str:
    """What is wrong with a result, or an empty string. NaN never passes: it is counted first."""
    if check.unwritten:
        return f"{check.unwritten} elements of C were never written"
    if check.nonfinite:
        return f"{check.nonfinite} elements are NaN or Inf where the reference is not, or the reverse"
    if check.guards:
        return f"{check.guards} words outside the matrices were overwritten"
    if check.inputs_changed:
        return f"{check.inputs_changed} words of A or B were overwritten"
    bound = precision.error_bound(problem.k)
    if not check.error <= bound:
        return f"error {check.error:.2e} at row {check.row}, column {check.col}, above the bound {bound:.2e}"
    if not check.repeatable:
        return "two runs on the same input differ: a race"
    return ""


def _trust_baseline(check: Check, precision: Precision, problem: Problem) -> None:
    if precision is Precision.FP32 and not check.norm_error <= STRICT_FP32_NORM:
        raise SgemmTuneError(
            f"cuBLAS errs {check.norm_error:.1e} at {problem.shape}, which is not strict fp32 (at most "
            f"{STRICT_FP32_NORM:.0e}): unset NVIDIA_TF32_OVERRIDE and CUPY_TF32 and report this driver"
        )


def _measured(
    device: Device,
    requests: Sequence[Request],
    loaded: Sequence[Any],
    accuracies: Sequence[Accuracy],
    *,
    pilot: Timing,
    begun: Timing | None = None,
    watched: int | None = None,
) -> list[Outcome]:
    first = requests[0]
    precision, policy = first.kernel.precision, first.policy
    for attempt in range(policy.retries + 1):
        runs = [*loaded, CUBLAS]
        timing = _settled(
            device, runs, first.problem, precision, policy, pilot=pilot, begun=begun, watched=watched
        )
        begun = None  # samples that were taken while the GPU throttled are taken again
        throttled = bool(device.telemetry().throttle)
        if not throttled or attempt == policy.retries:
            break
    *own, baseline = timing.runs
    return [
        _measurement(request, device, samples, baseline, accuracy, throttled=throttled)
        for request, samples, accuracy in zip(requests, own, accuracies, strict=True)
    ]


def _settled(
    device: Device,
    runs: Sequence[Any],
    problem: Problem,
    precision: Precision,
    policy: Policy,
    *,
    pilot: Timing,
    begun: Timing | None,
    watched: int | None,
) -> Timing:
    """Passes in batches until the medians have settled, or a cap on samples or seconds is met.

    `pilot` is a few samples of some of the runs; the slowest of them stands for all. `begun` has the first
    passes. Only the first `watched` runs need to settle: a search orders candidates by their own times, and
    cuBLAS, whose samples scatter more, would triple what a trial takes; the last round waits for all.
    """
    slowest = max((samples.median for samples in pilot.runs if samples.median > 0), default=0.0)
    most = min(policy.max_samples, policy.affordable(len(runs), slowest))
    timing = begun or Timing(tuple(Samples(()) for _ in runs))
    while True:
        taken = len(timing.runs[0].ms)
        enough = taken >= min(policy.min_samples, most)
        if enough and (
            taken >= most or all(_standard_error(run) <= policy.settle for run in timing.runs[:watched])
        ):
            return timing
        batch = min(most - taken, policy.min_samples if enough else policy.min_samples - taken)
        more = device.time(runs, problem, precision, policy, batch)
        timing = Timing(tuple(Samples(a.ms + b.ms) for a, b in zip(timing.runs, more.runs, strict=True)))


def _standard_error(samples: Samples) -> float:
    """Relative standard error of the median, from the normal approximation 1.2533 sigma / sqrt(n)."""
    if len(samples.ms) < 2:
        return math.inf
    if not samples.median > 0:
        return 0.0
    return 1.2533 * statistics.stdev(samples.ms) / math.sqrt(len(samples.ms)) / samples.median


def _measurement(
    request: Request,
    device: Device,
    samples: Samples,
    baseline: Samples | None,
    accuracy: Accuracy,
    *,
    early_cut: bool = False,
    throttled: bool = False,
) -> Outcome:
    info = device.info
    median = samples.median
    arch = parse_arch(info.arch)
    peak_of = arch.fp32_peak_tflops if request.kernel.precision is Precision.FP32 else arch.tf32_peak_tflops
    # a boost clock may exceed the listed maximum by a few percent; 10 % is beyond every board
    peak = 1.1 * peak_of(info.sms, info.clock_mhz)
    if not median > 0 or request.problem.tflops(median) > peak:
        return Rejected(
            Status.WRONG,
            f"{median:.6f} ms would be {request.problem.flops / max(median, 1e-9) / 1e9:.1f} TFLOP/s, "
            f"above the device's peak of {peak:.1f}",
        )
    pairs = () if baseline is None else zip(samples.ms, baseline.ms, strict=True)
    ratios = Samples(tuple(theirs / ours for ours, theirs in pairs) or (0.0,))
    return Measurement(
        ms=median,
        ms_p10=samples.quantile(0.1),
        ms_p90=samples.quantile(0.9),
        samples=len(samples.ms),
        cublas_ms=baseline.median if baseline is not None else 0.0,
        vs_cublas=ratios.median,
        accuracy=accuracy,
        early_cut=early_cut,
        throttled=throttled,
        cache=request.policy.cache,
        telemetry=device.telemetry(),
        vs_p10=ratios.quantile(0.1),
        vs_p90=ratios.quantile(0.9),
    )
