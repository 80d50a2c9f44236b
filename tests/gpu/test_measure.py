"""Times mean what they say: rates are plausible, the baseline is strict, an early cut is marked."""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import time

import pytest

from sgemm_tune.arch import Arch
from sgemm_tune.compiler.nvrtc import compile_kernel
from sgemm_tune.device import open_gpu
from sgemm_tune.device.gpu import GpuDevice
from sgemm_tune.kernel import stage_named
from sgemm_tune.measure.evaluate import compare, evaluate
from sgemm_tune.measure.outcome import Measurement
from sgemm_tune.measure.protocol import Policy, Request
from sgemm_tune.measure.worker import GpuWorker
from sgemm_tune.problem import Precision, Problem

pytestmark = pytest.mark.gpu


def _request(arch: Arch, stage: str, size: int, best_ms: float | None = None) -> Request:
    kernel = stage_named(stage)()
    return Request(kernel, compile_kernel(kernel, arch), Problem.parse_size(size), Policy(), best_ms)


def test_baseline_against_itself_is_a_tie(device: GpuDevice) -> None:
    """Pair by pair, as ratios are taken: medians of either side drift apart where clocks change."""
    for size in (256, 1024, 4096):
        timing = device.time([None, None], Problem.parse_size(size), Precision.FP32, Policy(), 30)
        left, right = timing.runs
        ratios = [a / b for a, b in zip(left.ms, right.ms, strict=True)]
        assert statistics.median(ratios) == pytest.approx(1.0, abs=0.01), size


def test_small_sizes_do_not_measure_launches(device: GpuDevice) -> None:
    times = [
        device.time([None], Problem.parse_size(size), Precision.FP32, Policy(), 10).runs[0].median
        for size in (256, 512)
    ]
    assert times[1] > 1.2 * times[0]


def test_waiting_for_the_gpu_leaves_the_core_to_others(device: GpuDevice) -> None:
    problem = Problem.parse_size(8192)
    device.time([None], problem, Precision.FP32, Policy(), 3)  # operands are made, cuBLAS is loaded
    wall, busy = time.perf_counter(), time.process_time()
    timing = device.time([None], problem, Precision.FP32, Policy(), 30)
    wall, busy = time.perf_counter() - wall, time.process_time() - busy
    assert wall > 30e-3 * timing.runs[0].median * 0.9
    assert busy < 0.3 * wall


def test_measured_fully_and_below_the_peak(device: GpuDevice, arch: Arch) -> None:
    outcome = evaluate(device, _request(arch, "vectorized", 2048))
    assert isinstance(outcome, Measurement), outcome
    assert outcome.samples >= 10
    assert not outcome.early_cut
    peak = arch.fp32_peak_tflops(device.info.sms, device.info.clock_mhz)
    assert 0.1 * peak < Problem.parse_size(2048).tflops(outcome.ms) < peak
    assert 0.2 < outcome.vs_cublas < 1.5
    assert outcome.ms_p10 <= outcome.ms <= outcome.ms_p90


def test_a_slow_candidate_is_cut_early_and_marked(device: GpuDevice, arch: Arch) -> None:
    outcome = evaluate(device, _request(arch, "naive", 1024, best_ms=0.06))
    assert isinstance(outcome, Measurement), outcome
    assert outcome.early_cut
    assert outcome.samples == 1, "the launch that validated it tells"


def test_finalists_are_timed_in_the_same_passes(device: GpuDevice, arch: Arch) -> None:
    requests = [_request(arch, stage, 1024) for stage in ("vectorized", "double_buffer", "double_buffer")]
    outcomes = compare(device, requests)
    assert all(isinstance(outcome, Measurement) for outcome in outcomes)
    first, second = outcomes[1], outcomes[2]
    assert isinstance(first, Measurement)
    assert isinstance(second, Measurement)
    assert first.ms == pytest.approx(second.ms, rel=0.02)


def test_the_supervising_process_has_no_context(arch: Arch) -> None:
    code = (
        "import functools, sys\n"
        "from sgemm_tune.device import open_gpu\n"
        "from sgemm_tune.measure.worker import GpuWorker\n"
        "if __name__ == '__main__':\n"
        "    with GpuWorker(functools.partial(open_gpu, 0)) as worker:\n"
        "        print(worker.info.arch)\n"
        "    assert 'cupy' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == arch.name


def test_baseline_is_strict_whatever_the_environment_says(arch: Arch) -> None:
    os.environ.update(CUPY_TF32="1", NVIDIA_TF32_OVERRIDE="1")  # the worker inherits them
    try:
        with GpuWorker(functools.partial(open_gpu, 0)) as worker:
            outcome = worker.evaluate(_request(arch, "vectorized", 1024))
    finally:
        del os.environ["CUPY_TF32"], os.environ["NVIDIA_TF32_OVERRIDE"]
    assert isinstance(outcome, Measurement), outcome
    assert outcome.accuracy.cublas_norm_error < 2e-6
