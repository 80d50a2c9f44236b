// Holds more sums than a thread has registers: spills to local memory in the inner loop.
extern "C" __global__ void sgemm(int M, int N, int K, float alpha, const float* A, int lda,
                                                 const float* B, int ldb, float beta, float* C, int ldc) {
    int tiles = (N + 15) / 16;
    int row = blockIdx.x / tiles * 16 + threadIdx.x / 16, col = blockIdx.x % tiles * 16 + threadIdx.x % 16;
    if (row >= M || col >= N) return;
    float sum[320] = {};
    for (int k = 0; k < K; ++k)
#pragma unroll
        for (int i = 0; i < 320; ++i) sum[i] = fmaf(A[row * lda + k], B[k * ldb + col], sum[(i + 7) % 320]);
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < 320; ++i) total += sum[i];
    C[row * ldc + col] = alpha * total + beta;
}
