"""The protocol of kernels_cu/11_tma.cu on paper: ring, clusters, shared tiles; progress in random order.

What runs here is a model of the kernel, line by line; the kernel itself needs a GPU. Its constants
are read from the source, and a test holds the lines that are modelled to what they were.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest

from sgemm_tune.arch import ARCHS
from sgemm_tune.kernel import ceil_div
from sgemm_tune.problem import Problem
from sgemm_tune.stages.tma import Tma
from tests.cuda_constants import Constants, text_of

SOURCE = Constants(Tma())
MOST_BLOCKS, MOST_DEPTH, SHARED_K = (SOURCE[name] for name in ("MOST_BLOCKS", "MOST_DEPTH", "SHARED_K"))
LEGAL = Tma.legal(ARCHS["sm_90"])
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


def bits(number: int) -> int:
    """A number that 32 bits hold, as the kernel's do."""
    assert 0 <= number < 1 << 32
    return number


@dataclass(frozen=True)
class Launch:
    """What decides about the work of blocks; a cluster of `size` blocks, or of tiles, counts as one."""

    tiles: int
    clusters: int
    k: int
    bk: int = 16
    size: int = 1
    stream_k: bool = True

    @classmethod
    def of(cls, kernel: Tma, problem: Problem, grid: int) -> Launch:
        size = kernel.CLUSTER
        tiles = ceil_div(problem.m, size * kernel.BM) * ceil_div(problem.n, kernel.BN)
        return cls(tiles, grid // size, problem.k, kernel.BK, size, bool(kernel.STREAM_K))


@dataclass(frozen=True)
class Band:
    """`Band` of the kernel: tiles that are shared out, all from number `begin` on."""

    depth: int
    parts: int
    begin: int
    tiles: int

    @classmethod
    def of(cls, launch: Launch) -> Band:
        depth = ceil_div(launch.k, launch.bk) if launch.k else 1
        parts, begin = launch.clusters, launch.tiles
        alone = cls(depth, parts, begin, 0)
        if not launch.stream_k:
            return alone
        more = begin % parts
        few = begin < parts
        if not more or parts * launch.size > MOST_BLOCKS or depth > MOST_DEPTH:
            return alone
        if begin * depth < parts if few else launch.k < SHARED_K:
            return alone
        shared = begin if few else parts + more
        return cls(depth, parts, begin - shared, shared)

    def find(self, part: int) -> tuple[int, int]:
        place = bits(part * self.tiles)
        return self.begin + place // self.parts, bits(place % self.parts * self.depth) // self.parts

    def first_part(self, tile: int) -> int:
        part = bits(tile * self.parts) // self.tiles
        return part + (self.find(part + 1) == (tile, 0))

    def last_part(self, tile: int) -> int:
        return (bits((tile + 1) * self.parts) - 1) // self.tiles

    @property
    def many_share(self) -> bool:
        return 0 < self.tiles < self.parts


@dataclass(frozen=True)
class Work:
    """`Work` of the kernel: all that the blocks of one cluster do, in entries of K."""

    cluster: int
    k: int
    whole: int
    parts: int
    tile: int
    end_tile: int
    at: int
    end: int

    @classmethod
    def of(cls, launch: Launch, cluster: int) -> Work:
        band = Band.of(launch)
        whole = (band.begin - cluster - 1) // band.parts + 1 if cluster < band.begin else 0
        tile = end_tile = at = end = 0
        if band.tiles:
            part = band.parts - 1 - cluster
            (tile, at), (end_tile, end) = band.find(part), band.find(part + 1)
        return cls(cluster, launch.k, whole, band.parts, tile, end_tile, at * launch.bk, end * launch.bk)

    def find_piece(self, number: int) -> Piece | None:
        """(tile, first entry of K, the one behind the last): `find_piece` of the kernel."""
        if number < self.whole:
            return self.cluster + bits(number * self.parts), 0, self.k
        number -= self.whole
        tile = self.tile + number
        begin = self.at if number == 0 else 0
        end = self.end if tile == self.end_tile else self.k
        there = tile < self.end_tile or (tile == self.end_tile and begin < self.end)
        return (tile, begin, end) if there else None


def pieces(launch: Launch, cluster: int) -> list[Piece]:
    work = Work.of(launch, cluster)
    found = (work.find_piece(number) for number in itertools.count())
    return list(itertools.takewhile(lambda piece: piece is not None, found))  # type: ignore[arg-type]


def check_order(launch: Launch, cluster: int, mine: list[Piece]) -> None:
    """Whole tiles first, one of each wave; then the part of the band, along it."""
    band = Band.of(launch)
    whole = [tile for tile, _, _ in mine if tile < band.begin]
    assert whole == list(range(cluster, band.begin, launch.clusters))
    assert all(piece[1:] == (0, launch.k) for piece in mine[: len(whole)])
    own = mine[len(whole) :]
    assert [tile for tile, _, _ in own] == list(range(own[0][0], own[0][0] + len(own))) if own else True
    assert bool(own) == bool(band.tiles), "no part is empty"
    assert all(first == 0 for _, first, _ in own[1:])
    assert all(last == launch.k for _, _, last in own[:-1])
    assert all(first % launch.bk == 0 for _, first, _ in own), "tiles of K are not cut"
    assert all(last % launch.bk == 0 or last == launch.k for _, _, last in own)
    if band.tiles:
        part = band.parts - 1 - cluster
        assert (own[0][0], own[0][1] // launch.bk) == band.find(part)


def check_covered(launch: Launch) -> int:
    """Checks that each entry of K of each tile is somebody's, once; how many share a tile at most."""
    covered: dict[int, list[tuple[int, int]]] = {}
    for cluster in range(launch.clusters):
        mine = pieces(launch, cluster)
        check_order(launch, cluster, mine)
        for tile, first, last in mine:
            covered.setdefault(tile, []).append((first, last))
    assert sorted(covered) == list(range(launch.tiles))
    band = Band.of(launch)
    for tile, parts in covered.items():
        parts.sort()
        assert (parts[0][0], parts[-1][1]) == (0, launch.k)
        assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))
        assert all(first < last for first, last in parts) or (launch.k == 0 and len(parts) == 1)
        if band.many_share:
            assert len(parts) == band.last_part(tile) - band.first_part(tile) + 1
        else:
            assert len(parts) <= 1 + (tile >= band.begin)
    return max((len(parts) for parts in covered.values()), default=0)


