// See trainer.h.
#include "learner/trainer.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "base/time.h"
#include "kernels/random.h"
#include "learner/boards.h"
#include "learner/checkpoint_writer.h"

enum { STOP_LOOK_MS = 100, REQUEST_LOOK_NS = 100000000 };

struct iteration {
    struct farm_window *windows;          // [source's windows_max]
    uint32_t count, columns;              // columns: environments' windows in them
    double scheduled_rate, learning_rate; // the second one: of the last pass
    bool begun;                           // by the backend
};

struct farm_trainer {
    struct farm_learner_parts *parts;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, less; // windows may suffice; an iteration's windows are released
    bool stop, failed, over;   // over: the thread makes no more iterations
    uint64_t taken, released;  // iterations
    uint64_t dropped;          // windows that the source dropped and the stats count
    bool ended;                // deterministic: resumed at its end
    bool warned;               // that rings are missing; of the thread that changes the table of lanes
    // training thread only
    struct iteration iterations[FARM_BACKEND_SLOTS];
    uint32_t slot;    // the present iteration's
    bool ahead;       // the other slot's iteration is taken
    uint32_t *order;  // the iteration's units (algo.h), shuffled; NULL: one pass has them all
    uint64_t version; // newest published
    struct farm_checkpoint_writer writer;
    enum farm_status status;
    struct farm_error error;
};

// ---- one iteration ----

// The share of the run that has passed. A resumed one continues where the whole run's frames, or seconds, put it.
static double share_of_run(const struct farm_trainer *trainer) {
    const struct farm_learner_config *learner = trainer->parts->config;
    const uint64_t start_ns = farm_load_relaxed(&learner->stats->start_ns);
    const double seconds = learner->target.seconds;
    const double passed_s = seconds > 0 && start_ns ? (double)(farm_now_ns() - start_ns) * 1e-9 : 0;
    return farm_schedule_share(farm_load_relaxed(&learner->stats->frames), learner->target.frames,
                               learner->before.wall_s + passed_s, seconds);
}

// Inference looks after its nap too, so a failed write only delays it.
static void wake_shards(const struct farm_trainer *trainer) {
    const uint64_t one = 1;
    for (uint32_t k = 0; k < trainer->parts->shards; k++)
        (void)!write(trainer->parts->config->shards[k].eventfd, &one, sizeof one);
}

// The source has released tickets, perhaps.
static void wake_inference(const struct farm_trainer *trainer) {
    if (trainer->parts->source->holds) wake_shards(trainer);
}

// Takes an iteration, if the source has enough windows. version: that training will start from. With the lock held.
static bool take_iteration(struct farm_trainer *trainer, struct iteration *to, uint64_t version) {
    struct farm_window_source *source = trainer->parts->source;
    const struct farm_algo_config *algo = &trainer->parts->config->algo;
    const uint64_t released = source->released[0];
    source->share = share_of_run(trainer);
    to->count = source->ops->take(source, version, to->windows);
    const uint64_t dropped = source->dropped - trainer->dropped;
    if (dropped || to->count || source->released[0] != released) wake_inference(trainer);
    farm_stats_add(&trainer->parts->config->stats->windows_dropped, dropped);
    trainer->dropped += dropped;
    if (!to->count) return false;
    trainer->taken++;
    to->columns = 0;
    for (uint32_t i = 0; i < to->count; i++) to->columns += to->windows[i].env_count;
    to->scheduled_rate = farm_learning_rate_linear(algo->lr, algo->lr_end, algo->lr_hold, source->share);
    to->begun = false;
    return true;
}

static void record_figures(struct farm_trainer *trainer, const struct iteration *it,
                           const struct farm_pass_stats *result) {
    struct farm_stats *stats = trainer->parts->config->stats;
    const struct farm_algo *algo = trainer->parts->config->algo.algo;
    const double rows = result->terms[0] > 0 ? result->terms[0] : 1;
    const uint32_t burn_in = trainer->parts->source->shape.burn_in;
    for (uint32_t i = 0; i < it->count; i++) {
        const struct farm_window *window = &it->windows[i];
        const uint64_t acted_with = *farm_lane_version(window->lane, window->start + burn_in),
                       began_with = trainer->version - 1;
        if (began_with > acted_with) farm_stats_add(&stats->lag_sum, (began_with - acted_with) * window->env_count);
        farm_stats_add(&stats->windows, window->env_count);
    }
    farm_stats_add(&stats->updates, 1);
    for (int k = 0; k + 1 < FARM_ALGO_TERMS_MAX && algo->statistics[k].key; k++)
        farm_stats_set(&stats->algo[k],
                       algo->statistic ? algo->statistic(result->terms, k) : result->terms[k + 1] / rows);
    farm_stats_set(&stats->grad_norm, result->grad_norm);
    farm_stats_set(&stats->learning_rate, it->learning_rate);
}

