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
from sgemm_tune.kernel import ceil_div
from sgemm_tune.measure.protocol import Check
from sgemm_tune.problem import Problem

_SOURCE = Path(__file__).with_name("harness.cu")
_GUARD = 0x7FC5A5A5
_UNWRITTEN = 0x7FC1C1C1
_GUARD_FLOATS = 4096
_ALIGN_FLOATS = 64
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


@dataclass(frozen=True)
class Matrix:
    """A row-major matrix inside an arena: `begin` and `ld` in floats."""

    begin: int
    rows: int
    cols: int
    ld: int

    @property
    def floats(self) -> int:
        """Length from its first to behind its last element."""
        return 0 if self.rows == 0 or self.cols == 0 else (self.rows - 1) * self.ld + self.cols


class Operands:
    """A, B and C of one problem in one arena, each with a guard zone before and after it.

    Args:
        problem: shape and leading dimensions.
        misaligned: floats by which every matrix is shifted off its alignment of 256 bytes.
    """

    def __init__(self, problem: Problem, misaligned: int = 0) -> None:
        import cupy

        end = 0
        matrices = []
        for rows, cols, ld in (
            (problem.m, problem.k, problem.lda),
            (problem.k, problem.n, problem.ldb),
            (problem.m, problem.n, problem.ldc),
        ):
            begin = ceil_div(end + _GUARD_FLOATS, _ALIGN_FLOATS) * _ALIGN_FLOATS + misaligned
            matrices.append(Matrix(begin, rows, cols, ld))
            end = begin + matrices[-1].floats
        self.problem = problem
        self.a, self.b, self.c = matrices
        self.arena: Any = cupy.empty(end + _GUARD_FLOATS, dtype=cupy.float32)

    def pointer(self, matrix: Matrix) -> int:
        """Device address of a matrix."""
        return int(self.arena.data.ptr) + 4 * matrix.begin

    def view(self, matrix: Matrix) -> Any:
        """The matrix as a strided CuPy array of shape (rows, cols)."""
        import cupy

        flat = self.arena[matrix.begin :]
        return cupy.lib.stride_tricks.as_strided(flat, (matrix.rows, matrix.cols), (4 * matrix.ld, 4))


@dataclass(frozen=True)
class Reference:
    """C64 and its scale |alpha| |A||B| + |beta| |C|, both float64 and packed (M, N)."""

    value: Any
    scale: Any


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
            self.unwrite(operands)

    def unwrite(self, operands: Operands) -> None:
        """C as it is before a run with beta = 0: NaN of a payload that no arithmetic produces."""
        c = operands.c
        self._run(
            "fill_pattern", c.rows * c.cols, np.uintp(operands.pointer(c)), *_extent(c), np.uint32(_UNWRITTEN)
        )

    def refill_c(self, operands: Operands, seed: int) -> None:
        """C as `fill` made it."""
        if operands.problem.beta != 0:
            self._fill_normal(operands, operands.c, 3 * seed + 2)
        else:
            self.unwrite(operands)

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

    def check(
        self,
        operands: Operands,
        reference: Reference,
        seed: int,
        *,
        inputs: bool = True,
        earlier: Any = None,
    ) -> Check:
        """Compare C with the reference and look at everything that a kernel must not touch.

        Args:
            operands: after the run.
            reference: taken before it.
            seed: what `fill` was given.
            inputs: look whether A and B are as `fill` made them (not where specials were put in).
            earlier: a copy of the arena after an earlier run on the same input, for bitwise comparison.
        """
        p, arena, report = operands.problem, operands.arena, self._report
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
        self._run("check_guards", arena.size, arena, np.uint64(arena.size), *extents, report)
        if inputs:
            for matrix, stream in ((operands.a, 3 * seed), (operands.b, 3 * seed + 1)):
                self._run(
                    "check_normal",
                    matrix.rows * matrix.cols,
                    np.uintp(operands.pointer(matrix)),
                    *_extent(matrix),
                    np.uint64(stream),
                    report,
                )
        if earlier is not None:
            self._run("count_different", arena.size, arena, earlier, np.uint64(arena.size), report)
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


def _extent(matrix: Matrix) -> tuple[np.uint64, np.uint64, np.uint64]:
    return np.uint64(matrix.rows), np.uint64(matrix.cols), np.uint64(matrix.ld)
