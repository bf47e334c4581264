// See backend.h. One shard per GPU: an update covers all shards; each shard infers by itself. Of several GPUs each has
// a thread on its shard's CPUs, which gathers and launches for it alone. The first GPU's is the training thread: it
// starts each step of an update in all of them, waits until all have ended it, and enqueues the gradients' sum.
#include "learner/cuda/backend.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "algo/cuda/algo.h"
#include "base/log.h"
#include "base/time.h"
#include "farm_build.h"
#include "kernels/cuda/check.h"
#include "learner/cuda/reduce.h"
#include "learner/pool.h"
#include "learner/statistics.h"

static const double STATE_EVERY_S = 10; // unless the learner's config has a period
static const double CONNECT_S = 60;     // limit for several GPUs to connect at the start

// A step of an update, which each shard does for itself: `body` and those of its arguments that it needs.
struct step {
    enum farm_status (*body)(struct farm_backend *backend, uint32_t k, struct farm_error *err);
    uint32_t slot, set;
    uint64_t version;
    const struct farm_pass *pass;
    const struct farm_window *windows;                                 // all shards'
    uint32_t from;                                                     // columns of each shard before these
    uint32_t first[FARM_POOL_GROUPS_MAX], count[FARM_POOL_GROUPS_MAX]; // each shard's windows or columns
};

struct farm_backend {
    uint32_t shard_count;
    struct farm_cuda_shard *shards[FARM_POOL_GROUPS_MAX];
    struct farm_pool *pool; // a group, of one thread, for each shard
    bool bound;             // the training thread, to the first one's CPUs
    struct step step;       // the newest
    struct outcome {
        enum farm_status status;
        struct farm_error error;
    } outcomes[FARM_POOL_GROUPS_MAX];   // its, in each shard
    struct farm_cuda_reduce reduce;     // if there are several
    bool single;                        // an iteration is one pass: `begin` puts its gradients into the streams
    bool begun[FARM_BACKEND_SLOTS];     // its gradients are in the streams
    bool unfinished;                    // the results of an enqueued step are not harvested
    uint64_t publishing;                // 1 + the version in the streams, or 0
    struct farm_pass_stats stats;       // since the last finish
    struct farm_statistics *statistics; // over the first shard's parameters in host memory
    uint32_t *orders;                   // [shards][units of columns_max] each shard's units of a pass
    struct farm_iteration iterations[FARM_BACKEND_SLOTS];
    uint32_t columns[FARM_BACKEND_SLOTS][FARM_POOL_GROUPS_MAX + 1]; // each shard's first one; the last one's end
    bool targets[FARM_BACKEND_SLOTS];                               // are to be computed before its first pass
    bool failed; // a pass failed half done: the devices' parameters are invalid
};

static struct farm_cuda_parameters *parameters_of(const struct farm_backend *backend, uint32_t k) {
    return &backend->shards[k]->context.parameters;
}

// ---- steps of an update, in all shards at once ----

static void run_in(void *context, uint32_t k, uint32_t thread) {
    struct farm_backend *backend = context;
    struct outcome *outcome = &backend->outcomes[k];
    outcome->status = farm_cuda_shard_enter(backend->shards[k], &outcome->error);
    if (!outcome->status) outcome->status = backend->step.body(backend, k, &outcome->error);
}

// Returns the first failed shard's error, after all have ended the step. No group has more pieces than threads, so each
// thread does its own.
static enum farm_status run(struct farm_backend *backend, struct step step, struct farm_error *err) {
    backend->step = step;
    farm_pool_run(backend->pool, backend->shard_count, NULL, run_in, backend);
    for (uint32_t k = 0; k < backend->shard_count; k++) {
        if (!backend->outcomes[k].status) continue;
        if (err) *err = backend->outcomes[k].error;
        return backend->outcomes[k].status;
    }
    return FARM_OK;
}

// ---- start and end ----

