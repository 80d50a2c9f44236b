"""Planning with stand-ins for the compiler; the pool and its processes are real."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from sgemm_tune.arch import ARCHS, Arch
from sgemm_tune.compiler.cache import BinaryCache
from sgemm_tune.compiler.nvrtc import Binary
from sgemm_tune.errors import CompileError, UsageError
from sgemm_tune.kernel import Kernel, TiledKernel, Traits, ladder, tune
from sgemm_tune.measure.outcome import Status
from sgemm_tune.model.plan import PLAN_TRIALS, VARIANTS, PredictedCandidate, choose, plan
from sgemm_tune.model.predict import predict_on_board
from sgemm_tune.problem import Precision, Problem

SM_90, SM_121 = ARCHS["sm_90"], ARCHS["sm_121"]
SIZE = Problem.parse_size(4096)


@dataclass(frozen=True)
class Slow(TiledKernel):
    """A stage that the model holds for slow."""

    source: ClassVar[str] = "97_slow.cu"
    traits: ClassVar[Traits] = Traits(vector=1)

    TILE: int = tune(16, 32)

    @property
    def tile(self) -> tuple[int, int, int]:
        return self.TILE, self.TILE, self.TILE

    @property
    def thread_tile(self) -> tuple[int, int]:
        return 1, 1

    @property
    def threads(self) -> int:
        return self.TILE**2

    @property
    def smem_bytes(self) -> int:
        return 8 * self.TILE**2


@dataclass(frozen=True)
class Fast(TiledKernel):
    """A stage that it holds for fast; VARIANT is nothing that it knows of."""

    source: ClassVar[str] = "98_fast.cu"
    traits: ClassVar[Traits] = Traits(split_fragments=True, buffers=2, early_fragments=True)

    BM: int = tune(64, 128)
    BN: int = tune(64, 128)
    BK: int = tune(8, 16)
    TM: int = tune(4, 8)
    VARIANT: int = tune(0, 1, 2, 3)

    @property
    def tile(self) -> tuple[int, int, int]:
        return self.BM, self.BN, self.BK

    @property
    def thread_tile(self) -> tuple[int, int]:
        return self.TM, 8

    @property
    def threads(self) -> int:
        return self.BM // self.TM * self.BN // 8

    @property
    def smem_bytes(self) -> int:
        return 8 * self.BK * (self.BM + 4 + self.BN)


@dataclass(frozen=True)
class Tensor(Fast):
    """A stage of another precision."""

    source: ClassVar[str] = "99_tensor.cu"
    precision: ClassVar[Precision] = Precision.TF32


STAGES: list[type[Kernel]] = [Slow, Fast]


def good(kernel: Kernel, arch: Arch, cache: BinaryCache | None) -> Binary:
    assert arch.name == "sm_90"
    return Binary(b"ELF", 64, 0, 0, "12.9", 0.25, "")


def mixed(kernel: Kernel, arch: Arch, cache: BinaryCache | None) -> Binary:
    """Every way in which a candidate can fail, decided by its parameters."""
    if isinstance(kernel, Slow):
        return Binary(b"ELF", 40, 0, 0, "12.9", 0.1, "")
    if kernel.params["VARIANT"] == 0:
        return Binary(b"ELF", 168, 16, 0, "12.9", 0.1, "")
    if kernel.params["VARIANT"] == 1:
        raise CompileError(f"{kernel} does not compile: too big")
    if kernel.params["VARIANT"] == 2 and kernel.tile[0] == 64:
        return Binary(b"ELF", 64, 0, 200 * 1024 + 64 * 1024, "12.9", 0.1, "")
    if kernel.params == {"BM": 128, "BN": 128, "BK": 16, "TM": 8, "VARIANT": 2}:
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGABRT)
    return Binary(b"ELF", 90 + kernel.params["TM"] + kernel.params["VARIANT"], 0, 0, "12.9", 0.1, "")


def sleepy(kernel: Kernel, arch: Arch, cache: BinaryCache | None) -> Binary:
    time.sleep(0.4)
    return Binary(b"ELF", 64, 0, 0, "12.9", 0.4, "")


def stuck(kernel: Kernel, arch: Arch, cache: BinaryCache | None) -> Binary:
    time.sleep(120)
    raise AssertionError("nobody waits that long")


def test_choice_is_legal_distinct_and_repeatable() -> None:
    chosen = choose(SIZE, STAGES, SM_90, trials=24, seed=3)
    legal = set(Slow.legal(SM_90)) | set(Fast.legal(SM_90))
    assert len(chosen) == len(set(chosen)) == 24
    assert set(chosen) <= legal
    assert chosen == choose(SIZE, STAGES, SM_90, trials=24, seed=3)
    assert chosen != choose(SIZE, STAGES, SM_90, trials=24, seed=4)


def test_choice_gives_every_stage_its_best_first() -> None:
    chosen = choose(SIZE, STAGES, SM_90, trials=24, seed=0)
    for stage, kernel in zip(STAGES, chosen, strict=False):
        best = min(predict_on_board(k, SIZE, SM_90).ms for k in stage.legal(SM_90))
        assert type(kernel) is stage
        assert predict_on_board(kernel, SIZE, SM_90).ms == best


def test_choice_prefers_what_the_model_prefers_but_not_ten_times_the_same() -> None:
    chosen = choose(SIZE, [Fast], SM_90, trials=16, seed=0)
    times = sorted(predict_on_board(k, SIZE, SM_90).ms for k in Fast.legal(SM_90))
    named = chosen[: 16 - 16 // 4]
    assert all(predict_on_board(k, SIZE, SM_90).ms <= times[len(times) // 2] for k in named)
    # the first quarter of the budget is the stage's own best, the next quarters are spread out
    spread = Counter((k.tile, k.thread_tile) for k in named[4:])
    assert max(spread.values()) <= VARIANTS
    assert len({k.params["VARIANT"] for k in chosen}) > 1


def test_the_seed_decides_between_what_the_model_cannot_tell_apart() -> None:
    firsts = [choose(SIZE, [Fast], SM_90, trials=4, seed=seed)[0] for seed in range(8)]
    assert len({predict_on_board(kernel, SIZE, SM_90).ms for kernel in firsts}) == 1
    assert len({kernel.params["VARIANT"] for kernel in firsts}) > 1


def test_a_budget_larger_than_the_space_takes_all_of_it() -> None:
    chosen = choose(SIZE, STAGES, SM_90, trials=1000, seed=0)
    assert set(chosen) == set(Slow.legal(SM_90)) | set(Fast.legal(SM_90))


@pytest.mark.parametrize("trials", [1, 2, 3, 7])
def test_a_tiny_budget_is_kept(trials: int) -> None:
    assert len(choose(SIZE, STAGES, SM_90, trials=trials, seed=0)) == trials


def test_the_real_ladder_gets_candidates_on_every_rung() -> None:
    stages = [stage for stage in ladder() if stage.precision is Precision.FP32 and stage.suits(SIZE)]
    chosen = choose(SIZE, stages, SM_121, trials=PLAN_TRIALS, seed=0)
    count = Counter(type(kernel) for kernel in chosen)
    assert len(chosen) == PLAN_TRIALS
    assert set(count) == set(stages)
    assert all(count[stage] >= 2 for stage in stages)


def test_plan_ranks_by_what_the_compiler_reports_and_counts_what_failed() -> None:
    seen: list[tuple[int, int, PredictedCandidate | None, float]] = []
    found = plan(
        SIZE, Precision.FP32, STAGES, SM_90, trials=100, jobs=2, compile_fn=mixed,
        on_progress=lambda *step: seen.append(step),
    )  # fmt: skip
    fast = Fast.legal(SM_90)
    assert found.legal == len(fast) + 2
    reasons = found.dropped_by_reason
    assert reasons[Status.SPILL] == sum(k.VARIANT == 0 for k in fast)
    assert reasons[Status.COMPILE] == sum(k.VARIANT == 1 for k in fast)
    assert reasons[Status.LAUNCH] == sum(k.VARIANT == 2 and k.BM == 64 for k in fast)
    assert reasons[Status.CRASHED] == 1
    assert len(found.candidates) + sum(reasons.values()) == found.legal
    assert found.uncompiled == 0

    assert [c.rank for c in found.candidates] == list(range(1, len(found.candidates) + 1))
    times = [c.prediction.ms for c in found.candidates]
    assert times == sorted(times)
    assert {type(c.kernel) for c in found.candidates} == {Slow, Fast}
    for c in found.candidates:
        assert c.prediction.registers == c.binary.registers
        assert c.prediction == predict_on_board(c.kernel, SIZE, SM_90, registers=c.binary.registers)
    spilled = next(d for d in found.dropped if d.rejected.status is Status.SPILL)
    assert spilled.rejected.reason == "16 bytes of registers spilled to memory"

    assert [done for done, *_ in seen] == list(range(1, found.legal + 1))
    assert {total for _, total, _, _ in seen} == {found.legal}
    assert seen[-1][2] is not None
    assert seen[-1][2].kernel == found.candidates[0].kernel
    assert seen[-1][3] == pytest.approx(found.legal / found.seconds, rel=0.5)


def test_the_same_plan_twice_whatever_the_order_of_completion() -> None:
    plans = [
        plan(SIZE, Precision.FP32, STAGES, SM_90, trials=20, jobs=jobs, seed=5, compile_fn=good)
        for jobs in (1, 3)
    ]
    assert plans[0].candidates == plans[1].candidates
    assert len(plans[0].candidates) == 20


def test_time_is_up() -> None:
    found = plan(SIZE, Precision.FP32, STAGES, SM_90, trials=60, jobs=1, deadline=6, compile_fn=sleepy)
    assert 2 <= len(found.candidates) <= 15
    assert found.uncompiled == 60 - len(found.candidates)
    assert 6 <= found.seconds < 11
    # the first candidates are one of each stage
    assert {type(c.kernel) for c in found.candidates} == {Slow, Fast}


def test_a_stuck_compiler_does_not_outlast_the_plan() -> None:
    found = plan(SIZE, Precision.FP32, [Fast], SM_90, trials=4, jobs=2, deadline=1.5, compile_fn=stuck)
    assert (found.candidates, found.dropped, found.uncompiled) == ((), (), 4)
    assert found.seconds < 7


def test_stages_of_another_precision_are_left_out() -> None:
    with pytest.raises(
        UsageError, match="no stage of those requested has a legal tf32 configuration on sm_90"
    ):
        plan(SIZE, Precision.TF32, STAGES, SM_90, compile_fn=good)
    found = plan(SIZE, Precision.TF32, [*STAGES, Tensor], SM_90, trials=3, compile_fn=good)
    assert {type(c.kernel) for c in found.candidates} == {Tensor}


def test_a_second_plan_compiles_nothing(tmp_path: Path) -> None:
    """With real sources and the real compiler, for an architecture that is not here."""
    naive = [stage for stage in ladder() if stage.name() in ("naive", "smem_tile")]
    cache = BinaryCache(tmp_path)
    first = plan(SIZE, Precision.FP32, naive, SM_121, trials=4, jobs=2, cache=cache)
    again = plan(SIZE, Precision.FP32, naive, SM_121, trials=4, jobs=2, cache=cache)
    assert len(first.candidates) == 4
    assert not any(c.binary.cached for c in first.candidates)
    assert all(c.binary.cached for c in again.candidates)
    assert [c.kernel for c in again.candidates] == [c.kernel for c in first.candidates]
    assert all(c.binary.cubin.startswith(b"\x7fELF") for c in again.candidates)
