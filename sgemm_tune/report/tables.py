"""The report's figures, computed from the table of results alone.

Everything here works on the rows of one device; precisions never share a row, a factor or a ratio except
where a column says so. What was cut early, rejected or predicted is never a measured figure.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sgemm_tune.kernel import ladder
from sgemm_tune.measure.outcome import Origin, Status

if TYPE_CHECKING:
    import pandas as pd

SMALL_SIZES = tuple(range(256, 2049, 256))
LARGE_SIZES = (512, 1024, 2048, 4096, 8192)
STEP_SIZE = 4096
CUBLAS = "cuBLAS"
PREDICTIONS_SHOWN = 5

_CANDIDATE = ["precision", "m", "n", "k", "stage", "config"]


def measured_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Validated measurements in full, the latest of each candidate and source, slowest rung first."""
    good = frame[
        (frame["status"] == Status.OK.value)
        & frame["source"].isin([Origin.SEARCH.value, Origin.BENCH.value])
        & ~frame["early_cut"].fillna(False)
        & (frame["ms"] > 0)
    ]
    return _latest(good, [*_CANDIDATE, "source"])


def predicted_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Predictions, the latest of each candidate."""
    good = frame[
        (frame["status"] == Status.PREDICTED.value)
        & (frame["source"] == Origin.PREDICTED.value)
        & (frame["predicted_ms"] > 0)
    ]
    return _latest(good, _CANDIDATE)


def _latest(rows: pd.DataFrame, candidate: Sequence[str]) -> pd.DataFrame:
    """The newest row of each candidate of each device: a repeated measurement is no second chance."""
    newest = rows.sort_values("date", kind="stable").drop_duplicates(
        ["device", "sms", *candidate], keep="last"
    )
    return newest.assign(_rung=newest["stage"].map(_rungs(newest["stage"].dropna())))


def _rungs(stages: Iterable[str]) -> dict[str, int]:
    """Each stage's place; those that are no longer on the ladder come last, by name."""
    known = {stage.name(): stage.rung() for stage in ladder()}
    gone = {name: 1000 + i for i, name in enumerate(sorted(set(stages) - set(known)))}
    return known | gone


def ladder_rows(measured: pd.DataFrame) -> pd.DataFrame:
    """The best row of each precision, stage and square size; from `bench` where it has measured any.

    Returns:
        The rows of `measured` with a column `size`, in the ladder's order.
    """
    square = measured[(measured["m"] == measured["n"]) & (measured["n"] == measured["k"])]
    square = square.assign(size=square["m"], _search=square["source"] != Origin.BENCH.value)
    best = square.sort_values(["_search", "ms"], kind="stable").drop_duplicates(
        ["precision", "stage", "size"]
    )
    return best.sort_values(["precision", "_rung", "size"], kind="stable").reset_index(drop=True)


def gflops_by_size(rows: pd.DataFrame) -> pd.DataFrame:
    """Table 1: GFLOP/s per stage and size, a cuBLAS row per precision; `rows` from `ladder_rows`.

    Returns:
        Columns precision, kernel and one per size that was measured, named by it; no rows if none was.
    """
    import pandas as pd

    small = rows[rows["size"].isin(SMALL_SIZES)]
    sizes = sorted(int(size) for size in small["size"].unique())
    lines: list[dict[str, Any]] = []
    for precision, group in small.groupby("precision", sort=True):
        for stage in group["stage"].unique():
            own = group[group["stage"] == stage].set_index("size")["tflops"]
            lines.append({"precision": precision, "kernel": stage, **_by_size(own * 1000, sizes)})
        baseline = cublas_tflops(group)
        lines.append({"precision": precision, "kernel": CUBLAS, **_by_size(baseline * 1000, sizes)})
    return pd.DataFrame(lines, columns=["precision", "kernel", *(str(size) for size in sizes)])


def cublas_tflops(rows: pd.DataFrame) -> pd.Series[float]:
    """cuBLAS TFLOP/s by size in one precision: of the median of its times beside the rungs."""
    times = rows.dropna(subset=["cublas_ms"]).groupby("size")["cublas_ms"].median()
    sizes = times.index.to_series().astype("float64")
    return 2 * sizes**3 / (times * 1e9)


def _by_size(values: pd.Series[float], sizes: Sequence[int]) -> dict[str, float]:
    return {str(size): float(values.get(size, float("nan"))) for size in sizes}


