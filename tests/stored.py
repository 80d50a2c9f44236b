"""What the tests of files store: two stages of their own, a device, measurements. Needs no kernel sources."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar
from unittest import mock

import sgemm_tune.stages  # noqa: F401  (declared before the ladder is replaced)
from sgemm_tune import registry
from sgemm_tune.arch import ARCHS
from sgemm_tune.compiler.sources import SourceText
from sgemm_tune.kernel import Kernel, Rules, tune
from sgemm_tune.measure.outcome import Accuracy, DeviceInfo, Measurement, Origin, Telemetry
from sgemm_tune.problem import Precision, Problem
from sgemm_tune.store import provenance
from sgemm_tune.store.configs import Entry, PredictedEntry, measured_entry, predicted_entry
from sgemm_tune.store.results import Row, row

ARCH = ARCHS["sm_90"]
DATE = "2025-11-29T12:34:56+00:00"
PROBLEM = Problem.parse_size(4096)


@dataclass(frozen=True)
class Lower(Kernel):
    """The lower rung."""

    source: ClassVar = "01_lower.cu"
    BM: int = tune(16, 32)
    BN: int = tune(16, 32, 64)

    def rules(self) -> Rules:
        """A tile may not be 32 x 16."""
        yield (self.BM, self.BN) != (32, 16), "a tile is not taller than wide"


@dataclass(frozen=True)
class Upper(Kernel):
    """The upper rung."""

    source: ClassVar = "02_upper.cu"
    TM: int = tune(4, 8)


@dataclass(frozen=True)
class Tensor(Kernel):
    """The tf32 rung."""

    source: ClassVar = "03_tensor.cu"
    precision: ClassVar = Precision.TF32
    WARPS: int = tune(1, 2)


STAGES: dict[str, type[Kernel]] = {stage.name(): stage for stage in (Lower, Upper, Tensor)}

H200 = DeviceInfo(
    name="NVIDIA H200",
    uuid="GPU-5c0ffee5",
    arch="sm_90",
    sms=132,
    l2_bytes=50 << 20,
    memory_bytes=139 << 30,
    clock_mhz=1980,
    driver="575.57",
    runtime="12.9",
    nvrtc="12.9",
    cublas="12.9.1",
)


@contextmanager
def own_stages() -> Iterator[None]:
    """The ladder is that of this module, whose sources stand nowhere; and the time stands still."""

    def source(name: str) -> SourceText:
        return SourceText(name, "", (), f"{len(name):016x}")

    with (
        mock.patch.dict(registry._REGISTRY, STAGES, clear=True),
        mock.patch.object(provenance, "source_text", source),
        mock.patch.object(provenance, "now", return_value=DATE),
    ):
        yield


def measurement(ms: float = 2.5, cublas_ms: float = 2.0, *, early_cut: bool = False) -> Measurement:
    """A measurement that nothing is wrong with."""
    return Measurement(
        ms=ms,
        ms_p10=0.99 * ms,
        ms_p90=1.02 * ms,
        samples=20,
        cublas_ms=cublas_ms,
        vs_cublas=cublas_ms / ms,
        accuracy=Accuracy(1.2e-6, 8.1e-6, 2.3e-7, 2.2e-7),
        early_cut=early_cut,
        telemetry=Telemetry(1980, 650.25, ("sw_power_cap",)),
        vs_p10=round(cublas_ms / ms - 0.01, 6),
        vs_p90=round(cublas_ms / ms + 0.01, 6),
    )


def entry(m: int = 4096, ms: float = 2.5, info: DeviceInfo = H200) -> Entry:
    """A measured entry at m x 4096 x 4096."""
    return measured_entry(Problem(m, 4096, 4096), Lower(BM=16, BN=64), measurement(ms), info, seed=7)


def prediction(rank: int = 1, m: int = 4096) -> PredictedEntry:
    """A prediction at m x 4096 x 4096."""
    return predicted_entry(
        Problem(m, 4096, 4096),
        Upper(),
        ARCH,
        rank=rank,
        predicted_ms=1.0 + rank / 8,
        registers=96,
        nvrtc="12.9",
    )


def good_row(row_id: str | None = None, problem: Problem = PROBLEM) -> Row:
    """A row of a validated measurement."""
    return row(
        problem, Precision.FP32, Lower(), measurement(), H200, origin=Origin.SEARCH, seed=7, row_id=row_id
    )
