// Tiles that get from global into shared memory without passing through registers, and the loop over them.
#pragma once
#include "common/async.cuh"
#include "common/tile.cuh"

// How many floats transposed rows of A are longer than BM, a multiple of 32: a warp's copies of 8 entries of
// K x 4 rows then hit 32 different banks (8 K entries 4 banks apart, 4 rows side by side), and rows stay on
// 16 bytes, so that fragments are read as vectors.
constexpr int A_PAD = 4;
constexpr int A_LANES = 8;                        // lanes that share a row of A

// Floats of a buffer of the ring: a tile of A with its padding and one of B.
__device__ constexpr int ring_buffer(int bm, int bn, int bk) { return bk * (bm + A_PAD + bn); }

// What a thread needs: sums, two pairs of fragments, two registers of address for each of its rows of A and B,
// and 28 for the rest.
__device__ constexpr int async_registers(int bm, int bn, int bk, int tm, int tn, int threads) {
    return threads <= 0 ? 0 : tm * tn + 2 * (tm + tn) + 2 * (bm * A_LANES / threads + bk * bn / VECTOR / threads) + 28;
}

constexpr int FLOAT_BYTES = sizeof(float);

// One block's window on A, BM rows of BK floats, that slides along K and lands in shared memory transposed:
// element by element, because asynchronous copies do not rearrange. 8 lanes share a row of A, 32 bytes of it:
// a whole sector of the cache.
//
//   A in global memory, one warp, one copy      in shared memory
//   r0  [l0  l1  l2  .. l7 ]                    k0  [l0 l8 l16 l24] ...
//   r1  [l8  l9  l10 .. l15]              ->    k1  [l1 l9 l17 l25] ...
//   r2  [l16 ..            ]                    :
//   r3  [l24 ..            ]                    k7  [l7 l15 l23 l31] ...
template <int BM, int BK, int THREADS>
struct AsyncTileOfA {
    static constexpr int ROW_STEP = THREADS / A_LANES;
    static constexpr int PASSES = BM / ROW_STEP;
    static constexpr int STRIDE = BM + A_PAD;

    const float *from[PASSES];                    // what this thread copies next in each pass
    int k;                                        // of this thread's first element in the window
    int to;                                       // where that goes in the tile, in floats

    // `start` is the window's first element at k = 0. Rows past `inside` only reach sums that nobody writes:
    // there the last row is copied again.
    __device__ __forceinline__ AsyncTileOfA(const float *start, int ld, int inside) : k(threadIdx.x % A_LANES) {
        int row = threadIdx.x / A_LANES;
        to = k * STRIDE + row;
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass)
            from[pass] = start + static_cast<long long>(min(row + pass * ROW_STEP, inside - 1)) * ld + k;
    }

    // A window that has all BK entries of K, to the tile whose float number `to` lies at `place`.
    __device__ __forceinline__ void copy_whole(unsigned place) const {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass)
#pragma unroll
            for (int i = 0; i < BK; i += A_LANES)
                copy_float(place + FLOAT_BYTES * (i * STRIDE + pass * ROW_STEP), from[pass] + i);
    }

    // A window of which only k_left > 0 entries of K exist. The others become zeros (in A and B alike: 0 * 0,
    // never 0 * Inf).
    __device__ __forceinline__ void copy_checked(unsigned place, int k_left) const {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass)
#pragma unroll
            for (int i = 0; i < BK; i += A_LANES)
                copy_float_if(k + i < k_left, place + FLOAT_BYTES * (i * STRIDE + pass * ROW_STEP), from[pass] + i);
    }

    __device__ __forceinline__ void advance() {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) from[pass] += BK;
    }
};

// One block's window on B, BK rows of BN floats, copied as it lies: 16 bytes a time where all rows start on 16
// bytes and end with a whole vector, else float by float. Then a warp copies 32 neighbours at a time, for which it
// takes the rows that its vectors would come from one after the other.
//
//   BN = 64, one warp, one pass      vectors                floats, copy by copy
//                              r0    [l0  l1  ...  l15]     [l0 l1 ... l31][l0 l1 ... l31]
//                              r1    [l16 l17 ...  l31]     [l0 l1 ... l31][l0 l1 ... l31]
template <int BK, int BN, int THREADS>
struct AsyncTileOfB {
    static constexpr int THREADS_PER_ROW = BN / VECTOR;
    static constexpr int ROW_STEP = THREADS / THREADS_PER_ROW;
    static constexpr int PASSES = BK / ROW_STEP;
    static constexpr int SIDE_BY_SIDE = THREADS_PER_ROW < WARP ? WARP : THREADS_PER_ROW;  // floats a row at a time
    static constexpr int ROWS = SIDE_BY_SIDE / THREADS_PER_ROW;  // that a thread takes floats from in a pass

