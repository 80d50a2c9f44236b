"""The compile pool with stand-ins for the compiler, in real processes."""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from sgemm_tune.arch import ARCHS, Arch
from sgemm_tune.compiler import nvrtc
from sgemm_tune.compiler.cache import BinaryCache
from sgemm_tune.compiler.nvrtc import Binary
from sgemm_tune.compiler.pool import CompilePool
from sgemm_tune.errors import CompileError, CompilerDied, CompileTimeout
from sgemm_tune.kernel import Kernel, TiledKernel, stage_named, tune

SM_90 = ARCHS["sm_90"]
GOOD, HANG, CRASH, FAIL, STRANGE, WHO = range(6)


@dataclass(frozen=True)
class Fake(TiledKernel):
    """What the stand-in compiler does with it is its first tunable."""

    source: ClassVar[str] = "99_fake.cu"

    DO: int = tune(GOOD, HANG, CRASH, FAIL, STRANGE, WHO)
    N: int = tune(*range(2000))


@dataclass(frozen=True)
class Launched(Fake):
    """Those that differ in `LATE` alone have the same code."""

    LATE: int = tune(*range(10), at_launch=True)


def binary(text: str, registers: int = 1) -> Binary:
    return Binary(text.encode(), registers, 0, 0, "12.9", 0.0, "")


def stand_in(kernel: Kernel, arch: Arch, cache: BinaryCache | None) -> Binary:
    """Runs in a process of the pool."""
    assert isinstance(kernel, Fake)
    if kernel.DO == HANG:
        while True:
            time.sleep(60)
    if kernel.DO == CRASH:
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGSEGV)
    if kernel.DO == FAIL:
        raise CompileError(f"{kernel} does not compile: no such thing", log="line 1\nline 2")
    if kernel.DO == STRANGE:
        raise FileNotFoundError(2, "no such source", "99_fake.cu")
    if kernel.DO == WHO:
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        main_again = hasattr(sys.modules["__main__"], "__file__")
        return binary(f"{os.getpid()} {ignored} {main_again} {'optuna' in sys.modules}")
    return binary(f"{arch.name} {kernel.N}", registers=kernel.N)


