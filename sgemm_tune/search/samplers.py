"""Samplers for Optuna's ask and tell over a finite space: every proposal is legal and new.

Optuna's own samplers draw each name's value from its choices, so that most of their proposals for a
GEMM kernel break a rule or repeat. Here a sampler picks among the points that are legal and unseen and
hands Optuna that point's values as relative parameters. What a sampler knows is what the study's trials
say, and its random numbers follow from (seed, trial number): a resumed search goes on as the
uninterrupted one would.

This module imports Optuna, so import it inside functions only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import optuna  # noqa: TID251, TID253
from optuna.samplers import TPESampler  # noqa: TID251, TID253
from optuna.trial import FrozenTrial  # noqa: TID251, TID253

from sgemm_tune.errors import IllegalConfiguration, UnknownName
from sgemm_tune.search.pool_sampler import Ledger, PoolSampler, SpaceExhausted, encoding_of
from sgemm_tune.search.proposals import Builds, Flags, SurrogateSearch
from sgemm_tune.search.space import Point, Space, Value
from sgemm_tune.search.surrogate import ABSENT, log_times

__all__ = ["DEFAULT_SAMPLER", "SAMPLERS", "SpaceExhausted", "make_sampler", "remaining", "suggest"]

SAMPLERS: tuple[str, ...] = ("gp", "tpe", "random", "exhaustive")
DEFAULT_SAMPLER = "gp"

_REDRAWS = 20  # draws of Optuna's TPE before the nearest free point is taken


def make_sampler(
    name: str,
    space: Space,
    seed: int | None,
    prior: Sequence[float] | None = None,
    builds: Builds | None = None,
) -> PoolSampler:
    """The sampler of this name.

    Args:
        name: one of `SAMPLERS`. "gp" learns a model of the time over all points and is the default;
            "tpe" is Optuna's own; "random" is uniform; "exhaustive" goes through the points in order.
        space: the legal points.
        seed: makes proposals reproducible; None draws one.
        prior: a predicted time per point of `space.points`, lower is better, in any unit. "gp" starts
            from it and learns how far to trust it, "exhaustive" takes it as its order.
        builds: which points are compiled together, for "gp" to prefer what costs no compiling where it is
            told to (`PoolSampler.ready_wanted`). None: each alone.

    Raises:
        UnknownName: no sampler has this name.
        ValueError: the space is empty, or `prior` has another length than `space.points`.
    """
    if name not in SAMPLERS:
        raise UnknownName("sampler", name, SAMPLERS)
    if not len(space):
        raise ValueError("a sampler needs a space with at least one point")
    if prior is not None and len(prior) != len(space):
        raise ValueError(f"a prior needs one time per point: {len(prior)} for {len(space)} points")
    if name == "gp":
        return SurrogateSampler(space, seed, prior, builds)
    kinds = {"tpe": PoolTPESampler, "random": UniformSampler}
    return kinds.get(name, ExhaustiveSampler)(space, seed, prior)


def suggest(trial: optuna.trial.Trial, space: Space) -> Point:
    """Suggests a point's names in order and returns the point.

    Names that the values so far leave undefined (another stage's tunables) are not suggested.

    Raises:
        SpaceExhausted: no unseen point is left; the trial is still running, close it as you see fit.
        IllegalConfiguration: the trial's values were fixed beforehand (enqueued) to no legal point.
    """
    codes = encoding_of(space).codes
    left = np.arange(len(codes))
    if len(space) == 1 and not _is_fixed(trial):
        _ = trial.relative_params  # Optuna asks no sampler about names with one choice
    for column, (name, values) in enumerate(space.choices.items()):
        here = codes[left, column]
        if (here == ABSENT).all():
            continue
        value = trial.suggest_categorical(name, values)
        left = left[here == values.index(value)]
        if not len(left):
            raise IllegalConfiguration(
                f"trial {trial.number} is fixed to a point that is not legal: "
                f"{name}={value!r} does not go with the values before it"
            )
    return space.points[int(left[0])]


def _is_fixed(trial: optuna.trial.Trial) -> bool:
    frozen = trial.study.get_trials(deepcopy=False)[trial.number]
    return "fixed_params" in frozen.system_attrs


def remaining(study: optuna.Study, space: Space) -> int:
    """How many points no trial of the study has proposed, whatever became of it."""
    sampler = study.sampler
    ledger = sampler.ledger if isinstance(sampler, PoolSampler) and sampler.space is space else Ledger(space)
    ledger.update(study)
    return len(space) - int(ledger.seen().sum())


class UniformSampler(PoolSampler):
    """Every free point is as likely as any other."""

    def _pick(self, study: optuna.Study, trial: FrozenTrial, free: Flags) -> int:
        return int(self._rng(trial).choice(np.flatnonzero(free)))


class ExhaustiveSampler(PoolSampler):
    """The free points in order: the best predicted first, or as the space lists them."""

    def __init__(self, space: Space, seed: int | None, prior: Sequence[float] | None) -> None:
        super().__init__(space, seed, prior)
        self._order = np.arange(len(space)) if prior is None else np.argsort(log_times(prior), kind="stable")

    def _pick(self, study: optuna.Study, trial: FrozenTrial, free: Flags) -> int:
        return int(self._order[np.argmax(free[self._order])])


class SurrogateSampler(PoolSampler):
    """The free point with the greatest expected improvement under a Gaussian process.

    Points under way count as if they were to come out as expected, so that asking ahead spreads out.
    """

    def __init__(
        self, space: Space, seed: int | None, prior: Sequence[float] | None, builds: Builds | None = None
    ) -> None:
        super().__init__(space, seed, prior)
        self._search = SurrogateSearch(encoding_of(space), prior, space.stages, builds)
        self._results: dict[int, float] = {}
        self._known: dict[int, tuple[int, float]] | None = None  # what they were made of
        self._count = 0  # and how much of it there was

    def _pick(self, study: optuna.Study, trial: FrozenTrial, free: Flags) -> int:
        finished = self.ledger.finished
        if finished is not self._known or len(finished) != self._count:
            self._known, self._count, self._results = finished, len(finished), {}
            for _, (place, time) in sorted(finished.items()):
                if not math.isnan(time) or place not in self._results:
                    self._results[place] = time
        under_way = list(self.ledger.open.values())
        thrifty = self.ready_wanted > 0
        self.ready_wanted -= thrifty
        return self._search.propose(self._results, under_way, free, lambda: self._rng(trial), thrifty)


class PoolTPESampler(PoolSampler):
    """Optuna's TPE with its defaults, for comparison.

    Draws until a draw is legal and unseen; after `_REDRAWS` draws, the free point that agrees with the
    last draw in the most names is taken.
    """

    def _pick(self, study: optuna.Study, trial: FrozenTrial, free: Flags) -> int:
        rng = self._rng(trial)
        inner = TPESampler(seed=int(rng.integers(2**31)))
        joint = inner.infer_relative_search_space(study, trial)
        draw: dict[str, Value] = {}
        for _ in range(_REDRAWS):
            draw = inner.sample_relative(study, trial, joint)
            place = self._completed(inner, study, trial, draw)
            if place is None:
                self.invalid_asks += 1
            elif not free[place]:
                self.repeated_asks += 1
            else:
                return place
        places = np.flatnonzero(free)
        shared = np.zeros(len(places))
        for column, (name, values) in enumerate(self.space.choices.items()):
            code = values.index(draw[name]) if name in draw else ABSENT
            shared += encoding_of(self.space).codes[places, column] == code
        return int(rng.choice(places[shared == shared.max()]))

    def propose(self, study: optuna.Study) -> Point | None:
        """As for every sampler; TPE makes notes on the trial it samples for, so it gets one of a copy."""
        if self.ledger.seen().all():
            return None
        copy = optuna.create_study(sampler=self)
        copy.add_trials(study.get_trials(deepcopy=False))
        kept, self.ledger = self.ledger, Ledger(self.space)  # that of the study knows nothing of copies
        try:
            return suggest(copy.ask(), self.space)
        finally:
            self.ledger = kept

    def _completed(
        self, inner: TPESampler, study: optuna.Study, trial: FrozenTrial, draw: dict[str, Value]
    ) -> int | None:
        """The place of a draw, once the names that TPE did not draw jointly are drawn one by one.

        Args:
            inner: draws what is missing.
            study: the study.
            trial: the trial.
            draw: is completed in place, but for names that the values before leave undefined.
        """
        codes = encoding_of(self.space).codes
        left = np.arange(len(codes))
        for column, (name, values) in enumerate(self.space.choices.items()):
            here = codes[left, column]
            if len(left) and (here == ABSENT).all():
                continue
            if name not in draw:
                draw[name] = inner.sample_independent(study, trial, name, self._search_space[name])
            left = left[here == values.index(draw[name])]
        return int(left[0]) if len(left) else None
