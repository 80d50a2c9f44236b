// 11 tma: some warps only copy, the others only compute; blocks stay for the whole product.
//
// Since 09: an SM's FFMA units are the limit, so all that is no FFMA leaves the loop that computes.
//   - Four more warps copy. They start B's tiles by one instruction each, which the copy engine (TMA) carries out, and
//     A's float by float (cp.async), because they are transposed on their way and the engine cannot do that. Read along
//     K, as the engine would lay A down, a float4 has four steps of one row: twice 4 * TM registers, which 128 sums do
//     not leave. With PREPASS another kernel has transposed A before, and given B aligned rows, which the engine
//     needs: slower where B's are aligned anyway, faster where they are not.
//   - No barrier of the whole block: each buffer of the ring has one barrier that says `full` and one for `empty`. A
//     computing warp waits for `full` and arrives at `empty`; it never waits for other warps.
//   - Registers move (setmaxnreg): copying warps keep 40, computing ones have 216 or 232.
//   - As many blocks as fit on the GPU, and each takes tile after tile; the next tile's buffers fill during the
//     epilogue. With STREAM_K, the tiles of the last wave and the one before are shared out evenly along K, and where
//     there are fewer tiles than blocks, all of them.
//   - With CLUSTER = 2, blocks come in pairs, with tiles of C below one another. Each fetches half of every tile of B
//     for both (multicast): B leaves the L2 half as often. A third barrier says that a buffer is ready in both.
//
//   copying warps     wait empty | A: 128 lanes, cp.async; B: one thread, TMA | next buffer ...
//                          ^                      |
//                        empty                  full        one pair of barriers per buffer
//                          |                      v
//   computing warps   arrive     | LDS and FFMA, BK steps                     | wait full ...
//
// The loop: 8 steps of K with 8 x 16 sums per thread are 1024 FFMAs, 48 LDS.128 and 5 others. They take 95 % of the
// issue slots at 4096, the FMA units are busy 88 % of the time (docs/tma.md); 09 has 79 %.
//
// STAGES and STREAM_K are no defines but arguments of the launch: eight configurations may share a cubin.
//
// STREAM_K: of T tiles for G < T blocks all but the last T % G + G go whole, one wave after the other. The rest is a
// band of that many tiles times K, cut into G equal parts, each more than a tile. So a tile is shared by two at most:
//
//   tiles     |   0   |   1   |   2   |   3   |   4   |     G = 4, T % G = 1
//   blocks    |    3    :    2    :    1    :    0    |     each its part from left to right
//
// The one with the end of K has it as its first piece and writes it to C, the one with the beginning as its last, and
// adds its sums to C once a flag says that the other is done: no workspace, no atomics, always the same order of
// additions. One waits for lower block numbers alone, which are never started later.
//
// With T < G, the band is all T tiles, and each is shared by up to G / T + 2 blocks. Every one of them leaves its sums
// in the workspace and takes a ticket for the tile; half of them, those that come last, wait for the others and add up
// a slice of the tile each, in the order of K. As only the second half waits, the other blocks need not run beside it.
//
// With CLUSTER = 2, pairs of blocks and pairs of tiles count as one in all this: both blocks have the same parts of K.
//
// Sides of tiles need not be powers of 2: 12 rows per thread make tiles of 48 rows, of which C with 33 wastes few.
//
// Lane and patch are as in 06; blocks are of computing warps, then four copying ones. The parts of the kernel are in
// tma/*.cuh; each is included below the constants that it needs.
//
// Precision: fp32 (FFMA, summed in the order of K; of a shared tile first alpha times its end goes to C, then alpha
// times its beginning; of one that more share the sums part by part).
// Architectures: sm_90 and newer, with CLUSTER = 2 those whose multicast is fast: sm_90, sm_100, sm_103.
// Launches of one loaded kernel must not overlap (they share flags and workspace).
#include "common/tma.cuh"
#include "common/tile.cuh"

