// Replaces src/base/atomics.h in the model tests: each access to a shared word is a step of the model checker
// (tests/model/explore.h), so the code of src/ring runs unchanged.
#ifndef FARM_BASE_ATOMICS_H
#define FARM_BASE_ATOMICS_H

#include <stdint.h>

#include "explore.h"

enum { FARM_CACHE_LINE = 64 };

#define farm_load_acquire(word)         model_load(word, MODEL_ACQUIRE)
#define farm_load_relaxed(word)         model_load(word, MODEL_RELAXED)
#define farm_store_release(word, value) model_store(word, value, MODEL_RELEASE)
#define farm_store_relaxed(word, value) model_store(word, value, MODEL_RELAXED)
#define farm_load32_acquire(word)       ((uint32_t)model_load(word, MODEL_ACQUIRE))
#define farm_add32_release(word, more)  model_add(word, more, MODEL_RELEASE)
#define farm_fence_full()               model_fence()
#define farm_cpu_relax()                ((void)0)
// For mutants only.
#define farm_load32_relaxed(word)         ((uint32_t)model_load(word, MODEL_RELAXED))
#define farm_store32_release(word, value) model_store(word, value, MODEL_RELEASE)
#define farm_add32_relaxed(word, more)    model_add(word, more, MODEL_RELAXED)

#endif
