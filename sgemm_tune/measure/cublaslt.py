"""The best of cublasLt's heuristics beside a candidate: validated, chosen by a few samples, then timed in the
same passes as the candidate and cuBLAS.

A search never needs it: its baseline is cuBLAS. It answers how far one gets by choosing among NVIDIA's own
kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sgemm_tune.errors import DeviceUnavailable, LaunchError
from sgemm_tune.measure.evaluate import flaw_when_tuned
from sgemm_tune.measure.outcome import Rejected, Samples, Status
from sgemm_tune.measure.protocol import CUBLAS, Device, Request, Timing
from sgemm_tune.problem import Precision, Problem


@dataclass(frozen=True)
class CublasLtTime:
    """The fastest algorithm that is exact enough.

    Attributes:
        ms: median per launch in milliseconds.
        vs_cublaslt: its time / the candidate's, the median of pairwise ratios.
        vs_cublas: cuBLAS time / its time, likewise.
        rank: its place in the heuristics' own order, from 0.
        proposed: how many algorithms the heuristics named.
        discarded: how many of them refused to run or were not exact enough.
        throttled: the samples were taken while the GPU throttled, repeated ones too.
    """

    ms: float
    vs_cublaslt: float
    vs_cublas: float
    rank: int
    proposed: int
    discarded: int
    throttled: bool = False


def best_of_cublaslt(device: Device, request: Request) -> CublasLtTime | Rejected:
    """Find the best algorithm and time it beside `request`'s candidate, which was found right before.

    Returns:
        The best algorithm, or why there is none.

    Raises:
        DeviceFault: an algorithm broke the context.
    """
    problem, policy, precision = request.problem, request.policy, request.kernel.precision
    try:
        proposed = device.heuristics(problem, precision)
        right = [
            (rank, algorithm)
            for rank, algorithm in enumerate(proposed)
            if _is_right(device, algorithm, problem, precision, policy.seed)
        ]
        if not right:
            return Rejected(*_why_none(len(proposed), precision))
        loaded = device.load(request.kernel, request.binary)
        runs = [*(algorithm for _, algorithm in right), loaded, CUBLAS]
        pilot = device.time(runs, problem, precision, policy, policy.probe)
        *medians, ours_ms, cublas_ms = (samples.median for samples in pilot.runs)
        fastest_ms, (rank, best) = min(zip(medians, right, strict=True), key=lambda pair: pair[0])
        slowest_ms = max(fastest_ms, ours_ms, cublas_ms)
        timing, throttled = _timed(device, request, [best, loaded, CUBLAS], slowest_ms)
    except (LaunchError, DeviceUnavailable) as error:
        return Rejected(Status.LAUNCH, str(error))
    theirs, ours, cublas = timing.runs
    return CublasLtTime(
        ms=theirs.median,
        vs_cublaslt=_ratio(theirs, ours),
        vs_cublas=_ratio(cublas, theirs),
        rank=rank,
        proposed=len(proposed),
        discarded=len(proposed) - len(right),
        throttled=throttled,
    )


def _is_right(device: Device, algorithm: Any, problem: Problem, precision: Precision, seed: int) -> bool:
    """Whether it is as exact as a candidate has to be: one that rounds to TF32 is no rival in strict fp32."""
    try:
        check = device.check_tuned(algorithm, problem, precision, seed)
    except LaunchError:  # the heuristics promise less than a launch needs
        return False
    baseline = device.check_tuned(CUBLAS, problem, precision, seed)
    # the order of its additions is NVIDIA's business
    return not flaw_when_tuned(replace(check, repeatable=True), baseline, precision, problem)


def _why_none(proposed: int, precision: Precision) -> tuple[Status, str]:
    if not proposed:
        return Status.LAUNCH, f"cublasLt proposes no {precision} algorithm"
    return Status.WRONG, f"none of the {proposed} algorithms that cublasLt proposes is right in {precision}"


def _timed(device: Device, request: Request, runs: Sequence[Any], slowest_ms: float) -> tuple[Timing, bool]:
    """(as many passes as `max_samples` and `max_seconds` allow, whether the GPU throttled to the end)."""
    policy = request.policy
    samples = min(policy.max_samples, policy.affordable(len(runs), slowest_ms))
    for _ in range(policy.retries + 1):
        timing = device.time(runs, request.problem, request.kernel.precision, policy, samples)
        throttled = bool(device.telemetry().throttle)
        if not throttled:
            break
    return timing, throttled


def _ratio(slow: Samples, fast: Samples) -> float:
    """The median of pairwise ratios."""
    return Samples(tuple(a / b for a, b in zip(slow.ms, fast.ms, strict=True))).median
