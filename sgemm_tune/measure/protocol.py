"""What evaluation asks of a device, and how it is to be measured: plain data and one protocol.

The real device is `sgemm_tune.device.gpu.GpuDevice`; tests script one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sgemm_tune.compiler.nvrtc import Binary
from sgemm_tune.kernel import Kernel
from sgemm_tune.measure.cases import Case
from sgemm_tune.measure.outcome import DeviceInfo, Samples, Telemetry
from sgemm_tune.problem import Precision, Problem

CUBLAS = None
"""Stands for the baseline where `Device.time` takes runs."""


@dataclass(frozen=True)
class Policy:
    """How candidates are measured.

    Attributes:
        seed: of the operands.
        cold: rotate among input sets so that the L2 holds none of the operands.
        probe: samples of the candidate alone that decide on an early cut.
        early_cut: a candidate this many times slower than the best so far keeps its probe's estimate, which
            is good to a percent; 0 measures everything fully.
        race, race_cut: a candidate that after `race` interleaved samples is clearly this many times slower
            than the best so far keeps those. Whoever comes close to the best is timed again in the last
            round, so that cuts decide about seconds, not about who wins.
        min_samples, max_samples: bounds on the interleaved samples.
        settle: stop when the median's relative standard error is below this.
        sample_ms: a sample holds launches until it lasts this long.
        max_seconds: stop sampling after this much GPU time, with at least `probe` samples.
        retries: how often samples taken while throttled are repeated.
        spill_limit: bytes of spills per thread above which a candidate is dropped unmeasured; a few that
            lie outside the inner loop cost nothing.
    """

    seed: int = 0
    cold: bool = True
    probe: int = 3
    early_cut: float = 1.03
    race: int = 4
    race_cut: float = 1.01
    min_samples: int = 10
    max_samples: int = 30
    settle: float = 0.002
    sample_ms: float = 1.0
    max_seconds: float = 10.0
    retries: int = 1
    spill_limit: int = 64

    def affordable(self, runs: int, slowest_ms: float) -> int:
        """Passes over so many runs that `max_seconds` allows, where none takes longer than `slowest_ms`."""
        per_pass = runs * 1e-3 * max(slowest_ms, self.sample_ms)
        return max(self.probe, int(self.max_seconds / per_pass))

    @property
    def cache(self) -> str:
        """`cold` or `warm`, as stored with every number."""
        return "cold" if self.cold else "warm"


@dataclass(frozen=True)
class Check:
    """What one validation run showed.

    Attributes:
        error: max |C - C64| / (|alpha| |A||B| + |beta| |C0|); infinite where C should be exactly 0.
        norm_error: ||C - C64|| / ||C64||.
        unwritten: elements that still hold the pattern C was filled with.
        nonfinite: elements that are NaN or Inf where the reference is not, or the other way round.
        guards: words before, after or between the rows of a buffer that were changed.
        inputs_changed: words of A or B that were changed.
        repeatable: a second run gave the same bits.
        row, col: the worst element.
        ms: what the shorter of two runs took, roughly; 0 where they were not timed.
    """

    error: float
    norm_error: float
    unwritten: int = 0
    nonfinite: int = 0
    guards: int = 0
    inputs_changed: int = 0
    repeatable: bool = True
    row: int = 0
    col: int = 0
    ms: float = 0.0


@dataclass(frozen=True)
class Timing:
    """Samples of several runs, taken in the same passes.

    Attributes:
        runs: samples of each run, in the order asked for; pass i of one run belongs to pass i of the others.
    """

    runs: tuple[Samples, ...]


class Device(Protocol):
    """What evaluation needs of a GPU. `Loaded` is opaque: whatever `load` returned."""

    @property
    def info(self) -> DeviceInfo:
        """Which device this is."""
        ...

    def load(self, kernel: Kernel, binary: Binary) -> Any:
        """Make a binary ready to launch.

        Raises:
            LaunchError: the driver refused it.
        """
        ...

    def heuristics(self, problem: Problem, precision: Precision) -> Sequence[Any]:
        """What cublasLt's heuristics propose for a product, the most promising first.

        Each can be checked and timed on that product, like what `load` returned.

        Raises:
            DeviceUnavailable: cublasLt cannot be loaded.
        """
        ...

    def check(self, loaded: Any, case: Case, precision: Precision, seed: int) -> Check:
        """Run `loaded` (None: cuBLAS) once on `case` over guarded, NaN-filled buffers and compare it."""
        ...

    def check_tuned(self, loaded: Any, problem: Problem, precision: Precision, seed: int) -> Check:
        """The same on the tuned shape, twice, whose reference is kept between calls."""
        ...

    def time(
        self, runs: Sequence[Any], problem: Problem, precision: Precision, policy: Policy, samples: int
    ) -> Timing:
        """`samples` interleaved passes over `runs` (None: cuBLAS), their order shuffled every pass."""
        ...

    def telemetry(self) -> Telemetry:
        """Clocks, power and throttle reasons now."""
        ...


@dataclass(frozen=True)
class Request:
    """One candidate to validate and measure.

    Attributes:
        best_ms: the best so far in ms, for the early cut; None before there is one.
    """

    kernel: Kernel
    binary: Binary
    problem: Problem
    policy: Policy
    best_ms: float | None = None
