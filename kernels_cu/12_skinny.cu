// 12 skinny: few rows or few columns of C, where the time is that of reading the large operand once.
//
// With one row, C = A B takes 2 FLOP for each element of B, 4 bytes: on an H200 the FFMA units work for 3 % of the time
// in which B arrives. On the rungs below most of a tile would lie beside C, and one round of the loop waits for the
// next. Here
//   - the large operand goes from global memory into registers, past shared memory and past the L1: each thread has
//     AHEAD float4s of it on their way, and asks for the next ones as soon as some have been multiplied;
//   - the small operand is what shared memory holds, a little at a time, and all threads read it from there;
//   - K is shared out among the lanes and warps of a block, and among blocks, until all SMs are busy.
//
// SIDE 0, few rows: a lane has TN columns of B, LANES lanes lie side by side, everything else is along K.
// SIDE 1, few columns: a lane has 4 entries of K in each of TM rows of A, a warp's lanes lie side by side along K.
//
//   SIDE 0: B      <- N ->                                SIDE 1: A      <- K ->
//              |l0  l1  ..  l7 |                                     |l0  l1  ..  l31|
//       warp 0 |l0  l1  ..  l7 |  DEPTH rows                  warp 0 |l0  l1  ..  l31|  TM rows
//     K        |l8  l9  ..  l15|                            M        |:              |
//              |:              |  LANES = 8: GROUPS = 4       warp 1 |l0  l1  ..  l31|
//       warp 1 |l0  l1  ..  l7 |                                     |:              |
//
//   sums of lanes (shuffles) -> of warps (shared memory) -> of blocks (workspace) -> C
//
// All of these are added in a fixed order. Of the blocks that share a tile the last one to arrive adds up what all of
// them have left in the workspace: nobody waits for anybody.
//
// Precision: fp32 (FFMA; each thread in the order of K, then lanes, warps and blocks).
// Architectures: sm_80 and newer. Launches of one loaded kernel must not overlap (they share the counters).
#include "common/async.cuh"
#include "common/tile.cuh"

enum : int { FEW_ROWS = 0, FEW_COLUMNS = 1 };

constexpr int SIDE = TUNE_SIDE;                   // which side of C is short
constexpr int TM = TUNE_TM;                       // rows of C per thread
constexpr int TN = TUNE_TN;                       // columns of C per thread
constexpr int LANES = TUNE_LANES;                 // of a warp that lie side by side in a row of the large operand
constexpr int WARPS = TUNE_WARPS;                 // of a block
constexpr int AHEAD = TUNE_AHEAD;                 // float4s of the large operand on their way to each thread
constexpr int MIN_BLOCKS = TUNE_MIN_BLOCKS;       // blocks per SM that the registers must allow
constexpr int THREADS = WARPS * WARP;
constexpr int GROUPS = WARP / LANES;              // few rows: parts of a warp, one after the other along K
constexpr int REGISTERS =                         // of a thread: sums, what is on its way, the rest
    TM * TN + AHEAD * VECTOR + 40 + (SIDE == FEW_ROWS ? TM * GROUPS / 2 : 8);
constexpr int BODY = AHEAD * VECTOR * (SIDE == FEW_ROWS ? TM : TN);  // FFMAs in a round of the loop

static_assert(THREADS <= THREADS_PER_BLOCK, "a block has at most 1024 threads");
static_assert(THREADS % WARP == 0, "a block is made of whole warps");
static_assert(SIDE == FEW_COLUMNS || TN == 4 || (TN == 8 && TM >= 8),
              "with few rows a thread has one float4 of columns, or two where there are 8 rows or more");
static_assert(SIDE == FEW_COLUMNS || divides(TN, AHEAD),
              "with few rows, what is on its way is whole rows of B, 4 or a multiple");
static_assert(SIDE == FEW_ROWS || LANES == WARP, "with few columns all lanes of a warp lie side by side");
static_assert(SIDE == FEW_ROWS || AHEAD == TM || AHEAD == 2 * TM || AHEAD == 4 * TM,
              "with few columns 1, 2 or 4 float4s of each of a thread's rows are on their way");
