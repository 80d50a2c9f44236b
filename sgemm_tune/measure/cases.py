"""The hard shapes that a candidate must get right before its time counts."""

from __future__ import annotations

from dataclasses import dataclass

from sgemm_tune.kernel import Kernel
from sgemm_tune.problem import Problem


@dataclass(frozen=True)
class Case:
    """One validation run.

    Attributes:
        problem: shape, scalars and leading dimensions.
        misaligned: floats by which A, B and C are shifted off 16-byte alignment.
        specials: put Inf and NaN among the operands; they must come out where cuBLAS has them.
        poisoned: operands that must not be read (alpha = 0) are NaN.
        why: what the case is there to catch.
    """

    problem: Problem
    why: str
    misaligned: int = 0
    specials: bool = False
    poisoned: bool = False


def hard_cases(kernel: Kernel) -> tuple[Case, ...]:
    """Cases around the edges of `kernel`'s tile; every stage must take every one of them.

    C is filled with NaN wherever beta is 0, in all of them.
    """
    bm, bn, bk = kernel.tile
    return (
        Case(Problem(1, 1, 1), "the smallest product"),
        Case(Problem(bm, bn, bk), "exactly one tile"),
        Case(Problem(2 * bm, 2 * bn, 4 * bk), "whole tiles, an even number of K steps"),
        Case(Problem(bm, 2 * bn, 3 * bk, beta=1.0), "whole tiles, an odd number of K steps, beta = 1"),
        Case(Problem(max(1, bm - 1), max(1, bn - 1), max(1, bk - 1)), "one below the tile"),
        Case(Problem(bm + 1, bn + 1, bk + 1, alpha=-0.5, beta=0.5), "one above the tile"),
        Case(Problem(bm + 4, bn + 4, 2 * bk + 4), "vectors that end inside the last tile"),
        Case(
            Problem(bm + 3, bn + 5, 2 * bk + 3, 1.5, -0.5, 2 * bk + 4, bn + 8, bn + 6),
            "odd leading dimensions",
        ),
        Case(Problem(bm, bn, 2 * bk, lda=2 * bk + 1, ldb=bn + 1, ldc=bn + 1), "rows that lose alignment"),
        Case(Problem(bm, bn, 2 * bk), "pointers aligned to 4 bytes only", misaligned=1),
        Case(Problem(67, 131, 259), "M, N and K all different"),
        Case(Problem(1, 257, 64), "one row"),
        Case(Problem(257, 1, 64), "one column"),
        Case(Problem(33, 17, 1030), "deep K"),
        Case(Problem(5, 7, 0), "K = 0 clears C"),
        Case(Problem(5, 7, 0, beta=2.0), "K = 0 scales C"),
        Case(Problem(bm + 1, bn + 1, bk, alpha=0.0, beta=1.0), "alpha = 0 reads no operand", poisoned=True),
        Case(Problem(max(3, bm + 2), max(10, bn + 3), 2 * bk + 1), "NaN and Inf pass through", specials=True),
    )
