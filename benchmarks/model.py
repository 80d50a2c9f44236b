"""Checks the static model against a table of measured configurations of this project, without a GPU.

    python benchmarks/model.py results/exhaustive_h200_4096.csv.gz

The table is of the form that `replay_table.py` writes. Printed are, over all of it and per stage, Spearman's
rank correlation between predicted and measured time, and the fastest of the model's first 4, 16 and 64
configurations as a multiple of the fastest measured: ties that straddle the last place are taken against the
model, and in brackets in its favour. Configurations that failed take no part.

A prediction knows no compiler, as where a search starts from it. With --registers-from, a second one is given
the registers that rows of results name. --seeds replays that many searches that start from the prediction,
each with the table's rows in another order: equal predictions come in the order of the rows, which is chance.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout needs no installation

from benchmarks.replay import Table, read_table, replay, summary
from benchmarks.replay_table import STAGE, read_results
from sgemm_tune.arch import Arch, parse_arch
from sgemm_tune.kernel import Kernel, stage_named
from sgemm_tune.model.predict import predict
from sgemm_tune.problem import Problem
from sgemm_tune.search.space import Point, Space

Floats = npt.NDArray[np.float64]
Figures = dict[str, object]

FIRST = (4, 16, 64)
"""How many of the model's favourites are looked at."""

H200 = {"sms": 132, "mhz": 1980.0, "l2_bytes": 62914560, "gbytes_per_s": 4814.3}
"""What `DeviceInfo` says of one: multiprocessors, MHz, bytes, GB/s."""


def kernel_at(point: Point, arch: Arch) -> Kernel:
    """The configuration that a table's point stands for.

    Raises:
        ValueError: the point names no stage, or is not legal on `arch`.
        UnknownName: there is no such stage.
        IllegalConfiguration: the stage does not have these values.
    """
    if STAGE not in point:
        raise ValueError("the table's configurations are not this project's: there is no column stage")
    params = {name: value for name, value in point.items() if name != STAGE}
    kernel = stage_named(str(point[STAGE])).from_params(params)
    if broken := kernel.violations(arch):
        raise ValueError(f"{kernel} is not legal on {arch.name}: {'; '.join(broken)}")
    return kernel


def registers_of(paths: Sequence[Path]) -> dict[str, int]:
    """Registers per thread by configuration, of the rows that know them; of two rows the later one counts.

    Raises:
        OSError, ValueError: as `read_results`.
    """
    found: dict[str, int] = {}
    for path in paths:
        for row in read_results(path):
            # 0: the compiler answered from a cache of its own, without a log
            if row.get("registers", "") not in ("", "0"):
                found[_key(row[STAGE], json.loads(row["config"]))] = int(row["registers"])
    return found


def predictions(
    points: Sequence[Point],
    problem: Problem,
    arch: Arch,
    device: Mapping[str, float],
    registers: Mapping[str, int] | None = None,
) -> Floats:
    """Predicted ms per point; infinite where no block fits on an SM.

    Args:
        points: configurations, their stage among their names.
        problem: the shape.
        arch: what they were compiled for.
        device: `sms`, `mhz`, `l2_bytes` and `gbytes_per_s`, as `predict` takes them.
        registers: of `registers_of`; the model estimates those of other configurations.

    Raises:
        ValueError, UnknownName, IllegalConfiguration: as `kernel_at`.
    """
    known = registers or {}
    out = []
    for point in points:
        kernel = kernel_at(point, arch)
        found = predict(
            kernel,
            problem,
            arch,
            registers=known.get(_key(kernel.name(), kernel.params)),
            sms=int(device["sms"]),
            mhz=device["mhz"],
            l2_bytes=int(device["l2_bytes"]),
            gbytes_per_s=device["gbytes_per_s"],
        )
        out.append(found.ms)
    return np.array(out)


def spearman(a: Floats, b: Floats) -> float | None:
    """Spearman's rank correlation, equal values sharing a rank; None where it is not defined."""
    import pandas as pd

    if len(a) < 2 or np.all(a == a[0]) or np.all(b == b[0]):
        return None
    return float(pd.Series(a).rank().corr(pd.Series(b).rank()))


def best_of_first(predicted: Floats, measured: Floats, count: int) -> tuple[float, float]:
    """The fastest of the `count` that are predicted to be fastest, as a multiple of the fastest of all.

    Returns:
        With ties at the last place taken against the prediction, and in its favour.
    """
    if count >= len(predicted):
        return 1.0, 1.0
    last = np.partition(predicted, count - 1)[count - 1]
    sure = measured[predicted < last]
    tied = np.sort(measured[predicted == last])
    room = count - len(sure)
    best = sure.min(initial=np.inf)
    low = measured.min()
    return float(min(best, tied[-room]) / low), float(min(best, tied[0]) / low)


