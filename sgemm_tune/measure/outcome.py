"""What becomes of a candidate: a measurement, or a rejection with its reason. Plain data, no GPU."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from enum import StrEnum


class Status(StrEnum):
    """How a candidate ended. Only `ok` has a time."""

    OK = "ok"
    RULES = "rules"
    COMPILE = "compile"
    SPILL = "spill"
    LAUNCH = "launch"
    WRONG = "wrong"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    PREDICTED = "predicted"


class Origin(StrEnum):
    """Which command produced a row; a prediction never mixes with what was measured."""

    SEARCH = "search"
    BENCH = "bench"
    PREDICTED = "predicted"


@dataclass(frozen=True)
class DeviceInfo:
    """One GPU and the software that drives it.

    Attributes:
        arch: `sm_90`.
        sms: streaming multiprocessors.
        l2_bytes: size of the L2 cache.
        memory_bytes: device memory.
        clock_mhz: highest SM clock.
        gbytes_per_s: peak memory bandwidth, 0 where the driver does not say.
        driver, runtime, nvrtc, cublas: versions.
    """

    name: str
    uuid: str
    arch: str
    sms: int
    l2_bytes: int
    memory_bytes: int
    clock_mhz: int
    gbytes_per_s: float = 0.0
    driver: str = ""
    runtime: str = ""
    nvrtc: str = ""
    cublas: str = ""


@dataclass(frozen=True)
class Samples:
    """Times of one kernel in milliseconds per launch, in the order taken."""

    ms: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median in ms."""
        return statistics.median(self.ms)

    def quantile(self, q: float) -> float:
        """The q-quantile in ms by linear interpolation, 0 <= q <= 1."""
        ordered = sorted(self.ms)
        place = q * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True)
class Telemetry:
    """What NVML saw while a candidate ran; zeros where NVML is not to be had.

    Attributes:
        sm_mhz, watts: last readings.
        throttle: reasons in force other than idling and the application's own settings.
        other_processes: compute processes on the GPU besides this one.
    """

    sm_mhz: int = 0
    watts: float = 0.0
    throttle: tuple[str, ...] = ()
    other_processes: int = 0


@dataclass(frozen=True)
class Accuracy:
    """How exact a result was on the tuned shape.

    Attributes:
        error: max |C - C64| / (|alpha| |A||B| + |beta| |C0|) over the elements.
        bound: what it may be, `Precision.error_bound(K)`.
        norm_error: ||C - C64|| / ||C64||, Frobenius.
        cublas_norm_error: the same of cuBLAS in the same precision.
    """

    error: float
    bound: float
    norm_error: float
    cublas_norm_error: float


@dataclass(frozen=True)
class Measurement:
    """A validated candidate with its time.

    Attributes:
        ms, ms_p10, ms_p90: median and quantiles per launch.
        samples: how many samples stand behind them.
        cublas_ms: median of the interleaved baseline; 0 where an early cut took none.
        vs_cublas, vs_p10, vs_p90: median and quantiles of the pairwise ratios cuBLAS time / candidate time.
        early_cut: the candidate was so slow that a few samples had to do.
        throttled: the samples were taken while the GPU throttled, repeated ones too.
        cache: `cold` or `warm`, the state of the L2.
    """

    ms: float
    ms_p10: float
    ms_p90: float
    samples: int
    cublas_ms: float
    vs_cublas: float
    accuracy: Accuracy
    early_cut: bool = False
    throttled: bool = False
    cache: str = "cold"
    telemetry: Telemetry = field(default_factory=Telemetry)
    vs_p10: float = 0.0
    vs_p90: float = 0.0

    @property
    def status(self) -> Status:
        """Always `ok`."""
        return Status.OK

    @property
    def doubts(self) -> tuple[str, ...]:
        """What was wrong with the GPU while the samples were taken, in words; nothing where all was well."""
        found = []
        if self.throttled:
            reasons = ", ".join(self.telemetry.throttle) or "reason unknown"
            found.append(f"the GPU throttled ({reasons}) while this was timed, also when it was repeated")
        if self.telemetry.other_processes:
            found.append(
                f"{self.telemetry.other_processes} other processes used the GPU while this was timed"
            )
        return tuple(found)


@dataclass(frozen=True)
class Rejected:
    """A candidate that got no time, and why.

    Attributes:
        status: the kind of failure, for counting.
        reason: one line for people.
    """

    status: Status
    reason: str


Outcome = Measurement | Rejected
