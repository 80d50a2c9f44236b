"""Measure a suite's shapes with the configurations of a file, and say which goals are reached."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sgemm_tune.bench.bench import Bench, Progress
from sgemm_tune.bench.suite_file import Suite
from sgemm_tune.errors import ConfigFileError
from sgemm_tune.kernel import Kernel
from sgemm_tune.measure.cublaslt import CublasLtTime
from sgemm_tune.measure.outcome import DeviceInfo, Measurement, Outcome, Rejected
from sgemm_tune.problem import Precision, Problem
from sgemm_tune.store.configs import ConfigFile, kernel_of, nearest_entries


@dataclass(frozen=True)
class Goal:
    """A ratio cuBLAS time / ours that is to be reached.

    Attributes:
        what: the shape, group or suite that it is about.
        wanted: the ratio.
        found: what was measured; None where something is missing that it depends on.
    """

    what: str
    wanted: float
    found: float | None

    @property
    def reached(self) -> bool:
        """Whether the ratio that was found is at least the one that was wanted."""
        return self.found is not None and self.found >= self.wanted


@dataclass(frozen=True)
class SuiteRow:
    """One shape.

    Attributes:
        problem: the shape.
        kernel: the configuration that was measured.
        tuned_at: the shape that it is stored for.
        outcome: what it is on this GPU now.
        cublaslt: the best of cublasLt's heuristics beside it; None where the configuration itself failed.
        wanted: the shape's goal.
    """

    problem: Problem
    kernel: Kernel
    tuned_at: Problem
    outcome: Outcome
    cublaslt: CublasLtTime | Rejected | None
    wanted: float

    @property
    def borrowed(self) -> bool:
        """Whether the configuration is another shape's, because none is stored for this one."""
        return self.tuned_at != self.problem

    @property
    def ratio(self) -> float | None:
        """cuBLAS time / ours, the median of pairs; None where nothing was measured."""
        return self.outcome.vs_cublas if isinstance(self.outcome, Measurement) else None

    @property
    def goal(self) -> Goal:
        """The shape's goal."""
        return Goal(self.problem.shape, self.wanted, self.ratio)


@dataclass(frozen=True)
class GroupResult:
    """One group of a suite.

    Attributes:
        name: of the group.
        rows: its shapes, in the suite's order.
        wanted: goal of the geometric mean; None: the group has none.
    """

    name: str
    rows: tuple[SuiteRow, ...]
    wanted: float | None

    @property
    def geometric_mean(self) -> float | None:
        """Of the ratios cuBLAS time / ours; None unless every shape was measured."""
        ratios = [row.ratio for row in self.rows if row.ratio is not None]
        return statistics.geometric_mean(ratios) if len(ratios) == len(self.rows) else None

    @property
    def minimum(self) -> float | None:
        """The lowest of the ratios; None unless every shape was measured."""
        return _lowest(self.rows)

    @property
    def goal(self) -> Goal | None:
        """That of the geometric mean, if the group has one."""
        return None if self.wanted is None else Goal(self.name, self.wanted, self.geometric_mean)


@dataclass(frozen=True)
class SuiteResult:
    """A whole suite on one GPU.

    Attributes:
        suite: name of the suite.
        info: the GPU.
        precision: of ours and of the baseline.
        groups: in the suite's order.
        wanted: goal of the slowest shape of all.
    """

    suite: str
    info: DeviceInfo
    precision: Precision
    groups: tuple[GroupResult, ...]
    wanted: float

    @property
    def rows(self) -> list[SuiteRow]:
        """Every shape, in the suite's order."""
        return [row for group in self.groups for row in group.rows]

    @property
    def minimum(self) -> Goal:
        """That no shape of any group is below `wanted`."""
        return Goal("all shapes", self.wanted, _lowest(self.rows))

    @property
    def goals(self) -> list[Goal]:
        """One per shape, one per group with a goal of its own, and `minimum`."""
        own = [group.goal for group in self.groups if group.goal is not None]
        return [*(row.goal for row in self.rows), *own, self.minimum]

    @property
    def failed(self) -> bool:
        """Whether a shape got no time: its configuration is wrong, or cannot be compiled or run."""
        return any(row.ratio is None for row in self.rows)


def bench_suite(bench: Bench, suite: Suite, config: ConfigFile, on_progress: Progress) -> SuiteResult:
    """Measure each shape of a suite in its stored configuration, or else in that of the nearest stored shape.

    The file that `config` was read from stays as it is.

    Raises:
        ConfigFileError: nothing is stored for this device and precision, or an entry names no configuration.
        SgemmTuneError: as `Bench.measure`.
    """
    info = bench.gpu.info
    chosen = {
        problem: _chosen(config, info, suite.precision, problem)
        for group in suite.groups
        for problem in group.problems
    }
    measured: dict[Problem, tuple[Outcome, CublasLtTime | Rejected | None]] = {}
    for place, (problem, (kernel, _)) in enumerate(chosen.items()):
        on_progress(place, len(chosen), f"{suite.precision} {problem.shape}")
        [outcome] = bench.measure(problem, [kernel])
        right = isinstance(outcome, Measurement)
        measured[problem] = outcome, bench.best_of_cublaslt(problem, kernel) if right else None
    on_progress(len(chosen), len(chosen), "")
    groups = tuple(
        GroupResult(
            group.name,
            tuple(SuiteRow(p, *chosen[p], *measured[p], group.goal) for p in group.problems),
            group.geometric_mean,
        )
        for group in suite.groups
    )
    return SuiteResult(suite.name, info, suite.precision, groups, suite.minimum)


def _chosen(
    config: ConfigFile, info: DeviceInfo, precision: Precision, problem: Problem
) -> tuple[Kernel, Problem]:
    """(configuration to measure, the shape that it is stored for).

    None is borrowed whose stage does not suit the shape, as long as there is another.
    """
    nearest = nearest_entries(config, info.name, info.sms, precision, problem)
    if not nearest:
        raise ConfigFileError(
            f"no {precision} configuration is stored for {info.name} with {info.sms} SMs: "
            f"run `sgemm-tune search --precision {precision}` first, or give another --config"
        )
    for entry in nearest:
        kernel = kernel_of(entry)
        if entry.problem == problem or kernel.suits(problem):
            return kernel, entry.problem
    return kernel_of(nearest[0]), nearest[0].problem


def _lowest(rows: Sequence[SuiteRow]) -> float | None:
    ratios = [row.ratio for row in rows if row.ratio is not None]
    return min(ratios) if len(ratios) == len(rows) else None
