"""What is found out of one configuration and is then known of all others that agree in what was read of it.

Whatever reads nothing of a configuration but its tunables, by properties or not, finds the same in every
other that has the same values of those that were read. So a prediction that never asks for GROUP is made once
for all its values, and rules that are broken before they ask for STAGES are broken for all of its values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache, wraps
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, TypeVar, TypeVarTuple

K = TypeVar("K")
Others = TypeVarTuple("Others")
R = TypeVar("R")

_SOURCE = "_source"
_STAGE = "_stage"
_MISSING: Any = object()


class _Noted:
    """A tunable that an instance has from the first read on: what is in its `__dict__` has been read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, watched: object, owner: type) -> object:
        noted = watched.__dict__
        value = noted[self._name] = getattr(noted[_SOURCE], self._name)
        return value


@cache
def _watched_class(stage: type) -> type:
    return type(stage.__name__, (stage,), {_STAGE: stage, **{name: _Noted(name) for name in _names(stage)}})


@cache
def _names(stage: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(stage))


def _watched(stage: type, source: object) -> Any:
    """An instance with the source's values of the tunables. Its `__dict__` has those that were read."""
    watched: Any = object.__new__(_watched_class(stage))
    watched.__dict__[_SOURCE] = source
    return watched


def legal_combinations(
    stage: type[K], choices: Mapping[str, Sequence[int]], is_legal: Callable[[K], bool]
) -> Iterator[K]:
    """The legal instances of a stage with these values; the last name's values vary fastest.

    Args:
        stage: a frozen dataclass.
        choices: of each of its fields.
        is_legal: what says so, from nothing but the instance's fields.
    """
    names = tuple(choices)
    turns = [0] * len(names)
    source = SimpleNamespace(**{name: given[0] for name, given in choices.items()})
    values = vars(source)
    place = 0
    while place >= 0:
        kernel = _watched(stage, source)
        legal = is_legal(kernel)
        place = len(names) - 1
        while place >= 0 and names[place] not in kernel.__dict__:
            place -= 1
        if legal:
            unread = names[place + 1 :]
            for others in itertools.product(*(choices[name] for name in unread)):
                yield stage(**{**values, **dict(zip(unread, others, strict=True))})
        while place >= 0:  # to the next combination that differs in what was read
            name = names[place]
            turns[place] = (turns[place] + 1) % len(choices[name])
            values[name] = choices[name][turns[place]]
            if turns[place]:
                break
            place -= 1


def found_once(function: Callable[[K, *Others], R]) -> Callable[[K, *Others], R]:
    """The function with a cache in which a configuration finds what was found of one that it agrees with.

    Args:
        function: of a configuration, and of others by place that can be hashed. It reads the configuration's
            tunables one by one: who compares or hashes it, or asks for `params`, reads all of them.
    """
    known: dict[type, dict[tuple[str, ...], tuple[Callable[[K], object], dict[object, R]]]] = {}

    @wraps(function)
    def found(kernel: K, *others: *Others) -> R:
        stage: type = getattr(type(kernel), _STAGE, type(kernel))
        of_stage = known.setdefault(stage, {})
        for values_of, results in tuple(of_stage.values()):
            result: R = results.get((values_of(kernel), others), _MISSING)
            if result is not _MISSING:
                return result
        watched = _watched(stage, kernel)
        result = function(watched, *others)
        read = tuple(filter(vars(watched).__contains__, _names(stage)))
        values_of, results = of_stage.setdefault(read, (attrgetter(*read) if read else type, {}))
        results[values_of(kernel), others] = result
        return result

    return found
