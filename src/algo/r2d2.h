// Q-learning on replayed windows: R2D2 (Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed
// Reinforcement Learning") and DQN (Mnih et al. 2015) with double learning (van Hasselt et al. 2016), n steps and
// priorities (Schaul et al. 2016), by one arithmetic: DQN's windows have one transition. With this project's meaning of
// a step (<farm/step.h>): episodes may end, be cut or be abandoned anywhere. Runs in the learner, on rows.h.
//
//   row t has k <= n rewards, until its episode's last step (farm_algo_horizon); k = 0: no transition, weight 0
//   target = h(sum over j = 1..k of gamma^(j-1) r_{t+j} + gamma^k h^-1(Q'(t+k, a*))); without Q' if TERMINATED(t+k)
//   a* = argmax Q(t+k), of the parameters in training (double) or of the target's, among the permitted actions
//   delta = target - Q(t, action);   L = sum over rows of weight * (1/2 delta^2, or Huber's loss)
//   a column's priority = eta max |delta| + (1 - eta) mean |delta| over its transitions; 0 if it has none
//
// Q' is of the target's parameters; of those in training if the rows have no others, as stored Q (which are finished:
// head.duelling 0) that give first priorities. Targets are constants to the loss; as in vtrace.h it is a sum.
#ifndef FARM_ALGO_R2D2_H
#define FARM_ALGO_R2D2_H

#include <math.h>

#include "algo/rows.h"

enum {
    FARM_R2D2_DISCOUNT,
    FARM_R2D2_N_STEP,
    FARM_R2D2_TARGET_EVERY, // passes
    FARM_R2D2_DOUBLE,
    FARM_R2D2_DUELLING,     // the head's
    FARM_R2D2_RESCALE,      // 0: h(x) = x
    FARM_R2D2_LOSS,         // enum farm_r2d2_loss
    FARM_R2D2_PRIORITY_MAX, // eta
    FARM_R2D2_OPTIONS
};

enum farm_r2d2_loss { FARM_R2D2_HUBER, FARM_R2D2_SQUARE };

// Arrays of scratch.
enum {
    FARM_R2D2_TARGET,
    FARM_R2D2_EXISTS, // 1, or 0 without a transition
    FARM_R2D2_SCRATCH
};

// Terms of a row with a transition; others' are 0.
enum {
    FARM_R2D2_ROWS, // 1
    FARM_R2D2_LOSS_TERM,
    FARM_R2D2_Q_TERM, // Q(t, action)
    FARM_R2D2_TARGET_TERM,
    FARM_R2D2_ERROR_TERM,  // |delta|
    FARM_R2D2_WEIGHT_TERM, // the column's, which the loss has too
    FARM_R2D2_TERMS
};

struct farm_algo; // algo.h
extern const struct farm_algo farm_r2d2, farm_dqn;

// h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x (Pohlen et al. 2018, "Observe and Look Further", proposition A.2) and
// its inverse, the root s = sqrt(|x| + 1) - 1 of epsilon s^2 + (1 + 2 epsilon) s = |y|. Both in forms that do not
// subtract near numbers.
#define FARM_R2D2_EPSILON 1e-3f
static inline FARM_HD float farm_r2d2_h(float x) {
    return x / (sqrtf(fabsf(x) + 1) + 1) + FARM_R2D2_EPSILON * x;
}
static inline FARM_HD float farm_r2d2_h_inverse(float y) {
    const float e = FARM_R2D2_EPSILON, size = fabsf(y);
    const float s = 2 * size / (1 + 2 * e + sqrtf(1 + 4 * e * (1 + e + size)));
    return copysignf(s * (s + 2), y);
}

// The target of a row with `k` > 0 rewards.
static inline FARM_HD float farm_r2d2_target(const struct farm_algo_rows *rows, int row, int k, bool bootstraps) {
    const float *option = rows->option;
    const bool rescale = option[FARM_R2D2_RESCALE] != 0;
    float sum = 0, discount = 1;
    for (int j = 1; j <= k; j++, discount *= option[FARM_R2D2_DISCOUNT])
        sum += discount * rows->reward[row + j * rows->columns];
    if (bootstraps) {
        const int ahead = farm_algo_net_row(rows, row, k);
        const size_t at = (size_t)ahead * (size_t)rows->head.outputs;
        const float *online = rows->policy + at, *value = rows->target_policy ? rows->target_value : rows->value;
        const float *target = rows->target_policy ? rows->target_policy + at : online;
        const int best = farm_categorical_greedy(option[FARM_R2D2_DOUBLE] != 0 ? online : target, rows->head.outputs);
        const float q = farm_greedy_q_of(&rows->head, target, value[ahead], best);
        sum += discount * (rescale ? farm_r2d2_h_inverse(q) : q);
    }
    return rescale ? farm_r2d2_h(sum) : sum;
}

