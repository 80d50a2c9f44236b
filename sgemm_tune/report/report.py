"""The report: tables by device with captions, as Markdown, CSV and pictures. Figures: `report_tables`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgemm_tune.errors import SgemmTuneError
from sgemm_tune.report import tables
from sgemm_tune.store.files import replace_atomically

if TYPE_CHECKING:
    import pandas as pd

HOLE = "–"
"""Shown where nothing was measured."""


class NothingToReport(SgemmTuneError):
    """The table of results has no figure to show."""


@dataclass(frozen=True)
class Table:
    """One table of the report.

    Attributes:
        name: stem of its CSV file.
        title, caption: one line each.
        frame: the figures at full precision, NA where there is none.
    """

    name: str
    title: str
    caption: str
    frame: pd.DataFrame

    @property
    def columns(self) -> list[str]:
        """Column headings."""
        return [str(column) for column in self.frame.columns]

    @property
    def numeric(self) -> list[bool]:
        """Whether each column is to be aligned right."""
        from pandas.api.types import is_numeric_dtype

        return [is_numeric_dtype(self.frame[column]) for column in self.columns]

    def rows(self) -> list[list[str]]:
        """The cells as people read them, `HOLE` where there is no figure."""
        formats = [_format_of(column) for column in self.columns]
        return [
            [_cell(value, form) for value, form in zip(values, formats, strict=True)]
            for values in self.frame.itertuples(index=False, name=None)
        ]

    def markdown(self) -> str:
        """Heading, caption and table."""
        rule = ["---:" if right else "---" for right in self.numeric]
        lines = [_markdown_line(cells) for cells in (self.columns, rule, *self.rows())]
        return "\n".join([f"### {self.title}", "", self.caption, "", *lines, ""])


@dataclass(frozen=True)
class Section:
    """The tables of one device, or of one board's predictions.

    Attributes:
        device: name of the GPU.
        sms: its streaming multiprocessors; None where an older table does not say.
        predicted: whether everything in it is a model's opinion.
        tables: in the order to be shown.
        ladder: the rows behind the ladder's tables, for pictures (`report_tables.ladder_rows`).
    """

    device: str
    sms: int | None
    predicted: bool
    tables: tuple[Table, ...]
    ladder: pd.DataFrame | None = field(default=None, compare=False)

    @property
    def title(self) -> str:
        """The heading: the device, its SM count, and whether this is predicted."""
        size = f" ({self.sms} SMs)" if self.sms is not None else ""
        return f"{self.device}{size}" + (": predicted, never run" if self.predicted else "")


@dataclass(frozen=True)
class Report:
    """Everything `sgemm-tune report` shows, a section per device.

    Attributes:
        sections: measured devices first, then predictions.
        period: date of the oldest and the newest row that is shown.
    """

    sections: tuple[Section, ...]
    period: tuple[str, str]

    @property
    def tables(self) -> list[Table]:
        """All tables of all sections."""
        return [table for section in self.sections for table in section.tables]

    def markdown(self, pictures: Sequence[tuple[str, str]] = ()) -> str:
        """The whole report.

        Args:
            pictures: (what it shows, path relative to the report) to be put on top.
        """
        first, last = self.period
        dates = f"on {first}" if first == last else f"from {first} to {last}"
        parts = ["# sgemm-tune: report", "", f"Rows {dates} (UTC). `{HOLE}`: not measured.", ""]
        for what, path in pictures:
            parts += [f"![{what}]({path})", ""]
        for section in self.sections:
            parts += [f"## {section.title}", ""]
            parts += [table.markdown() for table in section.tables]
        return "\n".join(parts)

    def write(self, directory: Path) -> list[Path]:
        """Write report.md, a CSV file per kind of table and, of what was measured, two pictures.

        Returns:
            The files, report.md first.

        Raises:
            FileWriteError: a file cannot be written; those before it are complete.
        """
        from sgemm_tune.report import plots

        ladders = [
            (section.title, section.ladder)
            for section in self.sections
            if section.ladder is not None and not section.ladder.empty
        ]
        pictures: list[tuple[str, str]] = []
        contents: dict[str, str | bytes] = {}
        if ladders:
            contents["ladder.png"] = plots.ladder_picture(ladders)
            contents["steps.png"] = plots.steps_picture(ladders)
            pictures = [("TFLOP/s over size per stage", "ladder.png"), ("Step by step", "steps.png")]
        contents |= {f"{name}.csv": text for name, text in self._csv().items()}
        contents = {"report.md": self.markdown(pictures), **contents}
        # the report comes last, so that what it points to is there
        for name in (*list(contents)[1:], "report.md"):
            replace_atomically(directory / name, contents[name])
        return [directory / name for name in contents]

    def _csv(self) -> Mapping[str, str]:
        """Text by table name; a column tells the devices apart."""
        import pandas as pd

        frames: dict[str, list[pd.DataFrame]] = {}
        for section in self.sections:
            for table in section.tables:
                labelled = table.frame.copy()
                labelled.insert(0, "device", section.device)
                labelled.insert(1, "sms", pd.Series([section.sms] * len(labelled), dtype="Int64"))
                frames.setdefault(table.name, []).append(labelled)
        return {
            name: pd.concat(parts).to_csv(index=False, lineterminator="\n", float_format="%.6g")
            for name, parts in frames.items()
        }


def build_report(frame: pd.DataFrame) -> Report:
    """The report on a table of results, as `ResultsFile.frame` gives it.

    Raises:
        NothingToReport: no row has a validated measurement or a prediction.
    """
    measured, predicted = tables.measured_rows(frame), tables.predicted_rows(frame)
    if measured.empty and predicted.empty:
        tried = f"{len(frame)} rows, none of them ok" if len(frame) else "no rows"
        raise NothingToReport(
            f"there is nothing to report ({tried}): run `sgemm-tune search` or `sgemm-tune bench` first"
        )
    sections = [*_by_device(measured, _measured_section), *_by_device(predicted, _predicted_section)]
    dates = sorted(day for rows in (measured, predicted) for day in rows["date"].dropna().str.slice(0, 10))
    return Report(tuple(sections), (dates[0], dates[-1]) if dates else (HOLE, HOLE))


def _by_device(
    rows: pd.DataFrame, section: Callable[[str, int | None, pd.DataFrame], Section]
) -> list[Section]:
    import pandas as pd

    found = []
    key: Any
    for key, own in rows.groupby(["device", "sms"], dropna=False, sort=True):
        device, sms = key
        name = "unnamed device" if pd.isna(device) else str(device)
        found.append(section(name, None if pd.isna(sms) else int(sms), own))
    return found


def _measured_section(device: str, sms: int | None, rows: pd.DataFrame) -> Section:
    ladder = tables.ladder_rows(rows)
    wanted = (
        Table(
            "ladder_small",
            "GFLOP/s per kernel and size",
            "M = N = K. Each stage's best configuration; bench's figures where it has measured the stage.",
            tables.gflops_by_size(ladder),
        ),
        Table(
            "ladder_large",
            "The ladder against cuBLAS",
            "M = N = K. cuBLAS in the stage's own precision, interleaved; the ratio is the median of pairs.",
            tables.against_cublas(ladder),
        ),
        Table(
            "steps",
            "From each rung to the next",
            f"At {tables.STEP_SIZE}, or the largest size at which both were measured.",
            tables.steps(ladder),
        ),
        Table(
            "best",
            "Best per shape",
            "The fastest configuration by its latest validated measurement, and its error against the bound.",
            tables.best_per_shape(rows),
        ),
    )
    kept = tuple(table for table in wanted if not table.frame.empty)
    return Section(device, sms, predicted=False, tables=kept, ladder=ladder)


def _predicted_section(device: str, sms: int | None, rows: pd.DataFrame) -> Section:
    table = Table(
        "predicted",
        "Shortlist",
        "Compiled for this board and ranked by the static model. `bench` on such a GPU measures it.",
        tables.shortlist(rows),
    )
    return Section(device, sms, predicted=True, tables=(table,))


_FORMATS: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("%", lambda value: f"{value:.1f}"),
    ("TFLOP/s", lambda value: f"{value:.2f}"),
    ("factor", lambda value: f"×{value:.2f}"),
    ("of", lambda value: f"{value:.3f}"),
    ("goal", lambda value: f"{value:.2f}"),
    ("ms", lambda value: f"{value:.4g}"),
    ("error", lambda value: f"{value:.1e}"),
    ("bound", lambda value: f"{value:.1e}"),
)


def _format_of(column: str) -> Callable[[Any], str]:
    if column.isdigit():  # a size: GFLOP/s
        return lambda value: f"{value:.1f}" if value < 100 else f"{value:.0f}"
    return next((form for word, form in _FORMATS if word in column.split(" ") or column.endswith(word)), str)


def _cell(value: Any, form: Callable[[Any], str]) -> str:
    import pandas as pd

    return HOLE if pd.isna(value) or value == "" else form(value)


def _markdown_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