// Fisher and Yates; the same order for the same seed, version and epoch.
static void shuffle_units(struct farm_trainer *trainer, uint32_t units, uint32_t epoch) {
    const uint64_t seed = trainer->parts->config->seed, stream = trainer->version << 8 | epoch;
    for (uint32_t i = 0; i < units; i++) trainer->order[i] = i;
    for (uint32_t i = units; i > 1; i--) {
        const uint32_t k = (uint32_t)(farm_random_uniform(seed ^ UINT64_C(0x5bd1e995), stream, i) * (float)i);
        const uint32_t other = trainer->order[k < i ? k : i - 1];
        trainer->order[k < i ? k : i - 1] = trainer->order[i - 1];
        trainer->order[i - 1] = other;
    }
}

// Waits for the passes since the last finish; adds their figures.
static enum farm_status finish_passes(struct farm_trainer *trainer, struct farm_pass_stats *sum,
                                      struct farm_pass_stats *last) {
    const enum farm_status status = trainer->parts->ops->finish(trainer->parts->backend, last, &trainer->error);
    if (status) return status;
    for (int k = 0; k < FARM_ALGO_TERMS_MAX; k++) sum->terms[k] += last->terms[k];
    sum->copied |= last->copied;
    sum->priorities = last->priorities;
    if (!isfinite(sum->grad_norm)) return FARM_OK;
    sum->grad_norm = last->grad_norm;
    sum->bad_step = last->bad_step;
    sum->bad_tensor = last->bad_tensor;
    return FARM_OK;
}

// After a pass: the sets whose turn it is.
static enum farm_status copy_sets(struct farm_learner_parts *parts, struct farm_error *err) {
    enum farm_status status = FARM_OK;
    parts->passes++;
    for (uint32_t k = 0; k < farm_algo_sets(&parts->plan) && !status; k++)
        if (parts->passes % parts->plan.sets[k].every == 0) status = parts->ops->copy(parts->backend, 1 + k, err);
    return status;
}

static enum farm_status run_epoch(struct farm_trainer *trainer, struct iteration *it, uint32_t epoch) {
    struct farm_learner_parts *parts = trainer->parts;
    const uint64_t units = farm_algo_units(&parts->plan, it->columns);
    const uint64_t passes = farm_algo_passes(&parts->plan, it->columns);
    it->learning_rate = it->scheduled_rate * (parts->config->algo.algo->adapt ? parts->rate_factor : 1);
    if (trainer->order) shuffle_units(trainer, (uint32_t)units, epoch);
    for (uint64_t m = 0; m < passes; m++) {
        const uint64_t from = units * m / passes, to = units * (m + 1) / passes;
        const struct farm_pass pass = {.indices = trainer->order ? trainer->order + from : NULL,
                                       .count = (uint32_t)(to - from),
                                       .learning_rate = it->learning_rate,
                                       .schedule = it->scheduled_rate / parts->config->algo.lr};
        enum farm_status status = parts->ops->pass(parts->backend, trainer->slot, &pass, &trainer->error);
        if (!status) status = copy_sets(parts, &trainer->error);
        if (status) return status;
    }
    return FARM_OK;
}

static enum farm_status begin_iteration(struct farm_trainer *trainer, uint32_t slot) {
    struct iteration *it = &trainer->iterations[slot];
    if (it->begun) return FARM_OK;
    it->begun = true;
    return trainer->parts->ops->begin(trainer->parts->backend, slot, it->windows, it->count, &trainer->error);
}

