"""A search over several stages that begins with what was best elsewhere, all of one stage. Made-up times."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import optuna  # noqa: TID251, TID253
import pytest

from sgemm_tune.arch import parse_arch
from sgemm_tune.kernel import stage_named
from sgemm_tune.search.points import point_of, space_of
from sgemm_tune.search.samplers import make_sampler
from sgemm_tune.search.space import STAGE, Point, Space
from sgemm_tune.search.storage import Storage
from sgemm_tune.search.study import Candidate, TuningStudy
from tests.stored import measurement

HINTED, BETTER = "skinny", "async_copy"
PREDICTED = {HINTED: 1.0, BETTER: 1.2, "double_buffer": 2.5, "coalesced_store": 3.0, "naive": 20.0}
TRUE = {**PREDICTED, HINTED: 1.6, BETTER: 1.0}
"""The least ms of each stage: the prediction has the wrong favourite."""

SCATTER = 0.3
"""How far points lie from what their values say, as a range of the logarithm."""

BUDGET, AHEAD, HINTS = 80, 22, 24


@pytest.fixture(scope="module")
def space() -> Space:
    return space_of(tuple(stage_named(name) for name in TRUE), parse_arch("sm_90"))


def effect(text: str) -> float:
    """A number between 0 and 1 that follows from the text."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32


def cost(point: Point) -> float:
    """From 1: every value of a configuration costs its share."""
    values = (f"{point[STAGE]} {name}={value}" for name, value in point.items() if name != STAGE)
    return math.exp(0.3 * sum(effect(text) for text in values))


def times(space: Space, level: dict[str, float], scatter: float, world: str) -> list[float]:
    """ms per point: the least of each stage is as given, but for what scatters by point."""
    plain = [cost(point) for point in space.points]
    least = {name: min(c for c, at in zip(plain, space.stages, strict=True) if at == name) for name in level}
    return [
        level[stage]
        * c
        / least[stage]
        * math.exp(scatter * (effect(f"{world} {sorted(point.items())}") - 0.5))
        for c, stage, point in zip(plain, space.stages, space.points, strict=True)
    ]


def searched(space: Space, true: Sequence[float], hints: Sequence[Point], seed: int, turn: Path) -> list[int]:
    """The places of what a search tried, in order."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = make_sampler("gp", space, seed, times(space, PREDICTED, 0.0, ""))
    storage = Storage(optuna.storages.InMemoryStorage(), "memory", turn)
    study = TuningStudy(storage, "mixed", space, sampler, hints)
    waiting: list[Candidate] = []
    tried: list[int] = []
    while len(tried) < BUDGET:
        waiting += study.ask(BUDGET, AHEAD - len(waiting))
        candidate = waiting.pop(0)
        place = space.index(point_of(candidate.kernel))
        assert place is not None
        study.tell([(candidate, replace(measurement(), ms=true[place]), {})])
        tried.append(place)
    return tried


def test_the_better_stage_is_found_though_every_hint_is_of_another(space: Space, tmp_path: Path) -> None:
    shares = []
    for seed in range(5):
        true = times(space, TRUE, SCATTER, str(seed))
        order = sorted(range(len(space)), key=true.__getitem__)
        hints = [space.points[place] for place in order if space.stages[place] == HINTED][:HINTS]
        tried = searched(space, true, hints, seed, tmp_path / "turn")
        assert all(space.index(hint) in tried for hint in hints)
        shares.append(min(true) / min(true[place] for place in tried))
    assert min(shares) >= 0.95
