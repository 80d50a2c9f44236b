"""Every stage is right on the hard shapes, on a ragged shape and past 32-bit offsets."""

from __future__ import annotations

import random

import pytest

from sgemm_tune.arch import Arch
from sgemm_tune.compiler.nvrtc import Binary, compile_kernel
from sgemm_tune.device.gpu import GpuDevice
from sgemm_tune.kernel import Kernel, ladder
from sgemm_tune.measure.cases import Case
from sgemm_tune.measure.evaluate import Valid, validate
from sgemm_tune.measure.protocol import Policy, Request
from sgemm_tune.problem import Precision, Problem
from tests.gpu.sanitize_target import compile_all

pytestmark = pytest.mark.gpu

SAMPLED = 12
RAGGED = Problem(517, 389, 261, alpha=1.25, beta=0.0, lda=263, ldb=391, ldc=392)


def _sampled(stage: type[Kernel], arch: Arch) -> list[tuple[Kernel, Binary]]:
    legal = list(stage.legal(arch))
    kernels = [stage(), *random.Random(1).sample(legal, min(SAMPLED, len(legal)))]
    return list(zip(kernels, compile_all(kernels, arch), strict=True))


@pytest.mark.parametrize("stage", ladder(), ids=lambda stage: stage.name())
def test_hard_shapes(stage: type[Kernel], device: GpuDevice, arch: Arch) -> None:
    for kernel, binary in _sampled(stage, arch):
        for problem in (RAGGED, Problem(1000, 1023, 1024)):
            request = Request(kernel, binary, problem, Policy(seed=3))
            valid = validate(device, request, device.load(kernel, binary))
            assert isinstance(valid, Valid), f"{kernel}: {valid.reason}"
            assert 0 < valid.accuracy.error <= valid.accuracy.bound


@pytest.mark.parametrize("stage", ladder(), ids=lambda stage: stage.name())
def test_offsets_past_32_bits(stage: type[Kernel], device: GpuDevice, arch: Arch) -> None:
    kernel = stage()
    loaded = device.load(kernel, compile_kernel(kernel, arch))
    check = device.check(loaded, Case(Problem(46341, 46341, 64), "offsets"), stage.precision, seed=1)
    assert (check.unwritten, check.nonfinite, check.guards, check.inputs_changed) == (0, 0, 0, 0)
    assert check.error <= stage.precision.error_bound(64)


@pytest.mark.parametrize("stage", ladder(), ids=lambda stage: stage.name())
def test_empty_products_launch_nothing(stage: type[Kernel], device: GpuDevice, arch: Arch) -> None:
    kernel = stage()
    loaded = device.load(kernel, compile_kernel(kernel, arch))
    for problem in (Problem(0, 5, 7), Problem(5, 0, 7), Problem(0, 0, 0)):
        check = device.check(loaded, Case(problem, "empty"), stage.precision, seed=1)
        assert (check.guards, check.error) == (0, 0.0)


def test_long_sums(device: GpuDevice, arch: Arch) -> None:
    """A right kernel passes at K = 65536, where a flat tolerance fails it."""
    for stage in ladder():
        kernel = stage()
        request = Request(kernel, compile_kernel(kernel, arch), Problem(128, 128, 65536), Policy())
        valid = validate(device, request, device.load(kernel, request.binary))
        assert isinstance(valid, Valid), f"{kernel}: {valid.reason}"


def test_strict_fp32_differs_from_tf32(device: GpuDevice) -> None:
    problem = Problem(512, 512, 512)
    strict = device.check_tuned(None, problem, Precision.FP32, 0)
    tf32 = device.check_tuned(None, problem, Precision.TF32, 0)
    assert strict.norm_error < 2e-6
    assert 1e-4 < tf32.norm_error < 1e-3
