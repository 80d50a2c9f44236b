// Computes from a shared tile of B without waiting for the warps that fill it.
extern "C" __global__ void sgemm(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
                                 float beta, float* C, int ldc) {
    int tiles = (N + 15) / 16;
    int row = blockIdx.x / tiles * 16 + threadIdx.x / 16, col = blockIdx.x % tiles * 16 + threadIdx.x % 16;
    __shared__ float tile[16][16];
    int r = threadIdx.x / 16, l = threadIdx.x % 16;
    float sum = 0.0f;
    if (alpha != 0.0f)
        for (int base = 0; base < K; base += 16) {
            tile[r][l] = base + r < K && col < N ? B[(long long)(base + r) * ldb + col] : 0.0f;
            for (int k = 0; k < 16; ++k)
                if (row < M && base + k < K) sum = fmaf(A[(long long)row * lda + base + k], tile[k][l], sum);
        }
    if (row >= M || col >= N) return;
    float* c = C + (long long)row * ldc + col;
    *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
}
