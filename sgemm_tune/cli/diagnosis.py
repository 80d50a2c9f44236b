"""What `sgemm-tune doctor` finds: each check by itself, none that can fail the others."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from sgemm_tune import __version__
from sgemm_tune.arch import ARCHS
from sgemm_tune.cli.gpu import open_worker
from sgemm_tune.compiler.cache import CACHE_VARIABLE, BinaryCache
from sgemm_tune.errors import SgemmTuneError
from sgemm_tune.kernel import ladder
from sgemm_tune.measure.outcome import DeviceInfo

CUPY_WHEELS = ("cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x", "cupy")
CUDA_WHEELS = (
    *("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12", "nvidia-cublas-cu12"),
    *("nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cublas"),
)
NEEDED = (
    *("numpy", "pandas", "pydantic", "PyYAML", "optuna"),
    *("filelock", "pebble", "platformdirs", "typer", "rich"),
)
OPTIONAL = {
    "nvidia-ml-py": "clocks, power and throttling stay unknown",
    "matplotlib": "reports get no pictures",
}
MOST_GPUS = 16
_TINY = 'extern "C" __global__ void tiny(float* x) { x[threadIdx.x] *= 2.0f; }\n'


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    """Works, with something to know."""
    NO_MEASURING = "no measuring"
    BROKEN = "broken"
    """Not even a plan is possible."""


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's page.

    Attributes:
        check: what was looked at.
        found: what it is.
        remedy: the command or step that mends it; empty where nothing is wrong.
    """

    check: str
    level: Level
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """Everything found.

    Attributes:
        gpus: the GPUs that can be opened, in CUDA's order.
    """

    findings: tuple[Finding, ...]
    gpus: tuple[DeviceInfo, ...]

    def _first(self, level: Level) -> Finding | None:
        return next((finding for finding in self.findings if finding.level is level), None)

    @property
    def can_plan(self) -> bool:
        """Whether candidates can be compiled and ranked."""
        return self._first(Level.BROKEN) is None

    @property
    def can_measure(self) -> bool:
        """Whether there is a GPU to measure them on as well."""
        return self.can_plan and self._first(Level.NO_MEASURING) is None

    @property
    def verdict(self) -> str:
        """What this machine can do, in one line."""
        broken, missing = self._first(Level.BROKEN), self._first(Level.NO_MEASURING)
        if broken is not None:
            return f"cannot plan: {broken.check}: {broken.found}"
        if missing is not None:
            return f"can plan, cannot measure: {missing.found}"
        return "can search and measure"


def examine() -> Diagnosis:
    """Look at everything; takes a few seconds, because a process is spawned for each GPU."""
    gpus, missing = _gpus()
    findings = (
        *_python(),
        *_packages(),
        *_cupy(),
        *_compiler(),
        *_driver(gpus, missing),
        *_directories(),
    )
    return Diagnosis(findings, gpus)


def installed(name: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _python() -> Iterator[Finding]:
    found = f"sgemm-tune {__version__}, Python {platform.python_version()} ({sys.executable})"
    yield Finding("program", Level.OK, found)


def _packages() -> Iterator[Finding]:
    versions = {name: installed(name) for name in (*NEEDED, *OPTIONAL, *CUDA_WHEELS)}
    missing = [name for name in NEEDED if versions[name] is None]
    listed = ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)
    if missing:
        yield Finding("packages", Level.BROKEN, f"missing {', '.join(missing)}", _pip(*missing))
    else:
        yield Finding("packages", Level.OK, listed)
    for name, effect in OPTIONAL.items():
        if versions[name] is None:
            yield Finding(name, Level.NOTE, f"not installed: {effect}", _pip(name))


