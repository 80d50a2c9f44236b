"""What a configuration file holds, and every check of it. Reads and writes no file.

Measured entries and predictions are separate lists with separate models: a prediction has no field that a
measured time could stand in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from typing import Annotated

from pydantic import AfterValidator, Field, PrivateAttr, field_validator

from sgemm_tune.arch import ARCHS, parse_arch
from sgemm_tune.errors import IllegalConfiguration, UnknownName
from sgemm_tune.kernel import Kernel, stage_named
from sgemm_tune.problem import Precision, Problem
from sgemm_tune.store.provenance import PlanProvenance, Provenance
from sgemm_tune.store.strict_model import Place, Strict, Text, validated
from sgemm_tune.store.strict_yaml import Node, one_line

SCHEMA = 1
"""Raised when a file of this version can no longer be read by the version before."""


def _six_digits(number: float) -> float:
    """What is stored and compared: six significant digits are more than any measurement has."""
    return float(f"{number:.6g}")


Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Positive = Annotated[float, Field(gt=0), AfterValidator(_six_digits)]
NotNegative = Annotated[float, Field(ge=0), AfterValidator(_six_digits)]


class _Located(Strict):
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


class ConfigFile(Strict):
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
    if isinstance(root.value, dict):
        _check_version(top, root.value.get("schema"))
    config = validated(ConfigFile, top, _KEYS, "add it, or run search or bench anew")
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


_KEYS: dict[tuple[str, ...], tuple[str, ...]] = {
    (): ("schema", "arch", "entries", "predicted"),
    ("entries",): tuple(Entry.model_fields),
    ("predicted",): tuple(PredictedEntry.model_fields),
    ("entries", "provenance"): tuple(field.name for field in fields(Provenance)),
    ("predicted", "provenance"): tuple(field.name for field in fields(PlanProvenance)),
}
