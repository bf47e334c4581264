// Checks of a kernel's loads and stores on the CPU: see access.c.
#ifndef TESTS_SUPPORT_CUDA_EMULATOR_ACCESS_H
#define TESTS_SUPPORT_CUDA_EMULATOR_ACCESS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Called before a store that the host may acquire: barriers must order all stores of the block before it.
void farm_emulator_release(uint64_t *word);

// Whether a kernel's loads and stores are checked, and its loads from registered memory counted: not in builds with a
// sanitizer.
extern const bool farm_emulator_sees_loads;

#ifdef __cplusplus
}
#endif
#endif