static enum farm_status sum_gradients(struct farm_backend *backend, struct farm_error *err) {
    float *gradients[FARM_POOL_GROUPS_MAX];
    struct CUstream_st *streams[FARM_POOL_GROUPS_MAX];
    for (uint32_t k = 0; k < backend->shard_count; k++) {
        gradients[k] = parameters_of(backend, k)->gradients;
        streams[k] = farm_cuda_shard_stream(backend->shards[k]);
    }
    return farm_cuda_reduce_sum(&backend->reduce, gradients, parameters_of(backend, 0)->count, streams, err);
}

static bool given_up(const struct farm_backend *backend) {
    for (uint32_t k = 0; k < backend->shard_count; k++)
        if (farm_cuda_given_up(&backend->shards[k]->context)) return true;
    return false;
}

// FARM_E_DEAD after `seconds`. Several GPUs may wait for one another, or for one that hangs: gives them all up.
static enum farm_status check_wait(struct farm_backend *backend, uint64_t start_ns, double seconds,
                                   struct farm_error *err) {
    if (backend->shard_count == 1)
        return farm_cuda_wait_expired(&backend->shards[0]->context, start_ns, "an update", err);
    if (!given_up(backend) && (double)(farm_now_ns() - start_ns) <= seconds * 1e9) return FARM_OK;
    for (uint32_t k = 0; k < backend->shard_count; k++) farm_cuda_give_up(&backend->shards[k]->context);
    return farm_fail(err, FARM_E_DEAD,
                     "the GPUs' gradients are not added up after %.3g s: one hangs (see dmesg and nvidia-smi), "
                     "or they do not reach one another: NCCL_DEBUG=WARN prints more; NCCL_P2P_DISABLE=1 helps if the "
                     "bus does not carry peers; or --gpus 1",
                     (double)(farm_now_ns() - start_ns) * 1e-9);
}

// Waits until every device has reached its mark (farm_cuda_training_mark). Checks all in turn, because a lost GPU
// leaves the others waiting for its gradient.
static enum farm_status wait_for_all(struct farm_backend *backend, double seconds, struct farm_error *err) {
    const uint64_t start_ns = farm_now_ns();
    for (uint32_t done = 0; done < backend->shard_count;) {
        enum farm_status status = farm_cuda_reduce_check(&backend->reduce, err);
        done = 0;
        for (uint32_t k = 0; k < backend->shard_count && !status; k++) {
            bool ended = false;
            status = farm_cuda_shard_enter(backend->shards[k], err);
            if (!status) status = farm_cuda_training_ended(backend->shards[k]->training, &ended, err);
            done += !status && ended;
        }
        if (!status && done < backend->shard_count) status = check_wait(backend, start_ns, seconds, err);
        if (status) return status;
        if (done < backend->shard_count) farm_cuda_nap(start_ns);
    }
    return FARM_OK;
}

static enum farm_status mark(struct farm_backend *backend, uint32_t k, struct farm_error *err) {
    return farm_cuda_training_mark(backend->shards[k]->training, err);
}

static enum farm_status start_threads(struct farm_backend *backend, struct farm_error *err) {
    struct farm_pool_group groups[FARM_POOL_GROUPS_MAX];
    for (uint32_t k = 0; k < backend->shard_count; k++)
        groups[k] = (struct farm_pool_group){
            .node = -1, .threads = 1, .cpus = backend->shards[k]->context.learner->shards[k].cpus};
    return farm_pool_create(groups, backend->shard_count, &backend->pool, err);
}

// Runs a first sum, of zeros: it connects the devices, which takes long.
static enum farm_status connect_gpus(struct farm_backend *backend, struct farm_error *err) {
    int devices[FARM_POOL_GROUPS_MAX];
    for (uint32_t k = 0; k < backend->shard_count; k++) devices[k] = backend->shards[k]->context.device;
    enum farm_status status = farm_cuda_reduce_open(devices, backend->shard_count, &backend->reduce, err);
    if (!status) status = sum_gradients(backend, err);
    if (!status) status = run(backend, (struct step){.body = mark}, err);
    return status ? status : wait_for_all(backend, CONNECT_S, err);
}

