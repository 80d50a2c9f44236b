"""Measure what is stored: the entries and predictions of a configuration file.

Everything is validated before its time counts, timed interleaved with cuBLAS, and validated again; each row
is on the disk before the next measurement starts. Prints nothing: callers learn of progress through
`on_progress`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sgemm_tune.arch import Arch, parse_arch
from sgemm_tune.compiler.cache import BinaryCache
from sgemm_tune.compiler.nvrtc import Binary, compile_kernel
from sgemm_tune.compiler.sources import source_text
from sgemm_tune.errors import CompileError, ConfigFileError
from sgemm_tune.kernel import Kernel
from sgemm_tune.measure.cublaslt import CublasLtTime
from sgemm_tune.measure.outcome import DeviceInfo, Measurement, Origin, Outcome, Rejected, Status
from sgemm_tune.measure.protocol import Policy, Request
from sgemm_tune.problem import Precision, Problem
from sgemm_tune.search.finalists import Finalist, decide
from sgemm_tune.store.configs import (
    ConfigFile,
    Entry,
    PredictedEntry,
    kernel_of,
    load_config,
    measured_entry,
    promote,
)
from sgemm_tune.store.results import ResultsFile, row

Progress = Callable[[int, int, str], None]
"""Called as (steps done, steps in all, what comes next)."""


class Gpu(Protocol):
    """What measuring needs; `measure.worker.GpuWorker` has it."""

    @property
    def info(self) -> DeviceInfo:
        """Which GPU this is."""

    def compare(self, requests: Sequence[Request]) -> list[Outcome]:
        """Validate and time candidates of one problem together, interleaved with cuBLAS."""

    def best_of_cublaslt(self, request: Request) -> CublasLtTime | Rejected:
        """The best of cublasLt's heuristics beside a candidate that was found right."""


class Bench:
    """Where measurements are made and kept.

    Args:
        gpu: measures.
        results: takes a row per measurement.
        cache: of compiled kernels.
        policy: how to measure.

    Attributes:
        row_ids: of the rows that were stored, in their order.
    """

    def __init__(self, gpu: Gpu, results: ResultsFile, cache: BinaryCache, policy: Policy) -> None:
        self.gpu = gpu
        self.policy = policy
        self.row_ids: list[str] = []
        self.results = results
        self._cache = cache

    def measure(self, problem: Problem, kernels: Sequence[Kernel]) -> list[Outcome]:
        """Compile, validate and time configurations of one problem and precision together; store their rows.

        Raises:
            SgemmTuneError: the baseline cannot be trusted, the GPU is lost, or a row cannot be stored.
        """
        info = self.gpu.info
        arch = parse_arch(info.arch)
        compiled = [self._compile(kernel, arch) for kernel in kernels]
        fit = [
            Request(kernel, binary, problem, self.policy)
            for kernel, binary in zip(kernels, compiled, strict=True)
            if isinstance(binary, Binary)
        ]
        measured = iter(self.gpu.compare(fit))
        outcomes = [found if isinstance(found, Rejected) else next(measured) for found in compiled]
        rows = [
            row(
                problem,
                kernel.precision,
                kernel,
                outcome,
                info,
                origin=Origin.BENCH,
                seed=self.policy.seed,
                binary=binary if isinstance(binary, Binary) else None,
            )
            for kernel, outcome, binary in zip(kernels, outcomes, compiled, strict=True)
        ]
        self.results.append(rows)
        self.row_ids += [str(stored["row_id"]) for stored in rows]
        return outcomes

    def best_of_cublaslt(self, problem: Problem, kernel: Kernel) -> CublasLtTime | Rejected:
        """The best of cublasLt's heuristics, timed beside a configuration that `measure` found right.

        Raises:
            SgemmTuneError: the GPU is lost.
        """
        binary = self._compile(kernel, parse_arch(self.gpu.info.arch))
        if isinstance(binary, Rejected):
            return binary
        return self.gpu.best_of_cublaslt(Request(kernel, binary, problem, self.policy))

    def _compile(self, kernel: Kernel, arch: Arch) -> Binary | Rejected:
        broken = kernel.violations(arch)
        if broken:
            return Rejected(Status.RULES, "; ".join(broken))
        try:
            return compile_kernel(kernel, arch, self._cache)
        except CompileError as error:
            return Rejected(Status.COMPILE, str(error))


