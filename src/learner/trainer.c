// See trainer.h.
#include "learner/trainer.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/time.h"
#include "kernels/random.h"
#include "learner/checkpoint_writer.h"

enum { BROKEN_UPDATES_MAX = 50 };

// What is taken off the source together.
struct iteration {
    struct farm_window *windows; // [source's windows_max]
    uint32_t count, columns;     // columns: environments' windows in them
    double learning_rate;
    bool begun; // the backend has it
};

struct farm_trainer {
    struct farm_trainer_config config;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, less; // windows may suffice; an iteration has let go of its own
    bool stop, failed, over;   // over: the thread makes no more iterations
    uint64_t taken, released;  // iterations
    uint64_t dropped;          // windows of the source's that are in the stats
    bool told;                 // that rings are missing; of the thread that changes the table of lanes
    // training thread only
    struct iteration iterations[FARM_BACKEND_SLOTS];
    uint32_t slot; // of the iteration at hand; the other one may have been taken ahead
    bool ahead;
    uint32_t *order; // [columns_max]: the columns, shuffled; NULL: one pass has them all
    uint32_t columns_max;
    uint64_t version; // newest published
    struct farm_checkpoint_writer writer;
    uint32_t broken; // updates in a row whose gradient was not finite
    enum farm_status status;
    struct farm_error error;
};

// ---- one iteration ----

static double learning_rate(const struct farm_trainer *trainer) {
    const struct farm_learner_config *learner = trainer->config.learner;
    return (double)farm_learning_rate_linear((float)learner->algo.lr, (float)learner->algo.lr_end,
                                             farm_load_relaxed(&learner->stats->frames), learner->frames_target);
}

// Lanes that wait with a ticket may be answered again.
static void wake_inference(const struct farm_trainer *trainer) {
    const uint64_t one = 1;
    for (uint32_t k = 0; k < trainer->config.shards && trainer->config.source->holds; k++)
        if (write(trainer->config.learner->shards[k].eventfd, &one, sizeof one) < 0) continue; // it looks by itself too
}

// Fills `to` if the source has enough; version: that it will be trained from. Called with the lock held.
static bool take(struct farm_trainer *trainer, struct iteration *to, uint64_t version) {
    struct farm_window_source *source = trainer->config.source;
    to->count = source->ops->take(source, version, to->windows);
    const uint64_t dropped = source->dropped - trainer->dropped;
    if (dropped || to->count) wake_inference(trainer);
    farm_stats_add(&trainer->config.learner->stats->windows_dropped, dropped);
    trainer->dropped += dropped;
    if (!to->count) return false;
    trainer->taken++;
    to->columns = 0;
    for (uint32_t i = 0; i < to->count; i++) to->columns += to->windows[i].env_count;
    to->learning_rate = learning_rate(trainer);
    to->begun = false;
    return true;
}

static void show(struct farm_trainer *trainer, const struct iteration *it, const struct farm_pass_stats *result) {
    struct farm_stats *stats = trainer->config.learner->stats;
    const struct farm_algo *algo = trainer->config.learner->algo.algo;
    const double rows = result->terms[0] > 0 ? result->terms[0] : 1;
    for (uint32_t i = 0; i < it->count; i++) {
        const struct farm_window *window = &it->windows[i];
        const uint64_t acted_with = *farm_lane_version(window->lane, window->start), began_with = trainer->version - 1;
        if (began_with > acted_with) farm_stats_add(&stats->lag_sum, (began_with - acted_with) * window->env_count);
        farm_stats_add(&stats->windows, window->env_count);
    }
    farm_stats_add(&stats->updates, 1);
    for (int k = 0; k + 1 < FARM_ALGO_TERMS_MAX && algo->statistics[k]; k++)
        farm_stats_set(&stats->algo[k], result->terms[k + 1] / rows);
    farm_stats_set(&stats->grad_norm, result->grad_norm);
    farm_stats_set(&stats->learning_rate, it->learning_rate);
}

// A new order of the columns (Fisher and Yates), the same for the same seed and version.
static void shuffle(struct farm_trainer *trainer, uint32_t columns, uint32_t epoch) {
    const uint64_t seed = trainer->config.learner->seed, stream = trainer->version << 8 | epoch;
    for (uint32_t i = 0; i < columns; i++) trainer->order[i] = i;
    for (uint32_t i = columns; i > 1; i--) {
        const uint32_t k = (uint32_t)(farm_random_uniform(seed ^ UINT64_C(0x5bd1e995), stream, i) * (float)i);
        const uint32_t other = trainer->order[k < i ? k : i - 1];
        trainer->order[k < i ? k : i - 1] = trainer->order[i - 1];
        trainer->order[i - 1] = other;
    }
}

