// See replay.h.
#include "run/replay.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/format.h"
#include "base/log.h"
#include "intake/validator.h"
#include "shm/limits.h"

enum { REPLAY_STEPS = 100000, START_SHARE = 20, BATCH = 64, BATCH_SEQUENCES = 32 };
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

void farm_run_replay_choose(struct farm_recipe *recipe, const struct farm_algo_plan *passes, int64_t environments) {
    const struct farm_window_shape *shape = &passes->shape;
    const int64_t transitions = farm_algo_transitions(passes),
                  least = WINDOWS_LEAST * (int64_t)(shape->length + shape->stack + shape->stride) * environments;
    if (!recipe->batch)
        recipe->batch = (int64_t)((transitions == 1 ? BATCH : BATCH_SEQUENCES) * fmax(recipe->scaled, 1));
    if (!recipe->replay && !recipe->ring_steps) recipe->replay = REPLAY_STEPS > least ? REPLAY_STEPS : least;
    if (recipe->ring_steps &&
        (!recipe->replay || recipe->layers[FARM_KEY_ring_steps] > recipe->layers[FARM_KEY_replay]))
        recipe->replay = recipe->ring_steps * environments;
    recipe->ring_steps = (recipe->replay + environments - 1) / environments;
    const int64_t updates = 2 * recipe->batch * transitions, start = recipe->replay / START_SHARE;
    if (!recipe->replay_start) recipe->replay_start = start > updates ? start : updates;
}

enum farm_status farm_run_replay_check_counts(const struct farm_recipe *recipe, const struct farm_algo_plan *passes,
                                              int64_t environments, struct farm_error *err) {
    const uint64_t windows =
        farm_window_capacity(&passes->shape, (uint64_t)recipe->ring_steps) * (uint64_t)environments;
    if (recipe->replay_start > recipe->replay)
        return farm_fail(err, FARM_E_USAGE, "replay_start (%" PRId64 ") is larger than replay (%" PRId64 ")",
                         recipe->replay_start, recipe->replay);
    if (windows < 2 * (uint64_t)recipe->batch)
        return farm_fail(err, FARM_E_USAGE,
                         "--replay %" PRId64 ": %" PRIu64 " windows fit, and an update of %" PRId64
                         " needs twice as many: raise --replay or lower --batch",
                         recipe->replay, windows, recipe->batch);
    return FARM_OK;
}

// ---- memory ----

struct farm_run_replay_bytes farm_run_replay_bytes(const struct farm_ring_spec *spec,
                                                   const struct farm_ring_layout *layout, int64_t environments) {
    const uint64_t lanes = (uint64_t)environments / spec->width;
    return (struct farm_run_replay_bytes){.rings = lanes / spec->lanes * (layout->up_bytes + layout->down_bytes),
                                          .copies = lanes * farm_validator_bytes(spec, layout),
                                          .index = (uint64_t)environments * farm_leaf_slots(spec) * INDEX_BYTES};
}

// The largest round number of steps that take 7/8 of this memory: its nodes are not equally full.
static int64_t steps_within(double step_bytes, uint64_t bytes) {
    int64_t steps = (int64_t)((double)bytes * 0.875 / step_bytes), unit = 1;
    while (steps / unit >= 100) unit *= 10;
    return steps / unit * unit;
}

enum farm_status farm_run_replay_fit(struct farm_recipe *recipe, int64_t environments, uint64_t others,
                                     struct farm_ring_spec *spec, struct farm_ring_layout *layout,
                                     struct farm_error *err) {
    const struct farm_run_replay_bytes own = farm_run_replay_bytes(spec, layout, environments);
    const uint64_t pool = recipe->huge_pages ? farm_limits_huge_available_bytes("/", -1) : 0,
                   may = farm_limits_memory_available_bytes("/") + pool, need = own.rings + own.copies + own.index;
    if (need + others <= may) return FARM_OK;
    const double step_bytes = (double)need / (double)recipe->replay;
    const int64_t fits = steps_within(step_bytes, may > others ? may - others : 0);
    const bool set = farm_recipe_set_by(recipe, "replay", FARM_LAYER_FILE) ||
                     farm_recipe_set_by(recipe, "ring_steps", FARM_LAYER_FILE);
    if (!set && fits > recipe->batch) {
        farm_log_warn("replay %" PRId64 " does not fit the memory: it is %" PRId64 "; --replay N sets it",
                      recipe->replay, fits);
        if (recipe->replay_start > fits / 2) recipe->replay_start = fits / 2;
        recipe->replay = fits;
        recipe->ring_steps = spec->steps = (uint32_t)(fits / environments);
        return farm_ring_layout_make(spec, layout, err);
    }
    farm_limits_check_memory("/", need + others - pool, -1, err);
    return farm_fail_in(err, FARM_E_LIMIT,
                        "--replay %" PRId64 ": %" PRId64 " lanes x %u environments x %u steps x %.0f B, and %s for the "
                        "rest of the run; --replay %" PRId64 " fits",
                        recipe->replay, environments / spec->width, spec->width, spec->steps, step_bytes,
                        farm_format_bytes((double)others).text, fits);
}
