"""A pool of compiler processes: one candidate's hang or crash costs that candidate, never the others.

Processes are spawned, not forked: the parent may have threads and a CUDA driver loaded. They import this
package and nothing of the program that uses it, ignore Ctrl-C, and end when their parent does, even by
kill -9.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Future
from dataclasses import dataclass, field, replace
from multiprocessing import spawn
from multiprocessing.context import SpawnContext, SpawnProcess
from types import TracebackType
from typing import Any, Self

from pebble import ProcessExpired, ProcessPool

from sgemm_tune.arch import Arch
from sgemm_tune.compiler.cache import BinaryCache
from sgemm_tune.compiler.nvrtc import Binary, cached_binary, cached_code, compile_kernel, nvrtc_version
from sgemm_tune.errors import CompilerDied, CompileTimeout, DeviceUnavailable
from sgemm_tune.kernel import Code, Kernel

DEADLINE_S = 60.0
"""Seconds that one candidate may keep a compiler busy; the slowest of the ladder takes a few."""

_ATTEMPTS = 2
_NICE = 10
"""How far compilers stand back: where they fill all cores, whoever feeds the GPU or proposes goes first. With
more they would have next to nothing beside other programs."""

CompileFunction = Callable[[Kernel, Arch, BinaryCache | None], Binary]


@dataclass(eq=False)
class _Task:
    """One compilation; `results` are of all who wait for it, in the order in which they came."""

    kernel: Kernel
    results: list[Future[Binary]] = field(default_factory=list)
    attempts: int = 0
    inner: Any = None


class CompilePool:
    """Compiles kernels for one architecture in `jobs` processes, which start when the first one is needed.

        with CompilePool(arch, jobs=8, cache=BinaryCache()) as pool:
            futures = [pool.submit(kernel) for kernel in kernels]

    Kernels of the same code that are submitted while one of them is under way are compiled together, once.

    Args:
        arch: what is compiled for.
        jobs: processes, at least 1.
        cache: read by `submit` itself, so that a hit costs no process; written by the processes.
        deadline_s: seconds after which a candidate's process is killed.
        compile_fn: what a process calls, `compile_kernel` or a stand-in; importable by name.
    """

    def __init__(
        self,
        arch: Arch,
        jobs: int,
        cache: BinaryCache | None = None,
        deadline_s: float = DEADLINE_S,
        compile_fn: CompileFunction = compile_kernel,
    ) -> None:
        self._arch = arch
        self._jobs = max(1, jobs)
        self._cache = cache
        self._deadline_s = deadline_s
        self._compile_fn = compile_fn
        self._lock = threading.RLock()
        self._open: dict[Code, _Task] = {}
        self._pools = [self._new_pool()]
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def submit(self, kernel: Kernel) -> Future[Binary]:
        """Compile `kernel`, or take it from the cache.

        The future's result raises CompileError where the compiler refused it, CompileTimeout where it was
        killed at its deadline, CompilerDied where its process died, and whatever else was raised. Callbacks
        run in a thread of the pool. Kernels that are compiled together all get the same, but that only the
        first one's binary is not `cached`. Cancelling a running one kills its process, unless others wait.

        Raises:
            RuntimeError: the pool is closed.
            DeviceUnavailable: CuPy or the NVRTC library is missing.
        """
        result: Future[Binary] = Future()
        cached = None if self._cache is None else cached_binary(kernel, self._arch, self._cache)
        with self._lock:
            if self._closed:
                raise RuntimeError("this pool is closed")
            if cached is not None:
                result.set_result(cached)
                return result
            task = self._open.setdefault(kernel.code, _Task(kernel))
            task.results.append(result)
            result.add_done_callback(lambda _: self._forget(task, result))
            if task.inner is None:
                self._schedule(task)
        return result

    def start(self) -> None:
        """Start the processes now, so that the first compilation need not wait for them.

        Raises:
            RuntimeError: the pool is closed.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("this pool is closed")
            _ = self._pools[-1].active  # which starts it

    def compiled(self, kernels: Iterable[Kernel]) -> set[Code]:
        """Which of the kernels' code is in the cache.

        Raises:
            DeviceUnavailable: CuPy or the NVRTC library is missing.
        """
        return set() if self._cache is None else cached_code(kernels, self._arch, self._cache)

    def close(self, kill: bool = True) -> None:
        """End the processes. Safe to call twice.

        Args:
            kill: at once, and cancel what is not done; False: when all that was submitted is done.
        """
        if not kill:
            for result in self._unfinished():
                with contextlib.suppress(Exception, CancelledError):
                    result.exception()
        with self._lock:
            self._closed = True
            left = self._unfinished()
        for pool in self._pools:
            pool.stop()
        for result in left:
            result.cancel()
        for pool in self._pools:
            pool.join()
        self._pools.clear()

    def _unfinished(self) -> list[Future[Binary]]:
        with self._lock:
            return [result for task in self._open.values() for result in task.results]

    def _new_pool(self) -> ProcessPool:
        loads = self._compile_fn is compile_kernel
        return ProcessPool(self._jobs, initializer=_start_process, initargs=[loads], context=_CONTEXT)

    def _schedule(self, task: _Task) -> None:
        if not self._pools[-1].active:  # Pebble gives a pool up when an idle process dies
            self._pools.append(self._new_pool())
        task.attempts += 1
        args = (task.kernel, self._arch, self._cache)
        inner = self._pools[-1].schedule(self._compile_fn, args=args, timeout=self._deadline_s)
        task.inner = inner
        inner.add_done_callback(lambda done: self._finish(task, done))

    def _finish(self, task: _Task, inner: Future[Binary]) -> None:
        if not task.results or task.inner is not inner:
            return
        try:
            outcome: Binary | BaseException = inner.result()
        except BrokenExecutor:
            self._retry(task, inner)
            return
        except TimeoutError:
            outcome = CompileTimeout(
                f"{task.kernel} kept the compiler busy for more than {self._deadline_s:g} s and was given up"
            )
        except ProcessExpired as error:
            outcome = CompilerDied(f"the compiler process died on {task.kernel} ({_cause(error.exitcode)})")
        except BaseException as error:
            outcome = error
        self._settle(task, outcome)

    def _retry(self, failed: _Task, inner: Future[Binary]) -> None:
        """Go on in another pool with all that was under way."""
        with self._lock:
            if self._closed or failed.inner is not inner:
                return
            given_up = failed.attempts >= _ATTEMPTS
            if given_up:
                self._shut(failed)
            for task in list(self._open.values()):
                self._schedule(task)
        if given_up:
            self._settle(failed, CompilerDied(f"the compiler process died on {failed.kernel}"))

    def _settle(self, task: _Task, outcome: Binary | BaseException) -> None:
        with self._lock:
            self._shut(task)
            results, task.results = task.results, []
        for result in results:  # their callbacks may take long: not under the lock
            _give(result, outcome)
            if isinstance(outcome, Binary):
                outcome = replace(outcome, cached=True)  # the others have cost nothing

    def _forget(self, task: _Task, result: Future[Binary]) -> None:
        if not result.cancelled():
            return
        result.set_running_or_notify_cancel()
        with self._lock:
            if result in task.results:
                task.results.remove(result)
            if task.results or not self._shut(task) or self._closed:
                return
        if task.inner is not None:
            task.inner.cancel()

    def _shut(self, task: _Task) -> bool:
        """Let nobody join a task any more; False where that was so before."""
        if self._open.get(task.kernel.code) is not task:
            return False
        del self._open[task.kernel.code]
        return True


