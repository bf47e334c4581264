// The head of continuous actions: a Gaussian with independent dimensions. The policy is `dims` means, then `dims`
// logarithms of standard deviations (parameters by themselves, or the network's); the draw is `dims` f32 without bounds
// (the actor clips what the environment gets, log-probabilities are of the draw). Sampling, greedy choice (the mean),
// log-probability, entropy, KL divergence and gradient of one row. For inference and training.
//
// The action is offset + scale * draw in each dimension (farm_head_scale): recipe key `scale_actions` maps finite
// bounds to [-1, 1], so that means of 0 and deviations of about 1 explore any range; otherwise offset 0 and scale 1.
// All functions here compute on the draw. Log-probabilities and entropies are thus of the draw, too: those of the
// action differ by the constant sum log(scale), which no gradient, ratio or KL divergence depends on.
//
// Logarithms of standard deviations count within [-10, 2]; beyond, their gradient is 0.
#ifndef FARM_KERNELS_HEAD_GAUSSIAN_H
#define FARM_KERNELS_HEAD_GAUSSIAN_H

#include <math.h>
#include <stdbool.h>

#include "kernels/random.h"

#define FARM_GAUSSIAN_LOG_SIGMA_LEAST (-10.0f)
#define FARM_GAUSSIAN_LOG_SIGMA_MOST  2.0f
#define FARM_GAUSSIAN_HALF_LOG_2PI    0.9189385332046727f

// NaN stays NaN, so that a diverged network is noticed.
static inline FARM_HD float farm_gaussian_log_sigma(float output) {
    return output < FARM_GAUSSIAN_LOG_SIGMA_LEAST  ? FARM_GAUSSIAN_LOG_SIGMA_LEAST
           : output > FARM_GAUSSIAN_LOG_SIGMA_MOST ? FARM_GAUSSIAN_LOG_SIGMA_MOST
                                                   : output;
}

// Whether log sigma follows the output: within its range, or NaN.
static inline FARM_HD bool farm_gaussian_free(float output) {
    return !(output < FARM_GAUSSIAN_LOG_SIGMA_LEAST) && !(output > FARM_GAUSSIAN_LOG_SIGMA_MOST);
}

// Dimension i of a standard normal draw for step `counter` of `stream`.
static inline FARM_HD float farm_gaussian_normal(uint64_t seed, uint64_t stream, uint64_t counter, int i) {
    return farm_random_normal(farm_random_mix(seed + (uint64_t)(i / 2) + 1), stream, counter, i % 2);
}

static inline FARM_HD float farm_gaussian_action(float draw, float offset, float scale) {
    return offset + scale * draw;
}

static inline FARM_HD float farm_gaussian_draw(float action, float offset, float scale) {
    return (action - offset) / scale;
}

static inline FARM_HD float farm_gaussian_log_prob(const float *policy, int dims, const float *action) {
    float sum = 0;
    for (int i = 0; i < dims; i++) {
        const float log_sigma = farm_gaussian_log_sigma(policy[dims + i]);
        const float z = (action[i] - policy[i]) * expf(-log_sigma);
        sum -= 0.5f * z * z + log_sigma + FARM_GAUSSIAN_HALF_LOG_2PI;
    }
    return sum;
}

static inline FARM_HD float farm_gaussian_entropy(const float *policy, int dims) {
    float sum = 0;
    for (int i = 0; i < dims; i++) sum += 0.5f + FARM_GAUSSIAN_HALF_LOG_2PI + farm_gaussian_log_sigma(policy[dims + i]);
    return sum;
}

// KL(mu || pi) = sum log(sigma_pi / sigma_mu) + (sigma_mu^2 + (mean_mu - mean_pi)^2) / (2 sigma_pi^2) - 1/2.
static inline FARM_HD float farm_gaussian_kl(const float *behaviour, const float *policy, int dims) {
    float kl = 0;
    for (int i = 0; i < dims; i++) {
        const float log_mu = farm_gaussian_log_sigma(behaviour[dims + i]);
        const float log_pi = farm_gaussian_log_sigma(policy[dims + i]);
        const float spread = expf(log_mu - log_pi), shift = (behaviour[i] - policy[i]) * expf(-log_pi);
        kl += log_pi - log_mu + 0.5f * (spread * spread + shift * shift - 1);
    }
    return kl;
}

// Gradient of weight * (-advantage log pi(action) - entropy_cost H(pi)) by the policy's outputs:
//   dlog pi/dmean = z / sigma,   dlog pi/dlog sigma = z^2 - 1,   dH/dlog sigma = 1.
static inline FARM_HD void farm_gaussian_gradient(const float *policy, int dims, const float *action, float advantage,
                                                  float entropy_cost, float weight, float *dpolicy) {
    for (int i = 0; i < dims; i++) {
        const float output = policy[dims + i], log_sigma = farm_gaussian_log_sigma(output);
        const float inverse = expf(-log_sigma), z = (action[i] - policy[i]) * inverse;
        const float within = farm_gaussian_free(output) ? 1.0f : 0.0f;
        dpolicy[i] = -weight * advantage * z * inverse;
        dpolicy[dims + i] = within * weight * (-advantage * (z * z - 1) - entropy_cost);
    }
}

#endif
