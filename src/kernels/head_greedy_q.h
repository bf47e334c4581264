// The head of Q-learning: the policy is one action-value q(a) per choice of one discrete action, an int32. The chosen
// action has the largest q, or, with probability epsilon, is any permitted one. A q of -INFINITY forbids an action. The
// functions compute one row, before farm_head_finish: the network's outputs, after the mask. If it is duelling (Wang et
// al. 2016, equation 9), the outputs are advantages A, and q(a) = V + A(a) - mean of the permitted A.
// Epsilon differs by environment (Horgan et al. 2018, section 4), or falls as versions of the parameters rise.
#ifndef FARM_KERNELS_HEAD_GREEDY_Q_H
#define FARM_KERNELS_HEAD_GREEDY_Q_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/head_categorical.h"
#include "kernels/random.h"

static inline FARM_HD int farm_greedy_q_permitted(const float *policy, int outputs) {
    int permitted = 0;
    for (int a = 0; a < outputs; a++) permitted += policy[a] != -INFINITY;
    return permitted;
}

// q(a) - raw output a. value: V.
static inline FARM_HD float farm_greedy_q_shift(const float *policy, int outputs, bool duelling, float value) {
    const int permitted = farm_greedy_q_permitted(policy, outputs);
    float sum = 0;
    if (!duelling || !permitted) return 0;
    for (int a = 0; a < outputs; a++)
        if (policy[a] != -INFINITY) sum += policy[a];
    return value - sum / (float)permitted;
}

// The greedy action, or any permitted one with equal probability: a step's block gives both random numbers.
static inline FARM_HD int farm_greedy_q_choose(const float *policy, int outputs, float epsilon,
                                               struct farm_philox_block random) {
    const int permitted = farm_greedy_q_permitted(policy, outputs);
    if (!permitted || !(farm_random_unit(random.word[0]) < epsilon)) return farm_categorical_greedy(policy, outputs);
    int left = (int)((uint64_t)random.word[1] * (uint64_t)permitted >> 32), a = 0;
    while (policy[a] == -INFINITY || left-- > 0) a++;
    return a;
}

#endif
