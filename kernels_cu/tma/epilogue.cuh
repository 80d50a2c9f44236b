// Part of 11_tma.cu: registers -> C.
#pragma once

// C = alpha * sums + beta * C by whole float4s, as many as registers allow on their way at a time. (write_row_by_row
// takes one row after the other, and at the beginning of a shared tile nothing else is left to do meanwhile.) One body
// for all rows, which move up below it: written out, it keeps all addresses and spills. The sums are spent then.
constexpr int ROWS = (TAKEN - TM * TN >= 100 ? 32 : 16) / TN;  // of a patch at a time

__device__ __forceinline__ void update_c(const Patch &patch, float (&sums)[TM][TN], float *C, int ldc,
                                         const BlockTile &tile, float alpha, float beta) {
    if (beta == 0.0f) {
        patch.overwrite(sums, C, ldc, tile, alpha);
        return;
    }
    int row = patch.row;
    float *c_tile = C + static_cast<long long>(tile.row) * ldc + tile.col + patch.col;
#pragma unroll 1
    for (int m = 0; m < TM; m += ROWS) {
        float4 *at[ROWS], old[ROWS][TN / VECTOR];
        bool inside[ROWS][TN / VECTOR];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            at[i] = reinterpret_cast<float4 *>(c_tile + static_cast<long long>(row + i) * ldc);
#pragma unroll
            for (int n = 0; n < TN / VECTOR; ++n) {
                inside[i][n] = row + i < tile.rows_inside && patch.col + n * Patch::COL_STEP < tile.cols_inside;
                if (inside[i][n]) old[i][n] = at[i][n * Patch::LANES_N];
            }
        }
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int n = 0; n < TN / VECTOR; ++n) {
                const float *sum = &sums[i][n * VECTOR];
                float4 c = old[i][n];
                c = make_float4(alpha * sum[0] + beta * c.x, alpha * sum[1] + beta * c.y, alpha * sum[2] + beta * c.z,
                                alpha * sum[3] + beta * c.w);
                if (inside[i][n]) at[i][n * Patch::LANES_N] = c;  // a predicate and no branch: see overwrite_vectors
            }
#pragma unroll
        for (int up = ROWS; up < TM; ++up)
#pragma unroll
            for (int n = 0; n < TN; ++n) sums[up - ROWS][n] = sums[up][n];
        row += (m + ROWS) % VECTOR == 0 ? Patch::ROW_STEP - (VECTOR - ROWS) : ROWS;
    }
}

// Where rows of C are not aligned, float4s of a row change hands within the warp, so that its lanes write neighbouring
// floats: else each store touches four times as many sectors, and all of them four times. A warp's float4s are LANES_M
// rows (4 apart) of RUN floats. This is lane `lane`'s i-th float of them.
constexpr int RUN = LANES_N * VECTOR;

__device__ __forceinline__ int exchanged_row(int i, int lane) { return (i * WARP + lane) / RUN * VECTOR; }
__device__ __forceinline__ int exchanged_col(int i, int lane) { return (i * WARP + lane) % RUN; }

__device__ __forceinline__ void exchange(float (&out)[VECTOR], float4 mine) {
    float4 *all = reinterpret_cast<float4 *>(shared_memory + EXCHANGE) + threadIdx.x / WARP * WARP;
    int lane = threadIdx.x % WARP;
    __syncwarp();                                 // the floats before have been read
    all[Patch::place(lane)] = mine;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) out[i] = reinterpret_cast<const float *>(all)[i * WARP + lane];
}

// C = alpha * sums + beta * C, whatever C is. One body for all rows, which move up below it. The sums are spent then.
__device__ __forceinline__ void update_unaligned_c(const Patch &patch, float (&sums)[TM][TN], float *C, int ldc,
                                                   const BlockTile &tile, float alpha, float beta) {
    int lane = threadIdx.x % WARP;
    int row = patch.row - Patch::lane_row(lane) * VECTOR;  // of the warp's first float
    int col = patch.col - Patch::lane_col(lane) * VECTOR;
    float *c_warp = C + static_cast<long long>(tile.row) * ldc + tile.col + col;
    int keeps = beta != 0.0f;
#pragma unroll 1
    for (int m = 0; m < TM; ++m) {
        take_as_it_is(row);                       // else addresses of other rows are made early, and take registers
        take_as_it_is(keeps);                     // else the loop is compiled twice
#pragma unroll
        for (int n = 0; n < TN; n += VECTOR) {
            float old[VECTOR] = {}, out[VECTOR];
            if (keeps) {                          // all are on their way before the first is written
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) {
                    int r = row + exchanged_row(i, lane);
                    int c = exchanged_col(i, lane) + n / VECTOR * Patch::COL_STEP;
                    const float *from = c_warp + static_cast<long long>(r) * ldc + c;
                    if (r < tile.rows_inside && col + c < tile.cols_inside) old[i] = *from;
                }
            }
            exchange(out, make_float4(sums[0][n], sums[0][n + 1], sums[0][n + 2], sums[0][n + 3]));
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) {
                int r = row + exchanged_row(i, lane);
                int c = exchanged_col(i, lane) + n / VECTOR * Patch::COL_STEP;
                float *to = c_warp + static_cast<long long>(r) * ldc + c;
                float value = alpha * out[i] + beta * old[i];
                if (r < tile.rows_inside && col + c < tile.cols_inside) *to = value;
            }
        }
#pragma unroll
        for (int up = 1; up < TM; ++up)
#pragma unroll
            for (int n = 0; n < TN; ++n) sums[up - 1][n] = sums[up][n];
        row += (m + 1) % VECTOR == 0 ? Patch::ROW_STEP - (VECTOR - 1) : 1;
    }
}
