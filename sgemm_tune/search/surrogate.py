"""A Gaussian process over a finite pool of points, in NumPy alone. No Optuna, no kernels.

The model predicts the logarithm of a time, because effects on a kernel's time multiply: halving the
work per load does so for slow and fast neighbours alike. Its covariance is a product over the names,
`prod_d exp(-distance_d / length_d)`: two points are alike as far as every name's values are alike, and
a name that does not matter gets a great length. Because values come from short lists, distances are looked
up in small tables, all names' at once by a matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sgemm_tune.search.space import Space, Value

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Ints = npt.NDArray[np.intp]

ABSENT = -1
"""The code of a name that a point does not have."""

_FIT_STEPS = 30
_LENGTH_PRIOR = (1.0, 1.0)  # of log length: mean, standard deviation; distances span 0 to 1
_NOISE_PRIOR = (math.log(1e-2), 1.0)  # of log (noise variance / signal variance)
_SIGNAL_PRIOR = (0.0, 1.5)  # of log signal variance; targets are standardised
_LEAST_NOISE = 1e-4  # of the signal's variance: correlations are single precision
_JITTER = 1e-8


@dataclass(frozen=True)
class Encoded:
    """The points of a space as whole numbers.

    Attributes:
        codes: shape (points, names); the place of each value in its name's choices, or `ABSENT`.
        distances: per name a symmetric table over its codes, in [0, 1]; the last row is `ABSENT`.
    """

    codes: Ints
    distances: tuple[Floats, ...]

    @cached_property
    def levels(self) -> Singles:
        """A 1 at each value that a point has, the names' tables side by side; shape (points, values)."""
        names = enumerate(self.distances)
        return np.hstack([np.eye(len(table), dtype=np.float32)[self.codes[:, d]] for d, table in names])

    def with_prior(self, prior: Sequence[float], levels: int = 32) -> Encoded:
        """The same points with one more column: the rank of a predicted time, cut into equal shares.

        Args:
            prior: a predicted time per point; what is not finite and positive counts as the slowest.
            levels: the number of shares.
        """
        log = log_times(prior)
        ranks = np.argsort(np.argsort(log, kind="stable"), kind="stable")
        share = ranks * levels // len(log)
        centre = np.array([log[share == s].mean() if (share == s).any() else math.nan for s in range(levels)])
        kept = np.flatnonzero(np.isfinite(centre))
        column = np.searchsorted(kept, share)
        return Encoded(np.column_stack([self.codes, column]), (*self.distances, _spread(centre[kept])))


def encode(space: Space) -> Encoded:
    """The points of `space` as codes with distances: numbers by their logarithm, the rest equal or not."""
    places = {name: {v: i for i, v in enumerate(values)} for name, values in space.choices.items()}
    rows = [
        [places[name].get(point[name], ABSENT) if name in point else ABSENT for name in places]
        for point in space.points
    ]
    codes = np.array(rows, dtype=np.intp).reshape(len(space.points), len(places))
    return Encoded(codes, tuple(_value_distances(values) for values in space.choices.values()))


def log_times(times: Sequence[float] | Floats) -> Floats:
    """Logarithms of times; what is no positive finite number becomes the slowest of the rest."""
    values = np.asarray(times, dtype=np.float64)
    good = np.isfinite(values) & (values > 0)
    log = np.log(np.where(good, values, 1.0))
    return np.where(good, log, log[good].max() if good.any() else 0.0)


def _value_distances(values: Sequence[Value]) -> Floats:
    numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(values) or not all(map(math.isfinite, numbers)):
        return 1.0 - np.eye(len(values) + 1)
    scale = np.array(numbers)
    if scale.min() > 0:
        scale = np.log2(scale)
    elif scale.min() == 0:
        scale = np.log2(1 + scale)
    return _spread(scale)