static_assert(SIDE == FEW_ROWS || (TM >= 2 && TM <= 8 && (TM >= 4 || TN < 8)),
              "with few columns a warp has 2 to 8 rows, 4 or 8 where columns are many: fewer read B too often");
static_assert(MIN_BLOCKS * WARPS * AHEAD >= 64 && MIN_BLOCKS * WARPS * AHEAD <= 256,
              "an SM must have 32 to 128 KB on their way: fewer hide no latency, more only take registers");
static_assert(BODY <= 1024,
              "a loop of more than 1024 FFMAs does not fit the instruction caches next to the schedulers");
static_assert(REGISTERS <= REGISTERS_PER_THREAD, "a thread's sums and what is on its way must fit its 255 registers");
static_assert(MIN_BLOCKS * THREADS * REGISTERS <= REGISTERS_PER_SM,
              "the registers of MIN_BLOCKS blocks must fit the SM's 65536");

constexpr int SUMS = TM * TN;
constexpr int ROW_SPAN = WARP * VECTOR;           // few columns: floats of a row of A in one load of a warp
constexpr int DEPTH = divides(TN, AHEAD * VECTOR) ? AHEAD * VECTOR / TN : 1;  // few rows: rows of B on their way
constexpr int WARP_K = GROUPS * DEPTH;            // and entries of K that a warp takes at a time
constexpr int STEPS = divides(TM, AHEAD) ? AHEAD / TM : 1;  // few columns: float4s of each row on their way
constexpr int BM = SIDE == FEW_ROWS ? TM : WARPS * TM;
constexpr int BN = SIDE == FEW_ROWS ? LANES * TN : TN;
constexpr int BK = SIDE == FEW_ROWS ? WARPS * WARP_K : STEPS * ROW_SPAN;
constexpr int UNIT = SIDE == FEW_ROWS ? WARP_K : ROW_SPAN;  // of K, that blocks share out
constexpr unsigned MOST_TILES = 4096;             // that several blocks may share

extern __shared__ float4 shared_memory[];

// How many of the blocks that share a tile have arrived; back at 0 when all have.
__device__ unsigned arrived[MOST_TILES];

// Counts an arrival: whether it is the last of `count`. What came before it here, all see who come after it there.
__device__ __forceinline__ bool arrive_last(unsigned *counter, unsigned count) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before) : "l"(counter), "r"(count - 1) : "memory");
    return before == count - 1;
}

// A float4 that is read once, or zeros where it does not exist: then nothing is read.
__device__ __forceinline__ void stream_vector(float (&v)[VECTOR], const float *from, bool exists) {
    asm("{\n\t.reg .pred exists;\n\tsetp.ne.s32 exists, %5, 0;\n\t"
        "mov.f32 %0, 0f00000000;\n\tmov.f32 %1, 0f00000000;\n\tmov.f32 %2, 0f00000000;\n\tmov.f32 %3, 0f00000000;\n\t"
        "@exists ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];\n\t}"
        : "=&f"(v[0]), "=&f"(v[1]), "=&f"(v[2]), "=&f"(v[3]) : "l"(from), "r"(static_cast<int>(exists)));
}

// One float of rows that are not aligned. Through the L1: the next load reads the rest of the sector.
__device__ __forceinline__ void stream_float(float &v, const float *from, bool exists) {
    asm("{\n\t.reg .pred exists;\n\tsetp.ne.s32 exists, %2, 0;\n\tmov.f32 %0, 0f00000000;\n\t"
        "@exists ld.global.nc.f32 %0, [%1];\n\t}" : "=&f"(v) : "l"(from), "r"(static_cast<int>(exists)));
}

// One float on its way to shared memory, or a zero where it does not exist.
__device__ __forceinline__ void bring_float(float *to, const float *from, bool exists) {
    if (exists)
        copy_float(shared_address(to), from);
    else
        *to = 0.0f;
}

// ---------------------------------------------------------------------------------------- sums -> C

