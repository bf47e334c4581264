// Replaces src/base/atomics.h in the model tests: each access to a shared word is a step of the model checker
// (tests/model/explore.h), so the code of src/ring runs unchanged.
#ifndef FARM_BASE_ATOMICS_H
#define FARM_BASE_ATOMICS_H

#include <stdint.h>

#include "explore.h"

enum { FARM_CACHE_LINE = 64 };

static inline uint64_t farm_load_acquire(const uint64_t *word) {
    return model_load(word, MODEL_ACQUIRE);
}
static inline uint64_t farm_load_relaxed(const uint64_t *word) {
    return model_load(word, MODEL_RELAXED);
}
static inline void farm_store_release(uint64_t *word, uint64_t value) {
    model_store(word, value, MODEL_RELEASE);
}
static inline void farm_store_relaxed(uint64_t *word, uint64_t value) {
    model_store(word, value, MODEL_RELAXED);
}
static inline uint32_t farm_load32_acquire(const uint32_t *word) {
    return (uint32_t)model_load(word, MODEL_ACQUIRE);
}
// For mutants only.
static inline uint32_t farm_load32_relaxed(const uint32_t *word) {
    return (uint32_t)model_load(word, MODEL_RELAXED);
}
static inline void farm_store32_release(uint32_t *word, uint32_t value) {
    model_store(word, value, MODEL_RELEASE);
}
static inline void farm_add32_relaxed(uint32_t *word, uint32_t more) {
    model_add(word, more, MODEL_RELAXED);
}
static inline void farm_add32_release(uint32_t *word, uint32_t more) {
    model_add(word, more, MODEL_RELEASE);
}
static inline void farm_fence_full(void) {
    model_fence();
}
static inline void farm_cpu_relax(void) {}

#endif
