"""Where to begin: what was best at other shapes, and at this one before."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sgemm_tune.arch import Arch
from sgemm_tune.errors import ConfigFileError
from sgemm_tune.kernel import Kernel
from sgemm_tune.measure.outcome import DeviceInfo
from sgemm_tune.problem import Problem
from sgemm_tune.store.config_schema import Entry, kernel_of
from sgemm_tune.store.configs import config_path, load_config, nearest_entries

NEIGHBOURS = 4
"""How many of them a search begins with, by turns with its sampler's proposals."""

SIBLINGS = 24
"""The same of the shapes that are searched by one command: trying them costs no compilation."""


def neighbours_best(
    configs_dir: Path, arch: Arch, info: DeviceInfo, stages: Sequence[type[Kernel]], problem: Problem
) -> list[Kernel]:
    """The best configurations of the stages stored for this device, those of the nearest shapes first.

    Only the file in `configs_dir` is looked at, so that a search in an empty folder owes nothing to earlier
    ones.

    Raises:
        ConfigFileError: the file is damaged.
    """
    path = config_path(configs_dir, arch)
    if not path.exists():
        return []
    precision = stages[0].precision
    entries = nearest_entries(load_config(path), info.name, info.sms, precision, problem)
    return _of_stages(_usable(entries), stages)[:NEIGHBOURS]


def siblings_best(
    fastest: Mapping[Problem, Sequence[Kernel]], stages: Sequence[type[Kernel]], problem: Problem
) -> list[Kernel]:
    """The stages' fastest at the shapes that this command searched before, by turns, the nearest shape first.

    They are compiled already, so that the GPU has work from the first moment.
    """
    nearest = sorted(fastest, key=problem.distance)
    turns = itertools.zip_longest(*(_of_stages(fastest[other], stages)[:SIBLINGS] for other in nearest))
    return list(dict.fromkeys(kernel for turn in turns for kernel in turn if kernel is not None))[:SIBLINGS]


def _of_stages(kernels: Iterable[Kernel], stages: Sequence[type[Kernel]]) -> list[Kernel]:
    """Those of the stages, each once: another shape's best may be of a stage that does not suit this one."""
    return list(dict.fromkeys(kernel for kernel in kernels if type(kernel) in stages))


def _usable(entries: Sequence[Entry]) -> list[Kernel]:
    """Their kernels; a stage that is gone, or a rule that is new, costs an entry its use as a hint."""
    kernels = []
    for entry in entries:
        try:
            kernels.append(kernel_of(entry))
        except ConfigFileError:
            continue
    return kernels
