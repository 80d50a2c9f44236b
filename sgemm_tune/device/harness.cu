// What validation needs on the device: operands made from a counter, a float64 reference, and a comparison
// that counts everything that is wrong. One thread per element, grid-stride loops, 64-bit indices: this code
// judges kernels, so it is as plain as possible and shares nothing with them.

using u32 = unsigned int;
using u64 = unsigned long long;

// Two NaN payloads that no arithmetic produces (results of FFMA carry the canonical 0x7fffffff).
constexpr u32 GUARD = 0x7fc5a5a5u;      // outside the matrices
constexpr u32 UNWRITTEN = 0x7fc1c1c1u;  // C before a run whose beta is 0

// Mirrors Report in harness.py.
struct Report {
    u64 worst;           // bits of the largest error (float) << 32 | element
    u64 unwritten;
    u64 nonfinite;
    u64 guards;
    u64 inputs_changed;
    u64 different;
    double diff_squares;
    double ref_squares;
};

__device__ u64 first_index() { return u64(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ u64 stride() { return u64(gridDim.x) * blockDim.x; }

__device__ u64 mix(u64 x) {  // the finaliser of splitmix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// Standard normal with a full mantissa, a function of (seed, index) alone (Box-Muller).
__device__ float normal(u64 seed, u64 index) {
    u64 bits = mix(seed + 0x9e3779b97f4a7c15ull * (index + 1));
    float u = (float(u32(bits >> 40)) + 0.5f) * 5.9604645e-8f;  // (0, 1)
    float angle = float(u32(bits)) * 2.3283064e-10f;             // [0, 1]
    return sqrtf(-2.0f * logf(u)) * cospif(2.0f * angle);
}

extern "C" __global__ void fill_words(u32* words, u64 count, u32 pattern) {
    for (u64 i = first_index(); i < count; i += stride()) words[i] = pattern;
}

// rows x cols of normal numbers; what lies between the rows keeps the guard pattern.
extern "C" __global__ void fill_normal(float* matrix, u64 rows, u64 cols, u64 ld, u64 seed) {
    for (u64 i = first_index(); i < rows * cols; i += stride())
        matrix[i / cols * ld + i % cols] = normal(seed, i);
}

extern "C" __global__ void fill_pattern(u32* matrix, u64 rows, u64 cols, u64 ld, u32 pattern) {
    for (u64 i = first_index(); i < rows * cols; i += stride()) matrix[i / cols * ld + i % cols] = pattern;
}

// An interval of words that belongs to one matrix.
struct Extent {
    u64 begin, rows, cols, ld;
    __device__ bool holds(u64 word) const {
        if (word < begin) return false;
        u64 offset = word - begin;
        return offset / ld < rows && offset % ld < cols;
    }
};

// Every word of the arena that is not C's must still be what it was. Whatever else has changed belongs to A or B,
// or is a guard.
extern "C" __global__ void compare_rest(const u32* arena, const u32* before, u64 count, u64 a_begin, u64 a_rows,
                                        u64 a_cols, u64 a_ld, u64 b_begin, u64 b_rows, u64 b_cols, u64 b_ld,
                                        u64 c_begin, u64 c_rows, u64 c_cols, u64 c_ld, Report* report) {
    const Extent a{a_begin, a_rows, a_cols, a_ld}, b{b_begin, b_rows, b_cols, b_ld}, c{c_begin, c_rows, c_cols, c_ld};
    for (u64 i = first_index(); i < count; i += stride())
        if (arena[i] != before[i] && !c.holds(i))
            atomicAdd(a.holds(i) || b.holds(i) ? &report->inputs_changed : &report->guards, 1ull);
}

// C64 = alpha A B + beta C and its scale |alpha| |A||B| + |beta| |C|, both packed M x N.
extern "C" __global__ void reference(u64 M, u64 N, u64 K, float alpha, const float* A, u64 lda, const float* B,
                                     u64 ldb, float beta, const float* C, u64 ldc, double* C64, double* scale) {
    for (u64 i = first_index(); i < M * N; i += stride()) {
        u64 row = i / N, col = i % N;
        double sum = 0.0, magnitude = 0.0;
        if (alpha != 0.0f)
            for (u64 k = 0; k < K; ++k) {
                double product = double(A[row * lda + k]) * double(B[k * ldb + col]);
                sum += product;
                magnitude += fabs(product);
            }
        double value = double(alpha) * sum, size = fabs(double(alpha)) * magnitude;
        if (alpha == 0.0f) value = size = 0.0;
        if (beta != 0.0f) {
            double old = double(C[row * ldc + col]);
            value += double(beta) * old;
            size += fabs(double(beta) * old);
        }
        C64[i] = value;
        scale[i] = size;
    }
}

__device__ double warp_sum(double value) {
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(0xffffffffu, value, offset);
    return value;
}

extern "C" __global__ void compare(u64 M, u64 N, const float* C, u64 ldc, const double* C64, const double* scale,
                                   Report* report) {
    double diff_squares = 0.0, ref_squares = 0.0;
    u64 worst = 0, unwritten = 0, nonfinite = 0;
    for (u64 i = first_index(); i < M * N; i += stride()) {
        float value = C[i / N * ldc + i % N];
        double expected = C64[i];
        if (__float_as_uint(value) == UNWRITTEN) {
            ++unwritten;
            continue;
        }
        bool finite = isfinite(value), expected_finite = isfinite(expected);
        if (!finite || !expected_finite) {  // judged by kind: NaN with NaN, an infinity with the same one
            bool same = isnan(value) ? isnan(expected) : double(value) == expected;
            if (!same) ++nonfinite;
            continue;
        }
        double difference = fabs(double(value) - expected);
        diff_squares += difference * difference;
        ref_squares += expected * expected;
        float error = difference == 0.0 ? 0.0f : float(difference / scale[i]);  // x / 0 is infinite: never passes
        u64 key = u64(__float_as_uint(error)) << 32 | u32(i);
        worst = key > worst ? key : worst;
    }
    diff_squares = warp_sum(diff_squares);
    ref_squares = warp_sum(ref_squares);
    if (threadIdx.x % 32 == 0) {
        atomicAdd(&report->diff_squares, diff_squares);
        atomicAdd(&report->ref_squares, ref_squares);
    }
    if (worst) atomicMax(&report->worst, worst);
    if (unwritten) atomicAdd(&report->unwritten, unwritten);
    if (nonfinite) atomicAdd(&report->nonfinite, nonfinite);
}

extern "C" __global__ void count_different(const u32* left, const u32* right, u64 count, Report* report) {
    for (u64 i = first_index(); i < count; i += stride())
        if (left[i] != right[i]) atomicAdd(&report->different, 1ull);
}
