"""A scripted GPU and a scripted compiler, for the real worker process and the real compile pool.

A `Script` says by configuration what goes wrong; whatever it does not name is healthy and takes a time that
follows from the configuration alone. Everything here is picklable and importable in spawned processes.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgemm_tune.arch import Arch, parse_arch
from sgemm_tune.compiler.cache import BinaryCache
from sgemm_tune.compiler.nvrtc import Binary
from sgemm_tune.compiler.pool import CompilePool
from sgemm_tune.device.workspace import Workspace
from sgemm_tune.errors import (
    CompileError,
    DeviceFault,
    DeviceUnavailable,
    LaunchError,
    OutOfDeviceMemory,
)
from sgemm_tune.kernel import Code, Kernel, stage_named, suited
from sgemm_tune.measure.cases import Case
from sgemm_tune.measure.cublaslt import CublasLtTime, best_of_cublaslt
from sgemm_tune.measure.evaluate import compare, evaluate
from sgemm_tune.measure.outcome import DeviceInfo, Outcome, Rejected, Samples, Status, Telemetry
from sgemm_tune.measure.protocol import Check, Policy, Request, Timing
from sgemm_tune.measure.worker import GpuWorker
from sgemm_tune.problem import Precision, Problem

if TYPE_CHECKING:
    from sgemm_tune.search.types import Progress, SearchResult

INFO = DeviceInfo(
    "NVIDIA H200",
    "GPU-fake",
    "sm_90",
    132,
    50 << 20,
    140 << 30,
    1980,
    4800.0,
    "570.1",
    "12.9",
    "12.9",
    "12.9",
)
CUBLAS_MS = 2.0
RIGHT = Check(error=1e-7, norm_error=1e-7)
FOREVER = 3600.0

COMPILE_FAULTS: dict[str, tuple[Status, str]] = {
    "does_not_compile": (Status.COMPILE, "undeclared"),
    "minutes_in_compiler": (Status.COMPILE, "compiler"),
    "compiler_crashes": (Status.COMPILE, "compiler process died"),
    "compiler_exits": (Status.COMPILE, "compiler process died"),
    "spills": (Status.SPILL, "128 bytes of spills"),
}
WRONG_CHECKS: dict[str, tuple[Check, str]] = {
    "nothing_written": (Check(0.0, 0.0, unwritten=4096), "4096 elements of C were never written"),
    "half_unwritten": (Check(0.0, 0.0, unwritten=2048), "never written"),
    "beta_zero_reads_c": (Check(0.0, 0.0, nonfinite=9), "NaN or Inf"),
    "error_is_nan": (Check(float("nan"), 1e-7), "above the bound"),
    "error_is_infinite": (Check(float("inf"), 1e-7), "above the bound"),
    "write_past_end": (Check(1e-7, 1e-7, guards=4), "outside the matrices"),
    "input_overwritten": (Check(1e-7, 1e-7, inputs_changed=1), "of A or B"),
    "last_k_skipped": (Check(3e-3, 3e-3, row=7, col=9), "row 7, column 9"),
    "missing_barrier": (Check(1e-7, 1e-7, repeatable=False), "a race"),
}
DEVICE_FAULTS: dict[str, tuple[Status, str]] = {
    **{name: (Status.WRONG, text) for name, (_, text) in WRONG_CHECKS.items()},
    "wrong_when_misaligned": (Status.WRONG, "pointers aligned to 4 bytes only"),
    "wrong_when_tuned": (Status.WRONG, "tuned shape"),
    "tf32_in_fp32": (Status.WRONG, "cuBLAS's own"),
    "race_when_tuned": (Status.WRONG, "a race"),
    "too_much_smem": (Status.LAUNCH, "invalid argument"),
    "launch_refused": (Status.LAUNCH, "out of resources"),
    "own_memory_too_large": (Status.LAUNCH, "no room for 1024.0 MiB of its own"),
    "refused_when_timed": (Status.LAUNCH, "too many resources"),
    "illegal_access": (Status.CRASHED, "illegal memory access"),
    "misaligned_address": (Status.CRASHED, "misaligned address"),
    "fault_when_timed": (Status.CRASHED, "illegal memory access"),
    "fault_when_loaded": (Status.CRASHED, "illegal memory access"),
    "segfault": (Status.CRASHED, "SIGSEGV"),
    "segfault_when_timed": (Status.CRASHED, "SIGSEGV"),
    "killed": (Status.CRASHED, "SIGKILL"),
    "exits": (Status.CRASHED, "exit code 3"),
    "out_of_host_memory": (Status.CRASHED, "MemoryError"),
    "endless_loop": (Status.TIMEOUT, "no answer within"),
    "endless_when_timed": (Status.TIMEOUT, "no answer within"),
    "endless_in_load": (Status.TIMEOUT, "no answer within"),
    "above_peak": (Status.WRONG, "above the device's peak"),
    "no_time": (Status.WRONG, "above the device's peak"),
    "time_is_nan": (Status.WRONG, "peak"),
}
FAULTS = COMPILE_FAULTS | DEVICE_FAULTS
"""Every fault with the status and a part of the reason that it must be rejected with."""

SLOW_TO_DETECT = ("minutes_in_compiler", "endless_loop", "endless_when_timed", "endless_in_load")
"""Faults that show only at a deadline."""


@dataclass(frozen=True)
class FakeAlgorithm:
    """One proposal of cublasLt's heuristics.

    Attributes:
        ms: its true time.
        check: how it comes out.
        refuses: it does not take the operands.
    """

    ms: float = 1.8
    check: Check = RIGHT
    refuses: bool = False


@dataclass(frozen=True)
class Script:
    """What the device and the compiler do.

    Attributes:
        faults: name of a fault by `str(kernel)`.
        ms: time by `str(kernel)`; by default it follows from the name.
        noise: relative spread of the samples.
        pause, compile_pause: seconds that one evaluation and one compilation take.
        throttled: every sample is taken while the GPU throttles.
        neighbours: other processes that use the GPU.
        baseline: how cuBLAS comes out.
        heuristics: what cublasLt proposes.
        log: every evaluation and compilation adds a line to this file: what was tried, and how often.
        no_device: the device cannot be opened while this file exists.
    """

    faults: Mapping[str, str] = field(default_factory=dict)
    ms: Mapping[str, float] = field(default_factory=dict)
    noise: float = 0.001
    pause: float = 0.0
    compile_pause: float = 0.0
    throttled: bool = False
    neighbours: int = 0
    baseline: Check = RIGHT
    heuristics: tuple[FakeAlgorithm, ...] = (FakeAlgorithm(),)
    log: Path | None = None
    no_device: Path | None = None

    def fault(self, kernel: Kernel | None) -> str:
        """The kernel's fault; empty where it is healthy."""
        return self.faults.get(str(kernel), "")

    def time_of(self, kernel: Kernel) -> float:
        """The kernel's true time in ms."""
        return self.ms.get(str(kernel), default_ms(kernel))

    def note(self, what: str, kernel: Kernel) -> None:
        """Write to the log that something was done."""
        if self.log is not None:
            handle = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            os.write(handle, f"{what} {kernel}\n".encode())
            os.close(handle)


