"""Kernels in, outcomes out: a pool compiles ahead, and one thread keeps the GPU fed.

The GPU's thread has the next request at hand while it waits for the one before, so the GPU never waits for
bookkeeping, and for the compiler only where nothing is compiled yet.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from sgemm_tune.compiler.nvrtc import Binary
from sgemm_tune.errors import CompileError
from sgemm_tune.kernel import Code, Kernel
from sgemm_tune.measure.outcome import Outcome, Rejected, Status
from sgemm_tune.measure.protocol import Request
from sgemm_tune.measure.worker import GpuWorker

GPU_QUEUE = 2
"""Requests handed to the GPU's thread: one under way, one waiting."""

_SWITCH_SECONDS = 1e-3
_GATHER_SECONDS = 0.15
"""How long what has ended waits for company."""

Ticket = TypeVar("Ticket")


@contextmanager
def responsive() -> Iterator[None]:
    """Let the GPU's thread have its turn within a millisecond, whatever the sampler computes meanwhile."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Compiles(Protocol):
    """What is needed of `compiler.pool.CompilePool`."""

    def start(self) -> None:
        """Get ready to compile."""
        ...

    def submit(self, kernel: Kernel) -> Future[Binary]:
        """Compile in another process; the future raises CompileError."""
        ...

    def compiled(self, kernels: Iterable[Kernel]) -> AbstractSet[Code]:
        """Which of their code need not be compiled, as far as is known."""
        ...


@dataclass(frozen=True)
class Done(Generic[Ticket]):
    """What became of one ticket.

    Attributes:
        binary: None where it did not compile.
    """

    ticket: Ticket
    outcome: Outcome
    binary: Binary | None


class Pipeline(Generic[Ticket]):
    """Compile, then evaluate. Use it as a context manager: leaving it abandons what is under way.

    Args:
        pool: compiles.
        worker: owns the GPU.
        request: makes the GPU's request when its turn comes, so that it knows the best so far.
    """

    def __init__(
        self, pool: Compiles, worker: GpuWorker, request: Callable[[Kernel, Binary], Request]
    ) -> None:
        self._pool = pool
        self._worker = worker
        self._request = request
        self._gpu = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gpu")
        self._compiling: dict[Future[Binary], tuple[Ticket, Kernel, Code]] = {}
        self._ready: deque[tuple[Ticket, Kernel, Binary]] = deque()
        self._running: dict[Future[Outcome], tuple[Ticket, Binary]] = {}
        self._failure: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    def __len__(self) -> int:
        return len(self._compiling) + len(self._ready) + len(self._running)

    @property
    def compiling(self) -> int:
        """Kernels that wait for the compiler or are in it."""
        return len(self._compiling)

    @property
    def occupied(self) -> int:
        """As many as are compiled, ready or on the GPU; kernels of one code are compiled as one."""
        codes = {code for _, _, code in self._compiling.values()}
        return len(codes) + len(self._ready) + len(self._running)

    @property
    def waiting(self) -> int:
        """As many as the GPU could begin with if it were done with what it is at."""
        compiled = sum(future.done() for future in self._compiling)
        return compiled + len(self._ready) + max(0, len(self._running) - 1)

    def add(self, ticket: Ticket, kernel: Kernel) -> None:
        """Take a kernel in; its outcome comes from `collect` with the same ticket."""
        self._compiling[self._pool.submit(kernel)] = (ticket, kernel, kernel.code)

    def collect(self, timeout: float, several: int = 1) -> list[Done[Ticket]]:
        """What has ended, waiting up to `timeout` seconds for the first, and a moment for `several`.

        Raises:
            DeviceUnavailable: the GPU or the compiler cannot be had any more.
            SgemmTuneError: the baseline cannot be trusted, or the device is out of memory.
        """
        if self._failure is not None:
            raise self._failure
        done = self._ended(timeout)
        until = time.monotonic() + _GATHER_SECONDS
        while 0 < len(done) < several and len(self) and self._failure is None:
            if (left := until - time.monotonic()) <= 0:
                break
            done += self._ended(left)
        if self._failure is not None and not done:
            raise self._failure
        return done  # what ended well first; a failure is raised by the next call

    def _ended(self, timeout: float) -> list[Done[Ticket]]:
        self._feed()
        under_way: list[Future[Any]] = [*self._compiling, *self._running]
        ended, _ = wait(under_way, timeout, FIRST_COMPLETED)
        done: list[Done[Ticket]] = []
        for future in [future for future in self._running if future in ended]:
            ticket, binary = self._running.pop(future)
            try:
                done.append(Done(ticket, future.result(), binary))
            except Exception as error:
                self._failure = error
        for compiled in [future for future in self._compiling if future in ended]:
            ticket, kernel, _ = self._compiling.pop(compiled)
            try:
                self._ready.append((ticket, kernel, compiled.result()))
            except CompileError as error:
                done.append(Done(ticket, Rejected(Status.COMPILE, str(error)), None))
            except Exception as error:
                self._failure = error
        if self._failure is None:
            self._feed()
        return done

    def finish_running(self, grace: float) -> list[Done[Ticket]]:
        """Let the GPU end what it is at, for up to `grace` seconds; everything behind it is dropped."""
        self._drop_queued()
        ended, _ = wait(self._running, grace)
        return [
            Done(ticket, future.result(), binary)
            for future, (ticket, binary) in self._running.items()
            if future in ended and future.exception() is None
        ]

    def abandon(self) -> None:
        """Drop everything. A request that the GPU is at is ended by ending its process."""
        self._drop_queued()
        if any(not future.done() for future in self._running):
            self._worker.interrupt()
        self._gpu.shutdown(wait=True, cancel_futures=True)
        self._running.clear()

    def _feed(self) -> None:
        while self._ready and len(self._running) < GPU_QUEUE:
            ticket, kernel, binary = self._ready.popleft()
            future = self._gpu.submit(self._worker.evaluate, self._request(kernel, binary))
            self._running[future] = (ticket, binary)

    def _drop_queued(self) -> None:
        for compiled in self._compiling:
            compiled.cancel()
        self._compiling.clear()
        self._ready.clear()
        self._running = {future: held for future, held in self._running.items() if not future.cancel()}
