"""Measure each rung of the ladder over sizes, in the best configuration that is known of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sgemm_tune.bench.bench import Bench, Progress
from sgemm_tune.errors import SgemmTuneError
from sgemm_tune.kernel import Kernel, stage_named
from sgemm_tune.measure.outcome import DeviceInfo, Outcome, Status
from sgemm_tune.measure.protocol import Policy
from sgemm_tune.problem import Problem
from sgemm_tune.store.configs import ConfigFile, kernel_of
from sgemm_tune.store.results import ResultsFile

LADDER_SIZES = (*range(256, 2049, 256), 4096, 8192)
"""Sizes of the two published tables: 256, 512, ..., 2048 and 512, 1024, 2048, 4096, 8192."""

LADDER_POLICY = Policy(max_seconds=4.0)
"""The lowest rungs take seconds a launch at 8192: they get the fewest samples that a median needs."""


@dataclass(frozen=True)
class Known:
    """A configuration that was measured on this device: where the ladder takes a stage's best from."""

    kernel: Kernel
    problem: Problem
    ms: float


def known_of(results: ResultsFile, config: ConfigFile | None, info: DeviceInfo) -> list[Known]:
    """Every full measurement of this device in the results and in a configuration file.

    Rows of configurations that no longer exist are passed over.

    Raises:
        ResultsFileError: the table cannot be read.
        ConfigFileError: the file's entries name no configuration.
    """
    found = []
    frame = results.frame()
    ours = (frame["device"] == info.name) & (frame["sms"] == info.sms)
    full = (frame["status"] == Status.OK.value) & ~frame["early_cut"].fillna(False)
    for line in frame[(ours & full).fillna(False)].to_dict("records"):
        try:
            kernel = stage_named(str(line["stage"])).from_params(json.loads(str(line["config"])))
        except (SgemmTuneError, ValueError):
            continue
        if math.isfinite(line["ms"]):
            problem = Problem(int(line["m"]), int(line["n"]), int(line["k"]))
            found.append(Known(kernel, problem, float(line["ms"])))
    for entry in config.entries if config is not None else ():
        if (entry.device, entry.sms) == (info.name, info.sms):
            found.append(Known(kernel_of(entry), entry.problem, entry.ms))
    return found


@dataclass(frozen=True)
class Rung:
    """One stage at one size.

    Attributes:
        tuned_at: shape that the configuration was the best of; empty for the declared default.
    """

    problem: Problem
    kernel: Kernel
    outcome: Outcome
    tuned_at: str


def best_known(stage: type[Kernel], problem: Problem, known: Iterable[Known]) -> tuple[Kernel, str]:
    """(the stage's best configuration for `problem`, shape that it was measured at or "" for the default).

    The fastest at the same shape; without one, the fastest at the shape whose work is nearest.
    """
    own = [one for one in known if type(one.kernel) is stage]
    if not own:
        return stage(), ""

    def distance(one: Known) -> tuple[float, float]:
        work, asked = max(1, one.problem.flops), max(1, problem.flops)
        return (0.0 if one.problem == problem else max(work / asked, asked / work), one.ms)

    best = min(own, key=distance)
    return best.kernel, best.problem.shape


def bench_ladder(
    bench: Bench,
    asked: Mapping[Problem, Sequence[type[Kernel]]],
    known: Sequence[Known],
    on_progress: Progress,
) -> list[Rung]:
    """Measure at each shape the best known configuration of each of its stages, each against cuBLAS alone.

    Raises:
        SgemmTuneError: as `Bench.measure`.
    """
    steps = [(problem, stage) for problem, stages in asked.items() for stage in stages]
    rungs: list[Rung] = []
    for place, (problem, stage) in enumerate(steps):
        on_progress(place, len(steps), f"{stage.name()} {problem.shape}")
        kernel, tuned_at = best_known(stage, problem, known)
        [outcome] = bench.measure(problem, [kernel])
        rungs.append(Rung(problem, kernel, outcome, tuned_at))
    on_progress(len(steps), len(steps), "")
    return rungs
