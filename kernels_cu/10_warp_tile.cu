// 10 warp_tile: as many blocks as the GPU wants, whatever the tiles: a tile's K is split among a cluster.
//
// Since 09: SPLIT_K blocks share one tile of C, each sums its share of K, and a cluster's blocks can read each
// other's shared memory (distributed shared memory), so the partial sums meet on the chip: no workspace, no second
// kernel, no atomics, and always the same order of additions. What that fills:
//   - small sizes: 512 x 512 has 32 tiles of 64 x 128 for 132 SMs; split by 4 it has 128 blocks;
//   - the last wave: 3072 x 3072 has 288 tiles of 128 x 256: 2.2 waves that take 3 (0.73 of the SMs busy); split
//     by 4 they are 1152 shorter blocks: 8.7 waves that take 9 (0.97).
// It costs an exchange of the tile's sums, BM * BN floats written to shared memory and read once.
// Tiles go down to 32 x 32, and the width of the raster's groups (tile_of_block) is a tunable, GROUP: no define, but an
// argument of the launch, so that configurations which differ in nothing else share a cubin. With PACKED, an
// instruction makes two FFMAs: no more of them per clock, but half the issue slots are left to loads and copies.
//
//   cluster of SPLIT_K = 2      K ->                  shared memory of each             C
//   block 0: tiles of K    [0 1 2 . . .]   sums   ->  +-------+ partial 0   rank 0  ->  +-------+ upper rows
//   block 1:               [. . . 3 4 5]   sums   ->  +-------+ partial 1   rank 1  ->  +-------+ lower rows
//                                              cluster barrier: each rank reads its rows from all, in order
//
// Block, warp and lane are as in 06, the loop is that of 09.
//
// Precision: fp32 (FFMA, summed in the order of K; with SPLIT_K > 1 share by share, then the shares in order).
// Architectures: sm_80 and newer; SPLIT_K > 1 needs clusters: sm_90 and newer; PACKED needs FFMA2: sm_100 and sm_103.
#include "common/async_tile.cuh"

constexpr int BM = TUNE_BM;                       // rows of C per block
constexpr int BN = TUNE_BN;                       // columns of C per block
constexpr int BK = TUNE_BK;                       // depth of a tile
constexpr int TM = TUNE_TM;                       // rows of C per thread
constexpr int TN = TUNE_TN;                       // columns of C per thread
constexpr int LANES_M = TUNE_LANES_M;             // rows of lanes in a warp
constexpr int STAGES = TUNE_STAGES;               // buffers of the ring
constexpr int MIN_BLOCKS = TUNE_MIN_BLOCKS;       // blocks per SM that the registers must allow
constexpr int SPLIT_K = TUNE_SPLIT_K;             // blocks that share a tile
constexpr int PACKED = TUNE_PACKED;               // whether an instruction makes two FFMAs: see outer_product
constexpr int LANES_N = WARP / LANES_M;
constexpr int WM = LANES_M * TM;                  // rows of C per warp
constexpr int WN = LANES_N * TN;                  // columns of C per warp
constexpr int WARPS_N = BN / WN;
constexpr int THREADS = (BM / WM) * WARPS_N * WARP;
constexpr int REGISTERS = async_registers(BM, BN, BK, TM, TN, THREADS);
constexpr int AHEAD = (STAGES - 1) * BK;          // entries of K on their way

static_assert(THREADS <= THREADS_PER_BLOCK, "a block has at most 1024 threads");
static_assert(THREADS % WARP == 0, "a block is made of whole warps");
static_assert(divides(WM, BM), "a block tile is made of whole rows of warp tiles: WM must divide BM");
static_assert(divides(WN, BN), "a block tile is made of whole columns of warp tiles: WN must divide BN");
static_assert(WM <= 4 * WN && WN <= 4 * WM,
              "a warp tile more than 4 times as long as wide reads too many fragments for its sums");
static_assert(MIN_BLOCKS * THREADS >= 128 && MIN_BLOCKS * THREADS <= 512,
              "MIN_BLOCKS blocks must give each of the SM's 4 schedulers 1 to 4 warps");
static_assert(divides(THREADS, A_LANES * BM), "the A tile must be copied in whole passes of 8 floats of each row");
static_assert(divides(VECTOR * THREADS, BK * BN), "the B tile must be copied in whole passes of one float4 per thread");
static_assert(AHEAD >= 16 && AHEAD <= 48,
              "16 to 48 entries of K must be on their way: fewer hide no latency, more only take shared memory");
static_assert(REGISTERS <= REGISTERS_PER_THREAD,
              "a thread's sums, two pairs of fragments and addresses must fit its 255 registers");
static_assert(MIN_BLOCKS * THREADS * REGISTERS <= REGISTERS_PER_SM,
              "the registers of MIN_BLOCKS blocks must fit the SM's 65536");
static_assert(TM * TN >= 64 || BM * BN <= 64 * 64,
              "fewer than 64 sums per thread need a float4 for 8 or 11 FFMAs: only for tiles of up to 64 x 64");

extern __shared__ float4 shared_memory[];

constexpr int PIECES_N = TN / VECTOR;             // a patch is cut into pieces of 4 x 4 (picture in 06)
constexpr int PIECES = TM / VECTOR * PIECES_N;
constexpr int COLUMNS = SPLIT_K > 4 ? 2 : 4;      // of a piece whose partial sums are loaded at once: 64 registers

