"""What a kernel is launched with: blocks, arguments, memory of its own, the pre-pass. No GPU is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from sgemm_tune.device import launch, tensor_maps
from sgemm_tune.device.launch import Loaded, Packed, aligned, pack_blocks, packed_bytes
from sgemm_tune.device.operands import Matrix
from sgemm_tune.device.tensor_maps import TiledMap
from sgemm_tune.kernel import Kernel, stage_named, tune
from sgemm_tune.problem import Problem

SMS = 132
MEMORY = 0x7F00_0000_0000
MAPS = 11
"""How many arguments all kernels take: where others have maps, whether B's is valid, a workspace."""

OPERANDS = {"a": 0x7E00_0000_0100, "b": 0x7E10_0000_0100, "c": 0x7E20_0000_0100}


@dataclass
class Recorded:
    """Stands for an entry point: keeps what it was launched with."""

    calls: list[tuple[int, int, tuple[Any, ...], int]] = field(default_factory=list)

    def __call__(
        self, grid: tuple[int], block: tuple[int], args: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        self.calls.append((*grid, *block, args, shared_mem))


@dataclass
class Memory:
    """Stands for the workspace: says how much was asked for."""

    asked: list[int] = field(default_factory=list)

    def reserve(self, size: int) -> int:
        self.asked.append(size)
        return MEMORY


@dataclass
class Placed:
    """Stands for operands in device memory."""

    problem: Problem
    shift: int = 0

    @property
    def a(self) -> str:
        return "a"

    @property
    def b(self) -> str:
        return "b"

    @property
    def c(self) -> str:
        return "c"

    def pointer(self, matrix: Matrix | str) -> int:
        return OPERANDS[str(matrix)] + 4 * self.shift


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[TiledMap | None, ...]]:
    """The maps that were asked for, instead of a driver that makes them."""
    seen: list[tuple[TiledMap | None, ...]] = []

    def encode(maps: tuple[TiledMap | None, ...]) -> str:
        seen.append(maps)
        return "maps"

    monkeypatch.setattr(launch, "encode", encode)
    return seen


def _launched(kernel: Kernel, problem: Problem, shift: int = 0) -> tuple[Recorded, Recorded, Memory]:
    function, pack, memory = Recorded(), Recorded(), Memory()
    loaded = Loaded(kernel, function, pack if kernel.box_of_a else None, None, SMS, memory)  # type: ignore[arg-type]
    loaded.launch(Placed(problem, shift))  # type: ignore[arg-type]
    return function, pack, memory


def _tma(**changed: int) -> Kernel:
    stage = stage_named("tma")
    return stage.from_params({**stage().params, **changed})


def test_numbers_have_the_width_that_the_kernel_reads() -> None:
    kernel = stage_named("naive")()
    function, _, memory = _launched(kernel, Problem(5, 7, 9, 1.5, 0.5, 10, 11, 12))
    ((grid, block, args, smem),) = function.calls
    assert (grid, block, smem) == (kernel.blocks(Problem(5, 7, 9), SMS), kernel.threads, 0)
    assert [type(arg) for arg in args] == [
        *[np.int32] * 3, np.float32, np.uintp, np.int32, np.uintp, np.int32, np.float32, np.uintp, np.int32
    ]  # fmt: skip
    assert [float(arg) for arg in args if isinstance(arg, np.int32 | np.float32)] == [
        5, 7, 9, 1.5, 10, 11, 0.5, 12
    ]  # fmt: skip
    assert not memory.asked


@pytest.mark.parametrize("name", ["naive", "skinny", "tma"])
def test_launch_values_are_the_last_arguments(name: str, encoded: list[tuple[TiledMap | None, ...]]) -> None:
    stage = stage_named(name)

    @dataclass(frozen=True)
    class More(stage):  # type: ignore[valid-type,misc]
        """With two tunables that are launch arguments."""

        FIRST: int = tune(3, 4, at_launch=True)
        SECOND: int = tune(5, 6, at_launch=True)

    problem = Problem(33, 65, 70)
    (before,) = _launched(stage(), problem)[0].calls
    (after,) = _launched(More(SECOND=6), problem)[0].calls
    assert (before[:2], before[3]) == (after[:2], after[3])
    assert after[2][:-2] == before[2]
    assert after[2][-2:] == (3, 6)
    assert {type(value) for value in after[2][-2:]} == {np.int32}
    assert len(before[2]) == MAPS + {"naive": 0, "skinny": 1, "tma": 3}[name] + len(stage().launch_values)


