"""What every sampler promises, on spaces small enough to see through. No GPU."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna  # noqa: TID251, TID253
import pytest
from optuna.trial import TrialState  # noqa: TID251, TID253

from sgemm_tune.errors import IllegalConfiguration, UnknownName
from sgemm_tune.search.pool_sampler import PoolSampler
from sgemm_tune.search.proposals import SurrogateSearch
from sgemm_tune.search.samplers import (
    DEFAULT_SAMPLER,
    SAMPLERS,
    SpaceExhausted,
    make_sampler,
    remaining,
    suggest,
)
from sgemm_tune.search.space import STAGE, Point, Space

optuna.logging.set_verbosity(optuna.logging.WARNING)


def two_stages() -> Space:
    """26 points of two stages that share one tunable and have one of their own each."""
    plain: list[Point] = [
        {"stage": "plain", "BM": m, "vector": v} for m in (32, 64, 128) for v in (False, True)
    ]
    tiled: list[Point] = [
        {"stage": "tiled", "BM": m, "TM": t, "order": order}
        for m, t, order in itertools.product((32, 64, 128), (1, 2, 4, 8), ("row", "column"))
        if m // t <= 64 and m // t >= 8
    ]
    return Space.of([*plain, *tiled])


def grid(levels: int = 4, names: int = 5) -> Space:
    """Points whose codes add up to an even number: half of the cross product is legal."""
    ranges = itertools.product(range(levels), repeat=names)
    return Space.of([{f"p{i}": 2**c for i, c in enumerate(row)} for row in ranges if sum(row) % 2 == 0])


def bowl(point: Point) -> float:
    """A time in ms that is lowest, 1, where every value of `grid` is 4."""
    return math.exp(sum(0.3 * abs(math.log2(float(v)) - 2) for v in point.values()))


def new_study(name: str, space: Space, seed: int | None = 0) -> optuna.Study:
    return optuna.create_study(sampler=make_sampler(name, space, seed))


def sampler_of(study: optuna.Study) -> PoolSampler:
    assert isinstance(study.sampler, PoolSampler)
    return study.sampler


def run(study: optuna.Study, space: Space, count: int) -> list[int]:
    """Asks and tells `count` times; returns the places proposed."""
    places = []
    for _ in range(count):
        trial = study.ask()
        point = suggest(trial, space)
        study.tell(trial, bowl({n: v for n, v in point.items() if isinstance(v, int) and v > 0}))
        place = space.index(point)
        assert place is not None
        places.append(place)
    return places


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_point_is_proposed_once_whatever_becomes_of_it(name: str) -> None:
    space = two_stages()
    study = new_study(name, space)
    fates: Iterator[TrialState] = itertools.cycle(
        [TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING]
    )
    proposed = []
    for left in range(len(space), 0, -1):
        assert remaining(study, space) == left
        trial = study.ask()
        point = suggest(trial, space)
        assert point in space.points
        assert trial.params == dict(point), "only the names that the point has are suggested"
        proposed.append(space.index(point))
        fate = next(fates)
        if fate == TrialState.COMPLETE:
            study.tell(trial, 1.0 + len(proposed))
        elif fate != TrialState.RUNNING:
            study.tell(trial, state=fate)
    assert sorted(p for p in proposed if p is not None) == list(range(len(space)))
    assert remaining(study, space) == 0
    with pytest.raises(SpaceExhausted, match="all 26 points"):
        suggest(study.ask(), space)


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_same_seed_proposes_the_same(name: str) -> None:
    space = grid()
    first, again = (run(new_study(name, space, 7), space, 30) for _ in range(2))
    assert first == again
    if name != "exhaustive":
        assert run(new_study(name, space, 8), space, 30) != first


@pytest.mark.parametrize("name", ["gp", "random"])
def test_without_a_seed_two_searches_differ(name: str) -> None:
    space = grid()
    assert run(new_study(name, space, None), space, 10) != run(new_study(name, space, None), space, 10)


def test_reseeding_changes_what_follows() -> None:
    space = grid()
    study, other = new_study("random", space), new_study("random", space)
    other.sampler.reseed_rng()
    assert run(study, space, 10) != run(other, space, 10)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_resumed_search_goes_on_as_the_uninterrupted_one(name: str, tmp_path: Path) -> None:
    space = grid()
    whole = run(new_study(name, space, 3), space, 45)
    parts = []
    for count in (9, 16, 20):
        backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.journal"))
        study = optuna.create_study(
            study_name="resumed",
            storage=optuna.storages.JournalStorage(backend),
            sampler=make_sampler(name, space, 3),
            load_if_exists=True,
        )
        parts += run(study, space, count)
    assert parts == whole


def test_one_sampler_serves_two_studies() -> None:
    space = two_stages()
    sampler = make_sampler("gp", space, 0)
    for _ in range(2):
        assert len(set(run(optuna.create_study(sampler=sampler), space, len(space)))) == len(space)


@pytest.mark.parametrize("name", SAMPLERS)
def test_asking_ahead_never_repeats(name: str) -> None:
    space = grid()
    study = new_study(name, space)
    run(study, space, 20)
    trials = [study.ask() for _ in range(32)]
    asked = [space.index(suggest(trial, space)) for trial in trials]
    done = [space.index(t.params) for t in study.get_trials(deepcopy=False)[:20]]
    assert len({*asked, *done}) == 52


def test_asking_ahead_spreads_out_without_forgetting_what_is_known() -> None:
    space = grid()
    study = new_study("gp", space)
    run(study, space, 25)
    batch = [suggest(study.ask(), space) for _ in range(32)]
    everywhere = np.median([bowl(point) for point in space.points])
    assert np.median([bowl(point) for point in batch[:8]]) < everywhere, "it begins where it is fast"
    spread = [len({point[name] for point in batch}) for name in space.choices]
    assert min(spread) >= 2, "no value is taken for certain in all 32"


def test_the_model_hears_of_points_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = []
    propose = SurrogateSearch.propose

    def listening(
        self: SurrogateSearch, results: Mapping[int, float], under_way: Sequence[int], *more: Any
    ) -> int:
        heard.append((len(results), list(under_way)))
        return propose(self, results, under_way, *more)

    monkeypatch.setattr(SurrogateSearch, "propose", listening)
    space = grid()
    study = new_study("gp", space)
    done = run(study, space, 3)
    asked = [space.index(suggest(study.ask(), space)) for _ in range(3)]
    assert heard[3:] == [(3, []), (3, asked[:1]), (3, asked[:2])]
    assert not set(asked) & set(done)


def test_a_lagging_search_still_finds_the_best() -> None:
    space = grid()
    study = new_study("gp", space)
    queue: list[tuple[optuna.trial.Trial, float]] = []
    seen: list[float] = []
    while len(seen) < 100:
        while len(queue) < 16:
            trial = study.ask()
            queue.append((trial, bowl(suggest(trial, space))))
        trial, value = queue.pop(0)
        study.tell(trial, value)
        seen.append(value)
    assert min(seen) == min(bowl(point) for point in space.points)


def test_points_that_wait_or_were_enqueued_are_left_alone() -> None:
    space = two_stages()
    study = new_study("random", space)
    waiting = dict(space.points[3])
    study.enqueue_trial(waiting)
    assert remaining(study, space) == len(space) - 1
    trial = study.ask()
    assert suggest(trial, space) == waiting
    others = run(study, space, len(space) - 1)
    assert 3 not in others
    assert len(set(others)) == len(space) - 1


def test_values_that_are_fixed_are_kept_and_the_rest_goes_with_them() -> None:
    space = two_stages()
    study = new_study("gp", space)
    for _ in range(4):
        study.enqueue_trial({"stage": "tiled", "TM": 8})
    points = [suggest(study.ask(), space) for _ in range(4)]
    assert all(point["TM"] == 8 for point in points)
    assert len({tuple(point.items()) for point in points}) == 4


def test_a_trial_fixed_to_an_illegal_point_says_so() -> None:
    space = two_stages()
    study = new_study("random", space)
    study.enqueue_trial({"stage": "tiled", "BM": 128, "TM": 1})
    with pytest.raises(IllegalConfiguration, match="TM=1"):
        suggest(study.ask(), space)


def study_times(study: optuna.Study) -> list[float]:
    """The times of the candidates that did not fail."""
    trials = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
    return [t.value for t in trials if t.value is not None and not any(v > 0 for v in t.constraints.values())]


def three_stages() -> tuple[Space, list[float]]:
    """40 points each, and predictions: from 1 ms, from 2 ms, and hopeless."""
    least = {"first": 1.0, "second": 2.0, "slow": 9.0}
    points = [(name, side, depth) for name in least for side in range(1, 9) for depth in range(1, 6)]
    space = Space.of([{STAGE: name, f"{name}_side": side, "depth": depth} for name, side, depth in points])
    return space, [least[name] * (1 + side * depth / 100) for name, side, depth in points]


def test_a_start_from_predictions_tries_the_best_of_every_stage_that_is_not_hopeless() -> None:
    space, predicted = three_stages()
    study = optuna.create_study(sampler=make_sampler("gp", space, 0, predicted))
    points = [suggest(study.ask(), space) for _ in range(12)]
    assert points[0] == {STAGE: "first", "first_side": 1, "depth": 1}
    assert points[1] == {STAGE: "second", "second_side": 1, "depth": 1}
    assert not [point for point in points if point[STAGE] == "slow"]
    assert sum(point[STAGE] == "first" for point in points) >= 6, "the best predicted of all by turns"


@pytest.mark.parametrize("known", [13, 30])
def test_results_of_one_stage_alone_do_not_end_the_start(known: int) -> None:
    space, predicted = three_stages()
    study = optuna.create_study(sampler=make_sampler("gp", space, 0, predicted))
    for place in range(known):
        study.enqueue_trial(dict(space.points[place]))
        trial = study.ask()
        assert suggest(trial, space) == space.points[place]
        study.tell(trial, 3 * predicted[place])
    assert suggest(study.ask(), space) == {STAGE: "second", "second_side": 1, "depth": 1}


def test_without_predictions_stages_are_names_like_others() -> None:
    space, predicted = three_stages()
    nameless = Space.of([{"kind" if n == STAGE else n: v for n, v in p.items()} for p in space.points])
    assert run_places(space, None) == run_places(nameless, None)
    assert run_places(space, predicted) != run_places(nameless, predicted)


def run_places(space: Space, predicted: list[float] | None) -> list[int | None]:
    """The first 30 proposals of a study in which every point takes as long as the one before it."""
    study = optuna.create_study(sampler=make_sampler("gp", space, 0, predicted))
    places = []
    for _ in range(30):
        trial = study.ask()
        places.append(space.index(suggest(trial, space)))
        study.tell(trial, 1.0)
    return places


def cliff(point: Point) -> float:
    """The nearer to p0 = p1 = 4 the faster, but where both are reached every candidate fails."""
    return math.nan if point["p0"] == 4 and point["p1"] == 4 else bowl(point)


@pytest.mark.parametrize("name", ["gp", "tpe"])
@pytest.mark.parametrize("state", [TrialState.PRUNED, TrialState.COMPLETE])
def test_failures_teach(name: str, state: TrialState) -> None:
    """A failed candidate is told with a violated constraint, and with whatever value: it must not attract."""
    space = grid()
    study = new_study(name, space)
    failed = []
    for _ in range(100):
        trial = study.ask()
        point = suggest(trial, space)
        value = cliff(point)
        failed.append(math.isnan(value))
        if not failed[-1]:
            study.tell(trial, value)
            continue
        trial.set_constraint("valid", 1.0)
        study.tell(trial, 0.001 if state == TrialState.COMPLETE else None, state=state)
    assert sum(failed) <= 15, "an attracted sampler takes all of the 32 failing points"
    assert min(value for value in study_times(study)) == np.nanmin([cliff(point) for point in space.points])


def test_when_everything_fails_the_search_goes_on() -> None:
    space = two_stages()
    study = new_study("gp", space)
    for _ in range(len(space)):
        trial = study.ask()
        suggest(trial, space)
        trial.set_constraint("valid", 1.0)
        study.tell(trial, state=TrialState.PRUNED)
    assert remaining(study, space) == 0


def test_trials_broken_off_teach_nothing() -> None:
    space = grid()
    plain, broken = new_study("gp", space), new_study("gp", space)
    for study in (plain, broken):
        run(study, space, 20)
    stray = broken.ask()
    place = space.index(suggest(stray, space))
    broken.tell(stray, state=TrialState.FAIL)
    ledger = sampler_of(broken).ledger
    ledger.update(broken)
    assert place is not None
    assert ledger.seen()[place]
    assert place not in [p for p, _ in ledger.finished.values()]


@pytest.mark.parametrize("name", ["gp", "exhaustive"])
def test_a_prior_says_where_to_begin(name: str) -> None:
    space = grid()
    prior = [3 * bowl(point) for point in space.points]
    study = optuna.create_study(sampler=make_sampler(name, space, 0, prior))
    assert run(study, space, 1) == [int(np.argmin(prior))]


def test_a_misleading_prior_is_overcome() -> None:
    space = grid()
    prior = [1 / bowl(point) for point in space.points]
    study = optuna.create_study(sampler=make_sampler("gp", space, 0, prior))
    run(study, space, 100)
    assert study.best_value == min(bowl(point) for point in space.points)


def test_exhaustive_follows_the_space() -> None:
    space = two_stages()
    assert run(new_study("exhaustive", space), space, len(space)) == list(range(len(space)))


def test_invalid_and_repeated_draws_are_counted_for_tpe_alone() -> None:
    space = grid()
    counts = {}
    for name in SAMPLERS:
        study = new_study(name, space)
        run(study, space, 60)
        counts[name] = (sampler_of(study).invalid_asks, sampler_of(study).repeated_asks)
    assert min(counts.pop("tpe")) > 0
    assert set(counts.values()) == {(0, 0)}


def test_what_cannot_be_made() -> None:
    space = two_stages()
    with pytest.raises(UnknownName, match="unknown sampler 'annealing': choose one of gp, tpe"):
        make_sampler("annealing", space, 0)
    with pytest.raises(ValueError, match="2 for 26 points"):
        make_sampler("gp", space, 0, [1.0, 2.0])
    with pytest.raises(ValueError, match="at least one point"):
        make_sampler("gp", Space.of([]), 0)


def test_a_space_of_one_point() -> None:
    space = Space.of([{"stage": "naive"}])
    study = new_study(DEFAULT_SAMPLER, space)
    assert run(study, space, 1) == [0]
    assert remaining(study, space) == 0
    with pytest.raises(SpaceExhausted):
        suggest(study.ask(), space)


def test_asking_is_fast_in_a_large_space_after_many_trials() -> None:
    """18,000 points, 500 results, 16 under way: 3 to 5 ms of one core are usual, and 20 would be a fault."""
    values = [(1, 2, 4, 8)] * 6 + [(0, 1)] * 2 + [(8, 16, 32)] * 2
    rows = itertools.product(*values)
    points: list[Point] = [{f"p{i}": v for i, v in enumerate(row)} for row in rows if row[0] + row[9] != 17]
    space = Space.of(points[:18_000])
    assert len(space) == 18_000
    study = new_study("gp", space)
    dists = {n: optuna.distributions.CategoricalDistribution(v) for n, v in space.choices.items()}
    rng = np.random.default_rng(0)
    for place in rng.choice(len(space), 500, replace=False):
        params = dict(space.points[int(place)])
        value = math.exp(rng.normal() * 0.1) * (3 + float(params["p0"]) + float(params["p3"]))
        study.add_trial(optuna.trial.create_trial(params=params, distributions=dists, value=value))
    suggest(study.ask(), space)  # the first one fits the model
    spent = []
    for _ in range(16):
        started = time.process_time()
        suggest(study.ask(), space)
        spent.append(time.process_time() - started)
    assert sorted(spent)[len(spent) // 4] < 20e-3, "the lower quartile: other processes share the caches"


def test_the_start_leaves_out_what_is_predicted_to_be_hopeless() -> None:
    """A naive kernel at a large size costs as much as fifty good ones and teaches nothing about them."""
    space = Space.of({"p": i, "q": j} for i in range(20) for j in range(20))
    prior = [1.0 + 0.01 * i if i < 200 else 50.0 for i in range(len(space))]
    study = optuna.create_study(sampler=make_sampler("gp", space, 0, prior))
    for _ in range(12):
        trial = study.ask()
        place = space.index(suggest(trial, space))
        assert place is not None
        assert prior[place] <= 4.0
        study.tell(trial, prior[place])
