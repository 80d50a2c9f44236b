"""Suites: the shapes and goals that a precision is judged by, each a YAML file that is read strictly."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, PrivateAttr

from sgemm_tune.errors import BadProblem, UnknownName
from sgemm_tune.problem import Precision, Problem
from sgemm_tune.store.strict_model import Place, Strict, Text, validated
from sgemm_tune.store.strict_yaml import read_yaml

_SHIPPED = Path(__file__).with_name("suites")


def _shape(text: str) -> str:
    try:
        Problem.parse_shape(text)
    except BadProblem as error:
        raise ValueError(str(error)) from None
    return text


Ratio = Annotated[float, Field(gt=0)]
Shape = Annotated[str, AfterValidator(_shape)]


class Group(Strict):
    """Shapes that share a goal.

    Attributes:
        goal: cuBLAS time / ours that every shape is to reach.
        geometric_mean: what the geometric mean of their ratios is to reach; None: no such goal.
        shapes: `MxNxK`, at least one.
    """

    name: Text
    goal: Ratio
    geometric_mean: Ratio | None = None
    shapes: Annotated[list[Shape], Field(min_length=1)]

    @property
    def problems(self) -> list[Problem]:
        """The shapes, with packed leading dimensions, alpha = 1 and beta = 0."""
        return [Problem.parse_shape(shape) for shape in self.shapes]


class Suite(Strict):
    """The whole of one file.

    Attributes:
        precision: of ours and of the baseline.
        minimum: cuBLAS time / ours that no shape may stay below.
    """

    precision: Precision
    minimum: Ratio
    groups: Annotated[list[Group], Field(min_length=1)]

    _name: str = PrivateAttr(default="")

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self._name


_KEYS = {(): tuple(Suite.model_fields), ("groups",): tuple(Group.model_fields)}


def shipped_suites() -> list[str]:
    """Names of the suites that came with this package."""
    return sorted(path.stem for path in _SHIPPED.glob("*.yaml"))


def find_suite(name: str) -> Suite:
    """The shipped suite of that name, or the one in the file `name`, which then ends in `.yaml`.

    Raises:
        UnknownName: there is none of that name.
        ConfigFileError: as `load_suite`.
    """
    if name.endswith(".yaml"):
        return load_suite(Path(name))
    if name not in shipped_suites():
        raise UnknownName("suite", name, [*shipped_suites(), "a file that ends in .yaml"])
    return load_suite(_SHIPPED / f"{name}.yaml")


def load_suite(path: Path) -> Suite:
    """Read one file.

    Raises:
        ConfigFileError: it cannot be read, breaks the schema or names a group or shape twice; one line with
            file, line and key.
    """
    top = Place(str(path), (), read_yaml(path))
    suite = validated(Suite, top, _KEYS, "add it")
    _refuse_repeats(suite, top)
    suite._name = path.stem
    return suite


def _refuse_repeats(suite: Suite, top: Place) -> None:
    assert top.node is not None
    seen: dict[Problem | str, int] = {}
    for i, group in enumerate(suite.groups):
        values: list[tuple[tuple[str | int, ...], Problem | str]] = [(("groups", i, "name"), group.name)]
        values += [(("groups", i, "shapes", j), problem) for j, problem in enumerate(group.problems)]
        for path, value in values:
            if value in seen:
                what = value.shape if isinstance(value, Problem) else repr(value)
                top.refuse(path, f"repeats {what} of line {seen[value]}: keep one of them")
            seen[value] = top.node.at(path).line