    const float *from[PASSES];                    // what this thread copies next in each pass
    long long step;                               // from one window to the next, in floats
    int ld;
    int row;                                      // of this thread's first element in the window
    int to;                                       // where that goes in the tile, in floats
    int cols_left;                                // of C, from there on
    bool vectors;

    // `start` is the window's first element at k = 0. Columns past `inside` only reach sums that nobody writes:
    // there the last vector is copied again, and single floats become zeros.
    __device__ __forceinline__ AsyncTileOfB(const float *start, int ld_, int inside)
        : step(static_cast<long long>(BK) * ld_), ld(ld_) {
        vectors = rows_are_aligned<VECTOR>(start, ld) && inside % VECTOR == 0;
        row = vectors ? threadIdx.x / THREADS_PER_ROW : threadIdx.x / SIDE_BY_SIDE * ROWS;
        int col = vectors ? threadIdx.x % THREADS_PER_ROW * VECTOR : threadIdx.x % SIDE_BY_SIDE;
        to = row * BN + col;
        cols_left = inside - col;
        int read_col = min(col, inside - (vectors ? VECTOR : 1));
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass)
            from[pass] = start + static_cast<long long>(row + pass * ROW_STEP) * ld + read_col;
    }

    // A window that has all BK entries of K, by vectors, to the tile whose float number `to` lies at `place`.
    __device__ __forceinline__ void copy_whole(unsigned place) const {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass)
            copy_vector(place + FLOAT_BYTES * pass * ROW_STEP * BN, from[pass]);
    }

    // Float by float, any window: k_left > 0 entries of K exist, the others become zeros. With INT_LIMIT no rows are
    // checked; what columns there are is the same in all windows, and costs nothing.
    __device__ __forceinline__ void copy_floats(unsigned place, int k_left) const {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass)
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                int down = pass * ROW_STEP + i;
                const float *from_row = from[pass] + static_cast<long long>(i) * ld;
#pragma unroll
                for (int right = 0; right < BN; right += SIDE_BY_SIDE)
                    copy_float_if(row + down < k_left && right < cols_left,
                                  place + FLOAT_BYTES * (down * BN + right), from_row + right);
            }
    }

    // Any window: k_left > 0 entries of K exist, the others become zeros.
    __device__ __forceinline__ void copy_checked(unsigned place, int k_left) const {
        if (!vectors) {
            copy_floats(place, k_left);
            return;
        }
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass)
            copy_vector_if(row + pass * ROW_STEP < k_left, place + FLOAT_BYTES * pass * ROW_STEP * BN, from[pass]);
    }

    __device__ __forceinline__ void advance() {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) from[pass] += step;
    }
};

// ptxas gives a float4 four neighbouring registers and is free with all others. Registers lie in two banks, by
// parity, and an FFMA gets one operand a cycle from each, the third from the reuse cache. Column by column that is
// b[n], so sums[m][n] must have the other parity than a[m], which a float4 has placed by m. This asks for it: by
// float4s of sums with neighbours exchanged, on a path that is never taken, as K is never negative. It costs no
// instruction that runs; cycles per FFMA, counted in the SASS of 128 x 256 x 16, fall from 1.55 to 1.06.
template <int ORDER, int TM, int TN>
__device__ __forceinline__ void place_sums(const float (&sums)[TM][TN], float *shared, int K) {
    if constexpr (ORDER == SERPENTINE_COLUMNS) {
        if (K < 0) {
            float *to = shared + threadIdx.x * VECTOR;
#pragma unroll
            for (int n = 0; n < TN; ++n)
#pragma unroll
                for (int m = 0; m < TM; m += VECTOR) {
                    *reinterpret_cast<float4 *>(to) =
                        make_float4(sums[m + 1][n], sums[m][n], sums[m + 3][n], sums[m + 2][n]);
                    to += VECTOR * WARP;
                }
        }
    }
}

