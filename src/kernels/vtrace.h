// V-trace (Espeholt et al. 2018, "IMPALA", section 4.1) over windows of T+1 steps, with this project's meaning of a
// step
// (<farm/step.h>): episodes may end, be cut or be abandoned anywhere inside a window. Runs in the learner, on the
// caller's arrays only; no state. Its outputs are constants to the loss (loss.h): no gradient flows into them.
//
// All arrays are time-major: row (t, b) is element t * columns + b, so the first T * columns rows of the T+1 are the
// ones that train, in one piece. A column is one window of one environment. Step t holds observation t, the reward and
// flags that came with it, the action answered to it. The transition t -> t+1 takes its reward and its end from step
// t+1:
//
//   no transition where LAST(t), or where FIRST(t+1) without LAST(t) (abandoned episode): weight 0, rho = c = delta =
//   0, v_t = V_t. else r_t = clip(reward[t+1]), gamma_t = 0 if TERMINATED(t+1), else gamma (at TRUNCATED too: V_{t+1}
//   is of a real observation).
#ifndef FARM_KERNELS_VTRACE_H
#define FARM_KERNELS_VTRACE_H

#include <farm/step.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/device.h"
#include "kernels/gather.h"

struct farm_vtrace_config {
    float gamma;       // discount
    float lambda;      // 1: full V-trace
    float rho_bar;     // clip of rho in delta
    float c_bar;       // clip of c, before lambda
    float pg_rho_bar;  // clip of rho in the advantage
    float reward_clip; // rewards to [-reward_clip, reward_clip]; 0: as they are
};

struct farm_vtrace_batch {
    int steps;                       // T >= 1
    int columns;                     // >= 1
    const float *target_log_prob;    // [T][columns] log pi(action t), policy in training
    const float *behaviour_log_prob; // [T][columns] log mu(action t), policy that acted
    const float *reward;             // [T+1][columns] raw
    const uint8_t *flags;            // [T+1][columns] FARM_STEP_*
    const float *value;              // [T+1][columns] V(obs t); the last row bootstraps
    float *vs;                       // [T][columns] out: value targets v_t
    float *advantage;                // [T][columns] out: rho_t (r_t + gamma_t v_{t+1} - V_t), its own clip
    float *weight;                   // [T][columns] out: 1, or 0 where step t starts no transition
};

// The settings of IMPALA on Atari: gamma .99, everything else 1.
static inline FARM_HD struct farm_vtrace_config farm_vtrace_default(void) {
    struct farm_vtrace_config config;
    config.gamma = 0.99f;
    config.lambda = config.rho_bar = config.c_bar = config.pg_rho_bar = config.reward_clip = 1.0f;
    return config;
}

struct farm_transition {
    bool exists;    // false: step t ends an episode; reward and discount are 0 then
    float reward;   // clipped
    float discount; // gamma_t
};

// The transition between neighbouring steps: flags of step t, flags and reward of step t+1.
static inline FARM_HD struct farm_transition farm_transition_between(unsigned flags, unsigned next_flags,
                                                                     float next_reward,
                                                                     const struct farm_vtrace_config *config) {
    struct farm_transition transition;
    transition.exists = !(flags & FARM_STEP_LAST) && !(next_flags & FARM_STEP_FIRST);
    transition.reward = transition.exists ? farm_reward_clip(next_reward, config->reward_clip) : 0;
    transition.discount = transition.exists && !(next_flags & FARM_STEP_TERMINATED) ? config->gamma : 0;
    return transition;
}

// min(bar, ratio), except that a NaN stays one, so that it is noticed.
static inline FARM_HD float farm_ratio_clip(float bar, float ratio) {
    return ratio > bar ? bar : ratio;
}

// One column, from its end to its start: v_t = V_t + delta_t + gamma_t c_t (v_{t+1} - V_{t+1}), IMPALA equation 1 and
// remark 1. What a step without transition holds (log-probabilities of an ignored action) is not looked at.
static inline FARM_HD void farm_vtrace_column(const struct farm_vtrace_config *config,
                                              const struct farm_vtrace_batch *batch, int column) {
    const size_t stride = (size_t)batch->columns;
    size_t row = (size_t)batch->steps * stride + (size_t)column;
    float next_value = batch->value[row], next_vs = next_value;
    unsigned next_flags = batch->flags[row];
    float next_reward = batch->reward[row];
    for (int t = batch->steps - 1; t >= 0; t--) {
        row -= stride;
        const float value = batch->value[row];
        const unsigned flags = batch->flags[row];
        const struct farm_transition step = farm_transition_between(flags, next_flags, next_reward, config);
        float vs = value, advantage = 0;
        if (step.exists) {
            const float ratio = expf(batch->target_log_prob[row] - batch->behaviour_log_prob[row]);
            const float rho = farm_ratio_clip(config->rho_bar, ratio);
            const float c = config->lambda * farm_ratio_clip(config->c_bar, ratio);
            const float delta = rho * (step.reward + step.discount * next_value - value);
            vs = value + delta + step.discount * c * (next_vs - next_value);
            advantage = farm_ratio_clip(config->pg_rho_bar, ratio) * (step.reward + step.discount * next_vs - value);
        }
        batch->vs[row] = vs;
        batch->advantage[row] = advantage;
        batch->weight[row] = step.exists ? 1.0f : 0.0f;
        next_value = value, next_vs = vs, next_flags = flags, next_reward = batch->reward[row];
    }
}

// All columns. Outputs must not overlap inputs. Cannot fail; sizes below 1 are a broken invariant.
void farm_vtrace(const struct farm_vtrace_config *config, const struct farm_vtrace_batch *batch);

#endif
