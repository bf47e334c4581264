// Proximal policy optimisation with the clipped objective (Schulman et al. 2017, "Proximal Policy Optimization
// Algorithms", equation 7) over generalised advantage estimation (Schulman et al. 2015, "High-Dimensional Continuous
// Control Using Generalized Advantage Estimation", equation 16), with this project's meaning of a step
// (<farm/step.h>): episodes may end, be cut or be abandoned anywhere inside a window. Runs in the learner, on rows.h.
//
//   transition t -> t+1: r_t = reward[t+1], gamma_t = 0 if TERMINATED(t+1), else gamma (at TRUNCATED too: V_{t+1} is of
//   a real observation). V: as predicted when acting; only the bootstrap row's is of the present parameters.
//   delta_t = r_t + gamma_t V_{t+1} - V_t,   A_t = delta_t + gamma_t lambda A_{t+1},   R_t = A_t + V_t
//   A_{t+1} counts only if t+1 leads to a transition of the same episode. Without a transition: weight 0.
//
//   ratio = pi(action) / mu(action),   A' = A, or (A - mean) / (sigma + 1e-8) over the pass or the iteration
//   L = mean of -min(ratio A', clip(ratio, 1 - c, 1 + c) A') + baseline_cost 1/2 (R - V)^2 - entropy_cost H(pi)
//   entropy_schedule lr: entropy_cost times the scheduled learning rate / the first
//
// With value_clip v > 0 the value loss is the larger one of (R - V)^2 and (R - (V_old + clip(V - V_old, -v, v)))^2.
// The ratio is to the policy that acted, so windows of older versions (async) are corrected too.
#ifndef FARM_ALGO_PPO_H
#define FARM_ALGO_PPO_H

#include <math.h>

#include "algo/rows.h"

enum {
    FARM_PPO_DISCOUNT,
    FARM_PPO_LAMBDA,
    FARM_PPO_CLIP,
    FARM_PPO_VALUE_CLIP, // 0: off
    FARM_PPO_ENTROPY_COST,
    FARM_PPO_BASELINE_COST,
    FARM_PPO_EPOCHS,
    FARM_PPO_MINIBATCH,        // rows
    FARM_PPO_NORMALISE,        // enum farm_ppo_normalise
    FARM_PPO_KL_STOP,          // 0: off
    FARM_PPO_KL_TARGET,        // 0: off
    FARM_PPO_ENTROPY_SCHEDULE, // enum farm_ppo_entropy_schedule
    FARM_PPO_OPTIONS
};

enum farm_ppo_normalise { FARM_PPO_NORMALISE_OFF, FARM_PPO_NORMALISE_MINIBATCH, FARM_PPO_NORMALISE_ITERATION };
enum farm_ppo_entropy_schedule { FARM_PPO_ENTROPY_CONSTANT, FARM_PPO_ENTROPY_LR };

// Arrays of scratch.
enum {
    FARM_PPO_LOG_MU, // log mu(action)
    FARM_PPO_ADVANTAGE,
    FARM_PPO_RETURN,
    FARM_PPO_WEIGHT, // 1, or 0 without a transition
    FARM_PPO_SCRATCH
};

// Sums over rows with a transition: their number, A, A^2, R, R^2.
enum { FARM_PPO_SUM_ROWS, FARM_PPO_SUM_ADVANTAGE, FARM_PPO_SUM_RETURN = 3, FARM_PPO_SUMS = 5 };

// Terms of a row; each carries the row's weight.
enum {
    FARM_PPO_ROWS,
    FARM_PPO_POLICY,    // the clipped objective, negated
    FARM_PPO_BASELINE,  // value loss, without its cost
    FARM_PPO_ENTROPY,   // H(pi), nats
    FARM_PPO_KL,        // KL(mu || pi), nats
    FARM_PPO_CLIPPED,   // 1 if |ratio - 1| > clip
    FARM_PPO_EXPLAINED, // 1 - Var(R - V) / Var(R) over the iteration
    FARM_PPO_TERMS
};

