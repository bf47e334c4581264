// The life of the learner process: its parts are made, run and taken apart here. See learner.h.
#include "learner/learner.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/thread.h"
#include "intake/lanes.h"
#include "learner/admitter.h"
#include "learner/backend.h"
#include "learner/backend_module.h"
#include "learner/checkpoint.h"
#include "learner/inference.h"
#include "learner/trainer.h"
#include "policy/observation.h"

struct learner {
    struct farm_learner_parts parts;
    struct farm_trainer *trainer; // NULL in evaluation
    struct shard {
        const struct learner *learner;
        struct farm_inference *inference;
        pthread_t thread; // for all but shard 0, which has the main thread
        bool started;
        enum farm_status status;
        struct farm_error error;
    } shards[FARM_LEARNER_SHARDS_MAX];
};

static uint64_t stop_requested; // by a signal, or by a shard that has ended

static void on_stop(int signal_number) {
    (void)signal_number;
    farm_store_relaxed(&stop_requested, 1);
}

// On the signal stack, because within a matrix product of oneDNN 2.6 %rsp points into the heap, where a signal's frame
// would overwrite what lies below.
static void catch_stop_signals(void) {
    const struct sigaction action = {.sa_handler = on_stop, .sa_flags = SA_ONSTACK};
    farm_thread_use_signal_stack();
    farm_store_relaxed(&stop_requested, 0);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
}

// ---- start and end ----

static enum farm_status check_config(const struct farm_learner_config *config, struct farm_error *err) {
    if (!config->inference.batch_max) return farm_fail(err, FARM_E_INVALID, "infer_batch_max is 0");
    if (config->io.stack > (int)config->algo.stack)
        return farm_fail(err, FARM_E_INVALID, "a network over %d frames and windows that hold %u", config->io.stack,
                         config->algo.stack);
    if (!config->evaluate && (config->algo.unroll < 1 || config->algo.batch < 1))
        return farm_fail(err, FARM_E_INVALID, "unroll %u, batch %u: both must be at least 1", config->algo.unroll,
                         config->algo.batch);
    if (config->evaluate && !config->episodes_target)
        return farm_fail(err, FARM_E_INVALID, "evaluation of no episodes");
    if (config->shard_count > FARM_LEARNER_SHARDS_MAX || (config->shard_count > 1 && !config->rings.shard))
        return farm_fail(err, FARM_E_INVALID, "%u shards: at most %d, and each ring has one", config->shard_count,
                         FARM_LEARNER_SHARDS_MAX);
    if (config->rings.admission >= 0 && config->evaluate)
        return farm_fail(err, FARM_E_INVALID, "actors cannot join during evaluation");
    return FARM_OK;
}

// The plan of training. A synchronous one does not read `batch`.
static enum farm_status make_plan(struct farm_learner_parts *parts, struct farm_error *err) {
    const struct farm_learner_config *config = parts->config;
    const enum farm_status status = farm_algo_plan_make(&config->algo, &parts->plan, err);
    if (status || parts->plan.sync || config->algo.batch >= config->shard_count) return status;
    return farm_fail(err, FARM_E_INVALID, "an update of %u windows (--batch) cannot be divided among %u shards",
                     config->algo.batch, config->shard_count);
}

static enum farm_status check_environment(struct farm_learner_parts *parts, struct farm_error *err) {
    const struct farm_env_spec *env = &parts->lanes.model.env;
    const struct farm_ring_spec *model = &parts->lanes.model;
    const struct farm_head *head = &parts->head;
    const enum farm_status status = farm_head_make(env, parts->config->head, &parts->head, err);
    if (status) return status;
    if (!farm_observation_fits(&parts->net, env) || head->outputs != parts->net.io.actions ||
        head->free_outputs != parts->net.io.free_outputs)
        return farm_fail(err, FARM_E_INVALID, "the network's input or output does not fit the environment's");
    struct farm_ring_spec with_sample = *model;
    farm_ring_spec_sample(&with_sample);
    const size_t field_bytes = sizeof with_sample.answer[0];
    if (head->samples &&
        (model->answer_count <= FARM_ANSWER_SAMPLE ||
         memcmp(&model->answer[FARM_ANSWER_SAMPLE], &with_sample.answer[FARM_ANSWER_SAMPLE], field_bytes) != 0))
        return farm_fail(err, FARM_E_INVALID, "squash: the rings have no answer field 'sample' of %d f32", head->dims);
    const uint32_t state = farm_ring_spec_find(model, "state"), floats = (uint32_t)parts->net.state;
    struct farm_ring_spec with_state = *model;
    with_state.answer_count = state;
    if (state) farm_ring_spec_state(&with_state, floats, model->answer[state].every);
    if (!state != !floats ||
        (state && (model->answer_count != with_state.answer_count ||
                   memcmp(&model->answer[state], &with_state.answer[state], 2 * field_bytes) != 0)))
        return farm_fail(err, FARM_E_INVALID, "the network has a state of %u f32, and the rings' answer fields do not",
                         floats);
    return FARM_OK;
}