static enum farm_status finish(struct farm_trainer *trainer, struct farm_pass_stats *sum) {
    struct farm_pass_stats more;
    const enum farm_status status = trainer->config.ops->finish(trainer->config.backend, &more, &trainer->error);
    if (status) return status;
    for (int k = 0; k < FARM_ALGO_TERMS_MAX; k++) sum->terms[k] += more.terms[k];
    sum->grad_norm = more.grad_norm;
    sum->copied |= more.copied;
    return FARM_OK;
}

// An epoch's passes.
static enum farm_status pass_over(struct farm_trainer *trainer, const struct iteration *it, uint32_t epoch) {
    const struct farm_trainer_config *config = &trainer->config;
    const uint32_t parts = config->plan->minibatches;
    if (trainer->order) shuffle(trainer, it->columns, epoch);
    for (uint32_t m = 0; m < parts; m++) {
        const uint32_t from = it->columns * m / parts, to = it->columns * (m + 1) / parts;
        const struct farm_pass pass = {.columns = trainer->order ? trainer->order + from : NULL,
                                       .count = to - from,
                                       .learning_rate = it->learning_rate};
        if (from == to) continue;
        const enum farm_status status = config->ops->pass(config->backend, trainer->slot, &pass, &trainer->error);
        if (status) return status;
    }
    return FARM_OK;
}

static enum farm_status begin(struct farm_trainer *trainer, uint32_t slot) {
    struct iteration *it = &trainer->iterations[slot];
    if (it->begun) return FARM_OK;
    it->begun = true;
    return trainer->config.ops->begin(trainer->config.backend, slot, it->windows, it->count, &trainer->error);
}

// begin, epochs of passes, publish, finish; the next iteration, taken ahead, is begun before the wait for this one.
static enum farm_status iterate(struct farm_trainer *trainer, struct iteration *it, struct farm_pass_stats *sum) {
    const struct farm_trainer_config *config = &trainer->config;
    const struct farm_algo_config *algo = &config->learner->algo;
    enum farm_status status = begin(trainer, trainer->slot);
    bool more = true;
    *sum = (struct farm_pass_stats){0};
    for (uint32_t epoch = 0; epoch < config->plan->epochs && more && !status; epoch++) {
        status = pass_over(trainer, it, epoch);
        if (status || !algo->algo->adapt) continue;
        struct farm_pass_stats of_epoch = {0};
        status = finish(trainer, &of_epoch);
        for (int k = 0; k < FARM_ALGO_TERMS_MAX; k++) sum->terms[k] += of_epoch.terms[k];
        sum->grad_norm = of_epoch.grad_norm;
        sum->copied |= of_epoch.copied;
        more = algo->algo->adapt(algo, of_epoch.terms, &it->learning_rate);
    }
    // Before an actor can have it: validator takes no version that is newer.
    if (!status) farm_store_release(&config->learner->stats->publishes, trainer->version + 2);
    if (!status) status = config->ops->publish(config->backend, trainer->version + 1, &trainer->error);
    if (!status && trainer->ahead) status = begin(trainer, !trainer->slot);
    const double norm = sum->grad_norm;
    if (!status) status = finish(trainer, sum);
    if (algo->algo->adapt) sum->grad_norm = norm;
    return status;
}

static void make(struct farm_trainer *trainer, struct iteration *it) {
    struct farm_pass_stats stats;
    trainer->status = iterate(trainer, it, &stats);
    if (trainer->status) return;
    trainer->version++;
    trainer->writer.version = trainer->version;
    show(trainer, it, &stats);
    if (stats.copied) farm_checkpoint_writer_copied(&trainer->writer);
    trainer->broken = isfinite(stats.grad_norm) ? 0 : trainer->broken + 1;
    if (trainer->broken == 1) farm_log_warn("the gradient is not finite: this update changes nothing");
    if (trainer->broken >= BROKEN_UPDATES_MAX)
        trainer->status = farm_fail(
            &trainer->error, FARM_E_INVALID,
            "training has diverged: %d gradients in a row were not finite (a smaller --lr or --grad-norm-clip)",
            BROKEN_UPDATES_MAX);
}

// ---- the loop ----

// Waits until windows may suffice, or until it is time to look again. With the lock held.
static void wait_for_more(struct farm_trainer *trainer) {
    if (!trainer->config.source->looks) {
        pthread_cond_wait(&trainer->more, &trainer->lock);
        return;
    }
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += FARM_WINDOW_LOOK_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&trainer->more, &trainer->lock, &until);
}

