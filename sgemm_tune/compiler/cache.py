"""A content-addressed cache of cubins that many processes share.

One file holds everything of one entry: a digest line, a line of JSON, the cubin. It is written beside its
place and renamed, so a reader sees the whole of it or nothing; a truncated or foreign file fails its
digest, is removed, and the kernel is compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

CACHE_VARIABLE = "SGEMM_TUNE_CACHE"


def default_cache_dir() -> Path:
    """`$SGEMM_TUNE_CACHE`, else the user's cache directory of the platform."""
    from platformdirs import user_cache_path

    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else user_cache_path("sgemm-tune", appauthor=False)


class BinaryCache:
    """Cubins by key. A directory that cannot be written costs the caching, never the result.

    Args:
        root: the directory; made at the first write.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root if root is not None else default_cache_dir()

    def path(self, key: str) -> Path:
        """Where the entry of `key` stands."""
        return self.root / key[:2] / f"{key}.bin"

    def read(self, key: str) -> tuple[dict[str, Any], bytes] | None:
        """(what ptxas said, cubin), or None where there is no sound entry."""
        path = self.path(key)
        try:
            blob = path.read_bytes()
        except OSError:
            return None
        digest, _, body = blob.partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != digest:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        header, _, cubin = body.partition(b"\n")
        meta: dict[str, Any] = json.loads(header)
        return meta, cubin

    def keys(self) -> set[str]:
        """Of all entries, sound or not."""
        return {path.stem for path in self.root.glob("??/*.bin")}

    def write(self, key: str, meta: dict[str, Any], cubin: bytes) -> bool:
        """Store an entry; False where the directory cannot be written or the disk is full."""
        body = json.dumps(meta).encode() + b"\n" + cubin
        blob = hashlib.sha256(body).hexdigest().encode() + b"\n" + body
        path = self.path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
        except OSError:
            return False
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(blob)
            Path(temporary).replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            return False
        return True

    def writable(self) -> bool:
        """Whether an entry could be stored now."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root):
                return True
        except OSError:
            return False