// A block's part of the product and where it goes.
struct Share {
    BlockTile tile;
    int splits;                                   // blocks that share the tile; 1: the sums go to C
    float *partial;                               // BM x BN floats for the sums of each of them, if there are several
    float *c;                                     // the tile's first element
    int ldc;
    float alpha, beta;

    __device__ __forceinline__ bool holds(int element) const {
        return element / BN < tile.rows_inside && element % BN < tile.cols_inside;
    }
    __device__ __forceinline__ void write(int element, float sum) const {
        write_c(c + static_cast<long long>(element / BN) * ldc + element % BN, sum, alpha, beta);
    }
    __device__ __forceinline__ float *partial_of(int split) const {
        return partial + static_cast<long long>(split) * (BM * BN);
    }

    // Elements `first` to `first + COUNT` of the tile are the sums of PARTS rows of shared memory.
    template <int COUNT, int PARTS>
    __device__ __forceinline__ void hand_over(const float *parts, int first, int split) const {
        for (int i = threadIdx.x; i < COUNT; i += THREADS) {
            if (!holds(first + i)) continue;
            float sum = parts[i];
#pragma unroll
            for (int part = 1; part < PARTS; ++part) sum += parts[part * COUNT + i];
            if (splits == 1)
                write(first + i, sum);
            else
                partial_of(split)[first + i] = sum;
        }
    }

    // After the last hand_over. Reads past the L1, which may not know what other SMs have written.
    __device__ __forceinline__ void finish(unsigned number) const {
        if (splits == 1) return;
        __syncthreads();                          // thread 0 speaks for what all have written
        bool last = threadIdx.x == 0 && arrive_last(&arrived[number], splits);
        if (!__syncthreads_or(last)) return;
        for (int i = threadIdx.x; i < BM * BN; i += THREADS) {
            if (!holds(i)) continue;
            float sum = __ldcg(partial + i);
#pragma unroll 8
            for (int split = 1; split < splits; ++split) sum += __ldcg(partial_of(split) + i);
            write(i, sum);
        }
    }
};

// ------------------------------------------------------------------------------------------ few rows

// A warp's part of A: TM rows of WARP_K floats, of which `left` lie in A. Rows beyond A only reach sums that nobody
// writes: what shared memory held before will do.
__device__ __forceinline__ void bring_a(float *to, const float *from, int lda, int rows, int left) {
    int lane = threadIdx.x % WARP;
#pragma unroll 8
    for (int i = lane; i < TM * WARP_K; i += WARP) {
        int row = i / WARP_K;
        int k = i % WARP_K;
        if (row < rows) bring_float(to + i, from + static_cast<long long>(row) * lda + k, k < left);
    }
}

// One row of B. Lanes have whole float4s, neighbours side by side, or, with unaligned rows, every LANES-th float.
template <bool WIDE>
__device__ __forceinline__ void load_row(float (&b)[TN], const float *from, int cols, bool exists) {
    if constexpr (WIDE) {
#pragma unroll
        for (int n = 0; n < TN; n += VECTOR)
            stream_vector(reinterpret_cast<float (&)[VECTOR]>(b[n]), from + n * LANES, exists && n * LANES < cols);
    } else {
#pragma unroll
        for (int n = 0; n < TN; ++n) stream_float(b[n], from + n * LANES, exists && n * LANES < cols);
    }
}

