// The life of the learner process: its parts are made, run and taken apart here. See learner.h.
#include "learner/learner.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "intake/admission.h"
#include "kernels/random.h"
#include "learner/boards.h"
#include "learner/inference.h"
#include "learner/trainer.h"

enum { POLL_MS = 50 };

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

// The parameters of another run, as far as they fit; the rest stays fresh, and so do the algorithm's counters.
static enum farm_status take_parameters(struct farm_learner_parts *parts, struct farm_backend_state *state,
                                        struct farm_error *err) {
    struct farm_checkpoint_taken taken;
    char head[FARM_HEAD_TEXT_BYTES];
    farm_head_describe(&parts->head, head);
    const enum farm_status status = farm_checkpoint_take(parts->config->checkpoints.init, &parts->net, head,
                                                         farm_backend_vector(state, ""), &taken, err);
    for (uint32_t v = 1; v < state->vector_count && !status; v++)
        if (strncmp(state->vectors[v].name, "optimiser.", 10) != 0)
            memcpy(state->vectors[v].values, farm_backend_vector(state, ""),
                   parts->net.parameter_count * sizeof(float));
    return status;
}

static enum farm_status load_checkpoint(struct farm_learner_parts *parts, struct farm_error *err) {
    const struct farm_learner_config *config = parts->config;
    struct farm_backend_state state = parts->ops->state(parts->backend);
    struct farm_checkpoint_metadata metadata;
    uint64_t version = 0, optimiser_step = config->checkpoints.load ? 0 : state.optimiser_step;
    bool has_optimiser;
    const bool takes = config->checkpoints.init && !config->checkpoints.load;
    parts->rate_factor = 1;
    if (takes) {
        const enum farm_status status = take_parameters(parts, &state, err);
        if (status) return status;
    }
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
        const char *replay = farm_checkpoint_get(&metadata, "replay");
        snprintf(parts->replay, sizeof parts->replay, "%s", replay ? replay : "");
        version = farm_checkpoint_get_u64(&metadata, "version");
        if (has_optimiser) optimiser_step = farm_checkpoint_get_u64(&metadata, "optimiser_step");
        farm_checkpoint_metadata_free(&metadata);
    }
    farm_parts_begin_version(parts, version);
    parts->passes = optimiser_step;
    if (!parts->version && !config->checkpoints.load && !takes) return FARM_OK;
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
    return farm_parts_make_backend(parts, columns_max(parts), false, err);
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
    source.replay = config->replay;
    source.replay.transitions = farm_algo_transitions(&parts->plan);
    source.replay.width = parts->lanes.width_max;
    source.replay.steps = parts->lanes.model.steps;
    source.replay.seed = farm_random_mix(config->seed ^ UINT64_C(0x7265706c6179));
    source.replay.lockstep = config->deterministic.on;
    source.replay.stats = config->stats;
    if (parts->plan.replay && config->first_stored) {
        const enum farm_status status =
            farm_first_make(&config->algo, &parts->plan, parts->head, parts->lanes.width_max, &parts->first, err);
        if (status) return status;
        source.replay.first = farm_first_priorities;
        source.replay.first_context = &parts->first;
    }
    for (uint32_t k = 0; k < source.shards; k++)
        source.share[k] = farm_learner_share(config->algo.batch, source.shards, k);
    return farm_window_source_make(parts->plan.source, &source, &parts->source, err);
}

// Training goes on without it.
static void make_store(struct farm_learner_parts *parts) {
    const struct farm_learner_config *config = parts->config;
    const struct farm_replay_store_config store = {
        .place = {config->checkpoints.replay, config->checkpoints.replay_rings, &parts->lanes.model},
        .checkpoints = config->checkpoints.dir,
        .base = parts->replay[0] ? parts->replay : NULL,
        .stats = config->stats,
        .deterministic = config->deterministic.on};
    struct farm_error err;
    if (parts->plan.replay && config->checkpoints.replay && farm_replay_store_make(&store, &parts->store, &err))
        farm_log_warn("%s: the replay is not saved", err.message);
}

static enum farm_status start_parts(struct farm_learner_parts *parts, struct farm_error *err) {
    const struct farm_learner_config *config = parts->config;
    enum farm_status status = make_plan(parts, err);
    if (!status) status = farm_parts_open(parts, err);
    if (!status) status = farm_parts_choose_backend(parts, make_backend, err);
    if (!status) status = load_checkpoint(parts, err);
    if (!status) status = farm_boards_open(parts, NULL, NULL, err);
    if (!status) status = make_source(parts, err);
    if (!status) status = farm_inference_make(parts, err);
    if (status) return status;
    farm_store_relaxed(&config->stats->frames, config->before.frames + farm_load_relaxed(&config->stats->agent_steps) *
                                                                           config->frames_per_step);
    make_store(parts);
    return farm_trainer_start(parts, &parts->trainer, err);
}

// ---- the admitter ----

