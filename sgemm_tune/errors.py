"""One hierarchy of errors.

Every message is one line and says what was wrong, what was found and what to do. Only `cli` prints
messages and turns them into exit codes: 2 where the request itself was wrong, otherwise 1.
"""

from __future__ import annotations

from collections.abc import Iterable


class SgemmTuneError(Exception):
    """Base of everything this package raises on purpose."""

    exit_code = 1


class UsageError(SgemmTuneError):
    """The request itself is wrong: an unknown name, a size of 0, options that contradict each other."""

    exit_code = 2


class UnknownName(UsageError):
    """A name that is not in a closed list; the message shows the list."""

    def __init__(self, kind: str, found: object, known: Iterable[str]) -> None:
        super().__init__(f"unknown {kind} {str(found)!r}: choose one of {', '.join(known)}")

    def __reduce__(self) -> tuple[type[UsageError], tuple[str]]:
        return UsageError, (str(self),)


class BadProblem(UsageError):
    """Sides, leading dimensions or scalars that describe no matrix product."""


class IllegalConfiguration(UsageError):
    """Values outside a stage's tunables, or a combination that its rules forbid."""


class CompileError(SgemmTuneError):
    """NVRTC refused a kernel.

    Attributes:
        log: the compiler's whole log.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log

    def __reduce__(self) -> tuple[type[CompileError], tuple[str, str]]:
        return type(self), (str(self), self.log)


class CompileTimeout(CompileError):
    """One configuration kept the compiler busy for longer than its deadline."""


class CompilerDied(CompileError):
    """The process that compiled a candidate died: a crash inside the compiler, or the kernel's out-of-memory
    killer."""


class LaunchError(SgemmTuneError):
    """The driver refused to load or launch a kernel (the context is still usable)."""


class OutOfDeviceMemory(SgemmTuneError):
    """The GPU's memory is too small for what was asked of it (the context is still usable)."""


class DeviceFault(SgemmTuneError):
    """A kernel broke the CUDA context (illegal access, misaligned address, assert): it must be replaced."""


class WorkerCrashed(SgemmTuneError):
    """The process that owns the GPU died while it worked on a request."""


class WorkerTimeout(SgemmTuneError):
    """A request outlasted its deadline; the process that owned the GPU was killed."""


class DeviceUnavailable(SgemmTuneError):
    """No usable GPU: none there, a driver that is too old, or libraries that are missing."""


class ConfigFileError(SgemmTuneError):
    """A configuration file that cannot be read or breaks its schema; names file, line and key."""


class ResultsFileError(SgemmTuneError):
    """A table of results that cannot be read or written."""


class StorageError(SgemmTuneError):
    """A study's storage that cannot be opened, or holds another space."""
