"""One spawned process owns one GPU; its supervisor here replaces it after a crash, a sticky error or a
deadline. The process that calls this never creates a CUDA context.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Self

from sgemm_tune.errors import (
    DeviceFault,
    DeviceUnavailable,
    LaunchError,
    SgemmTuneError,
    WorkerCrashed,
    WorkerTimeout,
)
from sgemm_tune.measure.cublaslt import CublasLtTime, best_of_cublaslt
from sgemm_tune.measure.evaluate import compare, evaluate
from sgemm_tune.measure.outcome import DeviceInfo, Outcome, Rejected, Status
from sgemm_tune.measure.protocol import Device, Request
from sgemm_tune.problem import Problem

Opener = Callable[[], Device]
"""Opens the device inside the spawned process; must be picklable."""

START_SECONDS = 120.0
RUN_SECONDS = 15.0
SLOWEST_FLOPS = 1e11
"""A candidate slower than 100 GFLOP/s is given up: the naive kernel is several times faster everywhere."""
_LAUNCHES_ALLOWED = 4
_WATCH_SECONDS = 0.5


def run_deadline(problem: Problem) -> float:
    """Seconds that one candidate may take: a constant, and a few launches at the slowest useful rate."""
    return RUN_SECONDS + _LAUNCHES_ALLOWED * problem.flops / SLOWEST_FLOPS


class GpuWorker:
    """The supervisor. Use it as a context manager.

    Args:
        opener: opens the device in the spawned process.
        deadline: seconds for one candidate of a problem.

    Raises:
        DeviceUnavailable: the device cannot be opened.
    """

    def __init__(self, opener: Opener, deadline: Callable[[Problem], float] = run_deadline) -> None:
        self._opener = opener
        self._deadline = deadline
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None
        self.restarts = 0
        self.busy_seconds = 0.0
        self._interrupted = False
        try:
            self.info: DeviceInfo = self._start()
        except (WorkerCrashed, WorkerTimeout) as error:
            raise DeviceUnavailable(
                f"the GPU cannot be opened: {error}: look at `sgemm-tune doctor`"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The worker process's id, None while there is none."""
        return None if self._process is None else self._process.pid

    def evaluate(self, request: Request) -> Outcome:
        """Validate and measure one candidate; its faults become a `Rejected`.

        Raises:
            DeviceUnavailable: the device cannot be opened again after a crash.
            SgemmTuneError: the baseline cannot be trusted, or the device is out of memory.
        """
        try:
            outcome: Outcome = self._call("evaluate", request, self._deadline(request.problem))
        except WorkerTimeout as error:
            return Rejected(Status.TIMEOUT, str(error))
        except (WorkerCrashed, DeviceFault) as error:
            return Rejected(Status.CRASHED, str(error))
        except LaunchError as error:
            return Rejected(Status.LAUNCH, str(error))
        return outcome

    def compare(self, requests: Sequence[Request]) -> list[Outcome]:
        """Time finalists together; where one of them breaks the worker, each is measured alone instead.

        Raises:
            DeviceUnavailable: the device cannot be opened again after a crash.
        """
        if not requests:
            return []
        deadline = sum(self._deadline(request.problem) for request in requests) + START_SECONDS
        try:
            outcomes: list[Outcome] = self._call("compare", list(requests), deadline)
        except (WorkerTimeout, WorkerCrashed, DeviceFault, LaunchError):
            return [self.evaluate(request) for request in requests]
        return outcomes

    def best_of_cublaslt(self, request: Request) -> CublasLtTime | Rejected:
        """The best of cublasLt's heuristics beside a candidate that `compare` found right.

        Raises:
            DeviceUnavailable: the device cannot be opened again after a crash.
        """
        # a few launches of each algorithm take no longer than one candidate at the slowest useful rate
        deadline = 2 * self._deadline(request.problem) + START_SECONDS
        try:
            found: CublasLtTime | Rejected = self._call("best_of_cublaslt", request, deadline)
        except WorkerTimeout as error:
            return Rejected(Status.TIMEOUT, str(error))
        except (WorkerCrashed, DeviceFault) as error:
            return Rejected(Status.CRASHED, str(error))
        return found

    def interrupt(self) -> None:
        """End the request under way, from another thread: its caller sees a crash."""
        self._interrupted = True
        process = self._process
        if process is not None:
            with contextlib.suppress(ValueError):  # closed meanwhile
                process.kill()

    def close(self) -> None:
        """End the worker process; a busy one is killed."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.send(None)
        if self._process is not None:
            self._process.join(timeout=2.0)
        self._kill()

    def _start(self) -> DeviceInfo:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_serve, args=(theirs, self._opener, os.getpid()), daemon=True, name="sgemm-tune-gpu"
        )
        process.start()
        theirs.close()
        self._process, self._connection = process, ours
        info: DeviceInfo = self._reply("opening the device", START_SECONDS)
        return info

    def _call(self, method: str, payload: Any, deadline: float) -> Any:
        if self._interrupted or self._process is None or not self._process.is_alive():
            self._interrupted = False
            self._kill()
            self._restart()
        assert self._connection is not None
        started = time.monotonic()
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a death shows in the reply
                self._connection.send((method, payload))
            return self._reply(method, deadline)
        except KeyboardInterrupt:
            self._kill()  # its answer would be taken for that to the next request
            raise
        finally:
            self.busy_seconds += time.monotonic() - started

    def _reply(self, doing: str, deadline: float) -> Any:
        """The worker's answer; where it has none any more, it is ended and its exception raised."""
        assert self._connection is not None
        assert self._process is not None
        if not wait([self._connection, self._process.sentinel], timeout=deadline):
            self._kill()
            raise WorkerTimeout(f"no answer within {deadline:.0f} s: the kernel hangs or is far too slow")
        answer = self._received()
        if answer is None:
            self._process.join(timeout=5.0)  # its files close a moment before its exit code is there
            code = self._process.exitcode
            self._kill()
            raise WorkerCrashed(f"the GPU process {_death(code)} while {doing}")
        kind, value = answer
        if kind == "ok":
            return value
        if kind == "fault":
            self._kill()
        raise value

    def _received(self) -> tuple[str, Any] | None:
        """What the worker has sent, or None where it died without an answer."""
        assert self._connection is not None
        try:
            return self._connection.recv() if self._connection.poll() else None
        except (EOFError, OSError):
            return None

    def _restart(self) -> None:
        """A clean process. A device that was just reset may refuse once or twice."""
        self.restarts += 1
        for attempt in range(3):
            try:
                self.info = self._start()
                return
            except (DeviceUnavailable, WorkerCrashed, WorkerTimeout) as error:
                self._kill()
                if self._interrupted:
                    raise WorkerCrashed("interrupted while the GPU was opened again") from error
                if attempt == 2:
                    raise DeviceUnavailable(
                        f"the GPU could not be opened again after a crash ({error}): run `sgemm-tune doctor`"
                    ) from error
                time.sleep(1.0 + attempt)

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _watch_parent(parent: int) -> None:
    """An endless kernel keeps this process from noticing that its parent is gone; a thread watches instead.

    (PR_SET_PDEATHSIG would fire when the parent's *thread* ends, and a restart comes from a thread.)
    """
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def _serve(connection: Connection, opener: Opener, parent: int) -> None:
    """The spawned process: open the device, answer requests until told to stop or until a fault."""
    threading.Thread(target=_watch_parent, args=(parent,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides when to stop
    try:
        device = opener()
        connection.send(("ok", device.info))
    except SgemmTuneError as error:
        connection.send(("fault", error))
        return
    except Exception as error:
        connection.send(
            ("fault", DeviceUnavailable(f"the GPU cannot be opened: {type(error).__name__}: {error}"))
        )
        return
    methods: dict[str, Callable[[Device, Any], Any]] = {
        "evaluate": evaluate,
        "compare": compare,
        "best_of_cublaslt": best_of_cublaslt,
    }
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            return
        if message is None:
            return
        method, payload = message
        try:
            connection.send(("ok", methods[method](device, payload)))
        except DeviceFault as error:
            connection.send(("fault", error))
            connection.close()
            os._exit(0)  # the context is broken: no destructor may touch it
        except SgemmTuneError as error:
            connection.send(("error", error))
        except Exception as error:
            connection.send(("fault", WorkerCrashed(f"{type(error).__name__} in the GPU process: {error}")))
            connection.close()
            os._exit(1)