// begin, epochs of passes, publish, finish. The next iteration, if it is taken, is begun before the wait for this one.
static enum farm_status train_on(struct farm_trainer *trainer, struct iteration *it, struct farm_pass_stats *sum) {
    struct farm_learner_parts *parts = trainer->parts;
    const struct farm_algo_config *algo = &parts->config->algo;
    struct farm_pass_stats last;
    enum farm_status status = begin_iteration(trainer, trainer->slot);
    bool more = true;
    *sum = (struct farm_pass_stats){0};
    for (uint32_t epoch = 0; epoch < parts->plan.epochs && more && !status; epoch++) {
        status = run_epoch(trainer, it, epoch);
        if (status || !algo->algo->adapt) continue;
        status = finish_passes(trainer, sum, &last);
        more = !status && isfinite(sum->grad_norm) && // else the next epoch would change the parameters to be saved
               algo->algo->adapt(algo, last.terms, epoch + 1 == parts->plan.epochs, &parts->rate_factor);
    }
    // Before an actor can have the version: the validator accepts none that is newer than the newest published.
    if (!status) farm_store_release(&parts->config->stats->publishes, trainer->version + 2);
    if (!status) status = parts->ops->publish(parts->backend, FARM_SET_ONLINE, trainer->version + 1, &trainer->error);
    if (!status) farm_boards_publish(parts, NULL, trainer->version + 1); // before any lane that waits for it is granted
    if (!status && trainer->ahead) status = begin_iteration(trainer, !trainer->slot);
    const double norm = sum->grad_norm;
    if (!status) status = finish_passes(trainer, sum, &last);
    if (algo->algo->adapt && isfinite(sum->grad_norm)) sum->grad_norm = norm; // the last epoch's finish was the last
    return status;
}

// Names what is not finite: the pass, the first of its terms, a tensor. The parameters are those of before that pass.
static enum farm_status report_divergence(struct farm_trainer *trainer, const struct farm_pass_stats *stats) {
    const struct farm_algo *algo = trainer->parts->config->algo.algo;
    const char *term = NULL;
    for (int k = 0; k + 1 < FARM_ALGO_TERMS_MAX && algo->statistics[k].key && !term; k++)
        if (!isfinite(stats->terms[k + 1])) term = algo->statistics[k].key;
    return farm_fail(&trainer->error, FARM_E_INVALID,
                     "training has diverged: at optimiser step %" PRIu64
                     " the gradient%s%s is not finite%s%s; the parameters before it are saved (a smaller --lr, "
                     "--grad-norm-clip or --reward-scale)",
                     stats->bad_step, stats->bad_tensor ? " of " : "", stats->bad_tensor ? stats->bad_tensor : "",
                     term ? ", nor is " : "", term ? term : "");
}

// Gives the windows back with their priorities, which a deterministic checkpoint behind the iteration has. Tickets are
// not released yet.
static void return_windows(struct farm_trainer *trainer, const struct iteration *it, const float *priorities) {
    struct farm_window_source *source = trainer->parts->source;
    pthread_mutex_lock(&trainer->lock);
    source->ops->done(source, it->windows, it->count, priorities);
    pthread_mutex_unlock(&trainer->lock);
}

static void make_iteration(struct farm_trainer *trainer, struct iteration *it) {
    struct farm_pass_stats stats;
    trainer->status = train_on(trainer, it, &stats);
    if (trainer->status) return;
    trainer->version++;
    trainer->writer.version = trainer->version;
    record_figures(trainer, it, &stats);
    if (stats.copied) farm_checkpoint_writer_copied(&trainer->writer);
    if (!isfinite(stats.grad_norm))
        trainer->status = report_divergence(trainer, &stats);
    else
        return_windows(trainer, it, stats.priorities);
}

// ---- the loop ----

// Until windows may suffice, until take depends on time again, or until a checkpoint may be requested, which is written
// here. With the lock held.
static void wait_for_windows(struct farm_trainer *trainer) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += trainer->parts->source->polls ? FARM_WINDOW_POLL_NS : REQUEST_LOOK_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&trainer->more, &trainer->lock, &until);
    if (trainer->stop || !farm_checkpoint_writer_requested(&trainer->writer)) return;
    pthread_mutex_unlock(&trainer->lock);
    farm_checkpoint_writer_turn(&trainer->writer);
    pthread_mutex_lock(&trainer->lock);
}