// A and B begin at this block's share of K.
template <bool WIDE>
__device__ __forceinline__ void sum_few_rows(float (&sums)[SUMS], const BlockTile &tile, int K, const float *A, int lda,
                                             const float *B, int ldb) {
    int warp = threadIdx.x / WARP;
    int group = threadIdx.x % WARP / LANES;
    int col = threadIdx.x % LANES * (WIDE ? VECTOR : 1);
    int cols = tile.cols_inside - col;            // from this lane's first on; may be <= 0
    float *ring = reinterpret_cast<float *>(shared_memory) + warp * 2 * TM * WARP_K;
    A += warp * WARP_K;
    const float *from = B + static_cast<long long>(warp * WARP_K + group * DEPTH) * ldb + col;
    long long jump = static_cast<long long>(BK - DEPTH) * ldb;
    int left = K - warp * WARP_K;                 // entries of K from the warp's first on

    float b[DEPTH][TN];
#pragma unroll
    for (int i = 0; i < DEPTH; ++i, from += ldb) load_row<WIDE>(b[i], from, cols, i < left - group * DEPTH);
    from += jump;
    bring_a(ring, A, lda, tile.rows_inside, left);
    close_copies();
#pragma unroll 1
    for (int buffer = 0; left > 0; buffer ^= 1) {
        await_copies<0>();
        __syncwarp();                             // all lanes' copies are there, and the other buffer has been read
        left -= BK;
        A += BK;
        bring_a(ring + (buffer ^ 1) * TM * WARP_K, A, lda, tile.rows_inside, left);
        close_copies();
        const float *a_read = ring + buffer * TM * WARP_K + group * DEPTH;
        int lane_left = left - group * DEPTH;
#pragma unroll
        for (int i = 0; i < DEPTH; i += VECTOR) {
#pragma unroll
            for (int m = 0; m < TM; ++m) {
                if (m >= 8 && m % 8 == 0 && m >= tile.rows_inside) break;
                float a[VECTOR];
                load_vector(a, a_read + m * WARP_K + i);
#pragma unroll
                for (int k = 0; k < VECTOR; ++k)
#pragma unroll
                    for (int n = 0; n < TN; ++n) sums[m * TN + n] += a[k] * b[i + k][n];
            }
#pragma unroll
            for (int k = 0; k < VECTOR; ++k, from += ldb) load_row<WIDE>(b[i + k], from, cols, i + k < lane_left);
        }
        from += jump;
    }
}

constexpr int ROWS_AT_ONCE = TM * BN <= 1024 ? TM : 1024 / BN;  // of the tile, that are added up in shared memory

__device__ __forceinline__ void add_up_few_rows(float (&sums)[SUMS], bool wide, const Share &share, int split) {
    int warp = threadIdx.x / WARP;
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int apart = LANES; apart < WARP; apart *= 2)
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[i] += __shfl_xor_sync(0xffffffff, sums[i], apart);

    float *parts = reinterpret_cast<float *>(shared_memory);
#pragma unroll 1
    for (int first = 0; first < TM; first += ROWS_AT_ONCE) {
        __syncthreads();                          // what was there before is still being read
        if (lane < LANES) {
#pragma unroll
            for (int m = 0; m < ROWS_AT_ONCE; ++m)
#pragma unroll
                for (int n = 0; n < TN; n += VECTOR) {
                    float *to = parts + (warp * ROWS_AT_ONCE + m) * BN + n * LANES;
                    const float *sum = &sums[m * TN + n];
                    if (wide) {
                        *reinterpret_cast<float4 *>(to + lane * VECTOR) = make_float4(sum[0], sum[1], sum[2], sum[3]);
                    } else {
#pragma unroll
                        for (int i = 0; i < VECTOR; ++i) to[lane + i * LANES] = sum[i];
                    }
                }
        }
        __syncthreads();
        share.hand_over<ROWS_AT_ONCE * BN, WARPS>(parts, first * BN, split);
#pragma unroll
        for (int up = ROWS_AT_ONCE * TN; up < SUMS; ++up) sums[up - ROWS_AT_ONCE * TN] = sums[up];
    }
}

// --------------------------------------------------------------------------------------- few columns

// Shared memory holds columns of B, PANEL entries of K of each, twice. Several rounds of the loop are one panel where
// columns are few: fewer barriers.
constexpr int PANEL = TN * BK <= 4096 ? 4096 / (TN * BK) * BK : BK;
constexpr int B_STRIDE = PANEL + VECTOR;          // of columns: the copies of neighbours hit different banks

