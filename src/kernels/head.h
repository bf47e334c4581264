// Heads choose actions from a network's policy. A head defines the number of floats of an environment's policy, the
// bytes of its action, sampling, log-probabilities and gradients; inference, every algorithm and local inference in
// actors use it. Elsewhere actions are untyped bytes. A kind is a header head_KIND.h and a case in each function here.
#ifndef FARM_KERNELS_HEAD_H
#define FARM_KERNELS_HEAD_H

#include <farm/env.h>
#include <stdbool.h>
#include <string.h>

#include "base/status.h"
#include "kernels/head_categorical.h"
#include "kernels/head_gaussian.h"
#include "kernels/head_greedy_q.h"
#include "kernels/head_tanh_gaussian.h"
#include "kernels/random.h"

enum farm_head_kind {
    FARM_HEAD_CATEGORICAL,   // `dims` discrete actions, each i32 with logits of its own (dims 1: the usual single one)
    FARM_HEAD_GAUSSIAN,      // `dims` numbers, f32
    FARM_HEAD_TANH_GAUSSIAN, // the same within their bounds; a sample is drawn, which algorithms compute on
    FARM_HEAD_GREEDY_Q,      // one discrete action, i32, chosen by action-values instead of probabilities
};

struct farm_head {
    enum farm_head_kind kind;
    int outputs;                     // floats of one environment's policy
    int action_bytes;                // size of one environment's action
    int dims;                        // 1 to FARM_ACTION_DIMS_MAX
    int sizes[FARM_ACTION_DIMS_MAX]; // categorical: choices of each
    int free_outputs;                // the last outputs are parameters by themselves: the network gives a bias only
    int mask_field;                  // 1 + the observation field of action masks (farm_head_mask_field); 0: none
    int duelling;                    // greedy_q: the outputs are advantages, the network's value is a state's
    int samples; // 1: each action has a sample, dims f32, the draw that it is computed from (the answer field `sample`)
    // Gaussian: action = offset + scale * draw; tanh: offset is the lower bound, scale half the distance of both.
    float offset[FARM_ACTION_DIMS_MAX], scale[FARM_ACTION_DIMS_MAX], log_scale; // log_scale: tanh's only
};

// Recipe keys of continuous actions, which others ignore; and what the algorithm learns.
struct farm_head_options {
    bool state_sigma; // log sigma are outputs of the network; false: parameters by themselves
    bool squash;      // draws go through tanh to the actions' bounds
    bool scale;       // [-1, 1] of a draw are the actions' bounds, where finite
    bool q;           // action-values
    bool duelling;    // as a state's value and advantages
};

// One discrete action.
static inline FARM_HD struct farm_head farm_head_categorical(int actions) {
    struct farm_head head;
    memset(&head, 0, sizeof head);
    head.kind = FARM_HEAD_CATEGORICAL;
    head.outputs = head.sizes[0] = actions;
    head.action_bytes = (int)sizeof(int32_t);
    head.dims = 1;
    return head;
}

struct farm_sampler {
    uint64_t seed; // the job's
    int greedy;    // 1: the most probable action (evaluation); 0: drawn from the policy
    // Exploration of a greedy_q head, in [0, 1]: epsilon goes from start to end while `epsilon_versions` versions are
    // published; environment i of N explores with epsilon^(1 + ladder i / (N - 1)), i = lane * width + environment.
    float epsilon_start, epsilon_end, ladder;
    uint64_t environments, width; // N of the farm, and of a lane
    uint64_t epsilon_versions;    // 0: epsilon_end at once
    uint64_t version;             // that answers; the caller sets it before a choice
};