// The thread that admits and releases rings while inference and training go on, as the supervisor requests
// (admission.h). A joining ring is opened, given to the backend, then to its shard's inference loop. A leaving one goes
// the way back: inference stops using it, its waiting windows are dropped, updates that hold some end, the backend
// releases it, it is closed. A refusal changes nothing. After the start only this thread changes the table of lanes.
struct admitter {
    struct farm_learner_parts *parts;
    pthread_t thread;
    uint64_t stop;
};

static enum farm_status admit_ring(struct farm_learner_parts *parts, const struct farm_admission_request *request,
                                   struct farm_error *err) {
    const uint32_t ring = request->ring, shard = request->shard < parts->shards ? request->shard : 0;
    if (request->fds[1] < 0)
        return farm_fail(err, FARM_E_LIMIT, "the learner has no room for its descriptors (ulimit -n)");
    enum farm_status status = farm_lanes_join(&parts->lanes, ring, request->fds, shard, &parts->plan.shape, err);
    if (status) {
        if (request->up_writable >= 0) close(request->up_writable);
        if (request->wake >= 0) close(request->wake);
        return status;
    }
    farm_lanes_set_wake(&parts->lanes, ring, request->wake);
    farm_lanes_lend_writable(&parts->lanes, ring, request->up_writable);
    if (parts->ops->join) status = parts->ops->join(parts->backend, ring, err);
    farm_lanes_end_writable(&parts->lanes);
    if (!status) status = farm_boards_watch(parts, ring, err);
    if (!status) {
        farm_trainer_admit(parts->trainer, ring);
        status = farm_inference_change(parts->loops[shard], ring, true, err);
        if (status) farm_trainer_forget(parts->trainer, ring);
        if (status && parts->ops->leave) parts->ops->leave(parts->backend, ring);
        if (status) farm_boards_unwatch(parts, ring);
    }
    if (status) farm_lanes_leave(&parts->lanes, ring);
    return status;
}

static enum farm_status release_ring(struct farm_learner_parts *parts, uint32_t ring, struct farm_error *err) {
    if (ring >= parts->lanes.ring_count || !farm_lanes_has(&parts->lanes, ring))
        return farm_fail(err, FARM_E_NOT_FOUND, "there is no actor %u", ring);
    const uint32_t shard = farm_lanes_shard(&parts->lanes, ring);
    const enum farm_status status = farm_inference_change(parts->loops[shard], ring, false, err);
    if (status) return status;
    farm_trainer_forget(parts->trainer, ring);
    if (parts->ops->leave) parts->ops->leave(parts->backend, ring);
    farm_boards_unwatch(parts, ring);
    farm_lanes_leave(&parts->lanes, ring);
    return FARM_OK;
}

static void *serve_requests(void *argument) {
    struct admitter *admitter = argument;
    const int socket = admitter->parts->config->rings.admission;
    while (!farm_load_relaxed(&admitter->stop)) {
        struct farm_admission_request request;
        if (!farm_admission_receive_request(socket, POLL_MS, &request)) continue;
        struct farm_admission_reply reply = {.ring = request.ring};
        reply.status = request.kind == FARM_ADMISSION_JOIN ? admit_ring(admitter->parts, &request, &reply.error)
                                                           : release_ring(admitter->parts, request.ring, &reply.error);
        farm_admission_send_reply(socket, &reply);
    }
    return NULL;
}

// ---- the learner ----

// Runs the shards' loops, with an admitter if rings can join, until the last has ended. Returns the first error.
static enum farm_status run_shards(struct farm_learner_parts *parts, struct farm_error *err) {
    struct admitter admitter = {.parts = parts};
    const bool admits = parts->config->rings.admission >= 0;
    if (admits && (errno = farm_thread_start(&admitter.thread, "admit", 0, serve_requests, &admitter)))
        return farm_fail_errno(err, FARM_E_LIMIT, "the admitter's thread does not start (ulimit -u, ulimit -v)");
    const enum farm_status status = farm_inference_run(parts, err);
    for (uint32_t k = 0; k < parts->shards; k++) farm_inference_over(parts->loops[k]);
    farm_store_relaxed(&admitter.stop, 1);
    if (admits) pthread_join(admitter.thread, NULL);
    return status;
}

int farm_learner_run(const struct farm_learner_config *config, struct farm_error *err) {
    struct farm_learner_parts *parts = calloc(1, sizeof *parts);
    if (!parts) return farm_fail(err, FARM_E_LIMIT, "no memory for the learner"), 1;
    parts->config = config;
    parts->stop = farm_parts_catch_signals();
    enum farm_status status = start_parts(parts, err);
    if (!status) status = run_shards(parts, err);
    if (parts->trainer) {
        const enum farm_status stopped = farm_trainer_stop(parts->trainer, status ? NULL : err);
        if (!status) status = stopped;
    }
    farm_replay_store_free(parts->store);
    farm_inference_free(parts);
    farm_boards_close(parts);
    farm_parts_close(parts);
    free(parts);
    return status ? 1 : 0;
}
