// The smallest network that round_trip.c has the learner run, for the benchmarks that take its round trip apart: eight
// numbers, a dense layer of eight with ReLU, the heads; bf16 as on the backend's path. A product of two bf16 numbers is
// exact in f32, so that CPU and GPU give the same bits where they add in the same order.
#ifndef FARM_TESTS_GPU_SMALLEST_CUH
#define FARM_TESTS_GPU_SMALLEST_CUH

#include "kernels/layers.h"
#include "support.cuh"

extern "C" {
#include "nn/net.h"
}

enum {
    SMALLEST_FLAT = 8,
    SMALLEST_UNITS = 8,
    SMALLEST_ACTIONS = 6,
    SMALLEST_OUTPUTS = SMALLEST_ACTIONS + 1,
    // the flat vector of parameters, in the order of net.h
    SMALLEST_BIAS = SMALLEST_FLAT * SMALLEST_UNITS,
    SMALLEST_HEADS = SMALLEST_BIAS + SMALLEST_UNITS,
    SMALLEST_HEADS_BIAS = SMALLEST_HEADS + SMALLEST_UNITS * SMALLEST_OUTPUTS,
    SMALLEST_PARAMETERS = SMALLEST_HEADS_BIAS + SMALLEST_OUTPUTS
};

static inline struct farm_net smallest_net(void) {
    static const struct farm_net_spec spec = {
        "smallest", "one small layer", 1, {{FARM_LAYER_DENSE, SMALLEST_UNITS, 0, 0, FARM_ACTIVATION_RELU}}};
    const struct farm_net_io io = {0, 0, 0, 1, SMALLEST_FLAT, SMALLEST_ACTIONS};
    struct farm_net net;
    FARM(farm_net_make(&spec, &io, &net, err));
    if (net.parameter_count != SMALLEST_PARAMETERS) {
        fprintf(stderr, "FAIL the smallest network has %zu parameters\n", net.parameter_count);
        exit(1);
    }
    return net;
}

static inline void smallest_parameters(struct random *rng, float *params, uint16_t *params_bf16) {
    for (int i = 0; i < SMALLEST_PARAMETERS; i++) {
        params[i] = random_float(rng, -1, 1);
        params_bf16[i] = farm_bf16(params[i]);
    }
}

static inline FARM_HD float smallest_sum(const uint16_t *weights, const uint16_t *bias, const float *x, int count) {
    float sum = 0;
    for (int i = 0; i < count; i++) sum += farm_bf16_value(weights[i]) * x[i];
    return sum + farm_bf16_value(*bias);
}

// Of unit i, before it is rounded. x: [SMALLEST_FLAT], rounded.
static inline FARM_HD float smallest_unit(const uint16_t *params, const float *x, uint32_t i) {
    return farm_slope_apply(FARM_SLOPE_RELU,
                            smallest_sum(params + i * SMALLEST_FLAT, params + SMALLEST_BIAS + i, x, SMALLEST_FLAT));
}

// Logit i, or the value. units: [SMALLEST_UNITS], rounded.
static inline FARM_HD float smallest_output(const uint16_t *params, const float *units, uint32_t i) {
    return smallest_sum(params + SMALLEST_HEADS + i * SMALLEST_UNITS, params + SMALLEST_HEADS_BIAS + i, units,
                        SMALLEST_UNITS);
}

static inline void smallest_forward(const uint16_t *params, const float *observation, float *outputs) {
    float x[SMALLEST_FLAT], units[SMALLEST_UNITS];
    for (int i = 0; i < SMALLEST_FLAT; i++) x[i] = farm_bf16_value(farm_bf16(observation[i]));
    for (uint32_t i = 0; i < SMALLEST_UNITS; i++) units[i] = farm_bf16_value(farm_bf16(smallest_unit(params, x, i)));
    for (uint32_t i = 0; i < SMALLEST_OUTPUTS; i++) outputs[i] = smallest_output(params, units, i);
}

#endif
