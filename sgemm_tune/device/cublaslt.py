"""The algorithms that cublasLt's heuristics propose: what a caller who looks further than cuBLAS could have.

Values and layouts are those of cublasLt.h and cublas_api.h. Without a GPU only descriptors can be made.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

from sgemm_tune.device.blas import WORKSPACE_BYTES, library
from sgemm_tune.device.operands import Operands
from sgemm_tune.errors import DeviceFault, LaunchError
from sgemm_tune.problem import Precision, Problem

MOST_ALGORITHMS = 16
"""How many proposals are asked for."""

CUDA_R_32F = 0
CUBLAS_COMPUTE_32F = 68
CUBLAS_COMPUTE_32F_PEDANTIC = 69
CUBLAS_COMPUTE_32F_FAST_TF32 = 77
CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1
CUBLASLT_MATMUL_PREF_IMPL_MASK = 12
CUBLASLT_NUMERICAL_IMPL_FLAGS_TENSOR_OP_MASK = 0xFE
CUBLAS_STATUS_INVALID_VALUE = 7
CUBLAS_STATUS_ARCH_MISMATCH = 8
CUBLAS_STATUS_NOT_SUPPORTED = 15

_ANY_IMPLEMENTATION = 2**64 - 1
_NO_TENSOR_CORES = _ANY_IMPLEMENTATION - CUBLASLT_NUMERICAL_IMPL_FLAGS_TENSOR_OP_MASK
_MODES = {
    # the second is asked for where the first has no algorithm: by itself it may mean TF32
    Precision.FP32: (
        (CUBLAS_COMPUTE_32F_PEDANTIC, _ANY_IMPLEMENTATION),
        (CUBLAS_COMPUTE_32F, _NO_TENSOR_CORES),
    ),
    Precision.TF32: ((CUBLAS_COMPUTE_32F_FAST_TF32, _ANY_IMPLEMENTATION),),
}
"""(compute type, implementations that are allowed), in the order to be asked for."""

_REFUSALS = (CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_ARCH_MISMATCH, CUBLAS_STATUS_NOT_SUPPORTED)
"""Statuses after which the context still works."""


class MatmulAlgo(ctypes.Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = (("data", ctypes.c_uint64 * 8),)


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algo", MatmulAlgo),
        ("workspace_size", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves_count", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


_OBJECT = ctypes.c_void_p
_NEW = ctypes.POINTER(ctypes.c_void_p)
_SCALAR = ctypes.POINTER(ctypes.c_float)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (_NEW,),
    "cublasLtMatmulDescCreate": (_NEW, ctypes.c_int, ctypes.c_int),
    "cublasLtMatmulDescDestroy": (_OBJECT,),
    "cublasLtMatrixLayoutCreate": (_NEW, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    "cublasLtMatrixLayoutDestroy": (_OBJECT,),
    "cublasLtMatmulPreferenceCreate": (_NEW,),
    "cublasLtMatmulPreferenceDestroy": (_OBJECT,),
    "cublasLtMatmulPreferenceSetAttribute": (_OBJECT, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t),
    "cublasLtMatmulAlgoGetHeuristic": (
        *[_OBJECT] * 7,
        *(ctypes.c_int, ctypes.POINTER(HeuristicResult), ctypes.POINTER(ctypes.c_int)),
    ),
    "cublasLtMatmul": (
        *(_OBJECT, _OBJECT, _SCALAR, ctypes.c_void_p, _OBJECT, ctypes.c_void_p, _OBJECT),
        *(_SCALAR, ctypes.c_void_p, _OBJECT, ctypes.c_void_p, _OBJECT),
        *(ctypes.POINTER(MatmulAlgo), ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p),
    ),
}


class Api:
    """The functions of cublasLt that are used here, with their C types.

    Args:
        loaded: the library.
    """

    def __init__(self, loaded: ctypes.CDLL) -> None:
        self._functions: dict[str, Any] = {}
        for name, types in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.argtypes = types
            self._functions[name] = function

    def status(self, name: str, *args: Any) -> int:
        """Call a function and return its status."""
        return int(self._functions[name](*args))

    def call(self, name: str, *args: Any) -> None:
        """Call a function that must succeed.

        Raises:
            LaunchError: cublasLt refuses the request.
            DeviceFault: any other failure.
        """
        status = self.status(name, *args)
        if status in _REFUSALS:
            raise LaunchError(f"{name} refused the product with status {status}")
        if status != 0:
            raise DeviceFault(f"{name} failed with status {status}")

    def create(self, kind: str, *args: Any) -> ctypes.c_void_p:
        """A new object, such as `MatmulDesc`.

        Raises:
            LaunchError, DeviceFault: as `call`.
        """
        made = ctypes.c_void_p()
        self.call(f"cublasLt{kind}Create", ctypes.byref(made), *args)
        return made


class Descriptors:
    """What cublasLt is told of a product; freed with this object.

    Row-major C = A B is column-major C^T = B^T A^T, so its first operand is our B.

    Args:
        api: the library.
        problem: sides and leading dimensions.
        compute_type: a cublasComputeType_t.
        implementations: mask of cublasLtNumericalImplFlags_t that are allowed.
    """

    def __init__(self, api: Api, problem: Problem, compute_type: int, implementations: int) -> None:
        p = problem
        self.matmul = self._make(api, "MatmulDesc", compute_type, CUDA_R_32F)
        self.first = self._make(api, "MatrixLayout", CUDA_R_32F, p.n, p.k, p.ldb)
        self.second = self._make(api, "MatrixLayout", CUDA_R_32F, p.k, p.m, p.lda)
        self.result = self._make(api, "MatrixLayout", CUDA_R_32F, p.n, p.m, p.ldc)
        self.preference = self._make(api, "MatmulPreference")
        for attribute, number in (
            (CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, WORKSPACE_BYTES),
            (CUBLASLT_MATMUL_PREF_IMPL_MASK, implementations),
        ):
            value = ctypes.c_uint64(number)
            api.call(
                "cublasLtMatmulPreferenceSetAttribute",
                self.preference,
                attribute,
                ctypes.byref(value),
                ctypes.sizeof(value),
            )

    def _make(self, api: Api, kind: str, *args: Any) -> ctypes.c_void_p:
        made = api.create(kind, *args)
        weakref.finalize(self, api.status, f"cublasLt{kind}Destroy", made)
        return made


class CublasLt:
    """cublasLt on the current device.

    Raises:
        DeviceUnavailable: the library cannot be loaded.
        DeviceFault: it cannot be set up.
    """

    def __init__(self) -> None:
        import cupy
        from cupy_backends.cuda.libs import cublas

        version = cublas.getVersion(cupy.cuda.device.get_cublas_handle())
        self._api = Api(library("cublasLt", version // 10000))
        self._handle = ctypes.c_void_p()
        self._api.call("cublasLtCreate", ctypes.byref(self._handle))
        self._workspace: Any = cupy.empty(WORKSPACE_BYTES, dtype=cupy.uint8)

    def heuristics(self, problem: Problem, precision: Precision) -> list[Algorithm]:
        """At most `MOST_ALGORITHMS` proposals, the most promising first; none for an empty product.

        They hold for operands that are aligned to 256 bytes.

        Raises:
            DeviceFault: cublasLt fails.
        """
        if min(problem.m, problem.n, problem.k) == 0:
            return []
        for compute_type, implementations in _MODES[precision]:
            made = Descriptors(self._api, problem, compute_type, implementations)
            found = self._proposed(made)
            if found:
                return [Algorithm(self, made, algo, rank) for rank, algo in enumerate(found)]
        return []

    def _proposed(self, made: Descriptors) -> list[MatmulAlgo]:
        results = (HeuristicResult * MOST_ALGORITHMS)()
        count = ctypes.c_int(0)
        layouts = (made.first, made.second, made.result, made.result)
        try:
            self._api.call(
                "cublasLtMatmulAlgoGetHeuristic",
                self._handle,
                made.matmul,
                *layouts,
                made.preference,
                MOST_ALGORITHMS,
                results,
                ctypes.byref(count),
            )
        except LaunchError:  # its way to say that there is none
            return []
        return [
            MatmulAlgo.from_buffer_copy(result.algo)
            for result in results[: count.value]
            if result.state == 0 and result.workspace_size <= WORKSPACE_BYTES
        ]

    def matmul(self, made: Descriptors, algo: MatmulAlgo, operands: Operands) -> None:
        """Enqueue C = alpha A B + beta C on the current stream.

        Raises:
            LaunchError: the algorithm refuses the operands.
            DeviceFault: cublasLt fails.
        """
        import cupy

        p = operands.problem
        alpha, beta = ctypes.c_float(p.alpha), ctypes.c_float(p.beta)
        c = operands.pointer(operands.c)
        self._api.call(
            "cublasLtMatmul",
            self._handle,
            made.matmul,
            ctypes.byref(alpha),
            operands.pointer(operands.b),
            made.first,
            operands.pointer(operands.a),
            made.second,
            ctypes.byref(beta),
            c,
            made.result,
            c,
            made.result,
            ctypes.byref(algo),
            self._workspace.data.ptr,
            WORKSPACE_BYTES,
            cupy.cuda.get_current_stream().ptr,
        )


class Algorithm:
    """One proposal, launched like a kernel on operands of the sides and leading dimensions it was made for.

    Args:
        blas: runs it.
        made: the product.
        algo: what the heuristics chose.
        rank: its place in their order, from 0.
    """

    def __init__(self, blas: CublasLt, made: Descriptors, algo: MatmulAlgo, rank: int) -> None:
        self.rank = rank
        self._blas = blas
        self._made = made
        self._algo = algo

    def __str__(self) -> str:
        return f"cublasLt's proposal {self.rank}"

    def launch(self, operands: Operands) -> None:
        """Enqueue one launch on the current stream.

        Raises:
            LaunchError, DeviceFault: as `CublasLt.matmul`.
        """
        self._blas.matmul(self._made, self._algo, operands)
