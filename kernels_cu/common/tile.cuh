// What every rung shares: which tile a block owns, how a tile of A or B gets from global into shared
// memory, how a block's sums become C. Only what is the same on several rungs is here.
//
// Matrices are row-major: element (row, col) of X lies at X[row * ldx + col]. Offsets in global memory
// are 64-bit throughout: 46341 rows of 46341 floats already pass 2^31 elements.
#pragma once

constexpr int WARP = 32;
constexpr int THREADS_PER_BLOCK = 1024;
constexpr int REGISTERS_PER_SM = 65536;
constexpr int REGISTERS_PER_THREAD = 255;
constexpr int VECTOR = 4;                         // floats in the widest load a thread can issue: 16 bytes
constexpr int INT_LIMIT = 0x7fffffff;
constexpr int UNROLL = 8;                         // steps of K in one body of a loop: see there

// True also guards the division: a configuration that has no threads divides nothing.
__device__ constexpr bool divides(int part, int whole) { return part > 0 && whole % part == 0; }

__device__ constexpr int common_divisor(int a, int b) { return b == 0 ? a : common_divisor(b, a % b); }

// `count - 1` first, so that sides near 2^31 do not overflow. count >= 1.
__device__ __forceinline__ int ceil_div(int count, int part) { return (count - 1) / part + 1; }

// How many blocks a kernel without double buffering should share an SM with, given what a thread needs: while
// one block waits for its tiles, another computes. At least 1, also where the configuration is illegal.
__device__ constexpr int blocks_per_sm(int threads, int registers) {
    return threads <= 0 || threads * registers > REGISTERS_PER_SM ? 1 : REGISTERS_PER_SM / (threads * registers);
}

// ------------------------------------------------------------------------------------------------ BLAS

// alpha = 0 and K = 0 both mean C = beta * C, and A and B are then not read: not even where they hold NaN.
__device__ __forceinline__ void drop_empty_product(int &K, float &alpha) {
    if (K == 0) alpha = 0.0f;                     // alpha may be Inf, and Inf * 0 is NaN
    if (alpha == 0.0f) K = 0;
}

// beta = 0 must not read C: what is there may be NaN.
__device__ __forceinline__ void write_c(float *c, float sum, float alpha, float beta) {
    float scaled = alpha * sum;
    *c = beta == 0.0f ? scaled : scaled + beta * *c;
}

__device__ __forceinline__ float2 pack(const float (&v)[2]) { return make_float2(v[0], v[1]); }
__device__ __forceinline__ float4 pack(const float (&v)[4]) { return make_float4(v[0], v[1], v[2], v[3]); }
__device__ __forceinline__ void unpack(float2 v, float *to) { to[0] = v.x, to[1] = v.y; }
__device__ __forceinline__ void unpack(float4 v, float *to) { to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w; }

// Whether rows that start at `start`, `ld` floats apart, all start on a boundary of COUNT floats.
template <int COUNT>
__device__ __forceinline__ bool rows_are_aligned(const float *start, int ld) {
    return reinterpret_cast<unsigned long long>(start) % (COUNT * sizeof(float)) == 0 && ld % COUNT == 0;
}

// COUNT neighbours of one row of C, of which the first `inside` exist. One wide store where C allows it.
template <int COUNT>
__device__ __forceinline__ void write_c_vector(float *c, const float (&sum)[COUNT], int inside, bool aligned,
                                               float alpha, float beta) {
    if (aligned && inside >= COUNT) {
        using Vector = decltype(pack(sum));
        float out[COUNT];
        if (beta == 0.0f) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) out[i] = alpha * sum[i];
        } else {
            unpack(*reinterpret_cast<const Vector *>(c), out);
#pragma unroll
            for (int i = 0; i < COUNT; ++i) out[i] = alpha * sum[i] + beta * out[i];
        }
        *reinterpret_cast<Vector *>(c) = pack(out);
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (i < inside) write_c(c + i, sum[i], alpha, beta);
    }
}

// ------------------------------------------------------------------------------------- grid -> block tile

struct BlockTile {
    int row, col;                                 // of its first element in C
    int rows_inside, cols_inside;                 // how much of it lies in C, at least 1
};

