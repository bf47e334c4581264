// Memory of the two kinds that the CUDA backend takes, with messages that say what wanted how much. Runs in the
// learner; no state.
#ifndef FARM_LEARNER_CUDA_MEMORY_H
#define FARM_LEARNER_CUDA_MEMORY_H

#include <stddef.h>

#include "base/status.h"

// Memory of the current device, all zeros, or of the host, pinned and mapped for every device, zeros too. bytes 0 gives
// a valid pointer. out: the address of a pointer to anything; it becomes NULL on errors. `what` and `key` (the recipe's
// key that makes it smaller; NULL: none) are for the message of FARM_E_LIMIT.
enum farm_status farm_cuda_device_memory(size_t bytes, const char *what, const char *key, void *out,
                                         struct farm_error *err);
enum farm_status farm_cuda_host_memory(size_t bytes, const char *what, const char *key, void *out,
                                       struct farm_error *err);

// Address of such host memory as the current device sees it.
enum farm_status farm_cuda_mapped(void *host, void *out, struct farm_error *err);

#endif