// Waits for an iteration, unless it is taken already. Takes the next one too, if it is there and the backend overlaps
// them. False: the trainer must stop. With the lock held.
static bool take_next(struct farm_trainer *trainer) {
    struct farm_stats *stats = trainer->parts->config->stats;
    const uint64_t start = farm_now_ns();
    if (trainer->ahead) {
        trainer->slot = !trainer->slot;
    } else {
        while (!trainer->stop && !take_iteration(trainer, &trainer->iterations[trainer->slot], trainer->version))
            wait_for_windows(trainer);
    }
    farm_stats_add(&stats->train_wait_ns, farm_now_ns() - start);
    if (trainer->stop) return false;
    trainer->ahead = trainer->parts->ops->overlaps &&
                     take_iteration(trainer, &trainer->iterations[!trainer->slot], trainer->version + 1);
    return true;
}

// Deterministic: all other threads and all actors stand still meanwhile.
static void await_sample(const struct farm_trainer *trainer) {
    struct pollfd there = {.fd = trainer->parts->config->deterministic.sample_fd, .events = POLLIN};
    char byte = 0;
    if (there.fd < 0 || write(there.fd, &byte, 1) != 1) return;
    while (!farm_load_relaxed(trainer->parts->stop) && poll(&there, 1, STOP_LOOK_MS) <= 0) continue;
    (void)!recv(there.fd, &byte, 1, MSG_DONTWAIT);
}

static bool target_reached(const struct farm_trainer *trainer) {
    const struct farm_learner_config *learner = trainer->parts->config;
    return learner->target.frames && farm_load_relaxed(&learner->stats->frames) >= learner->target.frames;
}

static void end_learner(const struct farm_trainer *trainer, bool done) {
    if (done) farm_store_release(&trainer->parts->config->stats->done, 1);
    farm_store_relaxed(trainer->parts->stop, 1);
    wake_shards(trainer);
}

// Deterministic: between an iteration's publish and its release every lane waits, and every step that was answered is
// counted, so what is written here is the same in each run. At a checkpoint the learner ends: the steps after the
// window are not answered.
static bool end_update(struct farm_trainer *trainer) {
    const struct farm_learner_config *learner = trainer->parts->config;
    const uint64_t updates = learner->before.updates + farm_load_relaxed(&learner->stats->updates);
    const bool done = target_reached(trainer),
               ends = done || updates % learner->deterministic.checkpoint_every_updates == 0;
    if (ends || updates % learner->deterministic.metrics_every_updates == 0) await_sample(trainer);
    if (!ends || farm_load_relaxed(trainer->parts->stop)) return false;
    trainer->status = farm_checkpoint_writer_end(&trainer->writer, &trainer->error);
    end_learner(trainer, done && !trainer->status);
    return true;
}

// Releases the lanes that waited for the new parameters.
static void release_iteration(struct farm_trainer *trainer) {
    trainer->parts->source->ops->published(trainer->parts->source);
    wake_inference(trainer);
    trainer->released++;
    pthread_cond_broadcast(&trainer->less);
}

static void *train_until_stopped(void *argument) {
    struct farm_trainer *trainer = argument;
    const bool deterministic = trainer->parts->config->deterministic.on;
    if (trainer->ended) end_learner(trainer, true);
    pthread_mutex_lock(&trainer->lock);
    trainer->stop |= trainer->ended;
    while (!trainer->status && take_next(trainer)) {
        struct iteration *it = &trainer->iterations[trainer->slot];
        pthread_mutex_unlock(&trainer->lock);
        make_iteration(trainer, it);
        const bool ends = deterministic && !trainer->status && end_update(trainer);
        pthread_mutex_lock(&trainer->lock);
        trainer->stop |= ends;
        if (!trainer->status && !ends) release_iteration(trainer);
        pthread_mutex_unlock(&trainer->lock);
        if (!deterministic && !trainer->status) farm_checkpoint_writer_turn(&trainer->writer);
        pthread_mutex_lock(&trainer->lock);
    }
    trainer->failed = trainer->status != FARM_OK;
    trainer->over = true;
    pthread_cond_broadcast(&trainer->less);
    pthread_mutex_unlock(&trainer->lock);
    return NULL;
}

// ---- what the rings hold ----

