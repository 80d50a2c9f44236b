"""`protocol.Device` on a real GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sgemm_tune.arch import parse_arch
from sgemm_tune.compiler.nvrtc import Binary
from sgemm_tune.device import info
from sgemm_tune.device.blas import Blas
from sgemm_tune.device.failures import cuda_errors
from sgemm_tune.device.harness import Harness, Operands, Reference
from sgemm_tune.device.telemetry import Nvml
from sgemm_tune.device.timing import Timer, input_sets
from sgemm_tune.kernel import ENTRY_POINT, Kernel
from sgemm_tune.measure.cases import Case
from sgemm_tune.measure.outcome import DeviceInfo, Telemetry
from sgemm_tune.measure.protocol import Check, Policy, Timing
from sgemm_tune.problem import Precision, Problem

_DEFAULT_DYNAMIC_SMEM = 48 * 1024
_GUARD_NAN = float("nan")


@dataclass(frozen=True)
class Loaded:
    """A kernel ready to launch; `module` keeps its code alive."""

    kernel: Kernel
    function: Any
    module: Any

    def launch(self, operands: Operands) -> None:
        """Enqueue one launch on the current stream; nothing where C is empty."""
        p = operands.problem
        blocks = self.kernel.grid(p)
        if blocks == 0:
            return
        # Python ints and floats would arrive as 64-bit arguments
        self.function(
            (blocks,),
            (self.kernel.threads,),
            (
                np.int32(p.m),
                np.int32(p.n),
                np.int32(p.k),
                np.float32(p.alpha),
                np.uintp(operands.pointer(operands.a)),
                np.int32(p.lda),
                np.uintp(operands.pointer(operands.b)),
                np.int32(p.ldb),
                np.float32(p.beta),
                np.uintp(operands.pointer(operands.c)),
                np.int32(p.ldc),
            ),
            shared_mem=self.kernel.smem_bytes,
        )


@dataclass
class _Tuned:
    """What is kept for the shape being tuned: guarded input sets, the first one's reference, baselines."""

    key: tuple[Problem, int]
    operands: list[Operands]
    reference: Reference
    baselines: dict[Precision, Check]


class GpuDevice:
    """One GPU of this process.

    Args:
        ordinal: CUDA's number of the device.

    Raises:
        DeviceUnavailable: there is none, or it cannot be used.
    """

    def __init__(self, ordinal: int) -> None:
        info.select(ordinal)
        self._info = info.describe(ordinal)
        self._nvml = Nvml(info.pci_bus_id(ordinal))
        with cuda_errors("loading the harness"):
            self._harness = Harness(parse_arch(self._info.arch))
            self._timer = Timer(self._nvml.read)
            self._blas = Blas()
        self._tuned: _Tuned | None = None

    @property
    def info(self) -> DeviceInfo:
        """Which device this is."""
        return self._info

    def load(self, kernel: Kernel, binary: Binary) -> Loaded:
        """Load a cubin and raise its shared-memory limit where it needs more than 48 KiB.

        Raises:
            LaunchError: the driver refused.
        """
        import cupy
        from cupy_backends.cuda.api import driver

        with cuda_errors(f"loading {kernel}"):
            module = cupy.cuda.function.Module()
            module.load(binary.cubin)
            function = module.get_function(ENTRY_POINT)
            if kernel.smem_bytes + binary.static_smem > _DEFAULT_DYNAMIC_SMEM:
                attribute = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                driver.funcSetAttribute(function.ptr, attribute, kernel.smem_bytes)
        return Loaded(kernel, function, module)

    def check(self, loaded: Loaded | None, case: Case, precision: Precision, seed: int) -> Check:
        """Run `loaded` (None: cuBLAS) once on `case` over guarded, NaN-filled buffers and compare it."""
        with cuda_errors(f"running {_named(loaded)} on {case.problem.shape}"):
            operands = Operands(case.problem, case.misaligned)
            self._harness.fill(operands, seed, poisoned=case.poisoned)
            if case.specials:
                _put_specials(operands)
            reference = self._harness.reference(operands)
            self._launch(loaded, operands, precision)
            untouched = not (case.poisoned or case.specials)
            return self._harness.check(operands, reference, seed, inputs=untouched)

    def check_tuned(self, loaded: Loaded | None, problem: Problem, precision: Precision, seed: int) -> Check:
        """The same on the tuned shape, twice, against a reference that is kept between calls."""
        with cuda_errors(f"running {_named(loaded)} on {problem.shape}"):
            tuned = self._prepare(problem, seed)
            if loaded is None and precision in tuned.baselines:
                return tuned.baselines[precision]
            operands = tuned.operands[0]
            self._harness.refill_c(operands, seed)
            self._launch(loaded, operands, precision)
            first = operands.arena.copy()
            self._harness.refill_c(operands, seed)
            self._launch(loaded, operands, precision)
            check = self._harness.check(operands, tuned.reference, seed, earlier=first)
            if loaded is None:
                tuned.baselines[precision] = check
            return check

    def time(
        self,
        runs: Sequence[Loaded | None],
        problem: Problem,
        precision: Precision,
        policy: Policy,
        samples: int,
    ) -> Timing:
        """`samples` interleaved passes over `runs` (None: cuBLAS)."""
        with cuda_errors(f"timing {', '.join(_named(run) for run in runs)} on {problem.shape}"):
            sets = self._rotation(problem, policy)
            launches = [self._launcher(run, sets, precision) for run in runs]
            return self._timer.time(launches, len(sets), policy, samples)

    def telemetry(self) -> Telemetry:
        """Clocks, power and throttle reasons as they were while the last samples were taken."""
        return self._timer.telemetry

    def _launcher(
        self, run: Loaded | None, sets: Sequence[Operands], precision: Precision
    ) -> Callable[[int], None]:
        return lambda i: self._launch(run, sets[i], precision)

    def _launch(self, loaded: Loaded | None, operands: Operands, precision: Precision) -> None:
        if loaded is None:
            self._blas.gemm(operands, precision)
        else:
            loaded.launch(operands)

    def _prepare(self, problem: Problem, seed: int) -> _Tuned:
        if self._tuned is None or self._tuned.key != (problem, seed):
            self._release()
            operands = Operands(problem)
            self._harness.fill(operands, seed)
            self._tuned = _Tuned((problem, seed), [operands], self._harness.reference(operands), {})
        return self._tuned

    def _rotation(self, problem: Problem, policy: Policy) -> list[Operands]:
        """The input sets, made at their first use; the first is the one that was validated."""
        import cupy

        tuned = self._prepare(problem, policy.seed)
        free = cupy.cuda.runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes()
        needed = input_sets(problem, self._info.l2_bytes, free, policy)
        for i in range(len(tuned.operands), needed):
            operands = Operands(problem)
            self._harness.fill(operands, policy.seed + i)
            tuned.operands.append(operands)
        cupy.cuda.get_current_stream().synchronize()  # the timer's stream does not wait for this one
        return tuned.operands[:needed]

    def _release(self) -> None:
        import cupy

        self._tuned = None
        cupy.get_default_memory_pool().free_all_blocks()


def _named(loaded: Loaded | None) -> str:
    return "cuBLAS" if loaded is None else str(loaded.kernel)


def _put_specials(operands: Operands) -> None:
    """Infinities and NaN in a few places of A and B, so that some rows and columns of C must show them."""
    a, b = operands.view(operands.a), operands.view(operands.b)
    a[1, 2], a[2, 0], b[2, 5], b[0, 9] = float("inf"), _GUARD_NAN, float("-inf"), _GUARD_NAN
