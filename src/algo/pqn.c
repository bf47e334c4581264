// See pqn.h.
#include "algo/pqn.h"

#include "algo/algo.h"

#define KEY(option, kind, name, value, ...) [FARM_PQN_##option] = {#name, FARM_RECIPE_##kind, 0, value, __VA_ARGS__}

static const struct farm_recipe_key keys[] = {
    KEY(DISCOUNT, DOUBLE, discount, "0.99", .most = 1, .help = "gamma, for each step"),
    KEY(LAMBDA, DOUBLE, lambda, "0.65", .most = 1, .help = "lambda of the returns; 1: Monte Carlo, 0: one step"),
    KEY(EPOCHS, WHOLE, epochs, "2", .least = 1, .most = 1000, .uses = FARM_USE_FPS,
        .help = "passes over an iteration's steps"),
    KEY(MINIBATCH, WHOLE, minibatch, "256", .most = 1e6, .uses = FARM_USE_FPS,
        .help = "steps of an optimiser step, at most (with lstm in whole windows); 0: all of an iteration"),
};

static enum farm_status plan(const struct farm_algo_config *config, struct farm_algo_plan *plan,
                             struct farm_error *err) {
    plan->epochs = (uint32_t)config->option[FARM_PQN_EPOCHS];
    plan->targets_once = true;
    plan->minibatch = farm_algo_minibatch(config, plan, config->option[FARM_PQN_MINIBATCH]);
    return FARM_OK;
}

// As ppo.c.
static const struct farm_algo_scale scale[] = {{"minibatch", 1},       {"lr", 0.5}, {"lr_end", 0.5}, {"frames", 0.5},
                                               {"epsilon_steps", 0.5}, {NULL, 0}};

const struct farm_algo farm_pqn = {
    .recipe = {.name = "pqn",
               .about = "Q(lambda) on each iteration's windows, without a replay and a target network",
               .keys = keys,
               .key_count = FARM_PQN_OPTIONS},
    .statistics = {{.key = "loss"}, {"q_mean", "q"}, {.key = "target_mean"}, {"td_error", "td"}},
    .scale = scale,
    .scratch = FARM_PPO_SCRATCH,
    .sync = true,
    .q = true,
    .plan = plan,
    .prepare = farm_pqn_prepare,
    .column = farm_pqn_column,
    .row = farm_pqn_row,
};
