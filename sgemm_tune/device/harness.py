"""Guarded operands and the comparison with float64, over the kernels of harness.cu."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sgemm_tune.arch import Arch
from sgemm_tune.compiler.nvrtc import compile_source
from sgemm_tune.compiler.sources import SourceText
from sgemm_tune.device.operands import Matrix, Operands
from sgemm_tune.device.timing import wait_asleep
from sgemm_tune.kernel import ceil_div
from sgemm_tune.measure.cases import Case
from sgemm_tune.measure.protocol import Check

_SOURCE = Path(__file__).with_name("harness.cu")
_GUARD = 0x7FC5A5A5
_UNWRITTEN = 0x7FC1C1C1
_THREADS = 256
_MAX_BLOCKS = 132 * 64
_REPORT = np.dtype(
    [
        ("worst", np.uint64),
        ("unwritten", np.uint64),
        ("nonfinite", np.uint64),
        ("guards", np.uint64),
        ("inputs_changed", np.uint64),
        ("different", np.uint64),
        ("diff_squares", np.float64),
        ("ref_squares", np.float64),
    ]
)
_NAIVE_REFERENCE_FLOPS = 2**28
_LONG_FLOPS = 2**35
"""From this size on, 2580 x 2580 x 2580, what is checked takes so long that the wait is worth a sleep."""
_LARGEST_SHARE = 16


@dataclass(frozen=True)
class Reference:
    """C64 and its scale |alpha| |A||B| + |beta| |C|, both float64 and packed (M, N)."""

    value: Any
    scale: Any


@dataclass(frozen=True)
class Fixture:
    """Operands with what they were before a kernel ran, and what it should make of them.

    Attributes:
        operands: what kernels are launched on.
        pristine: the whole arena as it was filled.
        reference: of that.
    """

    operands: Operands
    pristine: Any
    reference: Reference

    @property
    def bytes(self) -> int:
        """Device memory that it takes."""
        return 2 * int(self.pristine.nbytes) + int(self.reference.value.nbytes + self.reference.scale.nbytes)

    def restore(self) -> None:
        """Undo whatever kernels did, to C or to anything else."""
        self.operands.arena[...] = self.pristine

    def c_words(self) -> Any:
        """C as it lies in the arena, what is between its rows included."""
        c = self.operands.c
        return self.operands.arena[c.begin : c.begin + c.floats]


class Harness:
    """The judging kernels, loaded for one architecture.

    Args:
        arch: of the current device.
    """

    def __init__(self, arch: Arch) -> None:
        import cupy

        module = cupy.cuda.function.Module()
        source = SourceText(_SOURCE.name, _SOURCE.read_text(encoding="utf-8"), (), "")
        module.load(compile_source(source, arch, (), _SOURCE.name).cubin)
        self._module = module
        self._report: Any = cupy.zeros(_REPORT.itemsize, dtype=cupy.uint8)

    def fill(self, operands: Operands, seed: int, *, poisoned: bool = False) -> None:
        """Guards all over, normal A and B (unless `poisoned`), C normal where beta reads it."""
        arena, problem = operands.arena, operands.problem
        self._run("fill_words", arena.size, arena, np.uint64(arena.size), np.uint32(_GUARD))
        if not poisoned:
            self._fill_normal(operands, operands.a, 3 * seed)
            self._fill_normal(operands, operands.b, 3 * seed + 1)
        if problem.beta != 0:
            self._fill_normal(operands, operands.c, 3 * seed + 2)
        else:
            # C before a run with beta = 0: NaN of a payload that no arithmetic produces
            c = operands.c
            at = np.uintp(operands.pointer(c))
            self._run("fill_pattern", c.rows * c.cols, at, *_extent(c), np.uint32(_UNWRITTEN))

    def fixture(self, case: Case, seed: int) -> Fixture:
        """What a case needs, ready to run."""
        operands = Operands(case.problem, case.misaligned)
        self.fill(operands, seed, poisoned=case.poisoned)
        if case.specials:
            _put_specials(operands)
        return Fixture(operands, operands.arena.copy(), self.reference(operands))

    def reference(self, operands: Operands) -> Reference:
        """float64 of what is in the arena now: to be taken before a run overwrites C."""
        import cupy

        p = operands.problem
        if p.flops > _NAIVE_REFERENCE_FLOPS and p.beta == 0:
            # through cuBLAS in float64: the plain kernel would take seconds
            a = operands.view(operands.a).astype(cupy.float64)
            b = operands.view(operands.b).astype(cupy.float64)
            value = cupy.matmul(a, b)
            scale = cupy.matmul(cupy.abs(a, out=a), cupy.abs(b, out=b))
            value *= p.alpha
            scale *= abs(p.alpha)
            return Reference(value, scale)
        value = cupy.empty((p.m, p.n), dtype=cupy.float64)
        scale = cupy.empty((p.m, p.n), dtype=cupy.float64)
        self._run(
            "reference",
            p.m * p.n,
            *(np.uint64(side) for side in (p.m, p.n, p.k)),
            np.float32(p.alpha),
            np.uintp(operands.pointer(operands.a)),
            np.uint64(p.lda),
            np.uintp(operands.pointer(operands.b)),
            np.uint64(p.ldb),
            np.float32(p.beta),
            np.uintp(operands.pointer(operands.c)),
            np.uint64(p.ldc),
            value,
            scale,
        )
        return Reference(value, scale)

    def check(self, fixture: Fixture, earlier: Any = None) -> Check:
        """Compare C with the reference, and all the rest with what it was.

        Args:
            fixture: after a run.
            earlier: what `c_words` was after an earlier run on the same input, for bitwise comparison.
        """
        operands, reference, report = fixture.operands, fixture.reference, self._report
        p, arena = operands.problem, operands.arena
        report.fill(0)
        self._run(
            "compare",
            p.m * p.n,
            np.uint64(p.m),
            np.uint64(p.n),
            np.uintp(operands.pointer(operands.c)),
            np.uint64(p.ldc),
            reference.value,
            reference.scale,
            report,
        )
        extents = [
            number
            for matrix in (operands.a, operands.b, operands.c)
            for number in (np.uint64(matrix.begin), *_extent(matrix))
        ]
        self._run(
            "compare_rest", arena.size, arena, fixture.pristine, np.uint64(arena.size), *extents, report
        )
        if earlier is not None:
            words = fixture.c_words()
            self._run("count_different", words.size, words, earlier, np.uint64(words.size), report)
        if p.flops >= _LONG_FLOPS:
            wait_asleep()
        found = report.get().view(_REPORT)[0]
        element = int(found["worst"]) & 0xFFFFFFFF
        bits = np.array([int(found["worst"]) >> 32], dtype=np.uint32)
        squares = float(found["ref_squares"])
        return Check(
            error=float(bits.view(np.float32)[0]),
            norm_error=math.sqrt(float(found["diff_squares"]) / squares) if squares > 0 else 0.0,
            unwritten=int(found["unwritten"]),
            nonfinite=int(found["nonfinite"]),
            guards=int(found["guards"]),
            inputs_changed=int(found["inputs_changed"]),
            repeatable=int(found["different"]) == 0,
            row=element // max(1, p.n),
            col=element % max(1, p.n),
        )

    def _fill_normal(self, operands: Operands, matrix: Matrix, stream: int) -> None:
        self._run(
            "fill_normal",
            matrix.rows * matrix.cols,
            np.uintp(operands.pointer(matrix)),
            *_extent(matrix),
            np.uint64(stream),
        )

    def _run(self, name: str, work: int, *args: Any) -> None:
        if work > 0:
            blocks = min(_MAX_BLOCKS, ceil_div(work, _THREADS))
            self._module.get_function(name)((blocks,), (_THREADS,), args)


class Fixtures:
    """Hard shapes that were made once and serve every candidate of the same tile; the oldest make room.

    Args:
        harness: makes them.
        limit: bytes that they may take together; what is larger than a share of it is made anew each time.
    """

    def __init__(self, harness: Harness, limit: int) -> None:
        self._harness, self._limit = harness, limit
        self._kept: dict[tuple[Case, int], Fixture] = {}
        self._bytes = 0

    def get(self, case: Case, seed: int) -> Fixture:
        """The fixture of a case, as if no kernel had ever run on it."""
        fixture = self._kept.get((case, seed))
        if fixture is not None:
            fixture.restore()
            return fixture
        fixture = self._harness.fixture(case, seed)
        if fixture.bytes <= self._limit // _LARGEST_SHARE:
            while self._kept and self._bytes + fixture.bytes > self._limit:
                self._bytes -= self._kept.pop(next(iter(self._kept))).bytes
            self._kept[case, seed] = fixture
            self._bytes += fixture.bytes
        return fixture

    def clear(self) -> None:
        """Give the memory back."""
        self._kept.clear()
        self._bytes = 0


def _extent(matrix: Matrix) -> tuple[np.uint64, np.uint64, np.uint64]:
    return np.uint64(matrix.rows), np.uint64(matrix.cols), np.uint64(matrix.ld)


def _put_specials(operands: Operands) -> None:
    """Infinities and NaN in a few places of A and B, so that some rows and columns of C must show them."""
    a, b = operands.view(operands.a), operands.view(operands.b)
    nan, infinite = float("nan"), float("inf")
    a[1, 2], a[2, 0], b[2, 5], b[0, 9] = infinite, nan, -infinite, nan
