"""The Gaussian process against its textbook formulas, and the first steps of a search. No Optuna."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from sgemm_tune.search import proposals, surrogate
from sgemm_tune.search.space import Point, Space
from sgemm_tune.search.surrogate import Encoded, Floats, Hyper, Ints, Pool, Posterior

HYPER = Hyper(np.array([0.4, 1.0, 2.5, 0.7, 1.3]), signal=1.7, noise=0.02)


def pool() -> Encoded:
    rows = itertools.product((1, 2, 4, 8), (0, 1), ("row", "column"), (False, True), (8, 16, 32))
    points: list[Point] = [dict(zip("abcde", row, strict=True)) for row in rows]
    return surrogate.encode(Space.of(points))


def given(encoded: Encoded, count: int) -> tuple[Ints, Floats]:
    rng = np.random.default_rng(0)
    index = rng.choice(len(encoded.codes), count, replace=False)
    return index, rng.normal(size=count)


def covariance(encoded: Encoded, left: Ints, right: Ints) -> Floats:
    """signal * exp(-sum of distance / length), name by name."""
    out = np.full((len(left), len(right)), HYPER.signal)
    for d, table in enumerate(encoded.distances):
        pairs = np.ix_(encoded.codes[left, d], encoded.codes[right, d])
        out *= np.exp(-table[pairs] / HYPER.lengths[d])
    return out


def textbook(encoded: Encoded, index: Ints, target: Floats, among: Ints) -> tuple[Floats, Floats]:
    """Mean and variance with a constant mean estimated by generalised least squares."""
    cov = covariance(encoded, index, index) + HYPER.signal * HYPER.noise * np.eye(len(index))
    inverse = np.linalg.inv(cov)
    level = inverse.sum(0) @ target / inverse.sum()
    cross = covariance(encoded, among, index)
    mean: Floats = level + cross @ inverse @ (target - level)
    variance: Floats = HYPER.signal - np.einsum("ij,jk,ik->i", cross, inverse, cross)
    return mean, variance


def test_posterior_is_the_textbook_one_and_grows_to_it() -> None:
    encoded = pool()
    index, target = given(encoded, 30)
    among = np.arange(len(encoded.codes))
    table = Pool(encoded, HYPER)
    at_once = Posterior(table, HYPER, among, index)
    grown = Posterior(table, HYPER, among, index[:4])
    mean, variance = textbook(encoded, index, target, among)
    others = np.setdiff1d(among, index[9:])  # some of the points are not among those that are predicted
    partly = Posterior(table, HYPER, others, index[:4])
    for place in index[4:]:
        grown.add(int(place))
        partly.add(int(place))
    for posterior in (at_once, grown, partly):
        np.testing.assert_allclose(posterior.mean(target), mean[posterior.among], atol=1e-4)
        np.testing.assert_allclose(posterior.variance, variance[posterior.among], atol=1e-4)


def test_results_under_way_change_the_variance_alone() -> None:
    encoded = pool()
    index, target = given(encoded, 30)
    among = np.arange(len(encoded.codes))
    open_ = np.isin(np.arange(30), [2, 11, 29])
    partly = np.where(open_, math.nan, target)
    posterior = Posterior(Pool(encoded, HYPER), HYPER, among, index)
    mean, _ = textbook(encoded, index[~open_], target[~open_], among)
    _, variance = textbook(encoded, index, target, among)
    np.testing.assert_allclose(posterior.mean(partly), mean, atol=1e-4)
    np.testing.assert_allclose(posterior.variance, variance, atol=1e-4)


def test_correlations_are_the_product_over_the_names() -> None:
    encoded = pool()
    index, _ = given(encoded, 10)
    among = np.arange(len(encoded.codes))
    found = Pool(encoded, HYPER).rows(index, encoded.levels[among])
    np.testing.assert_allclose(found, covariance(encoded, index, among) / HYPER.signal, rtol=1e-5)


def test_the_slope_is_that_of_the_evidence() -> None:
    encoded = pool()
    index, target = given(encoded, 25)
    codes = encoded.codes[index]
    gaps = np.stack([t[np.ix_(codes[:, d], codes[:, d])] for d, t in enumerate(encoded.distances)])
    theta = np.random.default_rng(1).normal(size=7) * 0.3
    slope = surrogate._negative_evidence(gaps, target, theta)[1]
    for i, unit in enumerate(np.eye(7) * 1e-5):
        above = surrogate._negative_evidence(gaps, target, theta + unit)[0]
        below = surrogate._negative_evidence(gaps, target, theta - unit)[0]
        assert slope[i] == pytest.approx((above - below) / 2e-5, abs=1e-5)


def test_a_name_that_does_not_matter_gets_a_great_length() -> None:
    encoded = pool()
    index, _ = given(encoded, 80)
    target = np.where(encoded.codes[index, 1] == 0, 1.0, -1.0) + 0.5 * encoded.codes[index, 0]
    target = (target - target.mean()) / target.std()
    lengths = surrogate.fit_hyper(encoded, index, target).lengths
    assert min(lengths[2:]) > 2 * max(lengths[:2])


def test_distances() -> None:
    space = Space.of(
        [{"s": "a", "n": 1, "z": 0}, {"s": "b", "n": 2, "z": 2}, {"s": "c", "n": 8, "z": 8}, {"s": "d"}]
    )
    letters, powers, zeros = surrogate.encode(space).distances
    assert letters[0, 1] == letters[0, 2] == 1
    assert powers[0, 1] == pytest.approx(1 / 3), "numbers lie by their logarithms"
    assert powers[0, 2] == 1
    assert zeros[0, 1] == pytest.approx(math.log2(3) / math.log2(9))
    assert powers[0, -1] == powers[2, -1] == 1, "a name that is absent is far from its values"
    assert powers[-1, -1] == 0


def test_log_times_put_failures_last() -> None:
    assert surrogate.log_times([math.e, math.nan, 1.0, math.inf, 0.0]).tolist() == [1, 1, 0, 1, 1]
    assert surrogate.log_times([math.nan, math.nan]).tolist() == [0, 0]


@pytest.mark.parametrize("z", [-30.0, -6.0, -4.9, -1.0, 0.0, 2.0, 12.0])
def test_expected_improvement(z: float) -> None:
    """Against numerical integration of the improvement below the best, 0."""
    deviation = 0.3
    found = proposals.log_expected_improvement(np.array([-z * deviation]), np.array([deviation]), 0.0)[0]
    depth = np.linspace(0, 60, 2_000_001)
    logs = np.log(np.maximum(depth, 1e-300)) - 0.5 * (z - depth) ** 2 - 0.5 * math.log(2 * math.pi)
    top = logs.max()
    expected = math.log(deviation) + top + math.log(np.exp(logs - top).sum() * (depth[1] - depth[0]))
    assert found == pytest.approx(expected, abs=0.02)


def test_points_under_way_push_the_next_ones_apart() -> None:
    encoded = pool()
    times = np.exp(0.2 * encoded.codes.sum(1))

    def spread(seed: int, informed: bool) -> float:
        """Mean number of names in which two points of a batch differ."""
        known = np.random.default_rng(seed).choice(len(times), 20, replace=False)
        results = {int(place): float(times[place]) for place in known}
        search = proposals.SurrogateSearch(encoded)
        batch: list[int] = []
        for _ in range(12):
            free = np.ones(len(times), dtype=np.bool_)
            free[[*results, *batch]] = False
            waiting = batch if informed else []
            batch.append(search.propose(results, waiting, free, lambda: np.random.default_rng(0)))
        pairs = itertools.combinations(encoded.codes[batch], 2)
        return float(np.mean([(left != right).sum() for left, right in pairs]))

    assert sum(spread(s, informed=True) for s in range(5)) > sum(spread(s, informed=False) for s in range(5))


def test_fits_come_ever_more_rarely() -> None:
    fits = sorted({proposals._epoch(size) for size in range(6, 1000)})
    gaps = np.diff(fits)
    assert fits[0] == 6
    assert (np.diff(gaps) >= 0).all()
    assert gaps.max() == 100


def test_a_prior_is_one_more_column() -> None:
    encoded = pool()
    prior = [float(2 ** (i % 5)) for i in range(len(encoded.codes))]
    longer = encoded.with_prior(prior)
    assert len(longer.distances) == len(encoded.distances) + 1
    column = longer.codes[:, -1]
    order = np.argsort(prior, kind="stable")
    assert (np.diff(column[order]) >= 0).all(), "the slower, the later"
