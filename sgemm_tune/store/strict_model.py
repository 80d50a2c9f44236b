"""Models of YAML files: an unknown key or another type is an error of one line, with file, line and key."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sgemm_tune.errors import ConfigFileError
from sgemm_tune.store.strict_yaml import Node, dotted, one_line

Text = Annotated[str, Field(min_length=1)]

KnownKeys = Mapping[tuple[str, ...], Sequence[str]]
"""The keys of each mapping in a file, by the path to it without the places in lists."""


class Strict(BaseModel):
    """Base of the models: frozen, nothing converted, nothing unknown."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


@dataclass(frozen=True, eq=False)
class Place:
    """Where in a file a value stands, for messages. All places are equal: they are no part of a value."""

    file: str = ""
    prefix: tuple[str | int, ...] = ("entry",)
    node: Node | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place)

    def __hash__(self) -> int:
        return 0

    def refuse(self, path: tuple[str | int, ...], problem: str) -> NoReturn:
        """Raise ConfigFileError about the key at `path` below this place."""
        where = f"{self.file}:{self.node.at(path).line}: " if self.node is not None else ""
        key = dotted((*self.prefix, *path))
        raise ConfigFileError(f"{where}{key or 'file'}: {one_line(problem, 300)}")


Model = TypeVar("Model", bound=Strict)


def validated(model: type[Model], top: Place, known: KnownKeys, if_missing: str) -> Model:
    """The file whose root is `top.node`, checked against `model`.

    Args:
        model: what the file must hold.
        top: the file and its root.
        known: its keys, to tell a misspelt one from an unknown one.
        if_missing: what to do about a key that is not there.

    Raises:
        ConfigFileError: one line with file, line and key.
    """
    assert top.node is not None
    if not isinstance(top.node.value, dict):
        top.refuse((), f"the file must be a mapping with {_listed(known[()])}")
    try:
        return model.model_validate_json(json.dumps(top.node.plain))
    except ValidationError as error:
        # an unknown key explains the missing one beside it, so it is told first
        worst = min(error.errors(), key=lambda found: not _is_unknown(found))
        path = tuple(worst["loc"])
        top.refuse(path, _explained(worst, path, known, if_missing))


_EXPECTED = {
    "int_type": ("must be a whole number", "write it plainly, without quotes"),
    "int_from_float": ("must be a whole number", "write it without a point"),
    "float_type": ("must be a number", "write it plainly, such as 0.5 or 1e-5, without quotes"),
    "string_type": ("must be text", "put it in quotes"),
    "string_too_short": ("must not be empty", "fill it in"),
    "list_type": ("must be a list", "write items that start with `- `"),
    "too_short": ("must not be empty", "fill it in"),
    "dict_type": ("must be a mapping", "write `key: value` pairs"),
    "model_type": ("must be a mapping", "write `key: value` pairs"),
    "dataclass_type": ("must be a mapping", "write `key: value` pairs"),
}


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _is_unknown(found: Any) -> bool:
    return found["type"] in ("extra_forbidden", "unexpected_keyword_argument")


def _explained(found: Any, path: tuple[str | int, ...], known: KnownKeys, if_missing: str) -> str:
    """What was wrong, what was found and what to do, of one of pydantic's errors."""
    kind, context = found["type"], found.get("ctx", {})
    value = one_line(json.dumps(found["input"], ensure_ascii=False), 60)
    if _is_unknown(found):
        names = known.get(tuple(key for key in path[:-1] if isinstance(key, str)), ())
        near = difflib.get_close_matches(str(path[-1]), names, n=1)
        return (
            f"is no known key: did you mean {near[0]!r}?"
            if near
            else f"is no known key: use {', '.join(names)}"
        )
    if kind in ("missing", "missing_argument"):
        return f"is missing: {if_missing}"
    if kind == "value_error":
        return str(context["error"])
    if kind == "enum":
        return f"must be {context['expected']} (found {value}): choose one of them"
    for name, words in (("gt", "greater than"), ("ge", "at least"), ("le", "at most")):
        if name in context:
            return f"must be {words} {context[name]} (found {value}): correct it"
    problem, remedy = _EXPECTED.get(kind, (one_line(found["msg"]), "correct it"))
    return f"{problem} (found {value}): {remedy}"
