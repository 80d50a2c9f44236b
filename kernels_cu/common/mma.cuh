// Tensor-core instructions: thin wrappers of single PTX instructions, and the strides that feed them.
#pragma once

// The row stride, at least `floats` (a multiple of 4), that is an odd multiple of `residue`, 4 or 8: then 8 rows,
// or 4, that lie that far apart begin in different banks, `residue` apart.
__device__ constexpr int padded(int floats, int residue) {
    while (floats % (2 * residue) != residue) floats += 4;
    return floats;
}

// Round to TF32's 10 bits of mantissa, ties away from zero, as cuBLAS does; a tensor core given raw fp32 bits
// cuts the rest off instead, twice the error and biased. NaN and Inf stay what they are.
__device__ __forceinline__ float to_tf32(float x) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return __uint_as_float(bits);
}

// c += a b on the tensor core, for a warp: a is 16 x K, b is K x 8, c is 16 x 8. With g = lane / 4 and
// t = lane % 4, a lane holds
//   a: (g, t), (g + 8, t) and, for K = 8, (g, t + 4), (g + 8, t + 4)
//   b: (t, g)             and, for K = 8, (t + 4, g)
//   c: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
__device__ __forceinline__ void mma_tf32(float (&c)[4], const float (&a)[2], const float (&b)[1]) {
    asm("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(b[0])));
}
__device__ __forceinline__ void mma_tf32(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}
