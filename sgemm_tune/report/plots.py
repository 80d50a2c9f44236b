"""The report's pictures as PNG. Matplotlib is loaded when one is drawn, without any display."""

from __future__ import annotations

import collections
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sgemm_tune.report.tables import CUBLAS, STEP_SIZE, cublas_tflops

if TYPE_CHECKING:
    import pandas as pd

Ladders = Sequence[tuple[str, "pd.DataFrame"]]
"""(device's title, rows of `report_tables.ladder_rows`)."""

_INK = "#222222"
_QUIET = "#8a8a8a"
_LABEL_GAP = 0.052
"""Least distance of two labels, as a share of the axis."""
_ROUND = 32
"""Sizes that are no multiple of it are off every tile: beside 4096, one of 4097 would be a spike."""


def ladder_picture(ladders: Ladders) -> bytes:
    """TFLOP/s over size, a line per stage and cuBLAS dashed; a panel per device and precision.

    Sizes off every tile are left out unless a device has no others.
    """
    figure, panels = _panels([(title, round_sizes(rows)) for title, rows in ladders], height=5.0)
    for axes, title, rows in panels:
        _frame(axes, title)
        sizes = sorted(int(size) for size in rows["size"].unique())
        ends = []
        for stage, colour in _colours(rows).items():
            own = rows[rows["stage"] == stage]
            x, y = _floats(own["size"]), _floats(own["tflops"])
            axes.plot(x, y, color=colour, linewidth=1.8, marker="o", markersize=4.5)
            ends.append((y[-1], x[-1], f"{stage}  {three_digits(y[-1])}"))
        baseline = cublas_tflops(rows)
        if len(baseline):
            x, y = _floats(baseline.index.to_series()), _floats(baseline)
            axes.plot(x, y, color=_INK, linewidth=1.6, linestyle=(0, (5, 3)), marker="D", markersize=3.5)
            ends.append((y[-1], x[-1], f"{CUBLAS}  {three_digits(y[-1])}"))
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes], rotation=45 if len(sizes) > 8 else 0)
        axes.minorticks_off()
        axes.set_xlim(sizes[0] / 1.12, sizes[-1] * 1.12)
        axes.set_ylim(0, 1.08 * max([*_floats(rows["tflops"]), *_floats(baseline)]))
        axes.set_xlabel("M = N = K")
        axes.set_ylabel("TFLOP/s")
        _label_ends(axes, ends)
    return _png(figure)


def steps_picture(ladders: Ladders) -> bytes:
    """A bar per stage with its factor over the rung below; cuBLAS dashed; panels as in the ladder."""
    longest = max(int(rows.groupby("precision")["stage"].nunique().max()) for _, rows in ladders)
    figure, panels = _panels(ladders, height=1.7 + 0.42 * longest)
    for axes, title, rows in panels:
        size = _common_size(rows)
        own = rows[rows["size"] == size]
        rates = dict(zip(own["stage"], _floats(own["tflops"]), strict=True))
        colours = _colours(rows)
        _frame(axes, f"{title}, M = N = K = {size}", along="x")
        baseline = cublas_tflops(own)
        limit = 1.3 * max([*rates.values(), *_floats(baseline)])
        below = None
        for place, (stage, rate) in enumerate(rates.items()):
            axes.barh(place, rate, height=0.66, color=colours[stage])
            factor = f"   ×{rate / below:.2f}" if below else ""
            label = f"{three_digits(rate)}{factor}"
            text = axes.text(rate + 0.012 * limit, place, label, va="center", color=_INK)
            text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1.0})
            below = rate
        axes.set_yticks(range(len(rates)), list(rates))
        axes.set_ylim(longest - 0.4, -1.0)  # bars of one height in all panels
        if len(baseline):
            reference = _floats(baseline)[0]
            axes.axvline(reference, color=_INK, linewidth=1.4, linestyle=(0, (5, 3)), zorder=0.5)
            label = f"{CUBLAS} {three_digits(reference)}  "
            axes.text(reference, -0.72, label, ha="right", va="center", color=_INK)
        axes.set_xlim(0, limit)
        axes.set_xlabel("TFLOP/s, and the factor over the rung below")
    return _png(figure)


