// The kernels' interface to CUDA beyond C++ and its built-ins, for .cu files: launches, shared memory, instructions.
//
// Tests replace this file by tests/support/cuda_emulator/device, over which every kernel runs on the CPU unchanged.
#ifndef FARM_KERNELS_CUDA_DEVICE_CUH
#define FARM_KERNELS_CUDA_DEVICE_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#include "kernels/cuda/check.h"
#include "kernels/cuda/grid.cuh"

template <typename... Parameters, typename... Arguments>
static enum farm_status farm_cuda_launch(const struct farm_cuda_grid &grid, struct farm_error *err,
                                         void (*kernel)(Parameters...), Arguments... arguments) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid.blocks;
    config.blockDim = dim3(grid.threads);
    config.dynamicSmemBytes = grid.shared_bytes;
    config.stream = grid.stream;
    const cudaError_t code = cudaLaunchKernelEx(&config, kernel, arguments...);
    return code == cudaSuccess ? FARM_OK : farm_cuda_fail(err, code, grid.name, grid.file, grid.line);
}

// The block's shared memory of the launch's size, 128-byte aligned.
static __device__ inline uint8_t *farm_cuda_shared() {
    extern __shared__ __align__(128) uint8_t farm_cuda_shared_bytes[];
    return farm_cuda_shared_bytes;
}

// The bits of the nearest bf16, ties to even.
static __device__ inline uint16_t farm_cuda_bf16(float x) {
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

// d += a * b, 16x16 times 16x8 in bf16 with f32 sums, by a whole warp: PTX's mma.m16n8k16. Lane 4g + t holds of a the
// columns 2t, 2t + 1 of rows g and g + 8, then columns 2t + 8, 2t + 9; of b the rows 2t, 2t + 1, then 2t + 8, 2t + 9,
// of column g; of d the columns 2t, 2t + 1 of rows g, then g + 8.
static __device__ inline void farm_cuda_mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Starts a copy of BYTES (4, 8 or 16) from global to shared memory, both aligned to them; zeros unless `there`.
template <int BYTES> static __device__ inline void farm_cuda_copy_async(void *shared, const void *from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(__cvta_generic_to_global(from)), "n"(BYTES), "r"(there ? BYTES : 0)
                 : "memory");
}
// Waits for this thread's copies.
static __device__ inline void farm_cuda_copies_done() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// A store that host threads may acquire: cumulative, at system scope.
static __device__ inline void farm_cuda_store_release_system(uint64_t *word, uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(word)), "l"(value) : "memory");
}

// ---- the copy engine of a multiprocessor: compute capability 9.0 and newer, one thread of a warp ----

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// A barrier in shared memory at which one thread arrives; visible to the copy engine.
static __device__ inline void farm_cuda_barrier_init(uint64_t *barrier) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(barrier);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Starts a copy from global to shared memory, whose end completes the barrier's phase. All in multiples of 16 bytes.
static __device__ inline void farm_cuda_bulk_load(void *shared, const void *from, uint32_t bytes, uint64_t *barrier) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(barrier);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(at)
                 : "memory");
}

// Waits for the end of the phase of that parity; the first phase has parity 0.
static __device__ inline void farm_cuda_barrier_wait(uint64_t *barrier, uint32_t parity) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(barrier);
    uint32_t done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(at), "r"(parity)
                     : "memory");
}

// Starts a copy from shared to global memory.
static __device__ inline void farm_cuda_bulk_store(void *to, const void *shared, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
                 "r"((uint32_t)__cvta_generic_to_shared(shared)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until this thread's stores have read shared memory.
static __device__ inline void farm_cuda_bulk_stores_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Waits until this thread's stores are done.
static __device__ inline void farm_cuda_bulk_stores_done() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

#endif

#endif