// Blocks that run at the same time should share rows of A and columns of B in the L2. Row after row of
// tiles, 132 blocks of 128 x 128 would sweep the whole of B for 4 tile rows of C; in groups of 8 tile
// rows walked column by column they touch 8 tile rows of A and 17 tile columns of B.
//
//      tile columns ->
//      0  8 16 ...      one group of 8 tile rows; the number is that of the tile, by default blockIdx.x
//      1  9 17 ...
//      :  :  :
//      7 15 23 ...
template <int BM, int BN>
__device__ __forceinline__ BlockTile tile_of_block(int M, int N, unsigned number = blockIdx.x,
                                                  int rows_of_group = 8) {
    int tile_rows = ceil_div(M, BM);
    int tile_cols = ceil_div(N, BN);
    unsigned blocks_per_group = static_cast<unsigned>(rows_of_group) * tile_cols;
    int group = number / blocks_per_group;
    int place = number % blocks_per_group;
    int first_row = group * rows_of_group;
    int rows_in_group = min(rows_of_group, tile_rows - first_row);
    BlockTile tile;
    tile.row = (first_row + place % rows_in_group) * BM;
    tile.col = place / rows_in_group * BN;
    tile.rows_inside = min(BM, M - tile.row);
    tile.cols_inside = min(BN, N - tile.col);
    return tile;
}

// ------------------------------------------------------------------- global memory -> registers -> shared

// Which way K runs in a tile as it lies in memory: along the rows' elements (A: BM rows of BK floats) or
// from row to row (B: BK rows of BN floats).
enum class KRuns { along_row, across_rows };

// One block's window on A or B: ROWS x COLS floats, COLS contiguous, that slides along K. The block's
// threads read it in PASSES, each thread WIDTH neighbouring floats a pass:
//
//             COLS / WIDTH threads
//           +---------------------+
//           | t0  t1  t2  t3      |  ROW_STEP rows a pass
//           | t4  t5  ...         |
//           +---------------------+
//           | second pass         |
//           +---------------------+
//
// The two sides of a window end differently. Along K the sum ends, so what lies beyond must count as
// zero (in A and B alike: 0 * 0, never 0 * Inf). Along the other side C ends, so what lies beyond only
// reaches sums that nobody writes: there the last row or vector inside is simply read again, and edge
// blocks run as fast as inner ones. Nothing outside the matrix is ever read.
template <int ROWS, int COLS, KRuns K_RUNS, int THREADS, int WIDTH>
struct GlobalTile {
    static constexpr int THREADS_PER_ROW = COLS / WIDTH;
    static constexpr int ROW_STEP = THREADS / THREADS_PER_ROW;
    static constexpr int PASSES = ROWS / ROW_STEP;
    static constexpr bool ACROSS = K_RUNS == KRuns::across_rows;
    static constexpr int DEPTH = ACROSS ? ROWS : COLS;
    using Staged = float[PASSES][WIDTH];

    const float *from[PASSES];                    // what this thread reads first in each pass
    long long step;                               // from one window to the next, in floats
    int row, col;                                 // this thread's first element in the window
    int inside;                                   // rows (K along rows) or columns that lie in the matrix
    int checks_to;                                // loads need no checks while more entries of K are left

