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

#endif
