// See vtrace.h.
#include "algo/vtrace.h"

#include "algo/algo.h"

#define KEY(option, kind, name, value, ...) [FARM_VTRACE_##option] = {#name, FARM_RECIPE_##kind, 0, value, __VA_ARGS__}

static const struct farm_recipe_key keys[] = {
    KEY(DISCOUNT, DOUBLE, discount, "0.99", .most = 1,
        .help = "weight of a reward for each agent step that it lies ahead (gamma)"),
    KEY(ENTROPY_COST, DOUBLE, entropy_cost, "0.01", .most = 1e3, .help = "weight of the entropy bonus"),
    KEY(BASELINE_COST, DOUBLE, baseline_cost, "0.5", .most = 1e3, .help = "weight of the value loss"),
    KEY(RHO_CLIP, DOUBLE, rho_clip, "1", .least = 1e-3, .most = 1e9,
        .help = "upper limit of the importance weight of a step in the value target (rho)"),
    KEY(C_CLIP, DOUBLE, c_clip, "1", .most = 1e9,
        .help = "upper limit of the importance weight that carries the errors of later steps back (c)"),
    KEY(PG_RHO_CLIP, DOUBLE, pg_rho_clip, "1", .least = 1e-3, .most = 1e9,
        .help = "upper limit of the importance weight of a step in the policy gradient"),
    KEY(LAMBDA, DOUBLE, lambda, "1", .most = 1,
        .help = "decay, for each step, of the errors that are carried back; 1: none, as in IMPALA"),
    KEY(EPOCHS, WHOLE, epochs, "1", .least = 1, .most = 1000, .uses = FARM_USE_FPS,
        .help = "passes over an update's windows"),
    KEY(MINIBATCH, WHOLE, minibatch, "0", .most = 1e6, .uses = FARM_USE_FPS,
        .help = "steps of an optimiser step, at most, in whole windows; 0: all of an update"),
    KEY(RATIO_CLIP, DOUBLE, ratio_clip, "0", .most = 1,
        .help = "no policy gradient where pi/mu has left 1 +- this with its advantage; 0: off, IMPALA"),
};

// Targets are computed in each pass, by the parameters of that pass.
static enum farm_status plan(const struct farm_algo_config *config, struct farm_algo_plan *plan,
                             struct farm_error *err) {
    plan->epochs = (uint32_t)config->option[FARM_VTRACE_EPOCHS];
    plan->minibatch = farm_algo_minibatch(config, plan, config->option[FARM_VTRACE_MINIBATCH]);
    return FARM_OK;
}

// explained_variance: 1 - mean of (vs - V)^2 / variance of vs.
static double statistic(const double *terms, int k) {
    const double rows = terms[FARM_VTRACE_ROWS] > 0 ? terms[FARM_VTRACE_ROWS] : 1, mean = terms[k + 1] / rows;
    if (k + 1 != FARM_VTRACE_TARGET) return mean;
    const double variance = terms[FARM_VTRACE_TARGET_SQUARE] / rows - mean * mean;
    return variance > 0 ? 1 - 2 * terms[FARM_VTRACE_BASELINE] / rows / variance : 0;
}

// As ppo.c. An update takes N times the windows, so the lag in updates stays.
static const struct farm_algo_scale scale[] = {{"batch", 1},    {"minibatch", 1}, {"lr", 0.5},
                                               {"lr_end", 0.5}, {"frames", 0.5},  {NULL, 0}};

const struct farm_algo farm_vtrace = {
    .recipe = {.name = "vtrace",
               .about = "V-trace actor-critic (IMPALA), corrects for actors that are some versions behind",
               .keys = keys,
               .key_count = FARM_VTRACE_OPTIONS},
    .statistics = {{.key = "loss_policy"},
                   {.key = "loss_value"},
                   {"entropy_nats", "entropy"},
                   {"kl_nats", "kl"},
                   {"rho_clipped_share", "clipped"},
                   {"explained_variance", "explained"}},
    .statistic = statistic,
    .scale = scale,
    .scratch = FARM_VTRACE_SCRATCH,
    .plan = plan,
    .prepare = farm_vtrace_prepare,
    .column = farm_vtrace_column,
    .row = farm_vtrace_row,
};