static void log_account(const struct farm_backend *backend) {
    uint64_t rows = 0, inferred = 0, trained = 0;
    double busy_s = 0, all_s = 0;
    for (uint32_t k = 0; k < backend->shard_count; k++) {
        const struct farm_cuda_shard *shard = backend->shards[k];
        uint64_t shard_rows, shard_inferred;
        farm_cuda_inference_account(shard->inference, &shard_rows, &shard_inferred);
        rows += shard_rows;
        inferred += shard_inferred;
        if (shard->training) farm_cuda_training_account(shard->training, &busy_s, &all_s, &trained);
    }
    if (all_s > 0) farm_log_info("the stream that trains had work for %.1f %% of %.1f s", 100 * busy_s / all_s, all_s);
    if (!rows) return;
    const size_t obs_bytes = backend->shards[0]->context.obs_bytes;
    farm_log_info("%.1f MB of observations crossed the bus for inference and %.1f MB for training: %.2f times each of "
                  "the %llu observations' %zu bytes",
                  (double)inferred / 1e6, (double)trained / 1e6,
                  (double)(inferred + trained) / ((double)rows * (double)obs_bytes), (unsigned long long)rows,
                  obs_bytes);
}

static void destroy(struct farm_backend *backend) {
    if (!backend) return;
    log_account(backend);
    farm_pool_destroy(backend->pool);
    if (given_up(backend)) return; // the process ends
    farm_cuda_reduce_close(&backend->reduce);
    for (uint32_t k = 0; k < backend->shard_count; k++) farm_cuda_shard_free(backend->shards[k]);
    for (int k = 0; k < FARM_BACKEND_SLOTS; k++) farm_iteration_free(&backend->iterations[k]);
    farm_statistics_free(backend->statistics);
    free(backend->orders);
    free(backend);
}

// Ends sums that wait for a lost GPU. Not after a GPU was given up, because NCCL might wait for it.
static void abandon_sum(struct farm_backend *backend) {
    if (!given_up(backend)) farm_cuda_reduce_abort(&backend->reduce);
}

static enum farm_status create(const struct farm_backend_config *config, struct farm_backend **out,
                               struct farm_error *err) {
    assert(config->shards <= FARM_POOL_GROUPS_MAX);
    struct farm_backend *backend = calloc(1, sizeof *backend);
    if (!backend) return farm_fail(err, FARM_E_LIMIT, "no memory for the CUDA backend");
    backend->single = config->plan->epochs == 1 && !config->plan->minibatch && !config->plan->targets_once;
    backend->orders =
        calloc(config->shards * (size_t)farm_algo_units(config->plan, config->columns_max) + 1, sizeof(uint32_t));
    enum farm_status status =
        backend->orders ? FARM_OK : farm_fail(err, FARM_E_LIMIT, "no memory for %u windows", config->columns_max);
    for (int k = 0; k < FARM_BACKEND_SLOTS && !status && config->plan->epochs; k++)
        status = farm_iteration_make(&config->learner->algo, config->plan, config->head, config->columns_max,
                                     &backend->iterations[k], err);
    if (!status && config->plan->epochs)
        status = farm_statistics_make(config->net, &config->learner->algo, config->lanes->lane_count, config->width_max,
                                      &backend->statistics, err);
    if (!status && config->lanes->model.answers == FARM_ANSWERS_LOCAL)
        status = farm_fail(err, FARM_E_UNSUPPORTED, "GPUs do not train on lanes whose actors answer yet");
    if (!status && config->plan->epochs) status = farm_cuda_algo_check(config->learner->algo.algo->recipe.name, err);
    for (uint32_t k = 0; k < config->shards && !status; k++) {
        status = farm_cuda_shard_make(config, k, &backend->shards[k], err);
        if (!status) backend->shard_count++;
    }
    if (!status) farm_statistics_load(backend->statistics, parameters_of(backend, 0)->host.params);
    if (!status) status = start_threads(backend, err);
    if (!status && config->shards > 1 && config->plan->epochs) status = connect_gpus(backend, err);
    if (status) {
        abandon_sum(backend);
        destroy(backend);
        return status;
    }
    *out = backend;
    return FARM_OK;
}

