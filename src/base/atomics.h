// Atomic access to plain uint64_t and uint32_t words in shared memory. Layout structs hold plain words because
// nvcc refuses _Atomic members; every access goes through these functions, so the ordering is named at each use.
// Runs in every process. Words must be naturally aligned.
#ifndef FARM_BASE_ATOMICS_H
#define FARM_BASE_ATOMICS_H

#include <stdint.h>

enum { FARM_CACHE_LINE = 64 };

static inline uint64_t farm_load_acquire(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
static inline uint64_t farm_load_relaxed(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}
static inline void farm_store_release(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
static inline void farm_store_relaxed(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}
static inline uint32_t farm_load32_acquire(const uint32_t *word) {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
static inline void farm_store32_release(uint32_t *word, uint32_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
static inline void farm_add_relaxed(uint64_t *word, uint64_t more) {
    (void)__atomic_fetch_add(word, more, __ATOMIC_RELAXED);
}
// Changes the word from 0 to 1; false: it was not 0.
static inline int farm_claim_relaxed(uint64_t *word) {
    uint64_t free = 0;
    return __atomic_compare_exchange_n(word, &free, 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
static inline void farm_add32_release(uint32_t *word, uint32_t more) {
    (void)__atomic_fetch_add(word, more, __ATOMIC_RELEASE);
}

// Orders every earlier store before every later load (store→load), which neither acquire nor release does.
static inline void farm_fence_full(void) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

// Orders earlier stores past the caches (farm/obs.h) before later stores, which on x86 nothing else does. Else: none.
static inline void farm_fence_streams(void) {
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}

// Tells the core that this is a spin loop.
static inline void farm_cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

#endif
