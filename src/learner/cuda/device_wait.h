// How long the host waits for a GPU. A lost GPU returns an error; a hanging GPU returns nothing and never ends its
// work. A thread that has waited longer than the learner's device.limit_s gives the GPU up for all threads: none waits
// for it again, its resources are leaked on purpose (freeing them could block), and the process ends. Runs in the
// learner.
#ifndef FARM_LEARNER_CUDA_DEVICE_WAIT_H
#define FARM_LEARNER_CUDA_DEVICE_WAIT_H

#include <stdbool.h>

#include "learner/cuda/context.h"

double farm_cuda_limit_s(const struct farm_learner_config *learner);

void farm_cuda_give_up(struct farm_cuda_context *context);
bool farm_cuda_given_up(const struct farm_cuda_context *context);

// Called while `what`, for which the thread has waited since start_ns, has not ended. FARM_E_DEAD after the limit, or
// if another thread has given the GPU up.
enum farm_status farm_cuda_wait_expired(struct farm_cuda_context *context, uint64_t start_ns, const char *what,
                                        struct farm_error *err);

// Sleeps a 64th of the time since start_ns: at least 20 us, at most 1 ms.
void farm_cuda_nap(uint64_t start_ns);

#endif
