"""What a configuration file holds, and every check of it. Reads and writes no file.

Measured entries and predictions are separate lists with separate models: a prediction has no field that a
measured time could stand in.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Annotated, Any, NoReturn

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
)

from sgemm_tune.arch import ARCHS, parse_arch
from sgemm_tune.errors import ConfigFileError, IllegalConfiguration, UnknownName
from sgemm_tune.kernel import Kernel, stage_named
from sgemm_tune.problem import Precision, Problem
from sgemm_tune.store.provenance import PlanProvenance, Provenance
from sgemm_tune.store.strict_yaml import Node, dotted, one_line

SCHEMA = 1
"""Raised when a file of this version can no longer be read by the version before."""


def _six_digits(number: float) -> float:
    """What is stored and compared: six significant digits are more than any measurement has."""
    return float(f"{number:.6g}")


Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Text = Annotated[str, Field(min_length=1)]
Positive = Annotated[float, Field(gt=0), AfterValidator(_six_digits)]
NotNegative = Annotated[float, Field(ge=0), AfterValidator(_six_digits)]


@dataclass(frozen=True, eq=False)
class Place:
    """Where in a file an entry stands, for messages. All places are equal: they are no part of a value."""

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


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class _Located(_Strict):
    precision: Precision
    m: Count
    n: Count
    k: Count
    stage: Text
    params: dict[str, int]

    _place: Place = PrivateAttr(default_factory=Place)

    @property
    def problem(self) -> Problem:
        """The shape, with packed leading dimensions, alpha = 1 and beta = 0."""
        return Problem(self.m, self.n, self.k)


class Entry(_Located):
    """The best measured configuration of one device, precision and shape.

    Attributes:
        ms, cublas_ms: median times per launch in milliseconds.
        vs_cublas: cuBLAS time / this time, the median of pairwise ratios.
        error, error_bound: as in `measure.outcome.Accuracy`.
    """

    device: Text
    sms: Count
    ms: Positive
    tflops: Positive
    cublas_ms: Positive
    vs_cublas: Positive
    error: NotNegative
    error_bound: Positive
    provenance: Provenance

    @property
    def key(self) -> tuple[str, int, str, int, int, int]:
        """What there is one entry of: (device, sms, precision, m, n, k)."""
        return self.device, self.sms, self.precision.value, self.m, self.n, self.k


class PredictedEntry(_Located):
    """A candidate that was compiled and ranked by the model, but never run.

    Attributes:
        board, sms: what the model assumed.
        rank: 1 is the most promising of its board, precision and shape.
        predicted_ms: the model's time in milliseconds.
        registers: per thread, from the compiler.
    """

    board: Text
    sms: Count
    rank: Count
    predicted_ms: Positive
    registers: Annotated[int, Field(ge=0)]
    provenance: PlanProvenance

    @property
    def group(self) -> tuple[str, int, str, int, int, int]:
        """What one shortlist is for: (board, sms, precision, m, n, k)."""
        return self.board, self.sms, self.precision.value, self.m, self.n, self.k

    @property
    def key(self) -> tuple[str, int, str, int, int, int, int]:
        """What there is one prediction of: the group and the rank."""
        return *self.group, self.rank


class ConfigFile(_Strict):
    """The whole of one file: an architecture's best configurations."""

    schema_version: int = Field(default=SCHEMA, alias="schema")
    arch: str
    entries: list[Entry] = Field(default_factory=list)
    predicted: list[PredictedEntry] = Field(default_factory=list)

    @field_validator("arch")
    @classmethod
    def _known(cls, name: str) -> str:
        if name in ARCHS:
            return name
        try:
            raise ValueError(f"must be the architecture's plain name: write {parse_arch(name).name}")
        except UnknownName as error:
            raise ValueError(str(error)) from None


def parse_config(root: Node, name: str) -> ConfigFile:
    """Check a parsed file against the schema; stages and tunables are checked by `kernel_of`.

    Raises:
        ConfigFileError: one line with file, line and key.
    """
    top = Place(name, (), root)
    if not isinstance(root.value, dict):
        top.refuse((), "the file must be a mapping with schema, arch, entries and predicted")
    _check_version(top, root.value.get("schema"))
    try:
        config = ConfigFile.model_validate_json(json.dumps(root.plain))
    except ValidationError as error:
        # an unknown key explains the missing one beside it, so it is told first
        worst = min(error.errors(), key=lambda found: not _is_unknown(found))
        path = tuple(worst["loc"])
        top.refuse(path, _explain(worst, path))
    for section in ("entries", "predicted"):
        _locate(getattr(config, section), section, root, name)
    return config