// The probability with which the environment of this stream (farm_random_stream) explores under the sampler's version.
static inline FARM_HD float farm_sampler_epsilon(const struct farm_sampler *sampler, uint64_t stream) {
    float epsilon = sampler->epsilon_end;
    const uint64_t version = sampler->version, i = (stream >> 32) * sampler->width + (uint32_t)stream,
                   last = sampler->environments - 1;
    if (sampler->greedy) return 0;
    if (version < sampler->epsilon_versions)
        epsilon = sampler->epsilon_start +
                  (sampler->epsilon_end - sampler->epsilon_start) * ((float)version / (float)sampler->epsilon_versions);
    if (!(sampler->ladder > 0) || sampler->environments < 2) return epsilon;
    return powf(epsilon, 1 + sampler->ladder * ((float)(i < last ? i : last) / (float)last));
}

// Makes the logits of forbidden choices -INFINITY. mask: [outputs], 0 forbids. A discrete action without any permitted
// choice keeps its logits: the action answered to a LAST step is ignored.
static inline FARM_HD void farm_head_mask(const struct farm_head *head, const uint8_t *mask, float *policy) {
    for (int d = 0; d < head->dims; d++) {
        const int size = head->sizes[d];
        uint8_t any = 0;
        for (int a = 0; a < size; a++) any |= mask[a];
        for (int a = 0; a < size && any; a++)
            if (!mask[a]) policy[a] = -INFINITY;
        mask += size, policy += size;
    }
}

// What the behaviour policy could not choose, the policy in training cannot choose either. A greedy_q head's row that
// permits nothing, which an actor may write with LAST, is ignored: targets read the largest permitted q.
static inline FARM_HD void farm_head_mask_as(const struct farm_head *head, const float *behaviour, float *policy) {
    const bool masks = head->kind == FARM_HEAD_CATEGORICAL ||
                       (head->kind == FARM_HEAD_GREEDY_Q && farm_greedy_q_permitted(behaviour, head->outputs));
    for (int k = 0; k < head->outputs && masks; k++)
        if (behaviour[k] == -INFINITY) policy[k] = -INFINITY;
}

// After the mask: a greedy_q head's outputs become q, and *value the largest permitted q. Others are finished already.
static inline FARM_HD void farm_head_finish(const struct farm_head *head, float *policy, float *value) {
    if (head->kind != FARM_HEAD_GREEDY_Q) return;
    const float shift = farm_greedy_q_shift(policy, head->outputs, head->duelling != 0, *value);
    for (int a = 0; a < head->outputs; a++)
        if (policy[a] != -INFINITY) policy[a] += shift;
    *value = policy[farm_categorical_greedy(policy, head->outputs)];
}

// q(action) of a greedy_q head's row, which is masked and not finished; a finished row has the same bits. value: the
// network's. 0 for an invalid action.
static inline FARM_HD float farm_greedy_q_of(const struct farm_head *head, const float *policy, float value,
                                             int action) {
    if (action < 0 || action >= head->outputs) return 0;
    return policy[action] + farm_greedy_q_shift(policy, head->outputs, head->duelling != 0, value);
}

// The gradient of dq * q(action) by the network's outputs and value, for a valid action: 0 by forbidden outputs.
static inline FARM_HD void farm_greedy_q_gradient(const struct farm_head *head, const float *policy, int action,
                                                  float dq, float *dpolicy, float *dvalue) {
    assert(head->kind == FARM_HEAD_GREEDY_Q && action >= 0 && action < head->outputs);
    const int permitted = farm_greedy_q_permitted(policy, head->outputs);
    const float mean = head->duelling && permitted ? dq / (float)permitted : 0;
    for (int a = 0; a < head->outputs; a++) dpolicy[a] = policy[a] == -INFINITY ? 0 : (a == action ? dq - mean : -mean);
    *dvalue = head->duelling ? dq : 0;
}

static inline FARM_HD int32_t farm_head_discrete(const void *action, int d) {
    int32_t value;
    memcpy(&value, (const uint8_t *)action + (size_t)d * sizeof value, sizeof value);
    return value;
}

// The draw of an action or a sample, [FARM_ACTION_DIMS_MAX].
static inline FARM_HD void farm_head_numbers(const struct farm_head *head, const void *drawn, float *numbers) {
    memcpy(numbers, drawn, (size_t)head->dims * sizeof *numbers);
    for (int d = 0; d < head->dims && head->kind == FARM_HEAD_GAUSSIAN; d++)
        numbers[d] = farm_gaussian_draw(numbers[d], head->offset[d], head->scale[d]);
}