constexpr int BM = TUNE_BM;                       // rows of C per block
constexpr int BN = TUNE_BN;                       // columns of C per block
constexpr int BK = TUNE_BK;                       // depth of a tile
constexpr int TM = TUNE_TM;                       // rows of C per thread
constexpr int TN = TUNE_TN;                       // columns of C per thread
constexpr int LANES_M = TUNE_LANES_M;             // rows of lanes in a warp
constexpr int ORDER = TUNE_ORDER;                 // of the outer product: see outer_product
constexpr int MIN_BLOCKS = TUNE_MIN_BLOCKS;       // blocks per SM
constexpr int PREPASS = TUNE_PREPASS;             // whether sgemm_pack has transposed A
constexpr int PACKED = TUNE_PACKED;               // whether an instruction makes two FFMAs: see outer_product
constexpr int CLUSTER = TUNE_CLUSTER;             // blocks below one another that fetch B together
constexpr int LANES_N = WARP / LANES_M;
constexpr int WM = LANES_M * TM;                  // rows of C per warp
constexpr int WN = LANES_N * TN;                  // columns of C per warp
constexpr int WARPS_N = BN / WN;
constexpr int COMPUTING_WARPS = (BM / WM) * WARPS_N;
constexpr int COMPUTING = COMPUTING_WARPS * WARP; // threads
constexpr int COPYING = 4 * WARP;
constexpr int THREADS = COMPUTING + COPYING;
constexpr int REGISTERS = TM * TN + 2 * (TM + TN) + 32;  // of a computing thread: sums, fragments, the rest

static_assert(THREADS <= THREADS_PER_BLOCK, "a block has at most 1024 threads");
static_assert(THREADS % WARP == 0, "a block is made of whole warps");
static_assert(divides(WM, BM), "a block tile is made of whole rows of warp tiles: WM must divide BM");
static_assert(divides(WN, BN), "a block tile is made of whole columns of warp tiles: WN must divide BN");
static_assert(WM <= 4 * WN && WN <= 4 * WM,
              "a warp tile more than 4 times as long as wide reads too many fragments for its sums");
static_assert(MIN_BLOCKS * COMPUTING == 256,
              "MIN_BLOCKS blocks must give each of the SM's 4 schedulers 2 computing warps");

// Registers are handed over by groups of 4 warps, from what the launch gives every thread alike.
constexpr int REGISTER_UNIT = 8;
constexpr int GIVEN = REGISTERS_PER_SM / (MIN_BLOCKS * THREADS) / REGISTER_UNIT * REGISTER_UNIT;
constexpr int KEPT = 40;                          // by a copying thread
constexpr int TAKEN =                             // by a computing one
    COMPUTING == 0 ? 0 : (GIVEN * THREADS - KEPT * COPYING) / COMPUTING / REGISTER_UNIT * REGISTER_UNIT;

static_assert(!PREPASS || BM * BN >= 128 * 128,
              "only tiles of 128 x 128 and more reuse operands often enough for a pre-pass to pay");
static_assert(CLUSTER == 1 || (BM * BN >= 128 * 128 && BN >= BM),
              "only tiles of 128 x 128 and more that are no taller than wide have enough of B to share it");
static_assert(TM * TN <= 128, "more than 128 sums per thread leave too few registers for all that is no loop");
static_assert(REGISTERS <= TAKEN, "a thread's sums, two pairs of fragments and addresses must fit its registers");

constexpr int FLOAT_BYTES = sizeof(float);
constexpr int A_LANES = 8;                        // lanes that copy from one row of A: 32 bytes, a sector of the cache
constexpr int A_ROWS = COPYING / A_LANES;         // rows that the copying warps copy from at a time
constexpr int A_STRIDE = PREPASS ? BM : BM + 4;   // of transposed rows: copies hit 32 different banks (picture in 09)
constexpr int A_BYTES = FLOAT_BYTES * BK * A_STRIDE;
constexpr int B_BYTES = FLOAT_BYTES * BK * BN;
constexpr int BUFFER = A_BYTES + B_BYTES;

