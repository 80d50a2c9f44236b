"""Predictions for the shapes of a search: those of the next one are made while one is searched."""

from __future__ import annotations

import threading

import pytest

from sgemm_tune.arch import parse_arch
from sgemm_tune.kernel import Kernel, stage_named
from sgemm_tune.problem import Problem
from sgemm_tune.search import prior as module
from sgemm_tune.search.prior import prior, priors
from tests.fakes import INFO

SM_90 = parse_arch("sm_90")
STAGES = (stage_named("coalesced"),)
ASKED: dict[Problem, tuple[type[Kernel], ...]] = {
    Problem(256, 256, 256): STAGES,
    Problem(64, 4096, 512): (stage_named("naive"), *STAGES),
    Problem(1024, 1024, 1024): STAGES,
}


def test_every_problem_comes_with_its_own_prediction_in_the_order_asked() -> None:
    found = list(priors(ASKED, SM_90, INFO))
    assert found == [(problem, prior(stages, problem, SM_90, INFO)) for problem, stages in ASKED.items()]
    assert len({tuple(times) for _, times in found}) == len(ASKED)
    assert list(priors({}, SM_90, INFO)) == []


def test_one_problem_ahead_is_predicted_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = {problem: threading.Event() for problem in ASKED}

    def noted(stages: object, problem: Problem, *_: object) -> list[float]:
        begun[problem].set()
        return [float(problem.m)]

    monkeypatch.setattr(module, "prior", noted)
    first, second, third = ASKED
    each = priors(ASKED, SM_90, INFO)
    assert next(each) == (first, [256.0])
    assert begun[second].wait(30)
    assert not begun[third].wait(0.05)
    assert next(each) == (second, [64.0])
    assert begun[third].wait(30)
    each.close()  # type: ignore[attr-defined]  # a search that ends early asks for no more


def test_what_a_prediction_raises_is_raised_when_its_problem_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(stages: object, problem: Problem, *_: object) -> list[float]:
        if problem.m == 64:
            raise ValueError("no such board")
        return []

    monkeypatch.setattr(module, "prior", broken)
    each = priors(ASKED, SM_90, INFO)
    assert next(each) == (Problem(256, 256, 256), [])
    with pytest.raises(ValueError, match="no such board"):
        next(each)