def figures(stages: Sequence[str], predicted: Floats, measured: Floats) -> Figures:
    """What is printed of one prediction: all rows under `all`, then per stage and for the fastest tenth.

    Args:
        stages: per row.
        predicted: ms.
        measured: ms; NaN where the configuration failed.
    """
    timed = np.isfinite(measured)
    names = np.array(stages)
    fastest = timed & (measured <= np.nanquantile(measured, 0.1))
    parts = {"all": timed, "fastest tenth": fastest}
    parts |= {name: timed & (names == name) for name in dict.fromkeys(stages)}
    out: Figures = {}
    for name, mask in parts.items():
        p, t = predicted[mask], measured[mask]
        if not len(t):
            continue
        firsts = {str(n): [round(x, 4) for x in best_of_first(p, t, n)] for n in FIRST}
        rho = spearman(p, t)
        out[name] = {
            "configurations": len(t),
            "spearman": None if rho is None else round(rho, 4),
            "best_of_first": firsts,
            "predicted_over_measured": round(float(np.median(p / t)), 4),
        }
    return out


def _key(stage: str, params: Mapping[str, object]) -> str:
    return json.dumps([stage, sorted(params.items())])


def _shown(found: Figures, title: str) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable

    shown = RichTable(title=title)
    shown.add_column("configurations", no_wrap=True, overflow="fold")
    for name in ("number", "Spearman", *(f"first {n}" for n in FIRST), "predicted / measured"):
        shown.add_column(name)
    for name, part in found.items():
        assert isinstance(part, dict)
        rho = "" if part["spearman"] is None else f"{part['spearman']:.3f}"
        firsts = [f"{worse:.3f} ({better:.3f})" for worse, better in part["best_of_first"].values()]
        ratio = f"{part['predicted_over_measured']:.2f}"
        shown.add_row(name, str(part["configurations"]), rho, *firsts, ratio)
    Console().print(shown)


def _rows(table: Table, places: Sequence[int]) -> Table:
    """Some of the table's rows, in this order."""
    times = tuple(table.times[place] for place in places)
    return Table(table.name, Space.of(table.space.points[place] for place in places), times)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("table", type=Path, help="as replay_table.py writes it")
    parser.add_argument("--shape", default="4096x4096x4096", help="MxNxK of its times (4096x4096x4096)")
    parser.add_argument("--arch", default="sm_90", help="what was compiled for (sm_90)")
    parser.add_argument("--sms", type=int, default=H200["sms"], help="multiprocessors (an H200's)")
    parser.add_argument("--mhz", type=float, default=H200["mhz"], help="SM clock (an H200's)")
    parser.add_argument("--l2-bytes", type=int, default=H200["l2_bytes"], help="L2 cache (an H200's)")
    parser.add_argument("--gbytes-per-s", type=float, default=H200["gbytes_per_s"], help="(an H200's)")
    parser.add_argument("--without", nargs="*", default=[], metavar="STAGE", help="stages to leave out")
    parser.add_argument("--registers-from", type=Path, nargs="*", default=[], metavar="RESULTS")
    parser.add_argument("--seeds", type=int, default=0, help="searches to replay from the prediction (0)")
    parser.add_argument("--ahead", type=int, default=1, help="their trials under way at a time (1)")
    parser.add_argument("--budget", type=int, default=400, help="their evaluations at most (400)")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads the command line, predicts, prints; returns the exit code."""
    from sgemm_tune.errors import SgemmTuneError
    from sgemm_tune.search.samplers import DEFAULT_SAMPLER

    parser = _parser()
    args = parser.parse_args(arguments)
    if args.seeds < 0 or min(args.budget, args.ahead, args.sms, args.mhz) < 1:
        parser.error("--budget, --ahead, --sms and --mhz must be at least 1, --seeds at least 0")
    device = {name: getattr(args, name) for name in H200}
    out: Figures = {"table": args.table.name}
    try:
        problem, arch = Problem.parse_shape(args.shape), parse_arch(args.arch)
        table = read_table(args.table)
        table = _rows(
            table, [i for i, point in enumerate(table.space.points) if point.get(STAGE) not in args.without]
        )
        points, times = table.space.points, np.array(table.times)
        if not np.isfinite(times).any():
            raise ValueError("no configuration with a time is left")
        stages = [str(point.get(STAGE)) for point in points]
        predicted = predictions(points, problem, arch, device)
        out["without registers"] = figures(stages, predicted, times)
        if args.registers_from:
            known = registers_of(args.registers_from)
            out["with registers"] = figures(stages, predictions(points, problem, arch, device, known), times)
        if args.seeds:
            runs = []
            for seed in range(args.seeds):
                order = np.random.default_rng(seed).permutation(len(points)).tolist()
                mixed = _rows(table, order)
                expected = predicted[order].tolist()
                runs.append(
                    replay(mixed, DEFAULT_SAMPLER, seed, args.budget, ahead=args.ahead, prior=expected)
                )
            out["search"] = summary(table, DEFAULT_SAMPLER, args.budget, runs)
    except (OSError, ValueError, SgemmTuneError) as error:
        print(f"model: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(out))
        return 0
    for name in ("without registers", "with registers"):
        part = out.get(name)
        if isinstance(part, dict):
            _shown(part, f"{table.name}, {name}")
    if args.seeds:
        print(f"searches that start from the prediction: {json.dumps(out['search'])}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
