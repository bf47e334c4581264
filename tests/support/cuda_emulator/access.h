// What a kernel on the CPU does to memory: see access.c.
#ifndef TESTS_SUPPORT_CUDA_EMULATOR_ACCESS_H
#define TESTS_SUPPORT_CUDA_EMULATOR_ACCESS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Before a store that the host may acquire: all that the block has stored must come before it, by barriers.
void farm_emulator_release(uint64_t *word);

// Whether a kernel's loads and stores are looked at, and its loads from registered memory counted: not in builds with a
// sanitizer.
extern const bool farm_emulator_sees_loads;

#ifdef __cplusplus
}
#endif
#endif
