// 11 tma: some warps only copy, the others only compute; blocks stay for the whole product.
//
// Since 09: an SM's FFMA units are the limit, so all that is no FFMA leaves the loop that computes.
//   - Four more warps copy. They start B's tiles by one instruction each, which the copy engine (TMA) carries out, and
//     A's float by float (cp.async), because they are transposed on their way and the engine cannot do that. Read along
//     K, as the engine would lay A down, an FFMA takes 1.2 cycles and more for its register banks (counted; here 1.05).
//   - No barrier of the whole block: each buffer of the ring has one barrier that says `full` and one for `empty`. A
//     computing warp waits for `full`, and one of its lanes arrives at `empty`; it never waits for other warps.
//   - Registers move (setmaxnreg): copying warps keep 40, computing ones have 216 or 232.
//   - As many blocks as fit on the GPU, and each takes tile after tile; the next tile's buffers fill during the
//     epilogue. With STREAM_K, the tiles of the last wave and the one before are shared out evenly along K.
//
//   copying warps     wait empty | A: 128 lanes, cp.async; B: one thread, TMA | next buffer ...
//                          ^                      |
//                        empty                  full        one pair of barriers per buffer
//                          |                      v
//   computing warps   arrive     | LDS and FFMA, BK steps                     | wait full ...
//
// The loop: 8 steps of K with 16 x 8 sums per thread are 1024 FFMAs, 48 LDS.128 and 6 others. With 1.043 cycles per
// FFMA for the register banks (place_sums) that makes 1.095, and 1.112 with all that is outside the loop
// (docs/tma.md); 09 has 1.22.
//
// STREAM_K: of T tiles for G blocks all but the last T % G + G go whole, one wave after the other. The rest is a band
// of that many tiles times K, cut into G equal parts; each is more than one tile. So a tile is shared by two at most:
//
//   tiles     |   0   |   1   |   2   |   3   |   4   |     G = 4, T % G = 1
//   blocks    |    3    :    2    :    1    :    0    |     each its part from left to right
//
// The one with the end of K has it as its first piece and writes it to C, the one with the beginning as its last, and
// adds its sums to C once a flag says that the other is done: no workspace, no atomics, always the same order of
// additions. One waits for lower block numbers alone, which are never started later.
//
// Lane and patch are as in 06; blocks are of computing warps, then four copying ones.
//
// Precision: fp32 (FFMA, summed in the order of K; of a shared tile first alpha times its end goes to C, then alpha
// times its beginning).
// Architectures: sm_90 and newer. Launches of one loaded kernel must not overlap (they share the flags).
#include "common/tma.cuh"
#include "common/tile.cuh"

constexpr int BM = TUNE_BM;                       // rows of C per block
constexpr int BN = TUNE_BN;                       // columns of C per block
constexpr int BK = TUNE_BK;                       // depth of a tile
constexpr int TM = TUNE_TM;                       // rows of C per thread
constexpr int TN = TUNE_TN;                       // columns of C per thread
constexpr int LANES_M = TUNE_LANES_M;             // rows of lanes in a warp
constexpr int STAGES = TUNE_STAGES;               // buffers of the ring
constexpr int ORDER = TUNE_ORDER;                 // of the outer product: see outer_product
constexpr int MIN_BLOCKS = TUNE_MIN_BLOCKS;       // blocks per SM
constexpr int STREAM_K = TUNE_STREAM_K;           // whether the last two waves are shared out along K
constexpr int LANES_N = WARP / LANES_M;
constexpr int WM = LANES_M * TM;                  // rows of C per warp
constexpr int WN = LANES_N * TN;                  // columns of C per warp
constexpr int WARPS_N = BN / WN;
constexpr int COMPUTING_WARPS = (BM / WM) * WARPS_N;
constexpr int COMPUTING = COMPUTING_WARPS * WARP; // threads
constexpr int COPYING = 4 * WARP;
constexpr int THREADS = COMPUTING + COPYING;
constexpr int REGISTERS = TM * TN + 2 * (TM + TN) + 32;  // of a computing thread: sums, fragments, the rest
constexpr int AHEAD = (STAGES - 1) * BK;          // entries of K on their way

