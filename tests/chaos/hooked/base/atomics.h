// Stands before src/base/atomics.h on the chaos runner's include path: the same functions, with a call of chaos_hook
// before and after every atomic store, addition and fence, where a process may be delayed or killed. Only the chaos
// runner's own copies (CHAOS_SOURCES in mk/tests.mk) are compiled with it.
#ifndef TESTS_CHAOS_HOOKED_ATOMICS_H
#define TESTS_CHAOS_HOOKED_ATOMICS_H

#define farm_store_release unhooked_store_release
#define farm_store_relaxed unhooked_store_relaxed
#define farm_add_relaxed   unhooked_add_relaxed
#define farm_add32_release unhooked_add32_release
#define farm_fence_full    unhooked_fence_full
#include "../../../../src/base/atomics.h"
#undef farm_store_release
#undef farm_store_relaxed
#undef farm_add_relaxed
#undef farm_add32_release
#undef farm_fence_full

void chaos_hook(void);

static inline void farm_store_release(uint64_t *word, uint64_t value) {
    chaos_hook();
    unhooked_store_release(word, value);
    chaos_hook();
}
static inline void farm_store_relaxed(uint64_t *word, uint64_t value) {
    chaos_hook();
    unhooked_store_relaxed(word, value);
    chaos_hook();
}
static inline void farm_add_relaxed(uint64_t *word, uint64_t more) {
    chaos_hook();
    unhooked_add_relaxed(word, more);
    chaos_hook();
}
static inline void farm_add32_release(uint32_t *word, uint32_t more) {
    chaos_hook();
    unhooked_add32_release(word, more);
    chaos_hook();
}
static inline void farm_fence_full(void) {
    unhooked_fence_full();
    chaos_hook();
}

#endif
