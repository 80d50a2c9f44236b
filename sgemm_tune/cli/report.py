"""`sgemm-tune report`: what the results say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sgemm_tune.cli import console
from sgemm_tune.cli.options import RESULTS_DIR, JsonOption, ResultsDirOption

EXAMPLE = "sgemm-tune report --output results/report"


def command(
    results_dir: ResultsDirOption = RESULTS_DIR,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", help="Where the files go.  [default: RESULTS_DIR/report]", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print what was measured and write it as Markdown, CSV and pictures.

    Per device: stages over sizes, stages against cuBLAS, the step from rung to rung, the best per shape.
    """
    from sgemm_tune.cli.report_view import document, show
    from sgemm_tune.report.report import build_report
    from sgemm_tune.store.results import ResultsFile

    made = build_report(ResultsFile(results_dir / "results.csv").frame())
    files = made.write(output if output is not None else results_dir / "report")
    if as_json:
        console.print_json({**document(made), "files": files})
        return
    out = console.console()
    show(out, made)
    out.print(f"written: {', '.join(str(file) for file in files)}", markup=False)
