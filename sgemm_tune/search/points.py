"""Configurations of several stages as the points of one space, and back. No Optuna."""

from __future__ import annotations

import functools

from sgemm_tune.arch import Arch
from sgemm_tune.kernel import Kernel, stage_named
from sgemm_tune.search.space import STAGE, Point, Space

_stage_named = functools.cache(stage_named)  # which walks the whole ladder


@functools.lru_cache(maxsize=4)  # the shapes of a command mostly have the same stages
def space_of(stages: tuple[type[Kernel], ...], arch: Arch) -> Space:
    """Every legal configuration of the stages as one space, so that rungs compete."""
    return Space.of(point_of(kernel) for stage in stages for kernel in stage.legal(arch))


def point_of(kernel: Kernel) -> Point:
    """The point of `space_of` that stands for a configuration."""
    return {STAGE: kernel.name(), **kernel.params}


def kernel_of(point: Point) -> Kernel:
    """The configuration that a point of `space_of` stands for.

    Raises:
        UnknownName: no such stage.
        IllegalConfiguration: values that the stage does not have.
    """
    return _stage_named(str(point[STAGE])).from_params({n: v for n, v in point.items() if n != STAGE})