const struct farm_cuda_context *farm_cuda_backend_context(const struct farm_backend *backend, uint32_t shard) {
    return &backend->shards[shard]->context;
}

// ---- the functions ----

static enum farm_status infer(struct farm_backend *backend, uint32_t shard, const struct farm_policy_rows *rows,
                              uint32_t count, struct farm_error *err) {
    const enum farm_status status = farm_cuda_shard_enter(backend->shards[shard], err);
    return status ? status : farm_cuda_infer(backend->shards[shard]->inference, rows, count, err);
}

// ---- rings that come and go ----

static struct farm_cuda_shard *shard_of(const struct farm_backend *backend, uint32_t ring) {
    return backend->shards[farm_lanes_shard(backend->shards[0]->context.lanes, ring)];
}

static enum farm_status join(struct farm_backend *backend, uint32_t ring, struct farm_error *err) {
    if (given_up(backend)) return farm_fail(err, FARM_E_DEAD, "the GPU hangs");
    const enum farm_status status = farm_cuda_shard_enter(shard_of(backend, ring), err);
    return status ? status : farm_cuda_shard_join(shard_of(backend, ring), ring, err);
}

static void leave(struct farm_backend *backend, uint32_t ring) {
    struct farm_error lost; // even if the device is lost
    if (given_up(backend)) return;
    (void)farm_cuda_shard_enter(shard_of(backend, ring), &lost);
    farm_cuda_shard_leave(shard_of(backend, ring), ring);
}

// ---- training ----

// The number of windows, from the first on, that are the shard's.
static uint32_t count_own(const struct farm_cuda_context *context, const struct farm_window *windows, uint32_t count) {
    uint32_t own = 0;
    while (own < count && farm_cuda_serves(context, windows[own].lane_id)) own++;
    return own;
}

// A failed pass leaves invalid parameters on the devices. Returns the error.
static enum farm_status abandon_pass(struct farm_backend *backend, enum farm_status status) {
    abandon_sum(backend);
    backend->failed = true;
    return status;
}

// Gathers the shard's units of a pass, in the pass's order, and enqueues their gradients. Columns are numbered shard
// after shard; each shard gets the units of its own columns.
static enum farm_status differentiate(struct farm_backend *backend, uint32_t k, struct farm_error *err) {
    const struct farm_iteration *it = &backend->iterations[backend->step.slot];
    const struct farm_pass *pass = backend->step.pass;
    const uint32_t *own = &backend->columns[backend->step.slot][k], count = own[1] - own[0];
    uint32_t *order = pass->indices || it->plan->targets_once
                          ? backend->orders + k * (size_t)farm_algo_units(it->plan, it->columns_max)
                          : NULL;
    struct farm_cuda_pass part = {.iteration = it, .order = order, .first = own[0], .count = order ? 0 : count};
    part.total = pass->count ? pass->count : farm_algo_units(it->plan, it->count);
    assert(part.total <= farm_algo_pass_units(it->plan, it->columns_max)); // for which there is memory
    for (uint32_t i = 0; order && i < part.total; i++) {
        const uint32_t unit = pass->indices ? pass->indices[i] : i, column = unit % it->count;
        if (column - own[0] < count) order[part.count++] = unit;
    }
    return farm_cuda_training_gradients(backend->shards[k]->training, backend->step.slot, &part, err);
}

// Waits for the newest step and takes its results. Names the tensor of a bad gradient, unless the next update's
// gradients have already taken its place.
static enum farm_status harvest(struct farm_backend *backend, struct farm_error *err) {
    enum farm_status status = wait_for_all(backend, farm_cuda_limit_s(backend->shards[0]->context.learner), err);
    const bool good = isfinite(backend->stats.grad_norm), ahead = backend->begun[0] || backend->begun[1];
    for (uint32_t k = 0; k < backend->shard_count && !status && backend->unfinished; k++)
        farm_cuda_training_harvest(backend->shards[k]->training, &backend->stats);
    backend->unfinished = false;
    if (status || !good || isfinite(backend->stats.grad_norm) || ahead) return status;
    status = farm_cuda_shard_enter(backend->shards[0], err);
    return status
               ? status
               : farm_cuda_parameters_bad_tensor(parameters_of(backend, 0), farm_cuda_shard_stream(backend->shards[0]),
                                                 &backend->stats.bad_tensor, err);
}

