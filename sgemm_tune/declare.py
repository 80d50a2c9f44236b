"""What a stage is declared with: its tunables, and what the static model should know of its code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from sgemm_tune.arch import Feature
from sgemm_tune.errors import IllegalConfiguration


def tune(
    *choices: int,
    default: int | None = None,
    before: int | None = None,
    only: Feature | None = None,
    at_launch: bool = False,
) -> Any:
    """A tunable: its admissible values, and the one that an instance has where none is given.

    Args:
        choices: its values.
        default: that of an instance; None: the first.
        before: that of configurations which were stored before the tunable existed, and so do not name it;
            None: every stored one names it.
        only: where its choices but for the first are legal; None: everywhere.
        at_launch: given to the kernel as an int when it is launched, not to the compiler: configurations
            that differ in nothing else share a cubin.

    Raises:
        ValueError: no choices, repeated ones, or a default or `before` that is not among them.
    """
    chosen = choices[0] if choices and default is None else default
    if not choices or len(set(choices)) != len(choices) or chosen not in choices:
        raise ValueError(
            f"a tunable needs distinct choices with the default among them, not {choices}, {default}"
        )
    if before is not None and before not in choices:
        raise ValueError(f"older configurations can only have had one of {choices}, not {before}")
    return field(
        default=chosen,
        metadata={"choices": choices, "before": before, "only": only, "at_launch": at_launch},
    )


def needs(stage: type) -> Mapping[str, tuple[Feature, int]]:
    """What tunables of a stage need (`only`), by name, and the value that each has where it is missing."""
    return _needs(stage)  # which mypy would not let callers ask: a stage is hashable only as a type


@cache
def _needs(stage: type) -> Mapping[str, tuple[Feature, int]]:
    needing = {name: said for name, said in _declared(stage).items() if said["only"] is not None}
    return {name: (said["only"], said["choices"][0]) for name, said in needing.items()}


def at_launch(stage: type) -> tuple[str, ...]:
    """The tunables of a stage that its kernel is given when it is launched, in the order of declaration."""
    return _at_launch(stage)


@cache
def _at_launch(stage: type) -> tuple[str, ...]:
    return tuple(name for name, said in _declared(stage).items() if said["at_launch"])


def compiled_in(stage: type) -> tuple[str, ...]:
    """The tunables of a stage that the compiler is given, in the order of declaration."""
    return _compiled_in(stage)


@cache
def _compiled_in(stage: type) -> tuple[str, ...]:
    return tuple(name for name, said in _declared(stage).items() if not said["at_launch"])


def choices_of(stage: type) -> dict[str, tuple[int, ...]]:
    """Each tunable's choices by name."""
    return {name: said["choices"] for name, said in _declared(stage).items()}


def checked(stage: type, called: str, params: Mapping[str, object]) -> dict[str, Any]:
    """A value for every tunable of a stage of this name; those that came later need not be given.

    Raises:
        IllegalConfiguration: a name that is no tunable or is missing, or a value that is no choice.
    """
    tunables = _declared(stage)
    later = {name: said["before"] for name, said in tunables.items() if said["before"] is not None}
    given: dict[str, Any] = {**later, **params}
    for name in given:
        if name not in tunables:
            raise IllegalConfiguration(
                f"{called} has no tunable {name!r}: its tunables are {', '.join(tunables)}"
            )
    for name, choices in choices_of(stage).items():
        listed = ", ".join(map(str, choices))
        if name not in given:
            raise IllegalConfiguration(f"{called} needs a value for {name}: one of {listed}")
        value = given[name]
        if isinstance(value, bool) or not isinstance(value, int) or value not in choices:
            raise IllegalConfiguration(f"{called}.{name} is {value!r}: choose one of {listed}")
    return given


@cache
def _declared(stage: type) -> dict[str, Mapping[str, Any]]:
    """What `tune` was told of each tunable."""
    return {f.name: f.metadata for f in fields(stage) if "choices" in f.metadata}


@dataclass(frozen=True)
class Traits:
    """What a stage's code does that its geometry does not tell. Only the static model reads it.

    Attributes:
        vector: floats per load, from global and from shared memory.
        shared: the inner loop reads shared memory; False: it reads global memory.
        coalesced: a warp's global loads take consecutive addresses.
        split_fragments: a thread's patch is made of vectors that alternate with those of its neighbours,
            so that neither shared loads nor the stores of C conflict; False: a patch is contiguous.
        buffers: tiles in shared memory or on their way: 1 loads and computes by turns, 2 fetches the next
            tile while this one is computed.
        early_fragments: a pass's fragments are loaded during the pass before.
        async_copy: tiles travel without passing through registers (cp.async, TMA).
        copying_warps: warps of their own copy, B by the copy engine where its rows are aligned.
    """

    vector: int = 4
    shared: bool = True
    coalesced: bool = True
    split_fragments: bool = False
    buffers: int = 1
    early_fragments: bool = False
    async_copy: bool = False
    copying_warps: bool = False