def _check_version(top: Place, stored: Node | None) -> None:
    """Refuse another schema before its keys are judged by this one."""
    if stored is None:
        top.refuse(("schema",), f"is missing: write `schema: {SCHEMA}`")
    version = stored.plain
    if type(version) is not int or version < 1:
        found = one_line(json.dumps(version))
        top.refuse(("schema",), f"is no schema version (found {found}, known {SCHEMA}): run search anew")
    if version > SCHEMA:
        top.refuse(("schema",), f"is newer than this version knows (found {version}): update sgemm-tune")


def kernel_of(entry: Entry | PredictedEntry) -> Kernel:
    """The configuration that an entry names: the only way from a file to the compiler.

    Raises:
        ConfigFileError: no such stage, values outside its tunables, a combination that its rules forbid, or
            another precision than the stage's; names file, line and key.
    """
    place = entry._place
    try:
        stage = stage_named(entry.stage)
    except UnknownName as error:
        place.refuse(("stage",), str(error))
    if stage.precision is not entry.precision:
        problem = f"{stage.name()} computes in {stage.precision} (found {entry.precision}): write that"
        place.refuse(("precision",), problem)
    try:
        return stage.from_params(entry.params)
    except IllegalConfiguration as error:
        tunables = stage.tunables()
        guilty = [name for name, value in entry.params.items() if value not in tunables.get(name, ())]
        place.refuse(("params", *guilty[:1]), str(error))


def _locate(entries: Iterable[Entry | PredictedEntry], section: str, root: Node, name: str) -> None:
    """Tell each entry its line, and refuse two of one key."""
    seen: dict[tuple[object, ...], int] = {}
    for i, entry in enumerate(entries):
        node = root.at((section, i))
        entry._place = Place(name, (section, i), node)
        if entry.key in seen:
            entry._place.refuse((), f"repeats the entry on line {seen[entry.key]}: keep one of them")
        seen[entry.key] = node.line


_MODELS: dict[tuple[str, ...], tuple[str, ...]] = {
    (): ("schema", "arch", "entries", "predicted"),
    ("entries",): tuple(Entry.model_fields),
    ("predicted",): tuple(PredictedEntry.model_fields),
    ("entries", "provenance"): tuple(field.name for field in fields(Provenance)),
    ("predicted", "provenance"): tuple(field.name for field in fields(PlanProvenance)),
}

_EXPECTED = {
    "int_type": ("must be a whole number", "write it plainly, without quotes"),
    "int_from_float": ("must be a whole number", "write it without a point"),
    "float_type": ("must be a number", "write it plainly, such as 0.5 or 1e-5, without quotes"),
    "string_type": ("must be text", "put it in quotes"),
    "string_too_short": ("must not be empty", "fill it in"),
    "list_type": ("must be a list", "write items that start with `- `"),
    "dict_type": ("must be a mapping", "write `key: value` pairs"),
    "model_type": ("must be a mapping", "write `key: value` pairs"),
    "dataclass_type": ("must be a mapping", "write `key: value` pairs"),
}


def _is_unknown(found: Any) -> bool:
    return found["type"] in ("extra_forbidden", "unexpected_keyword_argument")


def _explain(found: Any, path: tuple[str | int, ...]) -> str:
    """What was wrong, what was found and what to do, of one of pydantic's errors."""
    kind, context = found["type"], found.get("ctx", {})
    value = one_line(json.dumps(found["input"], ensure_ascii=False), 60)
    if _is_unknown(found):
        known = _MODELS.get(tuple(key for key in path[:-1] if isinstance(key, str)), ())
        near = difflib.get_close_matches(str(path[-1]), known, n=1)
        return (
            f"is no known key: did you mean {near[0]!r}?"
            if near
            else f"is no known key: use {', '.join(known)}"
        )
    if kind in ("missing", "missing_argument"):
        return "is missing: add it, or run search or bench anew"
    if kind == "value_error":
        return str(context["error"])
    if kind == "enum":
        return f"must be {context['expected']} (found {value}): choose one of them"
    for name, words in (("gt", "greater than"), ("ge", "at least"), ("le", "at most")):
        if name in context:
            return f"must be {words} {context[name]} (found {value}): correct it"
    problem, remedy = _EXPECTED.get(kind, (one_line(found["msg"]), "correct it"))
    return f"{problem} (found {value}): {remedy}"
