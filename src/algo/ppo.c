// See ppo.h.
#include "algo/ppo.h"

#include "algo/algo.h"

#define KEY(name, value, most, line)                                                                                   \
    { name, FARM_RECIPE_DOUBLE, 0, value, 0, most, NULL, line, 0 }

static const struct farm_recipe_key keys[] = {
    [FARM_PPO_DISCOUNT] = KEY("discount", "0.99", 1, "gamma, a step"),
    [FARM_PPO_LAMBDA] = KEY("lambda", "0.95", 1, "of generalised advantage estimation; 1: Monte Carlo, 0: one step"),
    [FARM_PPO_CLIP] = KEY("clip", "0.2", 1, "pi/mu counts within 1 +- this"),
    [FARM_PPO_VALUE_CLIP] = KEY("value_clip", "0", 1e9, "values move by at most this in an iteration; 0: off"),
    [FARM_PPO_ENTROPY_COST] = KEY("entropy_cost", "0.01", 1e3, "weight of the entropy bonus"),
    [FARM_PPO_BASELINE_COST] = KEY("baseline_cost", "0.5", 1e3, "weight of the value loss"),
    [FARM_PPO_EPOCHS] = {"epochs", FARM_RECIPE_WHOLE, 0, "4", 1, 1000, NULL, "passes over an iteration's steps", 0},
    [FARM_PPO_MINIBATCH] = {"minibatch", FARM_RECIPE_WHOLE, 0, "256", 1, 1e6, NULL, "steps of an optimiser step", 0},
    [FARM_PPO_NORMALISE] = {"normalise_advantage", FARM_RECIPE_CHOICE, 0, "minibatch", 0, 0, "off|minibatch|iteration",
                            "over what advantages get mean 0 and deviation 1", 0},
    [FARM_PPO_KL_STOP] =
        KEY("kl_stop", "0", 1e3, "ends the epochs if KL(mu || pi) of one exceeds 1.5 times this, nats; 0: off"),
};

static enum farm_status plan(const struct farm_algo_config *config, struct farm_algo_plan *plan,
                             struct farm_error *err) {
    plan->epochs = (uint32_t)config->option[FARM_PPO_EPOCHS];
    plan->minibatch = (uint32_t)config->option[FARM_PPO_MINIBATCH];
    plan->targets_once = true;
    return FARM_OK;
}

static bool adapt(const struct farm_algo_config *config, const double *terms, double *learning_rate) {
    const double stop = (double)config->option[FARM_PPO_KL_STOP];
    return !(stop > 0) || !(terms[FARM_PPO_ROWS] > 0) || terms[FARM_PPO_KL] / terms[FARM_PPO_ROWS] <= 1.5 * stop;
}

const struct farm_algo farm_ppo = {
    .recipe = {.name = "ppo",
               .about = "proximal policy optimisation: epochs of small steps over each iteration's windows",
               .keys = keys,
               .key_count = FARM_PPO_OPTIONS},
    .statistics = {"loss_policy", "loss_value", "entropy_nats", "kl_nats", "clipped_share", "explained_variance"},
    .scratch = FARM_PPO_SCRATCH,
    .sync = true,
    .plan = plan,
    .adapt = adapt,
    .prepare = farm_ppo_prepare,
    .column = farm_ppo_column,
    .reduce = farm_ppo_reduce,
    .row = farm_ppo_row,
};
