// See ppo.h.
#include "algo/ppo.h"

#include <math.h>

#include "algo/algo.h"

#define KEY(option, kind, name, value, ...) [FARM_PPO_##option] = {#name, FARM_RECIPE_##kind, 0, value, __VA_ARGS__}

_Static_assert((int)FARM_PPO_SUMS <= (int)FARM_ALGO_SUM_SCHEDULE, "the schedule has its own place");

static const struct farm_recipe_key keys[] = {
    KEY(DISCOUNT, DOUBLE, discount, "0.99", .most = 1, .help = "gamma, for each step"),
    KEY(LAMBDA, DOUBLE, lambda, "0.95", .most = 1,
        .help = "lambda of generalised advantage estimation; 1: Monte Carlo, 0: one step"),
    KEY(CLIP, DOUBLE, clip, "0.2", .least = 1e-3, .most = 1, .help = "pi/mu counts within 1 +- this"),
    KEY(VALUE_CLIP, DOUBLE, value_clip, "0", .most = 1e9,
        .help = "values move by at most this in an iteration; 0: off"),
    KEY(ENTROPY_COST, DOUBLE, entropy_cost, "0.01", .most = 1e3, .help = "weight of the entropy bonus"),
    KEY(BASELINE_COST, DOUBLE, baseline_cost, "0.5", .most = 1e3, .help = "weight of the value loss"),
    KEY(EPOCHS, WHOLE, epochs, "4", .least = 1, .most = 1000, .uses = FARM_USE_FPS,
        .help = "passes over an iteration's steps"),
    KEY(MINIBATCH, WHOLE, minibatch, "256", .most = 1e6, .uses = FARM_USE_FPS,
        .help = "steps of an optimiser step, at most (with lstm in whole windows); 0: all of an iteration"),
    KEY(NORMALISE, CHOICE, normalise_advantage, "minibatch", .choices = "off|minibatch|iteration",
        .help = "over what advantages get mean 0 and deviation 1"),
    KEY(KL_STOP, DOUBLE, kl_stop, "0", .most = 1e3,
        .help = "ends the epochs if KL(mu || pi) of one exceeds 1.5 times this, nats; 0: off"),
    KEY(KL_TARGET, DOUBLE, kl_target, "0", .most = 1e3,
        .help = "divides the learning rate by 1.5 if KL(mu || pi) of an iteration's last epoch exceeds twice this, "
                "nats, multiplies it if it is below half of this; 0: off"),
    KEY(ENTROPY_SCHEDULE, CHOICE, entropy_schedule, "constant", .choices = "constant|lr",
        .help = "entropy_cost stays, or falls in proportion with the learning rate's schedule"),
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
    plan->targets_once = true;
    plan->minibatch = farm_algo_minibatch(config, plan, config->option[FARM_PPO_MINIBATCH]);
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

// N times the environments, as many optimiser steps an iteration, each of N times the steps: Adam's rate grows with the
// root (Malladi et al. 2022; Hilton et al. 2022 for PPO). With sqrt(N) times the steps of the run in all, the policy
// gets 1/sqrt(N) times as many optimiser steps: as far as the rate carries it.
static const struct farm_algo_scale scale[] = {
    {"minibatch", 1}, {"lr", 0.5}, {"lr_end", 0.5}, {"frames", 0.5}, {NULL, 0}};

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
    .scale = scale,
    .scratch = FARM_PPO_SCRATCH,
    .sync = true,
    .plan = plan,
    .adapt = adapt,
    .prepare = farm_ppo_prepare,
    .column = farm_ppo_column,
    .reduce = farm_ppo_reduce,
    .row = farm_ppo_row,
};
