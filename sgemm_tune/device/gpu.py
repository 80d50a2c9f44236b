"""`protocol.Device` on a real GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from sgemm_tune.arch import parse_arch
from sgemm_tune.compiler.nvrtc import Binary
from sgemm_tune.device import info
from sgemm_tune.device.blas import Blas
from sgemm_tune.device.cublaslt import Algorithm, CublasLt
from sgemm_tune.device.failures import cuda_errors
from sgemm_tune.device.harness import Fixture, Fixtures, Harness
from sgemm_tune.device.launch import Loaded
from sgemm_tune.device.operands import Operands
from sgemm_tune.device.telemetry import Nvml
from sgemm_tune.device.timing import Timer, input_sets, launch_ms
from sgemm_tune.device.workspace import Workspace
from sgemm_tune.kernel import Kernel
from sgemm_tune.measure.cases import Case
from sgemm_tune.measure.outcome import DeviceInfo, Telemetry
from sgemm_tune.measure.protocol import Check, Policy, Timing
from sgemm_tune.problem import Precision, Problem

_FIXTURES_SHARE = 64
"""What part of the device's memory may hold hard shapes that later candidates will need as well."""


Run = Loaded | Algorithm | None
"""What is checked and timed; None stands for cuBLAS."""


@dataclass
class _Tuned:
    """What is kept for the shape being tuned.

    Attributes:
        key: problem and seed.
        fixture: the first input set, which is validated.
        operands: all input sets.
        baselines: how cuBLAS came out, by precision.
        launch_ms: what one launch took, roughly, of what else was checked.
    """

    key: tuple[Problem, int]
    fixture: Fixture
    operands: list[Operands]
    baselines: dict[Precision, Check] = field(default_factory=dict)
    launch_ms: WeakKeyDictionary[Any, float] = field(default_factory=WeakKeyDictionary)

    def known_ms(self, run: Run, precision: Precision) -> float | None:
        """What one launch took when it was checked; None where it was not."""
        if run is not None:
            return self.launch_ms.get(run)
        return self.baselines[precision].ms if precision in self.baselines else None


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
            self._fixtures = Fixtures(self._harness, self._info.memory_bytes // _FIXTURES_SHARE)
            self._timer = Timer(self._nvml.read)
            self._blas = Blas()
        self._workspace = Workspace(_bytes_of_memory)
        self._cublaslt: CublasLt | None = None
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
        with cuda_errors(f"loading {kernel}"):
            return Loaded.load(kernel, binary, self._info.sms, self._workspace)

    def heuristics(self, problem: Problem, precision: Precision) -> list[Algorithm]:
        """What cublasLt's heuristics propose for a product, the most promising first.

        Raises:
            DeviceUnavailable: cublasLt cannot be loaded.
        """
        with cuda_errors(f"asking cublasLt for {problem.shape}"):
            self._cublaslt = self._cublaslt or CublasLt()
            return self._cublaslt.heuristics(problem, precision)

    def check(self, loaded: Run, case: Case, precision: Precision, seed: int) -> Check:
        """Run `loaded` (None: cuBLAS) once on `case` over guarded, NaN-filled buffers and compare it."""

        def check() -> Check:
            fixture = self._fixtures.get(case, seed)
            self._launch(loaded, fixture.operands, precision)
            return self._harness.check(fixture)

        return self._with_room(loaded, case.problem, check)

    def check_tuned(self, loaded: Run, problem: Problem, precision: Precision, seed: int) -> Check:
        """The same on the tuned shape, twice, against a reference that is kept between calls."""
        return self._with_room(loaded, problem, lambda: self._checked_tuned(loaded, problem, precision, seed))

    def time(
        self,
        runs: Sequence[Run],
        problem: Problem,
        precision: Precision,
        policy: Policy,
        samples: int,
    ) -> Timing:
        """`samples` interleaved passes over `runs` (None: cuBLAS)."""
        with cuda_errors(f"timing {', '.join(_named(run) for run in runs)} on {problem.shape}"):
            sets = self._rotation(problem, policy)
            launches = [self._launcher(run, sets, precision) for run in runs]
            tuned = self._prepare(problem, policy.seed)
            known_ms = [tuned.known_ms(run, precision) for run in runs]
            return self._timer.time(launches, known_ms, len(sets), policy, samples)

    def telemetry(self) -> Telemetry:
        """Clocks, power and throttle reasons as they were while the last samples were taken."""
        return self._timer.telemetry

    def _with_room(self, loaded: Run, problem: Problem, check: Callable[[], Check]) -> Check:
        """`check()`, its failures in this package's words, with all the memory that there can be.

        Raises:
            LaunchError: the driver refused, or the kernel's own memory does not fit beside the operands.
            OutOfDeviceMemory: the operands do not fit.
        """

        def translated() -> Check:
            with cuda_errors(f"running {_named(loaded)} on {problem.shape}"):
                return check()

        return self._workspace.making_room(translated)

    def _checked_tuned(self, loaded: Run, problem: Problem, precision: Precision, seed: int) -> Check:
        tuned = self._prepare(problem, seed)
        if loaded is None and precision in tuned.baselines:
            return tuned.baselines[precision]
        fixture = tuned.fixture
        # launches are timed on the way: the timer then need not find out how long one takes
        fixture.restore()
        once = launch_ms(lambda: self._launch(loaded, fixture.operands, precision))
        first = fixture.c_words().copy()
        fixture.restore()
        again = launch_ms(lambda: self._launch(loaded, fixture.operands, precision))
        check = self._harness.check(fixture, earlier=first)
        # the shorter of two: of single ones, 9 in 4864 were disturbed and read up to 2.3 times too long
        check = replace(check, ms=min(once(), again()))
        if loaded is None:
            tuned.baselines[precision] = check
        else:
            tuned.launch_ms[loaded] = check.ms
        return check

    def _launcher(self, run: Run, sets: Sequence[Operands], precision: Precision) -> Callable[[int], None]:
        return lambda i: self._launch(run, sets[i], precision)

    def _launch(self, loaded: Run, operands: Operands, precision: Precision) -> None:
        if loaded is None:
            self._blas.gemm(operands, precision)
        else:
            loaded.launch(operands)

    def _prepare(self, problem: Problem, seed: int) -> _Tuned:
        if self._tuned is None or self._tuned.key != (problem, seed):
            self._release()
            fixture = self._harness.fixture(Case(problem, "the tuned shape"), seed)
            self._tuned = _Tuned((problem, seed), fixture, [fixture.operands])
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
        self._fixtures.clear()
        self._workspace.release()
        cupy.get_default_memory_pool().free_all_blocks()


def _bytes_of_memory(size: int) -> Any:
    import cupy

    with cuda_errors(f"reserving {size} bytes for a kernel"):
        return cupy.empty(size, dtype=cupy.uint8)


def _named(loaded: Run) -> str:
    return "cuBLAS" if loaded is None else str(loaded)
