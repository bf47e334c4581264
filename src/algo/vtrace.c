// See vtrace.h.
#include "algo/vtrace.h"

#include "algo/algo.h"

#define KEY(name, value, least, most, line)                                                                            \
    { name, FARM_RECIPE_DOUBLE, 0, value, least, most, NULL, line, 0 }

static const struct farm_recipe_key keys[] = {
    [FARM_VTRACE_DISCOUNT] =
        KEY("discount", "0.99", 0, 1, "weight of a reward for each agent step that it lies ahead (gamma)"),
    [FARM_VTRACE_ENTROPY_COST] = KEY("entropy_cost", "0.01", 0, 1e3, "weight of the entropy bonus"),
    [FARM_VTRACE_BASELINE_COST] = KEY("baseline_cost", "0.5", 0, 1e3, "weight of the value loss"),
    [FARM_VTRACE_RHO_CLIP] =
        KEY("rho_clip", "1", 1e-3, 1e9, "upper limit of the importance weight of a step in the value target (rho)"),
    [FARM_VTRACE_C_CLIP] = KEY("c_clip", "1", 0, 1e9,
                               "upper limit of the importance weight that carries the errors of later steps back (c)"),
    [FARM_VTRACE_PG_RHO_CLIP] =
        KEY("pg_rho_clip", "1", 1e-3, 1e9, "upper limit of the importance weight of a step in the policy gradient"),
    [FARM_VTRACE_LAMBDA] =
        KEY("lambda", "1", 0, 1, "decay, for each step, of the errors that are carried back; 1: none, as in IMPALA"),
    [FARM_VTRACE_EPOCHS] = {"epochs", FARM_RECIPE_WHOLE, 0, "1", 1, 1000, NULL, "passes over an update's windows", 0},
    [FARM_VTRACE_MINIBATCH] = {"minibatch", FARM_RECIPE_WHOLE, 0, "0", 0, 1e6, NULL,
                               "steps of an optimiser step, at most, in whole windows; 0: all of an update", 0},
    [FARM_VTRACE_RATIO_CLIP] =
        KEY("ratio_clip", "0", 0, 1,
            "no policy gradient where pi/mu has left 1 +- this with its advantage; 0: off, IMPALA"),
};

// Targets are computed in each pass, by the parameters of that pass.
static enum farm_status plan(const struct farm_algo_config *config, struct farm_algo_plan *plan,
                             struct farm_error *err) {
    const uint32_t minibatch = (uint32_t)config->option[FARM_VTRACE_MINIBATCH];
    plan->epochs = (uint32_t)config->option[FARM_VTRACE_EPOCHS];
    plan->minibatch = (minibatch + config->unroll - 1) / config->unroll;
    return FARM_OK;
}

// explained_variance: 1 - mean of (vs - V)^2 / variance of vs.
static double statistic(const double *terms, int k) {
    const double rows = terms[FARM_VTRACE_ROWS] > 0 ? terms[FARM_VTRACE_ROWS] : 1, mean = terms[k + 1] / rows;
    if (k + 1 != FARM_VTRACE_TARGET) return mean;
    const double variance = terms[FARM_VTRACE_TARGET_SQUARE] / rows - mean * mean;
    return variance > 0 ? 1 - 2 * terms[FARM_VTRACE_BASELINE] / rows / variance : 0;
}

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
    .scratch = FARM_VTRACE_SCRATCH,
    .plan = plan,
    .prepare = farm_vtrace_prepare,
    .column = farm_vtrace_column,
    .row = farm_vtrace_row,
};
