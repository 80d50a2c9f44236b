"""What the blocks of stage 11 need, alone and in clusters; what its source makes of tiles of any side."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from sgemm_tune.arch import ARCHS
from sgemm_tune.compiler.sources import shipped_configs_dir
from sgemm_tune.kernel import ceil_div
from sgemm_tune.model.instructions import Rows, tile_copy
from sgemm_tune.model.predict import predict_on_board
from sgemm_tune.problem import Problem
from sgemm_tune.stages.tma import Tma
from sgemm_tune.store.configs import config_path, kernel_of, load_config
from tests.cuda_constants import Constants

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


def _by_code() -> list[tuple[Tma, Constants]]:
    """One legal configuration for each cubin, that with the fewest buffers, and its source's constants."""
    fewest = sorted(Tma.legal(SM_90), key=lambda kernel: -kernel.STAGES)
    return [(kernel, Constants(kernel)) for kernel in {kernel.code: kernel for kernel in fewest}.values()]


def test_python_and_the_source_divide_shared_memory_alike() -> None:
    most = max(Tma.tunables()["STAGES"])
    for kernel, source in _by_code():
        assert kernel.smem_bytes == source["RING"] + kernel.STAGES * source["BUFFER"]
        assert source["MOST_STAGES"] == most
        sizes = {
            **dict.fromkeys(("FULL", "EMPTY", "READY"), most * source["BARRIER_BYTES"]),
            "TICKETS": source["TICKET_BYTES"],
            "WORK": source["WORK_BYTES"],
            "EXCHANGE": source["COMPUTING"] * 16,
        }
        ends = [source[name] + size for name, size in sizes.items()]
        begins = [source[name] for name in (*sizes, "RING")]
        assert begins[0] == 0
        assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=True)), "nothing overlaps"
        assert not any(source[name] % 16 for name in sizes), "a float4 of Work or of the exchange"
        for boxes in ("RING", "A_BYTES", "B_BYTES"):
            assert source[boxes] % source["BOX_ALIGNMENT"] == 0


def test_python_and_the_source_count_threads_and_registers_alike() -> None:
    for kernel, source in _by_code():
        assert source["COMPUTING"] == kernel.computing_threads
        assert source["THREADS"] == kernel.threads
        assert source["GIVEN"] == kernel.launch_registers
        assert source["TAKEN"] == kernel.computing_registers
        assert source["REGISTERS"] == kernel.register_estimate


def test_sums_that_meet_fit_the_ring_which_nobody_needs_any_more() -> None:
    for kernel, source in _by_code():
        assert 4 * source["COMPUTING"] * 16 <= kernel.STAGES * source["BUFFER"]


def test_clusters_take_no_more_shared_memory() -> None:
    for kernel in Tma.legal(SM_90):
        assert kernel.smem_bytes == replace(kernel, CLUSTER=1).smem_bytes


def test_buffers_and_shared_waves_are_no_reason_to_compile_again() -> None:
    other = replace(PLAIN, STAGES=4, STREAM_K=0)
    assert other.code == PLAIN.code
    assert (PLAIN.launch_values, other.launch_values) == ((3, 1), (4, 0))
    assert max(Counter(kernel.code for kernel in Tma.legal(SM_90)).values()) == 8
    little, much = replace(PLAIN, BK=8, STAGES=2), replace(PLAIN, BK=64, STAGES=3)
    for kernel in (little, much):
        (broken,) = kernel.violations()
        assert broken.startswith("16 to 96 entries of K must be on their way")
        assert all(holds for holds, _ in kernel.rules()), "no static_assert says so"


def test_every_side_is_legal_with_some_patch() -> None:
    legal = Tma.legal(SM_90)
    for name in ("BM", "BN", "BK", "TM", "TN", "LANES_M", "STAGES"):
        assert {kernel.params[name] for kernel in legal} == set(Tma.tunables()[name]), name
    thirds = {kernel for kernel in legal if kernel.BM % 3 == 0 or kernel.BN % 3 == 0}
    assert thirds == {kernel for kernel in legal if 12 in kernel.thread_tile}


def test_a_tile_of_48_rows_wastes_less_of_33_than_one_of_64() -> None:
    flat = Tma(BM=48, BN=256, TM=12, TN=8, ORDER=1, MIN_BLOCKS=2)
    tall = Tma(BM=64, BN=256, TM=16, TN=8, MIN_BLOCKS=2)
    problem = Problem(33, 4096, 4096)
    assert not flat.violations(SM_90)
    assert flat.grid(problem) == tall.grid(problem) == 16
    less, more = (predict_on_board(kernel, problem, SM_90) for kernel in (flat, tall))
    assert less.ms < 0.85 * more.ms, "an H200 takes 41 us and 51"
    assert less.useful == pytest.approx(more.useful * 64 / 48)


