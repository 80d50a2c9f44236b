"""A loaded kernel and its launch: arguments, tensor maps, memory of its own, the pass that goes before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sgemm_tune.compiler.nvrtc import Binary
from sgemm_tune.device.operands import Matrix, Operands
from sgemm_tune.device.tensor_maps import TiledMap, encode, tiled_map
from sgemm_tune.device.workspace import Workspace
from sgemm_tune.kernel import ENTRY_POINT, Kernel, ceil_div
from sgemm_tune.problem import FLOAT_BYTES, Problem

PACK_ENTRY_POINT = "sgemm_pack"
PACK_THREADS = 256
PACK_SIDE = 32
"""The pre-pass takes squares of this side, a block each."""

_DEFAULT_DYNAMIC_SMEM = 48 * 1024
_VECTOR = 4


@dataclass(frozen=True)
class Packed:
    """Where a pre-pass puts the operands that it lays out anew; addresses of device memory.

    Attributes:
        a: of A transposed, K rows of M floats, each on 16 bytes.
        b: of B with each row on 16 bytes; 0 where its own are.
    """

    a: int
    b: int


def aligned(cols: int) -> int:
    """The leading dimension of rows of `cols` floats that each begin on 16 bytes."""
    return ceil_div(cols, _VECTOR) * _VECTOR


def packed_bytes(problem: Problem) -> tuple[int, int]:
    """Bytes that A and B take when they are packed."""
    p = problem
    return FLOAT_BYTES * p.k * aligned(p.m), FLOAT_BYTES * p.k * aligned(p.n)


def pack_blocks(problem: Problem, packed: Packed) -> int:
    """Blocks of the pre-pass: squares of A, then of B where that is packed."""
    rows, cols, depth = (ceil_div(side, PACK_SIDE) for side in (problem.m, problem.n, problem.k))
    return depth * (rows + (cols if packed.b else 0))


@dataclass(frozen=True, eq=False)
class Loaded:
    """A kernel ready to launch on a device of `sms` multiprocessors.

    Attributes:
        function: its entry point.
        pack: that of its pre-pass, or None.
        module: keeps its code alive.
        workspace: memory that it may write, shared with the other kernels.
    """

    kernel: Kernel
    function: Any
    pack: Any
    module: Any
    sms: int
    workspace: Workspace

    def __str__(self) -> str:
        return str(self.kernel)

    @classmethod
    def load(cls, kernel: Kernel, binary: Binary, sms: int, workspace: Workspace) -> Loaded:
        """Load a cubin and raise its shared-memory limit where it needs more than 48 KiB."""
        import cupy
        from cupy_backends.cuda.api import driver

        module = cupy.cuda.function.Module()
        module.load(binary.cubin)
        function = module.get_function(ENTRY_POINT)
        if kernel.smem_bytes + binary.static_smem > _DEFAULT_DYNAMIC_SMEM:
            attribute = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            driver.funcSetAttribute(function.ptr, attribute, kernel.smem_bytes)
        pack = module.get_function(PACK_ENTRY_POINT) if kernel.box_of_a else None
        return cls(kernel, function, pack, module, sms, workspace)

    def launch(self, operands: Operands) -> None:
        """Enqueue one launch on the current stream, and that of its pre-pass; nothing where C is empty."""
        p = operands.problem
        blocks = self.kernel.blocks(p, self.sms)
        if blocks == 0:
            return
        own, packed = self._own_memory(operands)
        if packed is not None:
            self._launch_pack(operands, packed)
        self.function(
            (blocks,),
            (self.kernel.threads,),
            (
                *_sides_alpha_a(operands),
                *_matrix(operands, operands.b, p.ldb),
                np.float32(p.beta),
                *_matrix(operands, operands.c, p.ldc),
                *self._maps(operands, packed),
                *((np.uintp(own),) if self.kernel.takes_workspace else ()),
                *map(np.int32, self.kernel.launch_values),
            ),
            shared_mem=self.kernel.smem_bytes,
        )

    def _own_memory(self, operands: Operands) -> tuple[int, Packed | None]:
        """Where the kernel may write for itself, and where its pre-pass puts operands."""
        p = operands.problem
        if not self.kernel.takes_workspace:
            return 0, None
        own = self.kernel.workspace_bytes(p, self.sms)
        if self.pack is None or p.k == 0:
            return self.workspace.reserve(own), None
        sizes = packed_bytes(p)
        begin = self.workspace.reserve(own + sum(sizes))
        as_it_is = self._map_of_b(operands) is not None
        return begin, Packed(begin + own, 0 if as_it_is else begin + own + sizes[0])

    def _launch_pack(self, operands: Operands, packed: Packed) -> None:
        self.pack(
            (pack_blocks(operands.problem, packed),),
            (PACK_THREADS,),
            (
                *_sides_alpha_a(operands),
                np.uintp(packed.a),
                *_matrix(operands, operands.b, operands.problem.ldb),
                np.uintp(packed.b),
            ),
        )

    def _maps(self, operands: Operands, packed: Packed | None) -> tuple[Any, ...]:
        """The maps of A and B, and whether that of B is valid, where the kernel asks for them."""
        p, of_a, of_b = operands.problem, self.kernel.box_of_a, self.kernel.box_of_b
        if of_b is None:
            return ()
        map_of_a, map_of_b = None, self._map_of_b(operands)
        if packed is not None and of_a is not None:
            map_of_a = tiled_map(packed.a, p.k, p.m, aligned(p.m), of_a)
            if packed.b:
                map_of_b = tiled_map(packed.b, p.k, p.n, aligned(p.n), of_b)
        return encode((map_of_a, map_of_b)), np.int32(map_of_b is not None)

    def _map_of_b(self, operands: Operands) -> TiledMap | None:
        p, box = operands.problem, self.kernel.box_of_b
        assert box is not None
        return tiled_map(operands.pointer(operands.b), p.k, p.n, p.ldb, box)


def _sides_alpha_a(operands: Operands) -> tuple[np.generic, ...]:
    """What a kernel takes first, and its pre-pass as well."""
    p = operands.problem
    sides = np.int32(p.m), np.int32(p.n), np.int32(p.k)  # Python's own numbers would arrive as 64 bits
    return *sides, np.float32(p.alpha), *_matrix(operands, operands.a, p.lda)


def _matrix(operands: Operands, matrix: Matrix, ld: int) -> tuple[np.generic, ...]:
    return np.uintp(operands.pointer(matrix)), np.int32(ld)