// sums = this lane's part of A B, over K entries that begin at A and B (which point at the block tile's first
// row and column). Shared memory is a ring of STAGES buffers, each a tile of A and one of B (picture in 09).
template <int BM, int BN, int BK, int STAGES, int THREADS, int ORDER, int PACKED = 0, class Patch, int TM, int TN>
__device__ __forceinline__ void multiply_async(float (&sums)[TM][TN], const Patch &patch, float *ring, int K,
                                               const float *A, int lda, int rows_inside, const float *B, int ldb,
                                               int cols_inside) {
    using TileOfA = AsyncTileOfA<BM, BK, THREADS>;
    using TileOfB = AsyncTileOfB<BK, BN, THREADS>;
    constexpr int B_TILE = BK * TileOfA::STRIDE;  // where a buffer's tile of B begins
    constexpr int BUFFER = FLOAT_BYTES * ring_buffer(BM, BN, BK);
    constexpr int LAST = STAGES - 1;
    TileOfA a_global(A, lda, rows_inside);
    TileOfB b_global(B, ldb, cols_inside);
    int vectors_to = b_global.vectors ? BK - 1 : INT_LIMIT;  // B comes by vectors while more entries of K are left
    int k_to_copy = K;                            // entries of K that are not on their way yet
    // Shared addresses that step from buffer to buffer: in the loop each is then one register and a constant.
    // (Pointers would take two registers each, offsets an addition at each use.)
    unsigned a_fill = shared_address(ring + a_global.to);  // in the buffer that is free
    unsigned b_fill = shared_address(ring + B_TILE + b_global.to);
    unsigned a_read = shared_address(ring + patch.row);  // in the buffer that is computed
    unsigned b_read = shared_address(ring + B_TILE + patch.col);

    // A group is closed also where nothing is left to copy: so the groups still on their way always number the
    // same, and the loop needs no second body for its last tiles.
    auto start_copy = [&]() {
#pragma unroll
        for (const float *&address : a_global.from) take_as_it_is(address);
#pragma unroll
        for (const float *&address : b_global.from) take_as_it_is(address);
        if (k_to_copy > vectors_to) {
            a_global.copy_whole(a_fill);
            b_global.copy_whole(b_fill);
        } else if (k_to_copy >= BK) {
            a_global.copy_whole(a_fill);
            b_global.copy_floats(b_fill, INT_LIMIT);
        } else if (k_to_copy > 0) {
            a_global.copy_checked(a_fill, k_to_copy);
            b_global.copy_checked(b_fill, k_to_copy);
        }
        close_copies();
        a_global.advance();
        b_global.advance();
        k_to_copy -= BK;
    };

#pragma unroll 1                                  // it is short, and its checks are long
    for (int stage = 0; stage < LAST; ++stage) {
        start_copy();
        a_fill += BUFFER;
        b_fill += BUFFER;
    }
    await_copies<STAGES - 2>();
    __syncthreads();

    float a[2][TM], b[2][TN];                     // fragments of this step of K and of the next
    patch.load_a(a[0], shared_pointer(a_read));
    patch.load_b(b[0], shared_pointer(b_read));
    int reading = 0;                              // number of the buffer that is computed
    int step = -LAST * BUFFER;                    // from the buffer that is filled to the next one to be filled
    for (int k_left = K; k_left > 0; k_left -= BK) {
        start_copy();
        a_fill += step;
        b_fill += step;
#pragma unroll UNROLL
        for (int k = 0; k < BK; ++k) {
            int next = (k + 1) % BK;
            if (next == 0) {
                await_copies<STAGES - 2>();       // the next tile is there: this thread's copies of it ...
                __syncthreads();                  // ... and everyone's; and nobody needs this tile any more
                step = reading == LAST ? -LAST * BUFFER : BUFFER;
                reading = reading == LAST ? 0 : reading + 1;
                a_read += step;
                b_read += step;
            }
            patch.load_a(a[next % 2], shared_pointer(a_read) + next * TileOfA::STRIDE);
            patch.load_b(b[next % 2], shared_pointer(b_read) + next * BN);
            outer_product<ORDER, PACKED>(sums, a[k % 2], b[k % 2]);
        }
    }
    place_sums<ORDER>(sums, ring, K);
}

// ------------------------------------------------------------------------------------------ registers -> C

// A warp's way to write neighbouring floats of C by neighbouring lanes, where rows are not aligned and lanes cannot
// write their float4s: a store of single floats that lie 4 apart would touch four times as many sectors, and the next
// three stores the same ones again. The float4s of a warp, of one row and one piece of each lane's patch, are
// LANES_M rows (4 apart) of RUN floats; in this order the lanes leave them in shared memory and take them again.
//
//   LANES_N = 8     left by lane             taken by lane
//      row 0        [l0 l0 l0 l0 l1 .. l7]   [l0 l1 l2 l3 l4 .. l31]     i = 0
//      row 4        [l8 l8 l8 l8 l9 .. l15]  [l0 l1 l2 l3 l4 .. l31]     i = 1
template <class Patch>
struct Exchange {
    static constexpr int RUN = VECTOR * Patch::LANES_N;
    int row, col;                                 // of the first float that this lane takes, in the block tile
    int lane;

    __device__ __forceinline__ explicit Exchange(const Patch &patch) : lane(threadIdx.x % WARP) {
        row = patch.row + (lane / RUN - lane / Patch::LANES_N) * VECTOR;
        col = patch.col + lane % RUN - lane % Patch::LANES_N * VECTOR;
    }

