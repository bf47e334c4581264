// Loads past the caches, in the order of the whole system, and a clock: for kernels of tests that talk with the host
// while they run, as none of src/kernels does. The store that belongs to them is farm_cuda_store_release_system. On
// the CPU's stand-in they are the host's own atomics.
#ifndef FARM_TESTS_GPU_SYSTEM_CUH
#define FARM_TESTS_GPU_SYSTEM_CUH

#include "kernels/cuda/device.cuh"

struct alignas(16) sixteen_bytes {
    uint64_t low, high;
};

#ifdef __CUDACC__

static __device__ inline uint64_t load_acquire_system(const uint64_t *word) {
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(__cvta_generic_to_global(word)) : "memory");
    return value;
}
static __device__ inline uint32_t load_relaxed_system(const uint32_t *word) {
    uint32_t value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(word)) : "memory");
    return value;
}
// Each half for itself.
static __device__ inline struct sixteen_bytes load_relaxed_system(const struct sixteen_bytes *at) {
    struct sixteen_bytes value;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(value.low), "=l"(value.high)
                 : "l"(__cvta_generic_to_global(at))
                 : "memory");
    return value;
}
static __device__ inline void store_relaxed_system(uint64_t *word, uint64_t value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(word)), "l"(value) : "memory");
}
// From some moment on.
static __device__ inline uint64_t clock_ns() {
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

#else

#include <time.h>

static inline uint64_t load_acquire_system(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
static inline uint32_t load_relaxed_system(const uint32_t *word) {
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}
static inline struct sixteen_bytes load_relaxed_system(const struct sixteen_bytes *at) {
    return {__atomic_load_n(&at->low, __ATOMIC_RELAXED), __atomic_load_n(&at->high, __ATOMIC_RELAXED)};
}
static inline uint64_t clock_ns() {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#endif

#endif