def _spread(scale: Floats) -> Floats:
    """Distances between places on a line, at most 1, with `ABSENT` at 1 from them all."""
    table = np.ones((len(scale) + 1, len(scale) + 1))
    table[:-1, :-1] = np.abs(scale[:, None] - scale[None, :]) / (np.ptp(scale) or 1.0)
    table[-1, -1] = 0.0
    return table


@dataclass(frozen=True)
class Hyper:
    """What is learnt by maximum a posteriori: a length per name, the signal's and the noise's variance."""

    lengths: Floats
    signal: float
    noise: float


def fit_hyper(encoded: Encoded, index: Ints, target: Floats) -> Hyper:
    """Fits lengths and variances to some points.

    Starts from the prior's means each time, so that the result depends on its arguments alone, and
    follows the sign of the gradient with a step per coordinate (Rprop: Riedmiller and Braun 1993).

    Args:
        encoded: the pool.
        index: shape (n,), places in the pool.
        target: shape (n,), standardised log times.
    """
    dims = len(encoded.distances)
    codes = encoded.codes[index]
    gaps = np.stack([t[np.ix_(codes[:, d], codes[:, d])] for d, t in enumerate(encoded.distances)])
    centre = np.array([_LENGTH_PRIOR[0]] * dims + [_SIGNAL_PRIOR[0], _NOISE_PRIOR[0]])
    width = np.array([_LENGTH_PRIOR[1]] * dims + [_SIGNAL_PRIOR[1], _NOISE_PRIOR[1]])
    theta, best, lowest = centre.copy(), centre.copy(), math.inf
    step, last = np.full(dims + 2, 0.2), np.zeros(dims + 2)
    for _ in range(_FIT_STEPS):
        loss, slope = _negative_evidence(gaps, target, theta)
        loss += float(0.5 * (((theta - centre) / width) ** 2).sum())
        slope = slope + (theta - centre) / width**2
        if loss < lowest:
            lowest, best = loss, theta.copy()
        turn = np.sign(slope) * last
        step = np.clip(np.where(turn > 0, step * 1.3, np.where(turn < 0, step * 0.5, step)), 1e-3, 0.7)
        last = np.where(turn < 0, 0.0, np.sign(slope))
        theta = np.clip(theta - last * step, centre - 6 * width, centre + 6 * width)
    return Hyper(np.exp(best[:dims]), float(np.exp(best[dims])), float(np.exp(best[dims + 1])))


def _negative_evidence(gaps: Floats, target: Floats, theta: Floats) -> tuple[float, Floats]:
    """Minus the log marginal likelihood with its gradient in theta = log (lengths, signal, noise).

    Args:
        gaps: shape (names, n, n), distances.
        target: shape (n,).
        theta: shape (names + 2,).
    """
    dims, size = len(gaps), len(target)
    rates = np.exp(-theta[:dims])
    signal, noise = np.exp(theta[dims]), np.exp(theta[dims + 1])
    alike = np.exp(-np.tensordot(rates, gaps, 1))
    cov = signal * alike
    cov[np.diag_indices(size)] += signal * noise + _JITTER
    inverse = np.linalg.inv(cov)
    rest = target - inverse.sum(0) @ target / inverse.sum()
    weight = inverse @ rest
    loss = 0.5 * rest @ weight + np.log(np.diag(np.linalg.cholesky(cov))).sum()
    pull = inverse - np.outer(weight, weight)
    slope = np.empty(dims + 2)
    slope[:dims] = 0.5 * signal * rates * np.tensordot(gaps, pull * alike, 2)
    slope[dims] = 0.5 * (pull * cov).sum()
    slope[dims + 1] = 0.5 * signal * noise * np.trace(pull)
    return float(loss), slope