static_assert(THREADS <= THREADS_PER_BLOCK, "a block has at most 1024 threads");
static_assert(THREADS % WARP == 0, "a block is made of whole warps");
static_assert(divides(WM, BM), "a block tile is made of whole rows of warp tiles: WM must divide BM");
static_assert(divides(WN, BN), "a block tile is made of whole columns of warp tiles: WN must divide BN");
static_assert(WM <= 4 * WN && WN <= 4 * WM,
              "a warp tile more than 4 times as long as wide reads too many fragments for its sums");
static_assert(MIN_BLOCKS * COMPUTING == 256,
              "MIN_BLOCKS blocks must give each of the SM's 4 schedulers 2 computing warps");
static_assert(AHEAD >= 16 && AHEAD <= 96,
              "16 to 96 entries of K must be on their way: fewer hide no latency, more only take shared memory");

// Registers are handed over by groups of 4 warps, from what the launch gives every thread alike.
constexpr int REGISTER_UNIT = 8;
constexpr int GIVEN = REGISTERS_PER_SM / (MIN_BLOCKS * THREADS) / REGISTER_UNIT * REGISTER_UNIT;
constexpr int KEPT = 40;                          // by a copying thread
constexpr int TAKEN =                             // by a computing one
    COMPUTING == 0 ? 0 : (GIVEN * THREADS - KEPT * COPYING) / COMPUTING / REGISTER_UNIT * REGISTER_UNIT;

static_assert(REGISTERS <= TAKEN, "a thread's sums, two pairs of fragments and addresses must fit its registers");

constexpr int FLOAT_BYTES = sizeof(float);
constexpr int A_LANES = 8;                        // lanes that copy from one row of A: 32 bytes, a sector of the cache
constexpr int A_ROWS = COPYING / A_LANES;         // rows that the copying warps copy from at a time
constexpr int A_STRIDE = BM + 4;                  // of transposed rows: copies hit 32 different banks (picture in 09)
constexpr int A_BYTES = FLOAT_BYTES * BK * A_STRIDE;
constexpr int B_BYTES = FLOAT_BYTES * BK * BN;
constexpr int BUFFER = A_BYTES + B_BYTES;
constexpr int FULL = STAGES * BUFFER;             // where the barriers begin, behind the ring
constexpr int EMPTY = FULL + STAGES * BARRIER_BYTES;
constexpr int FULL_ARRIVALS = COPYING + 1;        // every copying thread's floats, and the one that sees to B
constexpr int STEPS = BK < UNROLL ? BK : UNROLL;  // of K in one body of the loop

extern __shared__ __align__(128) unsigned char shared_memory[];

// ----------------------------------------------------------------------------------------- who computes what

constexpr unsigned MOST_BLOCKS = 1024;            // that can share tiles, ...
constexpr int MOST_DEPTH = 1 << 21;               // ... and tiles of K of each: so 32 bits hold the products below
constexpr int SHARED_K = 512;                     // below this, reading a tile of C again takes longer than it saves

// Raised by a warp that has written the end of K of its part of a tile, lowered by the one that adds the beginning.
__device__ unsigned end_written[MOST_BLOCKS][COMPUTING_WARPS + 1];

struct Piece {
    unsigned tile;                                // number
    int k_begin, k_end;                           // of K
};

// The pieces of this block, one after the other. Copying and computing warps walk through them alike.
struct Work {
    int K, depth;                                 // of a tile, in entries and in tiles of K
    unsigned tile, whole;                         // the next one to be taken whole, and where those end
    unsigned part;                                // of the band: number,
    unsigned at_tile, end_tile;                   // where it goes on and where it ends,
    int at, end;                                  // and there at which tile of K

    // Part p of the band begins p * (tiles / blocks) tiles after `whole`, rounded down to a tile of K. As the band has
    // `blocks` and `more` tiles, that is p tiles and p * more / blocks.
    __device__ __forceinline__ void find(unsigned p, unsigned more, unsigned &tile, int &k) const {
        tile = whole + p + p * more / gridDim.x;
        k = p * more % gridDim.x * depth / gridDim.x;
    }