// Waits for an iteration, unless one was taken ahead; takes the one after it too if it is there already and the backend
// gains from it. False: the end was asked for. Called with the lock held.
static bool take_next(struct farm_trainer *trainer) {
    struct farm_stats *stats = trainer->config.learner->stats;
    const uint64_t start = farm_now_ns();
    if (trainer->ahead) {
        trainer->slot = !trainer->slot;
    } else {
        while (!trainer->stop && !take(trainer, &trainer->iterations[trainer->slot], trainer->version))
            wait_for_more(trainer);
    }
    farm_stats_add(&stats->train_wait_ns, farm_now_ns() - start);
    if (trainer->stop) return false;
    trainer->ahead =
        trainer->config.ops->overlaps && take(trainer, &trainer->iterations[!trainer->slot], trainer->version + 1);
    return true;
}

// Gives the steps of the iteration's windows back to their actors, and lets lanes that waited for its parameters go on.
static void release(struct farm_trainer *trainer, const struct iteration *it) {
    struct farm_window_source *source = trainer->config.source;
    source->ops->done(source, it->windows, it->count, NULL);
    source->ops->published(source);
    wake_inference(trainer);
    trainer->released++;
    pthread_cond_broadcast(&trainer->less);
}

static void *training(void *argument) {
    struct farm_trainer *trainer = argument;
    pthread_mutex_lock(&trainer->lock);
    while (!trainer->status && take_next(trainer)) {
        struct iteration *it = &trainer->iterations[trainer->slot];
        pthread_mutex_unlock(&trainer->lock);
        make(trainer, it);
        pthread_mutex_lock(&trainer->lock);
        if (!trainer->status) release(trainer, it);
        pthread_mutex_unlock(&trainer->lock);
        if (!trainer->status) farm_checkpoint_writer_turn(&trainer->writer);
        pthread_mutex_lock(&trainer->lock);
    }
    trainer->failed = trainer->status != FARM_OK;
    trainer->over = true;
    pthread_cond_broadcast(&trainer->less);
    pthread_mutex_unlock(&trainer->lock);
    return NULL;
}

// ---- what the rings hold ----

// Whether the rings of a shard, but for one, can hold its windows of an iteration.
static enum farm_status must_fit(const struct farm_trainer_config *config, uint32_t shard,
                                 const struct farm_ring *without, struct farm_error *err) {
    const uint32_t share = farm_learner_share(config->learner->algo.batch, config->shards, shard);
    uint64_t possible = 0;
    for (uint32_t i = 0; i < config->lanes->lane_count; i++) {
        const struct farm_learner_lane *of = &config->lanes->lanes[i];
        if (of->lane && of->shard == shard && of->ring != without)
            possible += farm_window_capacity(&config->plan->shape, of->lane->steps) * of->lane->width;
    }
    if (config->plan->sync ? possible > 0 : farm_window_update_fits(possible, share, config->lanes->width_max))
        return FARM_OK;
    return farm_fail(err, FARM_E_INVALID,
                     "an update of %u windows does not fit the rings%s, which hold %" PRIu64
                     " at most: a larger --ring-steps, a smaller --batch or --unroll",
                     share, config->shards > 1 ? " of its shard" : "", possible);
}

static bool any_ring(const struct farm_lanes *lanes, const struct farm_ring *without) {
    for (uint32_t r = 0; r < lanes->ring_count; r++)
        if (farm_lanes_has(lanes, r) && &lanes->rings[r] != without) return true;
    return false;
}

// Once, until there are enough. That there is no ring at all is the supervisor's to say.
static void say_what_is_missing(struct farm_trainer *trainer, const struct farm_ring *without) {
    const bool told = trainer->told || !any_ring(trainer->config.lanes, without);
    struct farm_error why;
    for (uint32_t k = 0; k < trainer->config.shards; k++) {
        if (!must_fit(&trainer->config, k, without, &why)) continue;
        trainer->told = true;
        if (!told) farm_log_warn("training waits for more actors: %s", why.message);
    }
}

static void see_what_is_missing(struct farm_trainer *trainer) {
    struct farm_error why;
    bool fits = true;
    for (uint32_t k = 0; k < trainer->config.shards && fits && trainer->told; k++)
        fits = !must_fit(&trainer->config, k, NULL, &why);
    if (fits) trainer->told = false;
}

// ---- start and end ----

static void destroy(struct farm_trainer *trainer) {
    pthread_cond_destroy(&trainer->more);
    pthread_cond_destroy(&trainer->less);
    pthread_mutex_destroy(&trainer->lock);
    for (int k = 0; k < FARM_BACKEND_SLOTS; k++) free(trainer->iterations[k].windows);
    free(trainer->order);
    free(trainer);
}

