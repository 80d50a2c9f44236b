"""The protocol of kernels_cu/11_tma.cu on paper: ring, clusters, shared tiles; progress in random order.

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
BOXES = 4
BOX_BYTES = 1024


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

    def __init__(self, stages: int, tiles: int, cluster: Cluster) -> None:
        self.stages, self.tiles, self.cluster = stages, tiles, cluster
        self.full = [Barrier(COPYING_WARPS + 1) for _ in range(stages)]  # by warps, as lanes go together
        self.empty = [Barrier(WARPS) for _ in range(stages)]
        self.ready = [Barrier(cluster.size) for _ in range(stages)]
        self.content = [[-1] * (COPYING_WARPS + 1) for _ in range(stages)]
        self.in_use = [0] * stages
        self.boxes: dict[tuple[int, int], int] = {}
        self.read = [0] * WARPS

    def copying(self, warp: int) -> Generator[None, None, None]:
        cluster = self.cluster
        place = Place(self.stages, 1)
        for tile in range(self.tiles):
            buffer = place.buffer
            while not self.empty[buffer].ended(place.parity):
                yield
            if warp == 0:
                expect = partial(self.full[buffer].arrive, BOXES * BOX_BYTES)
                tell = partial(self._tell, buffer)
                for step in (tell, expect) if cluster.tells_first else (expect, tell):
                    step()
                    yield
            while cluster.asks and not self.ready[buffer].ended(place.parity ^ 1):
                yield
            if warp == 0:
                for _ in range(BOXES // cluster.size):
                    cluster.flying += [partial(block._box, buffer, tile) for block in cluster.blocks]
                    yield
            yield
            cluster.flying.append(partial(self._floats, buffer, tile, warp))
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

    def _tell(self, buffer: int) -> None:
        if self.cluster.asks:
            self.cluster.flying += [block.ready[buffer].arrive for block in self.cluster.blocks]

    def _box(self, buffer: int, tile: int) -> None:
        assert min(self.read) > tile - self.stages, "overwritten before it was read"
        landed = self.boxes.setdefault((buffer, tile), 0) + 1
        self.boxes[buffer, tile] = landed
        if landed == BOXES:
            self._land(buffer, COPYING_WARPS, tile)
        self.full[buffer].bring(BOX_BYTES)

    def _floats(self, buffer: int, tile: int, warp: int) -> None:
        self._land(buffer, warp, tile)
        self.full[buffer].arrive()

    def _land(self, buffer: int, part: int, tile: int) -> None:
        assert self.in_use[buffer] == 0, "overwritten while it was read"
        assert self.content[buffer][part] == (tile - self.stages if tile >= self.stages else -1)
        self.content[buffer][part] = tile


class Cluster:
    """Blocks that fetch B's boxes for one another, or a single one.

    Attributes:
        asks: whether they wait until a buffer is ready in all.
        tells_first: whether they say so before they expect the bytes, which then may come too early.
        flying: copies and arrivals on their way, which end in any order.
    """

    def __init__(
        self,
        size: int,
        stages: int,
        tiles: int,
        chance: random.Random,
        *,
        asks: bool = True,
        tells_first: bool = False,
    ) -> None:
        self.size, self.chance = size, chance
        self.asks, self.tells_first = asks and size > 1, tells_first
        self.flying: list[Callable[[], None]] = []
        self.blocks = [Block(stages, tiles, self) for _ in range(size)]

    def run(self) -> None:
        chance = self.chance
        going: list[Iterator[None]] = []
        speed: dict[int, int] = {}
        for block in self.blocks:
            slow = chance.choice((1, 10))
            warps: list[Iterator[None]] = [block.copying(w) for w in range(COPYING_WARPS)]
            warps += [block.computing(w) for w in range(WARPS)]
            speed |= {id(warp): slow * chance.choice((1, 1, 20)) for warp in warps}
            going += warps
        idle, before = 0, None
        while going or self.flying:
            if self.flying and chance.random() < 0.3:
                self.flying.pop(chance.randrange(len(self.flying)))()
            if going:
                warp = chance.choices(going, [speed[id(each)] for each in going])[0]
                try:
                    next(warp)
                except StopIteration:
                    going.remove(warp)
            state = (len(going), sum(sum(block.read) for block in self.blocks), len(self.flying))
            idle = idle + 1 if before == state else 0
            before = state
            assert idle < 20_000, "deadlock"


@pytest.mark.parametrize(("size", "tells_first"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("stages", [2, 3, 4, 6])
def test_no_deadlock_and_nothing_overwritten_before_it_is_read(
    stages: int, size: int, tells_first: bool
) -> None:
    chance = random.Random(stages)
    for tiles in (0, 1, stages - 1, stages, stages + 1, 2 * stages, 5 * stages + 3):
        for _ in range(3 // size):
            cluster = Cluster(size, stages, tiles, chance, tells_first=tells_first)
            cluster.run()
            assert [block.read for block in cluster.blocks] == [[tiles] * WARPS] * size
            assert not cluster.flying


@pytest.mark.parametrize("stages", [2, 3])
def test_blocks_that_do_not_ask_overwrite_what_others_read(stages: int) -> None:
    """What `ready` is for."""
    cluster = Cluster(2, stages, 40 * stages, random.Random(0), asks=False)
    with pytest.raises(AssertionError, match="overwritten before it was read"):
        cluster.run()


Piece = tuple[int, int, int]


@dataclass(frozen=True)
class Band:
    """`Band` of the kernel: tiles that are shared out, all from number `begin` on."""

    depth: int
    begin: int
    tiles: int
    blocks: int

    @classmethod
    def of(cls, tiles: int, blocks: int, depth: int) -> Band:
        more = tiles % blocks
        few = tiles < blocks
        if not more or (few and tiles * depth < blocks):
            return cls(depth, tiles, 0, blocks)
        shared = tiles if few else blocks + more
        return cls(depth, tiles - shared, shared, blocks)

    def find(self, part: int) -> tuple[int, int]:
        tile, rest = divmod(part * self.tiles, self.blocks)
        return self.begin + tile, rest * self.depth // self.blocks

    def first_part(self, tile: int) -> int:
        part = tile * self.blocks // self.tiles
        return part + (self.find(part + 1) == (tile, 0))

    def last_part(self, tile: int) -> int:
        return ((tile + 1) * self.blocks - 1) // self.tiles

    @property
    def many_share(self) -> bool:
        return 0 < self.tiles < self.blocks


def find_piece(number: int, band: Band, block: int) -> Piece | None:
    """(tile, first, behind the last) in tiles of K of one block: `find_piece` of the kernel."""
    tile = block + number * band.blocks
    if tile < band.begin:
        return tile, 0, band.depth
    if not band.tiles:
        return None
    number -= band.begin // band.blocks
    part = band.blocks - 1 - block
    (tile, at), (end_tile, end) = band.find(part), band.find(part + 1)
    tile += number
    at = 0 if number > 0 else at
    last = end if tile == end_tile else band.depth
    return (tile, at, last) if tile < end_tile or (tile == end_tile and at < end) else None


def pieces(band: Band, block: int) -> list[Piece]:
    found = (find_piece(number, band, block) for number in itertools.count())
    return list(itertools.takewhile(lambda piece: piece is not None, found))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(200))
def test_tiles_of_two_are_covered_once_and_wait_for_lower_blocks_only(seed: int) -> None:
    chance = random.Random(seed)
    blocks = chance.choice((1, 2, 3, 7, 132, 264, 1024))
    tiles = chance.randint(blocks, 6 * blocks)
    depth = chance.choice((1, 2, 16, 63, 64, 513))
    covered: dict[int, list[tuple[int, int]]] = {}
    ends_written: set[int] = set()
    work = []
    band = Band.of(tiles, blocks, depth)
    assert not band.many_share
    for block in range(blocks):  # one after the other: as where only one is resident at a time
        mine = pieces(band, block)
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


@dataclass
class Shared:
    """What blocks have of a tile that many share: counter, places in the workspace, slices added up."""

    arrived: int = 0
    left: dict[int, tuple[int, int]] = field(default_factory=dict)
    slices: list[int] = field(default_factory=list)


class ManyShare:
    """The clusters of one launch where tiles are fewer, each until the end of its blocks, in random order.

    The blocks of a cluster have one tile each of those that count as one: nobody but those of the same rank
    has to do with it.
    """

    def __init__(self, band: Band, size: int, resident: int, chance: random.Random) -> None:
        self.band, self.size, self.resident, self.chance = band, size, resident, chance
        self.slices_of = 2 * size  # one for so many parts, or one alone
        self.tiles = [[Shared() for _ in range(band.tiles)] for _ in range(size)]
        self.whole: list[tuple[int, int]] = []
        self.work: list[int] = []
        self.places: set[int] = set()

    def block(self, cluster: int, rank: int) -> Generator[None, None, None]:
        band, tiles = self.band, self.tiles[rank]
        part = band.blocks - 1 - cluster
        tickets: list[tuple[int, int]] = []
        mine = pieces(band, cluster)
        assert 1 <= len(mine) <= 2, "there are two tickets in shared memory"
        self.work.append(sum(last - first for _, first, last in mine))
        for tile, first, last in mine:
            yield
            if (first, last) == (0, band.depth):
                self.whole.append((rank, tile))
                continue
            place = 2 * (part * self.size + rank) + (first == 0)
            assert place not in self.places, "each piece has a place of its own"
            self.places.add(place)
            tiles[tile].left[place] = (first, last)
            yield
            tickets.append((tile, tiles[tile].arrived))
            tiles[tile].arrived += 1
        for tile, ticket in tickets:
            shared = tiles[tile]
            first = band.first_part(tile)
            parts = band.last_part(tile) - first + 1
            slices = 1 << (max(1, parts // self.slices_of).bit_length() - 1)
            if ticket < parts - slices:
                continue
            while shared.arrived < parts:
                yield
            begin = 2 * (first * self.size + rank)
            places = [begin + 2 * self.size * p + (p == 0) for p in range(parts)]
            spans = [shared.left[place] for place in places]
            assert spans[0][0] == 0
            assert spans[-1][1] == band.depth
            assert all(a[1] == b[0] for a, b in itertools.pairwise(spans)), "in the order of K"
            before = shared.arrived
            shared.arrived += 1
            if before == parts + slices - 1:
                shared.arrived = 0
            shared.slices.append(ticket - (parts - slices))
            if before == parts + slices - 1:
                assert sorted(shared.slices) == list(range(slices)), "every slice is added up, once"
            yield

    def run(self) -> None:
        waiting = list(range(self.band.blocks))
        running: list[list[Iterator[None]]] = []
        speed: dict[int, int] = {}
        idle, before = 0, None
        while waiting or running:
            while waiting and len(running) < self.resident:
                cluster = waiting.pop(0)
                running.append([self.block(cluster, rank) for rank in range(self.size)])
                speed |= {id(block): self.chance.choice((1, 50)) for block in running[-1]}
            going = [(block, blocks) for blocks in running for block in blocks]
            block, blocks = self.chance.choices(going, [speed[id(block)] for block, _ in going])[0]
            try:
                next(block)
            except StopIteration:
                blocks.remove(block)
                if not blocks:
                    running.remove(blocks)
            state = (len(going), sum(shared.arrived for tiles in self.tiles for shared in tiles))
            idle = idle + 1 if before == state else 0
            before = state
            assert idle < 20_000, "deadlock"


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("seed", range(60))
def test_tiles_of_many_are_added_up_in_order_with_half_of_the_blocks_resident(seed: int, size: int) -> None:
    chance = random.Random(seed)
    blocks = chance.choice((2, 3, 7, 64, 132, 264))
    tiles = chance.randint(1, blocks - 1)
    depth = chance.choice((1, 2, 16, 63, 513))
    band = Band.of(tiles, blocks, depth)
    if tiles * depth < blocks:
        assert not band.tiles, "no part may be empty"
        return
    assert band.many_share
    for _ in range(2):
        launch = ManyShare(band, size, blocks // 2 + 1, chance)
        launch.run()
        assert max(launch.work) - min(launch.work) <= 1
        assert max(launch.places, default=0) < 2 * blocks * size, "as large as the workspace"
        for rank, tile in itertools.product(range(size), range(tiles)):
            shared = launch.tiles[rank][tile]
            assert shared.arrived == 0, "left as it was found, for the next launch"
            whole = (rank, tile) in launch.whole
            assert whole != bool(shared.left), "written by one block, or added up by several"
            assert bool(shared.left) == bool(shared.slices)


def test_as_many_slices_for_each_rank_as_without_clusters_would_hold_too_many() -> None:
    """Each of the two blocks of a cluster holds the other's place on the GPU while it waits."""
    band = Band.of(1, 32, 513)
    for seed in range(10):
        ManyShare(band, 2, 17, random.Random(seed)).run()
    launches = [ManyShare(band, 2, 17, random.Random(seed)) for seed in range(10)]
    hung = 0
    for launch in launches:
        launch.slices_of = 2
        try:
            launch.run()
        except AssertionError as error:
            hung += "deadlock" in str(error)
    assert hung > 5


