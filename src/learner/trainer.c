// See trainer.h.
#include "learner/trainer.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/time.h"
#include "learner/checkpoint.h"

enum { CHECKPOINTS_KEPT = 3, BROKEN_UPDATES_MAX = 50, OWN_PAIRS = 8 };
static const double FIRST_CHECKPOINT_S = 20; // so that a learner that dies early has something to come back to

// A window of all W environments of a lane.
struct unit {
    struct farm_learner_lane *lane;
    uint64_t start;
    uint32_t env_taken; // environments already given to an update
};

// The units of one shard, first in first out.
struct queue {
    struct unit *units; // [capacity]
    uint32_t capacity, head, count;
    uint64_t waiting; // unrolls in them
    uint32_t share;   // of an update's unrolls
};

// What is taken off the queues together.
struct update {
    struct farm_train_unrolls *unrolls; // [batch]
    struct unit *finished;              // [batch]: whose last environments are in it
    uint32_t count, finished_count;
    double learning_rate;
};

// Where training stood when the backend had a state: what a checkpoint of it says.
struct moment {
    uint64_t version, frames, agent_steps, updates, episodes;
    double return_mean;
};

struct farm_trainer {
    struct farm_trainer_config config;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, less; // windows wait; an update has let go of its own
    bool stop, failed, over;   // over: the thread makes no more updates
    uint64_t taken, released;  // updates
    struct queue queues[FARM_LEARNER_SHARDS_MAX];
    // training thread only
    struct update updates[2], *update; // update: the one at hand; the other one may have been taken ahead
    bool ahead;
    uint64_t checkpoint_due_ns;
    struct moment copied;   // of the state that a lost device leaves
    uint64_t saved_version; // of the newest checkpoint, or what training began with
    bool saved;             // there is one of this training
    uint32_t broken;        // updates in a row whose gradient was not finite
    enum farm_status status;
    struct farm_error error;
};

// ---- checkpoints ----

static int newest_first(const struct dirent **a, const struct dirent **b) {
    return strcmp((*b)->d_name, (*a)->d_name);
}

static int is_checkpoint(const struct dirent *entry) {
    const char *dot = strrchr(entry->d_name, '.');
    return dot && strcmp(dot, ".safetensors") == 0;
}

// What a learner that was killed while it wrote has left: "<frames>.safetensors.tmp.<pid>".
static int is_half_written(const struct dirent *entry) {
    return strstr(entry->d_name, ".safetensors.tmp.") != NULL;
}

// Removes the files of the folder that `choose` takes, but for the first `kept` in falling order of their names.
static void remove_files(const char *folder, int (*choose)(const struct dirent *), int kept) {
    struct dirent **names;
    int count = scandir(folder, &names, choose, newest_first);
    for (int i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name);
        if (i >= kept) unlink(path);
        free(names[i]);
    }
    if (count >= 0) free(names);
}

static bool all_finite(const float *values, size_t count) {
    float sum = 0; // x * 0 is 0 for every finite x and NaN for every other
    for (size_t i = 0; values && i < count; i++) sum += values[i] * 0.0f;
    return sum == 0;
}

static struct moment now(const struct farm_trainer *trainer) {
    const struct farm_stats *stats = trainer->config.learner->stats;
    return (struct moment){.version = trainer->config.ops->version(trainer->config.backend),
                           .frames = farm_load_relaxed(&stats->frames),
                           .agent_steps = farm_load_relaxed(&stats->agent_steps),
                           .updates = farm_load_relaxed(&stats->updates),
                           .episodes = farm_load_relaxed(&stats->episodes),
                           .return_mean = farm_stats_get(&stats->return_mean)};
}

// Whether the state, which is of an earlier moment because the device is lost, holds what no file holds.
static bool worth_saving(const struct farm_trainer *trainer, const struct farm_backend_state *state) {
    assert(state->version == trainer->copied.version);
    if (state->version != trainer->saved_version) return true;
    farm_log_warn("no checkpoint is written: the parameters that are left, version %" PRIu64 ", are %s", state->version,
                  trainer->saved ? "those of the last one" : "those that training began with");
    return false;
}