struct farm_algo; // algo.h
extern const struct farm_algo farm_ppo;

static inline FARM_HD void farm_ppo_prepare(const struct farm_algo_rows *rows, int row) {
    farm_algo_scratch(rows, FARM_PPO_LOG_MU)[row] =
        farm_head_log_prob(&rows->head, rows->behaviour + (size_t)row * (size_t)rows->head.outputs,
                           rows->action + (size_t)row * (size_t)rows->head.action_bytes);
}

// One column, from its end to its start.
static inline FARM_HD void farm_ppo_column(const struct farm_algo_rows *rows, int column) {
    const float lambda = rows->option[FARM_PPO_LAMBDA];
    float *advantage_out = farm_algo_scratch(rows, FARM_PPO_ADVANTAGE);
    float *return_out = farm_algo_scratch(rows, FARM_PPO_RETURN), *weight = farm_algo_scratch(rows, FARM_PPO_WEIGHT);
    const size_t stride = (size_t)rows->columns;
    size_t row = (size_t)rows->steps * stride + (size_t)column;
    float next_value = rows->value[row], next_advantage = 0, next_reward = rows->reward[row];
    unsigned next_flags = rows->flags[row];
    for (int t = rows->steps - 1; t >= 0; t--) {
        row -= stride;
        const float value = rows->value[row];
        const unsigned flags = rows->flags[row];
        const bool exists = farm_step_leads(flags, next_flags);
        float advantage = 0;
        if (exists) {
            const float discount = next_flags & FARM_STEP_TERMINATED ? 0 : rows->option[FARM_PPO_DISCOUNT];
            advantage = next_reward + discount * next_value - value + discount * lambda * next_advantage;
        }
        advantage_out[row] = advantage;
        return_out[row] = advantage + value;
        weight[row] = exists ? 1.0f : 0.0f;
        next_value = value, next_advantage = advantage, next_flags = flags, next_reward = rows->reward[row];
    }
}

static inline void farm_ppo_reduce(const struct farm_algo_rows *rows, int row, double *sums) {
    const double weight = (double)farm_algo_scratch(rows, FARM_PPO_WEIGHT)[row];
    const double advantage = (double)farm_algo_scratch(rows, FARM_PPO_ADVANTAGE)[row];
    const double target = (double)farm_algo_scratch(rows, FARM_PPO_RETURN)[row];
    sums[FARM_PPO_SUM_ROWS] += weight;
    sums[FARM_PPO_SUM_ADVANTAGE] += weight * advantage;
    sums[FARM_PPO_SUM_ADVANTAGE + 1] += weight * advantage * advantage;
    sums[FARM_PPO_SUM_RETURN] += weight * target;
    sums[FARM_PPO_SUM_RETURN + 1] += weight * target * target;
}

// Variance with n - 1 (as PyTorch's) of the quantity whose sum and sum of squares are sums[at], sums[at + 1].
static inline FARM_HD double farm_ppo_variance(const double *sums, int at) {
    const double count = sums[FARM_PPO_SUM_ROWS];
    const double variance = count < 2 ? 0 : (sums[at + 1] - sums[at] * sums[at] / count) / (count - 1);
    return variance > 0 ? variance : 0;
}

// A', from the sums over the pass or the iteration.
static inline FARM_HD float farm_ppo_normalised(const struct farm_algo_rows *rows, float advantage) {
    const float how = rows->option[FARM_PPO_NORMALISE];
    if (how == (float)FARM_PPO_NORMALISE_OFF) return advantage;
    const double *sums = how == (float)FARM_PPO_NORMALISE_MINIBATCH ? rows->pass_sums : rows->iteration_sums;
    if (sums[FARM_PPO_SUM_ROWS] < 2) return advantage;
    const double mean = sums[FARM_PPO_SUM_ADVANTAGE] / sums[FARM_PPO_SUM_ROWS];
    return (float)(((double)advantage - mean) / (sqrt(farm_ppo_variance(sums, FARM_PPO_SUM_ADVANTAGE)) + 1e-8));
}