    __device__ __forceinline__ Work(unsigned tiles, int K_)
        : K(K_), depth(K_ == 0 ? 1 : ceil_div(K_, BK)), tile(blockIdx.x), whole(tiles),
          part(gridDim.x - 1 - blockIdx.x), at_tile(0), end_tile(0), at(0), end(0) {
        unsigned more = tiles % gridDim.x;
        if (STREAM_K && more != 0 && tiles > gridDim.x && gridDim.x <= MOST_BLOCKS && K >= SHARED_K &&
            depth <= MOST_DEPTH) {
            whole = tiles - more - gridDim.x;
            find(part, more, at_tile, at);
            find(part + 1, more, end_tile, end);
        }
    }

    __device__ __forceinline__ bool next(Piece &piece) {
        if (tile < whole) {
            piece.tile = tile, piece.k_begin = 0, piece.k_end = K;
            tile += gridDim.x;
            return true;
        }
        if (at_tile == end_tile && at == end) return false;
        bool cut = at_tile == end_tile;
        piece.tile = at_tile;
        piece.k_begin = at * BK;
        piece.k_end = cut ? end * BK : K;
        at = cut ? end : 0;
        at_tile += !cut;
        return true;
    }
};

// Walks round the ring. The parity is that of the phase to be waited for next.
struct Place {
    unsigned buffer, parity;

    __device__ __forceinline__ void advance() {
        bool wraps = buffer == STAGES - 1;
        buffer = wraps ? 0 : buffer + 1;
        parity ^= wraps;
    }
};

// ----------------------------------------------------------------------------------------- the copying warps

// Where elements do not exist, zeros are copied: beyond K in A and B alike (0 * 0, never 0 * Inf); rows and columns
// beyond C only reach sums that nobody writes.
__device__ __forceinline__ void copy_tiles(Work work, int M, int N, int K, const float *A, int lda, const float *B,
                                           int ldb, const TensorMap &b_map, bool b_mapped) {
    unsigned ring = shared_address(shared_memory);
    int number = threadIdx.x - COMPUTING;
    int a_k = number % A_LANES;                   // this thread's first element in a tile of A
    int a_row = number / A_LANES;
    unsigned a_to = ring + FLOAT_BYTES * (a_k * A_STRIDE + a_row);
    long long a_step = static_cast<long long>(A_ROWS) * lda;
    Place place{0, 1};                            // buffers are empty at first
    Piece piece;
    while (work.next(piece)) {
        BlockTile tile = tile_of_block<BM, BN>(M, N, piece.tile);
        const float *a_start = A + static_cast<long long>(tile.row + a_row) * lda + a_k;
#pragma unroll 1
        for (int left = piece.k_end - piece.k_begin; left > 0; left -= BK) {
            int k = piece.k_end - left;
            unsigned full = ring + FULL + place.buffer * BARRIER_BYTES;
            unsigned buffer = place.buffer * BUFFER;
            await_phase(ring + EMPTY + place.buffer * BARRIER_BYTES, place.parity);
            if (number == 0) {
                if (b_mapped) {
                    arrive_and_expect(full, B_BYTES);
                    copy_box(ring + buffer + A_BYTES, b_map, k, tile.col, full);
                } else {
                    arrive(full);
                }
            }
            if (tile.rows_inside == BM && K - k >= BK) {
                const float *from = a_start + k;
#pragma unroll
                for (int row = 0; row < BM; row += A_ROWS) {
#pragma unroll
                    for (int i = 0; i < BK; i += A_LANES)
                        copy_float(a_to + buffer + FLOAT_BYTES * (i * A_STRIDE + row), from + i);
                    from += a_step;
                }
            } else {
#pragma unroll 1
                for (int row = 0; row < BM; row += A_ROWS)
#pragma unroll 1
                    for (int i = 0; i < BK; i += A_LANES) {
                        bool exists = a_row + row < tile.rows_inside && a_k + i < K - k;
                        long long offset = static_cast<long long>(tile.row + a_row + row) * lda + k + a_k + i;
                        copy_float_or_zero(a_to + buffer + FLOAT_BYTES * (i * A_STRIDE + row),
                                           A + (exists ? offset : 0), exists);
                    }
            }
            if (!b_mapped) {
#pragma unroll 1
                for (int i = number; i < BK * BN; i += COPYING) {
                    bool exists = i / BN < K - k && i % BN < tile.cols_inside;
                    long long offset = static_cast<long long>(k + i / BN) * ldb + tile.col + i % BN;
                    copy_float_or_zero(ring + buffer + A_BYTES + FLOAT_BYTES * i, B + (exists ? offset : 0), exists);
                }
            }
            arrive_after_copies(full);
            place.advance();
        }
    }
    await_all_copies();
}