def _give(result: Future[Binary], outcome: Binary | BaseException) -> None:
    # the waiter may have cancelled it in this moment
    with contextlib.suppress(Exception):
        if isinstance(outcome, BaseException):
            result.set_exception(outcome)
        else:
            result.set_result(outcome)


def _cause(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-exitcode).name
    return f"exit code {exitcode}"


# ------------------------------------------------------------------------------------ inside a process


def _start_process(loads_compiler: bool) -> None:
    # Pebble's own handler waits for Python code to run, which a busy compiler does not let happen
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(os, "nice"):
        os.nice(_NICE)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if loads_compiler:
        with contextlib.suppress(DeviceUnavailable):  # each compilation will say so
            nvrtc_version()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


# ----------------------------------------------------------------------------------- starting a process


class _Process(SpawnProcess):
    """A spawned process that does not run the parent's `__main__` again and is deaf to Ctrl-C from birth."""

    @staticmethod
    def _Popen(process: Any) -> Any:
        with _main_left_out(), _interrupts_blocked():
            return SpawnProcess._Popen(process)


class _Context(SpawnContext):
    Process = _Process


_CONTEXT = _Context()
_PATCHING = threading.Lock()


@contextlib.contextmanager
def _main_left_out() -> Iterator[None]:
    with _PATCHING:
        original = spawn.get_preparation_data

        def without_main(name: str) -> dict[str, Any]:
            return {key: value for key, value in original(name).items() if not key.startswith("init_main")}

        spawn.get_preparation_data = without_main
        try:
            yield
        finally:
            spawn.get_preparation_data = original


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