def test_a_is_copied_to_each_place_of_its_tile_once() -> None:
    sides = {(kernel.BM, kernel.BK): source for kernel, source in _by_code() if not kernel.PREPASS}
    for (bm, bk), source in sides.items():
        lanes, rows, stride = source["A_LANES"], source["A_ROWS"], source["A_STRIDE"]
        copied = Counter(
            (number % lanes + i) * stride + number // lanes + row
            for number in range(source["COPYING"])
            for row in range(0, bm, rows)
            for i in range(0, bk, lanes)
        )
        assert copied == Counter(k * stride + row for k in range(bk) for row in range(bm))


@pytest.mark.parametrize("ragged", [False, True])
def test_unaligned_b_is_copied_to_each_place_of_its_tile_once(ragged: bool) -> None:
    """`copy_b`: where K ends within the tile, and where it does not."""
    seen = set()
    for kernel, source in _by_code():
        if (kernel.BN, kernel.BK) in seen:
            continue
        seen.add((kernel.BN, kernel.BK))
        for inside in (1, 2, kernel.BN // 2 + 1, kernel.BN - 1, kernel.BN):
            k_left = kernel.BK - 3 if ragged else kernel.BK
            copied = _copies_of_b(source, inside, k_left)
            assert len(copied) == kernel.BK * kernel.BN
            for to, taken in copied:
                k, col = divmod(to, kernel.BN)
                assert taken == ((k, min(col, inside - 1)) if k < k_left else None), "zeros beyond K"
            assert sorted(to for to, _ in copied) == list(range(kernel.BK * kernel.BN))
    assert {bn for bn, _ in seen} == set(Tma.tunables()["BN"])


def _copies_of_b(source: Constants, inside: int, k_left: int) -> list[tuple[int, tuple[int, int] | None]]:
    """(place in the tile, (row, column) of B or None for a zero) of all threads, as `copy_b` goes."""
    bn, bk, cols, rows = (source[name] for name in ("BN", "BK", "B_COLS", "B_ROWS"))
    copied: list[tuple[int, tuple[int, int] | None]] = []
    for number in range(source["COPYING"]):
        row, col = divmod(number, cols)
        first = min(col, inside - 1)
        right = [min(col + turn * cols, inside - 1) - first for turn in range(source["B_PASSES"])]
        to, b = row * bn + col, row
        for k in range(0, bk, rows) if k_left >= bk else range(row, bk, rows):
            taken = k_left >= bk or k < k_left
            for turn, aside in enumerate(right):
                copied.append((to + turn * cols, (b, first + aside) if taken else None))
            to, b = to + rows * bn, b + rows
    return copied


def test_rows_that_are_updated_some_at_a_time_are_those_of_the_patch() -> None:
    """`update_c`: float4s lie four rows below one another, then LANES_M times as far down."""
    seen = set()
    for kernel, source in _by_code():
        at_a_time, step = source["ROWS"], source["VECTOR"] * kernel.LANES_M
        assert at_a_time >= 1
        assert source["VECTOR"] % at_a_time == kernel.TM % at_a_time == 0
        seen.add(at_a_time)
        row = 0
        rows: list[int] = []
        for m in range(0, kernel.TM, at_a_time):
            rows += range(row, row + at_a_time)
            row += step - (4 - at_a_time) if (m + at_a_time) % 4 == 0 else at_a_time
        assert rows == [m // 4 * step + m % 4 for m in range(kernel.TM)]
    assert seen == {1, 2, 4}


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
        assert tile_copy(PAIRED, Rows.of(problem)).bytes == 4 * PAIRED.BK * (128 + columns)
        assert tile_copy(PAIRED, Rows.of(problem)).issue == tile_copy(PLAIN, Rows.of(problem)).issue
    packed = replace(PAIRED, PREPASS=1)
    assert tile_copy(packed, Rows.of(ragged)).bytes == tile_copy(packed, Rows.of(aligned)).bytes
    for size in (1024, 2048, 4096):
        alone, together = (
            predict_on_board(kernel, Problem.parse_size(size), SM_90) for kernel in (PLAIN, PAIRED)
        )
        assert alone.ms < together.ms < 1.02 * alone.ms, "FFMAs are the limit, and clusters take time to meet"
    odd = Problem(300, 4096, 4096)
    assert predict_on_board(PAIRED, odd, SM_90).useful < predict_on_board(PLAIN, odd, SM_90).useful