static enum farm_status save(struct farm_trainer *trainer, struct farm_error *err) {
    const struct farm_learner_config *learner = trainer->config.learner;
    if (!learner->checkpoint_dir) return FARM_OK;
    struct farm_backend_state state = trainer->config.ops->state(trainer->config.backend);
    if (state.version == trainer->config.ops->version(trainer->config.backend))
        trainer->copied = now(trainer);
    else if (!worth_saving(trainer, &state))
        return FARM_OK;
    const struct moment *moment = &trainer->copied;
    size_t count_of = trainer->config.net->parameter_count;
    if (!all_finite(state.params, count_of) || !all_finite(state.first, count_of) ||
        !all_finite(state.second, count_of))
        return farm_fail(err, FARM_E_INVALID,
                         "training has diverged: parameters are not finite, the checkpoints before stay as they are "
                         "(a smaller --lr or --grad-norm-clip)");
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"frames", moment->frames}, {"agent_steps", moment->agent_steps},     {"updates", moment->updates},
        {"version", state.version}, {"optimiser_step", state.optimiser_step}, {"episodes", moment->episodes},
    };
    enum { NUMBERS = sizeof numbers / sizeof *numbers };
    char texts[OWN_PAIRS][32], path[4096];
    const char *pairs[FARM_CHECKPOINT_PAIRS_MAX][2];
    uint32_t count = 0;
    for (; count < NUMBERS; count++) {
        snprintf(texts[count], sizeof texts[count], "%" PRIu64, numbers[count].value);
        pairs[count][0] = numbers[count].name;
        pairs[count][1] = texts[count];
    }
    snprintf(texts[count], sizeof texts[count], "%.6g", moment->return_mean);
    pairs[count][0] = "return_mean";
    pairs[count][1] = texts[count];
    count++;
    for (uint32_t i = 0; i < learner->metadata_count && count < FARM_CHECKPOINT_PAIRS_MAX; i++, count++)
        memcpy(pairs[count], learner->metadata[i], sizeof pairs[count]);
    snprintf(path, sizeof path, "%s/%012" PRIu64 ".safetensors", learner->checkpoint_dir, moment->frames);
    enum farm_status status =
        farm_checkpoint_save(path, trainer->config.net, &state, (const char *const(*)[2])pairs, count, err);
    if (status) return farm_fail_in(err, status, "checkpoint");
    trainer->saved_version = state.version;
    trainer->saved = true;
    farm_stats_add(&learner->stats->checkpoints, 1);
    farm_store_relaxed(&learner->stats->checkpoint_frames, moment->frames);
    remove_files(learner->checkpoint_dir, is_checkpoint, CHECKPOINTS_KEPT);
    return FARM_OK;
}

static void save_when_due(struct farm_trainer *trainer) {
    double every_s = trainer->config.learner->checkpoint_every_s;
    if (every_s <= 0 || farm_now_ns() < trainer->checkpoint_due_ns) return;
    struct farm_error error;
    if (save(trainer, &error))
        farm_log_warn("%s: training goes on, the next try follows in %.0f s", error.message, every_s);
    trainer->checkpoint_due_ns = farm_now_ns() + (uint64_t)(every_s * 1e9);
}

// ---- updates ----

// Whether every shard has its share of an update.
static bool enough(const struct farm_trainer *trainer) {
    for (uint32_t k = 0; k < trainer->config.shards; k++)
        if (trainer->queues[k].waiting < trainer->queues[k].share) return false;
    return true;
}

static double learning_rate(const struct farm_trainer *trainer) {
    const struct farm_learner_config *learner = trainer->config.learner;
    return (double)farm_learning_rate_linear((float)learner->algo.lr, (float)learner->algo.lr_end,
                                             farm_load_relaxed(&learner->stats->frames), learner->frames_target);
}