@pytest.mark.parametrize("seed", range(40))
def test_every_entry_of_k_of_every_tile_is_covered_once(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(4):
        kernel = chance.choice(LEGAL)
        m, n = (chance.choice((1, 33, 511, chance.randint(1, 3000))) for _ in range(2))
        k = chance.choice((0, 1, 511, 512, 513, 4096, 262144, chance.randint(1, 5000)))
        problem, sms = Problem(m, n, k), chance.choice((1, 2, 20, 131, 132, 148))
        grid = kernel.blocks(problem, sms)
        launch = Launch.of(kernel, problem, grid)
        assert launch.tiles * launch.size == kernel.grid(problem)
        check_covered(launch)
        if Band.of(launch).many_share:
            tile = 4 * kernel.BM * kernel.BN
            assert kernel.workspace_bytes(problem, sms) == 2 * grid * tile, "two places for each block"


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("stream_k", [False, True])
@pytest.mark.parametrize("clusters", [1, 2, 3, 7, 64, 132, 264])
def test_any_grid_covers_any_tiles_once(clusters: int, stream_k: bool, size: int) -> None:
    """Also such as no launch has."""
    for tiles in {1, 2, clusters - 1, clusters, clusters + 1, 2 * clusters - 1, 5 * clusters + 3} - {0}:
        for k, bk in ((1, 8), (64, 64), (511, 16), (512, 32), (1025, 8), (8200, 64)):
            shared = check_covered(Launch(tiles, clusters, k, bk, size, stream_k))
            assert shared == 1 or stream_k


def test_an_empty_product_is_whole_tiles_even_where_k_was_shared_out() -> None:
    """alpha = 0 drops K after the grid was chosen: then some blocks have nothing to do."""
    launch = Launch(3, 132, 0)
    assert [pieces(launch, cluster) for cluster in range(4)] == [[(0, 0, 0)], [(1, 0, 0)], [(2, 0, 0)], []]
    assert check_covered(launch) == 1


def test_waves_are_shared_out_where_the_constants_say_so() -> None:
    for launch, shares in (
        (Launch(200, 132, SHARED_K - 1), False),
        (Launch(200, 132, SHARED_K), True),
        (Launch(264, 132, 4096), False),
        (Launch(131, 132, 16), False),
        (Launch(131, 132, 17), True),
        (Launch(100, MOST_BLOCKS, 4096), True),
        (Launch(100, MOST_BLOCKS + 1, 4096), False),
        (Launch(100, MOST_BLOCKS // 2 + 1, 4096, size=2), False),
        (Launch(1, 2, 8 * MOST_DEPTH, 8), True),
        (Launch(1, 2, 8 * MOST_DEPTH + 1, 8), False),
    ):
        assert bool(Band.of(launch).tiles) == shares, launch
        check_covered(launch)


def test_products_of_places_in_the_band_fit_32_bits() -> None:
    for tiles in (1, MOST_BLOCKS - 1, MOST_BLOCKS + 1, 2 * MOST_BLOCKS - 1):
        band = Band.of(Launch(tiles, MOST_BLOCKS, 8 * MOST_DEPTH, 8))
        assert band.tiles == tiles
        for part in (0, 1, MOST_BLOCKS - 1, MOST_BLOCKS):
            band.find(part)
        assert band.last_part(tiles - 1) == MOST_BLOCKS - 1


@pytest.mark.parametrize("seed", range(200))
def test_tiles_of_two_are_covered_once_and_wait_for_lower_blocks_only(seed: int) -> None:
    chance = random.Random(seed)
    blocks = chance.choice((1, 2, 3, 7, 132, 264, 1024))
    bk = chance.choice((8, 16, 32, 64))
    k = chance.choice((1, 2, 16, 63, 64, 513)) * bk - chance.randrange(bk)
    launch = Launch(chance.randint(blocks, 6 * blocks), blocks, k, bk)
    ends_written: set[int] = set()
    work = []
    band = Band.of(launch)
    assert not band.many_share
    for block in range(blocks):  # one after the other: as where only one is resident at a time
        mine = pieces(launch, block)
        work.append(sum(-(-last // bk) - first // bk for _, first, last in mine))
        for place, (tile, first, last) in enumerate(mine):
            if first > 0:
                assert last == k, "no block has the middle of a tile"
                ends_written.add(tile)
            if last < k:
                assert place == len(mine) - 1, "a beginning is a block's last piece"
                assert tile in ends_written, "its end belongs to a block of lower number"
                ends_written.remove(tile)
    assert not ends_written, "every flag that was raised is lowered"
    assert check_covered(launch) <= 2
    if band.tiles:
        assert max(work) - min(work) <= 1


def slices_of(parts: int, size: int, most: int) -> int:
    """How many blocks add up a slice each of a tile of so many parts: of `add_up`."""
    return min(1 << ((parts // (2 * size) | (size > 1)).bit_length() - 1), most)


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

    def __init__(self, launch: Launch, resident: int, chance: random.Random) -> None:
        band = Band.of(launch)
        self.launch, self.band, self.resident, self.chance = launch, band, resident, chance
        self.size = self.shared_by = size = launch.size
        self.tiles = [[Shared() for _ in range(band.tiles)] for _ in range(size)]
        self.whole: list[tuple[int, int]] = []
        self.work: list[int] = []
        self.places: set[int] = set()

    def block(self, cluster: int, rank: int) -> Generator[None, None, None]:
        band, tiles, bk = self.band, self.tiles[rank], self.launch.bk
        part = band.parts - 1 - cluster
        tickets: list[tuple[int, int]] = []
        mine = pieces(self.launch, cluster)
        assert 1 <= len(mine) <= 2, "there are two tickets in shared memory"
        self.work.append(sum(-(-last // bk) - first // bk for _, first, last in mine))
        for tile, first, last in mine:
            yield
            if (first, last) == (0, self.launch.k):
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
            slices = slices_of(parts, self.shared_by, SOURCE["COMPUTING"])
            if ticket < parts - slices:
                continue
            while shared.arrived < parts:
                yield
            begin = 2 * (first * self.size + rank)
            places = [begin + 2 * self.size * p + (p == 0) for p in range(parts)]
            spans = [shared.left[place] for place in places]
            assert spans[0][0] == 0
            assert spans[-1][1] == self.launch.k
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
        waiting = list(range(self.band.parts))
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
    launched = Launch(tiles, blocks, 16 * depth - chance.randrange(16), size=size)
    band = Band.of(launched)
    if tiles * depth < blocks:
        assert not band.tiles, "no part may be empty"
        return
    assert band.many_share
    for _ in range(2):
        launch = ManyShare(launched, blocks // 2 + 1, chance)
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
    launched = Launch(1, 32, 513 * 16, size=2)
    for seed in range(10):
        ManyShare(launched, 17, random.Random(seed)).run()
    launches = [ManyShare(launched, 17, random.Random(seed)) for seed in range(10)]
    hung = 0
    for launch in launches:
        launch.shared_by = 1
        try:
            launch.run()
        except AssertionError as error:
            hung += "deadlock" in str(error)
    assert hung > 5


MOST_PARTS = 264
"""Of an H200's blocks, two to an SM."""


@dataclass(frozen=True)
class Sharing:
    """How `add_up` shares a slice of a tile's pieces, and its parts, among a block's threads."""

    computing: int
    tile_pieces: int
    slices: int

    @property
    def slice(self) -> int:
        return self.tile_pieces // self.slices

    @property
    def lanes(self) -> int:
        return min(self.slice, self.computing)

    @property
    def groups(self) -> int:
        return self.computing // self.lanes

    def numbers(self, which: int, thread: int) -> range:
        """The pieces that a thread adds up, of slice `which`."""
        begin = which * self.slice
        return range(begin + thread % self.lanes, begin + self.slice, self.lanes)

    def parts_of(self, parts: int, thread: int) -> range:
        group = thread // self.lanes
        return range(parts * group // self.groups, min(parts * (group + 1) // self.groups, parts))

    def added_by(self, thread: int) -> list[int]:
        """The threads whose sums a thread of the first group adds to its own."""
        return list(range(thread % self.lanes + self.lanes, self.computing, self.lanes))


def _shapes() -> set[tuple[int, int, int]]:
    """(threads that compute, pieces of a tile, blocks of a cluster) of all legal tiles."""
    sources = [Constants(kernel) for kernel in {kernel.code: kernel for kernel in LEGAL}.values()]
    return {(source["COMPUTING"], source["TILE_PIECES"], source["CLUSTER"]) for source in sources}


@pytest.mark.parametrize(("computing", "tile_pieces", "size"), sorted(_shapes()))
def test_every_part_of_every_piece_of_a_shared_tile_is_added_up_once(
    computing: int, tile_pieces: int, size: int
) -> None:
    by_slices: dict[int, Sharing] = {}
    for parts in range(2, MOST_PARTS + 1):
        slices = slices_of(parts, size, computing)
        assert 1 <= slices <= max(1, parts // 2)
        assert tile_pieces % slices == 0, "slices are alike"
        sharing = by_slices.setdefault(slices, Sharing(computing, tile_pieces, slices))
        groups = [sharing.parts_of(parts, thread) for thread in range(0, computing, sharing.lanes)]
        working, idle = groups[: sharing.groups], groups[sharing.groups :]
        assert [part for group in working for part in group] == list(range(parts)), "in the order of K"
        assert not any(idle)
    for slices, sharing in by_slices.items():
        for first in range(0, sharing.groups * sharing.lanes, sharing.lanes):  # of each group
            group = range(first, first + sharing.lanes)
            taken = [n for which in range(slices) for thread in group for n in sharing.numbers(which, thread)]
            assert sorted(taken) == list(range(tile_pieces))
        if sharing.groups > 1:
            turns = {len(sharing.numbers(0, thread)) for thread in range(computing)}
            assert turns == {1}, "all of the block's threads meet as often"
        for thread in range(sharing.lanes):
            same = [other for other in range(computing) if other % sharing.lanes == thread]
            assert [thread, *sharing.added_by(thread)] == same
            assert {sharing.numbers(0, other) for other in same} == {sharing.numbers(0, thread)}


def test_threads_that_lanes_do_not_divide_are_idle() -> None:
    idle = set()
    for computing, tile_pieces, size in _shapes():
        sharing = Sharing(computing, tile_pieces, slices_of(MOST_PARTS, size, computing))
        left = computing % sharing.lanes
        idle.add(left)
        assert all(not sharing.parts_of(MOST_PARTS, computing - 1 - n) for n in range(left))
        assert sharing.parts_of(MOST_PARTS, computing - 1 - left)
    assert max(idle) > 0, "patches of 12 have such slices"


@pytest.mark.parametrize(
    "line",
    [
        "whole = first < band.begin ? (band.begin - first - 1) / parts + 1 : 0;",
        "band.find(part_of_block(), tile, at); band.find(part_of_block() + 1, end_tile, end);"
        " at *= BK; end *= BK;",
        "if (number < mine.whole) { piece.tile = blockIdx.x / CLUSTER + number * mine.parts; return true; }",
        "piece.tile = mine.tile + number; if (number == 0) piece.k_begin = mine.at;"
        " if (piece.tile == mine.end_tile) piece.k_end = mine.end;",
        "return piece.tile < mine.end_tile || (piece.tile == mine.end_tile && piece.k_begin < mine.end);",
        "(few ? begin * static_cast<long long>(depth) >= parts : product.K >= SHARED_K)) {"
        " tiles = few ? begin : parts + more; begin -= tiles; }",
        "unsigned slices = min(1u << (31 - __clz(parts / (2 * CLUSTER) | (CLUSTER > 1))), COMPUTING);",
        "int slice = TILE_PIECES / slices;",
        "int lanes = min(slice, COMPUTING); int groups = COMPUTING / lanes;",
        "int lane = threadIdx.x % lanes; int group = threadIdx.x / lanes;",
        "for (int number = begin + lane; number < begin + slice; number += lanes) {",
        "parts * group / groups, min(parts * (group + 1) / groups, parts));",
        "for (int other = lane + lanes; other < COMPUTING; other += lanes)",
        "to += FLOAT_BYTES * (row * BN + col);",
        "for (int k = 0; k < BK; k += B_ROWS) {",
        "for (int k = row; k < BK; k += B_ROWS) {",
        "right[pass] = min(col + pass * B_COLS, inside - 1) - min(col, inside - 1);",
    ],
)
def test_the_kernel_has_the_lines_that_are_modelled_here_and_in_test_tma(line: str) -> None:
    """Where one of them changes, the model is to be changed with it."""
    assert line in text_of(Tma.source)


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
