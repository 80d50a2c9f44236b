// 04 block_tile_2d: each thread computes a TM x TN patch of C in registers.
//
// Since 03: a thread reads TM elements of A and TN of B from shared memory and makes TM * TN products of
// them. Loads per FMA fall from 2 to (TM + TN) / (TM * TN): 0.25 for 8 x 8. The block tile grows from
// 32 x 32 to 64 x 64 or more with it, so that global traffic per FLOP falls too: (1/BM + 1/BN) * 2 bytes,
// 0.0625 for 64 x 64.
//
//   grid -> block tile BM x BN           thread patch TM x TN
//   +-----------------------------+      +----------------+     a: TM floats of a column of the A tile
//   | t0   | t1   | ...    | t7   |      | sums[TM][TN]   |     b: TN floats of a row of the B tile
//   +------+------+--------+------+      |                |
//   | t8   | t9   |               |  ->  |                |     for k in BK: sums += a b^T
//   :                             :      +----------------+
//   +-----------------------------+      (BN / TN = 8: a warp is 4 rows of 8 patches)
//
// All loads are scalar, and threads of one column of patches read A's tile TM * BK floats apart: the same
// bank. Rung 05 mends both.
//
// Precision: fp32 (FFMA, summed in the order of K). Architectures: sm_80 and newer.
#include "common/tile.cuh"

constexpr int BM = TUNE_BM;                       // rows of C per block
constexpr int BN = TUNE_BN;                       // columns of C per block
constexpr int BK = TUNE_BK;                       // depth of a tile
constexpr int TM = TUNE_TM;                       // rows of C per thread
constexpr int TN = TUNE_TN;                       // columns of C per thread
constexpr int THREADS = (BM / TM) * (BN / TN);

static_assert(THREADS <= THREADS_PER_BLOCK, "a block has at most 1024 threads");
static_assert(THREADS % WARP == 0, "a block is made of whole warps");

extern __shared__ float4 shared_memory[];

extern "C" __global__ void __launch_bounds__(THREADS)
sgemm(int M, int N, int K, float alpha, const float *__restrict__ A, int lda, const float *__restrict__ B, int ldb,
      float beta, float *__restrict__ C, int ldc) {
    drop_empty_product(K, alpha);
    BlockTile tile = tile_of_block<BM, BN>(M, N);
    using GlobalA = TileOfA<BM, BK, THREADS, 1>;
    using GlobalB = TileOfB<BK, BN, THREADS, 1>;
    GlobalA a_global(A + static_cast<long long>(tile.row) * lda, lda, tile.rows_inside);
    GlobalB b_global(B + tile.col, ldb, tile.cols_inside);
    float *a_tile = reinterpret_cast<float *>(shared_memory);
    float *b_tile = a_tile + BM * BK;

    int patch_row = threadIdx.x / (BN / TN) * TM;  // of the thread's patch in the block tile
    int patch_col = threadIdx.x % (BN / TN) * TN;
    float sums[TM][TN] = {};
    for (int k_left = K; k_left > 0; k_left -= BK) {
        GlobalA::Staged a_staged;
        GlobalB::Staged b_staged;
        load_tiles(a_global, b_global, k_left, a_staged, b_staged);
        a_global.store<BK>(a_tile, a_staged);
        b_global.store<BN>(b_tile, b_staged);
        a_global.advance();
        b_global.advance();
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            float a[TM], b[TN];
#pragma unroll
            for (int m = 0; m < TM; ++m) a[m] = a_tile[(patch_row + m) * BK + k];
#pragma unroll
            for (int n = 0; n < TN; ++n) b[n] = b_tile[k * BN + patch_col + n];
            outer_product<ROW_BY_ROW>(sums, a, b);
        }
        __syncthreads();
    }

    float *c_tile = C + static_cast<long long>(tile.row) * ldc + tile.col;
#pragma unroll
    for (int m = 0; m < TM; ++m)
#pragma unroll
        for (int n = 0; n < TN; ++n) {
            int row = patch_row + m;
            int col = patch_col + n;
            if (row < tile.rows_inside && col < tile.cols_inside)
                write_c(c_tile + static_cast<long long>(row) * ldc + col, sums[m][n], alpha, beta);
        }
}
