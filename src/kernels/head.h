// Heads choose actions from a network's policy. A head defines the number of floats of an environment's policy, the
// bytes of its action, sampling, log-probabilities and gradients; inference, every algorithm and local inference in
// actors use it. Above this header actions are untyped bytes. Each kind is a header head_KIND.h and a case in each
// function here.
#ifndef FARM_KERNELS_HEAD_H
#define FARM_KERNELS_HEAD_H

#include <farm/env.h>
#include <string.h>

#include "base/status.h"
#include "kernels/head_categorical.h"
#include "kernels/random.h"

enum farm_head_kind {
    FARM_HEAD_CATEGORICAL, // one discrete action: i32
};

struct farm_head {
    enum farm_head_kind kind;
    int outputs;      // floats of one environment's policy
    int action_bytes; // of one environment's action
};

static inline FARM_HD struct farm_head farm_head_categorical(int actions) {
    struct farm_head head;
    head.kind = FARM_HEAD_CATEGORICAL;
    head.outputs = actions;
    head.action_bytes = (int)sizeof(int32_t);
    return head;
}

struct farm_sampler {
    uint64_t seed; // of the job
    int greedy;    // 1: the most probable action (evaluation); 0: drawn from the policy
};

static inline FARM_HD int32_t farm_head_discrete(const void *action) {
    int32_t value;
    memcpy(&value, action, sizeof value);
    return value;
}

// Chooses the action for step `counter` of `stream` (farm_random_stream). action: [action_bytes], out.
static inline FARM_HD void farm_head_choose(const struct farm_head *head, const struct farm_sampler *sampler,
                                            uint64_t stream, uint64_t counter, const float *policy, void *action) {
    switch (head->kind) {
    case FARM_HEAD_CATEGORICAL: {
        const int32_t chosen =
            sampler->greedy
                ? farm_categorical_greedy(policy, head->outputs)
                : farm_categorical_sample(policy, head->outputs, farm_random_uniform(sampler->seed, stream, counter));
        memcpy(action, &chosen, sizeof chosen);
        break;
    }
    }
}

// log-probability of the action; 0 for an invalid one (the ignored answer to a LAST step).
static inline FARM_HD float farm_head_log_prob(const struct farm_head *head, const float *policy, const void *action) {
    switch (head->kind) {
    case FARM_HEAD_CATEGORICAL:
        return farm_categorical_log_prob(policy, head->outputs, farm_head_discrete(action));
    }
    return 0;
}

struct farm_head_terms {
    float log_prob; // of the action
    float entropy;  // H(pi), nats
    float kl;       // KL(mu || pi), nats, exact; mu: the behaviour policy
};

// Writes to dpolicy [outputs] the gradient of weight * (-advantage log pi(action) - entropy_cost H(pi)) by the policy.
// The action must be valid.
static inline FARM_HD struct farm_head_terms farm_head_gradient(const struct farm_head *head, const float *policy,
                                                                const float *behaviour, const void *action,
                                                                float advantage, float entropy_cost, float weight,
                                                                float *dpolicy) {
    struct farm_head_terms terms;
    terms.log_prob = terms.entropy = terms.kl = 0;
    switch (head->kind) {
    case FARM_HEAD_CATEGORICAL: {
        const int outputs = head->outputs, chosen = farm_head_discrete(action);
        const struct farm_softmax pi = farm_softmax_of(policy, outputs), mu = farm_softmax_of(behaviour, outputs);
        terms.entropy =
            farm_categorical_gradient(policy, pi, outputs, chosen, advantage, entropy_cost, weight, dpolicy);
        terms.log_prob = farm_softmax_log(pi, policy[chosen]);
        terms.kl = farm_categorical_kl(behaviour, mu, policy, pi, outputs);
        break;
    }
    }
    return terms;
}

// The head of an environment's actions. FARM_E_UNSUPPORTED if no head can choose them.
enum farm_status farm_head_make(const struct farm_action_spec *action, struct farm_head *out, struct farm_error *err);

#endif
