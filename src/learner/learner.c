// The life of the learner process: its parts are made, run and taken apart here. See learner.h.
#include "learner/learner.h"

#include <math.h>
#include <stdlib.h>

#include "base/log.h"
#include "learner/admitter.h"
#include "learner/inference.h"
#include "learner/trainer.h"

struct learner {
    struct farm_learner_parts parts;
    struct farm_trainer *trainer;
};

// ---- start and end ----

// The plan of training. A synchronous one does not read `batch`.
static enum farm_status make_plan(struct farm_learner_parts *parts, struct farm_error *err) {
    const struct farm_learner_config *config = parts->config;
    if (config->algo.unroll < 1 || config->algo.batch < 1)
        return farm_fail(err, FARM_E_INVALID, "unroll %u, batch %u: both must be at least 1", config->algo.unroll,
                         config->algo.batch);
    const enum farm_status status = farm_algo_plan_make(&config->algo, &parts->plan, err);
    if (status || parts->plan.sync || config->algo.batch >= config->shard_count) return status;
    return farm_fail(err, FARM_E_INVALID, "an update of %u windows (--batch) cannot be divided among %u shards",
                     config->algo.batch, config->shard_count);
}

static enum farm_status load_checkpoint(struct farm_learner_parts *parts, struct farm_error *err) {
    const struct farm_learner_config *config = parts->config;
    struct farm_backend_state state = parts->ops->state(parts->backend);
    struct farm_checkpoint_metadata metadata;
    uint64_t version = 0, optimiser_step = config->checkpoints.load ? 0 : state.optimiser_step;
    bool has_optimiser;
    parts->rate_factor = 1;
    if (config->checkpoints.load) {
        const enum farm_status status = farm_parts_load(parts, &state, &has_optimiser, &metadata, err);
        if (status) return status;
        if (!has_optimiser)
            farm_log_warn("%s holds no state of this optimiser: it starts afresh", config->checkpoints.load);
        const char *factor = farm_checkpoint_get(&metadata, "learning_rate_factor");
        const struct farm_algo *algo = config->algo.algo;
        const char *games = farm_checkpoint_get(&metadata, "games");
        if (games && config->deterministic.on) farm_lanes_read_games(config->stats, games);
        if (factor && strtod(factor, NULL) > 0 && isfinite(strtod(factor, NULL)))
            parts->rate_factor = strtod(factor, NULL);
        if (algo->adapt)
            (void)algo->adapt(&config->algo, (const double[FARM_ALGO_TERMS_MAX]){0}, true, &parts->rate_factor);
        version = farm_checkpoint_get_u64(&metadata, "version");
        if (has_optimiser) optimiser_step = farm_checkpoint_get_u64(&metadata, "optimiser_step");
        farm_checkpoint_metadata_free(&metadata);
    }
    farm_parts_begin_version(parts, version);
    parts->passes = optimiser_step;
    if (!parts->version && !config->checkpoints.load) return FARM_OK;
    return parts->ops->state_changed(parts->backend, parts->version, optimiser_step, err);
}

// Windows of one environment in an iteration, whatever rings join.
static uint32_t columns_max(const struct farm_learner_parts *parts) {
    uint64_t all = 0;
    if (!parts->plan.sync) return parts->config->algo.batch;
    for (uint32_t i = 0; i < parts->lanes.lane_count; i++)
        all += parts->lanes.lanes[i].lane ? parts->lanes.lanes[i].lane->width : parts->lanes.model.width;
    return (uint32_t)all;
}

static enum farm_status make_backend(struct farm_learner_parts *parts, struct farm_error *err) {
    const struct farm_backend_config backend = {.learner = parts->config,
                                                .plan = &parts->plan,
                                                .net = &parts->net,
                                                .head = parts->head,
                                                .width_max = parts->lanes.width_max,
                                                .columns_max = columns_max(parts),
                                                .lanes = &parts->lanes,
                                                .shards = parts->shards};
    return parts->ops->create(&backend, &parts->backend, err);
}