def held(folder: Path, kernel: Kernel, arch: Arch, cache: BinaryCache | None) -> Binary:
    """As `stand_in`, when there is a file `go`; each call leaves its process's number in `calls`."""
    handle = os.open(folder / "calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(handle, f"{os.getpid()}\n".encode())
    os.close(handle)
    while not (folder / "go").exists():
        time.sleep(0.01)
    return stand_in(kernel, arch, cache)


@dataclass(frozen=True)
class Holding:
    """A pool of `held`; whatever is submitted before `release` is under way at the same time."""

    pool: CompilePool
    folder: Path

    def release(self) -> None:
        """Let compilations end."""
        (self.folder / "go").touch()

    def calls(self, least: int = 0) -> list[int]:
        """The processes of all compilations that have begun, once there are so many."""
        path = self.folder / "calls"
        end = time.monotonic() + 30
        while True:
            found = [int(pid) for pid in path.read_text().split()] if path.exists() else []
            if len(found) >= least or time.monotonic() > end:
                return found
            time.sleep(0.01)


@pytest.fixture
def holding(tmp_path: Path) -> Iterator[Holding]:
    compile_fn = functools.partial(held, tmp_path)
    with CompilePool(SM_90, jobs=2, deadline_s=60, compile_fn=compile_fn) as opened:
        yield Holding(opened, tmp_path)


@pytest.fixture(scope="module")
def pool() -> Iterator[CompilePool]:
    with CompilePool(SM_90, jobs=2, deadline_s=30, compile_fn=stand_in) as opened:
        yield opened


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def gone(pids: list[int], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(alive, pids))


def workers(count: int, opened: CompilePool) -> list[int]:
    """The pool's processes, by asking until `count` of them have answered."""
    seen: set[int] = set()
    for n in range(2000):
        seen.add(int(opened.submit(Fake(WHO, n)).result(30).cubin.split()[0]))
        if len(seen) == count:
            return sorted(seen)
    raise AssertionError(f"only {len(seen)} processes answered")


def test_each_result_belongs_to_its_kernel(pool: CompilePool) -> None:
    futures = {n: pool.submit(Fake(GOOD, n)) for n in range(100)}
    assert [futures[n].result(30) for n in range(100)] == [binary(f"sm_90 {n}", n) for n in range(100)]


def test_a_process_is_another_one_deaf_to_ctrl_c_and_without_the_callers_main(pool: CompilePool) -> None:
    pid, ignored, main_again, optuna = pool.submit(Fake(WHO)).result(30).cubin.decode().split()
    assert int(pid) != os.getpid()
    assert (ignored, main_again, optuna) == ("True", "False", "False")


def test_refusal_keeps_its_message_and_log(pool: CompilePool) -> None:
    with pytest.raises(CompileError, match="does not compile: no such thing") as caught:
        pool.submit(Fake(FAIL)).result(30)
    assert type(caught.value) is CompileError
    assert caught.value.log == "line 1\nline 2"


def test_unforeseen_errors_come_through(pool: CompilePool) -> None:
    with pytest.raises(FileNotFoundError, match="no such source"):
        pool.submit(Fake(STRANGE)).result(30)


def test_a_crash_costs_one_candidate(pool: CompilePool) -> None:
    crashes = [pool.submit(Fake(CRASH, n)) for n in range(3)]
    good = [pool.submit(Fake(GOOD, n)) for n in range(20)]
    for n, crash in enumerate(crashes):
        with pytest.raises(CompilerDied, match=rf"died on fake\(DO=2, N={n}\) \(SIGSEGV\)"):
            crash.result(30)
    assert [future.result(30).registers for future in good] == list(range(20))


def test_the_deadline_costs_one_candidate() -> None:
    with CompilePool(SM_90, jobs=2, deadline_s=1.0, compile_fn=stand_in) as pool:
        pid = int(pool.submit(Fake(WHO)).result(30).cubin.split()[0])
        started = time.monotonic()
        hanging = [pool.submit(Fake(HANG, n)) for n in range(2)]
        good = pool.submit(Fake(GOOD, 7))
        for future in hanging:
            with pytest.raises(CompileTimeout, match="kept the compiler busy for more than 1 s"):
                future.result(30)
        assert time.monotonic() - started >= 1.0
        assert good.result(30).registers == 7
        assert gone([pid], 5)


def test_an_idle_process_that_is_killed_is_replaced(pool: CompilePool) -> None:
    for pid in workers(2, pool):
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.5)
    futures = [pool.submit(Fake(GOOD, n)) for n in range(10)]
    assert [future.result(30).registers for future in futures] == list(range(10))


def test_closing_is_quick_and_leaves_nothing_behind() -> None:
    pool = CompilePool(SM_90, jobs=2, deadline_s=300, compile_fn=stand_in)
    pids = workers(2, pool)
    futures = [pool.submit(Fake(HANG, n)) for n in range(2)] + [
        pool.submit(Fake(GOOD, n)) for n in range(1000)
    ]
    started = time.monotonic()
    pool.close(kill=True)
    assert time.monotonic() - started < 5
    assert gone(pids, 1)
    assert not wait(futures, timeout=1).not_done
    with pytest.raises(CancelledError):
        futures[0].result(0)
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(Fake(GOOD))


def test_closing_gently_finishes_what_was_submitted() -> None:
    pool = CompilePool(SM_90, jobs=2, compile_fn=stand_in)
    futures = [pool.submit(Fake(GOOD, n)) for n in range(50)]
    pool.close(kill=False)
    assert [future.result(0).registers for future in futures] == list(range(50))


def test_cancelling_frees_the_process() -> None:
    with CompilePool(SM_90, jobs=1, deadline_s=300, compile_fn=stand_in) as pool:
        pid = workers(1, pool)[0]
        hanging = pool.submit(Fake(HANG))
        time.sleep(0.3)
        assert hanging.cancel()
        assert pool.submit(Fake(GOOD, 3)).result(30).registers == 3
        assert gone([pid], 5)


