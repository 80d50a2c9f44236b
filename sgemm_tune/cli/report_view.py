"""A report on the terminal."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from sgemm_tune.report.report import Report

LADDER_TABLES = ("ladder_small", "ladder_large")
"""The two tables that `bench --ladder` prints."""


def show(out: Console, report: Report, only: Collection[str] = ()) -> None:
    """Print every table of the report, or those named in `only`."""
    for section in report.sections:
        out.print(section.title, style="bold", markup=False)
        for table in section.tables:
            if only and table.name not in only:
                continue
            drawn = Table(title=table.title, title_justify="left", title_style="bold", box=None)
            for name, right in zip(table.columns, table.numeric, strict=True):
                drawn.add_column(name, justify="right" if right else "left", overflow="fold")
            for cells in table.rows():
                drawn.add_row(*cells)
            out.print()
            out.print(drawn)
            out.print(table.caption, style="dim", markup=False)
        out.print()


def document(report: Report) -> dict[str, Any]:
    """The report for a script: figures at full precision, null where there is none."""
    return {
        "from": report.period[0],
        "to": report.period[1],
        "sections": [
            {
                "title": section.title,
                "device": section.device,
                "sms": section.sms,
                "predicted": section.predicted,
                "tables": [
                    {
                        "name": table.name,
                        "title": table.title,
                        "rows": table.frame.astype(object)
                        .where(table.frame.notna(), None)
                        .to_dict("records"),
                    }
                    for table in section.tables
                ],
            }
            for section in report.sections
        ],
    }