// Takes a shard's share of an update off its queue, in which it waits.
static void take_share(struct queue *queue, struct update *update) {
    for (uint32_t want = queue->share; want;) {
        struct unit *unit = &queue->units[queue->head];
        uint32_t left = unit->lane->lane->width - unit->env_taken, part = left < want ? left : want;
        update->unrolls[update->count++] = (struct farm_train_unrolls){.lane = unit->lane->lane,
                                                                       .lane_id = unit->lane->id,
                                                                       .start = unit->start,
                                                                       .env_from = unit->env_taken,
                                                                       .env_count = part};
        unit->env_taken += part;
        want -= part;
        queue->waiting -= part;
        if (part == left) {
            update->finished[update->finished_count++] = *unit;
            queue->head = (queue->head + 1) % queue->capacity;
            queue->count--;
        }
    }
}

// The unrolls of one update, shard after shard; called with the lock held and enough of them waiting.
static void take(struct farm_trainer *trainer, struct update *update) {
    trainer->taken++;
    update->count = update->finished_count = 0;
    update->learning_rate = learning_rate(trainer);
    for (uint32_t k = 0; k < trainer->config.shards; k++) take_share(&trainer->queues[k], update);
}

static void show(struct farm_trainer *trainer, const struct update *update, const struct farm_train_stats *result) {
    struct farm_stats *stats = trainer->config.learner->stats;
    double rows = result->loss.weight > 0 ? result->loss.weight : 1;
    uint64_t version =
        trainer->config.ops->version(trainer->config.backend) - 1; // the one that this update started from
    for (uint32_t i = 0; i < update->count; i++) {
        const struct farm_train_unrolls *u = &update->unrolls[i];
        uint64_t acted_with = *farm_lane_version(u->lane, u->start);
        if (version > acted_with) farm_stats_add(&stats->lag_sum, (version - acted_with) * u->env_count);
        farm_stats_add(&stats->windows, u->env_count);
    }
    farm_stats_add(&stats->updates, 1);
    farm_stats_set(&stats->loss_policy, result->loss.policy / rows);
    farm_stats_set(&stats->loss_value, result->loss.baseline / rows);
    farm_stats_set(&stats->entropy, result->loss.entropy / rows);
    farm_stats_set(&stats->rho_clipped_share, result->loss.clipped / rows);
    farm_stats_set(&stats->grad_norm, result->grad_norm);
    farm_stats_set(&stats->learning_rate, update->learning_rate);
}

// Gives the steps of finished windows back to their actors.
static void release(const struct farm_trainer *trainer, const struct update *update) {
    const struct farm_window_shape *shape = &trainer->config.shape;
    for (uint32_t i = 0; i < update->finished_count; i++) {
        struct farm_learner_lane *lane = update->finished[i].lane;
        farm_window_done(shape, &lane->cursor, update->finished[i].start);
        farm_lane_release(lane->lane, farm_window_needs(shape, &lane->cursor));
        farm_learner_notify(lane->ring);
    }
}

static struct farm_train_update order_of(const struct update *update) {
    return (struct farm_train_update){
        .unrolls = update->unrolls, .count = update->count, .learning_rate = update->learning_rate};
}

// next: NULL where it has not been taken.
static void make(struct farm_trainer *trainer, const struct update *update, const struct update *next) {
    const struct farm_train_update order = order_of(update), ahead = next ? order_of(next) : order;
    struct farm_train_stats stats;
    trainer->status =
        trainer->config.ops->train(trainer->config.backend, &order, next ? &ahead : NULL, &stats, &trainer->error);
    if (trainer->status) return;
    show(trainer, update, &stats);
    if (stats.copied) trainer->copied = now(trainer);
    release(trainer, update);
    trainer->broken = isfinite(stats.grad_norm) ? 0 : trainer->broken + 1;
    if (trainer->broken == 1) farm_log_warn("the gradient is not finite: this update changes nothing");
    if (trainer->broken >= BROKEN_UPDATES_MAX)
        trainer->status = farm_fail(
            &trainer->error, FARM_E_INVALID,
            "training has diverged: %d gradients in a row were not finite (a smaller --lr or --grad-norm-clip)",
            BROKEN_UPDATES_MAX);
}

static struct update *other(struct farm_trainer *trainer) {
    return &trainer->updates[trainer->update == &trainer->updates[0]];
}

