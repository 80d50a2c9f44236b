"""Where the CUDA sources and the shipped configurations stand, and what a kernel's source hash is."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def _shipped(name: str, in_checkout: str) -> Path:
    """The folder inside an installed package, or beside the package in a checkout."""
    packaged = _PACKAGE / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / in_checkout


def kernels_dir() -> Path:
    """The folder of the stages' sources: `NN_name.cu`."""
    return _shipped("kernels_cu", "kernels_cu")


def shipped_configs_dir() -> Path:
    """The folder of the configurations that came with this package. It is never written to."""
    return _shipped("configs_shipped", "configs")


@dataclass(frozen=True)
class SourceText:
    """A source with every header it includes, directly or not.

    Attributes:
        name: path below kernels_cu/.
        text: the source itself.
        headers: (name as included, text), sorted.
        digest: 16 hex digits of SHA-256 over all of it.
    """

    name: str
    text: str
    headers: tuple[tuple[str, str], ...]
    digest: str


@cache
def source_text(name: str) -> SourceText:
    """Read kernels_cu/`name` and its quoted includes, which are relative to kernels_cu/.

    Raises:
        FileNotFoundError: the source or a header is missing.
    """
    root = kernels_dir()
    text = (root / name).read_text(encoding="utf-8")
    headers: dict[str, str] = {}
    pending = _INCLUDE.findall(text)
    while pending:
        header = pending.pop()
        if header not in headers:
            headers[header] = (root / header).read_text(encoding="utf-8")
            pending += _INCLUDE.findall(headers[header])
    ordered = tuple(sorted(headers.items()))
    digest = hashlib.sha256("\0".join([name, text, *(part for pair in ordered for part in pair)]).encode())
    return SourceText(name, text, ordered, digest.hexdigest()[:16])
