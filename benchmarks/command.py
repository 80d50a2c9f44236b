"""Runs the command line as a user does: in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from sgemm_tune.compiler.cache import CACHE_VARIABLE


def sgemm_tune(*arguments: str, cache: Path | None = None) -> Any:
    """The JSON document that a command prints.

    Args:
        arguments: of the command.
        cache: of compiled kernels; None: the user's.

    Raises:
        SystemExit: the command failed.
    """
    command = [sys.executable, "-m", "sgemm_tune", *arguments, "--json"]
    environment = {**os.environ, **({CACHE_VARIABLE: str(cache)} if cache is not None else {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr[-500:]}")
    return json.loads(done.stdout)


def searched(*arguments: str, folder: Path, cache: Path | None = None) -> dict[str, Any]:
    """Search with the files `folder`/configs and `folder`/results; what the search told.

    Raises:
        SystemExit: the search failed, or there is no GPU to measure on.
    """
    files = ("--configs-dir", str(folder / "configs"), "--results-dir", str(folder / "results"))
    told: dict[str, Any] = sgemm_tune("search", *arguments, *files, cache=cache)
    if told["mode"] != "measured":
        raise SystemExit("there is no GPU to measure on: see `sgemm-tune doctor`")
    return told
