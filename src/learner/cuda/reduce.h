// The sum of all GPUs' gradients, by NCCL: one process, one communicator a device, all driven by the training thread.
// Every device has the same bits afterwards, so that parameters, updated on each, stay the same without being sent.
// A GPU that is lost leaves the others waiting in the sum: whoever notices aborts. Runs in the learner.
#ifndef FARM_LEARNER_CUDA_REDUCE_H
#define FARM_LEARNER_CUDA_REDUCE_H

#include <stdbool.h>

#include "learner/config.h"
#include "nn/cuda/vendor.h"

struct farm_cuda_reduce {
    struct farm_nccl nccl;
    ncclComm_t comms[FARM_LEARNER_SHARDS_MAX]; // NULL: none, or aborted
    uint32_t count;
};

// FARM_E_NOT_FOUND without NCCL; FARM_E_IO where it does not connect the devices.
enum farm_status farm_cuda_reduce_open(const int *devices, uint32_t count, struct farm_cuda_reduce *out,
                                       struct farm_error *err);
void farm_cuda_reduce_close(struct farm_cuda_reduce *reduce); // safe on a zeroed one, and after abort

// Puts vector k += all others, f32 [count] in the memory of device k, into stream k, which is that device's.
enum farm_status farm_cuda_reduce_sum(struct farm_cuda_reduce *reduce, float *const *vectors, size_t count,
                                      struct CUstream_st *const *streams, struct farm_error *err);

// Whether a sum that was put into streams has failed meanwhile.
enum farm_status farm_cuda_reduce_check(const struct farm_cuda_reduce *reduce, struct farm_error *err);

// Ends sums that wait for a device that will not come, and all use of this.
void farm_cuda_reduce_abort(struct farm_cuda_reduce *reduce);

#endif
