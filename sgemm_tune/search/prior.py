"""What the static model expects of every point of a space, for a sampler to start from."""

from __future__ import annotations

from collections.abc import Sequence

from sgemm_tune.arch import Arch
from sgemm_tune.kernel import Kernel
from sgemm_tune.measure.outcome import DeviceInfo
from sgemm_tune.model.predict import predict
from sgemm_tune.problem import Problem
from sgemm_tune.reads import found_once


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
