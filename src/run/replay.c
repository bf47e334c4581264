// See replay.h.
#include "run/replay.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/format.h"
#include "intake/validator.h"
#include "shm/limits.h"

enum { REPLAY_STEPS = 100000, START_SHARE = 20, EPSILON_STEPS = 50000, BATCH = 64, BATCH_SEQUENCES = 32 };
enum { WINDOWS_LEAST = 4, INDEX_BYTES = 5 }; // in a ring; of a window: its leaf, and a share of nodes and pins

enum farm_status farm_run_replay_check(const struct farm_recipe *recipe, const struct farm_algo *algo,
                                       struct farm_error *err) {
    if (!algo->replay) return FARM_OK;
    if (strcmp(recipe->regime, "auto") != 0)
        return farm_fail(err, FARM_E_USAGE, "--regime %s: %s trains on its replay, in replay_order: leave --regime out",
                         recipe->regime, algo->recipe.name);
    if (recipe->normalise_rewards)
        return farm_fail(err, FARM_E_USAGE,
                         "normalise_rewards: %s trains on rewards of different ages, whose scale would change with "
                         "each update: --reward-clip, --reward-scale or --rescale true",
                         algo->recipe.name);
    return FARM_OK;
}

static int64_t environments_of(const struct farm_run_plan *plan) {
    return (int64_t)(plan->actors + plan->listen.expect) * plan->lanes * plan->width;
}

void farm_run_replay_choose(struct farm_recipe *recipe, const struct farm_algo_plan *passes, int64_t environments) {
    const struct farm_window_shape *shape = &passes->shape;
    const int64_t transitions = farm_algo_transitions(passes),
                  least = WINDOWS_LEAST * (int64_t)(shape->length + shape->stack + shape->stride) * environments;
    const double scale = recipe->scaled > 1 ? recipe->scaled : 1; // as run/scale.c would
    if (!recipe->batch) recipe->batch = (int64_t)(scale * (transitions == 1 ? BATCH : BATCH_SEQUENCES));
    if (!recipe->replay && !recipe->ring_steps) recipe->replay = REPLAY_STEPS > least ? REPLAY_STEPS : least;
    if (recipe->ring_steps &&
        (!recipe->replay || recipe->layers[FARM_KEY_ring_steps] > recipe->layers[FARM_KEY_replay]))
        recipe->replay = recipe->ring_steps * environments;
    recipe->ring_steps = (recipe->replay + environments - 1) / environments;
    const int64_t updates = 2 * recipe->batch * transitions, start = recipe->replay / START_SHARE;
    if (!recipe->replay_start) recipe->replay_start = start > updates ? start : updates;
    if (!recipe->epsilon_steps) recipe->epsilon_steps = EPSILON_STEPS;
}

enum farm_status farm_run_replay_check_counts(const struct farm_run_plan *plan, struct farm_error *err) {
    const struct farm_recipe *recipe = &plan->recipe;
    const uint64_t windows = farm_window_capacity(&plan->passes.shape, plan->steps) * (uint64_t)environments_of(plan);
    if (recipe->replay_start > recipe->replay)
        return farm_fail(err, FARM_E_USAGE,
                         "replay_start (%" PRId64 ") is larger than replay (%" PRId64
                         "), the steps that the rings hold",
                         recipe->replay_start, recipe->replay);
    if (windows < 2 * (uint64_t)plan->algo.batch)
        return farm_fail(err, FARM_E_USAGE,
                         "--replay %" PRId64 ": rings of %u steps hold %" PRIu64
                         " windows of %u, an update takes %u and others must fill meanwhile: raise --replay or lower "
                         "--batch",
                         recipe->replay, plan->steps, windows, plan->passes.shape.length, plan->algo.batch);
    return FARM_OK;
}

// ---- memory ----

uint64_t farm_run_replay_copied_bytes(const struct farm_run_plan *plan) {
    return (uint64_t)environments_of(plan) / plan->width * farm_validator_bytes(&plan->ring_spec, &plan->layout);
}

uint64_t farm_run_replay_index_bytes(const struct farm_run_plan *plan) {
    return (uint64_t)environments_of(plan) * farm_leaf_slots(&plan->ring_spec) * INDEX_BYTES;
}

