"""Which point of a finite pool to try next, given what is known so far. No Optuna, no kernels.

The first points spread over the pool, so that no stage is forgotten. Then each proposal maximises the
expected improvement of the log time over the best one so far, as a Gaussian process (`surrogate`) sees it.
Everything follows from the arguments and the seed: what is kept between calls only saves time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sgemm_tune.search.surrogate import Encoded, Floats, Hyper, Ints, Pool, Posterior, fit_hyper, log_times

Flags = npt.NDArray[np.bool_]

_START = 12  # points spread over the pool before the model speaks
_HOPELESS = math.log(4.0)  # predicted to take 4 times as long as the best: no use at the start
_SPREAD_AMONG = 64  # random points from which the most distant is taken at the start
_FOCUS = 768  # points that are predicted for each proposal; the most promising at the last fit
_FIT_AMONG = 96  # results that lengths and variances are fitted to, at most
_KEPT = 512  # results that an epoch starts with, at most
_CUT = 0.7  # results above this quantile are told apart no further
_CHUNK = 2048  # points predicted at once: what is computed of them stays in the cache
_COMPILING = 2.5  # what a trial costs that must be compiled: 1.1 s on one of 16 cores to 0.03 s of the GPU
_SLIGHT = 1e-4  # an expected improvement of the log time that is none


@dataclass(frozen=True, eq=False)
class Builds:
    """What the points of a space are compiled to; points that differ only at the launch share a build.

    Attributes:
        of: shape (points,); the number of each point's build.
        done: shape (builds,); those that were there before the search.
    """

    of: Ints
    done: Flags


class SurrogateSearch:
    """Proposes points by expected improvement under a Gaussian process.

    Args:
        encoded: the pool.
        prior: a predicted time per point, or None.
        stages: which stage each point is of; None: all are of one.
        builds: which points are compiled together; None: each alone, so that all cost the same.
    """

    def __init__(
        self,
        encoded: Encoded,
        prior: Sequence[float] | None = None,
        stages: Sequence[str] | None = None,
        builds: Builds | None = None,
    ) -> None:
        self._encoded = encoded if prior is None else encoded.with_prior(prior)
        self._prior = None if prior is None else log_times(prior)
        self._stages: Ints = np.unique(stages or [""] * len(encoded.codes), return_inverse=True)[1]
        self._hopeful, self._rivals = np.arange(0), np.arange(0)  # points and stages that have a chance
        if self._prior is not None:
            self._hopeful = np.flatnonzero(self._prior <= self._prior.min() + _HOPELESS)
            self._rivals = np.unique(self._stages[self._hopeful])
        self._builds = builds
        self._epoch = -1
        self._posterior: Posterior | None = None
        self._left_out: set[int] = set()
        self._mean: Floats | None = None
        self._mean_of: tuple[Posterior, int] | None = None
        self._best, self._scale = 0.0, 1.0

    def propose(
        self,
        results: Mapping[int, float],
        under_way: Sequence[int],
        free: Flags,
        chance: Callable[[], np.random.Generator],
        thrifty: bool = False,
    ) -> int:
        """The place of the next point.

        Args:
            results: time by place, in the order of the trials; NaN where the candidate failed.
            under_way: places whose results are still to come.
            free: shape (points,), which may be proposed; at least one.
            chance: makes the source of chance for this proposal, which most of them do without.
            thrifty: whether it counts that a point must be compiled.
        """
        waiting = [place for place in under_way if place not in results]
        taken = np.array([*results, *waiting], dtype=np.intp)
        if len(taken) < _START or len(results) < _START // 2:
            return self._spread(taken, free, chance())
        if (left_out := self._best_of_another_stage(taken, free)) is not None:
            return left_out
        posterior = self._updated(results, waiting)
        choices = np.flatnonzero(free[posterior.among])
        if not len(choices):
            return int(chance().choice(np.flatnonzero(free)))
        if self._mean is None or self._mean_of != (posterior, len(results)):
            target, self._scale = _targets(np.array(list(results.values())))
            told = dict(zip(results, target.tolist(), strict=True))
            given = np.array([told.get(place, math.nan) for place in posterior.points])
            # what is under way changes the variance alone, so the mean stands until there is a new result
            self._mean, self._best = posterior.mean(given), float(target.min())
            self._mean_of = (posterior, len(results))
        mean = self._mean[choices]
        deviation = np.sqrt(np.maximum(posterior.variance[choices], 1e-12))
        gain = log_expected_improvement(mean, deviation, self._best)
        places = posterior.among[choices]
        best = self._worthiest(gain, places, results, waiting) if thrifty else int(np.argmax(gain))
        return int(places[best])

    def _spread(self, taken: Ints, free: Flags, rng: np.random.Generator) -> int:
        """A point far from those taken; with a prior, every second one is the best predicted so far, and of
        the others, those come first that are the best predicted of their stages.

        What the prior gives several times the best time is left out: one launch of a naive kernel at 8192
        takes as long as fifty of a good one, and teaches nothing about those.
        """
        places = np.flatnonzero(free)
        if self._prior is not None:
            predicted = self._prior[places]
            if len(taken) % 2 == 0:
                return int(places[np.argmin(predicted)])
            if (another := self._best_of_another_stage(taken, free)) is not None:
                return another
            places = places[predicted <= predicted.min() + _HOPELESS]
        drawn = rng.choice(places, size=min(_SPREAD_AMONG, len(places)), replace=False)
        codes = self._encoded.codes
        nearest = np.full(len(drawn), math.inf)
        for place in taken:
            gap = sum(t[codes[drawn, d], codes[place, d]] for d, t in enumerate(self._encoded.distances))
            nearest = np.minimum(nearest, gap)
        return int(drawn[np.argmax(nearest)])

    def _best_of_another_stage(self, taken: Ints, free: Flags) -> int | None:
        """Of the stages that no point taken is of, the best predicted one; None where all had their chance.

        Without it, points to begin with that are all of one stage would decide the search: to the model,
        stages of which it knows no result are all alike, whatever the prior says of them.
        """
        if self._prior is None:
            return None
        left = np.setdiff1d(self._rivals, self._stages[taken])
        if not len(left):
            return None
        places = self._hopeful[free[self._hopeful] & np.isin(self._stages[self._hopeful], left)]
        return int(places[np.argmin(self._prior[places])]) if len(places) else None

    def _worthiest(
        self, gain: Floats, places: Ints, results: Mapping[int, float], waiting: Sequence[int]
    ) -> int:
        """Where the greatest expected improvement for its cost is.

        A point costs less where its build is there already, or under way. Beyond `_SLIGHT` improvements are
        all alike: once nothing much is expected of any point, those come first that cost least, instead of
        those of which a little less of next to nothing is expected.

        Args:
            gain: shape (n,), log of the expected improvements.
            places: shape (n,), the points.
            results, waiting: what was tried, and what is under way; what failed is not there to be shared.
        """
        best = int(np.argmax(gain))
        if self._builds is None:
            return best
        built = self._builds.done.copy()
        built[self._builds.of[[place for place, time in results.items() if not math.isnan(time)]]] = True
        built[self._builds.of[waiting]] = True
        cheap = np.flatnonzero(built[self._builds.of[places]])
        if not len(cheap):
            return best
        best_of_cheap = int(cheap[np.argmax(gain[cheap])])
        worth = np.logaddexp(gain[[best, best_of_cheap]], math.log(_SLIGHT / self._scale))
        return best_of_cheap if worth[1] > worth[0] - math.log(_COMPILING) else best

    def _updated(self, results: Mapping[int, float], waiting: Sequence[int]) -> Posterior:
        """The posterior with all results and points under way, fitted anew where an epoch begins."""
        epoch = _epoch(len(results))
        known = [*results, *waiting]
        stale = self._posterior is None or not set(known).issuperset(self._posterior.points)
        if stale or epoch != self._epoch:
            self._posterior, self._epoch = self._fitted(results, epoch, waiting), epoch
        posterior = self._posterior
        assert posterior is not None
        have = self._left_out.union(posterior.points)
        for place in known:
            if place not in have:
                posterior.add(place)
        return posterior

    def _fitted(self, results: Mapping[int, float], epoch: int, waiting: Sequence[int]) -> Posterior:
        """A posterior with all of them; its lengths and what it predicts follow from the first `epoch`."""
        places = np.array([*results, *waiting], dtype=np.intp)
        old, since = places[:epoch], places[epoch:]
        target, _ = _targets(np.array(list(results.values()))[:epoch])
        few = _sample(target, _FIT_AMONG)
        hyper = fit_hyper(self._encoded, old[few], target[few])
        pool = Pool(self._encoded, hyper)
        among = self._focus(pool, hyper, old[few], target[few])
        kept = old[_sample(target, _KEPT)]
        self._left_out = set(old.tolist()) - set(kept.tolist())
        return Posterior(pool, hyper, among, np.concatenate([kept, since]))

    def _focus(self, pool: Pool, hyper: Hyper, places: Ints, target: Floats) -> Ints:
        """The most promising points: those whose time could be lowest, two deviations below the mean."""
        everything = np.arange(len(self._encoded.codes))
        if len(everything) <= _FOCUS:
            return everything
        bound = []
        for start in range(0, len(everything), _CHUNK):
            posterior = Posterior(pool, hyper, everything[start : start + _CHUNK], places)
            bound.append(posterior.mean(target) - 2 * np.sqrt(np.maximum(posterior.variance, 0)))
        return np.sort(np.argpartition(np.concatenate(bound), _FOCUS)[:_FOCUS])


def _sample(target: Floats, size: int) -> Ints:
    """At most `size` results, in order: the better half of them by time, the rest at random."""
    if len(target) <= size:
        return np.arange(len(target))
    by_time = np.argsort(target, kind="stable")
    rest = np.random.default_rng(len(target)).permutation(by_time[size // 2 :])
    return np.sort(np.concatenate([by_time[: size // 2], rest[: size - size // 2]]))


def _epoch(size: int) -> int:
    """The number of results at the last fit: 6, 9, 13, ... growing by half, then by 100."""
    last, step = _START // 2, 0
    while last + (step := min(last // 2, 100)) <= size:
        last += step
    return last


def _targets(times: Floats) -> tuple[Floats, float]:
    """Standardised log times, and the difference of log times that 1 stands for.

    The slowest and the failed candidates count as a quantile of the rest: the slowest differ by factors that
    say nothing about the fastest, yet would take most of the model's attention.
    """
    log = log_times(times)
    good = log[np.isfinite(times)]
    log = np.minimum(log, np.quantile(good, _CUT) if len(good) else 0.0)
    scale = float(log.std()) or 1.0
    return (log - log.mean()) / scale, scale


def log_expected_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """Log of the expected improvement below `best` of normally distributed values."""
    z = (best - mean) / deviation
    gain: Floats = np.log(deviation) + np.interp(z, _Z, _LOG_H)
    return gain


def _log_h(z: float) -> float:
    """log(z Phi(z) + phi(z)); for a far tail by its asymptote."""
    density = -0.5 * z * z - 0.5 * math.log(2 * math.pi)
    if z < -5:
        return density - 2 * math.log(-z) + math.log1p(-3 / z**2)
    return math.log(z * 0.5 * math.erfc(-z / math.sqrt(2)) + math.exp(density))


_Z = np.concatenate([np.linspace(-40, -8, 257), np.linspace(-8, 8, 1025)[1:], np.linspace(8, 40, 33)[1:]])
_LOG_H = np.array([_log_h(z) for z in _Z.tolist()])
