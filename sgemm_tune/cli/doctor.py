"""`sgemm-tune doctor`: what this machine can do."""

from __future__ import annotations

import typer
from rich.markup import escape
from rich.table import Table

from sgemm_tune.cli import console
from sgemm_tune.cli.options import JsonOption

EXAMPLE = "sgemm-tune doctor"


def command(as_json: JsonOption = False) -> None:
    """Say what this machine can do, what is missing, and the command that mends it.

    Exits with 0 where a search can at least plan, and with 1 where not even that is possible.
    """
    from sgemm_tune.cli.diagnosis import Level, examine

    diagnosis = examine()
    if as_json:
        console.print_json(
            {
                "can_plan": diagnosis.can_plan,
                "can_measure": diagnosis.can_measure,
                "verdict": diagnosis.verdict,
                "findings": diagnosis.findings,
                "gpus": diagnosis.gpus,
            }
        )
    else:
        out = console.console()
        page = Table.grid(padding=(0, 2))
        for finding in diagnosis.findings:
            mark = "ok" if finding.level is Level.OK else "!!"
            page.add_row(mark, finding.check, escape(finding.found))
            if finding.remedy:
                page.add_row("", "", escape(f"to mend it: {finding.remedy}"))
        out.print(page)
        out.print(diagnosis.verdict, markup=False, style="bold")
    if not diagnosis.can_plan:
        raise typer.Exit(1)
