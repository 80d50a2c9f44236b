"""How tests run a command line, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ran:
    """How a command line ended."""

    code: int
    out: str
    err: str


Cli = Callable[[str], Ran]
