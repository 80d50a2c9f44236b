// 03 smem_tile: the block keeps square tiles of A and B in shared memory.
//
// Since 02: each element of A and B comes from global memory once per block instead of once per thread.
// The block steps along K by TILE: all threads fetch one element of A and one of B, wait, compute TILE
// FMAs from shared memory, wait again (the next fetch must not overwrite what a slower warp still reads).
//
// Global traffic per FLOP falls by TILE: 4 bytes to 4 / 32 = 0.125. Shared memory now is the limit:
// still 2 loads (LDS) per FMA, where an SM issues 4 FMA warps but only 1 LDS warp per cycle.
//
//   A                     B                      C
//        K ->             +------+               thread: one element of the TILE x TILE block tile
//   +------+------+       | TILE |  k step 0     warp:   one row of it (TILE = 32)
//   | TILE | TILE | ..    +------+
//   +------+------+       | TILE |  k step 1     load | sync | compute TILE steps | sync | load ...
//                         +------+
//
// Precision: fp32 (FFMA, summed in the order of K). Architectures: sm_80 and newer.
#include "common/tile.cuh"

constexpr int TILE = TUNE_TILE;                   // BM = BN = BK
constexpr int THREADS = TILE * TILE;

static_assert(THREADS <= THREADS_PER_BLOCK, "a block has at most 1024 threads");
static_assert(THREADS % WARP == 0, "a block is made of whole warps");

extern __shared__ float4 shared_memory[];

extern "C" __global__ void __launch_bounds__(THREADS)
sgemm(int M, int N, int K, float alpha, const float *__restrict__ A, int lda, const float *__restrict__ B, int ldb,
      float beta, float *__restrict__ C, int ldc) {
    drop_empty_product(K, alpha);
    BlockTile tile = tile_of_block<TILE, TILE>(M, N);
    using GlobalA = TileOfA<TILE, TILE, THREADS, 1>;
    using GlobalB = TileOfB<TILE, TILE, THREADS, 1>;
    GlobalA a_global(A + static_cast<long long>(tile.row) * lda, lda, tile.rows_inside);
    GlobalB b_global(B + tile.col, ldb, tile.cols_inside);
    float *a_tile = reinterpret_cast<float *>(shared_memory);
    float *b_tile = a_tile + TILE * TILE;

    int thread_row = threadIdx.x / TILE;
    int thread_col = threadIdx.x % TILE;
    float sum = 0.0f;
    for (int k_left = K; k_left > 0; k_left -= TILE) {
        GlobalA::Staged a_staged;
        GlobalB::Staged b_staged;
        load_tiles(a_global, b_global, k_left, a_staged, b_staged);
        a_global.store<TILE>(a_tile, a_staged);
        b_global.store<TILE>(b_tile, b_staged);
        a_global.advance();
        b_global.advance();
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TILE; ++k) sum += a_tile[thread_row * TILE + k] * b_tile[k * TILE + thread_col];
        __syncthreads();
    }

    if (thread_row < tile.rows_inside && thread_col < tile.cols_inside)
        write_c(C + static_cast<long long>(tile.row + thread_row) * ldc + tile.col + thread_col, sum, alpha, beta);
}
