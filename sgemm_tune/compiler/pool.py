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
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Future
from dataclasses import dataclass
from multiprocessing import spawn
from multiprocessing.context import SpawnContext, SpawnProcess
from types import TracebackType
from typing import Any, Self

from pebble import ProcessExpired, ProcessPool

from sgemm_tune.arch import Arch
from sgemm_tune.compiler.cache import BinaryCache
from sgemm_tune.compiler.nvrtc import Binary, cached_binary, compile_kernel
from sgemm_tune.errors import CompilerDied, CompileTimeout
from sgemm_tune.kernel import Kernel

DEADLINE_S = 60.0
"""Seconds that one candidate may keep a compiler busy; the slowest of the ladder takes a few."""

_ATTEMPTS = 2
_NICE = 5
"""How far compilers stand back: where they fill all cores, whoever feeds the GPU goes first."""

CompileFunction = Callable[[Kernel, Arch, BinaryCache | None], Binary]


@dataclass(eq=False)
class _Task:
    kernel: Kernel
    result: Future[Binary]
    attempts: int = 0
    inner: Any = None


class CompilePool:
    """Compiles kernels for one architecture in `jobs` processes, which start with the first one needed.

        with CompilePool(arch, jobs=8, cache=BinaryCache()) as pool:
            futures = [pool.submit(kernel) for kernel in kernels]

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
        self._open: set[_Task] = set()
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
        run in a thread of the pool. Cancelling a running one kills its process.

        Raises:
            RuntimeError: the pool is closed.
            DeviceUnavailable: CuPy or the NVRTC library is missing.
        """
        task = _Task(kernel, Future())
        cached = None if self._cache is None else cached_binary(kernel, self._arch, self._cache)
        with self._lock:
            if self._closed:
                raise RuntimeError("this pool is closed")
            if cached is not None:
                task.result.set_result(cached)
                return task.result
            self._open.add(task)
            task.result.add_done_callback(lambda _: self._forget(task))
            self._schedule(task)
        return task.result

    def close(self, kill: bool = True) -> None:
        """End the processes. Safe to call twice.

        Args:
            kill: at once, and cancel what is not done; False: when all that was submitted is done.
        """
        if not kill:
            with self._lock:
                waiting = [task.result for task in self._open]
            for result in waiting:
                with contextlib.suppress(Exception, CancelledError):
                    result.exception()
        with self._lock:
            self._closed = True
            left = list(self._open)
        for pool in self._pools:
            pool.stop()
        for task in left:
            task.result.cancel()
        for pool in self._pools:
            pool.join()
        self._pools.clear()

    def _new_pool(self) -> ProcessPool:
        return ProcessPool(self._jobs, initializer=_start_process, context=_CONTEXT)

    def _schedule(self, task: _Task) -> None:
        if not self._pools[-1].active:  # Pebble gives a pool up when an idle process dies
            self._pools.append(self._new_pool())
        task.attempts += 1
        args = (task.kernel, self._arch, self._cache)
        inner = self._pools[-1].schedule(self._compile_fn, args=args, timeout=self._deadline_s)
        task.inner = inner
        inner.add_done_callback(lambda done: self._finish(task, done))

    def _finish(self, task: _Task, inner: Future[Binary]) -> None:
        if task.result.done() or task.inner is not inner:
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
        _settle(task.result, outcome)

    def _retry(self, failed: _Task, inner: Future[Binary]) -> None:
        """Go on in another pool with all that was under way."""
        with self._lock:
            if self._closed or failed.inner is not inner:
                return
            if failed.attempts >= _ATTEMPTS:
                _settle(failed.result, CompilerDied(f"the compiler process died on {failed.kernel}"))
            for task in [task for task in self._open if not task.result.done()]:
                self._schedule(task)

    def _forget(self, task: _Task) -> None:
        with self._lock:
            self._open.discard(task)
        if task.result.cancelled():
            task.result.set_running_or_notify_cancel()
            if task.inner is not None and not self._closed:
                task.inner.cancel()


def _settle(result: Future[Binary], outcome: Binary | BaseException) -> None:
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


def _start_process() -> None:
    # Pebble's own handler waits for Python code to run, which a busy compiler does not let happen
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(os, "nice"):
        os.nice(_NICE)
    threading.Thread(target=_end_with_parent, daemon=True).start()


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
