// How observations cross the bus: by a kernel's loads, by bulk copies through shared memory, or by the copy engines.
// Which one, and with how many blocks, is measured at the start, on the rings themselves. Runs in the learner.
#ifndef FARM_LEARNER_CUDA_CROSSING_H
#define FARM_LEARNER_CUDA_CROSSING_H

#include <stdbool.h>

#include "kernels/cuda/kernels.h"

struct farm_cuda_crossing {
    bool copies; // by the copy engines, in batches of asynchronous copies; else by `way`
    enum farm_cuda_pull_way way;
    uint32_t blocks;
    double bytes_per_s; // measured; 0: not measured
};

// The fastest way for `count` pieces of `bytes`: from (as the GPU sees them; copies read the same addresses) to device
// memory. Of two within 5 % the one with fewer blocks. Both lists lie in the host's memory. Says what it measured.
enum farm_status farm_cuda_crossing_choose(struct CUstream_st *stream, const void *const *from, void *const *to,
                                           uint32_t count, size_t bytes, struct farm_cuda_crossing *out,
                                           struct farm_error *err);

// Puts the copies into the stream, which is not being captured.
enum farm_status farm_cuda_crossing_copy(struct CUstream_st *stream, const void *const *from, void *const *to,
                                         const size_t *bytes, uint32_t count, struct farm_error *err);

#endif
