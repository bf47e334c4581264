// What a kernel on the CPU does to memory: see access.c.
#ifndef TESTS_SUPPORT_CUDA_STANDIN_ACCESS_H
#define TESTS_SUPPORT_CUDA_STANDIN_ACCESS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Before a store that the host may acquire: all that the block has stored must come before it, by barriers.
void farm_standin_release(uint64_t *word);

#ifdef __cplusplus
}
#endif
#endif