// --------------------------------------------------------------------------------------- the computing warps

// ptxas gives a float4 four neighbouring registers and is free with all others. Registers lie in two banks, by parity;
// an FFMA gets one operand a cycle from each, the third from the reuse cache. Row by row that is a[m], so sums[m][n]
// must have the other parity than b[n]; column by column it is b[n], and the other parity than a[m]. This asks for it:
// by float4s of sums with neighbours exchanged, on a path that is never taken, as K is never negative.
__device__ __forceinline__ void place_sums(const float (&sums)[TM][TN], int K) {
    if (K >= 0) return;
    float4 *to = reinterpret_cast<float4 *>(shared_memory) + threadIdx.x;
    if constexpr (ORDER == SERPENTINE_COLUMNS) {
#pragma unroll
        for (int n = 0; n < TN; ++n)
#pragma unroll
            for (int m = 0; m < TM; m += VECTOR, to += WARP)
                *to = make_float4(sums[m + 1][n], sums[m][n], sums[m + 3][n], sums[m + 2][n]);
    } else {
#pragma unroll
        for (int m = 0; m < TM; ++m)
#pragma unroll
            for (int n = 0; n < TN; n += VECTOR, to += WARP)
                *to = make_float4(sums[m][n + 1], sums[m][n], sums[m][n + 3], sums[m][n + 2]);
    }
}

using Patch = LanePatch<WM, WN, TM, TN, LANES_M, WARPS_N>;

// C = alpha * sums + beta * C by whole float4s, as many as registers allow on their way at a time. (write_row_by_row
// takes one row after the other, and at the beginning of a shared tile nothing else is left to do meanwhile.) The sums
// are spent then.
constexpr int ROWS = (TAKEN - TM * TN >= 100 ? 32 : 16) / TN;  // of a patch at a time

__device__ __forceinline__ void update_c(const Patch &patch, float (&sums)[TM][TN], float *C, int ldc,
                                         const BlockTile &tile, float alpha, float beta) {
    int row = patch.row;
    float *c_tile = C + static_cast<long long>(tile.row) * ldc + tile.col;
#pragma unroll 1
    for (int m = 0; m < TM; m += ROWS) {
        float4 c[ROWS][TN / VECTOR];
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int n = 0; n < TN / VECTOR; ++n) {
                int col = patch.col + n * Patch::COL_STEP;
                c[i][n] = float4{};
                if (beta != 0.0f && row + i < tile.rows_inside && col < tile.cols_inside)
                    c[i][n] = *reinterpret_cast<float4 *>(c_tile + static_cast<long long>(row + i) * ldc + col);
            }
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int n = 0; n < TN / VECTOR; ++n) {
                int col = patch.col + n * Patch::COL_STEP;
                const float *sum = &sums[i][n * VECTOR];
                float4 old = c[i][n];
                if (row + i < tile.rows_inside && col < tile.cols_inside)
                    *reinterpret_cast<float4 *>(c_tile + static_cast<long long>(row + i) * ldc + col) =
                        make_float4(alpha * sum[0] + beta * old.x, alpha * sum[1] + beta * old.y,
                                    alpha * sum[2] + beta * old.z, alpha * sum[3] + beta * old.w);
            }
#pragma unroll
        for (int up = ROWS; up < TM; ++up)
#pragma unroll
            for (int n = 0; n < TN; ++n) sums[up - ROWS][n] = sums[up][n];
        row += (m + ROWS) % VECTOR == 0 ? Patch::ROW_STEP - (VECTOR - ROWS) : ROWS;
    }
}

// Zero, but known only when the fragments are: whoever uses it waits for the loads that bring them. (An arrival does
// not by itself: a copy then overwrote what a slow load was still to read, once in some thousand tiles of 256 x 64.)
__device__ __forceinline__ unsigned zero_after(const float (&a)[TM], const float (&b)[TN], int K) {
    unsigned bits = 0;
#pragma unroll
    for (int m = 0; m < TM; m += VECTOR) bits |= __float_as_uint(a[m]);
#pragma unroll
    for (int n = 0; n < TN; n += VECTOR) bits |= __float_as_uint(b[n]);
    return bits & static_cast<unsigned>(K >> 31);  // K is never negative
}