static uint64_t replay_bytes(const struct farm_run_plan *plan) {
    return farm_run_actor_bytes(plan) * (plan->actors + plan->listen.expect) + farm_run_replay_copied_bytes(plan) +
           farm_run_replay_index_bytes(plan);
}

// The largest round number of steps for which this memory suffices.
static int64_t steps_within(const struct farm_run_plan *plan, uint64_t bytes) {
    const double each = (double)replay_bytes(plan) / (double)plan->recipe.replay;
    int64_t steps = (int64_t)((double)bytes / each), unit = 1;
    while (steps / unit >= 100) unit *= 10;
    return steps / unit * unit;
}

enum farm_status farm_run_replay_fit(struct farm_run_plan *plan, struct farm_error *err) {
    struct farm_recipe *recipe = &plan->recipe;
    const uint64_t pool = recipe->huge_pages ? farm_limits_huge_available_bytes("/", -1) : 0,
                   may = farm_limits_memory_available_bytes("/") + pool, others = farm_run_other_bytes(plan),
                   need = replay_bytes(plan);
    if (need + others <= may) return FARM_OK;
    const int64_t fits = steps_within(plan, may > others ? may - others : 0);
    if (!farm_recipe_set_by(recipe, "replay", FARM_LAYER_FILE) && fits > recipe->batch) {
        plan->replay_asked = plan->replay_asked ? plan->replay_asked : recipe->replay;
        if (recipe->replay_start > fits / 2) recipe->replay_start = fits / 2;
        recipe->replay = fits;
        plan->ring_spec.steps = plan->steps = (uint32_t)(fits / environments_of(plan));
        recipe->ring_steps = plan->steps;
        return farm_ring_layout_make(&plan->ring_spec, &plan->layout, err);
    }
    farm_limits_check_memory("/", need + others - pool, -1, err);
    return farm_fail_in(err, FARM_E_LIMIT,
                        "--replay %" PRId64 ": %u lanes x %u environments x %u steps x %.0f B, and %s for the rest of "
                        "the run; --replay %" PRId64 " fits",
                        recipe->replay, (plan->actors + plan->listen.expect) * plan->lanes, plan->width, plan->steps,
                        (double)need / (double)recipe->replay, farm_format_bytes((double)others).text, fits);
}

// ---- settings ----

struct farm_replay_config farm_run_replay_config(const struct farm_run_plan *plan) {
    const struct farm_recipe *recipe = &plan->recipe;
    return (struct farm_replay_config){
        .start = (uint64_t)recipe->replay_start / plan->passes.shape.stride,
        .ratio = recipe->replay_ratio,
        .order = (enum farm_replay_order)farm_recipe_choice(recipe, FARM_KEY_replay_order),
        .repeats = recipe->replay_repeats,
        .exponent = (float)recipe->priority_exponent,
        .importance = (float)recipe->importance_exponent,
        .importance_end = (float)recipe->importance_end,
    };
}

double farm_run_steps_per_version(const struct farm_run_plan *plan) {
    const double windows = plan->passes.sync ? (double)environments_of(plan) : plan->algo.batch;
    return windows * farm_algo_transitions(&plan->passes) / (plan->passes.replay ? plan->recipe.replay_ratio : 1);
}

struct farm_sampler farm_run_exploration(const struct farm_run_plan *plan) {
    const struct farm_recipe *recipe = &plan->recipe;
    const int64_t steps = recipe->epsilon_steps ? recipe->epsilon_steps : EPSILON_STEPS;
    if (!plan->algo.algo->q) return (struct farm_sampler){0};
    if (plan->play.games) return (struct farm_sampler){.epsilon_end = (float)recipe->eval_epsilon};
    return (struct farm_sampler){.epsilon_start = (float)recipe->epsilon,
                                 .epsilon_end = (float)recipe->epsilon_end,
                                 .ladder = (float)recipe->epsilon_ladder,
                                 .environments = (uint32_t)environments_of(plan),
                                 .width = plan->width,
                                 .epsilon_versions = (uint64_t)ceil((double)steps / farm_run_steps_per_version(plan))};
}