    // How far its i-th float is from the first.
    static __device__ __forceinline__ constexpr int down(int i) { return i * WARP / RUN * VECTOR; }
    static __device__ __forceinline__ constexpr int right(int i) { return i * WARP % RUN; }

    // Its floats of COUNT such rows, DOWN and RIGHT from each other, to C: `c` is where the first belongs. All old ones
    // are on their way before the first is written.
    template <int DOWN, int RIGHT, int COUNT>
    static __device__ __forceinline__ void write(float (&out)[VECTOR][COUNT], float *c, int ldc, int rows_left,
                                                 int cols_left, float beta) {
        auto for_each_in_c = [&](auto what) {
#pragma unroll
            for (int i = 0; i < VECTOR; ++i)
#pragma unroll
                for (int n = 0; n < COUNT; ++n) {
                    int row_of_n = down(i) + n * DOWN;
                    int col_of_n = right(i) + n * RIGHT;
                    if (row_of_n < rows_left && col_of_n < cols_left)
                        what(c + static_cast<long long>(row_of_n) * ldc + col_of_n, out[i][n], i, n);
                }
        };
        if (beta != 0.0f) {
            float old[VECTOR][COUNT] = {};
            for_each_in_c([&](const float *from, float, int i, int n) { old[i][n] = *from; });
#pragma unroll
            for (int i = 0; i < VECTOR; ++i)
#pragma unroll
                for (int n = 0; n < COUNT; ++n) out[i][n] += beta * old[i][n];
        }
        for_each_in_c([](float *to, float value, int, int) { *to = value; });
    }
};

constexpr int EXCHANGE_FLOATS = (WARP + 1) * VECTOR;  // for one float4 of each lane

// Writes a warp's sums, whatever C and beta, through WARP lanes' TN floats at `between`, with one float of space after
// each 32: so that neither the lanes that leave theirs 4 apart nor those that take them meet in a bank. One body serves
// all rows: code that is as long as the sums are many takes longer to compile than the product. Only leaving them,
// which names registers, is written out for each.
template <class Patch, int TM, int TN>
__device__ __forceinline__ void write_exchanged(const float (&sums)[TM][TN], const Patch &patch, float *between,
                                                float *C, int ldc, const BlockTile &tile, float alpha, float beta) {
    constexpr int PIECES = TN / VECTOR;
    Exchange<Patch> exchange(patch);
    float *left = between + exchange.lane * VECTOR + exchange.lane * VECTOR / WARP;
    const float *taken = between + exchange.lane;
    int row = exchange.row;
    int cols_left = tile.cols_inside - exchange.col;
    float *c = C + (static_cast<long long>(tile.row) + row) * ldc + tile.col + exchange.col;
#pragma unroll 1
    for (int m = 0; m < TM; ++m) {
#pragma unroll
        for (int one = 0; one < TM; ++one)
            if (one == m)
#pragma unroll
                for (int n = 0; n < TN; ++n) left[n / VECTOR * EXCHANGE_FLOATS + n % VECTOR] = sums[one][n];
        __syncwarp();
        float out[VECTOR][PIECES];
#pragma unroll
        for (int i = 0; i < VECTOR; ++i)
#pragma unroll
            for (int piece = 0; piece < PIECES; ++piece)
                out[i][piece] = alpha * taken[piece * EXCHANGE_FLOATS + i * (WARP + 1)];
        exchange.template write<0, Patch::COL_STEP>(out, c, ldc, tile.rows_inside - row, cols_left, beta);
        __syncwarp();                             // all is taken before the next row is left there
        int down = (m + 1) % VECTOR == 0 ? Patch::ROW_STEP - (VECTOR - 1) : 1;
        row += down;
        c += static_cast<long long>(down) * ldc;
    }
}

// Whatever C and beta, when a block's threads need the ring no more; it has room for a row of all patches.
template <class Patch, int TM, int TN>
__device__ __forceinline__ void write_async(const float (&sums)[TM][TN], const Patch &patch, float *ring, float *C,
                                            int ldc, const BlockTile &tile, float alpha, float beta) {
    if (rows_are_aligned<VECTOR>(C + tile.col, ldc) && tile.cols_inside % VECTOR == 0 && beta == 0.0f) {
        patch.overwrite(sums, C, ldc, tile, alpha);
    } else {
        __syncthreads();                          // the ring is still being read, if only beyond its last tile
        write_exchanged(sums, patch, ring + threadIdx.x / WARP * (TN / VECTOR * EXCHANGE_FLOATS), C, ldc, tile, alpha,
                        beta);
    }
}
