"""Which process works on a trial, and whether it still lives.

A process is told apart by its host, boot, process-id namespace, id and start time: ids are used again after
a reboot, in another container and after a while.
"""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

FOREIGN_PATIENCE = timedelta(hours=1)
"""How long a trial of another machine counts as alive: no trial takes longer, and nobody here can look."""


@cache
def _place() -> str:
    """Where process ids mean the same: host, boot, namespace."""
    boot = _read("/proc/sys/kernel/random/boot_id").strip()
    try:
        namespace = str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        namespace = ""
    return f"{socket.gethostname()}|{boot}|{namespace}"


def owner_token() -> str:
    """This process, as it is stored with the trials that it works on."""
    pid = os.getpid()
    return f"{_place()}|{pid}|{_start_time(pid)}"


def is_alive(token: str, since: datetime | None) -> bool:
    """Whether the process that `token` names may still be working.

    Args:
        token: from `owner_token`; anything else counts as gone.
        since: when it began, for processes of other machines, which cannot be looked at.
    """
    place, _, rest = token.rpartition("|")
    place, _, pid = place.rpartition("|")
    if not place or not pid.isdigit():
        return False
    if place == _place():
        start = _start_time(int(pid))
        return start == rest and (start != "" or _exists(int(pid)))
    if place.split("|")[0] == socket.gethostname() and place.split("|")[1] != _place().split("|")[1]:
        return False  # this machine was started anew since
    return since is not None and _utc(since) + FOREIGN_PATIENCE > datetime.now(UTC)


def _start_time(pid: int) -> str:
    """Clock ticks after boot when the process started; empty where there is none, or no /proc.

    A zombie has ended: it counts as none.
    """
    # the name, in parentheses, may hold anything: what follows it is state and 18 more fields
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""


def _exists(pid: int) -> bool:
    if Path("/proc/self/stat").exists():
        return False  # /proc would have shown it
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)  # Optuna's are local and naive
