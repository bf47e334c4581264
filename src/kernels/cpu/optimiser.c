// See optimiser.h.
#include "kernels/optimiser.h"

#include <assert.h>

#include "kernels/optimiser_loops.h"

static void add_loop(float *sum, const float *more, size_t count) {
    for (size_t i = 0; i < count; i++) sum[i] += more[i];
}

// Four independent sums, so that additions do not wait for each other.
static double sum_squares(const float *x, size_t count) {
    double sum[4] = {0};
    size_t i = 0;
    for (; i + 4 <= count; i += 4)
        for (size_t j = 0; j < 4; j++) sum[j] += (double)x[i + j] * (double)x[i + j];
    for (; i < count; i++) sum[0] += (double)x[i] * (double)x[i];
    return sum[0] + sum[1] + sum[2] + sum[3];
}

static void rmsprop_loop(const struct farm_optimiser_factors *factors, const float *grads, float *second, float *params,
                         size_t count) {
    for (size_t i = 0; i < count; i++) farm_rmsprop_update(factors, grads[i], second + i, params + i);
}

static void adam_loop(const struct farm_optimiser_factors *factors, const float *grads, float *first, float *second,
                      float *params, size_t count) {
    for (size_t i = 0; i < count; i++) farm_adam_update(factors, grads[i], first + i, second + i, params + i);
}

static const struct farm_optimiser_loops *loops_of_this_cpu(void) {
    static const struct farm_optimiser_loops portable = {add_loop, sum_squares, rmsprop_loop, adam_loop};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &farm_optimiser_avx2;
#endif
    return &portable;
}

void farm_optimiser_init(const struct farm_optimiser_config *config, size_t count, float *first, float *second,
                         struct farm_optimiser_state *state) {
    assert(second && (first || config->kind == FARM_OPTIMISER_RMSPROP));
    *state = (struct farm_optimiser_state){.count = count, .step = 0, .first = first, .second = second};
    for (size_t i = 0; i < count; i++) second[i] = config->second_initial;
    for (size_t i = 0; first && i < count; i++) first[i] = 0;
}

void farm_optimiser_add(float *sum, const float *more, size_t count) {
    loops_of_this_cpu()->add(sum, more, count);
}

double farm_optimiser_squares(const float *grads, size_t count) {
    return loops_of_this_cpu()->sum_squares(grads, count);
}

bool farm_optimiser_begin(const struct farm_optimiser_config *config, struct farm_optimiser_state *state,
                          float learning_rate, double norm, struct farm_optimiser_factors *factors) {
    if (!farm_optimiser_applies(config, norm)) return false;
    state->step++;
    *factors = farm_optimiser_factors_make(config, state->step, learning_rate, norm);
    return true;
}

void farm_optimiser_update(const struct farm_optimiser_config *config, const struct farm_optimiser_state *state,
                           const struct farm_optimiser_factors *factors, size_t from, size_t to, float *params,
                           const float *grads) {
    const struct farm_optimiser_loops *loops = loops_of_this_cpu();
    if (config->kind == FARM_OPTIMISER_ADAM)
        loops->adam(factors, grads + from, state->first + from, state->second + from, params + from, to - from);
    else
        loops->rmsprop(factors, grads + from, state->second + from, params + from, to - from);
}