// Shared memory: barriers, each kind with room for the most buffers; tickets of this block's shared tiles: Ticket[2];
// what it does: Work; a float4 for each computing thread; the ring. So all but the ring's end is known without STAGES.
constexpr int MOST_STAGES = 6;
constexpr int FULL = 0;
constexpr int EMPTY = FULL + MOST_STAGES * BARRIER_BYTES;
constexpr int READY = EMPTY + MOST_STAGES * BARRIER_BYTES;  // of clusters alone
constexpr int TICKETS = READY + MOST_STAGES * BARRIER_BYTES;
constexpr int TICKET_BYTES = 16;
constexpr int WORK = TICKETS + TICKET_BYTES;
constexpr int WORK_BYTES = 32;
constexpr int EXCHANGE = (WORK + WORK_BYTES + BOX_ALIGNMENT - 1) / BOX_ALIGNMENT * BOX_ALIGNMENT;
constexpr int RING = EXCHANGE + COMPUTING * VECTOR * FLOAT_BYTES;
constexpr int FULL_ARRIVALS = PREPASS ? 1 : COPYING + 1;  // every copying thread's floats, and the one that sees to B
constexpr int STEPS = BK < UNROLL ? BK : UNROLL;  // of K in one body of the loop

extern __shared__ __align__(BOX_ALIGNMENT) unsigned char shared_memory[];

#include "tma/work.cuh"

// Walks round the ring. The parity is that of the phase to be waited for next.
struct Place {
    unsigned buffer, parity;

    __device__ __forceinline__ void advance(unsigned stages) {
        ++buffer;
        bool wraps = buffer == stages;
        buffer = wraps ? 0 : buffer;
        parity ^= wraps;
    }
};

#include "tma/copying.cuh"

// --------------------------------------------------------------------------------------- the computing warps

// ptxas gives a float4 four neighbouring registers and is free with all others. Registers lie in two banks, by parity;
// an FFMA gets one operand a cycle from each, the third from the reuse cache. Row by row that is a[m], so sums[m][n]
// should have the other parity than b[n]; column by column it is b[n], and the other parity than a[m]. This asks for
// it: by float4s of sums with neighbours exchanged, on a path that is never taken, as K is never negative. What is left
// of bank conflicts costs 0.7 % (docs/fp32.md, 23), and leave_sums stores such float4s without a move.
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

using Patch = LanePatch<WM, WN, TM, TN, LANES_M, WARPS_N, Apart>;

#include "tma/epilogue.cuh"

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

#include "tma/shared_tiles.cuh"

