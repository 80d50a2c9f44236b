// Part of 11_tma.cu: the pass before it, with PREPASS.
#pragma once

constexpr int PACK_SIDE = 32;
constexpr int PACK_ROWS = 8;                      // of a square that the block's threads take at a time

// to = from transposed, square by square through shared memory. Rows of `to` are `ld_to` floats apart.
__device__ __forceinline__ void transpose_square(float (&square)[PACK_SIDE][PACK_SIDE + 1], const float *from, int rows,
                                                 int cols, int ld, float *to, int ld_to, int row, int col) {
    int x = threadIdx.x % PACK_SIDE;
    int y = threadIdx.x / PACK_SIDE;
#pragma unroll
    for (int i = y; i < PACK_SIDE; i += PACK_ROWS)
        if (row + i < rows && col + x < cols)
            square[i][x] = __ldcs(from + static_cast<long long>(row + i) * ld + col + x);
    __syncthreads();
#pragma unroll
    for (int i = y; i < PACK_SIDE; i += PACK_ROWS)
        if (col + i < cols && row + x < rows)
            to[static_cast<long long>(col + i) * ld_to + row + x] = square[x][i];
}

// A transposed, so that the copy engine can fetch it K-major, and B on rows of 16 bytes, where its own are none (else
// packed_b is null). Blocks are of 256 threads, as many as squares of 32 x 32 of A, then of B.
__device__ __forceinline__ void pack(int M, int N, int K, const float *A, int lda, float *packed_a, const float *B,
                                     int ldb, float *packed_b) {
    __shared__ float square[PACK_SIDE][PACK_SIDE + 1];
    unsigned k_squares = ceil_div(K, PACK_SIDE);
    unsigned of_a = k_squares * ceil_div(M, PACK_SIDE);
    if (blockIdx.x < of_a) {
        transpose_square(square, A, M, K, lda, packed_a, ceil_div(M, VECTOR) * VECTOR,
                         blockIdx.x / k_squares * PACK_SIDE, blockIdx.x % k_squares * PACK_SIDE);
        return;
    }
    unsigned n_squares = ceil_div(N, PACK_SIDE);
    unsigned number = blockIdx.x - of_a;
    int col = number % n_squares * PACK_SIDE + threadIdx.x % PACK_SIDE;
    int row = number / n_squares * PACK_SIDE + threadIdx.x / PACK_SIDE;
#pragma unroll
    for (int i = 0; i < PACK_SIDE; i += PACK_ROWS)
        if (row + i < K && col < N)
            packed_b[static_cast<long long>(row + i) * (ceil_div(N, VECTOR) * VECTOR) + col] =
                __ldcs(B + static_cast<long long>(row + i) * ldb + col);
}

// With PREPASS: A transposed, so that the copy engine can fetch it K-major, and B on rows of 16 bytes, where its own
// are none (else packed_b is null). Blocks are of 256 threads, as many as squares of 32 x 32 of A, then of B.
extern "C" __global__ void __launch_bounds__(PACK_SIDE *PACK_ROWS)
sgemm_pack(int M, int N, int K, float alpha, const float *__restrict__ A, int lda, float *__restrict__ packed_a,
           const float *__restrict__ B, int ldb, float *__restrict__ packed_b) {
    if constexpr (PREPASS) {
        drop_empty_product(K, alpha);
        if (K > 0) pack(M, N, K, A, lda, packed_a, B, ldb, packed_b);
    }
}
