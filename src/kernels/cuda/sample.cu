// Sampling: a thread chooses one row's action (kernels/head.h).
#include "kernels/cuda/common.cuh"

enum { THREADS = 64 };

static __global__ void __launch_bounds__(THREADS) sample_rows(const struct farm_cuda_sample s) {
    const uint32_t row = blockIdx.x * THREADS + threadIdx.x;
    if (row >= s.rows) return;
    const size_t at = (size_t)row * (size_t)s.head.outputs;
    struct farm_sampler sampler = s.sampler;
    if (s.version) sampler.version = *s.version;
    if (s.mask) farm_head_mask(&s.head, s.mask + at, s.policy + at);
    farm_head_finish(&s.head, s.policy + at, &s.value[row]);
    const size_t action = (size_t)row * (size_t)s.head.action_bytes;
    farm_head_choose(&s.head, &sampler, s.stream[row], s.counter[row], s.policy + at, s.action + action,
                     s.head.samples ? s.sample + action : NULL);
}

enum farm_status farm_cuda_sample(struct CUstream_st *stream, const struct farm_cuda_sample *sample,
                                  struct farm_error *err) {
    if (sample->rows == 0) return FARM_OK;
    if (sample->head.outputs < 1)
        return farm_fail(err, FARM_E_INVALID, "sampling from %d numbers", sample->head.outputs);
    const unsigned blocks = farm_cuda_blocks(sample->rows, THREADS);
    return farm_cuda_launch({"sample_rows", stream, blocks, THREADS}, err, sample_rows, *sample);
}