__device__ __forceinline__ void compute_tiles(const Product &product, int stages, float alpha, float beta, float *C,
                                              int ldc, float4 *workspace) {
    unsigned shared = shared_address(shared_memory);
    Patch patch(threadIdx.x);
    Place place{0, 0};
    int left_behind = 0;                          // pieces whose sums are in the workspace
    Piece piece;
    for (unsigned done = 0; find_piece(done, product.K, piece); ++done) {
        float sums[TM][TN] = {};
        // Fragments of a step of K are loaded while the step before is multiplied, so also across tiles: each body of
        // the loop begins with the last step of the body before it. Before the first there is none, and 0 * 0 is added.
        float a[2][TM] = {}, b[2][TN] = {};
#pragma unroll 1
        for (int left = piece.k_end - piece.k_begin; left > 0; left -= BK) {
            await_phase(shared + FULL + place.buffer * BARRIER_BYTES, place.parity);
            unsigned a_read = shared + RING + place.buffer * BUFFER + FLOAT_BYTES * patch.row;
            unsigned b_read = shared + RING + place.buffer * BUFFER + A_BYTES + FLOAT_BYTES * patch.col;
            unsigned a_end = a_read + FLOAT_BYTES * BK * A_STRIDE;
            take_as_it_is(a_end);                 // else it is found anew in each turn
#pragma unroll 1
            while (a_read != a_end) {
#pragma unroll
                for (int k = 0; k < STEPS; ++k) {
                    patch.load_a(a[k % 2], shared_pointer(a_read) + k * A_STRIDE);
                    patch.load_b(b[k % 2], shared_pointer(b_read) + k * BN);
                    outer_product<ORDER, PACKED>(sums, a[(k + 1) % 2], b[(k + 1) % 2]);
                }
                a_read += FLOAT_BYTES * STEPS * A_STRIDE;
                b_read += FLOAT_BYTES * STEPS * BN;
            }
            unsigned empty = shared + EMPTY + place.buffer * BARRIER_BYTES + zero_after(a[1], b[1], product.K);
            arrive(empty);
            place.advance(stages);
        }
        outer_product<ORDER, PACKED>(sums, a[1], b[1]);   // the last step
        place_sums(sums, product.K);

        if ((piece.k_begin > 0 || piece.k_end < product.K) && work().many_share) {
            leave_sums(sums, place_of(workspace, part_of_block(), piece.k_begin == 0), piece.tile, left_behind++);
            continue;
        }
        int warp = threadIdx.x / WARP;
        bool beginning = piece.k_end < product.K;         // of a shared tile: another block has its end
        if (beginning) await_flag(&end_written[own(part_of_block() + 1)][warp]);
        BlockTile tile = own_tile(product, piece.tile);
        float kept = beginning ? 1.0f : beta;     // of what C holds
        if (rows_are_aligned<VECTOR>(C, ldc) && tile.cols_inside % VECTOR == 0)
            update_c(patch, sums, C, ldc, tile, alpha, kept);
        else
            update_unaligned_c(patch, sums, C, ldc, tile, alpha, kept);
        if (piece.k_begin > 0) raise_flag(&end_written[own(part_of_block())][warp]);
    }
    sync_threads<COMPUTING>();                    // all see the tickets, and nobody reads the ring
#pragma unroll 1
    for (int which = 0; which < left_behind; ++which)
        add_up(ticket(which), workspace, product, C, ldc, alpha, beta);
}

#include "tma/pack.cuh"

// Even for clusters of one block, the attribute makes another kind of launch of it. No constexpr can leave it out.
#if TUNE_CLUSTER > 1
#define CLUSTERED CLUSTER_OF(CLUSTER)
#else
#define CLUSTERED
#endif

extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS, MIN_BLOCKS)
sgemm(int M, int N, int K, float alpha, const float *__restrict__ A, int lda, const float *__restrict__ B, int ldb,
      float beta, float *__restrict__ C, int ldc, const __grid_constant__ TensorMaps maps,
      int b_mapped, float4 *__restrict__ workspace, int stages, int stream_k) {
    drop_empty_product(K, alpha);
    Product product{M, N, K, stream_k};
    if (threadIdx.x == 0) {
        unsigned shared = shared_address(shared_memory);
#pragma unroll 1
        for (int stage = 0; stage < stages; ++stage) {
            init_barrier(shared + FULL + stage * BARRIER_BYTES, FULL_ARRIVALS);
            init_barrier(shared + EMPTY + stage * BARRIER_BYTES, COMPUTING);
            if (CLUSTER > 1) init_barrier(shared + READY + stage * BARRIER_BYTES, CLUSTER);
        }
        publish_barriers();
    }
    if (threadIdx.x == WARP) work() = Work(product);  // by another warp, at the same time
    if constexpr (CLUSTER > 1)
        sync_cluster();
    else
        __syncthreads();
    if (threadIdx.x >= COMPUTING) {
        give_up_registers_but<KEPT>();
        if constexpr (PREPASS) {
            if (threadIdx.x == COMPUTING) fetch_tiles(product, stages, maps);
        } else {
            copy_tiles(product, stages, A, lda, B, ldb, maps.b, b_mapped != 0);
        }
    } else {
        take_registers_up_to<TAKEN>();
        compute_tiles(product, stages, alpha, beta, C, ldc, workspace);
    }
    if constexpr (CLUSTER > 1) meet_cluster();    // who has ended has no shared memory that others could copy to
}