// Adds up the cluster's partial sums and writes C: block `rank` the pieces rank, rank + SPLIT_K, ... of each patch.
// Partial sums lie in shared memory as float4s in the order of threads: no conflicts, and a thread reads what the
// same thread of the other blocks wrote. A float4 has 4 rows of a column, neighbours exchanged: so place_sums has
// put them into registers.
template <class Patch>
__device__ __forceinline__ void write_reduced(const Patch &patch, const float (&sums)[TM][TN], int rank,
                                              float4 *partial, float *C, int ldc, const BlockTile &tile, float alpha,
                                              float beta) {
    partial += threadIdx.x;
    __syncthreads();                              // the ring is still being read, if only beyond its last tile
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece)
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) {
            int m = piece / PIECES_N * VECTOR;
            int n = piece % PIECES_N * VECTOR + i;
            partial[(piece * VECTOR + i) * THREADS] =
                make_float4(sums[m + 1][n], sums[m][n], sums[m + 3][n], sums[m + 2][n]);
        }
    sync_cluster();

    float *c_tile = C + static_cast<long long>(tile.row) * ldc + tile.col;
    bool vectors = rows_are_aligned<VECTOR>(c_tile, ldc) && tile.cols_inside % VECTOR == 0;
    Exchange<Patch> exchange(patch);
    for (int piece = rank; piece < PIECES; piece += SPLIT_K) {
        float sum[VECTOR][VECTOR];                // of the piece, row by row
#pragma unroll
        for (int first = 0; first < VECTOR; first += COLUMNS) {
            float4 from_block[SPLIT_K][COLUMNS];  // all on their way before the first is used
#pragma unroll
            for (int block = 0; block < SPLIT_K; ++block)
#pragma unroll
                for (int i = 0; i < COLUMNS; ++i)
                    from_block[block][i] = load_of_block(partial + (piece * VECTOR + first + i) * THREADS, block);
#pragma unroll
            for (int i = 0; i < COLUMNS; ++i) {
                float4 column = from_block[0][i];
#pragma unroll
                for (int block = 1; block < SPLIT_K; ++block) {
                    float4 more = from_block[block][i];
                    column.x += more.x, column.y += more.y, column.z += more.z, column.w += more.w;
                }
                int n = first + i;
                sum[1][n] = column.x, sum[0][n] = column.y, sum[3][n] = column.z, sum[2][n] = column.w;
            }
        }
        int down = piece / PIECES_N * Patch::ROW_STEP;
        int right = piece % PIECES_N * Patch::COL_STEP;
        if (vectors) {
#pragma unroll
            for (int m = 0; m < VECTOR; ++m)
                if (patch.row + down + m < tile.rows_inside && patch.col + right < tile.cols_inside)
                    write_c_vector(c_tile + static_cast<long long>(patch.row + down + m) * ldc + patch.col + right,
                                   sum[m], VECTOR, true, alpha, beta);
        } else {
            // Exchanged where this thread's partial sums of the piece were: no other thread of the cluster reads those.
            float4 *rows = partial + piece * VECTOR * THREADS;
#pragma unroll
            for (int m = 0; m < VECTOR; ++m) rows[m * THREADS] = pack(sum[m]);
            __syncwarp();
            const float *taken = reinterpret_cast<const float *>(rows - exchange.lane) + exchange.lane;
            float out[VECTOR][VECTOR];            // the i-th float of each of 4 rows
#pragma unroll
            for (int i = 0; i < VECTOR; ++i)
#pragma unroll
                for (int m = 0; m < VECTOR; ++m) out[i][m] = alpha * taken[m * THREADS * VECTOR + i * WARP];
            int row = exchange.row + down;
            int col = exchange.col + right;
            exchange.template write<1, 0>(out, c_tile + static_cast<long long>(row) * ldc + col, ldc,
                                          tile.rows_inside - row, tile.cols_inside - col, beta);
        }
    }
    sync_cluster();                               // a block that has ended has no shared memory to read
}

extern "C" __global__ void CLUSTER_OF(SPLIT_K) __launch_bounds__(THREADS, MIN_BLOCKS)
sgemm(int M, int N, int K, float alpha, const float *__restrict__ A, int lda, const float *__restrict__ B, int ldb,
      float beta, float *__restrict__ C, int ldc, int group) {
    drop_empty_product(K, alpha);
    BlockTile tile = tile_of_block<BM, BN>(M, N, blockIdx.x / SPLIT_K, group);
    int rank = blockIdx.x % SPLIT_K;              // in the cluster
    int k_begin = 0;                              // of this rank's share of K, in whole tiles
    if constexpr (SPLIT_K > 1) {
        int tiles = K == 0 ? 0 : ceil_div(K, BK);
        int share = tiles / SPLIT_K + (rank < tiles % SPLIT_K);
        k_begin = (tiles / SPLIT_K * rank + min(rank, tiles % SPLIT_K)) * BK;
        K = share == 0 ? 0 : min(share * BK, K - k_begin);
    }
    LanePatch<WM, WN, TM, TN, LANES_M, WARPS_N> patch;
    float *ring = reinterpret_cast<float *>(shared_memory);
    float sums[TM][TN] = {};
    multiply_async<BM, BN, BK, STAGES, THREADS, SERPENTINE_COLUMNS, PACKED>(
        sums, patch, ring, K, A + static_cast<long long>(tile.row) * lda + k_begin, lda, tile.rows_inside,
        B + static_cast<long long>(k_begin) * ldb + tile.col, ldb, tile.cols_inside);
    if constexpr (SPLIT_K > 1)
        write_reduced(patch, sums, rank, shared_memory, C, ldc, tile, alpha, beta);
    else
        write_async(sums, patch, ring, C, ldc, tile, alpha, beta);
}