// The most windows of lanes that can wait, whatever rings join (a new lane holds no history of frames yet).
static uint32_t windows_possible(const struct farm_learner_parts *parts) {
    const struct farm_window_shape shape = {
        .stride = parts->plan.shape.stride, .length = parts->plan.shape.length, .stack = 1};
    uint64_t windows = 0;
    for (uint32_t i = 0; i < parts->lanes.lane_count; i++) {
        const struct farm_lane *lane = parts->lanes.lanes[i].lane;
        windows += farm_window_capacity(&shape, lane ? lane->steps : parts->lanes.model.steps);
    }
    return (uint32_t)windows;
}

static enum farm_status make_source(struct farm_learner_parts *parts, struct farm_error *err) {
    const struct farm_learner_config *config = parts->config;
    const uint64_t grace_ns = (uint64_t)(config->training.sync_grace_s * 1e9);
    struct farm_window_source_config source = {.shape = parts->plan.shape,
                                               .shards = parts->shards,
                                               .lanes = parts->lanes.lane_count,
                                               .capacity = windows_possible(parts) + 1,
                                               .max_lag = config->algo.max_lag,
                                               .grace_ns = config->deterministic.on ? UINT64_MAX : grace_ns};
    for (uint32_t k = 0; k < source.shards; k++)
        source.share[k] = farm_learner_share(config->algo.batch, source.shards, k);
    return farm_window_source_make(parts->plan.source, &source, &parts->source, err);
}

static enum farm_status start_parts(struct learner *learner, struct farm_error *err) {
    struct farm_learner_parts *parts = &learner->parts;
    const struct farm_learner_config *config = parts->config;
    enum farm_status status = make_plan(parts, err);
    if (!status) status = farm_parts_open(parts, err);
    if (!status) status = farm_parts_choose_backend(parts, make_backend, err);
    if (!status) status = load_checkpoint(parts, err);
    if (!status) status = make_source(parts, err);
    if (!status) status = farm_inference_make(parts, err);
    if (status) return status;
    farm_store_relaxed(&config->stats->frames, config->before.frames + farm_load_relaxed(&config->stats->agent_steps) *
                                                                           config->frames_per_step);
    return farm_trainer_start(&learner->parts, &learner->trainer, err);
}

// Runs the shards' loops until the last has ended. Returns the first error.
static enum farm_status run_shards(struct learner *learner, struct farm_error *err) {
    struct farm_learner_parts *parts = &learner->parts;
    struct farm_admitter *admitter = NULL;
    enum farm_status status = FARM_OK;
    if (parts->config->rings.admission >= 0) status = farm_admitter_start(parts, learner->trainer, &admitter, err);
    if (!status) status = farm_inference_run(parts, learner->trainer, err);
    farm_inference_over(parts);
    farm_admitter_stop(admitter);
    return status;
}

static void destroy_parts(struct learner *learner) {
    farm_inference_free(&learner->parts);
    if (learner->parts.backend) learner->parts.ops->destroy(learner->parts.backend);
    if (learner->parts.source) learner->parts.source->ops->destroy(learner->parts.source);
    farm_lanes_close(&learner->parts.lanes);
}

int farm_learner_run(const struct farm_learner_config *config, struct farm_error *err) {
    struct learner *learner = calloc(1, sizeof *learner);
    if (!learner) return farm_fail(err, FARM_E_LIMIT, "no memory for the learner"), 1;
    learner->parts.config = config;
    learner->parts.stop = farm_parts_catch_signals();
    enum farm_status status = start_parts(learner, err);
    if (!status) status = run_shards(learner, err);
    if (learner->trainer) {
        const enum farm_status stopped = farm_trainer_stop(learner->trainer, status ? NULL : err);
        if (!status) status = stopped;
    }
    destroy_parts(learner);
    free(learner);
    return status ? 1 : 0;
}