// Waits for an update, unless one was taken ahead; takes the one after it too where it waits already and the backend
// begins it. False: there is none, the end was asked for. Called with the lock held.
static bool take_next(struct farm_trainer *trainer) {
    struct farm_stats *stats = trainer->config.learner->stats;
    uint64_t start = farm_now_ns();
    while (!trainer->stop && !trainer->ahead && !enough(trainer)) pthread_cond_wait(&trainer->more, &trainer->lock);
    farm_stats_add(&stats->train_wait_ns, farm_now_ns() - start);
    if (trainer->stop) return false;
    if (trainer->ahead)
        trainer->update = other(trainer);
    else
        take(trainer, trainer->update);
    trainer->ahead = trainer->config.ops->begins_next && enough(trainer);
    if (trainer->ahead) take(trainer, other(trainer));
    return true;
}

static void *training(void *argument) {
    struct farm_trainer *trainer = argument;
    pthread_mutex_lock(&trainer->lock);
    while (!trainer->status && take_next(trainer)) {
        pthread_mutex_unlock(&trainer->lock);
        make(trainer, trainer->update, trainer->ahead ? other(trainer) : NULL);
        if (!trainer->status) save_when_due(trainer);
        pthread_mutex_lock(&trainer->lock);
        trainer->released++;
        pthread_cond_broadcast(&trainer->less);
    }
    trainer->failed = trainer->status != FARM_OK;
    trainer->over = true;
    pthread_cond_broadcast(&trainer->less);
    pthread_mutex_unlock(&trainer->lock);
    return NULL;
}

// Unrolls that can wait in all lanes of a shard together, those of one ring left out, before every actor is held back.
static uint64_t unrolls_possible(const struct farm_trainer_config *config, uint32_t shard,
                                 const struct farm_ring *without) {
    const uint64_t held = (uint64_t)config->shape.stack - 1 + config->shape.length;
    uint64_t unrolls = 0;
    for (uint32_t i = 0; i < config->lanes->lane_count; i++) {
        const struct farm_learner_lane *of = &config->lanes->lanes[i];
        if (!of->lane || of->shard != shard || of->ring == without || of->lane->steps < held) continue;
        unrolls += ((of->lane->steps - held) / config->shape.stride + 1) * of->lane->width;
    }
    return unrolls;
}

// The most units that can ever wait (a new lane holds no history of frames yet), whoever comes to which place.
static uint32_t windows_possible(const struct farm_trainer_config *config) {
    uint32_t windows = 0;
    for (uint32_t i = 0; i < config->lanes->lane_count; i++) {
        const struct farm_learner_lane *of = &config->lanes->lanes[i];
        const uint32_t steps = of->lane ? of->lane->steps : config->lanes->model.steps;
        if (steps >= config->shape.length) windows += (steps - config->shape.length) / config->shape.stride + 1;
    }
    return windows;
}

// Whether a shard's share of an update fits its rings.
static enum farm_status must_fit(const struct farm_trainer_config *config, uint32_t shard,
                                 const struct farm_ring *without, struct farm_error *err) {
    const uint32_t share = farm_learner_share(config->learner->algo.batch, config->shards, shard);
    const uint64_t possible = unrolls_possible(config, shard, without);
    if (share && possible >= (uint64_t)share + config->lanes->width_max) return FARM_OK;
    return farm_fail(err, without ? FARM_E_LIMIT : FARM_E_INVALID,
                     "an update of %u unrolls does not fit the %srings%s, which hold %" PRIu64
                     " at most: a larger --ring-steps, a smaller --batch or --unroll",
                     share, without ? "other " : "", config->shards > 1 ? " of its GPU" : "", possible);
}

static enum farm_status make_queue(const struct farm_trainer_config *config, uint32_t shard, struct queue *queue,
                                   struct farm_error *err) {
    const enum farm_status status = must_fit(config, shard, NULL, err);
    if (status) return status;
    const uint32_t windows = windows_possible(config);
    *queue = (struct queue){.capacity = windows + 1,
                            .share = farm_learner_share(config->learner->algo.batch, config->shards, shard)};
    queue->units = calloc(queue->capacity, sizeof *queue->units);
    return queue->units ? FARM_OK : farm_fail(err, FARM_E_LIMIT, "no memory for a queue of %u windows", windows);
}

