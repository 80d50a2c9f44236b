// 02 coalesced: the threads of a warp work on neighbouring columns.
//
// Since 01: row and column of a thread are exchanged, nothing else. A warp now reads 32 neighbouring
// floats of a row of B (128 bytes, 4 sectors, one transaction) and one element of A that all 32 threads
// share; its stores to C are one line too. Sectors per warp and step of K fall from 33 to 5.
//
// Per FMA still 2 loads: 4 bytes per FLOP asked of the L1, but every byte that moves is used.
//
//   grid                    block: BY rows x BX columns of C     thread: one element
//   +----+----+----+        +------------------------+
//   | b0 | b8 |    |        | t0  t1  t2  ...   t31  |  <- one warp, one row, BX = 32
//   +----+----+----+   ->   | t32 t33 t34 ...        |
//   | b1 | b9 |    |        | :                      |
//   +----+----+----+        +------------------------+
//
// Precision: fp32 (FFMA, summed in the order of K). Architectures: sm_80 and newer.
#include "common/tile.cuh"

constexpr int BX = TUNE_BX;                       // columns of C per block
constexpr int BY = TUNE_BY;                       // rows of C per block
constexpr int THREADS = BX * BY;

static_assert(THREADS <= THREADS_PER_BLOCK, "a block has at most 1024 threads");
static_assert(THREADS % WARP == 0, "a block is made of whole warps");

extern "C" __global__ void __launch_bounds__(THREADS)
sgemm(int M, int N, int K, float alpha, const float *__restrict__ A, int lda, const float *__restrict__ B, int ldb,
      float beta, float *__restrict__ C, int ldc) {
    drop_empty_product(K, alpha);
    BlockTile tile = tile_of_block<BY, BX>(M, N);
    int thread_row = threadIdx.x / BX;
    int thread_col = threadIdx.x % BX;            // fastest: the contiguous direction
    if (thread_row >= tile.rows_inside || thread_col >= tile.cols_inside) return;

    long long row = tile.row + thread_row;
    long long col = tile.col + thread_col;
    const float *a = A + row * lda;
    const float *b = B + col;
    float sum = 0.0f;
    for (int k = 0; k < K; ++k, b += ldb) sum += a[k] * *b;
    write_c(C + row * ldc + col, sum, alpha, beta);
}