def _cupy() -> Iterator[Finding]:
    found = {name: version for name in CUPY_WHEELS if (version := installed(name)) is not None}
    listed = ", ".join(f"{name} {version}" for name, version in found.items())
    if not found:
        yield Finding("cupy", Level.BROKEN, "not installed", _pip("cupy-cuda12x"))
    elif len(found) > 1:
        remedy = f"{_pip('-y', *found, verb='uninstall')} && {_pip('cupy-cuda12x')}"
        yield Finding("cupy", Level.BROKEN, f"several that overwrite each other: {listed}", remedy)
    else:
        yield Finding("cupy", Level.OK, listed)


def _compiler() -> Iterator[Finding]:
    from sgemm_tune.compiler.nvrtc import compile_source, nvrtc_version
    from sgemm_tune.compiler.sources import SourceText

    try:
        version = nvrtc_version()
    except SgemmTuneError as error:
        yield Finding("NVRTC", Level.BROKEN, str(error), _pip("cupy-cuda12x", "nvidia-cuda-nvrtc-cu12"))
        return
    failed: dict[str, str] = {}
    for arch in ARCHS.values():
        try:
            compile_source(SourceText("tiny.cu", _TINY, (), ""), arch, (), "a tiny kernel")
        except SgemmTuneError as error:
            failed[arch.target] = str(error)
    works = [arch.target for arch in ARCHS.values() if arch.target not in failed]
    if not works:
        yield Finding(
            "NVRTC", Level.BROKEN, f"{version}: {next(iter(failed.values()))}", _pip(CUDA_WHEELS[0])
        )
        return
    yield Finding("NVRTC", Level.OK, f"{version}, compiles for {' '.join(works)}")
    if failed:
        remedy = _pip("--upgrade", "nvidia-cuda-nvrtc-cu12")
        yield Finding("NVRTC", Level.NOTE, f"{version} does not compile for {' '.join(failed)}", remedy)
    yield Finding("kernels", Level.OK, f"{len(ladder())} stages")


def _gpus() -> tuple[tuple[DeviceInfo, ...], str]:
    """(the GPUs that open, why there is none or no other)."""
    found: list[DeviceInfo] = []
    for ordinal in range(MOST_GPUS):
        try:
            with open_worker(ordinal) as worker:
                found.append(worker.info)
        except SgemmTuneError as error:
            return tuple(found), str(error)
    return tuple(found), ""


def _driver(gpus: tuple[DeviceInfo, ...], missing: str) -> Iterator[Finding]:
    if not gpus:
        remedy = "run on a machine with an NVIDIA GPU and its driver; `sgemm-tune search` plans meanwhile"
        yield Finding("GPU", Level.NO_MEASURING, missing, remedy)
        return
    first = gpus[0]
    software = f"driver {first.driver}, CUDA runtime {first.runtime}, cuBLAS {first.cublas}"
    yield Finding("driver", Level.OK, software)
    for ordinal, gpu in enumerate(gpus):
        text = f"{gpu.name}, {gpu.arch}, {gpu.sms} SMs, {gpu.memory_bytes / 2**30:.0f} GiB"
        yield Finding(f"GPU {ordinal}", Level.OK, text)


def _directories() -> Iterator[Finding]:
    cache = BinaryCache()
    if cache.writable():
        yield Finding("cache", Level.OK, str(cache.root))
    else:
        remedy = f"export {CACHE_VARIABLE}=/some/writable/directory"
        yield Finding("cache", Level.NOTE, f"{cache.root} cannot be written: compiles are not kept", remedy)
    here = Path.cwd()
    if not os.access(here, os.W_OK):
        remedy = "change to a directory of yours, or give --configs-dir and --results-dir"
        yield Finding("directory", Level.NOTE, f"{here} cannot be written", remedy)


def _pip(*arguments: str, verb: str = "install") -> str:
    """A pip command for this interpreter, which need not have a pip of its own."""
    here = shlex.quote(sys.executable)
    pip = f"{here} -m pip" if importlib.util.find_spec("pip") else f"python3 -m pip --python {here}"
    return f"{pip} {verb} {' '.join(arguments)}"
