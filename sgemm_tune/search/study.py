"""One study: trials on one side, kernels and their outcomes on the other; opened, resumed, shared.

A trial passes through these states in the storage:

    RUNNING    proposed, and some process works on it (user attribute `owner`)
    COMPLETE   measured; its value is the time in ms
    PRUNED     rejected; the constraint `valid` is violated, so that samplers learn from it
    FAIL       lost with the process that worked on it; its configuration is tried again

The outcome stands in a user attribute before the state changes, so that a finished trial is never lost.
A storage that is a journal takes what is asked for or told in one go with one write.

This module imports Optuna, so import it inside functions only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import optuna  # noqa: TID251, TID253
from optuna.trial import FrozenTrial, TrialState, create_trial  # noqa: TID251, TID253

from sgemm_tune.compiler.sources import source_text
from sgemm_tune.kernel import Kernel
from sgemm_tune.measure.outcome import Accuracy, DeviceInfo, Measurement, Outcome, Rejected, Status, Telemetry
from sgemm_tune.problem import Problem
from sgemm_tune.search.owners import is_alive, owner_token
from sgemm_tune.search.points import kernel_of
from sgemm_tune.search.pool_sampler import PoolSampler
from sgemm_tune.search.space import Point, Space
from sgemm_tune.search.storage import Storage
from sgemm_tune.store.results import Row

_OWNER, _RESULT = "owner", "result"
_INVALID = create_trial(state=TrialState.PRUNED, constraints={"valid": 1.0}).system_attrs
"""How Optuna stores the violated constraint: `Trial.set_constraint` would read the whole trial before."""
_ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


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
    """A proposed configuration that this process works on.

    Attributes:
        trial_id: the storage's number of the trial.
        number: that of the study.
    """

    trial_id: int
    number: int
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
        first: points to begin with, in this order, unless they were tried. They and the sampler's proposals
            come by turns: what was fastest elsewhere must not keep the sampler from looking elsewhere.

    Raises:
        StorageError: the storage cannot be used.
    """

    def __init__(
        self, storage: Storage, name: str, space: Space, sampler: PoolSampler, first: Sequence[Point] = ()
    ) -> None:
        self.name = name
        self.space = space
        self._storage = storage
        self._token = owner_token()
        self._mine: set[int] = set()
        self._first = list(first)
        self._sampler = sampler
        self._ledger = sampler.ledger
        categorical = optuna.distributions.CategoricalDistribution
        self._distributions = {name: categorical(values) for name, values in space.choices.items()}
        with storage.explained(), storage.alone():
            self._study = optuna.create_study(
                storage=storage.backend, study_name=name, sampler=sampler, load_if_exists=True
            )
            self._id = storage.backend.get_study_id_from_name(name)
            self._settle()

    def ask(self, budget: int, count: int = 1, ready_wanted: int = 0) -> list[Candidate]:
        """Propose configurations that nobody has tried or is trying.

        Processes that share the storage take turns, so that no two of them propose the same.

        Args:
            budget: how many trials the study may have, those under way included.
            count: how many to propose, in one turn.
            ready_wanted: how many of them should rather need no compiling (`PoolSampler.ready_wanted`).

        Returns:
            Fewer where the budget is spent or the space exhausted.

        Raises:
            StorageError: the storage cannot be used.
        """
        with self._storage.explained(), self._storage.alone():
            self._ledger.update(self._study)
            self._sampler.ready_wanted = ready_wanted
            asked: list[Candidate] = []
            while len(asked) < count and self._has_room(budget):
                point = self._lost_point() or self._untried_first() or self._sampler.propose(self._study)
                if point is None:
                    break
                asked.append(self._opened(point))
            return asked

    def tell(self, ended: Sequence[tuple[Candidate, Outcome, Row]]) -> None:
        """Finish trials, in this order; they survive a kill then, a power cut after `Storage.wait_for_disk`.

        Raises:
            StorageError: the storage cannot be used.
        """
        with self._storage.explained(), self._storage.in_a_row():
            for candidate, outcome, row in ended:
                with _unless_finished():
                    self._tell(candidate, outcome, row)
                self._mine.discard(candidate.number)

    def release(self) -> None:
        """Give up what this process still works on; the configurations will be proposed again.

        Raises:
            StorageError: the storage cannot be used.
        """
        with self._storage.explained(), self._storage.alone():
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

    def _tell(self, candidate: Candidate, outcome: Outcome, row: Row) -> None:
        backend, trial_id = self._storage.backend, candidate.trial_id
        if isinstance(outcome, Rejected):
            for key, value in _INVALID.items():
                backend.set_trial_system_attr(trial_id, key, value)
        backend.set_trial_user_attr(trial_id, _RESULT, {"outcome": _encode(outcome), "row": row})
        self._finish(trial_id, outcome)

    def _opened(self, point: Point) -> Candidate:
        """A trial of this process; the caller holds the turn.

        It is stored in one step: whoever is killed leaves a whole trial behind, or none.
        """
        # not create_trial: it checks every value and its choices again, which the space vouches for
        template = FrozenTrial(
            number=-1,
            trial_id=-1,
            state=TrialState.RUNNING,
            value=None,
            datetime_start=datetime.now(),
            datetime_complete=None,
            params=dict(point),
            distributions={name: self._distributions[name] for name in point},
            user_attrs={_OWNER: self._token},
            system_attrs={},
            intermediate_values={},
        )
        trial_id = self._storage.backend.create_new_trial(self._id, template)
        number = self._ledger.known  # nobody else has made one since: that takes the turn
        self._mine.add(number)
        self._ledger.opened(number, point)
        return Candidate(trial_id, number, kernel_of(point))

    def _has_room(self, budget: int) -> bool:
        def taken() -> int:
            return len(self._ledger.finished) + len(self._ledger.open)

        if taken() < budget:
            return True
        if self._settle() == 0:
            return False
        self._ledger.update(self._study)
        return taken() < budget

    def _lost_point(self) -> Point | None:
        """A point that was proposed, but whose trials were all lost."""
        ledger = self._ledger
        lost = dict.fromkeys(ledger.broken_off.values())
        if not lost:
            return None
        held = {*ledger.open.values(), *(place for place, _ in ledger.finished.values())}
        return next((self.space.points[place] for place in lost if place not in held), None)

    def _untried_first(self) -> Point | None:
        """The next of the points to begin with that nobody has tried; every second trial is the sampler's."""
        if not self._first or self._ledger.known % 2:
            return None
        seen = self._ledger.seen()
        while self._first:
            point = self._first.pop(0)
            place = self.space.index(point)
            if place is not None and not seen[place]:
                return point
        return None

    def _settle(self) -> int:
        """End the trials of processes that are gone; the caller holds the turn. Returns how many."""
        settled = 0
        for trial in self._study.get_trials(deepcopy=False):
            if trial.state != TrialState.RUNNING or self._is_worked_on(trial):
                continue
            known = trial.user_attrs.get(_RESULT)
            with _unless_finished():
                self._finish(trial._trial_id, _decode(known["outcome"]) if known is not None else None)
            settled += 1
        return settled

    def _is_worked_on(self, trial: FrozenTrial) -> bool:
        owner = str(trial.user_attrs.get(_OWNER, ""))
        if owner == self._token:
            return trial.number in self._mine
        return is_alive(owner, trial.datetime_start)

    def _finish(self, trial_id: int, outcome: Outcome | None) -> None:
        values: list[float] | None = None
        state = TrialState.FAIL if outcome is None else TrialState.PRUNED
        if isinstance(outcome, Measurement):
            state, values = TrialState.COMPLETE, [outcome.ms]
        self._storage.backend.set_trial_state_values(trial_id, state, values)


def _unless_finished() -> contextlib.AbstractContextManager[None]:
    """Leave alone what is finished: another machine's process took this one for gone, and tries it again."""
    return contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError)


def _encode(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, Rejected):
        return {"status": outcome.status.value, "reason": outcome.reason}
    parts = {"accuracy": vars(outcome.accuracy), "telemetry": vars(outcome.telemetry)}
    return {**vars(outcome), **parts, "status": outcome.status.value}


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