// Whether the state in host memory is older than the config's period.
static bool state_is_due(const struct farm_backend *backend) {
    const double every = backend->shards[0]->context.learner->device.state_every_s;
    return (double)(farm_now_ns() - parameters_of(backend, 0)->copied_ns) > (every > 0 ? every : STATE_EVERY_S) * 1e9;
}

// Copies the first shard's state, which all shards have, into host memory. Its stream may hold the next update's
// gradients first.
static enum farm_status copy_to_host(struct farm_backend *backend, struct farm_error *err) {
    struct farm_cuda_shard *shard = backend->shards[0];
    struct CUstream_st *stream = farm_cuda_shard_stream(shard);
    const uint64_t start_ns = farm_now_ns();
    enum farm_status status = farm_cuda_shard_enter(shard, err);
    while (!status) {
        const cudaError_t code = cudaStreamQuery(stream);
        if (code == cudaSuccess) return farm_cuda_parameters_download(&shard->context.parameters, stream, err);
        if (code != cudaErrorNotReady) return farm_cuda_fail(err, code, "training", __FILE__, __LINE__);
        (void)cudaGetLastError(); // clears "not ready"
        status = farm_cuda_wait_expired(&shard->context, start_ns, "an update", err);
        if (!status) farm_cuda_nap(start_ns);
    }
    return status;
}

// Targets once: the present values of the shard's next columns' last observations.
static enum farm_status compute_values(struct farm_backend *backend, uint32_t k, struct farm_error *err) {
    struct farm_iteration *it = &backend->iterations[backend->step.slot];
    struct farm_cuda_training *training = backend->shards[k]->training;
    const uint32_t most = farm_cuda_training_values_most(training), *own = &backend->columns[backend->step.slot][k];
    const uint32_t first = own[0] + backend->step.from, left = own[1] > first ? own[1] - first : 0;
    const uint32_t count = left < most ? left : most;
    backend->step.first[k] = first;
    backend->step.count[k] = count;
    farm_iteration_gather(it, NULL, first, count);
    return count ? farm_cuda_training_values(training, backend->step.slot, it, first, count, err) : FARM_OK;
}

// Targets once: the present values of all columns' last observations, some columns of each shard at a time, then the
// targets on the host.
static enum farm_status compute_targets(struct farm_backend *backend, uint32_t slot, struct farm_error *err) {
    struct farm_iteration *it = &backend->iterations[slot];
    const double limit_s = farm_cuda_limit_s(backend->shards[0]->context.learner);
    float *values = it->value + (size_t)farm_algo_transitions(it->plan) * it->count;
    const uint32_t most = farm_cuda_training_values_most(backend->shards[0]->training);
    enum farm_status status = FARM_OK;
    for (uint32_t from = 0; from < it->count && !status; from += most) {
        status = run(backend, (struct step){.body = compute_values, .slot = slot, .from = from}, err);
        if (!status) status = wait_for_all(backend, limit_s, err);
        for (uint32_t k = 0; k < backend->shard_count && !status; k++) {
            const uint32_t first = backend->step.first[k];
            float *taken = farm_cuda_training_take_values(backend->shards[k]->training), *policy = taken + most;
            for (uint32_t i = 0; i < backend->step.count[k]; i++, policy += it->head.outputs) {
                values[first + i] = taken[i];
                farm_iteration_finish(it, first + i, policy, &values[first + i]);
            }
        }
    }
    if (!status) farm_iteration_target(it);
    return status;
}

static enum farm_status begin_shard(struct farm_backend *backend, uint32_t k, struct farm_error *err) {
    const enum farm_status status = farm_cuda_training_bring(
        backend->shards[k]->training, backend->step.windows + backend->step.first[k], backend->step.count[k], err);
    return status || !backend->single ? status : differentiate(backend, k, err);
}

