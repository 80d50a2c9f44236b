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
from sgemm_tune.stages.tma import Tma
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


CLUSTERED: tuple[dict[str, int], ...] = (
    {},
    {"PREPASS": 1},
    {"STREAM_K": 0, "PREPASS": 1, "BK": 64, "STAGES": 2},
    {"BK": 64, "STAGES": 2, "LANES_M": 8, "ORDER": 1},
    {"BK": 8, "STAGES": 6},
    {"BN": 128, "MIN_BLOCKS": 2, "BK": 32, "STAGES": 2},
    {"BM": 64, "MIN_BLOCKS": 2, "BK": 32, "STAGES": 2},
)
BELOW_C = (
    (Problem(1, 1000, 700), "one row of C: half of the blocks have none"),
    (Problem(300, 1000, 700, beta=0.5), "an odd number of tile rows"),
    (Problem(260, 260, 5000, 1.5, -0.5), "an odd number of tile rows, each tile shared by many"),
    (Problem(299, 517, 20001, lda=20003, ldb=519, ldc=521), "the same, and no rows are aligned"),
    (Problem(2500, 2100, 600, beta=1.0), "two share, a little more than a wave of tiles"),
    (Problem(2361, 2177, 601), "two share, an odd number of tile rows, no rows are aligned"),
    (Problem(4000, 4100, 40), "several waves, no tile of K is whole"),
)


TWELVES: tuple[dict[str, int], ...] = (
    {"BM": 48, "BN": 256, "TM": 12, "TN": 8, "MIN_BLOCKS": 2, "ORDER": 1},
    {"BM": 96, "BN": 256, "TM": 12, "TN": 8, "LANES_M": 8},
    {"BM": 96, "BN": 128, "TM": 12, "TN": 8, "MIN_BLOCKS": 2},
    {"BM": 192, "BN": 128, "TM": 12, "TN": 8, "PREPASS": 1},
    {"BM": 128, "BN": 192, "TM": 8, "TN": 12, "CLUSTER": 2},
    {"BM": 64, "BN": 192, "TM": 8, "TN": 12, "MIN_BLOCKS": 2, "BK": 32},
    {"BM": 128, "BN": 96, "TM": 8, "TN": 12, "LANES_M": 8, "MIN_BLOCKS": 2, "ORDER": 1},
    {"BM": 256, "BN": 48, "TM": 8, "TN": 12, "LANES_M": 8, "MIN_BLOCKS": 2},
)
LAUNCHES = ({"STAGES": 3, "STREAM_K": 1}, {"STAGES": 2, "STREAM_K": 0}, {"STAGES": 2, "STREAM_K": 1})


@pytest.mark.parametrize("params", CLUSTERED, ids=str)
def test_clusters_at_the_lower_edge_of_c(params: dict[str, int], device: GpuDevice, arch: Arch) -> None:
    """A tile below C is written by nobody, its block keeps step all the same, and a launch leaves no flag."""
    if not arch.multicast:
        pytest.skip(f"{arch.name} is not for clusters")
    kernel = Tma.from_params({**Tma().params, **params, "CLUSTER": 2})
    _assert_right_at_the_edges(device, kernel, compile_kernel(kernel, arch), seeds=(1, 2))


@pytest.mark.parametrize("params", TWELVES, ids=str)
def test_tiles_that_are_no_powers_of_two(params: dict[str, int], device: GpuDevice, arch: Arch) -> None:
    """Also of one cubin, launched with other numbers of buffers, and with and without shared tiles."""
    if params.get("CLUSTER", 1) > 1 and not arch.multicast:
        pytest.skip(f"{arch.name} is not for clusters")
    kernels = [Tma.from_params({**Tma().params, **params, **launch}) for launch in LAUNCHES]
    assert len({kernel.code for kernel in kernels}) == 1
    binary = compile_kernel(kernels[0], arch)
    for kernel in kernels:
        if kernel.is_legal(arch):
            _assert_right_at_the_edges(device, kernel, binary, seeds=(1,))


def _assert_right_at_the_edges(
    device: GpuDevice, kernel: Kernel, binary: Binary, seeds: tuple[int, ...]
) -> None:
    loaded = device.load(kernel, binary)
    for problem, why in BELOW_C:
        for misaligned in (0, 1):
            for seed in seeds:
                check = device.check(loaded, Case(problem, why, misaligned), kernel.precision, seed=seed)
                found = (check.unwritten, check.nonfinite, check.guards, check.inputs_changed)
                assert found == (0, 0, 0, 0), f"{kernel} on {problem}: {why}"
                assert check.error <= kernel.precision.error_bound(problem.k), f"{kernel} on {problem}: {why}"


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
