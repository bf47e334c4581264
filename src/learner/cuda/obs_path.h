// How observations cross the bus: by a kernel's loads, by bulk copies through shared memory, or by the copy engines.
// Measured at the start, on the rings themselves, with two numbers of blocks; without registration, together with the
// host's copies into pinned memory (the bounce buffer). Runs in the learner.
#ifndef FARM_LEARNER_CUDA_OBS_PATH_H
#define FARM_LEARNER_CUDA_OBS_PATH_H

#include <stdbool.h>

#include "kernels/cuda/kernels.h"

// Distance of neighbours that leaves room for any remainder by 16.
static inline size_t farm_cuda_slot_bytes(size_t obs_bytes) {
    return (obs_bytes + 15) / 16 * 16 + 16;
}

struct farm_cuda_obs_path {
    bool copies; // by the copy engines, in batches of asynchronous copies; else by `way`
    enum farm_cuda_pull_way way;
    uint32_t blocks;
    double bytes_per_s; // measured, without the launch of inference's graph; 0: not measured
};

enum { FARM_CUDA_OBS_PATH_PIECES = 64 };

// Observations of the trial, and their targets in device memory.
struct farm_cuda_pieces {
    const void *from[FARM_CUDA_OBS_PATH_PIECES]; // registered: device addresses
    void *to[FARM_CUDA_OBS_PATH_PIECES];
    uint32_t count; // 0: nothing is measured
    size_t bytes;   // each one's
    bool bounced;   // not registered: `from` are host addresses, copied into pinned memory first
};

// The fastest way, without the launch of inference's graph, which each way has; of two within 5 % the one with fewer
// blocks. Bounced: by loads, measured with the host's copies, beside one large copy from pinned memory. Logs the
// figures.
enum farm_status farm_cuda_obs_path_choose(struct CUstream_st *stream, const struct farm_cuda_pieces *pieces,
                                           struct farm_cuda_obs_path *out, struct farm_error *err);

// Enqueues the copies. The stream must not be capturing.
enum farm_status farm_cuda_obs_path_copy(struct CUstream_st *stream, const void *const *from, void *const *to,
                                         const size_t *bytes, uint32_t count, struct farm_error *err);

#endif
