"""Memory that kernels write for themselves, and whose fault it is where there is none. No GPU is asked."""

from __future__ import annotations

import itertools
import sys
import weakref
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from sgemm_tune.device.workspace import MIB, Workspace
from sgemm_tune.errors import LaunchError, OutOfDeviceMemory


@dataclass(eq=False)
class Piece:
    """Stands for an array of bytes in device memory."""

    nbytes: int
    ptr: int

    @property
    def data(self) -> Piece:
        return self


class Memory:
    """A device's memory: what nobody holds any more is free again."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pieces: weakref.WeakSet[Any] = weakref.WeakSet()
        self._places = itertools.count(1)

    @property
    def taken(self) -> int:
        return sum(piece.nbytes for piece in self._pieces)

    def allocate(self, size: int) -> Piece:
        if self.taken + size > self.size:
            raise OutOfDeviceMemory(f"out of device memory: {size} of {self.size - self.taken} bytes")
        piece = Piece(size, 256 * next(self._places))
        self._pieces.add(piece)
        return piece


@pytest.fixture
def memory() -> Memory:
    return Memory(100 * MIB)


@pytest.fixture
def workspace(memory: Memory) -> Workspace:
    return Workspace(memory.allocate)


def test_it_grows_where_it_must_and_keeps_what_is_outgrown_until_it_is_released(
    workspace: Workspace, memory: Memory
) -> None:
    first = workspace.reserve(10 * MIB)
    assert workspace.reserve(4 * MIB) == first
    second = workspace.reserve(20 * MIB)
    assert second != first
    assert workspace.reserve(10 * MIB) == second
    assert memory.taken == 30 * MIB, "a graph may have been recorded with the smaller piece"
    workspace.release()
    assert memory.taken == 0
    assert workspace.reserve(0) > 0
    assert memory.taken == 1


def test_where_there_is_no_room_what_was_reserved_stays_as_it_was(
    workspace: Workspace, memory: Memory
) -> None:
    first = workspace.reserve(10 * MIB)
    for _ in range(3):
        with pytest.raises(OutOfDeviceMemory):
            workspace.reserve(95 * MIB)
    assert workspace.reserve(10 * MIB) == first
    assert memory.taken == 10 * MIB


def test_a_kernel_whose_own_memory_does_not_fit_is_refused_and_the_next_one_runs(
    workspace: Workspace, memory: Memory
) -> None:
    operands = memory.allocate(60 * MIB)
    with pytest.raises(LaunchError, match=r"no room for 41.0 MiB of its own .*: out of device memory"):
        workspace.making_room(lambda: workspace.reserve(41 * MIB))
    assert memory.taken == operands.nbytes, "it leaves nothing behind"
    assert workspace.making_room(lambda: workspace.reserve(40 * MIB))


def test_a_kernel_is_refused_where_its_own_memory_leaves_too_little_for_the_comparison(
    workspace: Workspace, memory: Memory
) -> None:
    def run(own: int) -> int:
        workspace.reserve(own)
        return memory.allocate(20 * MIB).nbytes

    with pytest.raises(LaunchError, match=r"90.0 MiB of its own"):
        workspace.making_room(lambda: run(90 * MIB))
    assert workspace.making_room(lambda: run(80 * MIB)) == 20 * MIB


@pytest.mark.parametrize("own", [0, 60 * MIB])
def test_what_earlier_kernels_took_makes_room_for_the_next_one(
    workspace: Workspace, memory: Memory, own: int
) -> None:
    workspace.reserve(20 * MIB)
    workspace.reserve(50 * MIB)
    attempts = []

    def run() -> int:
        attempts.append(own)
        if own:
            workspace.reserve(own)
        return memory.allocate(40 * MIB).nbytes

    assert workspace.making_room(run) == 40 * MIB
    assert len(attempts) == 2
    assert memory.taken == own


def test_a_product_that_does_not_fit_by_itself_is_nobodys_fault(workspace: Workspace, memory: Memory) -> None:
    def run() -> Piece:
        return memory.allocate(101 * MIB)

    with pytest.raises(OutOfDeviceMemory):
        workspace.making_room(run)
    workspace.reserve(50 * MIB)
    with pytest.raises(OutOfDeviceMemory):
        workspace.making_room(run)
    assert memory.taken == 0


def test_only_want_of_memory_makes_it_try_again(workspace: Workspace) -> None:
    attempts = []

    def run() -> None:
        attempts.append(workspace.reserve(1))
        raise LaunchError("the driver refused")

    with pytest.raises(LaunchError, match="the driver refused"):
        workspace.making_room(run)
    assert len(attempts) == 1


def test_memory_that_runs_out_is_told_from_a_refused_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = pytest.importorskip("cupy.cuda.memory")
    runtime = pytest.importorskip("cupy_backends.cuda.api.runtime")
    # what it wraps loads cuBLAS itself, which need not be there
    monkeypatch.setitem(
        sys.modules, "cupy_backends.cuda.libs.cublas", SimpleNamespace(CUBLASError=FloatingPointError)
    )
    from sgemm_tune.device.failures import cuda_errors

    for error in (memory.OutOfMemoryError(1 << 40, 1 << 30), runtime.CUDARuntimeError(2)):
        with pytest.raises(OutOfDeviceMemory, match="while running tma"), cuda_errors("running tma"):
            raise error
    with pytest.raises(LaunchError, match="while running tma"), cuda_errors("running tma"):
        raise runtime.CUDARuntimeError(1)