def default_ms(kernel: Kernel) -> float:
    """A time between 1 and 2 ms that follows from the configuration."""
    return 1.0 + int(hashlib.sha256(str(kernel).encode()).hexdigest()[:8], 16) / 2**32


class FakeDevice:
    """Satisfies `protocol.Device`. What `load` returns is the kernel itself."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.calls: list[str] = []
        self._passes = 0

    @property
    def info(self) -> DeviceInfo:
        """An H200 that is not there."""
        return INFO

    def load(self, kernel: Kernel, binary: Binary) -> Kernel:
        """Note that the kernel is evaluated, and do what its script says of loading."""
        self.calls.append("load")
        self.script.note("gpu", kernel)
        time.sleep(self.script.pause)
        self._misbehave(kernel, "load")
        return kernel

    def heuristics(self, problem: Problem, precision: Precision) -> Sequence[FakeAlgorithm]:
        """The scripted proposals."""
        self.calls.append("heuristics")
        return self.script.heuristics

    def check(self, loaded: Kernel | None, case: Case, precision: Precision, seed: int) -> Check:
        """A hard shape."""
        self.calls.append("check")
        self._misbehave(loaded, "check")
        fault = self.script.fault(loaded)
        if fault in WRONG_CHECKS:
            return WRONG_CHECKS[fault][0]
        if fault == "wrong_when_misaligned" and case.misaligned:
            return Check(0.5, 0.5)
        return RIGHT

    def check_tuned(
        self, loaded: Kernel | FakeAlgorithm | None, problem: Problem, precision: Precision, seed: int
    ) -> Check:
        """The tuned shape."""
        self.calls.append("check_tuned")
        if loaded is None:
            return self.script.baseline
        if isinstance(loaded, FakeAlgorithm):
            if loaded.refuses:
                raise LaunchError("cublasLtMatmul refused the product with status 15")
            return loaded.check
        fault = self.script.fault(loaded)
        if fault == "own_memory_too_large":
            workspace = Workspace(_no_memory)
            workspace.making_room(lambda: workspace.reserve(1 << 30))
        timed = "time" in self.calls
        if fault == "wrong_when_tuned" or (fault == "wrong_after_timing" and timed):
            return Check(0.5, 0.5)
        if fault == "tf32_in_fp32":
            return Check(1e-7, 3e-4)
        return Check(1e-7, 1e-7, repeatable=fault != "race_when_tuned")

    def time(
        self,
        runs: Sequence[Kernel | FakeAlgorithm | None],
        problem: Problem,
        precision: Precision,
        policy: Policy,
        samples: int,
    ) -> Timing:
        """The scripted times with a noise that repeats."""
        self.calls.append("time")
        for run in runs:
            if not isinstance(run, FakeAlgorithm):
                self._misbehave(run, "time")
        return Timing(tuple(Samples(tuple(self._sample(run, i) for i in range(samples))) for run in runs))

    def telemetry(self) -> Telemetry:
        """Clocks and power."""
        throttle = ("power cap",) if self.script.throttled else ()
        return Telemetry(1980, 650.0, throttle, self.script.neighbours)

    def _sample(self, run: Kernel | FakeAlgorithm | None, i: int) -> float:
        noise = 1 + self.script.noise * ((i * 7) % 11 - 5) / 5
        if isinstance(run, FakeAlgorithm):
            return run.ms * noise
        special = {"above_peak": 1e-9, "no_time": 0.0, "time_is_nan": float("nan")}.get(
            self.script.fault(run)
        )
        if special is not None:
            return special
        centre = CUBLAS_MS if run is None else self.script.time_of(run)
        return centre * noise

    def _misbehave(self, kernel: Kernel | None, where: str) -> None:
        act = _ACTS.get((self.script.fault(kernel), where))
        if act is not None:
            act()


def open_fake(script: Script) -> FakeDevice:
    """What the worker's process calls."""
    if script.no_device is not None and script.no_device.exists():
        raise DeviceUnavailable("no CUDA-capable device is detected: this one is scripted to be away")
    return FakeDevice(script)