static enum farm_status begin(struct farm_backend *backend, uint32_t slot, const struct farm_window *windows,
                              uint32_t count, struct farm_error *err) {
    struct farm_iteration *it = &backend->iterations[slot];
    struct step step = {.body = begin_shard, .slot = slot, .pass = &(struct farm_pass){0}, .windows = windows};
    uint32_t sorted = 0, *columns = backend->columns[slot]; // columns[0] is 0
    if (!backend->bound) farm_pool_bind(backend->pool, 0);
    backend->bound = true;
    farm_iteration_list(it, windows, count);
    farm_statistics_begin(backend->statistics, it);
    for (uint32_t k = 0; k < backend->shard_count; k++) {
        step.first[k] = sorted;
        step.count[k] = count_own(&backend->shards[k]->context, windows + sorted, count - sorted);
        columns[k + 1] = columns[k];
        for (uint32_t i = 0; i < step.count[k]; i++) columns[k + 1] += windows[sorted++].env_count;
    }
    if (sorted < count) return farm_fail(err, FARM_E_INVALID, "windows are not sorted by shard");
    backend->begun[slot] = backend->single;
    backend->targets[slot] = it->plan->targets_once;
    const enum farm_status status = run(backend, step, err);
    return status ? abandon_pass(backend, status) : FARM_OK;
}

static enum farm_status make_step(struct farm_backend *backend, uint32_t k, struct farm_error *err) {
    return farm_cuda_training_step(backend->shards[k]->training, backend->step.pass->learning_rate, err);
}

// After the gradients: their sum, each device's step.
static enum farm_status pass(struct farm_backend *backend, uint32_t slot, const struct farm_pass *pass,
                             struct farm_error *err) {
    struct farm_iteration *it = &backend->iterations[slot];
    enum farm_status status = FARM_OK;
    // Gathered inputs and results have room for one pass.
    if (backend->unfinished) status = harvest(backend, err);
    if (!status && !isfinite(backend->stats.grad_norm)) return FARM_OK;
    if (!status && backend->targets[slot]) status = compute_targets(backend, slot, err);
    backend->targets[slot] = false;
    if (!status && it->plan->targets_once)
        farm_iteration_reduce(it, pass->indices, pass->count ? pass->count : farm_algo_units(it->plan, it->count),
                              pass->schedule);
    if (!status && !backend->begun[slot])
        status = run(backend, (struct step){.body = differentiate, .slot = slot, .pass = pass}, err);
    if (!status && backend->shard_count > 1) status = sum_gradients(backend, err);
    if (!status) status = run(backend, (struct step){.body = make_step, .pass = pass}, err);
    backend->begun[slot] = false;
    backend->unfinished = true;
    return status ? abandon_pass(backend, status) : FARM_OK;
}

static enum farm_status copy_set(struct farm_backend *backend, uint32_t k, struct farm_error *err) {
    return farm_cuda_parameters_copy(parameters_of(backend, k), farm_cuda_shard_stream(backend->shards[k]),
                                     backend->step.set, parameters_of(backend, 0)->host.params, err);
}

static enum farm_status copy(struct farm_backend *backend, uint32_t set, struct farm_error *err) {
    const enum farm_status status = run(backend, (struct step){.body = copy_set, .set = set}, err);
    return status ? abandon_pass(backend, status) : FARM_OK;
}

static enum farm_status publish_set(struct farm_backend *backend, uint32_t k, struct farm_error *err) {
    struct farm_cuda_shard *shard = backend->shards[k];
    const struct farm_cuda_parameters *first = parameters_of(backend, 0);
    const float *statistics = backend->step.set ? first->host.sets[backend->step.set - 1] : first->host.params;
    const enum farm_status status =
        farm_cuda_parameters_publish(&shard->context.parameters, farm_cuda_shard_stream(shard), backend->step.set,
                                     statistics, backend->step.version, err);
    return status ? status : farm_cuda_training_mark(shard->training, err);
}

