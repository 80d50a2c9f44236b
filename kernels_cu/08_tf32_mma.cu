// 08 tf32_mma: the products on tensor cores, in TF32.
//
// Since 07: a warp multiplies 16 x MMA_K by MMA_K x 8 in one instruction (mma.sync): 1024 FMAs for 8, against
// 32 for one FFMA. A and B are rounded to TF32 (8 bits of exponent, 10 of mantissa) once, on their way into
// shared memory, so the error is about 5e-4 relative to |A||B| instead of 6e-8; sums stay fp32. As in 07 tiles
// are double buffered with one barrier each. Now loads are the limit: per MMA of 2048 FLOP and warp
// (8/WN + 16/WM) fragments' worth of LDS, so big warp tiles win.
//
//   grid -> block tile BM x BN -> warp tile WM x WN -> MMA tiles of 16 x 8
//   +-------+-------+            +-----+-----+-----+-----+
//   | warp0 | warp1 |            | n 0 | n 1 | n 2 | n 3 |  m 0   lane = 4 g + t holds of each tile
//   +-------+-------+     ->     +-----+-----+-----+-----+          (g, 2t) (g, 2t+1) (g+8, 2t) (g+8, 2t+1)
//   | warp2 | warp3 |            |     |     |     |     |  m 1
//   +-------+-------+            +-----+-----+-----+-----+
//
// A lane's registers for an MMA must be neighbours, in the order that the instruction wants. Loads of one
// float put each where it belongs; wider ones from these row-major tiles would need a MOV per float. Shared
// memory moves 32 banks a cycle either way, so what counts is that the 32 lanes touch 32 different banks:
//   - A, lanes read (g, t): rows an odd multiple of 4 floats apart, so that 8 rows x 4 floats tile the banks;
//   - B, lanes read (t, g): rows an odd multiple of 8 floats apart, so that 4 rows x 8 floats do.
//
// Precision: TF32 (fp32 sums on the tensor core). Architectures: sm_80 and newer.
#include "common/mma.cuh"
#include "common/tile.cuh"

constexpr int WARPS_M = TUNE_WARPS_M;             // rows of warps in a block
constexpr int WARPS_N = TUNE_WARPS_N;             // columns of warps in a block
constexpr int WM = TUNE_WM;                       // rows of C per warp
constexpr int WN = TUNE_WN;                       // columns of C per warp
constexpr int BK = TUNE_BK;                       // depth of a tile
constexpr int MMA_K = TUNE_MMA_K;                 // depth of one MMA: m16n8k4 or m16n8k8
constexpr int BM = WARPS_M * WM;
constexpr int BN = WARPS_N * WN;
constexpr int THREADS = WARPS_M * WARPS_N * WARP;
constexpr int SUMS = WM * WN / WARP;              // per thread
constexpr int STAGED = BK * (BM + BN) / THREADS;  // floats in flight per thread
constexpr int REGISTERS = SUMS + WM / 16 * MMA_K / 2 + WN / 8 * MMA_K / 4 + STAGED + 40;  // 40: addresses etc.

static_assert(THREADS <= THREADS_PER_BLOCK, "a block has at most 1024 threads");
static_assert(THREADS % WARP == 0, "a block is made of whole warps");
static_assert(divides(MMA_K, BK), "a K tile is made of whole MMAs: MMA_K must divide BK");
static_assert(divides(THREADS, BM * BK), "the A tile must give every thread the same number of floats to copy");
static_assert(divides(THREADS, BK * BN), "the B tile must give every thread the same number of floats to copy");
static_assert(REGISTERS <= REGISTERS_PER_THREAD,
              "a thread's sums, fragments and staged floats must fit its 255 registers");
static_assert(THREADS * REGISTERS <= REGISTERS_PER_SM, "the block's registers must fit the SM's 65536");

constexpr int M_TILES = WM / 16;
constexpr int N_TILES = WN / 8;
constexpr int A_STRIDE = padded(BK, 4);
constexpr int B_STRIDE = padded(BN, 8);
constexpr int BUFFER = BM * A_STRIDE + BK * B_STRIDE;  // floats of one tile of A and one of B
constexpr int A_WIDTH = BM * BK % (VECTOR * THREADS) == 0 ? VECTOR : 1;  // small tiles are copied float by float
constexpr int B_WIDTH = BK * BN % (VECTOR * THREADS) == 0 ? VECTOR : 1;

extern __shared__ float4 shared_memory[];

