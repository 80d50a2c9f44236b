"""A finite search space: the legal points, known before anything is sampled. No Optuna, no kernels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

Value = int | float | str | bool
Point = Mapping[str, Value]
"""One configuration: its values by name. Names that its stage does not have are absent."""

STAGE = "stage"
"""The name that comes first where points are of several stages: which of them the other names belong to."""


@dataclass(frozen=True)
class Space:
    """Legal points over named choices.

    A name may be absent from some points (another stage's tunable); a point's names follow from the
    values of the names before it, so that choosing in order of `choices` never meets a surprise.

    Attributes:
        choices: every name with the values it takes in some point, in ascending order where they compare.
        points: the legal points, distinct, in a fixed order.
    """

    choices: Mapping[str, tuple[Value, ...]]
    points: tuple[Point, ...]

    @classmethod
    def of(cls, points: Iterable[Point]) -> Space:
        """The space of these points; choices are what occurs in them."""
        kept = tuple(dict(point) for point in points)
        seen: dict[str, set[Value]] = {}
        for point in kept:
            for name, value in point.items():
                seen.setdefault(name, set()).add(value)
        return cls({name: _ordered(values) for name, values in seen.items()}, kept)

    def __len__(self) -> int:
        return len(self.points)

    @cached_property
    def _index(self) -> dict[tuple[tuple[str, Value], ...], int]:
        return {_key(point): i for i, point in enumerate(self.points)}

    def index(self, point: Point) -> int | None:
        """The point's place in `points`, or None where it is not legal."""
        return self._index.get(_key(point))

    @cached_property
    def stages(self) -> tuple[str, ...]:
        """Which stage each point is of; an empty name where it does not say so."""
        return tuple(str(point.get(STAGE, "")) for point in self.points)

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change with the choices or the points."""
        text = json.dumps([self.choices, [sorted(point.items()) for point in self.points]], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _key(point: Point) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(point.items()))


def _ordered(values: set[Value]) -> tuple[Value, ...]:
    listed: Sequence[Value] = list(values)
    if all(isinstance(value, int | float) for value in listed):
        return tuple(sorted(listed))
    return tuple(sorted(listed, key=str))
