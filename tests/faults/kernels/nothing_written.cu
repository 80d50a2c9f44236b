// Returns at once.
extern "C" __global__ void sgemm(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
                                 float beta, float* C, int ldc) {
    int tiles = (N + 15) / 16;
    int row = blockIdx.x / tiles * 16 + threadIdx.x / 16, col = blockIdx.x % tiles * 16 + threadIdx.x % 16;
    (void)row; (void)col; (void)A; (void)B;
}
