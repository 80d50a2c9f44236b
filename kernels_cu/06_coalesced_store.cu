// 06 coalesced_store: an explicit place for every warp and lane.
//
// Since 05: a warp owns a WM x WN tile of C, its 32 lanes form LANES_M rows of LANES_N, and a lane's patch
// is no longer one block: it is cut into 4 x 4 pieces, 4 * LANES_M rows and 4 * LANES_N columns apart.
// Neighbouring lanes then hold neighbouring float4s everywhere:
//   - C: each row of a piece is written by LANES_N lanes as one run of 16 * LANES_N bytes (05 left holes of
//     4 * (TN - 4) bytes between two lanes, so every store touched TN / 4 times the sectors);
//   - shared memory: a fragment load touches LANES_M (or LANES_N) neighbouring float4s, the rest is
//     broadcast: no bank conflict (05: 2-way at TN = 8, 4-way at TN = 16).
// A squarer warp also reads less: a warp's fragments per step of K are WM + WN floats for WM * WN FMAs.
// LDS per FMA stay (TM + TN) / (4 TM TN): 0.0625 for 8 x 8; what falls is the cycles that each one takes.
//
//   block tile BM x BN        warp tile WM x WN                    lane's patch: TM/4 x TN/4 pieces
//   +-------+-------+         +----------------+----------------+
//   | warp0 | warp1 |         | l0 l1 .. l7    | l0 l1 .. l7    |   one cell is 4 x 4 floats;
//   +-------+-------+    ->   | l8 l9 .. l15   | l8 ..          |   here LANES_M = 4, LANES_N = 8,
//   | warp2 | warp3 |         | :              |                |   TM = TN = 8: lane 0 has the four
//   +-------+-------+         +----------------+----------------+   cells marked l0
//                             | l0 l1 .. l7    | l0 l1 .. l7    |
//                             | :              | :              |
//                             +----------------+----------------+
//
// Precision: fp32 (FFMA, summed in the order of K). Architectures: sm_80 and newer.
#include "common/tile.cuh"

constexpr int BM = TUNE_BM;                       // rows of C per block
constexpr int BN = TUNE_BN;                       // columns of C per block
constexpr int BK = TUNE_BK;                       // depth of a tile
constexpr int TM = TUNE_TM;                       // rows of C per thread
constexpr int TN = TUNE_TN;                       // columns of C per thread
constexpr int PAD = TUNE_PAD;                     // floats between rows of the transposed A tile
constexpr int LANES_M = TUNE_LANES_M;             // rows of lanes in a warp
constexpr int LANES_N = WARP / LANES_M;
constexpr int WM = LANES_M * TM;                  // rows of C per warp
constexpr int WN = LANES_N * TN;                  // columns of C per warp
constexpr int WARPS_N = BN / WN;
constexpr int THREADS = (BM / WM) * WARPS_N * WARP;
constexpr int A_STRIDE = BM + PAD;
constexpr int STAGED = THREADS > 0 ? BK * (BM + BN) / THREADS : 0;  // floats in flight per thread
// Per thread: sums, fragments, staged floats with half a register of address each, and 32 for the rest.
constexpr int REGISTERS = TM * TN + TM + TN + STAGED * 3 / 2 + 32;

static_assert(THREADS <= THREADS_PER_BLOCK, "a block has at most 1024 threads");
static_assert(THREADS % WARP == 0, "a block is made of whole warps");
static_assert(divides(WM, BM), "a block tile is made of whole rows of warp tiles: WM must divide BM");
static_assert(divides(WN, BN), "a block tile is made of whole columns of warp tiles: WN must divide BN");
static_assert(THREADS >= 64, "a block of fewer than 64 threads leaves schedulers of its SM idle");
static_assert(divides(VECTOR * THREADS, BM * BK), "the A tile must be copied in whole passes of one float4 per thread");
static_assert(divides(VECTOR * THREADS, BK * BN), "the B tile must be copied in whole passes of one float4 per thread");
static_assert(REGISTERS <= REGISTERS_PER_THREAD,
              "a thread's sums, fragments and staged floats must fit its 255 registers");
static_assert(THREADS * REGISTERS <= REGISTERS_PER_SM, "the block's registers must fit the SM's 65536");

extern __shared__ float4 shared_memory[];

extern "C" __global__ void __launch_bounds__(THREADS, blocks_per_sm(THREADS, REGISTERS))
sgemm(int M, int N, int K, float alpha, const float *__restrict__ A, int lda, const float *__restrict__ B, int ldb,
      float beta, float *__restrict__ C, int ldc) {
    drop_empty_product(K, alpha);
    BlockTile tile = tile_of_block<BM, BN>(M, N);
    using GlobalA = TileOfA<BM, BK, THREADS, VECTOR>;
    using GlobalB = TileOfB<BK, BN, THREADS, VECTOR>;
    using Patch = LanePatch<WM, WN, TM, TN, LANES_M, WARPS_N>;
    GlobalA a_global(A + static_cast<long long>(tile.row) * lda, lda, tile.rows_inside);
    GlobalB b_global(B + tile.col, ldb, tile.cols_inside);
    Patch patch;
    float *a_tile = reinterpret_cast<float *>(shared_memory);
    float *b_tile = a_tile + BK * A_STRIDE;
    const float *a_read = a_tile + patch.row;     // this lane's first float of the fragments at k = 0
    const float *b_read = b_tile + patch.col;

    float sums[TM][TN] = {};
    for (int k_left = K; k_left > 0; k_left -= BK) {
        GlobalA::Staged a_staged;
        GlobalB::Staged b_staged;
        load_tiles(a_global, b_global, k_left, a_staged, b_staged);
        a_global.store_transposed<A_STRIDE>(a_tile, a_staged);
        b_global.store<BN>(b_tile, b_staged);
        a_global.advance();
        b_global.advance();
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < BK; ++k) {
            float a[TM], b[TN];
            patch.load_a(a, a_read + k * A_STRIDE);
            patch.load_b(b, b_read + k * BN);
            outer_product<ROW_BY_ROW>(sums, a, b);
        }
        __syncthreads();
    }
    patch.write(sums, C, ldc, tile, alpha, beta);
}