    // `start` is the window's first element at k = 0.
    __device__ __forceinline__ GlobalTile(const float *start, int ld, int inside_)
        : step(ACROSS ? static_cast<long long>(ROWS) * ld : COLS), row(threadIdx.x / THREADS_PER_ROW),
          col(threadIdx.x % THREADS_PER_ROW * WIDTH), inside(inside_) {
        bool whole = rows_are_aligned<WIDTH>(start, ld) && (!ACROSS || inside % WIDTH == 0);
        checks_to = whole ? DEPTH - 1 : INT_LIMIT;
        int read_col = ACROSS && whole ? min(col, inside - WIDTH) : col;
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            int read_row = ACROSS ? row + pass * ROW_STEP : min(row + pass * ROW_STEP, inside - 1);
            from[pass] = start + static_cast<long long>(read_row) * ld + read_col;
        }
    }

    // The elements that this thread copies, of a window that has them all.
    __device__ __forceinline__ void load_whole(Staged &staged) const {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            if constexpr (WIDTH == VECTOR) {
                unpack(*reinterpret_cast<const float4 *>(from[pass]), staged[pass]);
            } else {
#pragma unroll
                for (int i = 0; i < WIDTH; ++i) staged[pass][i] = from[pass][i];
            }
        }
    }

    // The same where `k_left` entries of K are left (may be <= 0), or rows are not aligned: one float at a time.
    __device__ __forceinline__ void load_checked(int k_left, Staged &staged) const {
        int left_in_row = ACROSS ? inside - col : k_left - col;  // from this thread's first column on
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            bool row_left = !ACROSS || row + pass * ROW_STEP < k_left;
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) staged[pass][i] = row_left && i < left_in_row ? from[pass][i] : 0.0f;
        }
    }

    // Slide the window to the next DEPTH entries of K.
    __device__ __forceinline__ void advance() {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) from[pass] += step;
    }

    // Into shared memory as it lies in global memory, rows STRIDE floats apart.
    template <int STRIDE>
    __device__ __forceinline__ void store(float *tile, const Staged &staged) const {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            float *to = tile + (row + pass * ROW_STEP) * STRIDE + col;
            if constexpr (WIDTH == VECTOR) {
                *reinterpret_cast<float4 *>(to) = pack(staged[pass]);
            } else {
#pragma unroll
                for (int i = 0; i < WIDTH; ++i) to[i] = staged[pass][i];
            }
        }
    }

    // Into shared memory with rows and columns exchanged, columns STRIDE floats apart.
    template <int STRIDE>
    __device__ __forceinline__ void store_transposed(float *tile, const Staged &staged) const {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass)
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) tile[(col + i) * STRIDE + row + pass * ROW_STEP] = staged[pass][i];
    }
};

template <int BM, int BK, int THREADS, int WIDTH>
using TileOfA = GlobalTile<BM, BK, KRuns::along_row, THREADS, WIDTH>;
template <int BK, int BN, int THREADS, int WIDTH>
using TileOfB = GlobalTile<BK, BN, KRuns::across_rows, THREADS, WIDTH>;

// Both tiles into registers. One test for block and step decides, not one per element: the branch never
// diverges. And one for both tiles: with two, ptxas makes the second checked load wait for the first.
template <class GlobalA, class GlobalB>
__device__ __forceinline__ void load_tiles(const GlobalA &a, const GlobalB &b, int k_left,
                                           typename GlobalA::Staged &a_staged, typename GlobalB::Staged &b_staged) {
    if (k_left > max(a.checks_to, b.checks_to)) {
        a.load_whole(a_staged);
        b.load_whole(b_staged);
    } else {
        a.load_checked(k_left, a_staged);
        b.load_checked(k_left, b_staged);
    }
}

// --------------------------------------------------------------------------- shared memory -> registers

// One float4 of a fragment, by one LDS.128.
__device__ __forceinline__ void load_vector(float *fragment, const float *shared) {
    unpack(*reinterpret_cast<const float4 *>(shared), fragment);
}

// sums += a b^T, in an order that ptxas largely keeps. An FFMA reads three registers from two banks; an
// operand that it shares with the FFMA before comes from the reuse cache instead. Walking back and forth
// (serpentine) also keeps an operand at the turns.
//
// PACKED: two FFMAs, of neighbouring columns, by one instruction (FFMA2). Its pairs are aligned registers, as a float4
// brings b[n] and b[n + 1] anyway: one of each bank. With one operand from the reuse cache that makes the 2 cycles that
// the FFMA units need. a[m] serves both halves as it stands: there is nothing to move.
enum : int { ROW_BY_ROW = 0, SERPENTINE_ROWS = 1, SERPENTINE_COLUMNS = 2 };

// sums[0] += a * b[0] and sums[1] += a * b[1], each rounded as an FFMA. Before sm_100, PTX has none for both.
__device__ __forceinline__ void add_products(float *sums, float a, const float *b) {
#if __CUDA_ARCH__ >= 1000
    asm("{\n\t.reg .b64 pair, left, right;\n\tmov.b64 pair, {%0, %1};\n\tmov.b64 left, {%2, %2};\n\t"
        "mov.b64 right, {%3, %4};\n\tfma.rn.f32x2 pair, left, right, pair;\n\tmov.b64 {%0, %1}, pair;\n\t}"
        : "+f"(sums[0]), "+f"(sums[1]) : "f"(a), "f"(b[0]), "f"(b[1]));
#else
    sums[0] += a * b[0];
    sums[1] += a * b[1];
#endif
}

