"""What is computed: C = alpha * A @ B + beta * C in one precision, and how exact it must be."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum

from sgemm_tune.errors import BadProblem, UnknownName

FLOAT_BYTES = 4
_INT32_MAX = 2**31 - 1


class Precision(StrEnum):
    """How the product is computed; the baseline is cuBLAS in the same precision."""

    FP32 = "fp32"
    TF32 = "tf32"

    @classmethod
    def parse(cls, text: str) -> Precision:
        """The precision named `text`, in any case.

        Raises:
            UnknownName: there is none of that name.
        """
        try:
            return cls(text.strip().lower())
        except ValueError:
            raise UnknownName("precision", text, [p.value for p in cls]) from None

    @property
    def unit_roundoff(self) -> float:
        """u of the precision that operands are rounded to: 2^-24 for fp32, 2^-11 for tf32."""
        return 2.0**-24 if self is Precision.FP32 else 2.0**-11

    def norm_bound(self, k: int) -> float:
        """||C - C64|| / ||C64|| that is admissible whatever cuBLAS's own error is.

        A sum of K normal products taken in order errs about 0.3 sqrt(K) u normwise (4.6e-6 was measured at
        K = 65536), where a split one errs sqrt(splits) less. TF32 errs by its operands' rounding alone.
        """
        return self.unit_roundoff * (math.sqrt(k) + 4.0 if self is Precision.FP32 else 4.0)

    def error_bound(self, k: int) -> float:
        """Largest admissible |C - C64| / (|alpha| |A||B| + |beta| |C0|), for every element.

        fp32: (8 + 2 sqrt(K)) * 2^-24. Rounding errors of a K-term sum behave like a random walk
        (Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019), so the
        worst-case factor K would pass a kernel that drops 8 terms of 65536, and a constant would fail a
        right one on operands of one sign. The 8 covers alpha, beta and short sums.

        tf32: both operands are rounded to 11 significant bits, 2 * 2^-11 (1 + 2^-12) at the worst,
        and tensor cores truncate where they accumulate, which grows like K: 2^-10 + (8 + K / 8) * 2^-23.
        """
        if self is Precision.FP32:
            return (8.0 + 2.0 * math.sqrt(k)) * 2.0**-24
        return 2.0**-10 + 2.0**-21 + (8.0 + k / 8.0) * 2.0**-23


@dataclass(frozen=True)
class Problem:
    """Row-major C[M, N] = alpha * A[M, K] @ B[K, N] + beta * C[M, N].

    Attributes:
        m, n, k: sides in elements, each >= 0.
        alpha, beta: scalars; beta = 0 never reads C.
        lda, ldb, ldc: leading dimensions in elements; 0 means packed (K, N and N).

    Raises:
        BadProblem: a negative side, a side past 2^31 - 1, or a leading dimension shorter than its row.
    """

    m: int
    n: int
    k: int
    alpha: float = 1.0
    beta: float = 0.0
    lda: int = 0
    ldb: int = 0
    ldc: int = 0

    def __post_init__(self) -> None:
        for name, side in (("M", self.m), ("N", self.n), ("K", self.k)):
            if not 0 <= side <= _INT32_MAX:
                raise BadProblem(f"{name} is {side}: a side is a whole number from 0 to {_INT32_MAX}")
        for name, packed in (("lda", self.k), ("ldb", self.n), ("ldc", self.n)):
            given = getattr(self, name)
            if given == 0:
                object.__setattr__(self, name, max(1, packed))
            elif not max(1, packed) <= given <= _INT32_MAX:
                raise BadProblem(f"{name} is {given}: a row has {packed} elements, so give at least {packed}")

    @classmethod
    def parse_size(cls, size: int) -> Problem:
        """The square problem of side `size`, which must be at least 1.

        Raises:
            BadProblem: a side below 1: there would be nothing to time.
        """
        if size < 1:
            raise BadProblem(f"size is {size}: give a whole number of at least 1, such as 4096")
        return cls(size, size, size)

    @classmethod
    def parse_shape(cls, text: str) -> Problem:
        """A problem from `MxNxK`, such as `8192x512x2048`.

        Raises:
            BadProblem: not three whole numbers of at least 1 joined by x.
        """
        match = re.fullmatch(r"\s*(\d{1,10})[x×X](\d{1,10})[x×X](\d{1,10})\s*", text)
        if match is None or not all(int(side) >= 1 for side in match.groups()):
            raise BadProblem(f"shape is {text!r}: give MxNxK, each at least 1, such as 8192x512x2048")
        m, n, k = (int(side) for side in match.groups())
        return cls(m, n, k)

    @property
    def flops(self) -> int:
        """Floating-point operations: 2 M N K, as every GEMM benchmark counts them."""
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Fewest bytes of device memory traffic: A and B read once, C written once (read if beta != 0)."""
        c_passes = 2 if self.beta else 1
        return FLOAT_BYTES * (self.m * self.k + self.k * self.n + c_passes * self.m * self.n)

    @property
    def shape(self) -> str:
        """`MxNxK`."""
        return f"{self.m}x{self.n}x{self.k}"

    def distance(self, other: Problem) -> float:
        """How far apart two shapes are: the sum over the sides of |log2| of their quotients."""
        sides = zip((self.m, self.n, self.k), (other.m, other.n, other.k), strict=True)
        return sum(abs(math.log2(max(1, one) / max(1, two))) for one, two in sides)

    def tflops(self, ms: float) -> float:
        """Rate in TFLOP/s of a run that took `ms` milliseconds (> 0)."""
        return self.flops / (ms * 1e9)