// Gradient of the value loss by V; *loss: the loss.
static inline FARM_HD float farm_ppo_value(const struct farm_algo_rows *rows, int row, float *loss) {
    const float clip = rows->option[FARM_PPO_VALUE_CLIP], value = rows->value[row];
    const float error = value - farm_algo_scratch(rows, FARM_PPO_RETURN)[row];
    *loss = 0.5f * error * error;
    const float moved = value - rows->behaviour_value[row];
    if (!(clip > 0) || (moved <= clip && moved >= -clip)) return error;
    const float clipped = error - moved + (moved > clip ? clip : -clip);
    if (!(clipped * clipped > error * error)) return error;
    *loss = 0.5f * clipped * clipped;
    return 0; // the clipped value does not depend on V
}

static inline FARM_HD float farm_ppo_entropy_cost(const struct farm_algo_rows *rows) {
    const float cost = rows->option[FARM_PPO_ENTROPY_COST];
    if (rows->option[FARM_PPO_ENTROPY_SCHEDULE] != (float)FARM_PPO_ENTROPY_LR) return cost;
    return cost * (float)rows->pass_sums[FARM_ALGO_SUM_SCHEDULE];
}

// One row: its gradients and terms. A row of weight 0 adds exactly nothing.
static inline FARM_HD void farm_ppo_row(const struct farm_algo_rows *rows, int row, float *terms) {
    const float weight = farm_algo_scratch(rows, FARM_PPO_WEIGHT)[row];
    if (weight == 0) {
        farm_algo_no_gradient(rows, row);
        return;
    }
    const float *option = rows->option, clip = option[FARM_PPO_CLIP];
    const size_t at = (size_t)row * (size_t)rows->head.outputs;
    const uint8_t *action = rows->action + (size_t)row * (size_t)rows->head.action_bytes;
    const float advantage = farm_ppo_normalised(rows, farm_algo_scratch(rows, FARM_PPO_ADVANTAGE)[row]);
    const float ratio = expf(farm_head_log_prob(&rows->head, rows->policy + at, action) -
                             farm_algo_scratch(rows, FARM_PPO_LOG_MU)[row]);
    const float bounded = ratio > 1 + clip ? 1 + clip : ratio < 1 - clip ? 1 - clip : ratio;
    const bool bound = bounded * advantage < ratio * advantage; // the minimum is a constant
    float value_loss;
    const float dvalue = farm_ppo_value(rows, row, &value_loss);
    // d(-ratio A)/dtheta = -ratio A dlog pi/dtheta
    const struct farm_head_terms head =
        farm_head_gradient(&rows->head, rows->policy + at, rows->behaviour + at, action, bound ? 0 : ratio * advantage,
                           farm_ppo_entropy_cost(rows), weight, rows->dpolicy + at);
    rows->dvalue[row] = weight * option[FARM_PPO_BASELINE_COST] * dvalue;
    terms[FARM_PPO_ROWS] = weight;
    terms[FARM_PPO_POLICY] = -weight * (bound ? bounded : ratio) * advantage;
    terms[FARM_PPO_BASELINE] = weight * value_loss;
    terms[FARM_PPO_ENTROPY] = weight * head.entropy;
    terms[FARM_PPO_KL] = weight * head.kl;
    terms[FARM_PPO_CLIPPED] = ratio > 1 + clip || ratio < 1 - clip ? weight : 0;
    const double spread = farm_ppo_variance(rows->iteration_sums, FARM_PPO_SUM_RETURN);
    const double unexplained = farm_ppo_variance(rows->iteration_sums, FARM_PPO_SUM_ADVANTAGE);
    terms[FARM_PPO_EXPLAINED] = spread > 0 ? weight * (float)(1 - unexplained / spread) : 0;
}

#endif
