// 07 double_buffer: the next tile is on its way while this one is computed.
//
// Since 06: shared memory holds two tiles of A and of B. A step along K now is
//   - start the global loads of the next tile, into registers that nobody waits for yet;
//   - compute BK steps from this buffer; the fragments of step k + 1 are loaded before the FFMAs of step k;
//   - put the loaded tile into the other buffer, ONE barrier, go on there.
// The latency of global memory (about 600 cycles) hides behind BK * TM * TN FFMAs per thread, that of
// shared memory (about 30) behind TM * TN, and the two barriers per tile become one: nobody writes a buffer
// before all have passed the barrier that follows its last reading.
//
//   global   | load 1           | load 2           |      registers: one tile's share, 4 floats a pass
//   shared   |           put 1 ||           put 2 ||      buffer 0, buffer 1, buffer 0, ...
//   FFMA     | tile 0: k=0 ..  || tile 1: k=0 ..  ||      || is the barrier
//
// Instructions per FFMA stay those of 06: LDS (TM + TN) / (4 TM TN), 0.047 for 16 x 8; what falls is
// waiting. FFMA issue becomes the limit, and with it the order of the FFMAs: each reads three registers
// from two banks, so how often an operand comes from the reuse cache decides (ORDER, 4 to 30 %).
//
// Grid, block, warp and lane are as in 06.
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
constexpr int ORDER = TUNE_ORDER;                 // of the outer product: see outer_product
constexpr int MIN_BLOCKS = TUNE_MIN_BLOCKS;       // blocks per SM that the registers must allow
constexpr int LANES_N = WARP / LANES_M;
constexpr int WM = LANES_M * TM;                  // rows of C per warp
constexpr int WN = LANES_N * TN;                  // columns of C per warp
constexpr int WARPS_N = BN / WN;
constexpr int THREADS = (BM / WM) * WARPS_N * WARP;
constexpr int A_STRIDE = BM + PAD;
constexpr int BUFFER = BK * (A_STRIDE + BN);      // floats of one tile of A and one of B
constexpr int STAGED = THREADS > 0 ? BK * (BM + BN) / THREADS : 0;  // floats in flight per thread
// Per thread: sums, two pairs of fragments, staged floats with half a register of address each, 20 for the rest.
constexpr int REGISTERS = TM * TN + 2 * (TM + TN) + STAGED * 3 / 2 + 20;

static_assert(THREADS <= THREADS_PER_BLOCK, "a block has at most 1024 threads");
static_assert(THREADS % WARP == 0, "a block is made of whole warps");
static_assert(divides(WM, BM), "a block tile is made of whole rows of warp tiles: WM must divide BM");
static_assert(divides(WN, BN), "a block tile is made of whole columns of warp tiles: WN must divide BN");
static_assert(THREADS >= 64, "a block of fewer than 64 threads leaves schedulers of its SM idle");
static_assert(divides(VECTOR * THREADS, BM * BK), "the A tile must be copied in whole passes of one float4 per thread");
static_assert(divides(VECTOR * THREADS, BK * BN), "the B tile must be copied in whole passes of one float4 per thread");
static_assert(REGISTERS <= REGISTERS_PER_THREAD,
              "a thread's sums, two pairs of fragments and staged floats must fit its 255 registers");
static_assert(MIN_BLOCKS * THREADS * REGISTERS <= REGISTERS_PER_SM,
              "the registers of MIN_BLOCKS blocks must fit the SM's 65536");

extern __shared__ float4 shared_memory[];

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
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
    float *shared = reinterpret_cast<float *>(shared_memory);
    // Offsets that step from buffer to buffer, rather than being computed from its number: in the loop every
    // shared address is then one register and a constant.
    int fill = 0;                                 // the buffer that is written next: A tile, then B tile
    int a_read = patch.row;                       // this lane's first floats in the buffer that is read
    int b_read = BK * A_STRIDE + patch.col;
    int step = BUFFER;                            // from the buffer that is read to the other

    GlobalA::Staged a_staged;
    GlobalB::Staged b_staged;
    load_tiles(a_global, b_global, K, a_staged, b_staged);
    a_global.store_transposed<A_STRIDE>(shared + fill, a_staged);
    b_global.store<BN>(shared + fill + BK * A_STRIDE, b_staged);
    fill += step;
    __syncthreads();

    float a[2][TM], b[2][TN];                     // fragments of this step of K and of the next
    float sums[TM][TN] = {};
    patch.load_a(a[0], shared + a_read);
    patch.load_b(b[0], shared + b_read);

    for (int k_left = K; k_left > 0; k_left -= BK) {
        // After the last tile this "loads" zeros without touching memory: cheaper than a second loop body.
        a_global.advance();
        b_global.advance();
        load_tiles(a_global, b_global, k_left - BK, a_staged, b_staged);
#pragma unroll UNROLL
        for (int k = 0; k < BK; ++k) {
            int next = (k + 1) % BK;
            if (next == 0) {
                a_global.store_transposed<A_STRIDE>(shared + fill, a_staged);
                b_global.store<BN>(shared + fill + BK * A_STRIDE, b_staged);
                __syncthreads();
                a_read += step;
                b_read += step;
                step = -step;
                fill += step;
            }
            patch.load_a(a[next % 2], shared + a_read + next * A_STRIDE);
            patch.load_b(b[next % 2], shared + b_read + next * BN);
            outer_product<ORDER>(sums, a[k % 2], b[k % 2]);
        }
    }
    patch.write(sums, C, ldc, tile, alpha, beta);
}