def tile_of_block(rows: int, cols: int, bm: int, bn: int, number: int) -> tuple[int, int]:
    """First row and column: `tile_of_block` of the kernel."""
    group = 8
    tile_rows, tile_cols = -(-rows // bm), -(-cols // bn)
    first, place = number // (group * tile_cols) * group, number % (group * tile_cols)
    in_group = min(group, tile_rows - first)
    return (first + place % in_group) * bm, place // in_group * bn


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("rows", [1, 31, 32, 33, 64, 65, 96, 97, 32 * 17, 32 * 17 + 1, 32 * 18])
def test_the_tiles_of_clusters_cover_c_once_and_read_rows_of_a_alone(rows: int, size: int) -> None:
    bm, bn, cols = 32, 64, 100
    written: set[tuple[int, int]] = set()
    for number in range(-(-rows // (size * bm)) * -(-cols // bn)):
        for rank in range(size):
            row, col = tile_of_block(rows, cols, size * bm, bn, number)
            inside, above = min(size * bm, rows - row), rank * bm  # `own_tile` of the kernel
            row += above if above < inside else 0
            inside = max(0, min(bm, inside - above))
            assert row + max(inside, 1) <= rows, "what is copied of A, where nothing is inside as well"
            tile = {(r, col) for r in range(row, row + inside)}
            assert not tile & written
            written |= tile
    assert written == set(itertools.product(range(rows), range(0, cols, bn)))