def test_the_same_code_is_compiled_once_while_it_is_under_way(holding: Holding) -> None:
    same = [holding.pool.submit(Launched(GOOD, 7, late)) for late in range(3)]
    other = holding.pool.submit(Launched(GOOD, 8))
    assert not any(future.done() for future in (*same, other))
    holding.release()
    first, *twins = [future.result(30) for future in same]
    assert first == binary("sm_90 7", 7)
    assert twins == [replace(first, cached=True)] * 2
    assert other.result(30) == binary("sm_90 8", 8)
    assert len(holding.calls()) == 2, "launch values are no part of the code"
    assert not holding.pool.submit(Launched(GOOD, 7, 3)).result(30).cached, "its twins have ended"
    assert len(holding.calls()) == 3


@pytest.mark.parametrize(("do", "error"), [(FAIL, CompileError), (STRANGE, OSError), (CRASH, CompilerDied)])
def test_the_same_code_fails_once_for_all(holding: Holding, do: int, error: type[Exception]) -> None:
    futures = [holding.pool.submit(Launched(do, 0, late)) for late in range(3)]
    holding.release()
    found = [future.exception(30) for future in futures]
    assert all(isinstance(one, error) for one in found)
    assert len(set(map(str, found))) == 1
    assert len(holding.calls()) == 1


def test_the_deadline_is_that_of_all_who_wait(tmp_path: Path) -> None:
    compile_fn = functools.partial(held, tmp_path)
    with CompilePool(SM_90, jobs=1, deadline_s=1.0, compile_fn=compile_fn) as pool:
        futures = [pool.submit(Launched(GOOD, 0, late)) for late in range(3)]
        for future in futures:
            with pytest.raises(CompileTimeout):
                future.result(30)
        assert len(Holding(pool, tmp_path).calls()) == 1


@pytest.mark.parametrize("cancelled", [{0}, {1}, {2}, {0, 1}, {1, 2}], ids=str)
def test_cancelling_leaves_the_others_that_wait_for_the_same(holding: Holding, cancelled: set[int]) -> None:
    futures = [holding.pool.submit(Launched(GOOD, 4, late)) for late in range(3)]
    (pid,) = holding.calls(1)
    assert all(futures[place].cancel() for place in cancelled)
    time.sleep(0.3)
    assert alive(pid)
    holding.release()
    left = [future.result(30) for place, future in enumerate(futures) if place not in cancelled]
    assert [one.registers for one in left] == [4] * len(left)
    assert [one.cached for one in left] == [False, True][: len(left)], "somebody has to pay"
    assert holding.calls() == [pid]
    assert not wait(futures, timeout=1).not_done


def test_the_process_is_ended_when_all_have_cancelled(holding: Holding) -> None:
    futures = [holding.pool.submit(Launched(GOOD, 4, late)) for late in range(3)]
    (pid,) = holding.calls(1)
    for future in futures:
        assert alive(pid)
        assert future.cancel()
    assert gone([pid], 5)
    assert not wait(futures, timeout=1).not_done
    again = holding.pool.submit(Launched(GOOD, 4, 9))
    assert len(holding.calls(2)) == 2, "who comes later does not wait for what was given up"
    holding.release()
    assert again.result(30) == binary("sm_90 4", 4)


def test_closing_is_for_all_who_wait_for_the_same(holding: Holding) -> None:
    futures = [holding.pool.submit(Launched(GOOD, 4, late)) for late in range(3)]
    (pid,) = holding.calls(1)
    holding.pool.close(kill=True)
    assert all(future.cancelled() for future in futures)
    assert gone([pid], 1)


def test_closing_gently_is_for_all_who_wait_for_the_same(holding: Holding) -> None:
    futures = [holding.pool.submit(Launched(GOOD, 4, late)) for late in range(3)]
    holding.release()
    holding.pool.close(kill=False)
    assert [future.result(0).cached for future in futures] == [False, True, True]


def test_a_pool_that_breaks_loses_nobody_who_waits_for_the_same(holding: Holding) -> None:
    holding.release()
    for turn in range(5):
        pids = {int(holding.pool.submit(Fake(WHO, n)).result(30).cubin.split()[0]) for n in range(10)}
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        futures = [holding.pool.submit(Launched(GOOD, turn, late)) for late in range(3)]
        assert [future.result(30).registers for future in futures] == [turn] * 3
        assert [future.result(30).cached for future in futures] == [False, True, True]


