// Wants more registers for its block than a multiprocessor has: 1024 threads of 255.
extern "C" __global__ void __maxnreg__(128) sgemm(int M, int N, int K, float alpha, const float* A, int lda,
                                                  const float* B, int ldb, float beta, float* C, int ldc) {
    float held[100];
#pragma unroll
    for (int i = 0; i < 100; ++i) held[i] = A[i * (K > 4096)];
    float sum = 0.0f;
    for (int k = 0; k < K; ++k)
#pragma unroll
        for (int i = 0; i < 100; ++i) held[i] = fmaf(held[i], A[k * (K > 4096)], held[(i + 1) % 100]);
#pragma unroll
    for (int i = 0; i < 100; ++i) sum += held[i];
    C[0] = alpha * sum * B[0] * lda * ldb * beta * M * N * ldc;
}