// Publishes the learner's first version. Versions never fall, neither from one learner to the next nor after a
// checkpoint.
static enum farm_status publish_first_version(struct farm_learner_parts *parts, uint64_t loaded,
                                              uint64_t optimiser_step, struct farm_error *err) {
    uint64_t *publishes = &parts->config->stats->publishes;
    const uint64_t next = farm_load_relaxed(publishes);
    parts->version = loaded > next ? loaded : next;
    parts->passes = optimiser_step;
    farm_store_release(publishes, parts->version + 1);
    if (!parts->version && !parts->config->checkpoints.load) return FARM_OK;
    return parts->ops->state_changed(parts->backend, parts->version, optimiser_step, err);
}

// Tensors of the same shapes may be of other actions.
static enum farm_status check_head(const struct farm_learner_parts *parts,
                                   const struct farm_checkpoint_metadata *metadata, struct farm_error *err) {
    char here[FARM_HEAD_TEXT_BYTES], before[FARM_HEAD_TEXT_BYTES];
    const struct farm_head one =
        farm_head_categorical(parts->head.outputs); // all that versions without the key trained
    farm_head_describe(&parts->head, here);
    farm_head_describe(&one, before);
    const char *held = farm_checkpoint_get(metadata, "head"), *there = held ? held : before;
    if (strcmp(there, here) == 0) return FARM_OK;
    return farm_fail(err, FARM_E_FORMAT,
                     "%s: its policy, %.100s, cannot choose this environment's actions, which need %.100s",
                     parts->config->checkpoints.load, there, here);
}

static enum farm_status load_checkpoint(struct farm_learner_parts *parts, struct farm_error *err) {
    const struct farm_learner_config *config = parts->config;
    struct farm_backend_state state = parts->ops->state(parts->backend);
    parts->rate_factor = 1;
    if (!config->checkpoints.load) return publish_first_version(parts, 0, state.optimiser_step, err);
    struct farm_checkpoint_metadata metadata;
    bool has_optimiser;
    if (config->evaluate) state.vector_count = 1;
    enum farm_status status =
        farm_checkpoint_load(config->checkpoints.load, &parts->net, &state, &has_optimiser, &metadata, err);
    if (status) return status;
    if (!metadata.verified)
        farm_log_info("%s has no checksums (an older version wrote it): damage cannot be noticed",
                      config->checkpoints.load);
    if (!config->evaluate && !has_optimiser)
        farm_log_warn("%s holds no state of this optimiser: it starts afresh", config->checkpoints.load);
    const char *factor = farm_checkpoint_get(&metadata, "learning_rate_factor");
    const struct farm_algo *algo = config->algo.algo;
    const char *games = farm_checkpoint_get(&metadata, "games");
    if (games && config->deterministic.on) farm_lanes_read_games(config->stats, games);
    if (factor && strtod(factor, NULL) > 0 && isfinite(strtod(factor, NULL))) parts->rate_factor = strtod(factor, NULL);
    if (!config->evaluate && algo->adapt)
        (void)algo->adapt(&config->algo, (const double[FARM_ALGO_TERMS_MAX]){0}, true, &parts->rate_factor);
    status = check_head(parts, &metadata, err);
    if (!status)
        status = publish_first_version(parts, farm_checkpoint_get_u64(&metadata, "version"),
                                       has_optimiser ? farm_checkpoint_get_u64(&metadata, "optimiser_step") : 0, err);
    farm_checkpoint_metadata_free(&metadata);
    return status;
}