def test_submitting_and_cancelling_from_many_threads_settles_everything(pool: CompilePool) -> None:
    def submit(seed: int) -> list[Future[Binary]]:
        chance = random.Random(seed)
        futures = []
        for late in range(60):
            futures.append(pool.submit(Launched(GOOD, chance.randrange(4), late % 10)))
            if chance.random() < 0.5:
                chance.choice(futures).cancel()
        return futures

    with ThreadPoolExecutor(6) as threads:
        futures = [future for found in threads.map(submit, range(6)) for future in found]
    assert not wait(futures, timeout=60).not_done
    results = [future.result(0) for future in futures if not future.cancelled()]
    assert {one.registers for one in results} == set(range(4))
    assert {one.cached for one in results} == {False, True}
    assert len(results) < len(futures)
    assert not pool._unfinished()


def test_a_cache_hit_needs_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "cache_key", lambda kernel, arch: f"{kernel.DO}{kernel.N:062d}")
    cache = BinaryCache(tmp_path)
    stored = {"registers": 9, "spill_bytes": 0, "static_smem": 0, "nvrtc": "12.9", "seconds": 1.5, "log": ""}
    cache.write(f"{HANG}{4:062d}", stored, b"ELF")
    with CompilePool(SM_90, jobs=1, cache=cache, compile_fn=stand_in) as pool:
        hit = pool.submit(Fake(HANG, 4))
        assert hit.done()
        assert hit.result() == Binary(b"ELF", 9, 0, 0, "12.9", 1.5, "", cached=True)
        assert not pool.submit(Fake(GOOD, 5)).result(30).cached


def test_what_is_compiled_is_what_the_cache_has(tmp_path: Path) -> None:
    cache, some = BinaryCache(tmp_path), stage_named("tma").legal(SM_90)[:60]
    with (
        CompilePool(SM_90, jobs=1, cache=cache) as pool,
        CompilePool(ARCHS["sm_120"], jobs=1, cache=cache) as other,
    ):
        assert pool.compiled(some) == set()
        cache.write(nvrtc.cache_key(some[0], SM_90), {}, b"ELF")
        cache.write(nvrtc.cache_key(some[-1], SM_90), {}, b"ELF")
        assert pool.compiled(some) == {some[0].code, some[-1].code}
        assert other.compiled(some) == set()
        alike = [kernel for kernel in some if kernel.code == some[0].code]
        assert len(alike) > 1
        assert pool.compiled(alike[1:]) == {some[0].code}, "whatever it is launched with"


def test_without_a_cache_nothing_is_compiled(pool: CompilePool) -> None:
    done = Fake(GOOD, 1)
    pool.submit(done).result(30)
    assert pool.compiled([done]) == set()


def test_processes_can_be_started_before_they_are_needed() -> None:
    before = set(multiprocessing.active_children())

    def started() -> set[int | None]:
        return {child.pid for child in set(multiprocessing.active_children()) - before}

    with CompilePool(SM_90, jobs=2, compile_fn=stand_in) as pool:
        assert not started()
        pool.start()
        end = time.monotonic() + 30
        while len(started()) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        pids = started()
        assert set(workers(2, pool)) == pids
        pool.start()
        assert set(workers(2, pool)) == pids, "a second time changes nothing"


PATHS = [str(Path(__file__).parent), str(Path(nvrtc.__file__).parents[2])]
ORPHANS = """
import signal, sys, time
from pathlib import Path
sys.path[:0] = {paths!r}
import test_compile_pool as t

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background is started without

# no __main__ guard: the processes must not run this file again
Path({mark!r}).open("a").write("x")
pool = t.CompilePool(t.SM_90, jobs=2, deadline_s=300, compile_fn=t.stand_in)
print(*t.workers(2, pool), flush=True)
for n in range(2):
    pool.submit(t.Fake(t.HANG, n))
try:
    time.sleep(60)
finally:
    pool.close()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_its_parent(tmp_path: Path, how: signal.Signals) -> None:
    script, mark = tmp_path / "parent.py", tmp_path / "mark"
    script.write_text(ORPHANS.format(paths=PATHS, mark=str(mark)))
    parent = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(alive, pids))
    time.sleep(0.5)
    if how is signal.SIGINT:
        os.killpg(parent.pid, how)
    else:
        parent.send_signal(how)
    assert parent.wait(10) == -how
    parent.stdout.close()
    assert gone(pids, 5)
    assert mark.read_text() == "x"
