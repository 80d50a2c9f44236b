"""Does the same search find the same winner, and does the same bench say the same time?

    python benchmarks/repeatability.py --size 4096 --seeds 5 --benches 3 --json

Runs `sgemm-tune search` once per seed, each in empty folders but with the user's cache of compiled kernels in
common (`--cold`: each with an empty one), then `sgemm-tune bench` in fresh processes on every winner. At last
all distinct winners are timed together, in the same passes, as a search times its finalists: whom the fastest
does not beat by `finalists.beats` is tied with it. Times of different processes could not decide that.

Needs a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout needs no installation

from benchmarks.command import searched, sgemm_tune
from sgemm_tune.bench.bench import Bench, Gpu
from sgemm_tune.cli.gpu import open_worker
from sgemm_tune.compiler.cache import BinaryCache
from sgemm_tune.kernel import Kernel
from sgemm_tune.measure.outcome import Measurement
from sgemm_tune.measure.protocol import Policy
from sgemm_tune.problem import Problem
from sgemm_tune.search.finalists import Finalist, Verdict, decide
from sgemm_tune.store.configs import Entry, kernel_of, load_config
from sgemm_tune.store.results import ResultsFile


@dataclass(frozen=True)
class Winner:
    """What one search found, and what benches said of it.

    Attributes:
        found: its entry as the search stored it.
        told: the search's own JSON document of the result.
        bench_ms: its time in each bench.
    """

    seed: int
    found: Entry
    told: dict[str, Any]
    bench_ms: tuple[float, ...]

    @property
    def kernel(self) -> Kernel:
        """The configuration."""
        return kernel_of(self.found)

    @property
    def median_ms(self) -> float:
        """Of the benches."""
        return statistics.median(self.bench_ms)


def entry(path: Path) -> Entry:
    """The one entry of a configuration file."""
    (found,) = load_config(path).entries
    return found


def found_by(root: Path, size: int, seed: int, trials: int, cold: bool) -> tuple[Path, dict[str, Any]]:
    """Search with all files below `root`; (the file that holds the winner, what the search told).

    Raises:
        SystemExit: the search failed, or there is no GPU to measure on.
    """
    asked = ("--size", str(size), "--seed", str(seed), "--trials", str(trials))
    told = searched(*asked, folder=root, cache=root / "cubins" if cold else None)
    (file,) = (root / "configs").glob("*.yaml")
    return file, told["results"][0]


def benched(path: Path, times: int) -> tuple[float, ...]:
    """The time of a file's one entry in ms, from so many fresh processes."""
    found = []
    for _ in range(times):
        sgemm_tune("bench", "--config", str(path), "--results-dir", str(path.parent / "bench"))
        found.append(entry(path).ms)
    return tuple(found)


def last_round(gpu: Gpu, problem: Problem, kernels: Sequence[Kernel], results: Path) -> Verdict:
    """Time configurations together and decide among them as a search does."""
    outcomes = Bench(gpu, ResultsFile(results), BinaryCache(), Policy()).measure(problem, kernels)
    return decide([Finalist(k, outcome) for k, outcome in zip(kernels, outcomes, strict=True)])


def measure(size: int, seeds: int, benches: int, trials: int, cold: bool) -> dict[str, Any]:
    """Search with seeds 0, 1, ...; bench every winner in fresh processes; time all of them together."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = [found_by(folder / str(seed), size, seed, trials, cold) for seed in range(seeds)]
        winners = [
            Winner(seed, entry(file), told, benched(file, benches)) for seed, (file, told) in enumerate(found)
        ]
        distinct = list(dict.fromkeys(winner.kernel for winner in winners))
        with open_worker(0) as gpu:
            verdict = last_round(gpu, Problem.parse_size(size), distinct, folder / "last_round.csv")
    return {"size": size, "trials": trials, "cold_cache": cold, **report(winners, verdict)}


def report(winners: Sequence[Winner], verdict: Verdict) -> dict[str, Any]:
    """What differed, as a document."""
    first = winners[0].found
    timed = [place(finalist, winners, verdict) for finalist in verdict.finalists]
    return {
        "device": first.device,
        "date": first.provenance.date,
        "winners": [
            {
                "seed": winner.seed,
                "config": str(winner.kernel),
                "ms": winner.found.ms,
                "vs_cublas": winner.found.vs_cublas,
                "sm_mhz": winner.found.provenance.sm_mhz,
                "throttle": winner.found.provenance.throttle,
                "bench_ms": list(winner.bench_ms),
                "seconds": round(winner.told["seconds"], 1),
                "tied": winner.told["tied"],
            }
            for winner in winners
        ],
        "distinct_winners": len(timed),
        "last_round": timed,
        "same_winner_or_tie": all(one["level"] for one in timed),
        "spread_of_winners": round(spread([winner.median_ms for winner in winners]), 5),
        "largest_spread_of_one_winner": round(max(spread(winner.bench_ms) for winner in winners), 5),
        "largest_difference_search_bench": round(
            max(abs(winner.median_ms / winner.found.ms - 1) for winner in winners), 5
        ),
    }


def place(finalist: Finalist, winners: Sequence[Winner], verdict: Verdict) -> dict[str, Any]:
    """What became of one winner in the last round.

    `level` says that the fastest does not beat it, `behind` by how much the fastest leads it.
    """
    kernel, outcome = finalist.kernel, finalist.outcome
    document: dict[str, Any] = {
        "config": str(kernel),
        "seeds": [winner.seed for winner in winners if winner.kernel == kernel],
        "level": kernel == verdict.kernel or kernel in verdict.tied,
    }
    fastest = verdict.finalists[0].outcome
    if not isinstance(outcome, Measurement) or not isinstance(fastest, Measurement):
        return document | {"rejected": getattr(outcome, "reason", "")}
    return document | {
        "behind": round(fastest.vs_cublas / outcome.vs_cublas - 1, 5),
        "ms": outcome.ms,
        "vs_cublas": outcome.vs_cublas,
        "vs_p10": outcome.vs_p10,
        "vs_p90": outcome.vs_p90,
        "samples": outcome.samples,
    }


def spread(values: Sequence[float]) -> float:
    """(max - min) / median."""
    return (max(values) - min(values)) / statistics.median(values)


def show(found: dict[str, Any]) -> None:
    """Print a summary."""
    for winner in found["winners"]:
        times = ", ".join(f"{ms:.5g}" for ms in winner["bench_ms"])
        print(f"seed {winner['seed']}: {winner['config']} {winner['ms']:.5g} ms, bench {times} ms")
    print("timed together:")
    for one in found["last_round"]:
        seeds = ", ".join(str(seed) for seed in one["seeds"])
        behind = one.get("rejected") or f"{100 * one['behind']:.2f} % behind"
        print(f"  {one['config']} (seed {seeds}): {behind}, {'level' if one['level'] else 'beaten'}")
    held = "all level" if found["same_winner_or_tie"] else "not all level"
    print(f"{found['distinct_winners']} distinct winners, {held}")
    print(
        f"{100 * found['spread_of_winners']:.2f} % between winners, at most "
        f"{100 * found['largest_spread_of_one_winner']:.2f} % between benches of one, at most "
        f"{100 * found['largest_difference_search_bench']:.2f} % between search and bench"
    )


def main() -> None:
    """Parse the command line and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--benches", type=int, default=3)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--cold", action="store_true", help="every search compiles all it needs itself")
    parser.add_argument("--json", action="store_true", help="the whole object instead of a summary")
    given = parser.parse_args()
    found = measure(given.size, given.seeds, given.benches, given.trials, given.cold)
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)


if __name__ == "__main__":
    main()
