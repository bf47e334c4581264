// See parts.h.
#include "learner/parts.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>

#include "base/log.h"
#include "base/thread.h"
#include "policy/describe.h"
#include "policy/policy.h"

static uint64_t stop_requested; // by a signal, or by a shard that has ended

static void on_stop(int signal_number) {
    (void)signal_number;
    farm_store_relaxed(&stop_requested, 1);
}

// On the signal stack: see farm_sigterm_catch.
uint64_t *farm_parts_catch_signals(void) {
    const struct sigaction action = {.sa_handler = on_stop, .sa_flags = SA_ONSTACK};
    farm_thread_use_signal_stack();
    farm_store_relaxed(&stop_requested, 0);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    return &stop_requested;
}

static enum farm_status check_config(const struct farm_learner_config *config, struct farm_error *err) {
    if (!config->inference.batch_max) return farm_fail(err, FARM_E_INVALID, "infer_batch_max is 0");
    if (config->io.stack > (int)config->algo.stack)
        return farm_fail(err, FARM_E_INVALID, "a network over %d frames and windows that hold %u", config->io.stack,
                         config->algo.stack);
    if (config->shard_count > FARM_LEARNER_SHARDS_MAX || (config->shard_count > 1 && !config->rings.shard))
        return farm_fail(err, FARM_E_INVALID, "%u shards: at most %d, and each ring has one", config->shard_count,
                         FARM_LEARNER_SHARDS_MAX);
    return FARM_OK;
}

static enum farm_status check_environment(struct farm_learner_parts *parts, struct farm_error *err) {
    const enum farm_status status = farm_head_make(&parts->lanes.model.env, parts->config->head, &parts->head, err);
    return status ? status : farm_policy_check_ring(&parts->net, &parts->head, &parts->lanes.model, err);
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

enum farm_status farm_parts_open(struct farm_learner_parts *parts, struct farm_error *err) {
    const struct farm_learner_config *config = parts->config;
    enum farm_status status = check_config(config, err);
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
    return FARM_OK;
}

enum farm_status farm_parts_make_backend(struct farm_learner_parts *parts, uint32_t columns_max, bool greedy,
                                         struct farm_error *err) {
    const struct farm_backend_config config = {.learner = parts->config,
                                               .plan = &parts->plan,
                                               .net = &parts->net,
                                               .head = parts->head,
                                               .greedy = greedy,
                                               .width_max = parts->lanes.width_max,
                                               .columns_max = columns_max,
                                               .lanes = &parts->lanes,
                                               .shards = parts->shards};
    return parts->ops->create(&config, &parts->backend, err);
}

// The plan was made before the learner could open CUDA.
static void log_fall_back(const struct farm_learner_parts *parts, const char *why) {
    const bool planned = parts->config->shards[0].gpu != NULL;
    farm_log_warn("using the CPU; CUDA is unavailable: %s%s", why,
                  planned ? "; the plan for a GPU stays, 1 core for inference and at most 1 for training: "
                            "--device cpu plans more"
                          : "");
}

static enum farm_status try_backends(struct farm_learner_parts *parts, farm_parts_make *make, struct farm_error *err) {
    const struct farm_learner_config *config = parts->config;
    parts->ops = config->device.backend ? config->device.backend : &farm_backend_cpu;
    if (!config->device.backend && (config->device.kind == FARM_DEVICE_CUDA ||
                                    (config->device.kind == FARM_DEVICE_AUTO && config->device.cuda_library))) {
        enum farm_status status = farm_backend_module_open(config->device.cuda_library, &parts->ops, err);
        if (!status) status = make(parts, err);
        if (!status || config->device.kind == FARM_DEVICE_CUDA || parts->shards > 1) return status;
        log_fall_back(parts, err->message);
        parts->ops = &farm_backend_cpu;
    }
    if (parts->shards > 1 && !parts->ops->shards)
        return farm_fail(err, FARM_E_UNSUPPORTED, "backend %s serves one shard, not %u", parts->ops->name,
                         parts->shards);
    return make(parts, err);
}

enum farm_status farm_parts_choose_backend(struct farm_learner_parts *parts, farm_parts_make *make,
                                           struct farm_error *err) {
    const enum farm_status status = try_backends(parts, make, err);
    farm_lanes_end_writable(&parts->lanes);
    return status;
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

enum farm_status farm_parts_load(const struct farm_learner_parts *parts, struct farm_backend_state *state,
                                 bool *has_optimiser, struct farm_checkpoint_metadata *metadata,
                                 struct farm_error *err) {
    const char *path = parts->config->checkpoints.load;
    const char *held = parts->config->checkpoints.held;
    enum farm_status status = farm_checkpoint_load(path, &parts->net, state, has_optimiser, metadata, err);
    if (status == FARM_E_NOT_FOUND && held)
        status = farm_checkpoint_load(held, &parts->net, state, has_optimiser, metadata, err);
    if (status) return status;
    if (!metadata->verified)
        farm_log_info("%s has no checksums (an older version wrote it): damage cannot be noticed", path);
    status = check_head(parts, metadata, err);
    if (status) farm_checkpoint_metadata_free(metadata);
    return status;
}

void farm_parts_begin_version(struct farm_learner_parts *parts, uint64_t loaded) {
    uint64_t *publishes = &parts->config->stats->publishes;
    const uint64_t next = farm_load_relaxed(publishes);
    parts->version = loaded > next ? loaded : next;
    farm_store_release(publishes, parts->version + 1);
}

enum farm_status farm_parts_choose_arithmetic(const struct farm_learner_config *learner, const struct farm_net *net,
                                              uint32_t train_rows, uint32_t version_rows, struct farm_arithmetic *out,
                                              struct farm_error *err) {
    struct farm_arithmetic_request request = learner->arithmetic;
    request.net = net;
    request.train_rows = (int)train_rows;
    request.infer_rows = (int)learner->inference.batch_max;
    request.version_rows = (int)version_rows;
    request.fixed = learner->deterministic.on;
    char text[FARM_ARITHMETIC_TEXT];
    const enum farm_status status = farm_arithmetic_choose(&request, out, text, err);
    if (status == FARM_OK) farm_log_info("arithmetic: %s", text);
    return status;
}

void farm_parts_close(struct farm_learner_parts *parts) {
    for (uint32_t k = 0; k < parts->shards; k++) farm_policy_free(parts->policies[k]);
    if (parts->backend) parts->ops->destroy(parts->backend);
    if (parts->source) parts->source->ops->destroy(parts->source);
    farm_iteration_free(&parts->first.iteration);
    farm_lanes_close(&parts->lanes);
}
