"""The last round: the best few and the stored best are timed again in the same passes, and one of them wins.

Declared noise: two configurations differ only if their ratios to cuBLAS, taken pair by pair in the same
passes, are more than `TIE` apart and more than twice the standard error of their difference. (A GPU that
throttles now and then scatters all times alike, which cancels out of the ratios.) Whoever the fastest does
not beat so ties with it. Among those, the stored best stays; without one, the lowest rung wins, then the
smallest values of its tunables: another run over the same configurations ends with the same winner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sgemm_tune.arch import Arch
from sgemm_tune.compiler.sources import source_text
from sgemm_tune.errors import CompileError, ConfigFileError
from sgemm_tune.kernel import Kernel
from sgemm_tune.measure.outcome import DeviceInfo, Measurement, Outcome, Rejected, Status
from sgemm_tune.measure.protocol import Policy, Request
from sgemm_tune.measure.worker import GpuWorker
from sgemm_tune.problem import Precision, Problem
from sgemm_tune.search.pipeline import Compiles
from sgemm_tune.store.configs import (
    Entry,
    config_path,
    find_entry,
    kernel_of,
    load_config,
    measured_entry,
    merge_entries,
)

TIE = 0.005
"""Closer than this is a tie whatever the samples say: interleaved runs repeat within 0.5 %."""

CONTENDER = 1.25
"""Who takes this many times as long as the fastest has no place in the last round, even where one is free."""

_MEDIAN = 1.2533  # standard error of a median in standard errors of a mean, of a normal distribution
_DECILES = 2.563  # p90 - p10 in standard deviations, of a normal distribution


@dataclass(frozen=True)
class Finalist:
    """One configuration of the last round.

    Attributes:
        stored: it stood in the configuration file before.
    """

    kernel: Kernel
    outcome: Outcome
    stored: bool = False


@dataclass(frozen=True)
class Verdict:
    """How the last round ended.

    Attributes:
        kernel, measurement: the winner; None where no finalist was healthy.
        tied: whom it does not beat beyond the noise, or who does not beat it.
        kept: the stored best has won, and its entry was left as it was.
        finalists: everybody who took part, fastest first, those that failed last.
    """

    kernel: Kernel | None = None
    measurement: Measurement | None = None
    tied: tuple[Kernel, ...] = ()
    kept: bool = False
    finalists: tuple[Finalist, ...] = ()


@dataclass(frozen=True)
class LastRound:
    """What the last round of one problem needs.

    Attributes:
        places: how many take part, besides the stored best.
    """

    problem: Problem
    precision: Precision
    arch: Arch
    configs_dir: Path
    policy: Policy
    places: int
    worker: GpuWorker = field(repr=False)
    pool: Compiles = field(repr=False)

    @property
    def path(self) -> Path:
        """The configuration file."""
        return config_path(self.configs_dir, self.arch)

    def play(self, healthy: Sequence[tuple[Kernel, Measurement]]) -> Verdict:
        """Time the best of `healthy` and the stored best together, and store the winner.

        Raises:
            ConfigFileError: the configuration file breaks its schema; it is left alone.
            FileWriteError: it cannot be written; it is left alone.
            DeviceUnavailable: the GPU is lost.
        """
        stored = self.stored_kernel()
        # an early cut is no obstacle: its estimate is good to a percent, and here it is measured fully
        order = sorted(range(len(healthy)), key=lambda i: healthy[i][1].ms)[: self.places]
        chosen = [healthy[i][0] for i in order if healthy[i][1].ms <= CONTENDER * healthy[order[0]][1].ms]
        if stored is not None:
            chosen = [stored, *(kernel for kernel in chosen if kernel != stored)]
        verdict = decide([Finalist(k, outcome, k == stored) for k, outcome in self._timed(chosen)])
        if verdict.kernel is not None and verdict.measurement is not None and not verdict.kept:
            entry = measured_entry(
                self.problem, verdict.kernel, verdict.measurement, self.worker.info, self.policy.seed
            )
            merge_entries(self.path, self.arch, [entry], keep=_keeper(stored))
        return verdict

    def stored_kernel(self) -> Kernel | None:
        """The stored best of this device, precision and shape, unless its kernel changed since.

        Raises:
            ConfigFileError: the configuration file breaks its schema.
        """
        if not self.path.exists():
            return None
        info: DeviceInfo = self.worker.info
        entry = find_entry(load_config(self.path), info.name, info.sms, self.precision, self.problem)
        return _current(entry) if entry is not None else None

    def _timed(self, kernels: Sequence[Kernel]) -> list[tuple[Kernel, Outcome]]:
        compiling = [(kernel, self.pool.submit(kernel)) for kernel in kernels]
        outcomes: dict[Kernel, Outcome] = {}
        requests: list[Request] = []
        for kernel, future in compiling:
            try:
                requests.append(Request(kernel, future.result(), self.problem, self.policy))
            except CompileError as error:
                outcomes[kernel] = Rejected(Status.COMPILE, str(error))
        for request, outcome in zip(requests, self.worker.compare(requests), strict=True):
            outcomes[request.kernel] = outcome
        return [(kernel, outcomes[kernel]) for kernel in kernels]


def decide(finalists: Sequence[Finalist]) -> Verdict:
    """Who wins, by the rules above."""
    timed = sorted(
        ((f.outcome, f) for f in finalists if isinstance(f.outcome, Measurement)),
        key=lambda pair: (-pair[0].vs_cublas, pair[0].ms),
    )
    order = (*(f for _, f in timed), *(f for f in finalists if isinstance(f.outcome, Rejected)))
    if not timed:
        return Verdict(finalists=order)
    fastest = timed[0][0]
    level = [(m, f) for m, f in timed if m is fastest or not beats(fastest, m)]
    measurement, winner = min(level, key=lambda pair: (not pair[1].stored, _rule(pair[1].kernel)))
    return Verdict(
        kernel=winner.kernel,
        measurement=measurement,
        tied=tuple(f.kernel for _, f in level if f is not winner),
        kept=winner.stored,
        finalists=order,
    )


def beats(fast: Measurement, slow: Measurement) -> bool:
    """Whether `fast` is faster than `slow` beyond the noise; both come from the same passes."""
    lead = fast.vs_cublas - slow.vs_cublas
    return lead > TIE * slow.vs_cublas and lead > 2 * math.hypot(_error(fast), _error(slow))


def _error(measured: Measurement) -> float:
    """Standard error of the median ratio."""
    return _MEDIAN * (measured.vs_p90 - measured.vs_p10) / _DECILES / math.sqrt(measured.samples)


def _rule(kernel: Kernel) -> tuple[int, tuple[int, ...]]:
    return kernel.rung(), tuple(kernel.params.values())


def _current(entry: Entry) -> Kernel | None:
    """The entry's kernel, or None where the ladder has changed since it was measured."""
    try:
        kernel = kernel_of(entry)
    except ConfigFileError:
        return None
    return kernel if entry.provenance.source_hash == source_text(kernel.source).digest else None


def _keeper(contender: Kernel | None) -> Callable[[Entry, Entry], bool]:
    """Whether a stored entry stays: only one that another process stored since may, if it is as fast."""

    def keep(stored: Entry, found: Entry) -> bool:
        kernel = _current(stored)
        return kernel is not None and kernel != contender and stored.ms <= found.ms * (1 + TIE)

    return keep
