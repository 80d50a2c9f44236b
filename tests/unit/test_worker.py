"""The real worker process, over a scripted device."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sgemm_tune.compiler.nvrtc import Binary
from sgemm_tune.errors import DeviceUnavailable, SgemmTuneError
from sgemm_tune.kernel import Kernel, stage_named
from sgemm_tune.measure.outcome import Measurement, Rejected, Status
from sgemm_tune.measure.protocol import Check, Policy, Request
from sgemm_tune.measure.worker import GpuWorker, run_deadline
from sgemm_tune.problem import Problem
from tests.fakes import INFO, Script, opener

PROBLEM = Problem(2048, 2048, 2048)
BINARY = Binary(b"cubin", 64, 0, 0, "12.9", 0.0, "")
GOOD, BAD = stage_named("coalesced")(), stage_named("smem_tile")()
SHORT = 1.0


def request(kernel: Kernel) -> Request:
    return Request(kernel, BINARY, PROBLEM, Policy())


def gone(pid: int) -> bool:
    """Whether the process has ended, its other threads included."""
    with suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "Z" and len(list(Path(f"/proc/{pid}/task").iterdir())) == 1
    return True


def wait_until(holds: object, seconds: float = 10.0) -> bool:
    assert callable(holds)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.01)
    return False


@pytest.fixture
def worker(request: pytest.FixtureRequest) -> Iterator[GpuWorker]:
    """A worker whose BAD kernel has the fault that the test is parametrized with, if any."""
    fault = getattr(request, "param", "")
    with GpuWorker(opener(Script({str(BAD): fault})), deadline=lambda _: SHORT) as made:
        yield made


def test_it_says_which_device_it_owns(worker: GpuWorker) -> None:
    assert worker.info == INFO
    assert worker.pid not in (None, os.getpid())


def test_a_healthy_candidate_is_measured_in_one_process_after_the_other(worker: GpuWorker) -> None:
    pid = worker.pid
    outcomes = [worker.evaluate(request(GOOD)) for _ in range(3)]
    assert all(isinstance(outcome, Measurement) for outcome in outcomes)
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert worker.pid == pid
    assert worker.restarts == 0
    assert worker.busy_seconds > 0


@pytest.mark.parametrize(
    ("worker", "status", "reason"),
    [
        ("illegal_access", Status.CRASHED, "illegal memory access"),
        ("segfault", Status.CRASHED, "killed by SIGSEGV"),
        ("exits", Status.CRASHED, "exit code 3"),
        ("out_of_host_memory", Status.CRASHED, "MemoryError"),
        ("endless_loop", Status.TIMEOUT, "no answer within 1 s"),
    ],
    indirect=["worker"],
)
def test_a_fault_costs_one_candidate_and_the_next_gets_a_clean_process(
    worker: GpuWorker, status: Status, reason: str
) -> None:
    before = worker.evaluate(request(GOOD))
    pid = worker.pid
    found = worker.evaluate(request(BAD))
    assert isinstance(found, Rejected)
    assert found.status is status
    assert reason in found.reason
    assert pid is not None
    assert gone(pid), "the GPU is idle before the next candidate"
    assert worker.evaluate(request(GOOD)) == before
    assert worker.restarts == 1


@pytest.mark.parametrize(
    ("worker", "status"),
    [
        ("half_unwritten", Status.WRONG),
        ("too_much_smem", Status.LAUNCH),
        ("own_memory_too_large", Status.LAUNCH),
        ("refused_when_timed", Status.LAUNCH),
        ("no_time", Status.WRONG),
    ],
    indirect=["worker"],
)
def test_a_rejection_costs_no_process(worker: GpuWorker, status: Status) -> None:
    found = worker.evaluate(request(BAD))
    assert found.status is status
    assert isinstance(worker.evaluate(request(GOOD)), Measurement)
    assert worker.restarts == 0


def test_a_worker_that_is_killed_while_idle_costs_nothing(worker: GpuWorker) -> None:
    pid = worker.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: gone(pid))
    assert isinstance(worker.evaluate(request(GOOD)), Measurement)
    assert worker.restarts == 1


def test_a_worker_that_is_killed_from_outside_at_work_costs_that_candidate() -> None:
    with GpuWorker(opener(Script(pause=1.0)), deadline=lambda _: 30.0) as worker:
        pid = worker.pid
        assert pid is not None
        timer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
        timer.start()
        found = worker.evaluate(request(GOOD))
        timer.join()
        assert isinstance(found, Rejected)
        assert found.status is Status.CRASHED
        assert "SIGKILL" in found.reason
        assert isinstance(worker.evaluate(request(GOOD)), Measurement)


def test_an_interrupted_request_ends_and_the_next_one_is_served() -> None:
    with GpuWorker(opener(Script({str(BAD): "endless_loop"})), deadline=lambda _: 60.0) as worker:
        timer = threading.Timer(0.3, worker.interrupt)
        timer.start()
        started = time.monotonic()
        assert worker.evaluate(request(BAD)).status is Status.CRASHED
        assert time.monotonic() - started < 30
        timer.join()
        assert isinstance(worker.evaluate(request(GOOD)), Measurement)


def test_an_interrupt_that_comes_too_late_costs_the_next_request_nothing(worker: GpuWorker) -> None:
    worker.evaluate(request(GOOD))
    worker.interrupt()
    assert isinstance(worker.evaluate(request(GOOD)), Measurement)


def test_finalists_are_compared(worker: GpuWorker) -> None:
    outcomes = worker.compare([request(GOOD), request(BAD)])
    assert [type(outcome) for outcome in outcomes] == [Measurement, Measurement]
    assert worker.compare([]) == []


@pytest.mark.parametrize("worker", ["segfault_when_timed", "refused_when_timed"], indirect=True)
def test_a_finalist_that_breaks_the_comparison_fails_alone(worker: GpuWorker) -> None:
    good, bad = worker.compare([request(GOOD), request(BAD)])
    assert isinstance(good, Measurement)
    assert bad.status in (Status.CRASHED, Status.LAUNCH)


def test_an_untrustworthy_baseline_is_no_candidates_fault() -> None:
    script = Script(baseline=Check(1e-7, 3e-4))
    with (
        GpuWorker(opener(script), deadline=lambda _: SHORT) as worker,
        pytest.raises(SgemmTuneError, match="not strict fp32"),
    ):
        worker.evaluate(request(GOOD))


def test_a_device_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.touch()
    with pytest.raises(DeviceUnavailable, match="no CUDA-capable device"):
        GpuWorker(opener(Script(no_device=away)))


def _broken_opener() -> object:
    raise ImportError("libcuda.so.1: cannot open shared object file")


def _dying_opener() -> object:
    os._exit(9)


@pytest.mark.parametrize(("broken", "reason"), [(_broken_opener, "libcuda"), (_dying_opener, "exit code 9")])
def test_an_opener_that_fails_in_its_own_way_is_a_missing_device(broken: object, reason: str) -> None:
    with pytest.raises(DeviceUnavailable, match=reason):
        GpuWorker(broken)  # type: ignore[arg-type]


def test_a_device_that_does_not_come_back_ends_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sgemm_tune.measure.worker.time.sleep", lambda _: None)
    away = tmp_path / "away"
    script = Script({str(BAD): "segfault"}, no_device=away)
    with GpuWorker(opener(script), deadline=lambda _: SHORT) as worker:
        assert worker.evaluate(request(BAD)).status is Status.CRASHED
        away.touch()
        with pytest.raises(DeviceUnavailable, match="could not be opened again"):
            worker.evaluate(request(GOOD))
        away.unlink()
        assert isinstance(worker.evaluate(request(GOOD)), Measurement)


def test_close_ends_the_process_and_is_safe_twice() -> None:
    worker = GpuWorker(opener(Script()))
    pid = worker.pid
    assert pid is not None
    worker.close()
    worker.close()
    assert gone(pid)
    assert worker.pid is None


def test_a_hanging_worker_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    """Otherwise an endless kernel would hold the GPU for ever after kill -9."""
    program = textwrap.dedent("""
        import sys, threading
        from pathlib import Path
        from tests.unit.test_worker import BAD, request
        from tests.fakes import Script, opener
        from sgemm_tune.measure.worker import GpuWorker
        if __name__ == "__main__":
            log = Path(sys.argv[1])
            worker = GpuWorker(opener(Script({str(BAD): "endless_loop"}, log=log)), deadline=lambda _: 3600.0)
            print(worker.pid, flush=True)
            worker.evaluate(request(BAD))
    """)
    path = tmp_path / "program.py"
    path.write_text(program)
    log = tmp_path / "log"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, str(path), str(log)], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert wait_until(log.exists), "the worker is at the endless kernel"
        parent.kill()
        parent.wait()
        assert wait_until(lambda: gone(pid))


def test_the_deadline_grows_with_the_problem() -> None:
    assert run_deadline(Problem(1, 1, 1)) < run_deadline(Problem(8192, 8192, 8192)) < 120
