// The parallelised Q-network (Gallici et al. 2024, "Simplifying Deep Temporal Difference Learning", algorithm 1):
// Q(lambda) on each iteration's windows of many environments, without a replay and without a target network. With this
// project's meaning of a step (<farm/step.h>). Runs in the learner, on rows.h.
//
//   return_t = r_t + gamma_t (lambda return_{t+1} + (1 - lambda) max Q(t+1)),   L = sum over rows of 1/2 (return - Q)^2
//
// It is PPO's return (ppo.h) with V = max Q: as predicted when acting, the bootstrap row's of the present parameters.
// Exploring actions do not cut the return, as in the paper (Peng's Q(lambda)).
#ifndef FARM_ALGO_PQN_H
#define FARM_ALGO_PQN_H

#include "algo/ppo.h"
#include "algo/r2d2.h"

enum {
    FARM_PQN_DISCOUNT = FARM_PPO_DISCOUNT, // farm_ppo_column reads both
    FARM_PQN_LAMBDA = FARM_PPO_LAMBDA,
    FARM_PQN_EPOCHS,
    FARM_PQN_MINIBATCH, // rows
    FARM_PQN_OPTIONS
};

extern const struct farm_algo farm_pqn;

static inline FARM_HD void farm_pqn_prepare(const struct farm_algo_rows *rows, int row) {
    (void)rows, (void)row;
}

static inline FARM_HD void farm_pqn_column(const struct farm_algo_rows *rows, int column) {
    farm_ppo_column(rows, column);
}

// One row: its gradients and terms (r2d2.h). Without a transition it adds exactly nothing.
static inline FARM_HD void farm_pqn_row(const struct farm_algo_rows *rows, int row, float *terms) {
    if (farm_algo_scratch(rows, FARM_PPO_WEIGHT)[row] == 0)
        farm_algo_no_gradient(rows, row);
    else
        farm_r2d2_fit(rows, row, farm_algo_scratch(rows, FARM_PPO_RETURN)[row], 1, INFINITY, terms);
}

#endif