static enum farm_status publish(struct farm_backend *backend, uint32_t set, uint64_t version, struct farm_error *err) {
    farm_statistics_write(backend->statistics, parameters_of(backend, 0)->host.params);
    const enum farm_status status =
        run(backend, (struct step){.body = publish_set, .set = set, .version = version}, err);
    backend->publishing = version + 1;
    return status ? abandon_pass(backend, status) : FARM_OK;
}

static enum farm_status finish(struct farm_backend *backend, struct farm_pass_stats *stats, struct farm_error *err) {
    enum farm_status status = harvest(backend, err);
    if (status) return abandon_pass(backend, status);
    const bool published = backend->publishing > 0;
    for (uint32_t k = 0; k < backend->shard_count && published; k++) {
        parameters_of(backend, k)->version = backend->publishing - 1;
        farm_cuda_parameters_published(parameters_of(backend, k));
    }
    backend->publishing = 0;
    *stats = backend->stats;
    backend->stats = (struct farm_pass_stats){0};
    if (!published || !state_is_due(backend)) return FARM_OK;
    status = copy_to_host(backend, err);
    stats->copied = !status;
    return status;
}

static struct farm_backend_state state(struct farm_backend *backend) {
    struct farm_cuda_parameters *parameters = parameters_of(backend, 0);
    struct farm_error why;
    enum farm_status status = FARM_E_DEAD;
    if (backend->failed)
        (void)farm_fail(&why, status, "the last update failed half done");
    else if (given_up(backend))
        (void)farm_fail(&why, status, "the GPU hangs");
    else
        status = copy_to_host(backend, &why);
    if (status)
        farm_log_warn("%s: the parameters are those of version %llu, %llu updates earlier", why.message,
                      (unsigned long long)parameters->host.version,
                      (unsigned long long)(parameters->version - parameters->host.version));
    struct farm_backend_state state =
        farm_backend_state_of(parameters->host.params, parameters->host.first, parameters->host.second,
                              parameters->host.optimiser_step, parameters->host.version);
    farm_backend_state_add(&state, parameters->plan, parameters->host.sets);
    return state;
}

static enum farm_status state_changed(struct farm_backend *backend, uint64_t new_version, uint64_t optimiser_step,
                                      struct farm_error *err) {
    const struct farm_cuda_parameters *first = parameters_of(backend, 0);
    enum farm_status status = FARM_OK;
    memset(backend->begun, 0, sizeof backend->begun); // their gradients are of other parameters
    farm_statistics_load(backend->statistics, first->host.params);
    for (uint32_t k = 0; k < backend->shard_count && !status; k++) {
        struct farm_cuda_parameters *own = parameters_of(backend, k);
        if (k) farm_cuda_parameters_take(own, first);
        own->host.version = new_version;
        own->host.optimiser_step = optimiser_step;
        status = farm_cuda_shard_enter(backend->shards[k], err);
        if (!status) status = farm_cuda_parameters_upload(own, farm_cuda_shard_stream(backend->shards[k]), err);
    }
    return status;
}

const struct farm_backend_ops farm_backend_cuda = {
    .name = "cuda",
    .stores_acted = true,
    .shards = true,
    .overlaps = true,
    .create = create,
    .destroy = destroy,
    .infer = infer,
    .join = join,
    .leave = leave,
    .begin = begin,
    .pass = pass,
    .copy = copy,
    .publish = publish,
    .finish = finish,
    .state = state,
    .state_changed = state_changed,
};

// What libfarm_cuda.so exports for the learner; see learner/backend.h.
__attribute__((visibility("default"))) farm_backend_entry farm_cuda_backend;

const struct farm_backend_ops *farm_cuda_backend(const struct farm_backend_host *host, const char **commit) {
    *commit = FARM_COMMIT;
    if (strcmp(host->commit, FARM_COMMIT) != 0) return NULL;
    farm_log_set_level(host->log_level);
    farm_log_set_role(host->log_role);
    farm_stopped_ns = host->stopped_ns;
    return &farm_backend_cuda;
}