class Pool:
    """Correlations of points of the pool, in [0, 1].

    `levels` has a 1 at each value of a point, so that `levels @ gaps @ levels.T`, with every name's table on
    the diagonal of `gaps`, looks up the distances of all names and adds them up.
    """

    def __init__(self, encoded: Encoded, hyper: Hyper) -> None:
        self.levels = encoded.levels
        self._gaps = np.zeros((self.levels.shape[1],) * 2, dtype=np.float32)
        start = 0
        for table, length in zip(encoded.distances, hyper.lengths, strict=True):
            here = slice(start, start + len(table))
            self._gaps[here, here] = -table / length
            start += len(table)

    def rows(self, points: Ints, levels: Singles) -> Singles:
        """Of some points with those whose rows of the attribute are `levels`; shape (n, m)."""
        gaps: Singles = self.levels[points] @ self._gaps
        out: Singles = gaps @ levels.T
        return np.exp(out, out=out)


class Posterior:
    """What is believed about the points `among`, given points that are observed or under way.

    Grows by one point at a time: the inverse Cholesky factor and the whitened covariances get a row.

    Attributes:
        among: shape (m,), the places in the pool that are predicted.
        points: the places given so far.
    """

    def __init__(self, pool: Pool, hyper: Hyper, among: Ints, points: Ints) -> None:
        """Starts from `points`, shape (n,); costs O(n^3 + n^2 m)."""
        self.among = among
        self.points: list[int] = points.tolist()
        self._pool, self._signal = pool, hyper.signal
        self._levels = pool.levels[among]
        self._noise = max(hyper.noise, _LEAST_NOISE) * hyper.signal
        cov = self._signal * pool.rows(points, pool.levels[points]).astype(np.float64)
        cov[np.diag_indices(len(points))] += self._noise
        self._factor = np.linalg.inv(np.linalg.cholesky(cov))
        scaled = (self._signal * self._factor).astype(np.float32)
        self._white = scaled @ pool.rows(points, self._levels)
        self.variance = self._signal - np.square(self._white).sum(0, dtype=np.float64)

    def add(self, point: int) -> None:
        """Takes one more point as given; costs O(n^2 + n m)."""
        n = len(self.points)
        if n == len(self._factor):
            self._grow(2 * n)
        factor, here = self._factor[:n, :n], np.array([point])
        predicted = np.flatnonzero(self.among == point)
        if len(predicted):  # whitened already
            left = self._white[:n, predicted[0]].astype(np.float64)
        else:
            known = self._pool.rows(here, self._pool.levels[self.points])[0]
            left = factor @ (self._signal * known.astype(np.float64))
        pivot = math.sqrt(max(self._signal + self._noise - float(left @ left), self._noise))
        self._factor[n, :n] = left @ factor / -pivot
        self._factor[n, n] = 1 / pivot
        row = np.float32(self._signal) * self._pool.rows(here, self._levels)[0]
        row -= left.astype(np.float32) @ self._white[:n]
        row /= np.float32(pivot)
        self._white[n] = row
        self.variance -= np.square(row, dtype=np.float64)
        self.points.append(point)

    def mean(self, target: Floats) -> Floats:
        """Expected targets of `among`.

        Args:
            target: shape (n,), one per given point; NaN where the result is still under way, which
                then changes the variance alone (as if it were to come out just as expected).
        """
        n = len(self.points)
        factor = self._factor[:n, :n]
        open_ = np.isnan(target)
        whitened = factor @ np.where(open_, 0.0, target)
        ones = factor @ np.where(open_, 0.0, 1.0)
        if open_.any():
            # what the missing targets could explain is projected out, so that results alone speak
            part = factor[:, open_]
            both = np.column_stack([whitened, ones])
            both -= part @ np.linalg.solve(part.T @ part, part.T @ both)
            whitened, ones = both[:, 0], both[:, 1]
        weight = float(ones @ ones)
        level = float(ones @ whitened) / weight if weight > 0 else 0.0
        rest = (whitened - level * ones).astype(np.float32)
        return level + (rest @ self._white[:n]).astype(np.float64)

    def _grow(self, capacity: int) -> None:
        n = len(self.points)
        factor, white = self._factor, self._white
        self._factor = np.zeros((capacity, capacity))
        self._white = np.zeros((capacity, len(self.among)), dtype=np.float32)
        self._factor[:n, :n], self._white[:n] = factor[:n, :n], white[:n]
