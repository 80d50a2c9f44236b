"""Options that several commands share, and what they mean: every check is made before any file is touched."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sgemm_tune.arch import ARCHS
from sgemm_tune.errors import UsageError
from sgemm_tune.kernel import Kernel, ladder, stage_named
from sgemm_tune.problem import Precision, Problem
from sgemm_tune.store.files import FileWriteError

DEFAULT_SIZE = 4096
_KNOWN_ARCHS = ", ".join(f"{arch.name} ({arch.config})" for arch in ARCHS.values())

ArchOption = Annotated[
    str | None,
    typer.Option("--arch", help=f"{_KNOWN_ARCHS}.", show_default="the GPU's, else sm_90"),
]
DeviceOption = Annotated[int, typer.Option("--device", help="CUDA's number of the GPU.")]
ConfigsDirOption = Annotated[Path, typer.Option("--configs-dir", help="Where the YAML files are.")]
ResultsDirOption = Annotated[Path, typer.Option("--results-dir", help="Where results.csv is.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Of the operands and the sampler.")]

CONFIGS_DIR = Path("configs")
RESULTS_DIR = Path("results")


def problems_from(sizes: Sequence[int] | None, shapes: Sequence[str] | None) -> list[Problem]:
    """The problems asked for, without repeats and in order; 4096 where there is none.

    Raises:
        BadProblem: a size or shape that is no product to time.
    """
    asked = [Problem.parse_size(size) for size in sizes or ()]
    asked += [Problem.parse_shape(shape) for shape in shapes or ()]
    return list(dict.fromkeys(asked)) or [Problem.parse_size(DEFAULT_SIZE)]


def stages_from(
    names: Sequence[str] | None, precision: str | None
) -> tuple[Precision, tuple[type[Kernel], ...]]:
    """(precision, stages) asked for: the named stages, or every one of the precision (default fp32).

    Raises:
        UnknownName: no such stage or precision.
        UsageError: stages of another precision than asked for, or of several.
    """
    wanted = Precision.parse(precision) if precision is not None else None
    named = tuple(dict.fromkeys(stage_named(name) for name in names or ()))
    found = {stage.precision for stage in named}
    if wanted is None and len(found) > 1:
        listed = ", ".join(f"{stage.name()} is {stage.precision}" for stage in named)
        raise UsageError(f"stages of different precisions do not compete ({listed}): name those of one")
    chosen = wanted or next(iter(found), Precision.FP32)
    for stage in named:
        if stage.precision is not chosen:
            fitting = ", ".join(s.name() for s in ladder() if s.precision is chosen) or "none"
            raise UsageError(
                f"stage {stage.name()} is {stage.precision}, not {chosen}: "
                f"give --precision {stage.precision} or a stage of {chosen} ({fitting})"
            )
    stages = named or tuple(stage for stage in ladder() if stage.precision is chosen)
    if not stages:
        raise UsageError(f"no stage computes in {chosen}: see `sgemm-tune stages`")
    return chosen, stages


def at_least(option: str, value: float | None, least: float, *, above: bool = False) -> None:
    """Check a number that an option was given.

    Raises:
        UsageError: it is below `least` (with `above`: not above it), or not a number.
    """
    if value is None:
        return
    if not (value > least if above else value >= least) or value == float("inf"):
        bound = f"more than {least:g}" if above else f"at least {least:g}"
        raise UsageError(f"{option} is {value:g}: give {bound}")


def can_write(*directories: Path) -> None:
    """Check that files can be made below each directory, before minutes are spent on what goes there.

    Raises:
        FileWriteError: one is no directory, or may not be written.
    """
    for directory in directories:
        there = next(
            place for place in (directory.absolute(), *directory.absolute().parents) if place.exists()
        )
        if not there.is_dir():
            raise FileWriteError(f"cannot write to {directory}: {there} is no directory: choose another one")
        if not os.access(there, os.W_OK):
            raise FileWriteError(f"cannot write to {directory}: permission denied: choose another one")


@dataclass(frozen=True)
class SearchRequest:
    """What `search` was asked for, all of it checked.

    Attributes:
        asked: the problems, each with its stages: those that were named, else those that suit it.
        trials: per problem; None: the default of a search or of a plan.
        timeout: seconds per problem; None: the default.
        sampler: None: the default.
        jobs: compiler processes.
    """

    asked: Mapping[Problem, Sequence[type[Kernel]]]
    precision: Precision
    trials: int | None
    timeout: float | None
    sampler: str | None
    seed: int
    jobs: int
    storage: str | None
    configs_dir: Path
    results_dir: Path
