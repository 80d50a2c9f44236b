// Copies and exchanges that need an instruction of their own: thin wrappers of single PTX instructions.
#pragma once

// Addresses in shared memory as its instructions take them: 32 bits, in bytes.
__device__ __forceinline__ unsigned shared_address(const void *shared) {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}
__device__ __forceinline__ float *shared_pointer(unsigned address) {
    return static_cast<float *>(__cvta_shared_to_generic(address));
}

// ------------------------------------------------------------------------- global -> shared, no registers

// One float, or 16 bytes, on its way to shared memory; the thread goes on at once. Single floats go through the
// L1, where the next ones of their sector are found; vectors past it.
__device__ __forceinline__ void copy_float(unsigned to, const float *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"(to), "l"(from) : "memory");
}
// Zeros where what is to be copied does not exist; `from` is then not read and may lie anywhere.
__device__ __forceinline__ void copy_float_if(bool exists, unsigned to, const float *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 : : "r"(to), "l"(from), "r"(exists ? 4 : 0) : "memory");
}
__device__ __forceinline__ void copy_vector(unsigned to, const float *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_vector_if(bool exists, unsigned to, const float *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 : : "r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}

// Makes the compiler take an address as it stands. In loops it else derives all addresses from one, anew at each use:
// fewer registers, but 4 % more instructions at 64 x 128 x 16.
__device__ __forceinline__ void take_as_it_is(const float *&address) { asm volatile("" : "+l"(address)); }
__device__ __forceinline__ void take_as_it_is(int &number) { asm volatile("" : "+r"(number)); }
__device__ __forceinline__ void take_as_it_is(unsigned &number) { asm volatile("" : "+r"(number)); }

// This thread's copies since the last call are one group from now on; there may be none.
__device__ __forceinline__ void close_copies() { asm volatile("cp.async.commit_group;" : : : "memory"); }

// Wait until at most the LEFT latest of this thread's groups are still on their way.
template <int LEFT>
__device__ __forceinline__ void await_copies() {
    asm volatile("cp.async.wait_group %0;" : : "n"(LEFT) : "memory");
}

// ------------------------------------------------------------------------ clusters of blocks (sm_90, newer)

// The attribute does not exist on older architectures, not even for clusters of one.
#if __CUDA_ARCH__ >= 900
#define CLUSTER_OF(BLOCKS) __cluster_dims__(BLOCKS, 1, 1)
#else
#define CLUSTER_OF(BLOCKS)
#endif

// All threads of all blocks of the cluster; what they wrote to shared memory before, all may read after.
__device__ __forceinline__ void sync_cluster() {
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" : : : "memory");
}

// 16 bytes from where block `rank` of the cluster has what this block has at `shared`.
__device__ __forceinline__ float4 load_of_block(const float4 *shared, int rank) {
    float4 v;
    asm volatile("{\n\t.reg .u32 there;\n\tmapa.shared::cluster.u32 there, %4, %5;\n\t"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n\t}"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(shared_address(shared)), "r"(rank) : "memory");
    return v;
}
