// Sampling: a thread chooses one row's action (kernels/sample.h).
#include "kernels/cuda/common.cuh"

enum { THREADS = 64 };

static __global__ void __launch_bounds__(THREADS) sample_rows(const struct farm_cuda_sample s) {
    const uint32_t row = blockIdx.x * THREADS + threadIdx.x;
    if (row >= s.rows) return;
    s.action[row] = farm_sample_action(&s.sampler, s.stream[row], s.counter[row],
                                       s.logits + (size_t)row * (size_t)s.actions, s.actions);
}

enum farm_status farm_cuda_sample(struct CUstream_st *stream, const struct farm_cuda_sample *sample,
                                  struct farm_error *err) {
    if (sample->rows == 0) return FARM_OK;
    if (sample->actions < 1) return farm_fail(err, FARM_E_INVALID, "sampling from %d actions", sample->actions);
    const unsigned blocks = farm_cuda_blocks(sample->rows, THREADS);
    return farm_cuda_launch({"sample_rows", stream, blocks, THREADS}, err, sample_rows, *sample);
}
