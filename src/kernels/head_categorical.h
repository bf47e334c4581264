// The head of one discrete action: the policy is `outputs` logits, the action an int32. Softmax, sampling by inverse
// CDF, the greedy choice, log-probability, entropy, KL divergence and gradient of one row. Runs wherever inference or
// training runs. A logit of -INFINITY forbids an action: its probability and gradient are 0. The chosen action lies in
// [0, outputs) whatever the logits hold, even NaN after a divergence.
//
// CPU and GPU draw the same uniform number and differ at most in the last bits of expf: they choose different actions
// only if the number falls on the border of two actions' shares, about once in a million draws.
#ifndef FARM_KERNELS_HEAD_CATEGORICAL_H
#define FARM_KERNELS_HEAD_CATEGORICAL_H

#include <assert.h>
#include <math.h>
#include <stdint.h>

#include "kernels/device.h"

// The first largest of logits[outputs], outputs >= 1. NaNs count as smaller than anything.
static inline FARM_HD int farm_categorical_greedy(const float *logits, int outputs) {
    int best = 0;
    for (int a = 1; a < outputs; a++)
        if (logits[a] > logits[best] || logits[best] != logits[best]) best = a;
    return best;
}

// Normaliser of a row's log-probabilities. Two numbers, because their sum would lose the second if logits are large.
struct farm_softmax {
    float largest; // the row's largest logit
    float log_sum; // log(sum(exp(logit - largest))), in [0, log(outputs)]
};

// log_sum is NaN if a logit is NaN or +INFINITY, or if every action is forbidden; so is the loss.
static inline FARM_HD struct farm_softmax farm_softmax_of(const float *logits, int outputs) {
    struct farm_softmax softmax;
    softmax.largest = logits[farm_categorical_greedy(logits, outputs)];
    float sum = 0;
    for (int a = 0; a < outputs; a++) sum += expf(logits[a] - softmax.largest);
    softmax.log_sum = logf(sum);
    return softmax;
}

// log-probability of the action with this logit.
static inline FARM_HD float farm_softmax_log(struct farm_softmax softmax, float logit) {
    return logit - softmax.largest - softmax.log_sum;
}

// log softmax(logits)[action]; 0 for an action out of range (the ignored answer to a LAST step may be anything).
static inline FARM_HD float farm_categorical_log_prob(const float *logits, int outputs, int action) {
    if (action < 0 || action >= outputs) return 0;
    return farm_softmax_log(farm_softmax_of(logits, outputs), logits[action]);
}

// Action a with probability softmax(logits)[a]; u in (0, 1). One of probability 0 only if no other is possible.
static inline FARM_HD int farm_categorical_sample(const float *logits, int outputs, float u) {
    int chosen = farm_categorical_greedy(logits, outputs);
    const float largest = logits[chosen];
    float sum = 0;
    for (int a = 0; a < outputs; a++) sum += expf(logits[a] - largest);
    const float target = u * sum;
    float below = 0;
    for (int a = 0; a < outputs; a++) {
        below += expf(logits[a] - largest);
        if (below > target) return a; // target > 0, so never on a share of 0
    }
    return chosen; // reached only if a logit is NaN or +INFINITY
}

// KL(mu || pi) = sum mu (log mu - log pi), from both rows of logits and their normalisers.
static inline FARM_HD float farm_categorical_kl(const float *behaviour, struct farm_softmax mu_softmax,
                                                const float *logits, struct farm_softmax pi_softmax, int outputs) {
    float kl = 0;
    for (int a = 0; a < outputs; a++) {
        const float log_mu = farm_softmax_log(mu_softmax, behaviour[a]), mu = expf(log_mu);
        if (mu > 0) kl += mu * (log_mu - farm_softmax_log(pi_softmax, logits[a]));
    }
    return kl;
}

// Gradient of weight * (-advantage log pi(action) - entropy_cost H(pi)) by the logits; returns H(pi) in nats:
//   d(-advantage log pi(action))/dlogit_a = advantage (pi_a - [a = action]),   d(-H)/dlogit_a = pi_a (log pi_a + H).
static inline FARM_HD float farm_categorical_gradient(const float *logits, struct farm_softmax softmax, int outputs,
                                                      int action, float advantage, float entropy_cost, float weight,
                                                      float *dlogits) {
    assert(action >= 0 && action < outputs);
    float entropy = 0;
    for (int a = 0; a < outputs; a++) {
        const float log_pi = farm_softmax_log(softmax, logits[a]), pi = expf(log_pi);
        dlogits[a] = pi;
        if (pi > 0) entropy -= pi * log_pi;
    }
    for (int a = 0; a < outputs; a++) {
        const float pi = dlogits[a], drift = pi > 0 ? pi * (farm_softmax_log(softmax, logits[a]) + entropy) : 0;
        dlogits[a] = weight * (advantage * (pi - (a == action ? 1.0f : 0.0f)) + entropy_cost * drift);
    }
    return entropy;
}

#endif
