"""A, B and C in device memory, with guard zones around each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sgemm_tune.kernel import ceil_div
from sgemm_tune.problem import Problem

_GUARD_FLOATS = 4096
_ALIGN_FLOATS = 64


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