def round_sizes(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of sizes that fit tiles, or all where none does."""
    fitting = rows[rows["size"] % _ROUND == 0]
    return rows if fitting.empty else fitting


def _panels(ladders: Ladders, height: float) -> tuple[Any, list[tuple[Any, str, pd.DataFrame]]]:
    """A figure, and (axes, title, rows of one precision) of each panel: a line of panels per device."""
    from matplotlib.figure import Figure  # noqa: TID251

    split = [
        [(f"{title}, {precision}", own) for precision, own in rows.groupby("precision", sort=True)]
        for title, rows in ladders
    ]
    wide = max(len(line) for line in split)
    figure = Figure(figsize=(8.2 * wide, height * len(split)), layout="constrained")
    grid = figure.subplots(len(split), wide, squeeze=False)
    panels = []
    for axes_line, line in zip(grid, split, strict=True):
        for axes in axes_line[len(line) :]:
            axes.set_axis_off()
        panels += [(axes, *panel) for axes, panel in zip(axes_line, line, strict=False)]
    return figure, panels


def _colours(rows: pd.DataFrame) -> dict[str, Any]:
    """A colour per stage that darkens up the ladder: order survives grey print and colour blindness."""
    from matplotlib import colormaps  # noqa: TID251

    stages = [str(stage) for stage in rows["stage"].unique()]
    scale = colormaps["viridis_r"]
    last = len(stages) - 1
    return {stage: scale(0.9 - 0.78 * (last - i) / max(1, last)) for i, stage in enumerate(stages)}


def _frame(axes: Any, title: str, along: str = "y") -> None:
    axes.set_title(title, loc="left", color=_INK, fontsize=11, fontweight="bold", pad=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_QUIET)
    axes.tick_params(colors=_INK, labelsize=9)
    axes.grid(axis=along, color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)


def _label_ends(axes: Any, ends: list[tuple[float, float, str]]) -> None:
    """Name each line at its right end; names keep a distance and a thin line leads to them."""
    top = axes.get_ylim()[1]
    places = spread([end[0] / top for end in ends], _LABEL_GAP)
    for (y, x, text), place in zip(ends, places, strict=True):
        axes.annotate(
            text,
            xy=(x, y),
            xytext=(1.03, place),
            textcoords="axes fraction",
            va="center",
            color=_INK,
            fontsize=9,
            annotation_clip=False,
            # dotted and grey, so that it is not taken for a measurement
            arrowprops={"arrowstyle": "-", "color": _QUIET, "linewidth": 0.8, "linestyle": ":", "shrinkB": 4},
        )


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Places near `heights` in the same order, each at least `gap` from the next, none below 0."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    # blocks of labels that touch share the middle of their wishes
    blocks: list[list[int]] = []
    for i in order:
        blocks.append([i])
        while len(blocks) > 1 and _start(blocks[-1], heights, gap) < _end(blocks[-2], heights, gap) + gap:
            last = blocks.pop()
            blocks[-1] += last
    places = [0.0] * len(heights)
    for block in blocks:
        for step, i in enumerate(block):
            places[i] = _start(block, heights, gap) + step * gap
    return places


def _start(block: Sequence[int], heights: Sequence[float], gap: float) -> float:
    middle = sum(heights[i] for i in block) / len(block)
    return max(0.0, middle - gap * (len(block) - 1) / 2)


def _end(block: Sequence[int], heights: Sequence[float], gap: float) -> float:
    return _start(block, heights, gap) + gap * (len(block) - 1)


def three_digits(rate: float) -> str:
    """`0.516`, `18.0`, `1130`."""
    return f"{rate:#.3g}" if rate < 99.95 else f"{rate:.0f}"


def _common_size(rows: pd.DataFrame) -> int:
    """The size that most stages have; of several 4096, else the largest."""
    counts = collections.Counter(int(size) for size in rows["size"])
    most = [size for size, count in counts.items() if count == max(counts.values())]
    return STEP_SIZE if STEP_SIZE in most else max(most)


def _floats(values: pd.Series[Any]) -> list[float]:
    return [float(value) for value in values]


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()
