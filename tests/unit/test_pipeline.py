"""What the pipeline counts, and how far ahead of the GPU a search proposes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast
from unittest import mock

import pytest

from sgemm_tune import registry
from sgemm_tune.arch import Arch
from sgemm_tune.compiler.nvrtc import Binary
from sgemm_tune.compiler.sources import SourceText
from sgemm_tune.errors import CompileError
from sgemm_tune.kernel import Kernel, stage_named, tune
from sgemm_tune.measure.outcome import Status
from sgemm_tune.search import study
from sgemm_tune.search.pipeline import GPU_QUEUE, Pipeline
from sgemm_tune.search.search import _AT_ONCE
from sgemm_tune.search.types import Progress
from sgemm_tune.store import provenance
from tests import fakes
from tests.fakes import Bench, InlinePool, InlineWorker, Script, kernels_of


@dataclass(frozen=True)
class Launched(stage_named("coalesced")):  # type: ignore[misc]
    """Fifteen codes, each for 40 configurations."""

    source: ClassVar[str] = "98_launched.cu"
    LATE: int = tune(*range(40), at_launch=True)


class HeldPool(InlinePool):
    """Compiles when told to.

    Attributes:
        waiting: kernels that are not compiled yet, with their results.
        is_open: compile at once from now on.
    """

    def __init__(self, script: Script, arch: Arch) -> None:
        super().__init__(script, arch)
        self.waiting: list[tuple[Kernel, Future[Binary]]] = []
        self.is_open = False

    def submit(self, kernel: Kernel) -> Future[Binary]:
        """A future that is done when `compile_all` has been called."""
        if self.is_open:
            return super().submit(kernel)
        future: Future[Binary] = Future()
        self.waiting.append((kernel, future))
        return future

    def compile_all(self) -> None:
        """Do what is waiting."""
        waiting, self.waiting = self.waiting, []
        for kernel, future in waiting:
            done = super().submit(kernel)
            error = done.exception()
            if error is None:
                future.set_result(done.result())
            else:
                future.set_exception(error)


@pytest.fixture
def pool() -> HeldPool:
    return HeldPool(Script(), cast(Arch, None))


@pytest.fixture
def pipeline(pool: HeldPool) -> Iterator[Pipeline[int]]:
    worker = cast(Any, InlineWorker(pool.script))
    with Pipeline[int](pool, worker, lambda kernel, binary: cast(Any, kernel)) as pipeline:
        yield pipeline


def test_kernels_of_one_code_count_as_one_until_it_is_compiled(
    pipeline: Pipeline[int], pool: HeldPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline._gpu, "submit", lambda *_: Future())  # a GPU that is slow
    for late in range(6):
        pipeline.add(late, Launched(LATE=late))
    assert (pipeline.occupied, pipeline.compiling, len(pipeline)) == (1, 6, 6)
    pipeline.add(6, Launched(BX=16, LATE=0))
    assert (pipeline.occupied, pipeline.compiling, len(pipeline)) == (2, 7, 7)
    pool.compile_all()
    assert pipeline.collect(0.0) == []
    assert len(pipeline._running) == GPU_QUEUE
    assert (pipeline.occupied, pipeline.compiling, len(pipeline)) == (7, 0, 7), "now each is work of its own"
    pipeline.add(7, Launched(LATE=7))
    assert (pipeline.occupied, pipeline.compiling, len(pipeline)) == (8, 1, 8)


def test_what_waits_for_the_gpu_is_compiled_and_not_under_way(
    pipeline: Pipeline[int], pool: HeldPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline._gpu, "submit", lambda *_: Future())  # a GPU that is slow
    assert pipeline.waiting == 0
    for late in range(6):
        pipeline.add(late, Launched(LATE=late))
    assert pipeline.waiting == 0, "all of it is in the compiler"
    pool.compile_all()
    assert pipeline.waiting == 6, "though nobody has looked yet"
    pipeline.collect(0.0)
    assert pipeline.waiting == 5
    pipeline.add(6, Launched(LATE=6))
    assert pipeline.waiting == 5


def test_what_did_not_compile_occupies_nothing(pipeline: Pipeline[int], pool: HeldPool) -> None:
    for late in range(3):
        pipeline.add(late, Launched(LATE=late))
    for _, future in pool.waiting:
        future.set_exception(CompileError("no", "log"))
    done = pipeline.collect(0.0)
    assert [(found.ticket, found.outcome.status) for found in done] == [(i, Status.COMPILE) for i in range(3)]
    assert (pipeline.occupied, len(pipeline)) == (0, 0)


@pytest.mark.parametrize(("several", "expected"), [(1, 1), (2, 2), (3, 2)])
def test_what_has_ended_waits_for_company_but_not_for_long(
    pipeline: Pipeline[int], pool: HeldPool, several: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sgemm_tune.search.pipeline._GATHER_SECONDS", 1.0)
    for late in range(3):
        pipeline.add(late, Launched(LATE=late))
    first, second, _ = (future for _, future in pool.waiting)
    first.set_exception(CompileError("no", "log"))
    later = threading.Timer(0.02, second.set_exception, [CompileError("no", "log")])
    later.start()
    began = time.monotonic()
    assert len(pipeline.collect(60.0, several)) == expected
    assert time.monotonic() - began < 30
    later.join()


@contextmanager
def held_search(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[HeldPool]]:
    """Searches have a pool that compiles nothing before the first look at it."""
    pools: list[HeldPool] = []

    def make(script: Script, arch: Arch) -> HeldPool:
        pools.append(HeldPool(script, arch))
        return pools[-1]

    monkeypatch.setattr(fakes, "InlinePool", make)
    for user in (study, provenance):
        monkeypatch.setattr(user, "source_text", lambda name: SourceText(name, "", (), "0" * 16))
    with mock.patch.dict(registry._REGISTRY, {"launched": Launched}):
        yield pools


@pytest.mark.parametrize("jobs", [2, 8])
@pytest.mark.parametrize("stage", ["vectorized", "launched"])
def test_as_many_codes_wait_for_the_compilers_as_keep_them_busy_and_no_proposals_get_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, jobs: int
) -> None:
    waited: list[list[Kernel]] = []

    def on_event(event: Progress) -> None:
        (pool,) = pools
        if event.last is None and not pool.is_open:  # time passes, and nothing more is proposed
            waited.append([kernel for kernel, _ in pool.waiting])
            pool.is_open = True
            pool.compile_all()

    with held_search(monkeypatch) as pools:
        bench = Bench(tmp_path, Script(), (stage,))
        (result,) = bench.search(on_event=on_event, trials=200, jobs=jobs, sampler="exhaustive")
    assert result.done == (200 if stage == "launched" else len(kernels_of(stage)))
    ahead = jobs + max(_AT_ONCE, jobs // 4) + _AT_ONCE + GPU_QUEUE
    kernels = waited[0]
    codes = {kernel.code for kernel in kernels}
    if stage == "launched":
        assert len(codes) < ahead / 2, "forty to a code, proposed one after the other"
        assert 2 * ahead - _AT_ONCE < len(kernels) <= 2 * ahead
    else:
        assert len(codes) == len(kernels) == ahead < result.done
