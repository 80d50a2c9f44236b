"""The protocol of kernels_cu/11_tma.cu on paper: barriers, ring, shared tiles; progress in random order.

What runs here is a model of the kernel, line by line; the kernel itself needs a GPU.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest

COPYING_WARPS = 4
WARPS = 8
BOX_BYTES = 4096
SHARED_K = 512


@dataclass
class Barrier:
    """mbarrier: a phase ends when its arrivals and all announced bytes have come."""

    arrivals: int
    pending: int = field(init=False)
    bytes: int = 0
    phase: int = 0

    def __post_init__(self) -> None:
        self.pending = self.arrivals

    def arrive(self, expected: int = 0) -> None:
        assert self.pending > 0, "more arrivals than the phase counts on"
        self.bytes += expected
        self.pending -= 1
        self._end()

    def bring(self, count: int) -> None:
        self.bytes -= count
        self._end()

    def ended(self, parity: int) -> bool:
        """What try_wait.parity says: whether the phase of that parity, the latest of them, has ended."""
        return self.phase % 2 != parity

    def _end(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.pending = self.arrivals
            self.phase += 1


class Place:
    def __init__(self, stages: int, parity: int) -> None:
        self.stages, self.buffer, self.parity = stages, 0, parity

    def advance(self) -> None:
        wraps = self.buffer == self.stages - 1
        self.buffer = 0 if wraps else self.buffer + 1
        self.parity ^= wraps


class Block:
    """One block that works through `tiles` tiles of K; every yield is a place where others may go on."""

    def __init__(self, stages: int, tiles: int, mapped: bool, chance: random.Random) -> None:
        self.stages, self.tiles, self.mapped, self.chance = stages, tiles, mapped, chance
        self.full = [Barrier(COPYING_WARPS + 1) for _ in range(stages)]  # by warps, as lanes go together
        self.empty = [Barrier(WARPS) for _ in range(stages)]
        self.content = [[-1] * (COPYING_WARPS + 1) for _ in range(stages)]
        self.in_use = [0] * stages
        self.flying: list[Callable[[], None]] = []
        self.read = [0] * WARPS

    def copying(self, warp: int) -> Generator[None, None, None]:
        place = Place(self.stages, 1)
        for tile in range(self.tiles):
            buffer = place.buffer
            while not self.empty[buffer].ended(place.parity):
                yield
            if warp == 0:
                self.full[buffer].arrive(BOX_BYTES if self.mapped else 0)
                yield
                if self.mapped:
                    self.flying.append(partial(self._box, buffer, tile))
            yield
            self.flying.append(partial(self._floats, buffer, tile, warp))
            place.advance()
            yield

    def computing(self, warp: int) -> Generator[None, None, None]:
        place = Place(self.stages, 0)
        for tile in range(self.tiles):
            buffer = place.buffer
            while not self.full[buffer].ended(place.parity):
                yield
            self.in_use[buffer] += 1
            for _ in range(2):
                assert self.content[buffer] == [tile] * (COPYING_WARPS + 1)
                yield
            self.in_use[buffer] -= 1
            self.read[warp] += 1
            self.empty[buffer].arrive()
            place.advance()
            yield

    def _box(self, buffer: int, tile: int) -> None:
        self._land(buffer, COPYING_WARPS, tile)
        self.full[buffer].bring(BOX_BYTES)

    def _floats(self, buffer: int, tile: int, warp: int) -> None:
        self._land(buffer, warp, tile)
        if warp == 0 and not self.mapped:
            self._land(buffer, COPYING_WARPS, tile)
        self.full[buffer].arrive()

    def _land(self, buffer: int, part: int, tile: int) -> None:
        assert self.in_use[buffer] == 0, "overwritten while it was read"
        assert self.content[buffer][part] == (tile - self.stages if tile >= self.stages else -1)
        self.content[buffer][part] = tile

    def run(self) -> None:
        chance = self.chance
        going: list[Iterator[None]] = [self.copying(w) for w in range(COPYING_WARPS)]
        going += [self.computing(w) for w in range(WARPS)]
        speed = {id(warp): chance.choice((1, 1, 20)) for warp in going}
        idle = 0
        while going or self.flying:
            before = (len(going), sum(self.read), len(self.flying))
            if self.flying and chance.random() < 0.3:
                self.flying.pop(chance.randrange(len(self.flying)))()  # in any order
            if going:
                warp = chance.choices(going, [speed[id(each)] for each in going])[0]
                try:
                    next(warp)
                except StopIteration:
                    going.remove(warp)
            idle = idle + 1 if before == (len(going), sum(self.read), len(self.flying)) else 0
            assert idle < 20_000, "deadlock"


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("stages", [2, 3, 4, 6])
def test_no_deadlock_and_nothing_overwritten_before_it_is_read(stages: int, mapped: bool) -> None:
    chance = random.Random(stages)
    for tiles in (0, 1, stages - 1, stages, stages + 1, 2 * stages, 5 * stages + 3):
        for _ in range(3):
            block = Block(stages, tiles, mapped, chance)
            block.run()
            assert block.read == [tiles] * WARPS
            assert not block.flying


Piece = tuple[int, int, int]


def pieces(tiles: int, blocks: int, block: int, depth: int) -> list[Piece]:
    """(tile, first, behind the last) in tiles of K of one block: `Work` of the kernel."""
    whole, part, more = tiles, blocks - 1 - block, tiles % blocks
    at = end = (0, 0)
    if more and tiles > blocks:
        whole = tiles - more - blocks
        at, end = (
            (whole + p + p * more // blocks, p * more % blocks * depth // blocks) for p in (part, part + 1)
        )
    found = [(tile, 0, depth) for tile in range(block, whole, blocks)]
    while at != end:
        cut = at[0] == end[0]
        found.append((at[0], at[1], end[1] if cut else depth))
        at = end if cut else (at[0] + 1, 0)
    return found


@pytest.mark.parametrize("seed", range(200))
def test_shared_tiles_are_covered_once_and_wait_for_lower_blocks_only(seed: int) -> None:
    chance = random.Random(seed)
    blocks = chance.choice((1, 2, 3, 7, 132, 264, 1024))
    tiles = chance.randint(1, 6 * blocks)
    depth = chance.choice((1, 2, 16, 63, 64, 513))
    covered: dict[int, list[tuple[int, int]]] = {}
    ends_written: set[int] = set()
    work = []
    for block in range(blocks):  # one after the other: as where only one is resident at a time
        mine = pieces(tiles, blocks, block, depth)
        work.append(sum(last - first for _, first, last in mine))
        for place, (tile, first, last) in enumerate(mine):
            covered.setdefault(tile, []).append((first, last))
            if first > 0:
                assert last == depth, "no block has the middle of a tile"
                ends_written.add(tile)
            if last < depth:
                assert place == len(mine) - 1, "a beginning is a block's last piece"
                assert tile in ends_written, "its end belongs to a block of lower number"
                ends_written.remove(tile)
    assert not ends_written, "every flag that was raised is lowered"
    assert sorted(covered) == list(range(tiles))
    for parts in covered.values():
        parts.sort()
        assert len(parts) <= 2
        assert parts[0][0] == 0
        assert parts[-1][1] == depth
        assert all(a[1] == b[0] and a[0] < a[1] for a, b in itertools.pairwise(parts))
    if tiles > blocks:
        assert max(work) - min(work) <= 1
