// Choosing discrete actions from logits: softmax, log-probability, sampling by inverse CDF, and the greedy choice. One
// call is one row. Runs wherever inference runs; writes nothing but its result. A logit of -INFINITY forbids an action.
// Whatever the logits hold (NaN after a divergence too), the action returned lies in [0, actions). Knows no
// epsilon-greedy: that will be another mode.
//
// CPU and GPU draw the same uniform number and differ at most in the last bits of expf: they choose different actions
// only where the number falls on the border of two actions' shares, about once in a million draws.
#ifndef FARM_KERNELS_SAMPLE_H
#define FARM_KERNELS_SAMPLE_H

#include <math.h>
#include <stdint.h>

#include "kernels/device.h"
#include "kernels/random.h"

enum farm_sample_mode {
    FARM_SAMPLE_CATEGORICAL, // draws from softmax(logits): training
    FARM_SAMPLE_GREEDY,      // the largest logit: evaluation
};

struct farm_sampler {
    enum farm_sample_mode mode;
    uint64_t seed; // of the job
};

// The first largest of logits[actions], actions >= 1. NaNs count as smaller than anything.
static inline FARM_HD int farm_sample_greedy(const float *logits, int actions) {
    int best = 0;
    for (int a = 1; a < actions; a++)
        if (logits[a] > logits[best] || logits[best] != logits[best]) best = a;
    return best;
}

// What a row's log-probabilities need. Kept as two numbers: their sum would lose the second where logits are large.
struct farm_softmax {
    float largest; // of the row's logits
    float log_sum; // log(sum(exp(logit - largest))), in [0, log(actions)]
};

// NaN in log_sum where a logit is NaN or +INFINITY, or where every action is forbidden: it is noticed in the loss.
static inline FARM_HD struct farm_softmax farm_softmax_of(const float *logits, int actions) {
    struct farm_softmax softmax;
    softmax.largest = logits[farm_sample_greedy(logits, actions)];
    float sum = 0;
    for (int a = 0; a < actions; a++) sum += expf(logits[a] - softmax.largest);
    softmax.log_sum = logf(sum);
    return softmax;
}

// log-probability of the action with this logit.
static inline FARM_HD float farm_softmax_log(struct farm_softmax softmax, float logit) {
    return logit - softmax.largest - softmax.log_sum;
}

// log softmax(logits)[action].
static inline FARM_HD float farm_log_prob(const float *logits, int actions, int action) {
    return farm_softmax_log(farm_softmax_of(logits, actions), logits[action]);
}

// Action a with probability softmax(logits)[a]; u in (0, 1). Never an action of probability 0 while another one is
// possible.
static inline FARM_HD int farm_sample_categorical(const float *logits, int actions, float u) {
    int chosen = farm_sample_greedy(logits, actions);
    const float largest = logits[chosen];
    float sum = 0;
    for (int a = 0; a < actions; a++) sum += expf(logits[a] - largest);
    const float target = u * sum;
    float below = 0;
    for (int a = 0; a < actions; a++) {
        below += expf(logits[a] - largest);
        if (below > target) return a; // target > 0, so never on a share of 0
    }
    return chosen; // reached only where a logit is NaN or +INFINITY
}

// The action for step `counter` of `stream` (farm_random_stream) by the sampler's mode.
static inline FARM_HD int farm_sample_action(const struct farm_sampler *sampler, uint64_t stream, uint64_t counter,
                                             const float *logits, int actions) {
    switch (sampler->mode) {
    case FARM_SAMPLE_CATEGORICAL:
        return farm_sample_categorical(logits, actions, farm_random_uniform(sampler->seed, stream, counter));
    case FARM_SAMPLE_GREEDY:
        break;
    }
    return farm_sample_greedy(logits, actions);
}

#endif
