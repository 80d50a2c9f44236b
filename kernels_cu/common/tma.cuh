// Barriers in shared memory on which copies arrive by themselves, boxes that the copy engine (TMA: tensor memory
// accelerator) fetches, registers that warps hand to others, flags: thin wrappers of PTX instructions. sm_90, newer.
#pragma once
#include "common/async.cuh"

// ------------------------------------------------------------------------------------- barriers (mbarrier)

// A barrier is 8 bytes of shared memory. Its phase ends when as many arrivals have come as `init_barrier` said and all
// bytes that were announced; then the next one begins, with nothing to reset. Phases are told apart by their parity:
// phase 0 is even, and the one before it, odd, counts as ended.
constexpr int BARRIER_BYTES = 8;

__device__ __forceinline__ void init_barrier(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(barrier), "r"(arrivals) : "memory");
}

// What this thread has initialised is known to the copy engine, too.
__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" : : : "memory");
}

__device__ __forceinline__ void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(barrier) : "memory");
}

// Arrives, and announces bytes that the copy engine will bring in this phase.
__device__ __forceinline__ void arrive_and_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(barrier), "r"(bytes) : "memory");
}

// Arrives when all copies that this thread has started are there (`noinc`: it is one of the arrivals that were
// counted on, not one more).
__device__ __forceinline__ void arrive_after_copies(unsigned barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" : : "r"(barrier) : "memory");
}

// Waits until the phase of that parity has ended; what was copied or read before the arrivals is done then.
__device__ __forceinline__ void await_phase(unsigned barrier, unsigned parity) {
    asm volatile("{\n\t"
                 ".reg .pred ended;\n"
                 "AGAIN:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n\t"
                 "@!ended bra AGAIN;\n\t"
                 "}" : : "r"(barrier), "r"(parity) : "memory");
}

// Arrives at the barrier that lies in block `rank` of the cluster where `barrier` lies in this one. All has been read
// by then that was read before, but what was written need not be seen over there: that takes release and acquire of the
// cluster's scope, for which ptxas puts a fence of the whole GPU before the arrival and empties the L1 after the wait.
__device__ __forceinline__ void arrive_in_block(unsigned barrier, unsigned rank) {
    asm volatile("{\n\t.reg .u32 there;\n\tmapa.shared::cluster.u32 there, %0, %1;\n\t"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n\t}"
                 : : "r"(barrier), "r"(rank) : "memory");
}

// The first COUNT threads of the block wait for one another, whatever the others do.
template <int COUNT>
__device__ __forceinline__ void sync_threads() {
    asm volatile("bar.sync 1, %0;" : : "n"(COUNT) : "memory");
}

// ------------------------------------------------------------------------------------------------- copies

constexpr int BOX_ALIGNMENT = 128;                // of where a box goes in shared memory, in bytes

// What the driver's cuTensorMapEncodeTiled makes: a matrix in global memory and the box that is copied of it.
struct alignas(64) TensorMap {
    unsigned char opaque[128];
};

// Starts to copy the box whose first element is (row, col) of the matrix to shared memory, on a boundary of
// BOX_ALIGNMENT bytes, its rows close together. `barrier` gets all of its bytes: what lies beyond the matrix comes as
// zeros.
__device__ __forceinline__ void copy_box(unsigned to, const TensorMap &map, int row, int col, unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];"
                 : : "r"(to), "l"(&map), "r"(col), "r"(row), "r"(barrier) : "memory");
}

// The same for BLOCKS blocks, all of the cluster: each gets the box, and its barrier all of the bytes, where `to` and
// `barrier` lie in this one.
template <int BLOCKS>
__device__ __forceinline__ void copy_box_to_cluster(unsigned to, const TensorMap &map, int row, int col,
                                                    unsigned barrier) {
    constexpr unsigned short EVERY = (1 << BLOCKS) - 1;
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%2, %3}], [%4], %5;"
                 : : "r"(to), "l"(&map), "r"(col), "r"(row), "r"(barrier), "h"(EVERY) : "memory");
}

__device__ __forceinline__ void await_all_copies() { asm volatile("cp.async.wait_all;" : : : "memory"); }

// ---------------------------------------------------------------------------------------------- registers

// Registers per thread from here on, a multiple of 8; all 4 warps of a group (warps 0 to 3, 4 to 7, ...) must say the
// same. `take` waits until others have given up as many.
template <int COUNT>
__device__ __forceinline__ void give_up_registers_but() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void take_registers_up_to() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(COUNT));
}

// ------------------------------------------------------------------------------------------ between blocks

// As sync_cluster where nobody reads what others wrote.
__device__ __forceinline__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.relaxed;\n\tbarrier.cluster.wait;" : : : "memory");
}

// All that this warp has written to global memory before, every other block sees once it sees the flag.
__device__ __forceinline__ void raise_flag(unsigned *flag) {
    __threadfence();
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        asm volatile("st.release.gpu.global.u32 [%0], %1;" : : "l"(flag), "r"(1u) : "memory");
}

// Waits until a counter has come to `count`; then this thread sees all that was written before it was counted up.
__device__ __forceinline__ void await_count(unsigned *counter, unsigned count) {
    unsigned seen;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    while (seen < count);
}

// What this thread has read or written comes before what it does after, for all who see both.
__device__ __forceinline__ void order_memory() { asm volatile("fence.acq_rel.gpu;" : : : "memory"); }

// Waits until the flag is raised, and lowers it.
__device__ __forceinline__ void await_flag(unsigned *flag) {
    if (threadIdx.x % 32 == 0) {
        unsigned raised;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(raised) : "l"(flag) : "memory");
        while (raised == 0);
        asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" : : "l"(flag), "r"(0u) : "memory");
    }
    __syncwarp();
    __threadfence();
}