// The plan was made before the learner could open CUDA.
static void log_fall_back(const struct farm_learner_parts *parts, const char *why) {
    const bool planned = parts->config->shards[0].gpu != NULL;
    farm_log_warn("using the CPU; CUDA is unavailable: %s%s", why,
                  planned ? "; the plan for a GPU stays, 1 core for inference and at most 1 for training: "
                            "--device cpu plans more"
                          : "");
}

// Windows of one environment in an iteration, whatever rings join.
static uint32_t columns_max(const struct farm_learner_parts *parts) {
    uint64_t all = 0;
    if (!parts->plan.sync) return parts->config->algo.batch;
    for (uint32_t i = 0; i < parts->lanes.lane_count; i++)
        all += parts->lanes.lanes[i].lane ? parts->lanes.lanes[i].lane->width : parts->lanes.model.width;
    return (uint32_t)all;
}

// The caller's backend, or the one that `device` names. AUTO: CUDA if it opens, else the CPU.
static enum farm_status make_backend(struct farm_learner_parts *parts, struct farm_error *err) {
    const struct farm_learner_config *config = parts->config;
    const struct farm_backend_config backend = {.learner = config,
                                                .plan = &parts->plan,
                                                .net = &parts->net,
                                                .head = parts->head,
                                                .width_max = parts->lanes.width_max,
                                                .columns_max = columns_max(parts),
                                                .lanes = &parts->lanes,
                                                .shards = parts->shards};
    parts->ops = config->device.backend ? config->device.backend : &farm_backend_cpu;
    if (!config->device.backend && (config->device.kind == FARM_DEVICE_CUDA ||
                                    (config->device.kind == FARM_DEVICE_AUTO && config->device.cuda_library))) {
        enum farm_status status = farm_backend_module_open(config->device.cuda_library, &parts->ops, err);
        if (!status) status = parts->ops->create(&backend, &parts->backend, err);
        if (!status || config->device.kind == FARM_DEVICE_CUDA || parts->shards > 1) return status;
        log_fall_back(parts, err->message);
        parts->ops = &farm_backend_cpu;
    }
    if (parts->shards > 1 && !parts->ops->shards)
        return farm_fail(err, FARM_E_UNSUPPORTED, "backend %s serves one shard, not %u", parts->ops->name,
                         parts->shards);
    return parts->ops->create(&backend, &parts->backend, err);
}

