"""How stage 12 shares K out among blocks, and what it needs for that."""

from __future__ import annotations

import itertools

import pytest

from sgemm_tune.arch import ARCHS
from sgemm_tune.kernel import ladder, suited
from sgemm_tune.measure.cases import hard_cases
from sgemm_tune.model.predict import predict
from sgemm_tune.problem import Precision, Problem
from sgemm_tune.search.points import space_of
from sgemm_tune.search.space import STAGE
from sgemm_tune.stages.skinny import FEW_COLUMNS, FEW_ROWS, MOST_TILES, Skinny

SM_90 = ARCHS["sm_90"]
SMS = 132
SHAPES = [
    Problem(m, n, k)
    for m, n, k in itertools.product((0, 1, 7, 33, 4096), (0, 1, 5, 130, 4096), (0, 1, 63, 4096, 1_000_001))
]


@pytest.mark.parametrize("side", [FEW_ROWS, FEW_COLUMNS])
def test_each_side_has_a_space_worth_searching(side: int) -> None:
    for arch in ARCHS.values():
        assert 50 <= len([kernel for kernel in Skinny.legal(arch) if kernel.params["SIDE"] == side]) <= 200


def test_tiles_lie_along_the_long_side() -> None:
    for kernel in Skinny.legal(SM_90):
        bm, bn, bk = kernel.tile
        few_rows = kernel.SIDE == FEW_ROWS
        assert (bm if few_rows else bn) == kernel.thread_tile[not few_rows]
        large = bk * (bn if few_rows else bm)
        assert large == 4 * kernel.AHEAD * kernel.threads, "a round of the loop is what is on its way"


def test_a_launch_fills_the_device_once_and_has_work_for_every_block() -> None:
    for kernel in Skinny.legal(SM_90)[::7]:
        for problem in SHAPES:
            tiles, splits = kernel.grid(problem), kernel.splits(problem, SMS)
            assert kernel.blocks(problem, SMS) == tiles * splits
            if splits > 1:
                assert tiles * splits <= kernel.MIN_BLOCKS * SMS
                assert tiles <= MOST_TILES
                assert splits * kernel.tile[2] <= problem.k
            if tiles > kernel.MIN_BLOCKS * SMS // 2 or problem.k < 2 * kernel.tile[2]:
                assert splits == 1


def test_every_block_of_a_shared_tile_has_room_for_its_sums() -> None:
    kernel = Skinny()
    row = Problem(1, 4096, 4096)
    assert (kernel.grid(row), kernel.splits(row, SMS)) == (32, 8)
    bm, bn, _ = kernel.tile
    assert kernel.takes_workspace
    assert kernel.workspace_bytes(row, SMS) == 4 * 32 * 8 * bm * bn
    assert kernel.workspace_bytes(Problem.parse_size(4096), SMS) == 0
    assert kernel.workspace_bytes(Problem(0, 5, 7), SMS) == kernel.blocks(Problem(0, 5, 7), SMS) == 0


def test_hard_shapes_share_tiles_and_do_not() -> None:
    for kernel in Skinny.legal(SM_90):
        splits = [kernel.splits(case.problem, SMS) for case in hard_cases(kernel)]
        assert splits.count(1) >= 3
        assert max(splits) >= 3


def test_it_suits_few_rows_and_few_columns_alone() -> None:
    assert Skinny.suits(Problem(1, 4096, 4096))
    assert Skinny.suits(Problem(4096, 64, 4096))
    assert not Skinny.suits(Problem(65, 4096, 4096))
    assert not Skinny.suits(Problem.parse_size(4096))


def test_a_search_has_it_where_it_suits_or_where_nothing_else_is_asked_for() -> None:
    every = [stage for stage in ladder() if stage.precision is Precision.FP32]
    row, cube = Problem(1, 4096, 4096), Problem.parse_size(4096)
    assert suited(every, row) == tuple(every)
    assert suited(every, cube) == tuple(stage for stage in every if stage is not Skinny)
    assert suited([Skinny], cube) == (Skinny,)
    assert {point[STAGE] for point in space_of(suited(every, cube), SM_90).points} == {
        stage.name() for stage in every if stage is not Skinny
    }


def _ms(kernel: Skinny, problem: Problem) -> float:
    return predict(kernel, problem, SM_90, sms=SMS, mhz=1980, l2_bytes=50 << 20, gbytes_per_s=4800).ms


@pytest.mark.parametrize(
    ("shape", "side"), [("1x4096x4096", FEW_ROWS), ("8x4096x4096", FEW_ROWS), ("4096x16x4096", FEW_COLUMNS)]
)
def test_the_model_expects_the_time_of_reading_the_large_operand(shape: str, side: int) -> None:
    problem = Problem.parse_shape(shape)
    reading_ms = problem.bytes / 4800e6
    best = min(Skinny.legal(SM_90), key=lambda kernel: _ms(kernel, problem))
    assert best.params["SIDE"] == side
    assert reading_ms < _ms(best, problem) < 1.6 * reading_ms
