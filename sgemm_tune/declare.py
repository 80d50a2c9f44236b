"""What a stage is declared with: its tunables, and what the static model should know of its code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from sgemm_tune.arch import Feature


def tune(
    *choices: int, default: int | None = None, before: int | None = None, only: Feature | None = None
) -> Any:
    """A tunable: its admissible values, and the one that an instance has where none is given.

    Args:
        choices: its values.
        default: that of an instance; None: the first.
        before: that of configurations which were stored before the tunable existed, and so do not name it;
            None: every stored one names it.
        only: where its choices but for the first are legal; None: everywhere.

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
    return field(default=chosen, metadata={"choices": choices, "before": before, "only": only})


def needs(stage: type) -> Mapping[str, tuple[Feature, int]]:
    """What tunables of a stage need (`only`), by name, and the value that each has where it is missing."""
    return _needs(stage)  # which mypy would not let callers ask: a stage is hashable only as a type


@cache
def _needs(stage: type) -> Mapping[str, tuple[Feature, int]]:
    declared = {f.name: f.metadata for f in fields(stage) if f.metadata.get("only") is not None}
    return {name: (metadata["only"], metadata["choices"][0]) for name, metadata in declared.items()}


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
