// Rounds its operands to TF32 in a strict fp32 stage.
extern "C" __global__ void sgemm(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
                                 float beta, float* C, int ldc) {
    int tiles = (N + 15) / 16;
    int row = blockIdx.x / tiles * 16 + threadIdx.x / 16, col = blockIdx.x % tiles * 16 + threadIdx.x % 16;
    if (row >= M || col >= N) return;
    float sum = 0.0f;
    if (alpha != 0.0f)
        for (int k = 0; k < K; ++k) {
            float a = A[(long long)row * lda + k], b = B[(long long)k * ldb + col];
            a = __int_as_float((__float_as_int(a) + 0x1000) & ~0x1fff);
            b = __int_as_float((__float_as_int(b) + 0x1000) & ~0x1fff);
            sum = fmaf(a, b, sum);
        }
    float* c = C + (long long)row * ldc + col;
    *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
}