// Each discrete action of a step has a random number of its own; the first one's is the seed's.
static inline FARM_HD float farm_head_uniform(const struct farm_sampler *sampler, uint64_t stream, uint64_t counter,
                                              int d) {
    return farm_random_uniform(d ? farm_random_mix(sampler->seed + (uint64_t)d) : sampler->seed, stream, counter);
}

// Chooses the action for step `counter` of `stream` (farm_random_stream). action: [action_bytes], out; sample:
// the draw before tanh, out, by a head that samples; else it may be NULL.
static inline FARM_HD void farm_head_choose(const struct farm_head *head, const struct farm_sampler *sampler,
                                            uint64_t stream, uint64_t counter, const float *policy, void *action,
                                            void *sample) {
    uint8_t *out = (uint8_t *)action;
    switch (head->kind) {
    case FARM_HEAD_CATEGORICAL:
        for (int d = 0; d < head->dims; policy += head->sizes[d++]) {
            const int32_t chosen =
                sampler->greedy
                    ? farm_categorical_greedy(policy, head->sizes[d])
                    : farm_categorical_sample(policy, head->sizes[d], farm_head_uniform(sampler, stream, counter, d));
            memcpy(out + (size_t)d * sizeof chosen, &chosen, sizeof chosen);
        }
        break;
    case FARM_HEAD_GAUSSIAN:
    case FARM_HEAD_TANH_GAUSSIAN:
        for (int d = 0; d < head->dims; d++) {
            float number = policy[d];
            if (!sampler->greedy)
                number += expf(farm_gaussian_log_sigma(policy[head->dims + d])) *
                          farm_gaussian_normal(sampler->seed, stream, counter, d);
            if (head->kind == FARM_HEAD_TANH_GAUSSIAN) {
                memcpy((uint8_t *)sample + (size_t)d * sizeof number, &number, sizeof number);
                number = farm_tanh_action(number, head->offset[d], head->scale[d]);
            } else {
                number = farm_gaussian_action(number, head->offset[d], head->scale[d]);
            }
            memcpy(out + (size_t)d * sizeof number, &number, sizeof number);
        }
        break;
    case FARM_HEAD_GREEDY_Q: {
        const int32_t chosen = farm_greedy_q_choose(policy, head->outputs, farm_sampler_epsilon(sampler, stream),
                                                    farm_random_block(sampler->seed, stream, counter));
        memcpy(out, &chosen, sizeof chosen);
        break;
    }
    }
}

// Below, `drawn` is the action, or the sample of a head that samples. A greedy_q head has no probabilities, and no
// algorithm that reads them.

// log-probability of the action; 0 for an invalid one (the ignored answer to a LAST step).
static inline FARM_HD float farm_head_log_prob(const struct farm_head *head, const float *policy, const void *drawn) {
    float sum = 0, numbers[FARM_ACTION_DIMS_MAX];
    switch (head->kind) {
    case FARM_HEAD_CATEGORICAL:
        for (int d = 0; d < head->dims; policy += head->sizes[d++])
            sum += farm_categorical_log_prob(policy, head->sizes[d], farm_head_discrete(drawn, d));
        break;
    case FARM_HEAD_GAUSSIAN:
        farm_head_numbers(head, drawn, numbers);
        sum = farm_gaussian_log_prob(policy, head->dims, numbers);
        break;
    case FARM_HEAD_TANH_GAUSSIAN:
        farm_head_numbers(head, drawn, numbers);
        sum = farm_tanh_gaussian_log_prob(policy, head->dims, head->log_scale, numbers);
        break;
    case FARM_HEAD_GREEDY_Q:
        assert(false);
    }
    return sum;
}

struct farm_head_terms {
    float log_prob; // the action's
    float entropy;  // H(pi), nats
    float kl;       // KL(mu || pi), nats, exact; mu: the behaviour policy
};

