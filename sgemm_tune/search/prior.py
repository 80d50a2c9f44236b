"""What the static model expects of every point of a space, for a sampler to start from."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from sgemm_tune.arch import Arch
from sgemm_tune.kernel import Kernel
from sgemm_tune.measure.outcome import DeviceInfo
from sgemm_tune.model.predict import predict
from sgemm_tune.problem import Problem
from sgemm_tune.reads import found_once


def priors(
    asked: Mapping[Problem, Sequence[type[Kernel]]], arch: Arch, info: DeviceInfo
) -> Iterator[tuple[Problem, list[float]]]:
    """Each problem in turn with its `prior`; that of the next one is found while this one is searched."""
    with ThreadPoolExecutor(1) as meanwhile:

        def begun(problem: Problem) -> Future[list[float]]:
            return meanwhile.submit(prior, asked[problem], problem, arch, info)

        upcoming: Future[list[float]] | None = None
        for problem, following in itertools.zip_longest(asked, [*asked][1:]):
            found = (upcoming or begun(problem)).result()
            upcoming = begun(following) if following is not None else None
            yield problem, found


def prior(stages: Sequence[type[Kernel]], problem: Problem, arch: Arch, info: DeviceInfo) -> list[float]:
    """Predicted ms of every legal configuration, in the order of `points.space_of`."""

    @found_once
    def expected(kernel: Kernel) -> float:
        return predict(
            kernel,
            problem,
            arch,
            sms=info.sms,
            mhz=info.clock_mhz,
            l2_bytes=info.l2_bytes,
            gbytes_per_s=info.gbytes_per_s,
        ).ms

    return [expected(kernel) for stage in stages for kernel in stage.legal(arch)]
