// See optimise.h.
#include "learner/cpu/optimise.h"

#include <math.h>
#include <stdlib.h>

enum { BLOCK = 4096 }; // parameters whose gradients stay in a core's cache while they are summed

static size_t block_count(const struct farm_cpu_optimiser *o) {
    return (o->net->parameter_count + BLOCK - 1) / BLOCK;
}

enum farm_status farm_cpu_optimiser_make(struct farm_cpu_optimiser *o, uint32_t most, float *mask,
                                         struct farm_error *err) {
    o->gradients = calloc(most, sizeof *o->gradients);
    o->squares = calloc(block_count(o), sizeof *o->squares);
    o->masked = calloc(block_count(o), sizeof *o->masked);
    if (!o->gradients || !o->squares || !o->masked)
        return farm_fail(err, FARM_E_LIMIT, "no memory for %zu parameters", o->net->parameter_count);
    o->trainable = farm_net_trainable(o->net, mask) ? mask : NULL;
    for (size_t i = 0; o->trainable && i < o->net->parameter_count; i++) o->masked[i / BLOCK] |= mask[i] == 0;
    return FARM_OK;
}

void farm_cpu_optimiser_free(struct farm_cpu_optimiser *o) {
    free(o->gradients);
    free(o->squares);
    free(o->masked);
}

// The parameters [from, end) of whole blocks that are one thread's.
struct range {
    size_t from, end;
};
static struct range range_of(const struct farm_cpu_optimiser *o, uint32_t piece) {
    const size_t blocks = block_count(o), end = blocks * (piece + 1) / o->threads;
    return (struct range){blocks * piece / o->threads * BLOCK, end == blocks ? o->net->parameter_count : end * BLOCK};
}

// A range of the sum, as a tree, neighbours first; and the squares of the result.
static void sum_range(void *context, uint32_t piece, uint32_t thread) {
    const struct farm_cpu_optimiser *o = context;
    const struct range range = range_of(o, piece);
    for (size_t from = range.from; from < range.end; from += BLOCK) {
        const size_t left = range.end - from, count = left < BLOCK ? left : BLOCK, block = from / BLOCK;
        float *sum = o->gradients[0] + from;
        for (size_t step = 1; step < o->gradient_count; step *= 2)
            for (size_t k = 0; k + step < o->gradient_count; k += 2 * step)
                farm_optimiser_add(o->gradients[k] + from, o->gradients[k + step] + from, count);
        for (size_t i = 0; i < count && o->trainable && o->masked[block]; i++)
            if (o->trainable[from + i] == 0) sum[i] = 0;
        o->squares[block] = farm_optimiser_squares(sum, count);
    }
}

static void update_range(void *context, uint32_t piece, uint32_t thread) {
    const struct farm_cpu_optimiser *o = context;
    const struct range range = range_of(o, piece);
    farm_optimiser_update(&o->config, &o->state, &o->factors, range.from, range.end, o->params, o->gradients[0]);
}

void farm_cpu_optimiser_sum(struct farm_cpu_optimiser *o, struct farm_pool *pool, uint32_t threads) {
    o->pool = pool;
    o->threads = threads;
    farm_pool_run(pool, threads, sum_range, o);
}

void farm_cpu_optimiser_step(struct farm_cpu_optimiser *o, float learning_rate, double scale,
                             struct farm_pass_stats *stats) {
    double squares = 0;
    for (size_t block = 0; block < block_count(o); block++) squares += o->squares[block];
    stats->grad_norm = scale * sqrt(squares);
    if (farm_optimiser_begin(&o->config, &o->state, learning_rate, stats->grad_norm, &o->factors)) {
        o->factors.gradient_scale *= (float)scale;
        farm_pool_run(o->pool, o->threads, update_range, o);
        return;
    }
    stats->grad_norm = INFINITY;
    stats->bad_step = o->state.step;
    stats->bad_tensor = farm_backend_bad_tensor(o->net, o->gradients[0]);
}
