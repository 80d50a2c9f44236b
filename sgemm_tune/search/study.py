"""One study: trials on one side, kernels and their outcomes on the other; opened, resumed, shared.

A trial passes through these states in the storage:

    RUNNING    proposed, and some process works on it (user attribute `owner`)
    COMPLETE   measured; its value is the time in ms
    PRUNED     rejected; the constraint `valid` is violated, so that samplers learn from it
    FAIL       lost with the process that worked on it; its configuration is tried again

The outcome stands in a user attribute before the state changes, so that a finished trial is never lost.

This module imports Optuna, so import it inside functions only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import optuna  # noqa: TID251, TID253
from optuna.samplers import BaseSampler  # noqa: TID251, TID253
from optuna.trial import FrozenTrial, Trial, TrialState  # noqa: TID251, TID253

from sgemm_tune.arch import Arch
from sgemm_tune.compiler.sources import source_text
from sgemm_tune.kernel import Kernel, stage_named
from sgemm_tune.measure.outcome import Accuracy, DeviceInfo, Measurement, Outcome, Rejected, Status, Telemetry
from sgemm_tune.problem import Problem
from sgemm_tune.search.owners import is_alive, owner_token
from sgemm_tune.search.samplers import remaining, suggest
from sgemm_tune.search.space import Point, Space
from sgemm_tune.search.storage import Storage
from sgemm_tune.store.files import locked
from sgemm_tune.store.results import Row

STAGE = "stage"
"""The first name of every point: which stage the others belong to."""

_OWNER, _RESULT = "owner", "result"
_VALID = "valid"
_ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


def space_of(stages: Sequence[type[Kernel]], arch: Arch) -> Space:
    """Every legal configuration of the stages as one space, so that rungs compete."""
    return Space.of(point_of(kernel) for stage in stages for kernel in stage.legal(arch))


def point_of(kernel: Kernel) -> Point:
    """The point of `space_of` that stands for a configuration."""
    return {STAGE: kernel.name(), **kernel.params}


def kernel_of(point: Point) -> Kernel:
    """The configuration that a point of `space_of` stands for.

    Raises:
        UnknownName: no such stage.
        IllegalConfiguration: values that the stage does not have.
    """
    return stage_named(str(point[STAGE])).from_params({n: v for n, v in point.items() if n != STAGE})


def study_name(
    stages: Sequence[type[Kernel]], space: Space, info: DeviceInfo, problem: Problem, cache: str
) -> str:
    """What trials may be mixed under: device, precision, problem, state of the L2, space and sources.

    A kernel whose source changed makes another study.
    """
    parts = [space.fingerprint, *(source_text(stage.source).digest for stage in stages)]
    extras = [problem.alpha, problem.beta, problem.lda, problem.ldb, problem.ldc, cache]
    digest = hashlib.sha256(json.dumps([parts, extras]).encode()).hexdigest()[:16]
    precision = stages[0].precision.value
    return f"{info.arch}/{info.name}/{info.sms} SMs/{precision}/{problem.shape}/{digest}"


@dataclass(frozen=True)
class Candidate:
    """A proposed configuration that this process works on."""

    trial: Trial
    kernel: Kernel


@dataclass(frozen=True)
class Finished:
    """What the study knows of a trial that ended.

    Attributes:
        row: its row of the results' table, to be stored again if the table lacks it.
    """

    number: int
    kernel: Kernel
    outcome: Outcome
    row: Row


class TuningStudy:
    """The study called `name`; made if the storage has none. Other studies of the storage are left alone.

    Trials that killed processes left behind are settled here: one whose outcome is known is finished, any
    other is given up and its configuration proposed again.

    Args:
        storage: where it is.
        name: `study_name`.
        space: what may be proposed.
        sampler: proposes.
        first: points to propose before the sampler speaks, in this order, unless they were tried.

    Raises:
        StorageError: the storage cannot be used.
    """

    def __init__(
        self, storage: Storage, name: str, space: Space, sampler: BaseSampler, first: Sequence[Point] = ()
    ) -> None:
        self.name = name
        self.space = space
        self._storage = storage
        self._token = owner_token()
        self._mine: set[int] = set()
        self._first = list(first)
        with storage.explained(), locked(storage.turn):
            self._study = optuna.create_study(
                storage=storage.backend, study_name=name, sampler=sampler, load_if_exists=True
            )
            self._settle()

    def ask(self, budget: int) -> Candidate | None:
        """Propose a configuration that nobody has tried or is trying.

        Processes that share the storage take turns, so that no two of them propose the same.

        Args:
            budget: how many trials the study may have, those under way included.

        Returns:
            None where the budget is spent or the space exhausted.

        Raises:
            StorageError: the storage cannot be used.
        """
        with self._storage.explained(), locked(self._storage.turn):
            if not self._has_room(budget):
                return None
            given = self._lost_points() or self._untried_first()
            if not given and remaining(self._study, self.space) == 0:
                return None
            with self._proposing(given[:1]):
                trial = self._study.ask()
                self._mine.add(trial.number)
                trial.set_user_attr(_OWNER, self._token)
                return Candidate(trial, kernel_of(suggest(trial, self.space)))

    def tell(self, candidate: Candidate, outcome: Outcome, row: Row) -> None:
        """Finish a trial; it is durable when this returns.

        Raises:
            StorageError: the storage cannot be used.
        """
        with self._storage.explained():
            trial = candidate.trial
            if isinstance(outcome, Rejected):
                trial.set_constraint(_VALID, 1.0)
            trial.set_user_attr(_RESULT, {"outcome": _encode(outcome), "row": row})
            self._finish(trial.number, outcome)
            self._mine.discard(trial.number)

    def release(self) -> None:
        """Give up what this process still works on; the configurations will be proposed again.

        Raises:
            StorageError: the storage cannot be used.
        """
        with self._storage.explained(), locked(self._storage.turn):
            self._mine.clear()
            self._settle()

    def finished(self) -> list[Finished]:
        """Every trial that ended, whichever process it was, in the order they were proposed.

        Raises:
            StorageError: the storage cannot be used.
        """
        with self._storage.explained():
            trials = self._study.get_trials(deepcopy=False, states=_ENDED)
        results = [(t, t.user_attrs[_RESULT]) for t in trials]
        return [
            Finished(t.number, kernel_of(t.params), _decode(result["outcome"]), result["row"])
            for t, result in results
        ]

    def _has_room(self, budget: int) -> bool:
        def taken() -> int:
            return sum(t.state in (*_ENDED, TrialState.RUNNING) for t in self._trials())

        if taken() < budget:
            return True
        return self._settle() > 0 and taken() < budget

    def _lost_points(self) -> list[Point]:
        """Points that were proposed, but whose trials were all lost; the caller holds the turn."""
        lost: dict[int, Point] = {}
        held: set[int] = set()
        for trial in self._trials():
            place = self.space.index(trial.params)
            if place is not None and trial.state == TrialState.FAIL:
                lost[place] = self.space.points[place]
            elif place is not None:
                held.add(place)
        return [point for place, point in lost.items() if place not in held]

    def _untried_first(self) -> list[Point]:
        if self._first:
            tried = {self.space.index(trial.params) for trial in self._trials()}
            self._first = [
                point
                for point in self._first
                if (place := self.space.index(point)) is not None and place not in tried
            ]
        return self._first

    @contextlib.contextmanager
    def _proposing(self, given: Sequence[Point]) -> Iterator[None]:
        """Let the sampler propose, or the given point take its place."""
        sampler = self._study.sampler
        if given:
            self._study.sampler = _Given(self.space, given[0])
        try:
            yield
        finally:
            self._study.sampler = sampler

    def _settle(self) -> int:
        """End the trials of processes that are gone; the caller holds the turn. Returns how many."""
        settled = 0
        for trial in self._trials():
            if trial.state != TrialState.RUNNING or self._is_worked_on(trial):
                continue
            known = trial.user_attrs.get(_RESULT)
            self._finish(trial.number, _decode(known["outcome"]) if known is not None else None)
            settled += 1
        return settled

    def _is_worked_on(self, trial: FrozenTrial) -> bool:
        # whoever proposes a trial names itself before it gives the turn away
        owner = str(trial.user_attrs.get(_OWNER, ""))
        if owner == self._token:
            return trial.number in self._mine
        return is_alive(owner, trial.datetime_start)

    def _finish(self, number: int, outcome: Outcome | None) -> None:
        # already finished: a process of another machine took this one for gone, and its trial is tried again
        if isinstance(outcome, Measurement):
            self._study.tell(number, outcome.ms, skip_if_finished=True)
        else:
            state = TrialState.FAIL if outcome is None else TrialState.PRUNED
            self._study.tell(number, state=state, skip_if_finished=True)

    def _trials(self) -> list[FrozenTrial]:
        trials: list[FrozenTrial] = self._study.get_trials(deepcopy=False)
        return trials


class _Given(BaseSampler):  # type: ignore[misc]  # mypy does not follow Optuna
    """Proposes one point, whatever the study says."""

    def __init__(self, space: Space, point: Point) -> None:
        categorical = optuna.distributions.CategoricalDistribution
        self._names = {name: categorical(values) for name, values in space.choices.items()}
        self._point = dict(point)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, Any]:
        return self._names

    def sample_relative(self, study: optuna.Study, trial: FrozenTrial, search_space: Any) -> dict[str, Any]:
        return self._point

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, name: str, distribution: Any
    ) -> Any:
        raise NotImplementedError(f"{name} is no part of the point")


def _encode(outcome: Outcome) -> dict[str, Any]:
    return {**asdict(outcome), "status": outcome.status.value}


def _decode(stored: Mapping[str, Any]) -> Outcome:
    values = dict(stored)
    status = Status(values.pop("status"))
    if status is not Status.OK:
        return Rejected(status, values["reason"])
    telemetry = dict(values.pop("telemetry"))
    telemetry["throttle"] = tuple(telemetry["throttle"])
    return Measurement(
        **{**values, "accuracy": Accuracy(**values["accuracy"]), "telemetry": Telemetry(**telemetry)}
    )