__device__ __forceinline__ void compute_tiles(Work work, int M, int N, int K, float alpha, float beta, float *C,
                                              int ldc) {
    unsigned ring = shared_address(shared_memory);
    Patch patch;
    Place place{0, 0};
    Piece piece;
    while (work.next(piece)) {
        float sums[TM][TN] = {};
        // Fragments of a step of K are loaded while the step before is multiplied, so also across tiles: each body of
        // the loop begins with the last step of the body before it. Before the first there is none, and 0 * 0 is added.
        float a[2][TM] = {}, b[2][TN] = {};
#pragma unroll 1
        for (int left = piece.k_end - piece.k_begin; left > 0; left -= BK) {
            await_phase(ring + FULL + place.buffer * BARRIER_BYTES, place.parity);
            unsigned a_read = ring + place.buffer * BUFFER + FLOAT_BYTES * patch.row;
            unsigned b_read = ring + place.buffer * BUFFER + A_BYTES + FLOAT_BYTES * patch.col;
#pragma unroll 1
            for (int begin = 0; begin < BK; begin += STEPS) {
#pragma unroll
                for (int k = 0; k < STEPS; ++k) {
                    patch.load_a(a[k % 2], shared_pointer(a_read) + k * A_STRIDE);
                    patch.load_b(b[k % 2], shared_pointer(b_read) + k * BN);
                    outer_product<ORDER>(sums, a[(k + 1) % 2], b[(k + 1) % 2]);
                }
                a_read += FLOAT_BYTES * STEPS * A_STRIDE;
                b_read += FLOAT_BYTES * STEPS * BN;
            }
            unsigned empty = ring + EMPTY + place.buffer * BARRIER_BYTES + zero_after(a[1], b[1], K);
            __syncwarp();                         // the lane that arrives speaks for all
            if (threadIdx.x % WARP == 0) arrive(empty);
            place.advance();
        }
        outer_product<ORDER>(sums, a[1], b[1]);   // the last step
        place_sums(sums, K);

        int warp = threadIdx.x / WARP;
        bool beginning = piece.k_end < K;         // of a shared tile: another block has its end
        if (beginning) await_flag(&end_written[work.part + 1][warp]);
        BlockTile tile = tile_of_block<BM, BN>(M, N, piece.tile);
        float kept = beginning ? 1.0f : beta;     // of what C holds
        if (rows_are_aligned<VECTOR>(C, ldc) && tile.cols_inside % VECTOR == 0)
            update_c(patch, sums, C, ldc, tile, alpha, kept);
        else
            write_row_by_row<false>(
                sums, [&](int m) { return patch.c_row(m); }, [&](int n) { return patch.c_col(n); }, C, ldc, tile, alpha,
                kept);
        if (piece.k_begin > 0) raise_flag(&end_written[work.part][warp]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
sgemm(int M, int N, int K, float alpha, const float *__restrict__ A, int lda, const float *__restrict__ B, int ldb,
      float beta, float *__restrict__ C, int ldc, const __grid_constant__ TensorMap b_map, int b_mapped) {
    drop_empty_product(K, alpha);
    Work work(static_cast<unsigned>(ceil_div(M, BM)) * ceil_div(N, BN), K);
    if (threadIdx.x == 0) {
        unsigned ring = shared_address(shared_memory);
#pragma unroll 1
        for (int stage = 0; stage < STAGES; ++stage) {
            init_barrier(ring + FULL + stage * BARRIER_BYTES, FULL_ARRIVALS);
            init_barrier(ring + EMPTY + stage * BARRIER_BYTES, COMPUTING_WARPS);
        }
        publish_barriers();
    }
    __syncthreads();
    if (threadIdx.x >= COMPUTING) {
        give_up_registers_but<KEPT>();
        copy_tiles(work, M, N, K, A, lda, B, ldb, b_map, b_mapped != 0);
    } else {
        take_registers_up_to<TAKEN>();
        compute_tiles(work, M, N, K, alpha, beta, C, ldc);
    }
}
