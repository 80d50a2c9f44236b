"""Problems as people write them, and error bounds that neither fail right kernels nor pass wrong ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgemm_tune.errors import BadProblem, UnknownName
from sgemm_tune.problem import Precision, Problem


@pytest.mark.parametrize("size", [0, -1, -4096])
def test_a_size_below_one_is_refused_in_one_line(size: int) -> None:
    with pytest.raises(BadProblem, match=rf"size is {size}: .*at least 1") as caught:
        Problem.parse_size(size)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_a_size_past_32_bits_is_refused() -> None:
    with pytest.raises(BadProblem, match="2147483647"):
        Problem.parse_size(2**31)


def test_a_size_is_a_square() -> None:
    assert Problem.parse_size(7) == Problem(7, 7, 7)


@pytest.mark.parametrize("text", ["8192x512x2048", "8192X512X2048", " 8192×512×2048 "])
def test_a_shape_is_m_n_k(text: str) -> None:
    problem = Problem.parse_shape(text)
    assert (problem.m, problem.n, problem.k) == (8192, 512, 2048)
    assert problem.shape == "8192x512x2048"


@pytest.mark.parametrize(
    "text",
    ["", "4096", "4096x4096", "1x2x3x4", "0x1x1", "1x1x0", "-1x2x3", "1.5x2x3", "axbxc", "1 2 3", "1e3x2x3"],
)
def test_what_is_no_shape_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(BadProblem) as caught:
        Problem.parse_shape(text)
    assert repr(text) in str(caught.value)
    assert "MxNxK" in str(caught.value)


def test_leading_dimensions_are_packed_by_default_and_checked() -> None:
    packed = Problem(3, 5, 7)
    assert (packed.lda, packed.ldb, packed.ldc) == (7, 5, 5)
    padded = Problem(3, 5, 7, lda=8, ldb=6, ldc=9)
    assert (padded.lda, padded.ldb, padded.ldc) == (8, 6, 9)
    for name in ("lda", "ldb", "ldc"):
        with pytest.raises(BadProblem, match=name):
            Problem(3, 5, 7, **{name: 4})


def test_empty_sides_are_problems_too() -> None:
    empty = Problem(0, 0, 0)
    assert empty.flops == 0
    assert (empty.lda, empty.ldb, empty.ldc) == (1, 1, 1)
    with pytest.raises(BadProblem, match="M is -1"):
        Problem(-1, 1, 1)


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 50))
def test_flops_and_bytes_count_what_a_gemm_does(m: int, n: int, k: int) -> None:
    problem = Problem(m, n, k)
    assert problem.flops == 2 * m * n * k
    assert problem.bytes == 4 * (m * k + k * n + m * n)
    assert Problem(m, n, k, beta=1.0).bytes == problem.bytes + 4 * m * n


def test_tflops_is_work_over_time() -> None:
    assert Problem(1000, 1000, 1000).tflops(2.0) == pytest.approx(1.0)


@pytest.mark.parametrize(("text", "found"), [("fp32", Precision.FP32), (" TF32 ", Precision.TF32)])
def test_precisions_by_name(text: str, found: Precision) -> None:
    assert Precision.parse(text) is found


def test_an_unknown_precision_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName, match=r"'fp8'.*fp32, tf32"):
        Precision.parse("fp8")


def _relative_error(product: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    exact = a.astype(np.float64) @ b.astype(np.float64)
    scale = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    return float(np.max(np.abs(product - exact) / scale))


def _sequential(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One fp32 accumulator per element, as the naive kernel sums."""
    total = np.zeros((a.shape[0], b.shape[1]), dtype=np.float32)
    for i in range(a.shape[1]):
        total += np.outer(a[:, i], b[i, :])
    return total


def _operands(k: int, rng: np.random.Generator, *, one_sign: bool) -> tuple[np.ndarray, np.ndarray]:
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, k), (k, 8)))
    return (np.abs(a), np.abs(b)) if one_sign else (a, b)


@pytest.mark.parametrize("one_sign", [False, True])
@pytest.mark.parametrize("k", [1, 64, 4096, 65536])
def test_a_plain_fp32_sum_keeps_the_bound(k: int, one_sign: bool) -> None:
    a, b = _operands(k, np.random.default_rng(k), one_sign=one_sign)
    assert _relative_error(_sequential(a, b), a, b) <= Precision.FP32.error_bound(k)


@pytest.mark.parametrize("k", [4096, 65536])
def test_a_kernel_that_drops_8_terms_breaks_the_bound(k: int) -> None:
    a, b = _operands(k, np.random.default_rng(k), one_sign=False)
    assert _relative_error(_sequential(a[:, 8:], b[8:]), a, b) > Precision.FP32.error_bound(k)


def _tf32(x: np.ndarray) -> np.ndarray:
    """Rounded to 11 significant bits, to nearest."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.round(mantissa * 2**11) / 2**11, exponent)


@pytest.mark.parametrize("k", [64, 4096])
def test_tf32_operands_break_the_fp32_bound_and_keep_their_own(k: int) -> None:
    a, b = _operands(k, np.random.default_rng(k), one_sign=False)
    error = _relative_error(_tf32(a) @ _tf32(b), a, b)
    assert error > Precision.FP32.error_bound(k)
    assert error <= Precision.TF32.error_bound(k)


def test_bounds_grow_with_k_and_stay_finite() -> None:
    for precision in Precision:
        bounds = [precision.error_bound(k) for k in (0, 1, 100, 10_000, 1_000_000)]
        assert bounds == sorted(bounds)
        assert bounds[0] > 0
        assert math.isfinite(bounds[-1])