__device__ __forceinline__ void bring_b(float *to, const float *from, int ldb, int cols, int left) {
#pragma unroll 4
    for (int i = threadIdx.x; i < PANEL * TN; i += THREADS) {
        int k = i / TN;
        int col = i % TN;
        if (col < cols) bring_float(to + col * B_STRIDE + k, from + static_cast<long long>(k) * ldb + col, k < left);
    }
}

// 4 entries of a row of A. A lane's are neighbours, or, where rows are not aligned, 32 apart. `left` lie in A from the
// first one on.
template <bool WIDE>
__device__ __forceinline__ void load_entries(float (&a)[VECTOR], const float *from, int left, bool exists) {
    if constexpr (WIDE) {
        stream_vector(a, from, exists && left > 0);
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) stream_float(a[i], from + i * WARP, exists && left > i * WARP);
    }
}

template <bool WIDE>
__device__ __forceinline__ void sum_few_columns(float (&sums)[SUMS], const BlockTile &tile, int K, const float *A,
                                                int lda, const float *B, int ldb) {
    int row = threadIdx.x / WARP * TM;            // of the warp's first in the tile
    int rows = tile.rows_inside - row;            // from there on; may be <= 0
    int lane_k = threadIdx.x % WARP * (WIDE ? VECTOR : 1);
    float *panels = reinterpret_cast<float *>(shared_memory);
    const float *from = A + static_cast<long long>(row) * lda + lane_k;
    int left = K - lane_k;                        // entries of K from this lane's first on

    float a[STEPS][TM][VECTOR];
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int m = 0; m < TM; ++m)
            load_entries<WIDE>(a[step][m], from + static_cast<long long>(m) * lda + step * ROW_SPAN,
                               left - step * ROW_SPAN, m < rows);
    bring_b(panels, B, ldb, tile.cols_inside, K);
    close_copies();
#pragma unroll 1
    for (int panel = 0, panel_left = K; panel_left > 0; panel ^= 1, panel_left -= PANEL) {
        await_copies<0>();
        __syncthreads();                          // all threads' copies are there, and the other panel has been read
        B += static_cast<long long>(PANEL) * ldb;
        bring_b(panels + (panel ^ 1) * TN * B_STRIDE, B, ldb, tile.cols_inside, panel_left - PANEL);
        close_copies();
        const float *b_read = panels + panel * TN * B_STRIDE + lane_k;
#pragma unroll 1
        for (int k = 0; k < PANEL && k < panel_left; k += BK, b_read += BK) {
            from += BK;
            left -= BK;
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
#pragma unroll
                for (int n = 0; n < TN; ++n) {
                    float b[VECTOR];
                    const float *read = b_read + n * B_STRIDE + step * ROW_SPAN;
                    if constexpr (WIDE) {
                        load_vector(b, read);
                    } else {
#pragma unroll
                        for (int i = 0; i < VECTOR; ++i) b[i] = read[i * WARP];
                    }
#pragma unroll
                    for (int i = 0; i < VECTOR; ++i)
#pragma unroll
                        for (int m = 0; m < TM; ++m) sums[m * TN + n] += a[step][m][i] * b[i];
                }
#pragma unroll
                for (int m = 0; m < TM; ++m)
                    load_entries<WIDE>(a[step][m], from + static_cast<long long>(m) * lda + step * ROW_SPAN,
                                       left - step * ROW_SPAN, m < rows);
            }
        }
    }
}

// Adds up each of the first COUNT values over lanes that are up to APART away. With every exchange a lane keeps half of
// its values and gives the other half away, as long as it has several: 124 shuffles for 128 values, not 640. In the
// end lane l has the sums of the values from l * COUNT / 32 on, in the first places.
template <int COUNT, int APART = WARP / 2>
__device__ __forceinline__ void add_up_lanes(float (&values)[SUMS]) {
    constexpr int KEPT = COUNT > 1 ? COUNT / 2 : 1;
    bool upper = threadIdx.x & APART;
#pragma unroll
    for (int i = 0; i < KEPT; ++i) {
        float given = upper ? values[i] : values[COUNT - KEPT + i];
        float kept = upper ? values[COUNT - KEPT + i] : values[i];
        values[i] = kept + __shfl_xor_sync(0xffffffff, given, APART);
    }
    if constexpr (APART > 1) add_up_lanes<KEPT, APART / 2>(values);
}

