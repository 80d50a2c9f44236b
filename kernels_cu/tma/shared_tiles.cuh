// Part of 11_tma.cu: tiles whose K more than two blocks share, and how their sums meet.
#pragma once

constexpr int PIECES_N = TN / VECTOR;             // a patch is cut into pieces of 4 x 4 (picture in 06)
constexpr int PIECES = TM / VECTOR * PIECES_N;
constexpr int TILE_PIECES = PIECES * COMPUTING;
constexpr int SUMS = TILE_PIECES * VECTOR;        // float4s of a tile's sums

struct Ticket {
    unsigned tile, number;
};

__device__ __forceinline__ Ticket &ticket(int which) {
    return reinterpret_cast<Ticket *>(shared_memory + TICKETS)[which];
}

// Sums of a tile in the workspace: float4 i of piece p of thread t at (p * 4 + i) * COMPUTING + t, so that warps write
// whole lines. A part of the band has two places: for a tile that begins in it and for one that does not.
__device__ __forceinline__ float4 *place_of(float4 *workspace, unsigned part, bool has_beginning) {
    return workspace + static_cast<long long>(2 * own(part) + has_beginning) * SUMS;
}

// Leaves this block's sums of a piece, and takes a ticket: how many blocks have left theirs before. Float4s are those
// that place_sums has asked for, so they cost no move: of a piece, its rows or its columns, neighbours exchanged.
__device__ __forceinline__ void leave_sums(const float (&sums)[TM][TN], float4 *to, unsigned tile, int which) {
    to += threadIdx.x;
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece)
#pragma unroll
        for (int i = 0; i < VECTOR; ++i, to += COMPUTING) {
            int m = piece / PIECES_N * VECTOR;
            int n = piece % PIECES_N * VECTOR;
            __stcg(to, ORDER == SERPENTINE_COLUMNS
                           ? make_float4(sums[m + 1][n + i], sums[m][n + i], sums[m + 3][n + i], sums[m + 2][n + i])
                           : make_float4(sums[m + i][n + 1], sums[m + i][n], sums[m + i][n + 3], sums[m + i][n + 2]));
        }
    sync_threads<COMPUTING>();
    if (threadIdx.x == 0) {
        order_memory();
        ticket(which) = Ticket{tile, atomicAdd(&arrived[own(tile)], 1u)};
    }
}

__device__ __forceinline__ void add(float4 &sum, float4 more) {
    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
}

// A piece's sum over all parts from `begin` to `end`, in this order. `from` is its first float4 in the place of part 0
// that has no beginning; where the beginning is, part 0 has it in its other place.
__device__ __forceinline__ void add_parts(float4 (&sum)[VECTOR], const float4 *from, int begin, int end) {
    constexpr int AT_ONCE = 5;                    // parts whose sums are on their way at a time
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) sum[i] = float4{};
#pragma unroll 1
    for (int part = begin; part < end; part += AT_ONCE) {
        float4 more[AT_ONCE][VECTOR];
#pragma unroll
        for (int p = 0; p < AT_ONCE; ++p) {
            int there = min(part + p, end - 1);
            const float4 *place = from + static_cast<long long>(2 * CLUSTER * there + (there == 0)) * SUMS;
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) more[p][i] = __ldcg(place + i * COMPUTING);
        }
#pragma unroll
        for (int p = 0; p < AT_ONCE; ++p)
            if (part + p < end)
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) add(sum[i], more[p][i]);
    }
}

// Piece `number` / COMPUTING of thread `number` % COMPUTING, as it lies in the workspace, to where it belongs in C. One
// body for its rows, which move up below it.
__device__ __forceinline__ void write_piece(const float4 (&sum)[VECTOR], int number, const BlockTile &tile, float *C,
                                            int ldc, float alpha, float beta) {
    int piece = number / COMPUTING;
    Patch patch(number % COMPUTING);
    int row = patch.c_row(piece / PIECES_N * VECTOR);
    int col = patch.c_col(piece % PIECES_N * VECTOR);
    float rows[VECTOR][VECTOR];
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) {
        float straight[VECTOR] = {sum[i].y, sum[i].x, sum[i].w, sum[i].z};
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) (ORDER == SERPENTINE_COLUMNS ? rows[j][i] : rows[i][j]) = straight[j];
    }
    float *c = C + static_cast<long long>(tile.row + row) * ldc + tile.col + col;
    int cols_left = tile.cols_inside - col;
    int whole = rows_are_aligned<VECTOR>(C, ldc) && cols_left >= VECTOR;
    int keeps = beta != 0.0f;
