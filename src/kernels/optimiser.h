// Optimisers over one flat vector of f32 parameters: RMSProp as in TensorFlow (epsilon inside the square root, moment
// starts at 1, no momentum) and Adam (Kingma, Ba 2015; epsilon outside, bias correction, no weight decay), after
// clipping the gradient's global norm. One thread of the learner owns a state: its step count and the flat vectors
// `first` and `second`, in memory of the caller, so that the backend places them and a checkpoint writes them.
#ifndef FARM_KERNELS_OPTIMISER_H
#define FARM_KERNELS_OPTIMISER_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/device.h"

enum farm_optimiser_kind { FARM_OPTIMISER_RMSPROP, FARM_OPTIMISER_ADAM };

struct farm_optimiser_config {
    enum farm_optimiser_kind kind;
    float first_decay;    // Adam's beta1; RMSProp does not read it
    float second_decay;   // RMSProp's decay, Adam's beta2
    float epsilon;        // RMSProp: g / sqrt(second + epsilon); Adam: m / (sqrt(v) + epsilon)
    float second_initial; // what `second` starts from: TensorFlow's RMSProp 1, Adam 0
    float clip_norm;      // the gradient is scaled to at most this norm; 0: not clipped
};

struct farm_optimiser_state {
    size_t count;  // parameters
    uint64_t step; // updates done
    float *first;  // [count] Adam's first moment; NULL for RMSProp
    float *second; // [count] second moment
};

// RMSProp: IMPALA on Atari (decay .99, epsilon .01, norm 40). Adam: .9, .999, 1e-8, norm 40.
static inline FARM_HD struct farm_optimiser_config farm_optimiser_default(enum farm_optimiser_kind kind) {
    struct farm_optimiser_config config;
    config.kind = kind;
    config.first_decay = 0.9f;
    config.second_decay = kind == FARM_OPTIMISER_RMSPROP ? 0.99f : 0.999f;
    config.epsilon = kind == FARM_OPTIMISER_RMSPROP ? 0.01f : 1e-8f;
    config.second_initial = kind == FARM_OPTIMISER_RMSPROP ? 1.0f : 0.0f;
    config.clip_norm = 40.0f;
    return config;
}

// The share of a run that has passed, 0 to 1: of its frames or of its seconds, whichever is nearer to its end. A total
// of 0 sets no end; without any the share is 0.
static inline double farm_schedule_share(uint64_t frames, uint64_t frames_total, double seconds, double seconds_total) {
    const double of_frames = frames_total ? (double)frames / (double)frames_total : 0;
    const double of_seconds = seconds_total > 0 ? seconds / seconds_total : 0;
    return fmin(1, fmax(0, fmax(of_frames, of_seconds)));
}

// The learning rate after this share of a run: `initial` for the share `hold` (below 1), then linearly to `final`.
static inline double farm_learning_rate_linear(double initial, double final, double hold, double share) {
    const double passed = fmax(0, share - hold) / (1 - hold);
    return passed < 1 ? initial + (final - initial) * passed : final;
}

// Squares of larger gradients exceed f32's range, and a second moment stays infinite.
#define FARM_OPTIMISER_NORM_MAX 1e18

// Whether a gradient of this norm is applied: it is finite, and at most FARM_OPTIMISER_NORM_MAX after clipping.
static inline FARM_HD bool farm_optimiser_applies(const struct farm_optimiser_config *config, double norm) {
    const double clip_norm = config->clip_norm, applied = clip_norm > 0 && norm > clip_norm ? clip_norm : norm;
    return isfinite(norm) && applied <= FARM_OPTIMISER_NORM_MAX;
}

// The factors of one update; the same for every parameter.
struct farm_optimiser_factors {
    float gradient_scale; // clips the norm
    float rate;           // learning rate; Adam: divided by 1 - beta1^step
    float first_decay, second_decay, epsilon;
    float second_scale; // Adam: 1 / sqrt(1 - beta2^step)
};

// step: 1 for the first update. norm: of the whole gradient, before clipping.
static inline FARM_HD struct farm_optimiser_factors
farm_optimiser_factors_make(const struct farm_optimiser_config *config, uint64_t step, float learning_rate,
                            double norm) {
    struct farm_optimiser_factors factors;
    const double clip_norm = config->clip_norm;
    factors.gradient_scale = clip_norm > 0 && norm > clip_norm ? (float)(clip_norm / norm) : 1.0f;
    factors.rate = learning_rate;
    factors.first_decay = config->first_decay;
    factors.second_decay = config->second_decay;
    factors.epsilon = config->epsilon;
    factors.second_scale = 1.0f;
    if (config->kind == FARM_OPTIMISER_ADAM) {
        factors.rate = (float)(learning_rate / (1 - pow(config->first_decay, (double)step)));
        factors.second_scale = (float)(1 / sqrt(1 - pow(config->second_decay, (double)step)));
    }
    return factors;
}

// One parameter: second <- decay second + (1 - decay) g^2;  param <- param - rate g / sqrt(second + epsilon).
static inline FARM_HD void farm_rmsprop_update(const struct farm_optimiser_factors *factors, float gradient,
                                               float *second, float *param) {
    const float g = gradient * factors->gradient_scale;
    *second = factors->second_decay * *second + (1 - factors->second_decay) * g * g;
    *param -= factors->rate * g / sqrtf(*second + factors->epsilon);
}

// One parameter: m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;  param <- param - rate m / (sqrt(v)
// scale + epsilon).
static inline FARM_HD void farm_adam_update(const struct farm_optimiser_factors *factors, float gradient, float *first,
                                            float *second, float *param) {
    const float g = gradient * factors->gradient_scale;
    *first = factors->first_decay * *first + (1 - factors->first_decay) * g;
    *second = factors->second_decay * *second + (1 - factors->second_decay) * g * g;
    *param -= factors->rate * *first / (sqrtf(*second) * factors->second_scale + factors->epsilon);
}

// Sets *state to step 0 over the caller's vectors (first may be NULL for RMSProp) and fills in their start.
void farm_optimiser_init(const struct farm_optimiser_config *config, size_t count, float *first, float *second,
                         struct farm_optimiser_state *state);

// An update in parts, which threads may share. farm_optimiser_add: sum [count] += more [count], which do not overlap.
// farm_optimiser_squares: the sum of squares, in double precision.
void farm_optimiser_add(float *sum, const float *more, size_t count);
double farm_optimiser_squares(const float *grads, size_t count);

// Counts the update of a gradient of this norm (unclipped) and makes its factors, if farm_optimiser_applies.
bool farm_optimiser_begin(const struct farm_optimiser_config *config, struct farm_optimiser_state *state,
                          float learning_rate, double norm, struct farm_optimiser_factors *factors);
// Then updates parameters [from, to) of params [state->count]; once each.
void farm_optimiser_update(const struct farm_optimiser_config *config, const struct farm_optimiser_state *state,
                           const struct farm_optimiser_factors *factors, size_t from, size_t to, float *params,
                           const float *grads);

#endif