// FARM_E_INVALID if the shard's rings, without one of them, cannot hold the shard's windows of an iteration.
static enum farm_status check_shard(const struct farm_learner_parts *parts, uint32_t shard,
                                    const struct farm_ring *without, struct farm_error *err) {
    const uint32_t share = farm_learner_share(parts->config->algo.batch, parts->shards, shard);
    uint64_t possible = 0;
    for (uint32_t i = 0; i < parts->lanes.lane_count; i++) {
        const struct farm_intake_lane *of = &parts->lanes.lanes[i];
        if (of->lane && of->shard == shard && of->ring != without)
            possible += farm_window_capacity(&parts->plan.shape, of->lane->steps) * of->lane->width;
    }
    if (farm_algo_update_fits(&parts->plan, possible, share, parts->lanes.width_max)) return FARM_OK;
    return farm_fail(err, FARM_E_INVALID,
                     "an update of %u windows does not fit the rings%s, which hold %" PRIu64
                     " at most: a larger --ring-steps, a smaller --batch or --unroll",
                     share, parts->shards > 1 ? " of its shard" : "", possible);
}

static enum farm_status check_shards(const struct farm_learner_parts *parts, const struct farm_ring *without,
                                     struct farm_error *err) {
    enum farm_status status = FARM_OK;
    for (uint32_t k = 0; k < parts->shards && !status; k++) status = check_shard(parts, k, without, err);
    return status;
}

// Warns once until the rings suffice again. That there is no ring at all is the supervisor's to report.
static void warn_if_rings_are_missing(struct farm_trainer *trainer, const struct farm_ring *without) {
    const struct farm_lanes *lanes = &trainer->parts->lanes;
    struct farm_error why;
    bool any = false;
    if (!check_shards(trainer->parts, without, &why)) {
        trainer->warned = false;
        return;
    }
    for (uint32_t r = 0; r < lanes->ring_count; r++) any |= farm_lanes_has(lanes, r) && &lanes->rings[r] != without;
    if (any && !trainer->warned) farm_log_warn("training waits for more actors: %s", why.message);
    trainer->warned = true;
}

// ---- start and end ----

static void destroy(struct farm_trainer *trainer) {
    pthread_cond_destroy(&trainer->more);
    pthread_cond_destroy(&trainer->less);
    pthread_mutex_destroy(&trainer->lock);
    for (int k = 0; k < FARM_BACKEND_SLOTS; k++) free(trainer->iterations[k].windows);
    free(trainer->order);
    free(trainer->writer.job);
    free(trainer);
}

static enum farm_status make_memory(struct farm_trainer *trainer, struct farm_error *err) {
    const struct farm_learner_parts *parts = trainer->parts;
    const uint32_t windows = parts->source->windows_max;
    bool room = true;
    for (int k = 0; k < FARM_BACKEND_SLOTS; k++) {
        trainer->iterations[k].windows = calloc(windows + 1, sizeof *trainer->iterations[k].windows);
        room &= trainer->iterations[k].windows != NULL;
    }
    if (parts->plan.epochs > 1 || parts->plan.minibatch) {
        const size_t units = farm_algo_units(&parts->plan, 1);
        trainer->order = calloc((size_t)windows * parts->lanes.width_max * units + 1, sizeof *trainer->order);
        room &= trainer->order != NULL;
    }
    return room ? FARM_OK : farm_fail(err, FARM_E_LIMIT, "no memory for an update of %u windows", windows);
}