static enum farm_status make_shards(struct learner *learner, struct farm_error *err) {
    enum farm_status status = FARM_OK;
    for (uint32_t k = 0; k < learner->parts.shards && !status; k++) {
        learner->shards[k].learner = learner;
        status = farm_inference_make(&learner->parts, k, &learner->shards[k].inference, err);
    }
    return status;
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

// Each ring owns a duplicate, which it closes when it leaves.
static enum farm_status copy_wake_fds(struct farm_learner_parts *parts, struct farm_error *err) {
    const int *fds = parts->config->rings.wake_fds;
    for (uint32_t r = 0; fds && r < parts->config->rings.count; r++) {
        if (fds[r] < 0 || !farm_lanes_has(&parts->lanes, r)) continue;
        const int own = fcntl(fds[r], F_DUPFD_CLOEXEC, 3);
        if (own < 0) return farm_fail_errno(err, FARM_E_LIMIT, "no descriptor by which to wake a bridge (ulimit -n)");
        farm_lanes_set_wake(&parts->lanes, r, own);
    }
    return FARM_OK;
}

static enum farm_status start_parts(struct learner *learner, struct farm_error *err) {
    struct farm_learner_parts *parts = &learner->parts;
    const struct farm_learner_config *config = parts->config;
    const struct farm_window_shape one_step = {.stride = 1, .length = 1, .stack = config->algo.stack};
    enum farm_status status = check_config(config, err);
    if (!status && !config->evaluate) status = make_plan(parts, err);
    if (config->evaluate) parts->plan = (struct farm_algo_plan){.shape = one_step, .epochs = 1};
    if (!status) status = farm_net_make(&config->net, &config->io, &parts->net, err);
    if (!status)
        status = farm_lanes_open(config->rings.fds, config->rings.count, &parts->plan.shape, config->rings.spec,
                                 &parts->lanes, err);
    if (!status) status = check_environment(parts, err);
    if (!status) status = copy_wake_fds(parts, err);
    if (status) return status;
    parts->shards = config->shard_count ? config->shard_count : 1;
    if (config->rings.shard) farm_lanes_divide(&parts->lanes, config->rings.shard);
    for (uint32_t r = 0; config->rings.up_writable && r < config->rings.count; r++)
        farm_lanes_lend_writable(&parts->lanes, r, config->rings.up_writable[r]);
    status = make_backend(parts, err);
    farm_lanes_end_writable(&parts->lanes);
    if (!status) status = load_checkpoint(parts, err);
    if (!status && !config->evaluate) status = make_source(parts, err);
    if (!status) status = make_shards(learner, err);
    if (status) return status;
    farm_store_relaxed(&config->stats->frames, config->before.frames + farm_load_relaxed(&config->stats->agent_steps) *
                                                                           config->frames_per_step);
    if (config->evaluate) {
        farm_lanes_set_quota(&parts->lanes, config->episodes_target);
        return FARM_OK;
    }
    return farm_trainer_start(&learner->parts, &learner->trainer, err);
}

static void *run_shard(void *argument) {
    struct shard *shard = argument;
    const struct learner *learner = shard->learner;
    const struct farm_bitmap *cpus = learner->parts.config->shards[shard - learner->shards].cpus;
    struct farm_error error;
    if (cpus && farm_bitmap_pin(cpus, &error)) farm_log_warn("could not pin an inference thread: %s", error.message);
    shard->status = farm_inference_run(shard->inference, learner->trainer, &shard->error);
    return NULL;
}

static enum farm_status start_admitter(struct learner *learner, struct farm_admitter **admitter,
                                       struct farm_error *err) {
    struct farm_inference *inferences[FARM_LEARNER_SHARDS_MAX];
    for (uint32_t k = 0; k < learner->parts.shards; k++) inferences[k] = learner->shards[k].inference;
    return farm_admitter_start(&learner->parts, learner->trainer, inferences, admitter, err);
}

// Runs the shards' loops until the last has ended. Returns the first error.
static enum farm_status run_shards(struct learner *learner, struct farm_error *err) {
    struct farm_admitter *admitter = NULL;
    enum farm_status status =
        learner->parts.config->rings.admission >= 0 ? start_admitter(learner, &admitter, err) : FARM_OK;
    for (uint32_t k = 1; k < learner->parts.shards && !status; k++) {
        struct shard *shard = &learner->shards[k];
        if ((errno = farm_thread_start(&shard->thread, "infer", k, run_shard, shard)))
            status = farm_fail_errno(err, FARM_E_LIMIT, "an inference thread does not start (ulimit -u, ulimit -v)");
        shard->started = !status;
    }
    if (status) farm_store_relaxed(&stop_requested, 1);
    if (!status) run_shard(&learner->shards[0]);
    for (uint32_t k = 0; k < learner->parts.shards; k++) {
        struct shard *shard = &learner->shards[k];
        if (shard->started) pthread_join(shard->thread, NULL);
        if (status || !shard->status) continue;
        status = shard->status;
        *err = shard->error;
    }
    for (uint32_t k = 0; k < learner->parts.shards; k++) farm_inference_over(learner->shards[k].inference);
    farm_admitter_stop(admitter);
    return status;
}

static void destroy_parts(struct learner *learner) {
    for (uint32_t k = 0; k < learner->parts.shards; k++) farm_inference_free(learner->shards[k].inference);
    if (learner->parts.backend) learner->parts.ops->destroy(learner->parts.backend);
    if (learner->parts.source) learner->parts.source->ops->destroy(learner->parts.source);
    farm_lanes_close(&learner->parts.lanes);
}

int farm_learner_run(const struct farm_learner_config *config, struct farm_error *err) {
    struct learner *learner = calloc(1, sizeof *learner);
    if (!learner) return farm_fail(err, FARM_E_LIMIT, "no memory for the learner"), 1;
    learner->parts.config = config;
    learner->parts.stop = &stop_requested;
    catch_stop_signals();
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
