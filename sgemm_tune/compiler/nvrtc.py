"""(Kernel, Arch) -> Binary through CuPy's NVRTC, with a content-addressed cache. Needs no GPU.

`cupy.cuda.compiler` asks the device for its architecture and cannot name sm_90a, so the thin bindings of
`cupy.cuda.nvrtc` are used directly.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from sgemm_tune.arch import Arch
from sgemm_tune.compiler.cache import BinaryCache
from sgemm_tune.compiler.sources import SourceText, source_text
from sgemm_tune.errors import CompileError, DeviceUnavailable
from sgemm_tune.kernel import ENTRY_POINT, Code, Kernel

_OPTIONS_SINCE = (12, 9)
"""The first NVRTC with a cache of its own (its user guide, "Caching"), and the option to do without; it knows
`--minimal` as well."""

_REGISTERS = re.compile(r"Used (\d+) registers")
_STATIC_SMEM = re.compile(r"(\d+) bytes smem")
_ENTRY = re.compile(r"^.*Compiling entry function '.*$", re.MULTILINE)
_SPILLS = re.compile(r"(\d+) bytes spill (?:stores|loads)")
_ASSERTION = re.compile(r'static assertion failed with "([^"]*)"')
_ERROR = re.compile(r"error\s*:\s*(.+)")


@dataclass(frozen=True)
class Binary:
    """A compiled kernel and what ptxas said of it.

    Attributes:
        cubin: the whole ELF file.
        registers: per thread.
        spill_bytes: spill stores and loads per thread, in bytes.
        static_smem: bytes of static shared memory per block.
        nvrtc: version of the compiler, `12.9`.
        seconds: how long the compilation took when it was done.
        log: the compiler's log.
        cached: whether it cost nothing: it came from the cache, or was compiled for another configuration.
    """

    cubin: bytes
    registers: int
    spill_bytes: int
    static_smem: int
    nvrtc: str
    seconds: float
    log: str
    cached: bool = False


@functools.cache
def _nvrtc() -> Any:
    """CuPy's NVRTC bindings.

    Raises:
        DeviceUnavailable: CuPy or the NVRTC library is missing.
    """
    try:
        from cupy.cuda import nvrtc  # noqa: TID251

        nvrtc.getVersion()
    except Exception as error:
        raise DeviceUnavailable(
            f"NVRTC cannot be loaded ({type(error).__name__}: {error}): "
            "pip install cupy-cuda12x nvidia-cuda-nvrtc-cu12"
        ) from error
    return nvrtc


def nvrtc_version() -> str:
    """The compiler's version, `12.9`.

    Raises:
        DeviceUnavailable: CuPy or the NVRTC library is missing.
    """
    major, minor = _nvrtc().getVersion()
    return f"{major}.{minor}"


def options(target: str, defines: tuple[str, ...]) -> tuple[str, ...]:
    """What NVRTC is given: no fast-math, no flush-to-zero, FFMA contraction as the language has it.

    Its own cache is switched off. Where a driver is installed it keeps what it compiled for any process, and
    a hit comes without a log: registers and spills would read 0, and compiling would seem to take no time.
    `--minimal` leaves out what no kernel here uses, such as textures: the same cubin, 2 to 6 % sooner.
    """
    return (
        f"--gpu-architecture={target}",
        "--std=c++17",
        "--device-as-default-execution-space",
        "--ptxas-options=-v",
        *(("--no-cache", "--minimal") if _nvrtc().getVersion() >= _OPTIONS_SINCE else ()),
        *defines,
    )


def cache_key(kernel: Kernel, arch: Arch) -> str:
    """64 hex digits over everything that the cubin depends on: code, headers, options, compiler."""
    return _key(_begun_key(kernel.source, arch), kernel, nvrtc_version())


def _begun_key(source: str, arch: Arch) -> Any:
    """The part of the keys that all configurations of a source share."""
    text = source_text(source)
    return hashlib.sha256("\0".join([text.digest, text.text, *options(arch.target, ()), ""]).encode())


def _key(begun: Any, kernel: Kernel, version: str) -> str:
    key = begun.copy()
    key.update("\0".join([*kernel.defines, version]).encode())
    return str(key.hexdigest())


def cached_binary(kernel: Kernel, arch: Arch, cache: BinaryCache) -> Binary | None:
    """What `cache` has of one configuration, or None.

    Raises:
        DeviceUnavailable: CuPy or the NVRTC library is missing.
    """
    stored = cache.read(cache_key(kernel, arch))
    return None if stored is None else Binary(cubin=stored[1], cached=True, **stored[0])


def cached_code(kernels: Iterable[Kernel], arch: Arch, cache: BinaryCache) -> set[Code]:
    """Which of the kernels' code `cache` has. An entry that turns out to be damaged is compiled again.

    Raises:
        DeviceUnavailable: CuPy or the NVRTC library is missing.
    """
    stored = cache.keys()
    if not stored:
        return set()
    begun, version = functools.cache(lambda source: _begun_key(source, arch)), nvrtc_version()
    return {kernel.code for kernel in kernels if _key(begun(kernel.source), kernel, version) in stored}


def compile_kernel(kernel: Kernel, arch: Arch, cache: BinaryCache | None = None) -> Binary:
    """Compile one configuration for one architecture, or take it from `cache`.

    Raises:
        CompileError: NVRTC refused it; the log is attached.
        DeviceUnavailable: CuPy or the NVRTC library is missing.
    """
    if cache is not None and (stored := cached_binary(kernel, arch, cache)) is not None:
        return stored
    binary = compile_source(source_text(kernel.source), arch, kernel.defines, str(kernel))
    if cache is not None:
        meta = {name: value for name, value in asdict(binary).items() if name not in ("cubin", "cached")}
        cache.write(cache_key(kernel, arch), meta, binary.cubin)
    return binary


def compile_source(source: SourceText, arch: Arch, defines: tuple[str, ...], label: str) -> Binary:
    """Compile any source to a cubin; `label` names it in messages.

    Raises:
        CompileError: NVRTC refused it, or said nothing of registers and spills; the log is attached.
    """
    started = time.perf_counter()
    cubin, log = _compile(source, options(arch.target, defines), label)
    said = _said_of(ENTRY_POINT, log)
    if _REGISTERS.search(said) is None:
        raise CompileError(
            f"NVRTC {nvrtc_version()} compiled {label} without saying how many registers it takes: "
            "install nvidia-cuda-nvrtc-cu12 12.9 or newer",
            log,
        )
    return Binary(
        cubin=cubin,
        registers=_only(_REGISTERS, said),
        spill_bytes=sum(int(found) for found in _SPILLS.findall(log)),
        static_smem=_only(_STATIC_SMEM, said),
        nvrtc=nvrtc_version(),
        seconds=time.perf_counter() - started,
        log=log,
    )


def check_front_end(kernel: Kernel, arch: Arch) -> list[str]:
    """The static_assert messages that `kernel`'s source raises; empty where it is accepted.

    Raises:
        CompileError: refused for another reason than a static_assert.
    """
    virtual = arch.target.replace("sm_", "compute_")
    try:
        _compile(source_text(kernel.source), options(virtual, kernel.defines), str(kernel), to_cubin=False)
    except CompileError as error:
        messages = list(dict.fromkeys(_ASSERTION.findall(error.log)))
        if not messages:
            raise
        return messages
    return []


def _compile(
    source: SourceText, flags: tuple[str, ...], label: str, *, to_cubin: bool = True
) -> tuple[bytes, str]:
    nvrtc = _nvrtc()
    # the bindings of CuPy for CUDA 12 take headers as text or bytes, those for CUDA 13 bytes alone
    names = [name.encode() for name, _ in source.headers]
    texts = [text.encode() for _, text in source.headers]
    program = nvrtc.createProgram(source.text, source.name, texts, names)
    try:
        try:
            nvrtc.compileProgram(program, list(flags))
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program)
            raise CompileError(f"{label} does not compile: {_first_error(log) or error}", log) from error
        log = nvrtc.getProgramLog(program)
        if not to_cubin:
            return b"", log
        # CuPy hands back one byte less than the ELF file: the driver takes it, disassemblers do not
        return nvrtc.getCUBIN(program) + b"\0", log
    finally:
        nvrtc.destroyProgram(program)


def _first_error(log: str) -> str:
    assertion = _ASSERTION.search(log)
    if assertion:
        return assertion.group(1)
    found = _ERROR.search(log)
    return found.group(1).strip() if found else ""


def _said_of(entry: str, log: str) -> str:
    """The part of a log that is about one entry function; all of it where it is about others alone."""
    begins = [found.start() for found in _ENTRY.finditer(log)]
    parts = [log[begin:end] for begin, end in itertools.pairwise([*begins, len(log)])]
    return next((part for part in parts if f"'{entry}'" in part.splitlines()[0]), log)


def _only(pattern: re.Pattern[str], log: str) -> int:
    found = pattern.search(log)
    return int(found.group(1)) if found else 0