template <int ORDER, int PACKED = 0, int TM, int TN>
__device__ __forceinline__ void outer_product(float (&sums)[TM][TN], const float (&a)[TM], const float (&b)[TN]) {
    constexpr int COLS = PACKED ? 2 : 1;          // at a time
    auto multiply = [&](int m, int n) {
        if constexpr (PACKED)
            add_products(&sums[m][n], a[m], &b[n]);
        else
            sums[m][n] += a[m] * b[n];
    };
    if constexpr (ORDER == SERPENTINE_COLUMNS) {
#pragma unroll
        for (int n = 0; n < TN; n += COLS)
#pragma unroll
            for (int i = 0; i < TM; ++i) multiply(n / COLS % 2 ? TM - 1 - i : i, n);
    } else {
#pragma unroll
        for (int m = 0; m < TM; ++m)
#pragma unroll
            for (int i = 0; i < TN; i += COLS) multiply(m, ORDER == SERPENTINE_ROWS && m % 2 ? TN - COLS - i : i);
    }
}

// ------------------------------------------------------------------------------------------ registers -> C

// Writes a thread's sums, whatever C and beta: row m of them is row row_of(m) of the block tile, and columns n to
// n + 3 begin at column col_of(n). One body serves all rows, and the rows move up below it: code that is as long as
// the sums are many takes longer to compile than the product. The sums are spent then.
template <class RowOf, class ColOf, int TM, int TN>
__device__ __forceinline__ void write_row_by_row(float (&sums)[TM][TN], RowOf row_of, ColOf col_of, float *C, int ldc,
                                                 const BlockTile &tile, float alpha, float beta) {
    float *c_tile = C + static_cast<long long>(tile.row) * ldc + tile.col;
    bool aligned = rows_are_aligned<VECTOR>(c_tile, ldc);
#pragma unroll 1
    for (int m = 0; m < TM; ++m) {
        float *c_row = c_tile + static_cast<long long>(row_of(m)) * ldc;
        if (row_of(m) < tile.rows_inside) {
#pragma unroll
            for (int n = 0; n < TN; n += VECTOR) {
                float sum[VECTOR] = {sums[0][n], sums[0][n + 1], sums[0][n + 2], sums[0][n + 3]};
                write_c_vector(c_row + col_of(n), sum, tile.cols_inside - col_of(n), aligned, alpha, beta);
            }
        }
#pragma unroll
        for (int up = 1; up < TM; ++up)
#pragma unroll
            for (int n = 0; n < TN; ++n) sums[up - 1][n] = sums[up][n];
    }
}

// Overwrites C by whole float4s, all at once. Rows of C are aligned, and no vector ends outside.
template <class RowOf, class ColOf, int TM, int TN>
__device__ __forceinline__ void overwrite_vectors(const float (&sums)[TM][TN], RowOf row_of, ColOf col_of, float *C,
                                                  int ldc, const BlockTile &tile, float alpha) {
    // Nothing but the store depends on what is inside, so that it becomes a predicate instead of a branch around each
    // float4.
    float *c_tile = C + static_cast<long long>(tile.row) * ldc + tile.col + col_of(0);
#pragma unroll
    for (int m = 0; m < TM; ++m) {
        float *c_row = c_tile + static_cast<long long>(row_of(m)) * ldc;
#pragma unroll
        for (int n = 0; n < TN; n += VECTOR) {
            float4 out = make_float4(alpha * sums[m][n], alpha * sums[m][n + 1], alpha * sums[m][n + 2],
                                     alpha * sums[m][n + 3]);
            if (row_of(m) < tile.rows_inside && col_of(n) < tile.cols_inside)
                *reinterpret_cast<float4 *>(c_row + (col_of(n) - col_of(0))) = out;
        }
    }
}

// Whatever C and beta; whole float4s that overwrite C are written all at once.
template <class RowOf, class ColOf, int TM, int TN>
__device__ __forceinline__ void write_sums(float (&sums)[TM][TN], RowOf row_of, ColOf col_of, float *C, int ldc,
                                           const BlockTile &tile, float alpha, float beta) {
    float *c_tile = C + static_cast<long long>(tile.row) * ldc + tile.col;
    if (rows_are_aligned<VECTOR>(c_tile, ldc) && tile.cols_inside % VECTOR == 0 && beta == 0.0f)
        overwrite_vectors(sums, row_of, col_of, C, ldc, tile, alpha);
    else
        write_row_by_row(sums, row_of, col_of, C, ldc, tile, alpha, beta);
}

