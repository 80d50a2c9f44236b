"""The faulty kernels that the real compiler meets: refused, given up, or reported as spilling."""

from __future__ import annotations

import time

import pytest

from sgemm_tune.arch import parse_arch
from sgemm_tune.compiler.nvrtc import Binary
from sgemm_tune.compiler.pool import CompilePool
from sgemm_tune.errors import CompileError, CompileTimeout
from sgemm_tune.measure.protocol import Policy
from tests.faults.faulty import EXPECTED, KERNELS, compile_faulty, kernel_for

SM_90 = parse_arch("sm_90")
DEADLINE = 8.0


def in_the_pool(fault: str) -> Binary:
    with CompilePool(SM_90, 1, None, DEADLINE, compile_faulty) as pool:
        return pool.submit(kernel_for(fault)).result()


def test_every_kernel_of_the_folder_is_expected_to_fail_but_one() -> None:
    assert {path.stem for path in KERNELS.glob("*.cu")} == {*EXPECTED, "healthy"}
    assert len(EXPECTED) >= 25


def test_minutes_in_the_compiler_cost_the_deadline() -> None:
    started = time.monotonic()
    with pytest.raises(CompileTimeout, match="compiler"):
        in_the_pool("minutes_in_compiler")
    assert time.monotonic() - started < 4 * DEADLINE


def test_what_does_not_compile_says_why() -> None:
    with pytest.raises(CompileError, match="undeclared"):
        in_the_pool("does_not_compile")


def test_spills_are_reported_beyond_what_is_tolerated() -> None:
    assert in_the_pool("spills").spill_bytes > Policy().spill_limit
    assert in_the_pool("healthy").spill_bytes == 0