enum farm_status farm_trainer_start(struct farm_learner_parts *parts, struct farm_trainer **out,
                                    struct farm_error *err) {
    struct farm_trainer *trainer = calloc(1, sizeof *trainer);
    if (!trainer) return farm_fail(err, FARM_E_LIMIT, "no memory for the trainer");
    trainer->parts = parts;
    trainer->version = parts->version;
    pthread_mutex_init(&trainer->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&trainer->more, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_cond_init(&trainer->less, NULL);
    trainer->ended = parts->config->deterministic.on && target_reached(trainer); // before inference counts steps
    farm_checkpoint_writer_start(&trainer->writer, parts);
    trainer->writer.lock = &trainer->lock;
    enum farm_status status = make_memory(trainer, err);
    for (uint32_t r = 0; r < parts->lanes.ring_count && !status; r++)
        if (farm_lanes_has(&parts->lanes, r)) farm_trainer_admit(trainer, r);
    if (!status && parts->config->rings.admission < 0) status = check_shards(parts, NULL, err); // no ring can join
    if (!status) warn_if_rings_are_missing(trainer, NULL);
    if (!status && (errno = farm_thread_start(&trainer->thread, "train", 0, train_until_stopped, trainer)))
        status = farm_fail_errno(err, FARM_E_LIMIT, "the training thread does not start (ulimit -u, ulimit -v)");
    if (status) {
        destroy(trainer);
        return status;
    }
    *out = trainer;
    return FARM_OK;
}

uint64_t farm_trainer_push(struct farm_trainer *trainer, struct farm_intake_lane *lane, uint64_t start) {
    const struct farm_window window = {.lane = lane->lane,
                                       .cursor = &lane->cursor,
                                       .ring = lane->ring,
                                       .lane_id = lane->id,
                                       .shard = lane->shard,
                                       .start = start,
                                       .env_count = lane->lane->width,
                                       .weight = 1};
    pthread_mutex_lock(&trainer->lock);
    const uint64_t released = trainer->parts->source->released[0];
    const uint64_t ticket = trainer->parts->source->ops->push(trainer->parts->source, &window);
    if (trainer->parts->source->released[0] != released) wake_inference(trainer);
    if (trainer->parts->source->ops->ready(trainer->parts->source)) pthread_cond_signal(&trainer->more);
    pthread_mutex_unlock(&trainer->lock);
    return ticket;
}

void farm_trainer_admit(struct farm_trainer *trainer, uint32_t ring) {
    const struct farm_lanes *lanes = &trainer->parts->lanes;
    struct farm_window_source *source = trainer->parts->source;
    pthread_mutex_lock(&trainer->lock);
    for (uint32_t l = 0; l < lanes->rings[ring].spec.lanes; l++) {
        const struct farm_intake_lane *lane = &lanes->lanes[lanes->first_lane[ring] + l];
        source->ops->admit(source, lane->lane, lane->id, lane->shard);
        if (trainer->parts->store) farm_replay_admit(trainer->parts->store, lane->lane, lane->id);
    }
    pthread_mutex_unlock(&trainer->lock);
    if (trainer->warned) warn_if_rings_are_missing(trainer, NULL);
}

void farm_trainer_forget(struct farm_trainer *trainer, uint32_t ring) {
    const struct farm_lanes *lanes = &trainer->parts->lanes;
    struct farm_window_source *source = trainer->parts->source;
    pthread_mutex_lock(&trainer->lock);
    const uint64_t dropped = source->dropped;
    source->ops->forget(source, &lanes->rings[ring], lanes->first_lane[ring]);
    for (uint32_t l = 0; trainer->parts->store && l < lanes->rings[ring].spec.lanes; l++)
        farm_replay_forget(trainer->parts->store, lanes->first_lane[ring] + l);
    if (source->dropped != dropped)
        farm_log_info("actor %u leaves, and %" PRIu64 " windows of the replay with it",
                      lanes->rings[ring].down.header->owner, source->dropped - dropped);
    wake_inference(trainer);
    pthread_cond_signal(&trainer->more); // the windows that training waited for may not come
    for (const uint64_t taken = trainer->taken; trainer->released < taken && !trainer->over;)
        pthread_cond_wait(&trainer->less, &trainer->lock);
    pthread_mutex_unlock(&trainer->lock);
    warn_if_rings_are_missing(trainer, &lanes->rings[ring]);
}

bool farm_trainer_failed(struct farm_trainer *trainer) {
    pthread_mutex_lock(&trainer->lock);
    bool failed = trainer->failed;
    pthread_mutex_unlock(&trainer->lock);
    return failed;
}

enum farm_status farm_trainer_stop(struct farm_trainer *trainer, struct farm_error *err) {
    pthread_mutex_lock(&trainer->lock);
    trainer->stop = true;
    pthread_cond_signal(&trainer->more);
    pthread_mutex_unlock(&trainer->lock);
    pthread_join(trainer->thread, NULL);
    enum farm_status status = trainer->status;
    if (status && err) *err = trainer->error;
    struct farm_error error;
    // A deterministic run keeps what repeats: its own checkpoints, or the parameters before it failed.
    const bool none = trainer->parts->config->deterministic.on && !status;
    const enum farm_status saved = none ? FARM_OK : farm_checkpoint_writer_end(&trainer->writer, &error);
    if (saved && status) farm_log_warn("%s", error.message);
    if (saved && !status && err) *err = error;
    if (!status) status = saved;
    destroy(trainer);
    return status;
}
