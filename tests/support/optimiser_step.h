// One update by the optimiser of src/kernels/cpu, from a gradient to parameters.
#ifndef TESTS_SUPPORT_OPTIMISER_STEP_H
#define TESTS_SUPPORT_OPTIMISER_STEP_H

#include <math.h>

#include "kernels/optimiser.h"

// Updates params [state->count] by grads [state->count]. Returns the gradient's norm before clipping. If
// farm_optimiser_applies refuses it, nothing changes, not even the state, and the result is INFINITY.
static inline float optimiser_step(const struct farm_optimiser_config *config, struct farm_optimiser_state *state,
                                   float learning_rate, float *params, const float *grads) {
    const double norm = sqrt(farm_optimiser_squares(grads, state->count));
    struct farm_optimiser_factors factors;
    if (!farm_optimiser_begin(config, state, learning_rate, norm, &factors)) return INFINITY;
    farm_optimiser_update(config, state, &factors, 0, state->count, params, grads);
    return (float)norm;
}

#endif
