// V-trace with IMPALA's loss (Espeholt et al. 2018, "IMPALA", sections 4.1 and 4.2), with this project's meaning of a
// step (<farm/step.h>): episodes may end, be cut or be abandoned anywhere inside a window. Runs in the learner, on
// rows.h.
//
//   transition t -> t+1: r_t = reward[t+1], gamma_t = 0 if TERMINATED(t+1), else gamma (at TRUNCATED too: V_{t+1} is of
//   a real observation). Without a transition: weight 0, rho = c = delta = 0, v_t = V_t.
//
//   L = sum over rows of weight * (-advantage log pi(action) + baseline_cost 1/2 (vs - V)^2 - entropy_cost H(pi))
//
// With `ratio_clip`, a row whose pi/mu has left 1 +- it to the side that its advantage favours has no policy gradient,
// as in PPO (Luo et al. 2020, "IMPACT"; RLlib's APPO): many passes over an update then cannot move the policy far.
//
// A sum, not a mean: the caller scales. vs and advantage are constants to the loss: no gradient flows into them.
#ifndef FARM_ALGO_VTRACE_H
#define FARM_ALGO_VTRACE_H

#include <math.h>

#include "algo/rows.h"

enum {
    FARM_VTRACE_DISCOUNT,
    FARM_VTRACE_ENTROPY_COST,  // IMPALA: .01
    FARM_VTRACE_BASELINE_COST, // IMPALA: .5
    FARM_VTRACE_RHO_CLIP,      // bound of rho in delta
    FARM_VTRACE_C_CLIP,        // bound of c, before lambda
    FARM_VTRACE_PG_RHO_CLIP,   // bound of rho in the advantage
    FARM_VTRACE_LAMBDA,        // 1: full V-trace
    FARM_VTRACE_EPOCHS,        // IMPALA: 1
    FARM_VTRACE_MINIBATCH,     // steps; 0: one pass has all windows
    FARM_VTRACE_RATIO_CLIP,    // 0: off, as in IMPALA
    FARM_VTRACE_OPTIONS
};

// Arrays of scratch.
enum {
    FARM_VTRACE_LOG_RATIO, // log pi(action) - log mu(action)
    FARM_VTRACE_VS,        // value target
    FARM_VTRACE_ADVANTAGE,
    FARM_VTRACE_WEIGHT, // 1, or 0 without a transition
    FARM_VTRACE_SCRATCH
};

// Terms of a row; each carries the row's weight.
enum {
    FARM_VTRACE_ROWS,     // weight
    FARM_VTRACE_POLICY,   // -advantage log pi(action)
    FARM_VTRACE_BASELINE, // 1/2 (vs - V)^2, without its cost
    FARM_VTRACE_ENTROPY,  // H(pi), nats, without its cost
    FARM_VTRACE_KL,       // KL(mu || pi), nats
    FARM_VTRACE_CLIPPED,  // 1 if pi/mu > rho_clip
    FARM_VTRACE_TARGET,   // vs, and its square
    FARM_VTRACE_TARGET_SQUARE,
    FARM_VTRACE_TERMS
};

struct farm_algo; // algo.h
extern const struct farm_algo farm_vtrace;

// Before the columns: each row by itself.
static inline FARM_HD void farm_vtrace_prepare(const struct farm_algo_rows *rows, int row) {
    const size_t at = (size_t)row * (size_t)rows->head.outputs;
    const uint8_t *action = rows->action + (size_t)row * (size_t)rows->head.action_bytes;
    farm_algo_scratch(rows, FARM_VTRACE_LOG_RATIO)[row] = farm_head_log_prob(&rows->head, rows->policy + at, action) -
                                                          farm_head_log_prob(&rows->head, rows->behaviour + at, action);
}

// min(bar, ratio), except that a NaN stays one, so that it is noticed.
static inline FARM_HD float farm_ratio_clip(float bar, float ratio) {
    return ratio > bar ? bar : ratio;
}

