// The head of bounded continuous actions: a Gaussian draw x (head_gaussian.h) through tanh onto each action's bounds,
// action = low + (tanh(x) + 1) / 2 * (high - low), as in Haarnoja et al. 2018, "Soft Actor-Critic", appendix C. Every
// function computes on the draw, the "sample", because tanh cannot be inverted near the bounds. Greedy choice: the mean
// through tanh. The KL divergence is the Gaussians', which no bijection changes. For inference and training.
//
//   log p(action) = log N(x) - sum log(1 - tanh(x)^2) - log_scale,   log_scale = sum log((high - low) / 2)
//   H = H(N) + sum E[log(1 - tanh(x)^2)] + log_scale; the expectation by Gauss-Hermite quadrature
#ifndef FARM_KERNELS_HEAD_TANH_GAUSSIAN_H
#define FARM_KERNELS_HEAD_TANH_GAUSSIAN_H

#include "kernels/head_gaussian.h"

// scale: (high - low) / 2.
static inline FARM_HD float farm_tanh_action(float sample, float low, float scale) {
    return low + (tanhf(sample) + 1) * scale;
}

// log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2 x)), for |x|: the function is even.
static inline FARM_HD float farm_tanh_log_slope(float x) {
    const float far = fabsf(x);
    return 2 * (0.6931471805599453f - far - log1pf(expf(-2 * far)));
}

static inline FARM_HD float farm_tanh_gaussian_log_prob(const float *policy, int dims, float log_scale,
                                                        const float *sample) {
    float sum = farm_gaussian_log_prob(policy, dims, sample) - log_scale;
    for (int i = 0; i < dims; i++) sum -= farm_tanh_log_slope(sample[i]);
    return sum;
}

// E[log(1 - tanh(x)^2)] of x = mean + sigma z, and its derivatives by mean and log sigma. Off by less than 1e-6 up to
// sigma 1, 2e-5 at 1.5, 3e-4 at 2, .1 at the largest, e^2 (the derivatives by ten times as much).
struct farm_tanh_spread {
    float value, by_mean, by_log_sigma;
};

static inline FARM_HD struct farm_tanh_spread farm_tanh_spread_of(float mean, float sigma) {
    // Nodes and weights of 32-point Gauss-Hermite quadrature for the weight exp(-z^2 / 2) / sqrt(2 pi); symmetric.
    // Those of weights below 1e-9 are left out.
    enum { PAIRS = 11 };
    const float node[PAIRS] = {0.275546419f, 0.827284904f, 1.3809802f,  1.93800491f, 2.49984042f, 3.06813517f,
                               3.64478125f,  4.23202111f,  4.83260461f, 5.45003327f, 6.08896431f};
    const float weight[PAIRS] = {0.21170557f,    0.156538994f,    0.0853448083f,   0.0341098477f,
                                 0.0099034617f,  0.00206205105f,  0.000302557026f, 3.05598031e-05f,
                                 2.0596221e-06f, 8.88129071e-08f, 2.31251841e-09f};
    struct farm_tanh_spread spread;
    spread.value = spread.by_mean = spread.by_log_sigma = 0;
    for (int k = 0; k < 2 * PAIRS; k++) {
        const float z = k < PAIRS ? node[k] : -node[k - PAIRS], w = k < PAIRS ? weight[k] : weight[k - PAIRS];
        const float x = mean + sigma * z, far = fabsf(x), e = expf(-2 * far);
        const float slope = (x < 0 ? 2 : -2) * (1 - e) / (1 + e) * w; // w times -2 tanh(x)
        spread.value += 2 * w * (0.6931471805599453f - far - logf(1 + e));
        spread.by_mean += slope;
        spread.by_log_sigma += slope * sigma * z;
    }
    return spread;
}

// As farm_gaussian_gradient, of the squashed policy; returns H(pi).
static inline FARM_HD float farm_tanh_gaussian_gradient(const float *policy, int dims, float log_scale,
                                                        const float *sample, float advantage, float entropy_cost,
                                                        float weight, float *dpolicy) {
    float entropy = farm_gaussian_entropy(policy, dims) + log_scale;
    farm_gaussian_gradient(policy, dims, sample, advantage, entropy_cost, weight, dpolicy);
    for (int i = 0; i < dims; i++) {
        const float output = policy[dims + i], log_sigma = farm_gaussian_log_sigma(output);
        const struct farm_tanh_spread spread = farm_tanh_spread_of(policy[i], expf(log_sigma));
        entropy += spread.value;
        dpolicy[i] -= weight * entropy_cost * spread.by_mean;
        if (farm_gaussian_free(output)) dpolicy[dims + i] -= weight * entropy_cost * spread.by_log_sigma;
    }
    return entropy;
}

#endif
