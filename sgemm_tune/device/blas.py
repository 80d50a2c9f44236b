"""The baseline: cuBLAS in a stated precision, through `cublasGemmEx`.

Called through ctypes on CuPy's own handle, because CuPy refuses cuBLAS while a stream is captured, and short
products can only be timed inside a graph.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

from sgemm_tune.device.operands import Operands
from sgemm_tune.errors import DeviceFault, DeviceUnavailable
from sgemm_tune.problem import Precision

_CUDA_R_32F = 0
WORKSPACE_BYTES = 32 << 20
"""What cuBLAS itself takes on sm_90, and more than it takes elsewhere (cuBLAS documentation,
cublasSetWorkspace); a workspace of our own keeps it from allocating inside a graph."""


class Blas:
    """cuBLAS on the current device."""

    def __init__(self) -> None:
        import cupy
        from cupy_backends.cuda.libs import cublas

        self._constants: Any = cublas
        self._handle = ctypes.c_void_p(cupy.cuda.device.get_cublas_handle())
        self._library = library("cublas", cublas.getVersion(self._handle.value) // 10000)
        self._workspace: Any = cupy.empty(WORKSPACE_BYTES, dtype=cupy.uint8)
        self._compute = {
            # neither CUPY_TF32 nor NVIDIA_TF32_OVERRIDE turns the pedantic mode into TF32
            Precision.FP32: cublas.CUBLAS_COMPUTE_32F_PEDANTIC,
            Precision.TF32: cublas.CUBLAS_COMPUTE_32F_FAST_TF32,
        }

    def gemm(self, operands: Operands, precision: Precision) -> None:
        """Enqueue C = alpha A B + beta C on the current stream.

        Row-major C = A B is column-major C^T = B^T A^T.

        Raises:
            DeviceFault: cuBLAS reports a failure.
        """
        import cupy

        p = operands.problem
        alpha, beta = ctypes.c_float(p.alpha), ctypes.c_float(p.beta)
        none = self._constants.CUBLAS_OP_N
        stream = ctypes.c_void_p(cupy.cuda.get_current_stream().ptr)
        self._call("cublasSetStream_v2", self._handle, stream)
        workspace = ctypes.c_void_p(self._workspace.data.ptr)
        self._call("cublasSetWorkspace_v2", self._handle, workspace, ctypes.c_size_t(WORKSPACE_BYTES))
        self._call(
            "cublasGemmEx",
            self._handle,
            none,
            none,
            p.n,
            p.m,
            p.k,
            ctypes.byref(alpha),
            ctypes.c_void_p(operands.pointer(operands.b)),
            _CUDA_R_32F,
            p.ldb,
            ctypes.c_void_p(operands.pointer(operands.a)),
            _CUDA_R_32F,
            p.lda,
            ctypes.byref(beta),
            ctypes.c_void_p(operands.pointer(operands.c)),
            _CUDA_R_32F,
            p.ldc,
            self._compute[precision],
            self._constants.CUBLAS_GEMM_DEFAULT,
        )

    def _call(self, function: str, *args: Any) -> None:
        status = getattr(self._library, function)(*args)
        if status != 0:
            raise DeviceFault(f"{function} failed with status {status}")


@functools.cache
def library(stem: str, major: int) -> ctypes.CDLL:
    """`cublas` or `cublasLt` as CuPy has loaded it: the loader hands out the same library for the same name.

    Raises:
        DeviceUnavailable: it cannot be loaded.
    """
    name = f"{stem}64_{major}.dll" if sys.platform == "win32" else f"lib{stem}.so.{major}"
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise DeviceUnavailable(
            f"{name} cannot be loaded ({error}): pip install nvidia-cublas-cu{major}"
        ) from error
