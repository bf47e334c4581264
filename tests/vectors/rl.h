// V-trace, its loss and GAE as RLax 0.1.9 computes them, PPO's loss by CleanRL's formula, written by make_rl.py. Arrays
// are time-major, row (t, column).
#ifndef FARM_TESTS_RL_H
#define FARM_TESTS_RL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "vectors.h"

enum { RL_CASES = 3, RL_BYTES = 55484 };

struct rl_case {
    char name[12];
    int32_t steps, columns, actions;
    float gamma, lambda, rho_bar, pg_rho_bar, reward_clip, baseline_cost, entropy_cost; // c_bar is 1
    float ppo_lambda, clip, value_clip, ppo_baseline_cost, ppo_entropy_cost,
        normalise;                        // normalise: 0 or 1, over all rows
    double loss, ppo_loss;                // sums over rows with a transition
    const uint8_t *flags;                 // [steps+1][columns]
    float *logits;                        // [steps+1][columns][actions]
    const float *behaviour_logits;        // [steps+1][columns][actions]
    const int32_t *action;                // [steps+1][columns], 77 if it is ignored
    const float *reward, *value;          // [steps+1][columns]
    const float *vs, *advantage, *weight; // [steps][columns]
    const float *dlogits, *dvalue;        // [steps][columns][actions], [steps][columns]
    // PPO: logits and new_value are in training, behaviour_logits and value are those that acted
    const float *new_value;                // [steps+1][columns]
    const float *gae;                      // [steps][columns]
    const float *ppo_dlogits, *ppo_dvalue; // [steps][columns][actions], [steps][columns]
};

// The next array of the file, of `count` elements of 4 bytes.
static inline void *rl_array(uint8_t **at, int count) {
    void *array = *at;
    *at += 4 * (size_t)count;
    return array;
}

// All cases: RL_CASES.
static inline const struct rl_case *rl_cases(void) {
    static _Alignas(8) uint8_t file[RL_BYTES];
    static struct rl_case cases[RL_CASES];
    uint8_t *at = file;
    vectors_read("tests/vectors/rl.bin", file, sizeof file);
    for (struct rl_case *c = cases; c < cases + RL_CASES; c++) {
        memcpy(c, at, offsetof(struct rl_case, flags));
        at += offsetof(struct rl_case, flags);
        const int all = (c->steps + 1) * c->columns, rows = c->steps * c->columns;
        c->flags = rl_array(&at, (all + 3) / 4);
        c->logits = rl_array(&at, all * c->actions);
        c->behaviour_logits = rl_array(&at, all * c->actions);
        c->action = rl_array(&at, all);
        c->reward = rl_array(&at, all);
        c->value = rl_array(&at, all);
        c->vs = rl_array(&at, rows);
        c->advantage = rl_array(&at, rows);
        c->weight = rl_array(&at, rows);
        c->dlogits = rl_array(&at, rows * c->actions);
        c->dvalue = rl_array(&at, rows);
        c->new_value = rl_array(&at, all);
        c->gae = rl_array(&at, rows);
        c->ppo_dlogits = rl_array(&at, rows * c->actions);
        c->ppo_dvalue = rl_array(&at, rows);
    }
    cr_assert_eq(at, file + sizeof file);
    return cases;
}

// ---- action-values (q.bin) ----

enum { Q_CASES = 3, Q_RESCALED = 16, Q_BYTES = 33736 };

struct q_case {
    int32_t steps, n, columns, actions, double_q, duelling, rescale, huber;
    float gamma, eta;
    double loss;                              // a sum
    const uint8_t *flags;                     // [steps+n][columns]
    float *policy, *value;                    // [steps+n][columns][actions], [steps+n][columns]: the network's
    float *target_policy, *target_value;      // the same of the target
    const float *behaviour;                   // [steps+n][columns][actions]: -INFINITY forbids
    const int32_t *action;                    // [steps+n][columns], 77 if it is ignored
    float *reward, *weight;                   // [steps+n][columns], [columns]
    const float *target, *delta, *exists;     // [steps][columns]
    const float *priority, *dpolicy, *dvalue; // [columns], [steps][columns][actions], [steps][columns]
    const float *returns;                     // [steps+n-1][columns]: Q(lambda) of the finished `policy`
};

// All cases: Q_CASES. *rescaled (unless NULL): x, h(x) and the inverse of h at x, [3][Q_RESCALED].
static inline const struct q_case *q_cases(const float **rescaled) {
    static _Alignas(8) uint8_t file[Q_BYTES];
    static struct q_case cases[Q_CASES];
    uint8_t *at = file;
    vectors_read("tests/vectors/q.bin", file, sizeof file);
    const float *numbers = rl_array(&at, 3 * Q_RESCALED);
    if (rescaled) *rescaled = numbers;
    for (struct q_case *c = cases; c < cases + Q_CASES; c++) {
        memcpy(c, at, offsetof(struct q_case, flags));
        at += offsetof(struct q_case, flags);
        const int all = (c->steps + c->n) * c->columns, rows = c->steps * c->columns;
        c->flags = rl_array(&at, (all + 3) / 4);
        c->policy = rl_array(&at, all * c->actions);
        c->value = rl_array(&at, all);
        c->target_policy = rl_array(&at, all * c->actions);
        c->target_value = rl_array(&at, all);
        c->behaviour = rl_array(&at, all * c->actions);
        c->action = rl_array(&at, all);
        c->reward = rl_array(&at, all);
        c->weight = rl_array(&at, c->columns);
        c->target = rl_array(&at, rows);
        c->delta = rl_array(&at, rows);
        c->exists = rl_array(&at, rows);
        c->priority = rl_array(&at, c->columns);
        c->dpolicy = rl_array(&at, rows * c->actions);
        c->dvalue = rl_array(&at, rows);
        c->returns = rl_array(&at, all - c->columns);
    }
    cr_assert_eq(at, file + sizeof file);
    return cases;
}

#endif
