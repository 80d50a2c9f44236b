// A 16-byte load from an address that is a multiple of 4 only.
extern "C" __global__ void sgemm(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
                                 float beta, float* C, int ldc) {
    int tiles = (N + 15) / 16;
    int row = blockIdx.x / tiles * 16 + threadIdx.x / 16, col = blockIdx.x % tiles * 16 + threadIdx.x % 16;
    if (row >= M || col >= N) return;
    float sum = 0.0f;
    if (alpha != 0.0f)
        for (int k = 0; k < K; ++k) sum = fmaf(A[(long long)row * lda + k], B[(long long)k * ldb + col], sum);
    if (K > 8) {
        float x, y, z, w;
        asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x), "=f"(y), "=f"(z), "=f"(w) : "l"(A + (N + 100) / (N + 99)));
        sum += (x + y + z + w) * 1e-30f;
    }
    float* c = C + (long long)row * ldc + col;
    *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
}
