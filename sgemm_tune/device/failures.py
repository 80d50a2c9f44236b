"""CUDA's errors in this package's words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sgemm_tune.errors import DeviceFault, LaunchError, OutOfDeviceMemory

_OUT_OF_MEMORY = 2
_STICKY = frozenset({700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999})
"""Illegal address, launch timeout, destroyed context, assert, hardware stack error, illegal instruction,
misaligned address, invalid address space, invalid program counter, launch failure, unknown: after one of
them every call in the process fails."""


@contextlib.contextmanager
def cuda_errors(doing: str) -> Iterator[None]:
    """Translate what CuPy raises while `doing`.

    Raises:
        DeviceFault: the context is broken.
        LaunchError: the driver refused, and the context still works.
        OutOfDeviceMemory: the device's memory is too small; `Workspace.making_room` knows for whom.
    """
    from cupy.cuda.memory import OutOfMemoryError
    from cupy_backends.cuda.api.driver import CUDADriverError
    from cupy_backends.cuda.api.runtime import CUDARuntimeError
    from cupy_backends.cuda.libs.cublas import CUBLASError

    try:
        yield
    except OutOfMemoryError as error:
        raise OutOfDeviceMemory(f"out of device memory while {doing}: {error}") from error
    except CUBLASError as error:
        raise DeviceFault(f"cuBLAS failed while {doing}: {error}") from error
    except (CUDADriverError, CUDARuntimeError) as error:
        if error.status in _STICKY:
            raise DeviceFault(f"{error} while {doing}") from error
        if error.status == _OUT_OF_MEMORY:
            raise OutOfDeviceMemory(f"out of device memory while {doing}: {error}") from error
        raise LaunchError(f"{error} while {doing}") from error
