// From the recipe's hyperparameters to the kernels' configurations, the same for every backend. Pure functions.
#ifndef FARM_LEARNER_ALGO_H
#define FARM_LEARNER_ALGO_H

#include "kernels/loss.h"
#include "kernels/optimiser.h"
#include "kernels/vtrace.h"
#include "learner/config.h"

static inline struct farm_optimiser_config farm_algo_optimiser(const struct farm_algo_config *algo) {
    struct farm_optimiser_config config = farm_optimiser_default(algo->optimiser);
    const bool adam = algo->optimiser == FARM_OPTIMISER_ADAM;
    config.first_decay = (float)algo->adam_beta1;
    config.second_decay = (float)(adam ? algo->adam_beta2 : algo->rmsprop_decay);
    config.epsilon = (float)(adam ? algo->adam_epsilon : algo->rmsprop_epsilon);
    config.clip_norm = (float)algo->grad_norm_clip;
    return config;
}

// A reward as training sees it: clipped, then scaled.
static inline float farm_algo_reward(const struct farm_algo_config *algo, float reward) {
    return farm_reward_clip(reward, (float)algo->reward_clip) * (float)algo->reward_scale;
}

// For rewards that have been through farm_algo_reward.
static inline struct farm_vtrace_config farm_algo_vtrace(const struct farm_algo_config *algo) {
    return (struct farm_vtrace_config){.gamma = (float)algo->discount,
                                       .lambda = (float)algo->lambda,
                                       .rho_bar = (float)algo->rho_clip,
                                       .c_bar = (float)algo->c_clip,
                                       .pg_rho_bar = (float)algo->pg_rho_clip,
                                       .reward_clip = 0};
}

static inline struct farm_loss_config farm_algo_loss(const struct farm_algo_config *algo) {
    return (struct farm_loss_config){.baseline_cost = (float)algo->baseline_cost,
                                     .entropy_cost = (float)algo->entropy_cost,
                                     .rho_bar = (float)algo->rho_clip};
}

#endif
