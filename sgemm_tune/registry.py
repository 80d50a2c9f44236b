"""The ladder: which stages there are, and which of them a shape is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from sgemm_tune.errors import UnknownName

if TYPE_CHECKING:
    from sgemm_tune.kernel import Kernel
    from sgemm_tune.problem import Problem

_REGISTRY: dict[str, type[Kernel]] = {}
K = TypeVar("K", bound="type[Kernel]")


def register(stage: K) -> K:
    """Class decorator: put a stage on the ladder.

    Raises:
        ValueError: two stages of one name or number.
    """
    taken = [
        other for other in _REGISTRY.values() if other.rung() == stage.rung() or other.name() == stage.name()
    ]
    if taken:
        raise ValueError(
            f"{stage.__name__} repeats {taken[0].__name__}: a rung has one source and one declaration"
        )
    _REGISTRY[stage.name()] = stage
    return stage


def ladder() -> tuple[type[Kernel], ...]:
    """Every stage, lowest rung first."""
    import sgemm_tune.stages  # noqa: F401  (declares them)

    return tuple(sorted(_REGISTRY.values(), key=lambda stage: stage.rung()))


def stage_named(name: str) -> type[Kernel]:
    """The stage of that name.

    Raises:
        UnknownName: there is none; the message lists them.
    """
    stages = {stage.name(): stage for stage in ladder()}
    try:
        return stages[name.strip().lower()]
    except KeyError:
        raise UnknownName("stage", name, stages) from None


def suited(stages: Sequence[type[Kernel]], problem: Problem) -> tuple[type[Kernel], ...]:
    """Those of the stages that suit the shape; all of them where none does."""
    return tuple(stage for stage in stages if stage.suits(problem)) or tuple(stages)
