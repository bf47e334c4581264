// The loss: a thread makes one row's gradients and terms (kernels/loss.h). Terms are summed over each block, then over
// the blocks, both in a fixed order: no atomics.
#include "kernels/cuda/common.cuh"

enum { THREADS = 128, TERMS = 6 };
static_assert(sizeof(struct farm_loss_stats) == TERMS * sizeof(double), "a double each");

// part: [TERMS][gridDim.x], one sum a block.
static __global__ void __launch_bounds__(THREADS)
    loss_rows(const struct farm_loss_config config, const struct farm_loss_batch batch, double *part) {
    const int row = (int)(blockIdx.x * THREADS + threadIdx.x);
    struct farm_loss_terms terms = {0, 0, 0, 0, 0, 0};
    if (row < batch.rows) {
        assert(batch.weight[row] == 0 || (batch.action[row] >= 0 && batch.action[row] < batch.actions));
        terms = farm_loss_row(&config, &batch, row);
    }
    const float term[TERMS] = {terms.policy, terms.baseline, terms.entropy, terms.kl, terms.clipped, terms.weight};
#pragma unroll
    for (int k = 0; k < TERMS; k++) {
        const double sum = farm_cuda_block_sum<THREADS>(term[k]);
        if (threadIdx.x == 0) part[(size_t)k * gridDim.x + blockIdx.x] = sum;
    }
}

// One warp a term.
static __global__ void __launch_bounds__(TERMS * 32)
    loss_sum(const double *part, uint32_t blocks, struct farm_loss_stats *stats) {
    const uint32_t lane = threadIdx.x % 32, k = threadIdx.x / 32;
    double *const total[TERMS] = {&stats->policy, &stats->baseline, &stats->entropy,
                                  &stats->kl,     &stats->clipped,  &stats->weight};
    double sum = 0;
    for (uint32_t b = lane; b < blocks; b += 32) sum += part[(size_t)k * blocks + b];
    sum = farm_cuda_warp_sum(sum);
#pragma unroll
    for (uint32_t t = 0; t < TERMS; t++)
        if (lane == 0 && t == k) *total[t] += sum;
}

size_t farm_cuda_loss_scratch_bytes(int rows) {
    return rows > 0 ? TERMS * sizeof(double) * farm_cuda_blocks((size_t)rows, THREADS) : 0;
}

enum farm_status farm_cuda_loss(struct CUstream_st *stream, const struct farm_loss_config *config,
                                const struct farm_loss_batch *batch, void *scratch, struct farm_loss_stats *stats,
                                struct farm_error *err) {
    if (batch->rows == 0) return FARM_OK;
    if (batch->rows < 0 || batch->actions < 1)
        return farm_fail(err, FARM_E_INVALID, "a loss of %d rows of %d actions", batch->rows, batch->actions);
    const unsigned blocks = farm_cuda_blocks((size_t)batch->rows, THREADS);
    const enum farm_status status =
        farm_cuda_launch({"loss_rows", stream, blocks, THREADS}, err, loss_rows, *config, *batch, (double *)scratch);
    if (status) return status;
    return farm_cuda_launch({"loss_sum", stream, 1, TERMS * 32}, err, loss_sum, (const double *)scratch, blocks, stats);
}

static __global__ void __launch_bounds__(THREADS)
    log_prob_rows(const float *logits, const int32_t *action, int rows, int actions, float *out) {
    const int row = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (row < rows) out[row] = farm_log_prob_row(logits + (size_t)row * (size_t)actions, actions, action[row]);
}

enum farm_status farm_cuda_log_prob_rows(struct CUstream_st *stream, const float *logits, const int32_t *action,
                                         int rows, int actions, float *out, struct farm_error *err) {
    if (rows == 0) return FARM_OK;
    if (rows < 0 || actions < 1)
        return farm_fail(err, FARM_E_INVALID, "log-probabilities of %d rows of %d actions", rows, actions);
    const unsigned blocks = farm_cuda_blocks((size_t)rows, THREADS);
    return farm_cuda_launch({"log_prob_rows", stream, blocks, THREADS}, err, log_prob_rows, logits, action, rows,
                            actions, out);
}
