"""Tensor maps: what the copy engine (TMA) is told of a matrix.

The driver's `cuTensorMapEncodeTiled` makes them. It is called through ctypes: CuPy does not bind it, and the
bindings that do are a package of their own.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from sgemm_tune.errors import DeviceUnavailable, LaunchError
from sgemm_tune.problem import FLOAT_BYTES

MAP_BYTES = 128
_MAP_ALIGNMENT = 64
_ALIGNMENT = 16
_LONGEST_SIDE = 2**32
_LONGEST_STRIDE = 2**40
_LONGEST_BOX = 256
_FLOAT32 = 7
_RANK = 2
_NO_INTERLEAVE = _NO_SWIZZLE = _ZEROS_OUTSIDE = 0
_PROMOTE_TO_256_BYTES = 3
"""Values of the driver's enumerations (CUDA Driver API, "Tensor Map Object Management")."""


@dataclass(frozen=True)
class TiledMap:
    """The arguments of one encoding, the matrix's contiguous side first.

    Attributes:
        pointer: device address of the first element.
        sides: elements along a row, rows.
        strides: bytes from one row to the next.
        box: elements along a row, rows of what is copied at a time.
    """

    pointer: int
    sides: tuple[int, int]
    strides: tuple[int]
    box: tuple[int, int]


def tiled_map(pointer: int, rows: int, cols: int, ld: int, box: tuple[int, int]) -> TiledMap | None:
    """What to encode for a row-major matrix of floats; None where the copy engine cannot take it.

    Args:
        pointer: device address of its first element.
        rows, cols: its sides.
        ld: elements from one row to the next.
        box: (rows, columns) that are copied at a time.
    """
    box_rows, box_cols = box
    stride = ld * FLOAT_BYTES
    allowed = (
        0 < rows <= _LONGEST_SIDE
        and 0 < cols <= _LONGEST_SIDE
        and cols <= ld
        and pointer % _ALIGNMENT == 0
        and stride % _ALIGNMENT == 0
        and stride < _LONGEST_STRIDE
        and 0 < box_rows <= _LONGEST_BOX
        and 0 < box_cols <= _LONGEST_BOX
        and box_cols * FLOAT_BYTES % _ALIGNMENT == 0
    )
    return TiledMap(pointer, (cols, rows), (stride,), (box_cols, box_rows)) if allowed else None


@functools.lru_cache(maxsize=1024)
def encode(maps: tuple[TiledMap | None, ...]) -> Any:
    """The maps as a NumPy array of one element, 128 bytes for each, zeros for None: CuPy passes it by value.

    Raises:
        DeviceUnavailable: the driver's library cannot be loaded, or is too old to know tensor maps.
        LaunchError: the driver refused the arguments.
    """
    size = len(maps) * MAP_BYTES
    memory = np.zeros(size + _MAP_ALIGNMENT, dtype=np.uint8)
    begin = -memory.ctypes.data % _MAP_ALIGNMENT
    encoded = memory[begin : begin + size].view(f"V{size}")
    for i, arguments in enumerate(maps):
        if arguments is not None:
            _encode(encoded.ctypes.data + i * MAP_BYTES, arguments)
    return encoded


def _encode(to: int, arguments: TiledMap) -> None:
    status = _encoder()(
        ctypes.c_void_p(to),
        ctypes.c_int(_FLOAT32),
        ctypes.c_uint32(_RANK),
        ctypes.c_void_p(arguments.pointer),
        (ctypes.c_uint64 * _RANK)(*arguments.sides),
        (ctypes.c_uint64 * (_RANK - 1))(*arguments.strides),
        (ctypes.c_uint32 * _RANK)(*arguments.box),
        (ctypes.c_uint32 * _RANK)(1, 1),
        ctypes.c_int(_NO_INTERLEAVE),
        ctypes.c_int(_NO_SWIZZLE),
        ctypes.c_int(_PROMOTE_TO_256_BYTES),
        ctypes.c_int(_ZEROS_OUTSIDE),
    )
    if status != 0:
        raise LaunchError(f"cuTensorMapEncodeTiled failed with status {status} for {arguments}")


@functools.cache
def _encoder() -> Any:
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        function = ctypes.CDLL(name).cuTensorMapEncodeTiled
    except (OSError, AttributeError) as error:
        raise DeviceUnavailable(
            f"{name} has no cuTensorMapEncodeTiled ({error}): update the driver"
        ) from error
    function.restype = ctypes.c_int
    return function