def test_an_empty_product_launches_nothing() -> None:
    for kernel in (stage_named("naive")(), _tma(), _tma(PREPASS=1), stage_named("skinny")()):
        function, pack, memory = _launched(kernel, Problem(0, 5, 7))
        assert not function.calls
        assert not pack.calls
        assert not memory.asked


def test_without_a_pre_pass_b_is_mapped_where_its_rows_are_aligned(
    encoded: list[tuple[TiledMap | None, ...]],
) -> None:
    kernel = _tma()
    for problem, shift, mapped in (
        (Problem(300, 400, 500), 0, True),
        (Problem(300, 401, 500), 0, False),
        (Problem(300, 401, 500, ldb=404), 0, True),
        (Problem(300, 400, 500), 1, False),
    ):
        function, _, memory = _launched(kernel, problem, shift)
        of_a, of_b = encoded[-1]
        assert of_a is None
        assert (of_b is not None) == mapped
        maps, flag, own = function.calls[0][2][MAPS : MAPS + 3]
        assert (maps, int(flag), int(own)) == ("maps", int(mapped), MEMORY)
        assert memory.asked == [kernel.workspace_bytes(problem, SMS)]


@pytest.mark.parametrize("prepass", [0, 1])
def test_blocks_of_a_cluster_each_fetch_some_rows_of_b(
    encoded: list[tuple[TiledMap | None, ...]], prepass: int
) -> None:
    kernel = _tma(CLUSTER=2, PREPASS=prepass)
    problem = Problem(129, 400, 512)
    function, _, _ = _launched(kernel, problem)
    _, of_b = encoded[-1]
    _, bn, bk = kernel.tile
    assert of_b is not None
    assert of_b.box == (bn, bk // 2)
    assert function.calls[0][0] == kernel.blocks(problem, SMS) == 2 * 2 * 8, "two tiles, eight clusters each"


@pytest.mark.parametrize("shift", [0, 1])
def test_the_pre_pass_transposes_a_and_packs_b_only_where_it_must(
    encoded: list[tuple[TiledMap | None, ...]], shift: int
) -> None:
    kernel = _tma(PREPASS=1)
    problem = Problem(301, 400, 500)
    function, pack, memory = _launched(kernel, problem, shift)
    own = kernel.workspace_bytes(problem, SMS)
    of_a, of_b = packed_bytes(problem)
    assert of_a == 4 * 500 * 304
    assert memory.asked == [own + of_a + of_b]
    a, b = MEMORY + own, MEMORY + own + of_a if shift else 0
    ((grid, block, args, _),) = pack.calls
    assert (grid, block) == (16 * (10 + (13 if shift else 0)), 256)
    assert (int(args[6]), int(args[9])) == (a, b)
    map_of_a, map_of_b = encoded[-1]
    assert map_of_a == tensor_maps.tiled_map(a, 500, 301, 304, (kernel.tile[2], kernel.tile[0]))
    assert map_of_b is not None
    assert map_of_b.pointer == (b or OPERANDS["b"])
    assert int(function.calls[0][2][MAPS + 1]) == 1, "B always comes by the copy engine"


def test_nothing_is_packed_where_there_is_no_k(encoded: list[tuple[TiledMap | None, ...]]) -> None:
    function, pack, _ = _launched(_tma(PREPASS=1), Problem(5, 7, 0))
    assert not pack.calls
    assert len(function.calls) == 1
    assert encoded[-1] == (None, None)


def test_squares_of_the_pre_pass_cover_both_operands() -> None:
    problem = Problem(33, 65, 32)
    assert pack_blocks(problem, Packed(1, 0)) == 2
    assert pack_blocks(problem, Packed(1, 1)) == 2 + 3
    assert [aligned(cols) for cols in (1, 4, 5, 4095)] == [4, 4, 8, 4096]


def test_workspace_of_tma_is_asked_for_where_blocks_share_tiles() -> None:
    kernel = _tma(BM=64, BN=128, BK=32, TM=8, TN=8, LANES_M=4, STAGES=2, MIN_BLOCKS=2)
    deep = Problem(64, 64, 262144)
    assert kernel.blocks(deep, SMS) == 264
    assert kernel.workspace_bytes(deep, SMS) == 2 * 264 * 64 * 128 * 4
    assert kernel.blocks(Problem(64, 64, 640), SMS) == 10, "at least 64 entries of K each"
    large = Problem.parse_size(4096)
    assert kernel.blocks(large, SMS) == 264
    assert kernel.workspace_bytes(large, SMS) == 0
    whole = kernel.from_params({**kernel.params, "STREAM_K": 0})
    assert whole.blocks(deep, SMS) == 1
    assert whole.workspace_bytes(deep, SMS) == 0