def against_cublas(rows: pd.DataFrame) -> pd.DataFrame:
    """Table 2: time and rate per stage and size beside cuBLAS in the same precision.

    A stage of another precision than fp32 also gets the ratio to cuBLAS fp32, where an fp32 stage was
    measured at that size by the same command.

    Args:
        rows: from `ladder_rows`.
    """
    large = rows[rows["size"].isin(LARGE_SIZES)]
    table = large[["precision", "stage", "size", "ms", "tflops", "cublas_ms", "cublas_tflops"]].copy()
    table["% of cuBLAS"] = 100 * large["vs_cublas"]
    if (large["precision"] != "fp32").any():
        strict = large[(large["precision"] == "fp32") & large["cublas_ms"].notna()]
        newest = strict.sort_values("date", kind="stable").drop_duplicates(["size", "source"], keep="last")
        reference = newest.set_index(["size", "source"])["cublas_ms"]
        other = large["precision"] != "fp32"
        keys = zip(large["size"], large["source"], strict=True)
        found = [float(reference.get(key, float("nan"))) for key in keys]
        table["% of cuBLAS fp32"] = (100 * (found / large["ms"])).where(other)
    table["source"] = large["source"]
    return table.rename(
        columns={
            "tflops": "TFLOP/s",
            "cublas_ms": "cuBLAS ms",
            "cublas_tflops": "cuBLAS TFLOP/s",
        }
    ).reset_index(drop=True)


def steps(rows: pd.DataFrame) -> pd.DataFrame:
    """The step from each rung to the next of its precision, at 4096 or the largest size of both.

    Args:
        rows: from `ladder_rows`.
    """
    import pandas as pd

    lines: list[dict[str, Any]] = []
    for precision, group in rows.groupby("precision", sort=True):
        rates = {
            str(stage): own.set_index("size")["tflops"] for stage, own in group.groupby("stage", sort=False)
        }
        stages = list(rates)
        for below, above in itertools.pairwise(stages):
            common = set(rates[below].index) & set(rates[above].index)
            if not common:
                continue
            size = STEP_SIZE if STEP_SIZE in common else max(common)
            slow, fast = float(rates[below][size]), float(rates[above][size])
            lines.append(
                {
                    "precision": precision,
                    "from": below,
                    "to": above,
                    "size": int(size),
                    "from TFLOP/s": slow,
                    "to TFLOP/s": fast,
                    "factor": fast / slow,
                }
            )
    columns = ["precision", "from", "to", "size", "from TFLOP/s", "to TFLOP/s", "factor"]
    return pd.DataFrame(lines, columns=columns)


def best_per_shape(measured: pd.DataFrame) -> pd.DataFrame:
    """The fastest candidate of each precision and shape, by its latest measurement."""
    # a candidate measured by both commands counts once, with the newer figure
    latest = measured.sort_values("date", kind="stable").drop_duplicates(_CANDIDATE, keep="last")
    best = latest.sort_values(["ms", "_rung", "config"], kind="stable").drop_duplicates(
        ["precision", "m", "n", "k"]
    )
    best = best.sort_values(["precision", "m", "n", "k"], kind="stable")
    table = best[["precision"]].copy()
    table["shape"] = shapes(best)
    table["stage"] = best["stage"]
    table["config"] = best["config"].map(readable_config)
    table["ms"] = best["ms"]
    table["TFLOP/s"] = best["tflops"]
    table["% of cuBLAS"] = 100 * best["vs_cublas"]
    table["error"] = best["error"]
    table["bound"] = best["error_bound"]
    table["throttled"] = best["throttled"].map({True: "yes", False: "no"})
    table["source"] = best["source"]
    table["date"] = best["date"].str.slice(0, 10)
    return table.reset_index(drop=True)


def shortlist(predicted: pd.DataFrame) -> pd.DataFrame:
    """The most promising predictions of each precision and shape; every row is marked `predicted`."""
    shape = ["precision", "m", "n", "k"]
    ordered = predicted.sort_values([*shape, "predicted_ms", "config"], kind="stable")
    ordered = ordered.assign(rank=ordered.groupby(shape).cumcount() + 1)
    ordered = ordered[ordered["rank"] <= PREDICTIONS_SHOWN]
    table = ordered[["precision"]].copy()
    table["shape"] = shapes(ordered)
    table["rank"] = ordered["rank"]
    table["stage"] = ordered["stage"]
    table["config"] = ordered["config"].map(readable_config)
    table["predicted ms"] = ordered["predicted_ms"]
    table["registers"] = ordered["registers"]
    table["source"] = ordered["source"]
    return table.reset_index(drop=True)


def shapes(rows: pd.DataFrame) -> pd.Series[str]:
    """`MxNxK` of each row."""
    return rows["m"].astype(str) + "x" + rows["n"].astype(str) + "x" + rows["k"].astype(str)


def readable_config(config: object) -> str:
    """`BM=128 BN=64` of the JSON that a row holds; other text as it stands."""
    try:
        params = json.loads(str(config))
    except ValueError:
        return str(config)
    if not isinstance(params, dict):
        return str(config)
    return " ".join(f"{name}={value}" for name, value in params.items())