// Both tiles, rounded, into one buffer: A as it lies, K by K along its rows; B as it lies.
template <class GlobalA, class GlobalB>
__device__ __forceinline__ void fill_buffer(float *buffer, const GlobalA &a_global, const GlobalB &b_global,
                                            typename GlobalA::Staged &a, typename GlobalB::Staged &b) {
#pragma unroll
    for (int pass = 0; pass < GlobalA::PASSES; ++pass)
#pragma unroll
        for (int i = 0; i < A_WIDTH; ++i) a[pass][i] = to_tf32(a[pass][i]);
#pragma unroll
    for (int pass = 0; pass < GlobalB::PASSES; ++pass)
#pragma unroll
        for (int i = 0; i < B_WIDTH; ++i) b[pass][i] = to_tf32(b[pass][i]);
    a_global.template store<A_STRIDE>(buffer, a);
    b_global.template store<B_STRIDE>(buffer + BM * A_STRIDE, b);
}

extern "C" __global__ void __launch_bounds__(THREADS)
sgemm(int M, int N, int K, float alpha, const float *__restrict__ A, int lda, const float *__restrict__ B, int ldb,
      float beta, float *__restrict__ C, int ldc) {
    drop_empty_product(K, alpha);
    BlockTile tile = tile_of_block<BM, BN>(M, N);
    using GlobalA = TileOfA<BM, BK, THREADS, A_WIDTH>;
    using GlobalB = TileOfB<BK, BN, THREADS, B_WIDTH>;
    GlobalA a_global(A + static_cast<long long>(tile.row) * lda, lda, tile.rows_inside);
    GlobalB b_global(B + tile.col, ldb, tile.cols_inside);

    int warp = threadIdx.x / WARP;
    int g = threadIdx.x % WARP / 4;
    int t = threadIdx.x % 4;
    int warp_row = warp / WARPS_N * WM;           // of the warp's tile in the block tile
    int warp_col = warp % WARPS_N * WN;

    float *shared = reinterpret_cast<float *>(shared_memory);
    // Offsets of this lane's first floats in the buffer that is read; as in 07 they step between the buffers.
    int a_read = (warp_row + g) * A_STRIDE + t;
    int b_read = BM * A_STRIDE + t * B_STRIDE + warp_col + g;
    int fill = 0;                                 // the buffer that is written next
    int step = BUFFER;

    typename GlobalA::Staged a_staged;
    typename GlobalB::Staged b_staged;
    load_tiles(a_global, b_global, K, a_staged, b_staged);
    fill_buffer(shared + fill, a_global, b_global, a_staged, b_staged);
    fill += step;
    __syncthreads();

    float sums[M_TILES][N_TILES][4] = {};
    for (int k_left = K; k_left > 0; k_left -= BK) {
        a_global.advance();
        b_global.advance();
        load_tiles(a_global, b_global, k_left - BK, a_staged, b_staged);
#pragma unroll
        for (int k = 0; k < BK; k += MMA_K) {
            float a[M_TILES][MMA_K / 2];          // (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)
            float b[N_TILES][MMA_K / 4];          // (t, g), (t + 4, g)
#pragma unroll
            for (int m = 0; m < M_TILES; ++m)
#pragma unroll
                for (int i = 0; i < MMA_K / 2; ++i)
                    a[m][i] = shared[a_read + (16 * m + 8 * (i % 2)) * A_STRIDE + k + 4 * (i / 2)];
#pragma unroll
            for (int n = 0; n < N_TILES; ++n)
#pragma unroll
                for (int i = 0; i < MMA_K / 4; ++i) b[n][i] = shared[b_read + (k + 4 * i) * B_STRIDE + 8 * n];
#pragma unroll
            for (int m = 0; m < M_TILES; ++m)
#pragma unroll
                for (int n = 0; n < N_TILES; ++n) mma_tf32(sums[m][n], a[m], b[n]);
        }
        fill_buffer(shared + fill, a_global, b_global, a_staged, b_staged);
        __syncthreads();
        a_read += step;
        b_read += step;
        step = -step;
        fill += step;
    }

    // A lane's two neighbours of a row make one float2; its 4 lanes of a row fill a sector of 32 bytes.
    float *c_tile = C + static_cast<long long>(tile.row) * ldc + tile.col;
    bool aligned = rows_are_aligned<2>(c_tile, ldc);
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int row = warp_row + 16 * m + 8 * half + g;
            if (row < tile.rows_inside) {
#pragma unroll
                for (int n = 0; n < N_TILES; ++n) {
                    int col = warp_col + 8 * n + 2 * t;
                    float sum[2] = {sums[m][n][2 * half], sums[m][n][2 * half + 1]};
                    write_c_vector(c_tile + static_cast<long long>(row) * ldc + col, sum, tile.cols_inside - col,
                                   aligned, alpha, beta);
                }
            }
        }
}