@dataclass(frozen=True)
class Remeasured:
    """A stored configuration, measured again.

    Attributes:
        stored: what the file said.
        kernel: its configuration.
        outcome: what it is on this GPU now.
        flags: why the stored figures may not hold here: another device, a kernel that changed since.
    """

    stored: Entry | PredictedEntry
    kernel: Kernel
    outcome: Outcome
    flags: tuple[str, ...]

    @property
    def failed(self) -> bool:
        """Whether this must not pass in silence: an entry without a time, or anything with a wrong result."""
        if isinstance(self.stored, Entry):
            return not isinstance(self.outcome, Measurement)
        return self.outcome.status is Status.WRONG


def read_for(path: Path, arch: Arch | None = None) -> ConfigFile:
    """Read a file for measuring: every entry must name a legal configuration.

    Args:
        path: the file.
        arch: what the GPU is; None: not known yet.

    Raises:
        ConfigFileError: it cannot be read, breaks the schema, names no configuration, or is another
            architecture's.
    """
    config = load_config(path)
    for entry in _stored(config):
        kernel_of(entry)
    if arch is not None and config.arch != arch.name:
        raise ConfigFileError(
            f"{path}: arch: is {config.arch} and this GPU is {arch.name}: give configs/{arch.config}.yaml"
        )
    return config


def bench_file(bench: Bench, path: Path, on_progress: Progress) -> list[Remeasured]:
    """Measure every entry and prediction of a file again, then bring the file up to date.

    An entry of this device gets its fresh figures. The best of a shortlist becomes an entry of this device
    unless the one that stands is as fast, and the shortlist goes. A configuration that fails stays as it is.

    Raises:
        ConfigFileError: as `read_for`.
        SgemmTuneError: as `Bench.measure`.
    """
    arch = parse_arch(bench.gpu.info.arch)
    config = read_for(path, arch)
    groups = _grouped(_stored(config))
    found: list[Remeasured] = []
    for place, ((problem, precision), stored) in enumerate(groups.items()):
        on_progress(place, len(groups), f"{precision} {problem.shape}")
        kernels = [kernel_of(entry) for entry in stored]
        distinct = list(dict.fromkeys(kernels))
        outcomes = dict(zip(distinct, bench.measure(problem, distinct), strict=True))
        again = [
            Remeasured(entry, kernel, outcomes[kernel], _flags(entry, kernel, bench.gpu.info))
            for entry, kernel in zip(stored, kernels, strict=True)
        ]
        _update(bench, path, arch, problem, again)
        found += again
    on_progress(len(groups), len(groups), "")
    return found


def _stored(config: ConfigFile) -> list[Entry | PredictedEntry]:
    return [*config.entries, *config.predicted]


def _grouped(
    entries: Iterable[Entry | PredictedEntry],
) -> dict[tuple[Problem, Precision], list[Entry | PredictedEntry]]:
    groups: dict[tuple[Problem, Precision], list[Entry | PredictedEntry]] = {}
    for entry in entries:
        groups.setdefault((entry.problem, entry.precision), []).append(entry)
    return groups


def _flags(stored: Entry | PredictedEntry, kernel: Kernel, info: DeviceInfo) -> tuple[str, ...]:
    flags = []
    if stored.provenance.source_hash != source_text(kernel.source).digest:
        flags.append("the kernel changed since it was stored")
    if isinstance(stored, Entry) and not _is_of(stored, info):
        flags.append(f"stored on {stored.device} with {stored.sms} SMs")
    if isinstance(stored, PredictedEntry) and stored.sms != info.sms:
        flags.append(f"predicted for {stored.board} with {stored.sms} SMs")
    return tuple(flags)


def _update(bench: Bench, path: Path, arch: Arch, problem: Problem, again: Sequence[Remeasured]) -> None:
    """Store the winner among this device's entry and the predictions, which are an open question no more."""
    info = bench.gpu.info
    contenders: dict[Kernel, Finalist] = {}
    predictions = []
    for one in again:
        if isinstance(one.stored, PredictedEntry):
            predictions.append(one.stored)
            contenders.setdefault(one.kernel, Finalist(one.kernel, one.outcome))
        elif _is_of(one.stored, info):
            contenders[one.kernel] = Finalist(one.kernel, one.outcome, stored=True)
    verdict = decide(list(contenders.values()))
    if verdict.kernel is not None and verdict.measurement is not None:
        entry = measured_entry(problem, verdict.kernel, verdict.measurement, info, bench.policy.seed)
        promote(path, arch, [entry], predictions)


def _is_of(entry: Entry, info: DeviceInfo) -> bool:
    return (entry.device, entry.sms) == (info.name, info.sms)
