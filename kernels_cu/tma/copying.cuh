// Part of 11_tma.cu: what the copying warps do.
#pragma once

// Of the transposed A (PREPASS) and of B.
struct TensorMaps {
    TensorMap a, b;
};

// Beyond K zeros are copied, in A and B alike: 0 * 0, never 0 * Inf. Rows and columns beyond C only reach sums that
// nobody writes: there the last one is copied again.
constexpr int A_UNROLL = 4;                       // rows in one body of the loop: more take too many registers

__device__ __forceinline__ void copy_a(unsigned to, const float *from, int lda, int first, int inside, int k_left) {
    take_as_it_is(inside);
    if (k_left >= BK) {
#pragma unroll A_UNROLL
        for (int row = 0; row < BM; row += A_ROWS) {
            const float *a = from + static_cast<long long>(min(first + row, inside - 1)) * lda;
#pragma unroll
            for (int i = 0; i < BK; i += A_LANES) copy_float(to + FLOAT_BYTES * (i * A_STRIDE + row), a + i);
        }
    } else {
        int k = threadIdx.x % A_LANES;
#pragma unroll 1
        for (int row = 0; row < BM; row += A_ROWS) {
            const float *a = from + static_cast<long long>(min(first + row, inside - 1)) * lda;
#pragma unroll 1
            for (int i = 0; i < BK; i += A_LANES) {
                bool exists = k + i < k_left;
                copy_float_if(exists, to + FLOAT_BYTES * (i * A_STRIDE + row), a + i);
            }
        }
    }
}

// B where the copy engine cannot take it, as its rows are not aligned: neighbouring threads copy neighbouring floats.
constexpr int B_COLS = common_divisor(BN, COPYING);  // of a row that are copied at a time,
constexpr int B_ROWS = COPYING / B_COLS;          // and rows
constexpr int B_PASSES = BN / B_COLS;             // over a row

__device__ __forceinline__ void copy_b(unsigned to, const float *from, int ldb, int number, int inside, int k_left) {
    int row = number / B_COLS;
    int col = number % B_COLS;
    const float *b = from + static_cast<long long>(row) * ldb + min(col, inside - 1);
    int right[B_PASSES];                          // from this thread's first float in a row to its others
#pragma unroll
    for (int pass = 0; pass < B_PASSES; ++pass)
        right[pass] = min(col + pass * B_COLS, inside - 1) - min(col, inside - 1);
    to += FLOAT_BYTES * (row * BN + col);
    if (k_left >= BK) {
#pragma unroll 4
        for (int k = 0; k < BK; k += B_ROWS) {
#pragma unroll
            for (int pass = 0; pass < B_PASSES; ++pass) copy_float(to + FLOAT_BYTES * pass * B_COLS, b + right[pass]);
            to += FLOAT_BYTES * B_ROWS * BN;
            b += static_cast<long long>(B_ROWS) * ldb;
        }
    } else {
#pragma unroll 1
        for (int k = row; k < BK; k += B_ROWS) {
            bool exists = k < k_left;
#pragma unroll
            for (int pass = 0; pass < B_PASSES; ++pass)
                copy_float_if(exists, to + FLOAT_BYTES * pass * B_COLS, b + right[pass]);
            to += FLOAT_BYTES * B_ROWS * BN;
            b += static_cast<long long>(B_ROWS) * ldb;
        }
    }
}

// B by the copy engine. In a cluster all blocks need the same tile: each fetches some of its rows for all, once the
// buffer is empty in all and its barriers expect the bytes. One thread of each block says so to every block, on the
// barrier `ready`, of which a phase goes with each one of `full`.
__device__ __forceinline__ void expect_b(unsigned full, int bytes) {
    arrive_and_expect(full, bytes);
    if constexpr (CLUSTER > 1)
#pragma unroll
        for (int rank = 0; rank < CLUSTER; ++rank) arrive_in_block(full - FULL + READY, rank);
}