static inline FARM_HD int farm_r2d2_action(const struct farm_algo_rows *rows, int row) {
    return farm_head_discrete(rows->action + (size_t)row * (size_t)rows->head.action_bytes, 0);
}

static inline FARM_HD float farm_r2d2_delta(const struct farm_algo_rows *rows, int row, float target) {
    return target - farm_greedy_q_of(&rows->head, rows->policy + (size_t)row * (size_t)rows->head.outputs,
                                     rows->value[row], farm_r2d2_action(rows, row));
}

// Gradients and terms [FARM_R2D2_TERMS] of a row with this target, weight, and bound of the loss's slope.
static inline FARM_HD void farm_r2d2_fit(const struct farm_algo_rows *rows, int row, float target, float weight,
                                         float bound, float *terms) {
    const float delta = farm_r2d2_delta(rows, row, target);
    const float slope = delta > bound ? bound : delta < -bound ? -bound : delta;
    const size_t at = (size_t)row * (size_t)rows->head.outputs;
    farm_greedy_q_gradient(&rows->head, rows->policy + at, farm_r2d2_action(rows, row), -weight * slope,
                           rows->dpolicy + at, rows->dvalue + row);
    terms[FARM_R2D2_ROWS] = 1;
    terms[FARM_R2D2_LOSS_TERM] = weight * slope * (delta - 0.5f * slope);
    terms[FARM_R2D2_Q_TERM] = target - delta;
    terms[FARM_R2D2_TARGET_TERM] = target;
    terms[FARM_R2D2_ERROR_TERM] = fabsf(delta);
    terms[FARM_R2D2_WEIGHT_TERM] = weight;
}

static inline FARM_HD void farm_r2d2_prepare(const struct farm_algo_rows *rows, int row) {
    (void)rows, (void)row;
}

// One column: its targets and its priority, at least 1e-6 if it has a transition.
static inline FARM_HD void farm_r2d2_column(const struct farm_algo_rows *rows, int column) {
    float *target = farm_algo_scratch(rows, FARM_R2D2_TARGET), *exists = farm_algo_scratch(rows, FARM_R2D2_EXISTS);
    float most = 0, sum = 0, count = 0;
    for (int t = 0, row = column; t < rows->steps; t++, row += rows->columns) {
        bool bootstraps;
        const int k = farm_algo_horizon(rows->flags + row, (size_t)rows->columns, (int)rows->option[FARM_R2D2_N_STEP],
                                        &bootstraps);
        target[row] = 0;
        exists[row] = k > 0 ? 1.0f : 0.0f;
        if (!k) continue;
        target[row] = farm_r2d2_target(rows, row, k, bootstraps);
        const float size = fabsf(farm_r2d2_delta(rows, row, target[row]));
        most = size > most ? size : most;
        sum += size; // keeps a NaN
        count++;
    }
    if (!rows->priority) return;
    const float eta = rows->option[FARM_R2D2_PRIORITY_MAX];
    const float priority = count > 0 ? eta * most + (1 - eta) * (sum / count) : 0;
    rows->priority[column] = count > 0 && priority < 1e-6f ? 1e-6f : priority;
}

// One row: its gradients and terms. Without a transition it adds exactly nothing.
static inline FARM_HD void farm_r2d2_row(const struct farm_algo_rows *rows, int row, float *terms) {
    if (farm_algo_scratch(rows, FARM_R2D2_EXISTS)[row] == 0)
        farm_algo_no_gradient(rows, row);
    else
        farm_r2d2_fit(rows, row, farm_algo_scratch(rows, FARM_R2D2_TARGET)[row],
                      rows->weight ? rows->weight[row % rows->columns] : 1,
                      rows->option[FARM_R2D2_LOSS] == (float)FARM_R2D2_HUBER ? 1 : INFINITY, terms);
}

#endif
