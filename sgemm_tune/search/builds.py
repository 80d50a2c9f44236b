"""Which points of a space are compiled together, and which need no compiler any more. No Optuna."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from operator import attrgetter

import numpy as np

from sgemm_tune import declare
from sgemm_tune.arch import Arch
from sgemm_tune.kernel import Code, Kernel
from sgemm_tune.search.proposals import Builds
from sgemm_tune.search.surrogate import Ints


def builds_of(
    stages: tuple[type[Kernel], ...], arch: Arch, compiled: Callable[[Iterable[Kernel]], AbstractSet[Code]]
) -> Builds:
    """Of the points of `points.space_of`, in their order.

    Args:
        stages, arch: as of the space.
        compiled: which code of some kernels need not be compiled.
    """
    of, samples = _numbered(stages, arch)
    there = compiled(samples)
    done = [bool(there) and kernel.code in there for kernel in samples]
    return Builds(of, np.array(done, dtype=np.bool_))


@functools.lru_cache(maxsize=4)  # the shapes of a command mostly have the same stages
def _numbered(stages: tuple[type[Kernel], ...], arch: Arch) -> tuple[Ints, tuple[Kernel, ...]]:
    """The number of each point's build, and one configuration of each build."""
    numbers: dict[object, int] = {}
    of: list[int] = []
    samples: list[Kernel] = []
    for stage in stages:
        names = declare.compiled_in(stage)
        values_of = attrgetter(*names) if names else type  # `Kernel.code` takes longer to make
        for kernel in stage.legal(arch):
            number = numbers.setdefault((stage, values_of(kernel)), len(numbers))
            if number == len(samples):
                samples.append(kernel)
            of.append(number)
    return np.array(of, dtype=np.intp), tuple(samples)