def opener(script: Script) -> Callable[[], FakeDevice]:
    """An opener for `GpuWorker`."""
    return functools.partial(open_fake, script)


def fake_compile(script: Script, kernel: Kernel, arch: Arch, cache: BinaryCache | None) -> Binary:
    """What the compile pool's processes call."""
    script.note("compile", kernel)
    time.sleep(script.compile_pause)
    fault = script.fault(kernel)
    if fault == "does_not_compile":
        raise CompileError(f"{kernel} does not compile: identifier undeclared", "whole log")
    if fault == "minutes_in_compiler":
        time.sleep(FOREVER)
    if fault == "compiler_crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "compiler_exits":
        os._exit(7)
    return Binary(
        cubin=str(kernel).encode(),
        registers=64,
        spill_bytes=128 if fault == "spills" else 0,
        static_smem=0,
        nvrtc="12.9",
        seconds=0.0,
        log="",
    )


def compiler(script: Script) -> Callable[[Kernel, Arch, BinaryCache | None], Binary]:
    """A `compile_fn` for `CompilePool`."""
    return functools.partial(fake_compile, script)


def _raise(error: Exception) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def _signal(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def _no_memory(size: int) -> Any:
    raise OutOfDeviceMemory(f"out of device memory while reserving {size} bytes")


def _sleep() -> None:
    time.sleep(FOREVER)


_ILLEGAL = DeviceFault("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered")
_ACTS: dict[tuple[str, str], Callable[[], Any]] = {
    ("too_much_smem", "load"): _raise(LaunchError("CUDA_ERROR_INVALID_VALUE: invalid argument")),
    ("launch_refused", "check"): _raise(LaunchError("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: out of resources")),
    ("refused_when_timed", "time"): _raise(LaunchError("too many resources requested for launch")),
    ("illegal_access", "check"): _raise(_ILLEGAL),
    ("misaligned_address", "check"): _raise(DeviceFault("CUDA_ERROR_MISALIGNED_ADDRESS: misaligned address")),
    ("fault_when_timed", "time"): _raise(_ILLEGAL),
    ("fault_when_loaded", "load"): _raise(_ILLEGAL),
    ("segfault", "check"): _signal(signal.SIGSEGV),
    ("segfault_when_timed", "time"): _signal(signal.SIGSEGV),
    ("killed", "check"): _signal(signal.SIGKILL),
    ("exits", "check"): lambda: os._exit(3),
    ("out_of_host_memory", "check"): _raise(MemoryError("cannot allocate")),
    ("endless_loop", "check"): _sleep,
    ("endless_when_timed", "time"): _sleep,
    ("endless_in_load", "load"): _sleep,
}


class InlineWorker:
    """Stands for `GpuWorker` where a test is not about processes: evaluates in the calling thread."""

    def __init__(self, script: Script, info: DeviceInfo = INFO) -> None:
        self.script = script
        self.info = info
        self.busy_seconds = 0.0
        self.restarts = 0
        self.pid: int | None = None

    def evaluate(self, request: Request) -> Outcome:
        """As `GpuWorker.evaluate`, without a process to lose."""
        try:
            return evaluate(open_fake(self.script), request)
        except DeviceFault as error:
            return Rejected(Status.CRASHED, str(error))

    def compare(self, requests: Sequence[Request]) -> list[Outcome]:
        """As `GpuWorker.compare`."""
        return compare(open_fake(self.script), requests)

    def best_of_cublaslt(self, request: Request) -> CublasLtTime | Rejected:
        """As `GpuWorker.best_of_cublaslt`."""
        return best_of_cublaslt(open_fake(self.script), request)

    def interrupt(self) -> None:
        """Nothing is ever under way for long."""


class InlinePool:
    """Stands for `CompilePool`: compiles when asked."""

    def __init__(self, script: Script, arch: Arch) -> None:
        self.script = script
        self.arch = arch

    def submit(self, kernel: Kernel) -> Future[Binary]:
        """A future that is done."""
        future: Future[Binary] = Future()
        try:
            future.set_result(fake_compile(self.script, kernel, self.arch, None))
        except CompileError as error:
            future.set_exception(error)
        return future

    def start(self) -> None:
        """There is nothing to start."""

    def compiled(self, kernels: Iterable[Kernel]) -> AbstractSet[Code]:
        """None: there is no cache."""
        return frozenset()


class CachingPool(InlinePool):
    """An inline pool over a cache that is a set, of kernels' code."""

    def __init__(self, script: Script, arch: Arch, cache: set[Code]) -> None:
        super().__init__(script, arch)
        self._cache = cache

    def submit(self, kernel: Kernel) -> Future[Binary]:
        """A future that is done."""
        known = kernel.code in self._cache
        done = super().submit(kernel)
        if done.exception() is not None:
            return done
        self._cache.add(kernel.code)
        future: Future[Binary] = Future()
        future.set_result(replace(done.result(), cached=known))
        return future

    def compiled(self, kernels: Iterable[Kernel]) -> set[Code]:
        """What of it the cache has."""
        return {kernel.code for kernel in kernels} & self._cache


@dataclass(frozen=True)
class Bench:
    """A folder with one search's files, and how to search in it.

    Attributes:
        real: in real processes, with `run_deadline` and `compile_deadline` seconds per candidate.
        cache: code that is compiled; None: nothing is kept.
    """

    root: Path
    script: Script = field(default_factory=Script)
    stages: tuple[str, ...] = ("coalesced",)
    problems: tuple[Problem, ...] = (Problem(2048, 2048, 2048),)
    info: DeviceInfo = INFO
    real: bool = False
    run_deadline: float = 30.0
    compile_deadline: float = 30.0
    cache: set[Code] | None = None

    @property
    def yaml(self) -> Path:
        """The configuration file."""
        return self.root / "configs" / "h100.yaml"

    @property
    def journal(self) -> Path:
        """The default storage."""
        return self.root / "results" / "studies" / "sm_90.journal"

    def search(
        self, on_event: Callable[[Progress], None] = lambda _: None, **settings: Any
    ) -> list[SearchResult]:
        """Run a search with `settings` over the defaults."""
        from sgemm_tune.search.search import (
            search,  # the spawned processes import this module, and need no Optuna
        )
        from sgemm_tune.search.types import SearchSettings

        files = SearchSettings(configs_dir=self.root / "configs", results_dir=self.root / "results")
        made = replace(files, **({"sampler": "random"} | settings))
        stages = [stage_named(name) for name in self.stages]
        asked = {problem: suited(stages, problem) for problem in self.problems}
        arch = parse_arch("sm_90")
        with contextlib.ExitStack() as stack:
            worker: Any = InlineWorker(self.script, self.info)
            pool: Any = InlinePool(self.script, arch)
            if self.cache is not None:
                pool = CachingPool(self.script, arch, self.cache)
            if self.real:
                worker = stack.enter_context(GpuWorker(opener(self.script), lambda _: self.run_deadline))
                pool = CompilePool(arch, 2, None, self.compile_deadline, compiler(self.script))
                stack.enter_context(pool)
            return search(asked, arch, worker, pool, settings=made, on_event=on_event)

    def rows(self) -> list[dict[str, str]]:
        """The table of results."""
        with (self.root / "results" / "results.csv").open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def trials(self) -> list[Any]:
        """Every trial of every study of the default storage."""
        from sgemm_tune.search.storage import open_storage

        storage = open_storage(self.journal, self.root / "results").backend
        return [t for s in storage.get_all_studies() for t in storage.get_all_trials(s._study_id)]

    def log(self) -> list[tuple[str, str]]:
        """What was done with which kernel, from `Script.log`: ("gpu", "coalesced(BX=32, BY=1)")."""
        assert self.script.log is not None
        text = self.script.log.read_text() if self.script.log.exists() else ""
        return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in text.splitlines()]


def kernels_of(stage: str) -> list[Kernel]:
    """The legal configurations of a stage on sm_90."""
    return list(stage_named(stage).legal(parse_arch("sm_90")))
