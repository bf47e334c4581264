// The sum of all GPUs' gradients, by NCCL: one process, one communicator per device, all driven by the training thread.
// Every device gets the same bits, so each updates its own parameters and they stay equal. A lost GPU leaves the others
// waiting in the sum until farm_cuda_reduce_abort. Runs in the learner.
#ifndef FARM_LEARNER_CUDA_REDUCE_H
#define FARM_LEARNER_CUDA_REDUCE_H

#include <stdbool.h>

#include "learner/config.h"
#include "nn/cuda/vendor.h"

struct farm_cuda_reduce {
    struct farm_nccl nccl;
    ncclComm_t comms[FARM_LEARNER_SHARDS_MAX]; // NULL: aborted
    uint32_t count;
};

// FARM_E_NOT_FOUND without NCCL; FARM_E_IO if it does not connect the devices.
enum farm_status farm_cuda_reduce_open(const int *devices, uint32_t count, struct farm_cuda_reduce *out,
                                       struct farm_error *err);
void farm_cuda_reduce_close(struct farm_cuda_reduce *reduce); // safe on a zeroed one, and after abort

// Enqueues vector k += all others, f32 [count] in the memory of device k, into stream k, of that device.
enum farm_status farm_cuda_reduce_sum(struct farm_cuda_reduce *reduce, float *const *vectors, size_t count,
                                      struct CUstream_st *const *streams, struct farm_error *err);

// FARM_E_IO if an enqueued sum has failed.
enum farm_status farm_cuda_reduce_check(const struct farm_cuda_reduce *reduce, struct farm_error *err);

// Ends sums that wait for a lost device; no later call of this interface is allowed except close.
void farm_cuda_reduce_abort(struct farm_cuda_reduce *reduce);

#endif