static void destroy(struct farm_trainer *trainer) {
    pthread_cond_destroy(&trainer->more);
    pthread_cond_destroy(&trainer->less);
    pthread_mutex_destroy(&trainer->lock);
    for (uint32_t k = 0; k < trainer->config.shards; k++) free(trainer->queues[k].units);
    for (int k = 0; k < 2; k++) {
        free(trainer->updates[k].unrolls);
        free(trainer->updates[k].finished);
    }
    free(trainer);
}

enum farm_status farm_trainer_start(const struct farm_trainer_config *config, struct farm_trainer **out,
                                    struct farm_error *err) {
    uint32_t batch = config->learner->algo.batch;
    struct farm_trainer *trainer = calloc(1, sizeof *trainer);
    if (!trainer) return farm_fail(err, FARM_E_LIMIT, "no memory for the trainer");
    trainer->config = *config;
    if (config->learner->checkpoint_dir) remove_files(config->learner->checkpoint_dir, is_half_written, 0);
    pthread_mutex_init(&trainer->lock, NULL);
    pthread_cond_init(&trainer->more, NULL);
    pthread_cond_init(&trainer->less, NULL);
    trainer->update = &trainer->updates[0];
    trainer->copied = now(trainer);
    trainer->saved_version = trainer->copied.version;
    bool room = true;
    for (int k = 0; k < 2; k++) {
        trainer->updates[k].unrolls = calloc(batch ? batch : 1, sizeof *trainer->updates[k].unrolls);
        trainer->updates[k].finished = calloc(batch ? batch : 1, sizeof *trainer->updates[k].finished);
        room &= trainer->updates[k].unrolls && trainer->updates[k].finished;
    }
    trainer->checkpoint_due_ns =
        farm_now_ns() + (uint64_t)(fmin(config->learner->checkpoint_every_s, FIRST_CHECKPOINT_S) * 1e9);
    enum farm_status status = FARM_OK;
    if (!room) status = farm_fail(err, FARM_E_LIMIT, "no memory for an update of %u unrolls", batch);
    for (uint32_t k = 0; k < config->shards && !status; k++) status = make_queue(config, k, &trainer->queues[k], err);
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

void farm_trainer_push(struct farm_trainer *trainer, struct farm_learner_lane *lane, uint64_t start) {
    struct queue *queue = &trainer->queues[lane->shard];
    pthread_mutex_lock(&trainer->lock);
    if (queue->count == queue->capacity) abort(); // the rings bound the queue: `capacity` windows cannot be unreleased
    queue->units[(queue->head + queue->count++) % queue->capacity] = (struct unit){.lane = lane, .start = start};
    queue->waiting += lane->lane->width;
    if (enough(trainer)) pthread_cond_signal(&trainer->more);
    pthread_mutex_unlock(&trainer->lock);
}

enum farm_status farm_trainer_can_spare(const struct farm_trainer *trainer, uint32_t ring, struct farm_error *err) {
    const struct farm_lanes *lanes = trainer->config.lanes;
    return must_fit(&trainer->config, farm_lanes_shard(lanes, ring), &lanes->rings[ring], err);
}

void farm_trainer_forget(struct farm_trainer *trainer, uint32_t ring) {
    const struct farm_lanes *lanes = trainer->config.lanes;
    struct queue *queue = &trainer->queues[farm_lanes_shard(lanes, ring)];
    pthread_mutex_lock(&trainer->lock);
    const uint32_t count = queue->count;
    queue->count = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct unit *unit = &queue->units[(queue->head + i) % queue->capacity];
        if (unit->lane->ring == &lanes->rings[ring])
            queue->waiting -= unit->lane->lane->width - unit->env_taken;
        else
            queue->units[(queue->head + queue->count++) % queue->capacity] = *unit;
    }
    for (const uint64_t taken = trainer->taken; trainer->released < taken && !trainer->over;)
        pthread_cond_wait(&trainer->less, &trainer->lock);
    pthread_mutex_unlock(&trainer->lock);
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
    enum farm_status saved = save(trainer, &save_error);
    if (saved && !status) {
        if (err) *err = save_error;
        status = saved;
    }
    destroy(trainer);
    return status;
}
