"""What is found once holds for all that agree in what was read: the same as when each is asked."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from sgemm_tune.arch import ARCHS
from sgemm_tune.kernel import Kernel, ladder
from sgemm_tune.model.predict import predict
from sgemm_tune.problem import Problem
from sgemm_tune.reads import found_once, legal_combinations
from sgemm_tune.search.prior import prior
from tests.fakes import INFO

CHOICES = {"A": (1, 2, 3), "B": (0, 1), "C": (5, 6, 7, 8)}


@dataclass(frozen=True)
class Toy:
    """Three values and what follows from them."""

    A: int = 1
    B: int = 0
    C: int = 5

    @property
    def sum(self) -> int:
        return self.A + self.C


@dataclass(frozen=True)
class Other(Toy):
    """Another stage with the same values."""


EVERY = [Toy(*values) for values in itertools.product(*CHOICES.values())]
VERDICTS: dict[str, Callable[[Toy], bool]] = {
    "all": lambda toy: True,
    "none": lambda toy: False,
    "by the first": lambda toy: toy.A == 2,
    "by the last": lambda toy: toy.C > 6,
    "by the middle": lambda toy: toy.B == 1,
    "by some": lambda toy: toy.A != 2 and (toy.B == 0 or toy.sum > 8),
    "by a comparison": lambda toy: toy.B == 1 or hash(toy) % 2 == 0,
}
"""Verdicts that read more or less of a configuration."""


@pytest.mark.parametrize("verdict", VERDICTS)
def test_legal_combinations_are_those_of_all_in_their_order(verdict: str) -> None:
    is_legal = VERDICTS[verdict]
    found = list(legal_combinations(Toy, CHOICES, is_legal))
    assert found == [toy for toy in EVERY if is_legal(toy)]
    assert {type(toy) for toy in found} <= {Toy}


def test_any_verdict_is_the_same_as_when_all_are_looked_at() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        verdicts = {toy: chance.random() < 0.3 for toy in EVERY}  # of the values up to one that is drawn
        asked = [chance.choice(["A", "AB", "ABC"]) for _ in range(3)]

        def is_legal(toy: Toy, asked: list[str] = asked, verdicts: dict[Toy, bool] = verdicts) -> bool:
            read = {name: getattr(toy, name) for name in asked[toy.A - 1]}
            return verdicts[Toy(**read)]

        assert list(legal_combinations(Toy, CHOICES, is_legal)) == [toy for toy in EVERY if is_legal(toy)]


def test_what_is_not_read_is_not_tried() -> None:
    looks = []

    def is_legal(toy: Toy) -> bool:
        looks.append(toy.A)
        return toy.A == 2 and toy.B == 1

    assert len(list(legal_combinations(Toy, CHOICES, is_legal))) == 4
    assert looks == [1, 2, 2, 3]


def test_a_stage_without_tunables_has_one_configuration() -> None:
    @dataclass(frozen=True)
    class Plain:
        """Nothing to choose."""

    assert list(legal_combinations(Plain, {}, lambda plain: True)) == [Plain()]
    assert list(legal_combinations(Plain, {}, lambda plain: False)) == []


def test_what_was_found_holds_for_those_that_agree_in_what_was_read() -> None:
    calls = []

    @found_once
    def total(toy: Toy, more: int) -> int:
        calls.append(more)
        return toy.sum + more + (100 * toy.B if toy.A == 3 else 0)

    for more in (0, 7):
        assert [total(toy, more) for toy in EVERY] == [
            toy.A + toy.C + more + (100 * toy.B if toy.A == 3 else 0) for toy in EVERY
        ]
    # B is read where A is 3 alone
    assert len(calls) == 2 * (2 * 4 + 8)
    assert total(Other(1, 0, 5), 0) == total(Toy(1, 0, 5), 0)
    assert len(calls) == 2 * (2 * 4 + 8) + 1, "another stage may read other things of the same names"


def test_what_is_found_on_the_way_has_been_read_by_both() -> None:
    inner_calls, outer_calls = [], []

    @found_once
    def inner(toy: Toy) -> int:
        inner_calls.append(1)
        return toy.A

    @found_once
    def outer(toy: Toy) -> int:
        outer_calls.append(1)
        return inner(toy) * 10 + toy.B

    for _ in range(2):
        assert [outer(toy) for toy in EVERY] == [toy.A * 10 + toy.B for toy in EVERY]
    assert (len(inner_calls), len(outer_calls)) == (3, 6)
    assert [inner(toy) for toy in EVERY] == [toy.A for toy in EVERY]
    assert len(inner_calls) == 3, "those that were watched are of the same stage"


def test_nothing_read_is_found_once_for_all_and_none_is_an_answer() -> None:
    calls = []

    @found_once
    def nothing(toy: Toy) -> None:
        calls.append(1)

    assert {nothing(toy) for toy in EVERY} == {None}
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("shape", ["33x4096x4096", "768x768x768", "4095x4095x4095"])
def test_predictions_are_those_of_each_kernel(name: str, shape: str) -> None:
    arch, problem = ARCHS[name], Problem.parse_shape(shape)
    for stage in ladder():
        chosen = slice(None, None, 7)
        expected = [
            predict(
                kernel,
                problem,
                arch,
                sms=INFO.sms,
                mhz=INFO.clock_mhz,
                l2_bytes=INFO.l2_bytes,
                gbytes_per_s=INFO.gbytes_per_s,
            ).ms
            for kernel in stage.legal(arch)[chosen]
        ]
        assert prior([stage], problem, arch, INFO)[chosen] == expected


@pytest.mark.parametrize("stage", ladder(), ids=lambda stage: stage.name())
def test_legal_configurations_are_those_of_the_cross_product(stage: type[Kernel]) -> None:
    arch = ARCHS["sm_90"]
    legal = set(stage.legal(arch))
    assert len(legal) == len(stage.legal(arch))
    chance = random.Random(1)
    choices = stage.tunables().values()
    drawn = [stage(*(chance.choice(values) for values in choices)) for _ in range(3000)]
    assert [kernel in legal for kernel in drawn] == [kernel.is_legal(arch) for kernel in drawn]