// dpolicy [outputs]: the gradient of weight * (-advantage log pi(action) - entropy_cost H(pi)), for a valid action.
static inline FARM_HD struct farm_head_terms farm_head_gradient(const struct farm_head *head, const float *policy,
                                                                const float *behaviour, const void *drawn,
                                                                float advantage, float entropy_cost, float weight,
                                                                float *dpolicy) {
    struct farm_head_terms terms;
    float numbers[FARM_ACTION_DIMS_MAX];
    terms.log_prob = terms.entropy = terms.kl = 0;
    switch (head->kind) {
    case FARM_HEAD_CATEGORICAL:
        for (int d = 0; d < head->dims; d++) {
            const int size = head->sizes[d], chosen = farm_head_discrete(drawn, d);
            const struct farm_softmax pi = farm_softmax_of(policy, size), mu = farm_softmax_of(behaviour, size);
            terms.entropy +=
                farm_categorical_gradient(policy, pi, size, chosen, advantage, entropy_cost, weight, dpolicy);
            terms.log_prob += farm_softmax_log(pi, policy[chosen]);
            terms.kl += farm_categorical_kl(behaviour, mu, policy, pi, size);
            policy += size, behaviour += size, dpolicy += size;
        }
        break;
    case FARM_HEAD_GAUSSIAN:
        farm_head_numbers(head, drawn, numbers);
        farm_gaussian_gradient(policy, head->dims, numbers, advantage, entropy_cost, weight, dpolicy);
        terms.log_prob = farm_gaussian_log_prob(policy, head->dims, numbers);
        terms.entropy = farm_gaussian_entropy(policy, head->dims);
        terms.kl = farm_gaussian_kl(behaviour, policy, head->dims);
        break;
    case FARM_HEAD_TANH_GAUSSIAN:
        farm_head_numbers(head, drawn, numbers);
        terms.entropy = farm_tanh_gaussian_gradient(policy, head->dims, head->log_scale, numbers, advantage,
                                                    entropy_cost, weight, dpolicy);
        terms.log_prob = farm_tanh_gaussian_log_prob(policy, head->dims, head->log_scale, numbers);
        terms.kl = farm_gaussian_kl(behaviour, policy, head->dims);
        break;
    case FARM_HEAD_GREEDY_Q:
        assert(false);
    }
    return terms;
}

// The head of an environment's actions. FARM_E_UNSUPPORTED if no head can choose them, or under its masks;
// FARM_E_USAGE if these options do not suit them.
enum farm_status farm_head_make(const struct farm_env_spec *env, struct farm_head_options options,
                                struct farm_head *out, struct farm_error *err);

// How the bounds of dimension d of continuous actions become [-1, 1]: action = *offset + *scale * number. 0 and 1 if a
// bound is infinite, or beyond +-1e30 (float64's limits are clipped to f32's), or if they are closer than 1e-30.
void farm_head_scale(const struct farm_action_spec *action, uint32_t d, float *offset, float *scale);

// Its kind and actions: "categorical 3", "categorical 3x2" (two actions), "gaussian 2", "scaled_gaussian 2" (if a bound
// is not +-1), "tanh_gaussian 2", "greedy_q 4", "duelling_q 4". Heads of other texts read the same outputs differently.
enum { FARM_HEAD_TEXT_BYTES = 1100 };
void farm_head_describe(const struct farm_head *head, char text[FARM_HEAD_TEXT_BYTES]);

// ---- action masks ----

// Name of the observation field that is an action mask: u8, one value per choice of each discrete action in their
// order; 0 forbids the choice. No network sees it.
#define FARM_HEAD_MASK_NAME "action_mask"

// *field: the environment's mask, or -1. FARM_E_UNSUPPORTED: a field of this name that cannot be one.
enum farm_status farm_head_mask_field(const struct farm_env_spec *env, int *field, struct farm_error *err);

// The first discrete action all of whose choices the mask forbids; -1: none.
int farm_head_mask_blocked(const struct farm_action_spec *action, const uint8_t *mask);

#endif
