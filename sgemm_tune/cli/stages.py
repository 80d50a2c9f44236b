"""`sgemm-tune stages`: the ladder."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sgemm_tune.arch import Arch, parse_arch
from sgemm_tune.cli import console
from sgemm_tune.cli.options import JsonOption
from sgemm_tune.kernel import Kernel, ladder

EXAMPLE = "sgemm-tune stages --arch sm_90"


def command(
    arch: Annotated[str, typer.Option(help="Architecture on which configurations are legal.")] = "sm_90",
    as_json: JsonOption = False,
) -> None:
    """List the kernel ladder: stages, their tunables and how many configurations are legal."""
    where = parse_arch(arch)
    rungs = [_rung(stage, where) for stage in ladder()]
    if as_json:
        console.print_json({"arch": where.name, "stages": rungs})
        return
    rows = [
        (
            f"{rung['rung']:02d}",
            rung["name"],
            rung["precision"],
            rung["summary"],
            "  ".join(f"{name} {_listed(choices)}" for name, choices in rung["tunables"].items()),
            str(rung["legal"]),
        )
        for rung in rungs
    ]
    columns = ("rung", "stage", "precision", "what it does", "tunables", "legal")
    title = f"The kernel ladder, configurations legal on {where.name}"
    console.console().print(console.table(title, columns, rows, left=5))


def _rung(stage: type[Kernel], arch: Arch) -> dict[str, Any]:
    return {
        "rung": stage.rung(),
        "name": stage.name(),
        "source": stage.source,
        "precision": stage.precision.value,
        "summary": stage.summary(),
        "tunables": {name: list(choices) for name, choices in stage.tunables().items()},
        "legal": len(stage.legal(arch)),
    }


def _listed(choices: list[int]) -> str:
    return "/".join(str(choice) for choice in choices)
