// 09 async_copy: tiles travel from global to shared memory by themselves, several at a time.
//
// Since 07: no thread holds a tile in registers on its way (cp.async: LDGSTS). Shared memory is a ring of STAGES
// buffers: one is computed, STAGES - 1 are filling. A step along K is
//   - start the copies of the tile STAGES - 1 steps ahead, into the buffer that the last step left;
//   - compute BK steps from this buffer, fragments one step ahead, as in 07;
//   - wait until the next tile is there (only the latest STAGES - 2 may still be on their way), ONE barrier.
// Copies have STAGES - 1 steps to arrive, not one. No staging registers: 8 x 16 sums with two pairs of fragments
// take 218 registers (07: 255), so BK = 16 fits and the work per tile is shared by twice the FFMAs. And no stores
// that transpose A: its floats are copied one by one to where they belong.
//
//   copy     | 3  |  4  |  5  |      tile 3 goes to the buffer of tile -1, and so on
//   ring     | 0* 1 2 3 |  4 1* 2 3 |  4 5 2* 3 |      * is computed
//   FFMA     | tile 0  || tile 1  || tile 2  ||        || is the wait and the barrier
//
// Instructions that are no FFMA, per FFMA, counted in the SASS of 128 x 256 x 16 on sm_90: 0.069, 0.047 of them LDS
// (07 at 128 x 256 x 8: 0.079). As FFMA issue is the limit, sums are placed in registers such that an FFMA's
// operands come from different banks (place_sums): 1.06 cycles per FFMA, where 07 has 1.17.
//
// Grid, block, warp and lane are as in 06.
//
// Precision: fp32 (FFMA, summed in the order of K). Architectures: sm_80 and newer.
#include "common/async_tile.cuh"

constexpr int BM = TUNE_BM;                       // rows of C per block
constexpr int BN = TUNE_BN;                       // columns of C per block
constexpr int BK = TUNE_BK;                       // depth of a tile
constexpr int TM = TUNE_TM;                       // rows of C per thread
constexpr int TN = TUNE_TN;                       // columns of C per thread
constexpr int LANES_M = TUNE_LANES_M;             // rows of lanes in a warp
constexpr int STAGES = TUNE_STAGES;               // buffers of the ring
constexpr int ORDER = TUNE_ORDER;                 // of the outer product: see outer_product
constexpr int MIN_BLOCKS = TUNE_MIN_BLOCKS;       // blocks per SM that the registers must allow
constexpr int LANES_N = WARP / LANES_M;
constexpr int WM = LANES_M * TM;                  // rows of C per warp
constexpr int WN = LANES_N * TN;                  // columns of C per warp
constexpr int WARPS_N = BN / WN;
constexpr int THREADS = (BM / WM) * WARPS_N * WARP;
constexpr int REGISTERS = async_registers(BM, BN, BK, TM, TN, THREADS);
constexpr int AHEAD = (STAGES - 1) * BK;          // entries of K on their way

static_assert(THREADS <= THREADS_PER_BLOCK, "a block has at most 1024 threads");
static_assert(THREADS % WARP == 0, "a block is made of whole warps");
static_assert(divides(WM, BM), "a block tile is made of whole rows of warp tiles: WM must divide BM");
static_assert(divides(WN, BN), "a block tile is made of whole columns of warp tiles: WN must divide BN");
static_assert(WM <= 4 * WN && WN <= 4 * WM,
              "a warp tile more than 4 times as long as wide reads too many fragments for its sums");
static_assert(MIN_BLOCKS * THREADS >= 128 && MIN_BLOCKS * THREADS <= 512,
              "MIN_BLOCKS blocks must give each of the SM's 4 schedulers 1 to 4 warps");
static_assert(divides(THREADS, A_LANES * BM), "the A tile must be copied in whole passes of 8 floats of each row");
static_assert(divides(VECTOR * THREADS, BK * BN), "the B tile must be copied in whole passes of one float4 per thread");
static_assert(AHEAD >= 16 && AHEAD <= 48,
              "16 to 48 entries of K must be on their way: fewer hide no latency, more only take shared memory");
static_assert(REGISTERS <= REGISTERS_PER_THREAD,
              "a thread's sums, two pairs of fragments and addresses must fit its 255 registers");
static_assert(MIN_BLOCKS * THREADS * REGISTERS <= REGISTERS_PER_SM,
              "the registers of MIN_BLOCKS blocks must fit the SM's 65536");

extern __shared__ float4 shared_memory[];

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
sgemm(int M, int N, int K, float alpha, const float *__restrict__ A, int lda, const float *__restrict__ B, int ldb,
      float beta, float *__restrict__ C, int ldc) {
    drop_empty_product(K, alpha);
    BlockTile tile = tile_of_block<BM, BN>(M, N);
    LanePatch<WM, WN, TM, TN, LANES_M, WARPS_N> patch;
    float *ring = reinterpret_cast<float *>(shared_memory);
    float sums[TM][TN] = {};
    multiply_async<BM, BN, BK, STAGES, THREADS, ORDER>(sums, patch, ring, K,
                                                       A + static_cast<long long>(tile.row) * lda, lda,
                                                       tile.rows_inside, B + tile.col, ldb, tile.cols_inside);
    write_async(sums, patch, ring, C, ldc, tile, alpha, beta);
}
