// See ppo.h.
#include "algo/ppo.h"

#include <math.h>

#include "algo/algo.h"

#define KEY(name, value, most, line)                                                                                   \
    { name, FARM_RECIPE_DOUBLE, 0, value, 0, most, NULL, line, 0 }

_Static_assert((int)FARM_PPO_SUMS <= (int)FARM_ALGO_SUM_SCHEDULE, "the schedule has its own place");

static const struct farm_recipe_key keys[] = {
    [FARM_PPO_DISCOUNT] = KEY("discount", "0.99", 1, "gamma, a step"),
    [FARM_PPO_LAMBDA] = KEY("lambda", "0.95", 1, "of generalised advantage estimation; 1: Monte Carlo, 0: one step"),
    [FARM_PPO_CLIP] = {"clip", FARM_RECIPE_DOUBLE, 0, "0.2", 1e-3, 1, NULL, "pi/mu counts within 1 +- this", 0},
    [FARM_PPO_VALUE_CLIP] = KEY("value_clip", "0", 1e9, "values move by at most this in an iteration; 0: off"),
    [FARM_PPO_ENTROPY_COST] = KEY("entropy_cost", "0.01", 1e3, "weight of the entropy bonus"),
    [FARM_PPO_BASELINE_COST] = KEY("baseline_cost", "0.5", 1e3, "weight of the value loss"),
    [FARM_PPO_EPOCHS] = {"epochs", FARM_RECIPE_WHOLE, 0, "4", 1, 1000, NULL, "passes over an iteration's steps", 0},
    [FARM_PPO_MINIBATCH] = {"minibatch", FARM_RECIPE_WHOLE, 0, "256", 0, 1e6, NULL,
                            "steps of an optimiser step, at most (with lstm in whole windows); 0: all of an iteration",
                            0},
    [FARM_PPO_NORMALISE] = {"normalise_advantage", FARM_RECIPE_CHOICE, 0, "minibatch", 0, 0, "off|minibatch|iteration",
                            "over what advantages get mean 0 and deviation 1", 0},
    [FARM_PPO_KL_STOP] =
        KEY("kl_stop", "0", 1e3, "ends the epochs if KL(mu || pi) of one exceeds 1.5 times this, nats; 0: off"),
    [FARM_PPO_KL_TARGET] =
        KEY("kl_target", "0", 1e3,
            "divides the learning rate by 1.5 if KL(mu || pi) of an iteration's last epoch exceeds twice this, nats, "
            "multiplies it if it is below half of this; 0: off"),
    [FARM_PPO_ENTROPY_SCHEDULE] = {"entropy_schedule", FARM_RECIPE_CHOICE, 0, "constant", 0, 0, "constant|lr",
                                   "entropy_cost stays, or falls in proportion with the learning rate's schedule", 0},
};
// Of the scheduled learning rate. rl_games' adaptive schedule keeps 1e-6 to 1e-2, from about 3e-4.
static const double RATE_STEP = 1.5, RATE_FACTOR_LEAST = 1.0 / 300, RATE_FACTOR_MOST = 30;

static enum farm_status plan(const struct farm_algo_config *config, struct farm_algo_plan *plan,
                             struct farm_error *err) {
    const double stop = (double)config->option[FARM_PPO_KL_STOP], target = (double)config->option[FARM_PPO_KL_TARGET];
    if (stop > 0 && stop < target)
        return farm_fail(err, FARM_E_USAGE,
                         "kl_stop (%g) is below kl_target (%g): epochs would end before the policy has moved so far; "
                         "kl_stop must be at least kl_target, or one of them 0",
                         stop, target);
    plan->epochs = (uint32_t)config->option[FARM_PPO_EPOCHS];
    plan->minibatch = (uint32_t)config->option[FARM_PPO_MINIBATCH];
    if (plan->recurrent) plan->minibatch = (plan->minibatch + config->unroll - 1) / config->unroll;
    plan->targets_once = true;
    return FARM_OK;
}

static bool adapt(const struct farm_algo_config *config, const double *terms, bool last, double *rate_factor) {
    const double stop = (double)config->option[FARM_PPO_KL_STOP], target = (double)config->option[FARM_PPO_KL_TARGET];
    const double rows = terms[FARM_PPO_ROWS], kl = rows > 0 ? terms[FARM_PPO_KL] / rows : 0;
    const bool more = !last && !(stop > 0 && kl > 1.5 * stop);
    if (!(target > 0)) *rate_factor = 1; // what a checkpoint may hold is another kl_target's
    if (more || !(target > 0) || !(rows > 0)) return more;
    if (kl > 2 * target) *rate_factor = fmax(*rate_factor / RATE_STEP, RATE_FACTOR_LEAST);
    if (kl < target / 2) *rate_factor = fmin(*rate_factor * RATE_STEP, RATE_FACTOR_MOST);
    return more;
}

const struct farm_algo farm_ppo = {
    .recipe = {.name = "ppo",
               .about = "proximal policy optimisation: epochs of small steps over each iteration's windows",
               .keys = keys,
               .key_count = FARM_PPO_OPTIONS},
    .statistics = {{.key = "loss_policy"},
                   {.key = "loss_value"},
                   {"entropy_nats", "entropy"},
                   {"kl_nats", "kl"},
                   {"clipped_share", "clipped"},
                   {"explained_variance", "explained"}},
    .scratch = FARM_PPO_SCRATCH,
    .sync = true,
    .plan = plan,
    .adapt = adapt,
    .prepare = farm_ppo_prepare,
    .column = farm_ppo_column,
    .reduce = farm_ppo_reduce,
    .row = farm_ppo_row,
};
