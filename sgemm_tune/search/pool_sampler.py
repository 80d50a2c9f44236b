"""The base of the samplers: what a study says about a finite space, and one new legal point per trial.

This module imports Optuna, so import it inside functions only.
"""

from __future__ import annotations

import math
import weakref
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna  # noqa: TID251, TID253
from optuna.distributions import BaseDistribution, CategoricalDistribution  # noqa: TID251, TID253
from optuna.samplers import BaseSampler  # noqa: TID251, TID253
from optuna.trial import FrozenTrial, TrialState, create_trial  # noqa: TID251, TID253

from sgemm_tune.errors import SgemmTuneError
from sgemm_tune.search.proposals import Flags
from sgemm_tune.search.space import Point, Space, Value
from sgemm_tune.search.surrogate import Encoded, encode


class SpaceExhausted(SgemmTuneError):
    """Every point of the space has been proposed; `remaining` tells so beforehand."""


class Ledger:
    """What a study's trials say about the points; finished trials are read once.

    Attributes:
        finished: by trial number, for trials that ended: (place of the point, time or NaN where the
            candidate failed). Trials in state FAIL are missing: they were broken off.
        open: by trial number, for trials that are running or waiting: the place of the point.
        broken_off: by trial number, for trials in state FAIL: the place of the point.
        known: how many trials the study has.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._study: tuple[object, ...] = ()
        self.known = 0
        self._pending: list[int] = []  # numbers of those that had not ended
        self._taken: Flags = np.zeros(len(space), dtype=np.bool_)
        self.finished: dict[int, tuple[int, float]] = {}
        self.open: dict[int, int] = {}
        self.broken_off: dict[int, int] = {}

    def update(self, study: optuna.Study, current: int = -1) -> None:
        """Reads what changed since the last call.

        Args:
            study: the study; another one than before starts the ledger afresh.
            current: the number of the trial that is being asked for, which is left out.
        """
        trials = study.get_trials(deepcopy=False)
        identity = (study.study_name, trials[0].datetime_start if trials else None)
        if identity != self._study:
            self._study, self.known, self._pending = identity, 0, []
            self.finished, self.broken_off = {}, {}
            self._taken = np.zeros(len(self._space), dtype=np.bool_)
        self.open.clear()
        waiting = [*self._pending, *range(self.known, len(trials))]  # a study numbers its trials from 0
        self.known, self._pending = len(trials), []
        for number in waiting:
            trial = trials[number]
            ended = trial.state.is_finished()
            if not ended:
                self._pending.append(number)
            place = None if number == current else self._space.index(_params(trial))
            if place is None:
                continue
            if not ended:
                self.open[number] = place
                continue
            self._taken[place] = True
            if trial.state == TrialState.FAIL:  # nothing was learnt about the point
                self.broken_off[number] = place
            else:
                self.finished[number] = (place, _time(trial))

    def opened(self, number: int, point: Point) -> None:
        """Notes a trial that was just made, so that it need not be read back."""
        place = self._space.index(point)
        if place is not None:
            self.open[number] = place
        self._pending.append(number)
        self.known = number + 1

    def seen(self) -> Flags:
        """Which points some trial has proposed; shape (points,)."""
        seen = self._taken.copy()
        seen[list(self.open.values())] = True
        return seen


def _params(trial: FrozenTrial) -> Mapping[str, Value]:
    """The trial's values, with those that it is fixed to but has not been asked for."""
    fixed = trial.system_attrs.get("fixed_params") if not trial.state.is_finished() else None
    return {**fixed, **trial.params} if fixed else trial.params


def _time(trial: FrozenTrial) -> float:
    """The trial's time, or NaN where it failed: no value, or a constraint above 0."""
    if trial.state != TrialState.COMPLETE or any(v > 0 for v in trial.constraints.values()):
        return math.nan
    value = trial.value
    return value if value is not None and math.isfinite(value) and value > 0 else math.nan


class PoolSampler(BaseSampler):  # type: ignore[misc]  # mypy does not follow Optuna
    """Base: proposes one legal, unseen point of a finite space per trial.

    Attributes:
        space: the legal points.
        ledger: what the study's trials say about them.
        invalid_asks: how many draws were no legal point (none, where a sampler picks from the pool).
        repeated_asks: how many draws were seen before.
        ready_wanted: how many of the next proposals should rather need no compiling: the GPU waits.
    """

    def __init__(self, space: Space, seed: int | None, prior: Sequence[float] | None) -> None:
        self.space = space
        self.ledger = Ledger(space)
        self.invalid_asks = 0
        self.repeated_asks = 0
        self.ready_wanted = 0
        self._prior = prior
        self._search_space = {n: CategoricalDistribution(v) for n, v in space.choices.items()}
        self._seed = _fresh_seed() if seed is None else seed

    def reseed_rng(self) -> None:
        """Draws another seed."""
        self._seed = _fresh_seed()

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, Any]:
        """All names: a point is chosen as a whole."""
        return self._search_space

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The values of one legal, unseen point.

        Raises:
            SpaceExhausted: there is none.
        """
        self.ledger.update(study, trial.number)
        free = self._free()
        fixed = trial.system_attrs.get("fixed_params", {})
        if fixed:  # values that the user enqueued: the rest must go with them
            fits = np.array([all(p.get(n) == v for n, v in fixed.items()) for p in self.space.points])
            free = free & fits if (free & fits).any() else fits if fits.any() else free
        return dict(self.space.points[self._pick(study, trial, free)])

    def propose(self, study: optuna.Study) -> Point | None:
        """What `study.ask` would propose for the study's next trial, or None where there is nothing left.

        With it a trial can be stored in one step, its values and all, instead of one step per value. The
        ledger must be up to date.
        """
        trial = create_trial(state=TrialState.RUNNING)
        trial.number = self.ledger.known
        try:
            return self.space.points[self._pick(study, trial, self._free())]
        except SpaceExhausted:
            return None

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """A value for a name outside the space (not reached through `suggest`)."""
        if not isinstance(param_distribution, CategoricalDistribution):
            raise NotImplementedError(f"{param_name} is not part of the space")
        choices = param_distribution.choices
        return choices[int(self._rng(trial).integers(len(choices)))]

    def _free(self) -> Flags:
        free = ~self.ledger.seen()
        if not free.any():
            raise SpaceExhausted(f"all {len(self.space)} points have been proposed")
        return free

    def _rng(self, trial: FrozenTrial) -> np.random.Generator:
        return np.random.default_rng([self._seed, trial.number])

    @abstractmethod
    def _pick(self, study: optuna.Study, trial: FrozenTrial, free: Flags) -> int:
        """The place of the point to propose, among those flagged (at least one)."""


_encodings: dict[int, Encoded] = {}


def encoding_of(space: Space) -> Encoded:
    """The space as numbers, kept for as long as the space lives."""
    key = id(space)
    if key not in _encodings:
        _encodings[key] = encode(space)
        weakref.finalize(space, _encodings.pop, key, None)
    return _encodings[key]


def _fresh_seed() -> int:
    return int(np.random.SeedSequence().generate_state(1)[0])