static enum farm_status make_memory(struct farm_trainer *trainer, struct farm_error *err) {
    const struct farm_trainer_config *config = &trainer->config;
    const uint32_t windows = config->source->windows_max;
    bool room = true;
    for (int k = 0; k < FARM_BACKEND_SLOTS; k++) {
        trainer->iterations[k].windows = calloc(windows + 1, sizeof *trainer->iterations[k].windows);
        room &= trainer->iterations[k].windows != NULL;
    }
    if (config->plan->epochs > 1 || config->plan->minibatches > 1) {
        trainer->order = calloc((size_t)windows * config->lanes->width_max + 1, sizeof *trainer->order);
        room &= trainer->order != NULL;
    }
    return room ? FARM_OK : farm_fail(err, FARM_E_LIMIT, "no memory for an update of %u windows", windows);
}

enum farm_status farm_trainer_start(const struct farm_trainer_config *config, struct farm_trainer **out,
                                    struct farm_error *err) {
    struct farm_trainer *trainer = calloc(1, sizeof *trainer);
    if (!trainer) return farm_fail(err, FARM_E_LIMIT, "no memory for the trainer");
    trainer->config = *config;
    trainer->version = config->version;
    pthread_mutex_init(&trainer->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&trainer->more, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_cond_init(&trainer->less, NULL);
    farm_checkpoint_writer_start(&trainer->writer, config->learner, config->ops, config->backend, config->net,
                                 config->version);
    enum farm_status status = make_memory(trainer, err);
    for (uint32_t r = 0; r < config->lanes->ring_count && !status; r++)
        if (farm_lanes_has(config->lanes, r)) farm_trainer_admit(trainer, r);
    for (uint32_t k = 0; k < config->shards && !status && !config->learner->admission; k++) // no ring can come
        status = must_fit(config, k, NULL, err);
    if (!status) say_what_is_missing(trainer, NULL);
    sigset_t all, before; // signals are the main thread's
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (!status && (errno = pthread_create(&trainer->thread, NULL, training, trainer)))
        status = farm_fail_errno(err, FARM_E_LIMIT, "the training thread does not start (ulimit -u)");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status) {
        destroy(trainer);
        return status;
    }
    *out = trainer;
    return FARM_OK;
}

uint64_t farm_trainer_push(struct farm_trainer *trainer, struct farm_learner_lane *lane, uint64_t start) {
    const struct farm_window window = {.lane = lane->lane,
                                       .cursor = &lane->cursor,
                                       .ring = lane->ring,
                                       .lane_id = lane->id,
                                       .shard = lane->shard,
                                       .start = start,
                                       .env_count = lane->lane->width};
    pthread_mutex_lock(&trainer->lock);
    const uint64_t ticket = trainer->config.source->ops->push(trainer->config.source, &window);
    if (trainer->config.source->ops->ready(trainer->config.source)) pthread_cond_signal(&trainer->more);
    pthread_mutex_unlock(&trainer->lock);
    return ticket;
}

void farm_trainer_admit(struct farm_trainer *trainer, uint32_t ring) {
    const struct farm_lanes *lanes = trainer->config.lanes;
    struct farm_window_source *source = trainer->config.source;
    pthread_mutex_lock(&trainer->lock);
    for (uint32_t l = 0; l < lanes->rings[ring].spec.lanes; l++) {
        const struct farm_learner_lane *lane = &lanes->lanes[lanes->first_lane[ring] + l];
        source->ops->admit(source, lane->lane, lane->id, lane->shard);
    }
    pthread_mutex_unlock(&trainer->lock);
    see_what_is_missing(trainer);
}

void farm_trainer_forget(struct farm_trainer *trainer, uint32_t ring) {
    const struct farm_lanes *lanes = trainer->config.lanes;
    struct farm_window_source *source = trainer->config.source;
    pthread_mutex_lock(&trainer->lock);
    source->ops->forget(source, &lanes->rings[ring], lanes->first_lane[ring]);
    wake_inference(trainer);
    pthread_cond_signal(&trainer->more); // what was waited for may not come any more
    for (const uint64_t taken = trainer->taken; trainer->released < taken && !trainer->over;)
        pthread_cond_wait(&trainer->less, &trainer->lock);
    pthread_mutex_unlock(&trainer->lock);
    say_what_is_missing(trainer, &lanes->rings[ring]);
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
    struct farm_error save_error;
    enum farm_status saved = farm_checkpoint_writer_save(&trainer->writer, &save_error);
    if (saved && !status) {
        if (err) *err = save_error;
        status = saved;
    }
    destroy(trainer);
    return status;
}