__device__ __forceinline__ void add_up_few_columns(float (&sums)[SUMS], const Share &share, int split) {
    constexpr int EACH = SUMS > WARP ? SUMS / WARP : 1;  // sums that a lane ends up with
    int warp = threadIdx.x / WARP;
    int lane = threadIdx.x % WARP;
    add_up_lanes<SUMS>(sums);
    float *parts = reinterpret_cast<float *>(shared_memory);
    __syncthreads();                              // the panels are still being read
    if (lane * SUMS % WARP == 0) {                // where sums are fewer than lanes, several have the same one
#pragma unroll
        for (int i = 0; i < EACH; ++i) parts[warp * SUMS + lane * SUMS / WARP + i] = sums[i];
    }
    __syncthreads();
    share.hand_over<BM * BN, 1>(parts, 0, split);
}

// ---------------------------------------------------------------------------------------- the kernel

// A launch has one block for each tile, or for each tile the same number of blocks that share out K.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
sgemm(int M, int N, int K, float alpha, const float *__restrict__ A, int lda, const float *__restrict__ B, int ldb,
      float beta, float *__restrict__ C, int ldc, float *__restrict__ workspace) {
    drop_empty_product(K, alpha);
    unsigned short_side = SIDE == FEW_ROWS ? ceil_div(M, BM) : ceil_div(N, BN);  // in tiles
    unsigned tiles = short_side * (SIDE == FEW_ROWS ? ceil_div(N, BN) : ceil_div(M, BM));
    int splits = tiles > MOST_TILES ? 1 : gridDim.x / tiles;
    unsigned number = blockIdx.x % tiles;
    int split = blockIdx.x / tiles;
    if (split >= splits) return;

    int units = K == 0 ? 0 : ceil_div(K, UNIT);
    int share_units = units / splits + (split < units % splits);
    int first_unit = units / splits * split + min(split, units % splits);
    long long k_begin = share_units == 0 ? 0 : static_cast<long long>(first_unit) * UNIT;
    int k_count = static_cast<int>(min(static_cast<long long>(share_units) * UNIT, K - k_begin));

    // Tiles that read the same part of the large operand are neighbours: it is in the L2 then.
    Share share;
    share.tile.row = (SIDE == FEW_ROWS ? number % short_side : number / short_side) * BM;
    share.tile.col = (SIDE == FEW_ROWS ? number / short_side : number % short_side) * BN;
    share.tile.rows_inside = min(BM, M - share.tile.row);
    share.tile.cols_inside = min(BN, N - share.tile.col);
    share.splits = splits;
    share.partial = workspace + static_cast<long long>(number) * splits * (BM * BN);
    share.c = C + static_cast<long long>(share.tile.row) * ldc + share.tile.col;
    share.ldc = ldc;
    share.alpha = alpha;
    share.beta = beta;

    float sums[SUMS] = {};
    const float *a = A + static_cast<long long>(share.tile.row) * lda + k_begin;
    const float *b = B + k_begin * ldb + share.tile.col;
    if constexpr (SIDE == FEW_ROWS) {
        bool wide = rows_are_aligned<VECTOR>(B, ldb) && share.tile.cols_inside % VECTOR == 0;
        if (wide)
            sum_few_rows<true>(sums, share.tile, k_count, a, lda, b, ldb);
        else
            sum_few_rows<false>(sums, share.tile, k_count, a, lda, b, ldb);
        add_up_few_rows(sums, wide, share, split);
    } else {
        if (rows_are_aligned<VECTOR>(A, lda) && K % VECTOR == 0)
            sum_few_columns<true>(sums, share.tile, k_count, a, lda, b, ldb);
        else
            sum_few_columns<false>(sums, share.tile, k_count, a, lda, b, ldb);
        add_up_few_columns(sums, share, split);
    }
    share.finish(number);
}
