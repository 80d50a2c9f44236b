// Part of 11_tma.cu: which pieces of the product a block computes, one after the other.
#pragma once

constexpr unsigned MOST_BLOCKS = 1024;            // that can share tiles, ...
constexpr int MOST_DEPTH = 1 << 21;               // ... and tiles of K of each: so 32 bits hold the products below
constexpr int SHARED_K = 512;                     // below this, reading a tile of C again takes longer than it saves

// The product's sides, and whether what fills no wave is shared out along K.
struct Product {
    int M, N, K, stream_k;
};

// Work is handed out to clusters: the tiles of a cluster's blocks lie below one another, and count as one tile here.
__device__ __forceinline__ unsigned rank_in_cluster() { return CLUSTER == 1 ? 0 : blockIdx.x % CLUSTER; }

// What each block has of its own, of something that is counted by cluster.
__device__ __forceinline__ unsigned own(unsigned number) { return number * CLUSTER + rank_in_cluster(); }

// This block's tile. Where C ends above it, it is the cluster's first one, computed again with no row inside.
__device__ __forceinline__ BlockTile own_tile(const Product &product, unsigned number) {
    BlockTile tile = tile_of_block<CLUSTER * BM, BN>(product.M, product.N, number);
    if constexpr (CLUSTER > 1) {
        int above = rank_in_cluster() * BM;
        if (above < tile.rows_inside) tile.row += above;
        tile.rows_inside = max(0, min(BM, tile.rows_inside - above));
    }
    return tile;
}

// Raised by a warp that has written the end of K of its part of a tile, lowered by the one that adds the beginning.
__device__ unsigned end_written[MOST_BLOCKS][COMPUTING_WARPS + 1];

// Blocks that have left their sums of a tile in the workspace, and after that those that have seen that all did.
__device__ unsigned arrived[MOST_BLOCKS];

struct Piece {
    unsigned tile;                                // number
    int k_begin, k_end;                           // of K
};

// The tiles that are shared out: all from number `begin` on, which is a multiple of `parts`.
struct Band {
    int depth;                                    // of a tile, in tiles of K
    unsigned parts;                               // one for each cluster
    unsigned begin, tiles;

    __device__ __forceinline__ explicit Band(const Product &product)
        : depth(product.K == 0 ? 1 : ceil_div(product.K, BK)), parts(gridDim.x / CLUSTER),
          begin(static_cast<unsigned>(ceil_div(product.M, CLUSTER * BM)) * ceil_div(product.N, BN)), tiles(0) {
        if (!product.stream_k) return;
        unsigned more = begin % parts;
        bool few = begin < parts;                 // then each part must have at least one tile of K
        if (more != 0 && gridDim.x <= MOST_BLOCKS && depth <= MOST_DEPTH &&
            (few ? begin * static_cast<long long>(depth) >= parts : product.K >= SHARED_K)) {
            tiles = few ? begin : parts + more;
            begin -= tiles;
        }
    }

    // Part p begins p * tiles * depth / parts tiles of K after `begin`, rounded down.
    __device__ __forceinline__ void find(unsigned p, unsigned &tile, int &k) const {
        tile = begin + p * tiles / parts;
        k = p * tiles % parts * depth / parts;
    }

    // With fewer tiles than parts, a tile may be shared by more than two: its first and its last part.
    __device__ __forceinline__ bool many_share() const { return tiles != 0 && tiles < parts; }
    __device__ __forceinline__ unsigned first_part(unsigned tile) const {
        unsigned part = tile * parts / tiles;
        unsigned begins_in;
        int at;
        find(part + 1, begins_in, at);            // rounded down, it may begin with the tile
        return part + (begins_in == tile && at == 0);
    }
    __device__ __forceinline__ unsigned last_part(unsigned tile) const { return ((tile + 1) * parts - 1) / tiles; }
};

__device__ __forceinline__ unsigned part_of_block() { return gridDim.x / CLUSTER - 1 - blockIdx.x / CLUSTER; }

// All that this block does, found once by one thread, in shared memory: registers are scarce, and divisions take time.
struct Work {
    unsigned whole;                               // tiles that it computes alone, one of each wave
    unsigned parts;                               // tiles of a wave
    unsigned tile, end_tile;                      // its part of the band: from entry `at` of K of `tile` on,
    int at, end;                                  // up to `end` of `end_tile`
    int many_share;                               // whether tiles of the band are shared by more than two

    __device__ __forceinline__ explicit Work(const Product &product) {
        Band band(product);
        unsigned first = blockIdx.x / CLUSTER;
        parts = band.parts;
        whole = first < band.begin ? (band.begin - first - 1) / parts + 1 : 0;
        tile = end_tile = at = end = 0;
        if (band.tiles != 0) {
            band.find(part_of_block(), tile, at);
            band.find(part_of_block() + 1, end_tile, end);
            at *= BK;
            end *= BK;
        }
        many_share = band.many_share();
    }
};

static_assert(sizeof(Work) <= WORK_BYTES);

__device__ __forceinline__ Work &work() { return *reinterpret_cast<Work *>(shared_memory + WORK); }

// What this block does as its `number`-th piece of work; false: there are no more. Copying and computing warps walk
// through them alike.
__device__ __forceinline__ bool find_piece(unsigned number, int K, Piece &piece) {
    const Work &mine = work();
    piece.k_begin = 0;
    piece.k_end = K;
    if (number < mine.whole) {
        piece.tile = blockIdx.x / CLUSTER + number * mine.parts;
        return true;
    }
    number -= mine.whole;
    piece.tile = mine.tile + number;
    if (number == 0) piece.k_begin = mine.at;
    if (piece.tile == mine.end_tile) piece.k_end = mine.end;
    return piece.tile < mine.end_tile || (piece.tile == mine.end_tile && piece.k_begin < mine.end);
}
