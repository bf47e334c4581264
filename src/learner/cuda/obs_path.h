// How observations cross the bus: by a kernel's loads, by bulk copies through shared memory, or by the copy engines.
// Which one, and with how many blocks, is measured at the start, on the rings themselves. So is what a copy of the
// host's into pinned memory costs where the rings are not registered. Runs in the learner.
#ifndef FARM_LEARNER_CUDA_OBS_PATH_H
#define FARM_LEARNER_CUDA_OBS_PATH_H

#include <stdbool.h>

#include "kernels/cuda/kernels.h"

// Bytes between neighbours that keep any remainder by 16.
static inline size_t farm_cuda_slot_bytes(size_t obs_bytes) {
    return (obs_bytes + 15) / 16 * 16 + 16;
}

struct farm_cuda_obs_path {
    bool copies; // by the copy engines, in batches of asynchronous copies; else by `way`
    enum farm_cuda_pull_way way;
    uint32_t blocks;
    double bytes_per_s; // measured; 0: not measured
};

enum { FARM_CUDA_OBS_PATH_PIECES = 64 };

// Observations to try it with, and where they go to in device memory.
struct farm_cuda_pieces {
    const void *from[FARM_CUDA_OBS_PATH_PIECES]; // registered: as the GPU sees them (copies read the same addresses)
    void *to[FARM_CUDA_OBS_PATH_PIECES];
    uint32_t count; // 0: nothing is measured
    size_t bytes;   // of each
    bool bounced;   // nothing is registered, `from` is the host's: it copies them into pinned memory first
};

// The fastest way; of two within 5 % the one with fewer blocks. Staged: pulled by loads, measured with the host's
// copies, beside one large copy from pinned memory. Says what it measured.
enum farm_status farm_cuda_obs_path_choose(struct CUstream_st *stream, const struct farm_cuda_pieces *pieces,
                                           struct farm_cuda_obs_path *out, struct farm_error *err);

// Puts the copies into the stream, which is not being captured.
enum farm_status farm_cuda_obs_path_copy(struct CUstream_st *stream, const void *const *from, void *const *to,
                                         const size_t *bytes, uint32_t count, struct farm_error *err);

#endif
