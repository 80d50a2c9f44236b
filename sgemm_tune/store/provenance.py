"""Where a number comes from: everything that is stored beside it so that it can be judged later."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from sgemm_tune import __version__
from sgemm_tune.compiler.sources import source_text
from sgemm_tune.kernel import Kernel
from sgemm_tune.measure.outcome import DeviceInfo, Measurement

_GIT_SECONDS = 5.0
_STRICT: dict[str, Any] = {"extra": "forbid", "strict": True, "allow_inf_nan": False}


@dataclass(frozen=True)
class PlanProvenance:
    """What a prediction rests on: there was no GPU.

    Attributes:
        date: ISO 8601, UTC, to the second.
        nvrtc: version of the compiler.
        source_hash: digest of the kernel's source and its headers.
        version: of sgemm_tune.
        commit: git commit of the package's checkout, with `-dirty` where its code differs; empty where it
            is installed from a wheel.
    """

    date: str
    nvrtc: str
    source_hash: str
    version: str
    commit: str

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT


@dataclass(frozen=True)
class Provenance:
    """What a measurement rests on.

    Attributes:
        date: ISO 8601, UTC, to the second.
        device, uuid, sms: the GPU and its number of streaming multiprocessors.
        driver, runtime, nvrtc, cublas: versions.
        sm_mhz, watts: SM clock and board power seen while it ran; 0 where NVML was not to be had.
        throttle: reasons to throttle that were in force, joined by `, `; empty for none.
        cache: `cold` or `warm`, the state of the L2; empty where nothing was timed.
        seed: of the matrices' random numbers.
        source_hash, version, commit: as in `PlanProvenance`.
    """

    date: str
    device: str
    uuid: str
    sms: int
    driver: str
    runtime: str
    nvrtc: str
    cublas: str
    sm_mhz: int
    watts: float
    throttle: str
    cache: str
    seed: int
    source_hash: str
    version: str
    commit: str

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT


def gather(info: DeviceInfo, kernel: Kernel, measurement: Measurement | None, seed: int) -> Provenance:
    """The provenance of `kernel` measured (or, with None, tried in vain) on `info` just now.

    Args:
        info: the GPU and its software.
        kernel: the configuration; its source must be readable.
        measurement: what was measured.
        seed: of the matrices' random numbers.

    Raises:
        FileNotFoundError: the kernel's source is missing.
    """
    seen = measurement.telemetry if measurement is not None else None
    return Provenance(
        date=now(),
        device=info.name,
        uuid=info.uuid,
        sms=info.sms,
        driver=info.driver,
        runtime=info.runtime,
        nvrtc=info.nvrtc,
        cublas=info.cublas,
        sm_mhz=seen.sm_mhz if seen else 0,
        watts=round(seen.watts, 1) if seen else 0.0,
        throttle=", ".join(seen.throttle) if seen else "",
        cache=measurement.cache if measurement is not None else "",
        seed=seed,
        source_hash=source_text(kernel.source).digest,
        version=__version__,
        commit=commit(),
    )


def gather_plan(kernel: Kernel, nvrtc: str) -> PlanProvenance:
    """The provenance of a prediction made just now with NVRTC `nvrtc`.

    Raises:
        FileNotFoundError: the kernel's source is missing.
    """
    return PlanProvenance(now(), nvrtc, source_text(kernel.source).digest, __version__, commit())


def now() -> str:
    """The time in UTC, `2025-11-29T19:05:00+00:00`."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def commit() -> str:
    """Commit of the checkout that this package runs from, or "" where it does not or git is missing."""
    checkout = Path(__file__).resolve().parents[2]
    # a package installed into some other project's virtual environment is no checkout of its own
    if not (checkout / ".git").exists() or not (checkout / "pyproject.toml").is_file():
        return ""
    head = _git(checkout, "rev-parse", "--verify", "HEAD")
    if not head:
        return ""
    # results and configurations change with every run: only the code says whether the commit is the truth
    changed = _git(checkout, "status", "--porcelain", "--", "sgemm_tune", "kernels_cu")
    return f"{head}-dirty" if changed else head


def _git(checkout: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=True,
            # never take the index lock from somebody who is working in the checkout
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