#pragma unroll 1
    for (int rows_left = min(VECTOR, tile.rows_inside - row); rows_left > 0; --rows_left, c += ldc) {
        take_as_it_is(whole);                     // else the loop is compiled once for each case
        take_as_it_is(keeps);
        float4 old{};
        if (whole) {
            if (keeps) old = *reinterpret_cast<float4 *>(c);
            *reinterpret_cast<float4 *>(c) =
                make_float4(alpha * rows[0][0] + beta * old.x, alpha * rows[0][1] + beta * old.y,
                            alpha * rows[0][2] + beta * old.z, alpha * rows[0][3] + beta * old.w);
        } else {
#pragma unroll
            for (int j = 0; j < VECTOR; ++j)
                if (j < cols_left) c[j] = alpha * rows[0][j] + (keeps ? beta * c[j] : 0.0f);
        }
#pragma unroll
        for (int up = 1; up < VECTOR; ++up)
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) rows[up - 1][j] = rows[up][j];
    }
}

// The last of the blocks that share a tile, half of them, each wait for all and add up a slice. Where a slice has fewer
// pieces than the block has threads, groups of threads add up some of the parts each, and meet in shared memory.
__device__ __forceinline__ void add_up(Ticket mine, const float4 *workspace, const Product &product, float *C,
                                       int ldc, float alpha, float beta) {
    Band band(product);
    unsigned first = band.first_part(mine.tile);
    unsigned parts = band.last_part(mine.tile) - first + 1;
    // A power of 2 that divides the pieces, up to half of the parts. A cluster's blocks hold one another: half of the
    // clusters, then.
    unsigned slices = min(1u << (31 - __clz(parts / (2 * CLUSTER) | (CLUSTER > 1))), COMPUTING);
    if (mine.number < parts - slices) return;
    if (threadIdx.x == 0) {
        await_count(&arrived[own(mine.tile)], parts);
        if (atomicAdd(&arrived[own(mine.tile)], 1u) == parts + slices - 1) arrived[own(mine.tile)] = 0;
    }
    sync_threads<COMPUTING>();
    BlockTile tile = own_tile(product, mine.tile);
    int slice = TILE_PIECES / slices;
    int begin = (mine.number - (parts - slices)) * slice;
    int lanes = min(slice, COMPUTING);
    int groups = COMPUTING / lanes;               // threads beyond them add up nothing
    int lane = threadIdx.x % lanes;
    int group = threadIdx.x / lanes;
    const float4 *from = workspace + static_cast<long long>(2 * own(first)) * SUMS;
    float4 *meeting = reinterpret_cast<float4 *>(shared_memory + RING);  // nobody needs it any more
#pragma unroll 1
    for (int number = begin + lane; number < begin + slice; number += lanes) {
        float4 sum[VECTOR];
        add_parts(sum, from + number / COMPUTING * VECTOR * COMPUTING + number % COMPUTING, parts * group / groups,
                  min(parts * (group + 1) / groups, parts));
        if (groups > 1) {
            sync_threads<COMPUTING>();            // a tile before may still be read
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) meeting[i * COMPUTING + threadIdx.x] = sum[i];
            sync_threads<COMPUTING>();
            if (group == 0)
#pragma unroll 1
                for (int other = lane + lanes; other < COMPUTING; other += lanes)
#pragma unroll
                    for (int i = 0; i < VECTOR; ++i) add(sum[i], meeting[i * COMPUTING + other]);
        }
        if (group == 0) write_piece(sum, number, tile, C, ldc, alpha, beta);
    }
}