// ---------------------------------------------------------------------------- block -> warp -> lane patch

// Which of a warp's LANES_M x LANES_N patches a lane has, counted row by row.
template <int LANES_N>
struct InOrder {
    static __device__ __forceinline__ int place(int lane) { return lane; }
};

// The same, but lanes that differ in their last bit or the one before it do not all read the same of A, nor of B.
// Where they do, the hardware answers an LDS.128 in two steps instead of four, and the registers that are then written
// twice as fast hold up FFMAs (docs/fp32.md, 23). Pairs of lanes, four apart, still write 32 bytes of one row of C.
//
//   LANES_N = 8    l0  l4  l1  l5  l2  l6  l11 l15        one row of lanes, and below it the next:
//                  l8  l12 l9  l13 l10 l14 l3  l7         the last of each four has changed rows
template <int LANES_N>
struct Apart {
    static __device__ __forceinline__ int place(int lane) {
        if (LANES_N < 4) return lane;             // too few columns: rows would have to change with them
        int m = lane / LANES_N ^ (lane % 4 == 3);
        int n = LANES_N < 8 ? lane % LANES_N : lane % LANES_N / 8 * 8 + lane % 4 * 2 + lane / 4 % 2;
        return m * LANES_N + n;
    }
};

// A lane's part of the block tile: TM x TN sums, cut into pieces of 4 x 4 that lie 4 * LANES_M rows and
// 4 * LANES_N columns apart, so that neighbouring lanes hold neighbouring float4s (picture in 06).
template <int WM, int WN, int TM, int TN, int LANES_M, int WARPS_N, template <int> class Lanes = InOrder>
struct LanePatch {
    static constexpr int LANES_N = WARP / LANES_M;
    static constexpr int ROW_STEP = VECTOR * LANES_M;
    static constexpr int COL_STEP = VECTOR * LANES_N;

    int row, col;                                 // of the patch's first element in the block tile

    __device__ __forceinline__ explicit LanePatch(unsigned thread = threadIdx.x) {
        int warp = thread / WARP;
        int lane = thread % WARP;
        row = warp / WARPS_N * WM + lane_row(lane) * VECTOR;
        col = warp % WARPS_N * WN + lane_col(lane) * VECTOR;
    }

    // Where a lane stands among its warp's.
    static __device__ __forceinline__ int place(int lane) { return Lanes<LANES_N>::place(lane); }
    static __device__ __forceinline__ int lane_row(int lane) { return place(lane) / LANES_N; }
    static __device__ __forceinline__ int lane_col(int lane) { return place(lane) % LANES_N; }

    // One step of K, from this lane's first float in that row of the transposed A tile, or of the B tile.
    static __device__ __forceinline__ void load_a(float (&a)[TM], const float *from) {
#pragma unroll
        for (int m = 0; m < TM; m += VECTOR) load_vector(a + m, from + m / VECTOR * ROW_STEP);
    }
    static __device__ __forceinline__ void load_b(float (&b)[TN], const float *from) {
#pragma unroll
        for (int n = 0; n < TN; n += VECTOR) load_vector(b + n, from + n / VECTOR * COL_STEP);
    }

    __device__ __forceinline__ void write(float (&sums)[TM][TN], float *C, int ldc, const BlockTile &tile, float alpha,
                                          float beta) const {
        write_sums(
            sums, [&](int m) { return c_row(m); }, [&](int n) { return c_col(n); }, C, ldc, tile, alpha, beta);
    }

    __device__ __forceinline__ void overwrite(const float (&sums)[TM][TN], float *C, int ldc, const BlockTile &tile,
                                              float alpha) const {
        overwrite_vectors(
            sums, [&](int m) { return c_row(m); }, [&](int n) { return c_col(n); }, C, ldc, tile, alpha);
    }

    // Where the sums of row m and of column n (and 3 more) lie in the block tile.
    __device__ __forceinline__ int c_row(int m) const { return row + m / VECTOR * ROW_STEP + m % VECTOR; }
    __device__ __forceinline__ int c_col(int n) const { return col + n / VECTOR * COL_STEP; }
};
