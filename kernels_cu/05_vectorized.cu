// 05 vectorized: 128-bit loads and stores, and A transposed on its way into shared memory.
//
// Since 04: one instruction moves 4 floats. Global loads and stores are LDG.128 / STG.128; and since the A
// tile is stored K by K (a_tile[k][row]), a thread's TM floats of A lie side by side like its TN floats of
// B, and both fragments come by LDS.128. LDS per FMA fall from (TM + TN) / (TM TN) to a quarter of that:
// 0.0625 instead of 0.25 for 8 x 8. The transposed rows are padded by PAD floats, so that the 4 scattered
// stores of a thread's float4 hit other banks than its neighbour's: 4 * (BM + 4) is 16 modulo 32 banks.
//
//   A in global memory       a_tile in shared memory        thread patch TM x TN, contiguous
//        K ->                      rows of A ->              +-----------+
//   r0  [k0 k1 k2 k3] ..      k0  [r0 r1 r2 r3 ...] pad      |           |  a: TM / 4 LDS.128
//   r1  [k0 k1 k2 k3]    ->   k1  [r0 r1 r2 r3 ...] pad      | sums      |  b: TN / 4 LDS.128
//   r2  [k0 k1 k2 k3]         k2  [...]                      |           |
//        one LDG.128          k3  [...]                      +-----------+
//
// Grid, block and thread are as in 04: BM x BN per block, TM x TN per thread, threads row by row.
//
// Precision: fp32 (FFMA, summed in the order of K). Architectures: sm_80 and newer.
#include "common/tile.cuh"

constexpr int BM = TUNE_BM;                       // rows of C per block
constexpr int BN = TUNE_BN;                       // columns of C per block
constexpr int BK = TUNE_BK;                       // depth of a tile
constexpr int TM = TUNE_TM;                       // rows of C per thread
constexpr int TN = TUNE_TN;                       // columns of C per thread
constexpr int PAD = TUNE_PAD;                     // floats between rows of the transposed A tile
constexpr int THREADS = (BM / TM) * (BN / TN);
constexpr int A_STRIDE = BM + PAD;
constexpr int STAGED = THREADS > 0 ? BK * (BM + BN) / THREADS : 0;  // floats in flight per thread
// Per thread: sums, fragments, staged floats with half a register of address each, and 32 for the rest.
constexpr int REGISTERS = TM * TN + TM + TN + STAGED * 3 / 2 + 32;

static_assert(THREADS <= THREADS_PER_BLOCK, "a block has at most 1024 threads");
static_assert(THREADS % WARP == 0, "a block is made of whole warps");
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
    GlobalA a_global(A + static_cast<long long>(tile.row) * lda, lda, tile.rows_inside);
    GlobalB b_global(B + tile.col, ldb, tile.cols_inside);
    float *a_tile = reinterpret_cast<float *>(shared_memory);
    float *b_tile = a_tile + BK * A_STRIDE;

    int patch_row = threadIdx.x / (BN / TN) * TM;  // of the thread's patch in the block tile
    int patch_col = threadIdx.x % (BN / TN) * TN;
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
#pragma unroll
            for (int m = 0; m < TM; m += VECTOR) load_vector(a + m, a_tile + k * A_STRIDE + patch_row + m);
#pragma unroll
            for (int n = 0; n < TN; n += VECTOR) load_vector(b + n, b_tile + k * BN + patch_col + n);
            outer_product<ROW_BY_ROW>(sums, a, b);
        }
        __syncthreads();
    }

    write_sums(
        sums, [&](int m) { return patch_row + m; }, [&](int n) { return patch_col + n; }, C, ldc, tile, alpha, beta);
}
