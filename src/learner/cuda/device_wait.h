// How long the host waits for a GPU. One that is lost answers with an error; one that hangs says nothing and never
// ends. Whoever has waited for longer than the learner's gpu_limit_s gives it up, for all threads: nobody waits for it
// again, and nothing of it is given back, for that would be to wait for it: the process ends. Runs in the learner.
#ifndef FARM_LEARNER_CUDA_DEVICE_WAIT_H
#define FARM_LEARNER_CUDA_DEVICE_WAIT_H

#include <stdbool.h>

#include "learner/cuda/context.h"

double farm_cuda_limit_s(const struct farm_learner_config *learner);

void farm_cuda_give_up(struct farm_cuda_context *context);
bool farm_cuda_given_up(const struct farm_cuda_context *context);

// For who waits since start_ns for `what`, which has not ended: FARM_E_DEAD once that is too long, and where another
// thread has given the GPU up.
enum farm_status farm_cuda_wait_expired(struct farm_cuda_context *context, uint64_t start_ns, const char *what,
                                        struct farm_error *err);

// Sleeps a 64th of what has been waited since start_ns, 20 us at least and 1 ms at most.
void farm_cuda_nap(uint64_t start_ns);

#endif
