"""Where to begin: what was best at other shapes, and at this one before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from sgemm_tune.arch import Arch
from sgemm_tune.errors import ConfigFileError
from sgemm_tune.kernel import Kernel
from sgemm_tune.measure.outcome import DeviceInfo
from sgemm_tune.problem import Precision, Problem
from sgemm_tune.store.config_schema import Entry, kernel_of
from sgemm_tune.store.configs import config_path, load_config

NEIGHBOURS = 4
"""How many of them a search tries before its sampler speaks."""


def neighbours_best(
    configs_dir: Path, arch: Arch, info: DeviceInfo, precision: Precision, problem: Problem
) -> list[Kernel]:
    """The best configurations stored for this device, those of the nearest shapes first.

    Shapes are as far apart as the logarithms of their sides. Only the file in `configs_dir` is looked at, so
    that a search in an empty folder owes nothing to earlier ones.

    Raises:
        ConfigFileError: the file is damaged.
    """
    path = config_path(configs_dir, arch)
    if not path.exists():
        return []
    entries = [
        entry
        for entry in load_config(path).entries
        if (entry.device, entry.sms, entry.precision) == (info.name, info.sms, precision)
    ]
    entries.sort(key=lambda entry: _distance(entry.problem, problem))
    return list(dict.fromkeys(_usable(entries)))[:NEIGHBOURS]


def _usable(entries: Sequence[Entry]) -> list[Kernel]:
    """Their kernels; a stage that is gone, or a rule that is new, costs an entry its use as a hint."""
    kernels = []
    for entry in entries:
        try:
            kernels.append(kernel_of(entry))
        except ConfigFileError:
            continue
    return kernels


def _distance(one: Problem, other: Problem) -> float:
    sides = zip((one.m, one.n, one.k), (other.m, other.n, other.k), strict=True)
    return sum(abs(math.log2(a / b)) for a, b in sides)