// One column, from its end to its start: v_t = V_t + delta_t + gamma_t c_t (v_{t+1} - V_{t+1}), IMPALA equation 1 and
// remark 1. Rows without a transition hold log-probabilities of an ignored action, which are not read.
static inline FARM_HD void farm_vtrace_column(const struct farm_algo_rows *rows, int column) {
    const float *option = rows->option, *log_ratio = farm_algo_scratch(rows, FARM_VTRACE_LOG_RATIO);
    float *vs_out = farm_algo_scratch(rows, FARM_VTRACE_VS), *weight = farm_algo_scratch(rows, FARM_VTRACE_WEIGHT);
    float *advantage_out = farm_algo_scratch(rows, FARM_VTRACE_ADVANTAGE);
    const size_t stride = (size_t)rows->columns;
    size_t row = (size_t)rows->steps * stride + (size_t)column;
    float next_value = rows->value[row], next_vs = next_value;
    unsigned next_flags = rows->flags[row];
    float next_reward = rows->reward[row];
    for (int t = rows->steps - 1; t >= 0; t--) {
        row -= stride;
        const float value = rows->value[row];
        const unsigned flags = rows->flags[row];
        const bool exists = farm_step_leads(flags, next_flags);
        float vs = value, advantage = 0;
        if (exists) {
            const float discount = next_flags & FARM_STEP_TERMINATED ? 0 : option[FARM_VTRACE_DISCOUNT];
            const float ratio = expf(log_ratio[row]);
            const float rho = farm_ratio_clip(option[FARM_VTRACE_RHO_CLIP], ratio);
            const float c = option[FARM_VTRACE_LAMBDA] * farm_ratio_clip(option[FARM_VTRACE_C_CLIP], ratio);
            const float delta = rho * (next_reward + discount * next_value - value);
            vs = value + delta + discount * c * (next_vs - next_value);
            advantage =
                farm_ratio_clip(option[FARM_VTRACE_PG_RHO_CLIP], ratio) * (next_reward + discount * next_vs - value);
        }
        vs_out[row] = vs;
        advantage_out[row] = advantage;
        weight[row] = exists ? 1.0f : 0.0f;
        next_value = value, next_vs = vs, next_flags = flags, next_reward = rows->reward[row];
    }
}

// One row: its gradients and terms [FARM_VTRACE_TERMS]. A row of weight 0 adds exactly nothing.
static inline FARM_HD void farm_vtrace_row(const struct farm_algo_rows *rows, int row, float *terms) {
    const float weight = farm_algo_scratch(rows, FARM_VTRACE_WEIGHT)[row];
    if (weight == 0) {
        farm_algo_no_gradient(rows, row);
        return;
    }
    const float *option = rows->option;
    const size_t at = (size_t)row * (size_t)rows->head.outputs;
    const float ratio = expf(farm_algo_scratch(rows, FARM_VTRACE_LOG_RATIO)[row]),
                clip = option[FARM_VTRACE_RATIO_CLIP];
    float advantage = farm_algo_scratch(rows, FARM_VTRACE_ADVANTAGE)[row];
    if (clip > 0 && (advantage > 0 ? ratio > 1 + clip : ratio < 1 - clip)) advantage = 0;
    const float target = farm_algo_scratch(rows, FARM_VTRACE_VS)[row], error = target - rows->value[row];
    const struct farm_head_terms head =
        farm_head_gradient(&rows->head, rows->policy + at, rows->behaviour + at,
                           rows->action + (size_t)row * (size_t)rows->head.action_bytes, advantage,
                           option[FARM_VTRACE_ENTROPY_COST], weight, rows->dpolicy + at);
    rows->dvalue[row] = -weight * option[FARM_VTRACE_BASELINE_COST] * error;
    terms[FARM_VTRACE_ROWS] = weight;
    terms[FARM_VTRACE_POLICY] = -weight * advantage * head.log_prob;
    terms[FARM_VTRACE_BASELINE] = weight * 0.5f * error * error;
    terms[FARM_VTRACE_ENTROPY] = weight * head.entropy;
    terms[FARM_VTRACE_KL] = weight * head.kl;
    terms[FARM_VTRACE_CLIPPED] = ratio > option[FARM_VTRACE_RHO_CLIP] ? weight : 0;
    terms[FARM_VTRACE_TARGET] = weight * target;
    terms[FARM_VTRACE_TARGET_SQUARE] = weight * target * target;
}

#endif
