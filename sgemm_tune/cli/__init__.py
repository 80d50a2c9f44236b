"""The command line: parses, prints and exits. Everything it prints was computed elsewhere.

`main` is the only place where an exception becomes a line and an exit code: 0 for success, 2 where the
request itself was wrong, 1 for everything else, 130 when interrupted.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from sgemm_tune import __version__
from sgemm_tune.cli import bench, doctor, report, search, stages
from sgemm_tune.cli.console import INTERRUPTED, one_line
from sgemm_tune.errors import SgemmTuneError

# Typer's own base of "this command line does not parse"; newer versions carry Click inside, older ones do not
_ParseError: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

app = typer.Typer(
    name="sgemm-tune",
    help="Find the fastest configuration of hand-written SGEMM kernels for an NVIDIA GPU.",
    epilog="Start with: sgemm-tune search --arch sm_90 --size 4096",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _module in (search, bench, report, stages, doctor):
    _name = _module.__name__.rpartition(".")[2]
    app.command(_name, epilog=f"Example: {_module.EXAMPLE}")(_module.command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"sgemm-tune {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own) and return its exit code."""
    try:
        code = app(
            args=None if arguments is None else list(arguments),
            prog_name="sgemm-tune",
            standalone_mode=False,
        )
        sys.stdout.flush()
    except BrokenPipeError:
        # whoever read our output has seen enough; Python would complain again when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SgemmTuneError as error:
        return _fail(str(error), error.exit_code)
    except _ParseError as error:
        return _fail(error.format_message(), 2)  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", INTERRUPTED)
    except MemoryError:
        return _fail("out of memory: try fewer --jobs or a smaller --size", 1)
    except OSError as error:
        return _fail(_system_error(error), 1)
    if code == INTERRUPTED:
        return _fail("interrupted", INTERRUPTED)
    return code if isinstance(code, int) else 0


def main() -> NoReturn:
    """The `sgemm-tune` program."""
    # the sampler's small matrices gain nothing from threads that compete with the compilers for the cores
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character is no reason to stop
    sys.exit(run())


def _fail(message: str, code: int) -> int:
    print(f"error: {one_line(message)}", file=sys.stderr)
    return code


def _system_error(error: OSError) -> str:
    """What the system refused, on which file, and what to do."""
    where = f"{error.filename}: " if error.filename else ""
    reason = error.strerror or str(error) or type(error).__name__
    return f"{where}{reason}: free space, or choose a directory that can be read and written"