__device__ __forceinline__ void await_cluster(unsigned full, unsigned parity) {
    if constexpr (CLUSTER > 1) await_phase(full - FULL + READY, parity);
}

__device__ __forceinline__ void fetch_b(unsigned to, const TensorMap &map, int k, int col, unsigned full) {
    if constexpr (CLUSTER > 1) {
        int row = rank_in_cluster() * (BK / CLUSTER);
        copy_box_to_cluster<CLUSTER>(to + FLOAT_BYTES * row * BN, map, k + row, col, full);
    } else {
        copy_box(to, map, k, col, full);
    }
}

// Both tiles by the copy engine: one thread does all there is to do.
__device__ __forceinline__ void fetch_tiles(const Product &product, int stages, const TensorMaps &maps) {
    unsigned shared = shared_address(shared_memory);
    Place place{0, 1};                            // buffers are empty at first
    Piece piece;
    for (unsigned done = 0; find_piece(done, product.K, piece); ++done) {
        BlockTile tile = own_tile(product, piece.tile);
#pragma unroll 1
        for (int k = piece.k_begin; k < piece.k_end; k += BK) {
            unsigned full = shared + FULL + place.buffer * BARRIER_BYTES;
            unsigned buffer = shared + RING + place.buffer * BUFFER;
            await_phase(shared + EMPTY + place.buffer * BARRIER_BYTES, place.parity);
            expect_b(full, A_BYTES + B_BYTES);
            copy_box(buffer, maps.a, k, tile.row, full);
            await_cluster(full, place.parity ^ 1);
            fetch_b(buffer + A_BYTES, maps.b, k, tile.col, full);
            place.advance(stages);
        }
    }
}

__device__ __forceinline__ void copy_tiles(const Product &product, int stages, const float *A, int lda, const float *B,
                                           int ldb, const TensorMap &b_map, bool b_mapped) {
    unsigned shared = shared_address(shared_memory);
    int number = threadIdx.x - COMPUTING;
    int a_k = number % A_LANES;                   // this thread's first element in a tile of A
    int a_row = number / A_LANES;
    unsigned a_to = FLOAT_BYTES * (a_k * A_STRIDE + a_row);
    Place place{0, 1};                            // buffers are empty at first
    Piece piece;
    for (unsigned done = 0; find_piece(done, product.K, piece); ++done) {
        BlockTile tile = own_tile(product, piece.tile);
        if (CLUSTER > 1) tile.rows_inside = max(tile.rows_inside, 1);  // where there is none, some are copied
        const float *a_start = A + static_cast<long long>(tile.row) * lda + a_k;
#pragma unroll 1
        for (int left = piece.k_end - piece.k_begin; left > 0; left -= BK) {
            int k = piece.k_end - left;
            unsigned full = shared + FULL + place.buffer * BARRIER_BYTES;
            unsigned buffer = shared + RING + place.buffer * BUFFER;
            await_phase(shared + EMPTY + place.buffer * BARRIER_BYTES, place.parity);
            if (number == 0) {
                if (b_mapped) {
                    expect_b(full, B_BYTES);
                    if (CLUSTER == 1) fetch_b(buffer + A_BYTES, b_map, k, tile.col, full);
                } else {
                    arrive(full);
                }
            }
            copy_a(a_to + buffer, a_start + k, lda, a_row, tile.rows_inside, product.K - k);
            if (CLUSTER > 1 && b_mapped) {        // A's copies need not wait for other blocks
                await_cluster(full, place.parity ^ 1);  // all threads: if one does, ptxas spills what computes
                if (number == 0) fetch_b(buffer + A_BYTES, b_map, k, tile.col, full);
            }
            if (!b_mapped)
                copy_b(buffer + A_BYTES, B + static_cast<long long>(k) * ldb + tile.col, ldb, number,
                       tile.cols_inside, product.K - k);
            arrive_after_copies(full);
            place.advance(stages);
        }
    }
    await_all_copies();
}
