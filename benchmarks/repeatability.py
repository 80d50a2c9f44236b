"""Does the same search find the same winner, and does the same bench say the same time?

    python benchmarks/repeatability.py --size 4096 --seeds 5 --benches 3 --json

Runs `sgemm-tune search` once per seed, each with folders of its own and compiled kernels in common, then
`sgemm-tune bench` in fresh processes on every winner, all winners in one file, and prints what differed.
Needs a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml


def sgemm_tune(*arguments: str) -> Any:
    """The JSON document that a command prints.

    Raises:
        SystemExit: the command failed.
    """
    command = [sys.executable, "-m", "sgemm_tune", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr[-500:]}")
    return json.loads(done.stdout)


def entry(path: Path) -> dict[str, Any]:
    """The one entry of a configuration file."""
    (found,) = yaml.safe_load(path.read_text(encoding="utf-8"))["entries"]
    return dict(found)


def label(found: dict[str, Any]) -> str:
    """`stage(BM=128, ...)` of an entry."""
    return f"{found['stage']}({', '.join(f'{name}={value}' for name, value in found['params'].items())})"


def spread(values: list[float]) -> float:
    """(max - min) / median."""
    return (max(values) - min(values)) / statistics.median(values)


def measure(size: int, seeds: int, benches: int, trials: int) -> dict[str, Any]:
    """Search with seeds 0, 1, ...; then time every winner `benches` times in fresh processes."""
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for seed in range(seeds):
            root = Path(folder) / str(seed)
            places = ("--configs-dir", str(root / "configs"), "--results-dir", str(root / "results"))
            size_and_seed = ("--size", str(size), "--seed", str(seed), "--trials", str(trials))
            sgemm_tune("search", *size_and_seed, *places)
            (found,) = (root / "configs").glob("*.yaml")
            files.append(found)
        winners = [entry(file) for file in files]
        again: list[list[float]] = []
        for file in files:
            times = []
            for _ in range(benches):
                sgemm_tune("bench", "--config", str(file), "--results-dir", str(Path(folder) / "bench"))
                times.append(float(entry(file)["ms"]))
            again.append(times)
    found_ms = [float(winner["ms"]) for winner in winners]
    medians = [statistics.median(times) for times in again]
    return {
        "size": size,
        "trials": trials,
        "device": winners[0]["device"],
        "date": winners[0]["provenance"]["date"],
        "winners": [
            {
                "seed": seed,
                "config": label(winner),
                "ms": ms,
                "vs_cublas": winner["vs_cublas"],
                "bench_ms": times,
            }
            for seed, (winner, ms, times) in enumerate(zip(winners, found_ms, again, strict=True))
        ],
        "distinct_winners": len({label(winner) for winner in winners}),
        "spread_of_winners": round(spread(medians), 5),
        "largest_spread_of_one_winner": round(max(spread(times) for times in again), 5),
        "largest_difference_search_bench": round(
            max(abs(median / ms - 1) for median, ms in zip(medians, found_ms, strict=True)), 5
        ),
    }


def main() -> None:
    """Parse the command line and print the object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--benches", type=int, default=3)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="the whole object instead of a summary")
    given = parser.parse_args()
    found = measure(given.size, given.seeds, given.benches, given.trials)
    if given.json:
        print(json.dumps(found, indent=2))
        return
    for winner in found["winners"]:
        print(f"seed {winner['seed']}: {winner['config']} {winner['ms']:.4g} ms, bench {winner['bench_ms']}")
    print(f"{found['distinct_winners']} distinct winners, {100 * found['spread_of_winners']:.2f} % apart")


if __name__ == "__main__":
    main()
