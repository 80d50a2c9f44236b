// Thousands of distinct unrolled bodies: the compiler needs minutes.
template <int I>
__device__ __forceinline__ float chain(float x, const float* A) {
    float y = x;
#pragma unroll
    for (int i = 0; i < 64; ++i) y = fmaf(y, A[(I * 64 + i) ^ int(y)], __cosf(y) * A[i]);
    if constexpr (I > 0) return chain<I - 1>(y, A) + chain<I - 1>(-y, A);
    return y;
}
extern "C" __global__ void sgemm(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
                                 float beta, float* C, int ldc) {
    C[0] = chain<14>(alpha * B[0], A) + beta * M * N * K * lda * ldb * ldc;
}
