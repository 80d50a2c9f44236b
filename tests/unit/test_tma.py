"""How the blocks of stage 11 come in clusters, and what they need for that."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from sgemm_tune.arch import ARCHS
from sgemm_tune.compiler.sources import shipped_configs_dir
from sgemm_tune.kernel import ceil_div
from sgemm_tune.model.instructions import tile_copy
from sgemm_tune.model.predict import predict_on_board
from sgemm_tune.problem import Problem
from sgemm_tune.stages.tma import Tma
from sgemm_tune.store.configs import config_path, kernel_of, load_config

SM_90 = ARCHS["sm_90"]
PLAIN = Tma()
PAIRED = replace(PLAIN, CLUSTER=2)
TWO_PER_SM = replace(PAIRED, BN=128, MIN_BLOCKS=2)
SHAPES = [
    Problem(m, n, k)
    for m, n, k in itertools.product((0, 1, 128, 129, 300, 4096), (0, 1, 257, 4096), (0, 1, 640, 65536))
]


@pytest.mark.parametrize("kernel", [PAIRED, TWO_PER_SM, replace(PAIRED, STREAM_K=0)], ids=str)
@pytest.mark.parametrize("sms", [1, 2, 3, 131, 132])
def test_blocks_are_whole_clusters_that_all_run_at_a_time(kernel: Tma, sms: int) -> None:
    for problem in SHAPES:
        blocks, tiles = kernel.blocks(problem, sms), kernel.grid(problem)
        assert blocks % 2 == tiles % 2 == 0
        assert (blocks == 0) == (tiles == 0) == (problem.m == 0 or problem.n == 0)
        assert blocks <= max(2, kernel.MIN_BLOCKS * sms)
        rows, cols = ceil_div(problem.m, kernel.BM), ceil_div(problem.n, kernel.BN)
        assert tiles == (rows + rows % 2) * cols, "every column of C has whole clusters of tiles"


def test_clusters_have_the_work_that_blocks_would_have() -> None:
    deep, large = Problem(256, 256, 65536), Problem.parse_size(4096)
    assert PLAIN.blocks(deep, 132) == PAIRED.blocks(deep, 132) == 132
    assert PAIRED.blocks(deep, 131) == 130
    assert PAIRED.blocks(Problem(256, 256, 640), 132) == 2 * 10, "at least 64 entries of K for each cluster"
    assert PAIRED.blocks(large, 132) == 132
    assert replace(PAIRED, STREAM_K=0).blocks(deep, 132) == 2


def test_each_block_has_places_of_its_own_for_sums() -> None:
    deep = Problem(256, 256, 65536)
    for kernel in (PLAIN, PAIRED, TWO_PER_SM):
        tile = 4 * kernel.BM * kernel.BN
        assert kernel.workspace_bytes(deep, 132) == 2 * kernel.blocks(deep, 132) * tile
        assert kernel.workspace_bytes(Problem.parse_size(4096), 132) == 0


def test_a_block_fetches_its_share_of_the_rows_of_b() -> None:
    for kernel in Tma.legal(SM_90):
        rows, columns = kernel.box_of_b
        assert (rows * kernel.CLUSTER, columns) == (kernel.BK, kernel.BN)
        assert rows * columns * 4 % 128 == 0, "boxes go to a boundary of 128 bytes"


def test_barriers_of_clusters_alone_take_shared_memory_for_them() -> None:
    for kernel in Tma.legal(SM_90):
        alone = replace(kernel, CLUSTER=1)
        assert kernel.smem_bytes - alone.smem_bytes == (16 * kernel.STAGES if kernel.CLUSTER > 1 else 0)
        assert kernel.smem_bytes % 16 == 0, "a float4 for each thread comes last"


def test_only_wide_tiles_are_shared_and_only_where_multicast_is_fast() -> None:
    broken = "only tiles of 128 x 128 and more that are no taller than wide have enough of B to share it"
    assert PAIRED.violations() == []
    tall = Tma(BM=256, BN=128, TM=16, TN=8, LANES_M=8, CLUSTER=2)
    small = Tma(BM=64, BN=128, BK=32, TM=8, TN=8, STAGES=2, MIN_BLOCKS=2, CLUSTER=2)
    for kernel in (tall, small):
        assert replace(kernel, CLUSTER=1).violations() == []
        assert kernel.violations() == [broken]
    for arch in ARCHS.values():
        paired = {kernel.CLUSTER for kernel in Tma.legal(arch)} == {1, 2}
        assert paired == (arch.name in ("sm_90", "sm_100", "sm_103"))
    narrow = replace(PAIRED, BM=64, BN=256, BK=16, STAGES=2, MIN_BLOCKS=2)
    assert narrow.violations(ARCHS["sm_120"]) == [
        "sm_120 is slow to copy to several blocks at once: CLUSTER must be 1"
    ]


def test_configurations_that_do_not_name_clusters_have_none() -> None:
    older = {name: value for name, value in PLAIN.params.items() if name != "CLUSTER"}
    assert Tma.from_params(older) == PLAIN


@pytest.mark.parametrize("name", ["sm_90", "sm_100", "sm_120"])
def test_shipped_configurations_are_legal(name: str) -> None:
    arch = ARCHS[name]
    config = load_config(config_path(shipped_configs_dir(), arch))
    kernels = [*map(kernel_of, config.entries), *map(kernel_of, config.predicted)]
    assert any(isinstance(kernel, Tma) for kernel in kernels)
    assert not [kernel for kernel in kernels if kernel.violations(arch)]


def test_the_model_takes_b_from_the_l2_once_for_a_cluster() -> None:
    aligned, ragged = Problem.parse_size(4096), Problem.parse_size(4095)
    for problem, columns in ((aligned, 128), (ragged, 256)):
        assert tile_copy(PAIRED, problem).bytes == 4 * PAIRED.BK * (128 + columns)
        assert tile_copy(PAIRED, problem).issue == tile_copy(PLAIN, problem).issue
    packed = replace(PAIRED, PREPASS=1)
    assert tile_copy(packed, ragged).bytes == tile_copy(packed, aligned).bytes
    for size in (1024, 2048, 4096):
        alone, together = (
            predict_on_board(kernel, Problem.parse_size(size), SM_90) for kernel in (PLAIN, PAIRED)
        )
        assert alone.ms < together.ms < 1.02 * alone.ms, "FFMAs are the limit, and clusters take time to meet"
    odd = Problem(300, 4096, 4096)
    assert predict_on_board(PAIRED, odd, SM_90).useful < predict_on_board(PLAIN, odd, SM_90).useful
