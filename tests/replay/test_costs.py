"""What it changes for a search that some points need no compiling. Made-up times."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import optuna  # noqa: TID251, TID253
import pytest

from sgemm_tune.search import proposals
from sgemm_tune.search.proposals import Builds, SurrogateSearch
from sgemm_tune.search.samplers import make_sampler, suggest
from sgemm_tune.search.space import Space
from sgemm_tune.search.surrogate import encode

AT_LAUNCH = (1, 2, 4, 8)
"""Values that points of the same build differ in."""


@functools.cache
def launched() -> Space:
    """256 builds of 4 points each, which follow one another."""
    rows = itertools.product(range(4), repeat=4)
    return Space.of(
        {**{f"p{i}": 2**code for i, code in enumerate(row)}, "late": late}
        for row in rows
        for late in AT_LAUNCH
    )


def times(world: str = "", scatter: float = 0.1) -> list[float]:
    """ms of `launched`, least near p0 = ... = p3 = 4; what is given at the launch matters little."""

    def chance(text: str) -> float:
        return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32

    return [
        math.exp(
            sum(0.3 * abs(math.log2(float(point[f"p{i}"])) - 2) for i in range(4))
            + 0.02 * abs(math.log2(float(point["late"])) - 1)
            + scatter * chance(f"{world} {place}")
        )
        for place, point in enumerate(launched().points)
    ]


def builds(shared_by: int, done: Sequence[int] = (), points: int = 1024) -> Builds:
    """So many points in a row are one build; those numbered in `done` are there."""
    return Builds(np.arange(points) // shared_by, np.isin(np.arange(points // shared_by), done))


def searched(
    true: Sequence[float],
    shared: Builds | None,
    seed: int,
    count: int,
    *,
    ahead: int = 1,
    thrifty: bool = True,
) -> list[int]:
    """The places that a search of `launched` tries, in order, with up to `ahead` under way."""
    search = SurrogateSearch(encode(launched()), builds=shared)
    results: dict[int, float] = {}
    under_way: list[int] = []
    while len(results) < count:
        while len(under_way) < ahead:
            free = np.ones(len(true), dtype=np.bool_)
            free[[*results, *under_way]] = False
            chance = functools.partial(np.random.default_rng, [seed, len(results) + len(under_way)])
            under_way.append(search.propose(results, under_way, free, chance, thrifty))
        place = under_way.pop(0)
        results[place] = true[place]
    return list(results)


@pytest.mark.parametrize("ahead", [1, 8])
def test_where_all_points_cost_the_same_nothing_changes(ahead: int) -> None:
    plain = searched(times(), None, 3, 40, ahead=ahead)
    assert searched(times(), builds(1), 3, 40, ahead=ahead) == plain, "every point is a build of its own"
    assert searched(times(), builds(4, done=range(256)), 3, 40, ahead=ahead) == plain, (
        "nothing is to be compiled"
    )
    assert searched(times(), builds(4), 3, 40, ahead=ahead, thrifty=False) == plain, (
        "and where it does not count"
    )
    assert searched(times(), builds(4), 3, 40, ahead=ahead) != plain


ALIKE = 40
"""Points that differ in one name alone, and all by the same: the same is expected of all that are untried."""


def proposed_among_alike(
    shared: Builds | None, free: npt.NDArray[np.bool_] | None = None, under_way: Sequence[int] = ()
) -> int:
    """What follows once places 0 to 11 have their times."""
    encoded = encode(Space.of({"name": f"{place:02}"} for place in range(ALIKE)))
    left = np.ones(ALIKE, dtype=np.bool_) if free is None else free.copy()
    results = {place: 1.0 + place / 10 for place in range(12)}
    left[[*results, *under_way]] = False
    search = SurrogateSearch(encoded, builds=shared)
    return search.propose(results, under_way, left, np.random.default_rng, thrifty=True)


@pytest.mark.parametrize("place", [12, 25, 39])
def test_of_equally_promising_points_that_comes_first_which_needs_no_compiling(place: int) -> None:
    assert proposed_among_alike(builds(1, done=[place], points=ALIKE)) == place


@pytest.mark.parametrize(("taken", "under_way"), [(3, []), (20, [20])], ids=["tried", "under way"])
def test_a_build_that_the_search_has_begun_costs_no_more(taken: int, under_way: list[int]) -> None:
    of = np.arange(ALIKE)
    of[30] = taken
    nothing_done = np.zeros(ALIKE, dtype=np.bool_)
    assert proposed_among_alike(None, under_way=under_way) != 30
    assert proposed_among_alike(Builds(of, nothing_done), under_way=under_way) == 30


def test_a_build_that_failed_is_none_to_be_shared() -> None:
    of = np.arange(ALIKE)
    of[30] = 3
    encoded = encode(Space.of({"name": f"{place:02}"} for place in range(ALIKE)))
    free = np.arange(ALIKE) >= 12
    search = SurrogateSearch(encoded, builds=Builds(of, np.zeros(ALIKE, dtype=np.bool_)))
    for third, expected in ((1.3, True), (math.nan, False)):
        results = {place: 1.0 + place / 10 for place in range(12)} | {3: third}
        assert (search.propose(results, [], free, np.random.default_rng, thrifty=True) == 30) == expected


def test_a_point_that_may_not_be_proposed_is_none_that_costs_little() -> None:
    free = np.ones(ALIKE, dtype=np.bool_)
    free[30] = False
    shared = builds(1, done=[30, 33], points=ALIKE)
    assert proposed_among_alike(shared, free) == 33


def proposed_on_a_slope(fall: float, shared: Builds | None) -> int:
    """What follows after steps of which each takes less time, by the factor exp(`fall`), than the one before
    it: step 32 and others below it, or one of those that were passed over, 0, 2, ... 22."""
    results = {step: math.exp(-fall * step) for step in range(32) if step % 2 or step > 22}
    free = np.isin(np.arange(40), list(results), invert=True)
    search = SurrogateSearch(encode(Space.of({"step": 2**step} for step in range(40))), builds=shared)
    return search.propose(results, [], free, np.random.default_rng, thrifty=True)


def test_a_point_that_is_expected_to_be_clearly_better_is_worth_compiling() -> None:
    above = builds(1, done=range(32), points=40)
    assert proposed_on_a_slope(0.2, above) == proposed_on_a_slope(0.2, None) >= 32


def test_a_point_that_is_expected_to_be_next_to_nothing_better_is_not() -> None:
    above = builds(1, done=range(32), points=40)
    assert proposed_on_a_slope(1e-7, above) < 32 <= proposed_on_a_slope(1e-7, None)


def test_compiling_must_promise_more_by_as_much_as_it_costs() -> None:
    search = SurrogateSearch(encode(launched()), builds=builds(4, done=[1]))

    def chosen(*gains: float) -> int:
        """Which of two points is, the second of which is compiled."""
        return search._worthiest(np.log(gains), np.array([0, 4]), {}, [])

    cost, slight = proposals._COMPILING, proposals._SLIGHT
    assert cost > 1
    assert chosen(0.1, 1.1 * 0.1 / cost) == 1
    assert chosen(0.1, 0.9 * 0.1 / cost) == 0
    assert chosen(0.5 * (cost - 1) * slight, 1e-9 * slight) == 1, "both are next to nothing"
    assert chosen(1.5 * (cost - 1) * slight, 1e-9 * slight) == 0
    assert chosen(0.05, 0.1) == 1


@pytest.mark.parametrize("scatter", [0.0, 0.1])
@pytest.mark.parametrize("ahead", [1, 8])
def test_what_is_compiled_is_used_up_and_the_best_is_found_all_the_same(ahead: int, scatter: float) -> None:
    for seed in range(3):
        true = times(str(seed), scatter)
        alone, shared = (searched(true, each, seed, 100, ahead=ahead) for each in (None, builds(4)))
        assert min(true[place] for place in shared) == min(true)
        assert len({place // 4 for place in shared}) < 0.6 * len({place // 4 for place in alone})


def test_a_cache_of_another_search_is_used() -> None:
    """Every other build is there, the best one not: it is compiled, and little else."""
    true = times(scatter=0.0)
    best = int(np.argmin(true)) // 4
    there = [number for number in range(256) if number % 2 != best % 2]
    tried = searched(true, builds(4, done=there), 0, 60)
    compiled = {place // 4 for place in tried if place // 4 not in there}
    compiled_alone = {place // 4 for place in searched(true, builds(4), 0, 60)}
    assert best in compiled
    assert len(compiled) < 0.6 * len(compiled_alone)


def test_proposals_follow_from_the_arguments_and_the_seed() -> None:
    true, shared = times(), builds(4, done=range(0, 256, 3))
    whole = searched(true, shared, 5, 60)
    assert searched(true, shared, 5, 60) == whole
    assert searched(true, shared, 6, 60) != whole
    for count in (20, 37, 59):
        results = {place: true[place] for place in whole[:count]}
        free = np.ones(len(true), dtype=np.bool_)
        free[list(results)] = False
        chance = functools.partial(np.random.default_rng, [5, count])
        search = SurrogateSearch(encode(launched()), builds=shared)
        assert search.propose(results, [], free, chance, thrifty=True) == whole[count], (
            "whoever comes anew goes on alike"
        )


def proposed(path: Path, counts: Sequence[int], shared: Builds | None, ready_wanted: int) -> list[int]:
    """The places that a study of `launched` tries when it is opened so many times for so many trials each, of
    which the first `ready_wanted` should rather need no compiling."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space, true = launched(), times()
    places = []
    for count in counts:
        backend = optuna.storages.journal.JournalFileBackend(str(path))
        sampler = make_sampler("gp", space, 3, builds=shared)
        study = optuna.create_study(
            study_name="costs",
            storage=optuna.storages.JournalStorage(backend),
            sampler=sampler,
            load_if_exists=True,
        )
        sampler.ready_wanted = ready_wanted
        for _ in range(count):
            trial = study.ask()
            place = space.index(suggest(trial, space))
            assert place is not None
            study.tell(trial, true[place])
            places.append(place)
        assert sampler.ready_wanted == max(0, ready_wanted - count)
    return places


def test_a_resumed_search_goes_on_as_the_uninterrupted_one(tmp_path: Path) -> None:
    whole = proposed(tmp_path / "whole", [45], builds(4), 45)
    assert proposed(tmp_path / "parts", [9, 16, 20], builds(4), 45) == whole


def test_so_many_proposals_are_thrifty_as_are_wanted(tmp_path: Path) -> None:
    plain, thrifty, begun, never = (
        proposed(tmp_path / name, [45], shared, wanted)
        for name, shared, wanted in (
            ("plain", None, 45),
            ("thrifty", builds(4), 45),
            ("begun", builds(4), 25),
            ("never", builds(4), 0),
        )
    )
    assert never == plain
    assert begun[:25] == thrifty[:25] != plain[:25]
    assert begun != thrifty
