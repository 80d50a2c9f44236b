// Holds more than its register budget: spills to local memory in the inner loop.
extern "C" __global__ void __maxnreg__(24) sgemm(int M, int N, int K, float alpha, const float* A, int lda,
                                                 const float* B, int ldb, float beta, float* C, int ldc) {
    int tiles = (N + 15) / 16;
    int row = blockIdx.x / tiles * 16 + threadIdx.x / 16, col = blockIdx.x % tiles * 16 + threadIdx.x % 16;
    if (row >= M || col >= N) return;
    float sum[48] = {};
    for (int k = 0; k < K; ++k)
#pragma unroll
        for (int i = 0; i < 48; ++i) sum[i] = fmaf(A[row * lda + k], B[k * ldb + col], sum[(i + 7) % 48]);
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < 48; ++i) total += sum[i];
    C[row * ldc + col] = alpha * total + beta;
}
