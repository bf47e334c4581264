// One update of the flat vector of parameters (kernels/optimiser.h): each block sums squares, one block sums these and
// decides, one pass computes moments, parameters and the bf16 copy. Sums are f64, in an order that depends on the
// number of parameters only: the same gradient gives the same bits on every device.
#include "kernels/cuda/common.cuh"

enum { THREADS = 256, MOST_BLOCKS = FARM_CUDA_OPTIMISER_BLOCKS };

static unsigned blocks_of(size_t count) {
    const unsigned blocks = farm_cuda_blocks(count, 4 * THREADS);
    return blocks < unsigned(MOST_BLOCKS) ? blocks : unsigned(MOST_BLOCKS);
}

static __global__ void __launch_bounds__(THREADS) sum_squares(const float *x, size_t count, double *part) {
    double sum = 0;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (size_t)gridDim.x * THREADS)
        sum += (double)x[i] * (double)x[i];
    sum = farm_cuda_block_sum<THREADS>(sum);
    if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(MOST_BLOCKS)
    decide(const struct farm_optimiser_config config, const double *part, uint32_t parts,
           struct farm_cuda_optimiser_control *control) {
    const double sum = farm_cuda_block_sum<MOST_BLOCKS>(threadIdx.x < parts ? part[threadIdx.x] : 0);
    if (threadIdx.x > 0) return;
    const double norm = sqrt(sum);
    const bool applied = farm_optimiser_applies(&config, norm);
    control->applied = applied;
    control->norm = applied ? norm : (double)INFINITY;
    if (!applied) return;
    control->step++;
    control->factors = farm_optimiser_factors_make(&config, control->step, control->learning_rate, norm);
}

template <bool ADAM> static __global__ void __launch_bounds__(THREADS) update(const struct farm_cuda_optimiser o) {
    if (!o.control->applied) return;
    const struct farm_optimiser_factors factors = o.control->factors;
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= o.count) return;
    float param = o.params[i];
    if (ADAM)
        farm_adam_update(&factors, o.gradients[i], o.first + i, o.second + i, &param);
    else
        farm_rmsprop_update(&factors, o.gradients[i], o.second + i, &param);
    o.params[i] = param;
    if (o.params_bf16) o.params_bf16[i] = farm_cuda_bf16(param);
}

enum farm_status farm_cuda_optimiser_step(struct CUstream_st *stream, const struct farm_cuda_optimiser *o,
                                          struct farm_error *err) {
    const bool adam = o->config.kind == FARM_OPTIMISER_ADAM;
    if (adam && !o->first) return farm_fail(err, FARM_E_INVALID, "Adam needs a vector for its first moment");
    const unsigned blocks = blocks_of(o->count);
    enum farm_status status = FARM_OK;
    if (blocks > 0)
        status = farm_cuda_launch({"sum_squares", stream, blocks, THREADS}, err, sum_squares, o->gradients, o->count,
                                  (double *)o->scratch);
    if (status) return status;
    status = farm_cuda_launch({"decide", stream, 1, MOST_BLOCKS}, err, decide, o->config, (const double *)o->scratch,
                              blocks, o->control);
    if (status || blocks == 0) return status;
    const unsigned all = farm_cuda_blocks(o->count, THREADS);
    return farm_cuda_launch({"update", stream, all, THREADS}, err, adam ? update<true> : update<false>, *o);
}

static __global__ void __launch_bounds__(THREADS) scale(float *x, size_t count, float factor, const float *mask) {
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (size_t)gridDim.x * THREADS)
        x[i] = mask && mask[i] == 0 ? 0 : x[i] * factor;
}

enum farm_status farm_cuda_scale(struct CUstream_st *stream, float *x, size_t count, float factor, const float *mask,
                                 struct farm_error *err) {
    if (count == 0) return FARM_OK;
    return farm_cuda_launch({"scale", stream, blocks_of(count), THREADS}, err, scale, x, count, factor, mask);
}
