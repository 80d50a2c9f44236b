// 01 naive: one thread per element of C.
//
// The starting point, and deliberately the wrong way round: neighbouring threads take neighbouring ROWS
// of C. In one step of K the 32 threads of a warp read 32 elements of A that lie lda floats apart: 32
// sectors of 32 bytes for 128 bytes of use (B's element is the same for all of them, one broadcast). The
// stores to C are scattered the same way.
//
// Per FMA: 2 loads, 8 bytes asked of the L1, nothing kept: 4 bytes per FLOP.
//
//   grid                    block: BLOCK x BLOCK of C          thread: one element
//   +----+----+----+        +-----------------------+
//   | b0 | b8 |    |        | t0  t16 t32 ...       |
//   +----+----+----+   ->   | t1  t17               |    sum over k of A[row][k] * B[k][col]
//   | b1 | b9 |    |        | :                     |
//   +----+----+----+        | t15 t31               |    (BLOCK = 16; a warp is two columns)
//                           +-----------------------+
//
// Precision: fp32 (FFMA, summed in the order of K). Architectures: sm_80 and newer.
#include "common/tile.cuh"

constexpr int BLOCK = TUNE_BLOCK;                 // rows and columns of C per block
constexpr int THREADS = BLOCK * BLOCK;

static_assert(THREADS <= THREADS_PER_BLOCK, "a block has at most 1024 threads");
static_assert(THREADS % WARP == 0, "a block is made of whole warps");

extern "C" __global__ void __launch_bounds__(THREADS)
sgemm(int M, int N, int K, float alpha, const float *__restrict__ A, int lda, const float *__restrict__ B, int ldb,
      float beta, float *__restrict__ C, int ldc) {
    drop_empty_product(K, alpha);
    BlockTile tile = tile_of_block<BLOCK, BLOCK>(M, N);
    int thread_row = threadIdx.x % BLOCK;         // fastest: the strided direction
    int thread_col = threadIdx.x / BLOCK;
    if (thread_row >= tile.rows_inside || thread_col >= tile.cols_inside) return;

    long long row = tile.row + thread_row;
    long long col = tile.col + thread_col;
    const float *a = A + row * lda;
    const float *b = B + col;
    float sum = 0.0f;
    for (int k = 0; k < K; ++k, b += ldb) sum += a[k] * *b;
    write_c(C + row * ldc + col, sum, alpha, beta);
}
