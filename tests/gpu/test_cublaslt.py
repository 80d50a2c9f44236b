"""cublasLt's proposals are right, strictly fp32, and timed like everything else."""

from __future__ import annotations

import functools
import os

import pytest

from sgemm_tune.arch import Arch
from sgemm_tune.compiler.nvrtc import compile_kernel
from sgemm_tune.device import open_gpu
from sgemm_tune.device.cublaslt import MOST_ALGORITHMS
from sgemm_tune.device.gpu import GpuDevice
from sgemm_tune.kernel import stage_named
from sgemm_tune.measure.cases import Case
from sgemm_tune.measure.cublaslt import CublasLtTime, best_of_cublaslt
from sgemm_tune.measure.protocol import Policy, Request
from sgemm_tune.measure.worker import GpuWorker
from sgemm_tune.problem import Precision, Problem

pytestmark = pytest.mark.gpu

SHAPES = (
    Problem(1000, 1023, 517),
    Problem(517, 389, 261, alpha=1.25, beta=-0.5, lda=263, ldb=391, ldc=392),
    Problem(1, 4096, 4096),
    Problem(4096, 1, 4096),
    Problem(100, 100, 20000),
    Problem(4096, 4096, 64),
)


def _request(arch: Arch, problem: Problem) -> Request:
    kernel = stage_named("double_buffer")()
    return Request(kernel, compile_kernel(kernel, arch), problem, Policy())


@pytest.mark.parametrize("problem", SHAPES, ids=lambda problem: problem.shape)
def test_every_proposal_is_right_on_a_ragged_shape(device: GpuDevice, problem: Problem) -> None:
    proposed = device.heuristics(problem, Precision.FP32)
    assert 1 <= len(proposed) <= MOST_ALGORITHMS
    for algorithm in proposed:
        for check in (
            device.check(algorithm, Case(problem, "ragged"), Precision.FP32, seed=1),
            device.check_tuned(algorithm, problem, Precision.FP32, seed=1),
        ):
            assert (check.unwritten, check.nonfinite, check.guards, check.inputs_changed) == (0, 0, 0, 0)
            assert 0 < check.error <= Precision.FP32.error_bound(problem.k), str(algorithm)
            assert check.norm_error < 2e-5


def test_an_empty_product_has_no_proposal(device: GpuDevice) -> None:
    for problem in (Problem(0, 5, 7), Problem(5, 0, 7), Problem(5, 7, 0)):
        assert device.heuristics(problem, Precision.FP32) == []


def test_the_best_is_about_as_fast_as_cublas_which_chooses_among_the_same(
    device: GpuDevice, arch: Arch
) -> None:
    for problem in (Problem.parse_size(512), Problem.parse_size(4096)):
        found = best_of_cublaslt(device, _request(arch, problem))
        assert isinstance(found, CublasLtTime), found
        assert found.discarded < found.proposed
        assert 0.9 < found.vs_cublas < 3.0
        peak = arch.fp32_peak_tflops(device.info.sms, device.info.clock_mhz)
        assert problem.tflops(found.ms) < 1.1 * peak


def test_tf32_is_never_used_whatever_the_environment_says(arch: Arch) -> None:
    os.environ.update(CUPY_TF32="1", NVIDIA_TF32_OVERRIDE="1")  # the worker inherits them
    try:
        with GpuWorker(functools.partial(open_gpu, 0)) as worker:
            problems = (Problem(1000, 1023, 1024), Problem.parse_size(4096))
            found = {problem: worker.best_of_cublaslt(_request(arch, problem)) for problem in problems}
            peak = arch.fp32_peak_tflops(worker.info.sms, worker.info.clock_mhz)
    finally:
        del os.environ["CUPY_TF32"], os.environ["NVIDIA_TF32_OVERRIDE"]
    for problem, best in found.items():
        assert isinstance(best, CublasLtTime), best
        assert best.discarded == 0, "no proposal had to be thrown out for its error"
        assert problem.tflops(best.ms) < 1.1 * peak


def test_tf32_proposals_are_recognised_and_discarded(
    device: GpuDevice, arch: Arch, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(1024, 1024, 1024)
    in_tf32 = device.heuristics(problem, Precision.TF32)
    assert in_tf32
    monkeypatch.setattr(device, "heuristics", lambda *_: in_tf32)
    strict = best_of_cublaslt(device, _request(arch, problem))
    assert not isinstance(strict, CublasLtTime) or strict.discarded > 0
