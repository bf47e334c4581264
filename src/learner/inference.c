// See inference.h.
#include "learner/inference.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "base/time.h"

static const uint64_t NAP_NS = 50000000;
enum { NO_RING = UINT32_MAX };

struct farm_inference {
    struct farm_learner_parts *parts;
    uint32_t shard;
    pthread_t thread; // for all but shard 0, which has the caller's
    bool started;
    enum farm_status status;
    struct farm_error error;
    struct farm_stats *stats;
    struct farm_doorbells bells;
    struct farm_ring **rings; // [ring_count] of the shard; room for all places
    uint32_t *rung;           // [ring_count] indices in `rings`
    uint32_t ring_count, lane_count;
    struct farm_intake_lane **queue; // [room], a circle: lanes with an unanswered step, first come first served
    uint32_t head, queued, room;
    uint64_t rows_queued;
    uint32_t held;                 // lanes whose tickets are not released
    uint32_t next;                 // deterministic: the lane of each ring that is queued next
    struct farm_policy_rows *rows; // [room] of one batch
    struct {                       // request of another thread (farm_inference_change)
        pthread_mutex_t lock;
        pthread_cond_t done;
        uint64_t pending; // 1: a request is there; also read without the lock
        uint32_t ring;
        bool join, over; // over: the loop has ended
        enum farm_status status;
        struct farm_error error;
    } change;
};

static struct farm_intake_lane *lanes_of(const struct farm_inference *inference, const struct farm_ring *ring) {
    const struct farm_lanes *lanes = &inference->parts->lanes;
    return &lanes->lanes[lanes->first_lane[ring - lanes->rings]];
}

// ---- one turn ----

// Windows of the lane that are complete with `steps` steps go to training; without it the steps go back to the actor. A
// replay reads the answer to a window's last step too, which a LOCAL lane has with the next step.
static void push_windows(const struct farm_inference *inference, struct farm_intake_lane *lane, uint64_t steps) {
    const struct farm_window_shape *shape = &inference->parts->plan.shape;
    const uint64_t history = shape->stack - 1;
    if (!inference->parts->trainer && steps > history) farm_lane_release(lane->lane, steps - history);
    if (inference->parts->plan.replay && lane->lane->local && steps) steps--;
    while (inference->parts->trainer && farm_window_ready(shape, &lane->cursor, steps))
        lane->ticket = farm_trainer_push(inference->parts->trainer, lane, farm_window_take(shape, &lane->cursor));
}

// Counts step `answered`. No actor waits for this.
static void account_step(const struct farm_inference *inference, struct farm_intake_lane *lane) {
    const struct farm_learner_config *learner = inference->parts->config;
    const uint64_t transitions = farm_lanes_account(&inference->parts->lanes, lane, inference->stats);
    farm_stats_add(&inference->stats->frames, transitions * learner->frames_per_step);
    lane->answered++;
    push_windows(inference, lane, lane->answered);
    if (!inference->parts->trainer) farm_learner_notify(lane->ring);
}

// Whether the lane's ticket is released. If not, inference looks at the lane again when the source releases tickets.
static bool check_ticket(struct farm_inference *inference, struct farm_intake_lane *lane) {
    const bool released =
        !lane->ticket || farm_window_source_released(inference->parts->source, inference->shard, lane->ticket);
    inference->held += !released - lane->held;
    lane->held = !released;
    return released;
}

// LOCAL: the actor may answer all steps, or, if tickets hold lanes, those before the last one of the window that the
// lane's steps belong to, and `ahead` more.
static void grant_steps(struct farm_inference *inference, struct farm_intake_lane *lane) {
    const struct farm_window_source *source = inference->parts->source;
    const uint64_t steps =
        source && source->holds ? lane->cursor.next + source->shape.length - 1 + source->ahead : UINT64_MAX;
    if (steps == lane->granted) return;
    lane->granted = steps;
    farm_lane_grant(lane->lane, steps);
    farm_learner_notify(lane->ring);
}

// Takes in the lane's next step; false: it is not published. newest: farm_lanes_take_in's.
static bool take_step(struct farm_inference *inference, struct farm_intake_lane *lane, uint64_t newest) {
    if (!farm_lanes_take_in(lane, newest, inference->stats)) return false;
    lane->taken = true;
    // Synchronous: a window's last step is answered with the parameters that the window gives.
    if (inference->parts->plan.sync && inference->parts->trainer) push_windows(inference, lane, lane->answered + 1);
    return true;
}

static void count_step(struct farm_inference *inference, struct farm_intake_lane *lane) {
    lane->taken = false;
    farm_lane_answer(lane->lane, lane->answered);
    account_step(inference, lane);
}

// LOCAL: takes in all published steps (at most C) and grants further ones, as far as tickets allow. Deterministic:
// takes in one, which a wave counts.
static void take_in_local(struct farm_inference *inference, struct farm_intake_lane *lane) {
    // In this order: no step below `produced` has a newer version.
    const uint64_t produced = farm_lane_produced(lane->lane);
    const uint64_t newest = farm_load_acquire(&inference->stats->publishes) - 1;
    for (uint32_t i = 0; i < 2 * lane->lane->steps && check_ticket(inference, lane); i++) {
        if (lane->taken && inference->parts->config->deterministic.on) return;
        if (lane->taken) {
            count_step(inference, lane);
            continue;
        }
        grant_steps(inference, lane);
        if (lane->answered == produced || !take_step(inference, lane, newest)) return;
    }
}

static void queue_lane(struct farm_inference *inference, struct farm_intake_lane *lane) {
    lane->queued = true;
    inference->queue[(inference->head + inference->queued++) % inference->room] = lane;
    inference->rows_queued += lane->lane->width;
}

// Deterministic: when the queue is empty, one lane of each ring in the rings' order, as soon as all of them can be
// answered (LOCAL: counted); then the rings' next lanes. So batches, which a full one cuts, and sums do not depend on
// the actors' timing. Returns whether steps were counted.
static bool queue_wave(struct farm_inference *inference) {
    for (uint32_t r = 0; r < inference->ring_count; r++) {
        const struct farm_intake_lane *lane = lanes_of(inference, inference->rings[r]) + inference->next;
        if (inference->queued || !lane->taken || lane->held) return false;
    }
    for (uint32_t r = 0; r < inference->ring_count; r++) {
        struct farm_intake_lane *lane = lanes_of(inference, inference->rings[r]) + inference->next;
        if (!lane->lane->local) {
            queue_lane(inference, lane);
            continue;
        }
        count_step(inference, lane);
        take_in_local(inference, lane);
    }
    inference->next = (inference->next + 1) % inference->parts->lanes.model.lanes;
    return !inference->queued && inference->ring_count;
}

// CENTRAL: takes in the lane's next step, if it is published, and queues the lane unless its ticket holds it.
static void take_in_central(struct farm_inference *inference, struct farm_intake_lane *lane, uint64_t now) {
    if (lane->queued) return;
    if (!lane->taken) {
        if (!take_step(inference, lane, 0)) return;
        lane->waiting_ns = now;
    }
    if (check_ticket(inference, lane) && !inference->parts->config->deterministic.on) queue_lane(inference, lane);
}

static void take_in_ring(struct farm_inference *inference, const struct farm_ring *ring, uint64_t now, bool held_only) {
    struct farm_intake_lane *first = lanes_of(inference, ring);
    for (struct farm_intake_lane *lane = first; lane < first + ring->spec.lanes; lane++) {
        if (held_only && !lane->held) continue;
        if (lane->lane->local)
            take_in_local(inference, lane);
        else if (!held_only || lane->taken)
            take_in_central(inference, lane, now);
    }
}

// Takes in steps behind bells that have rung, and those of held lanes if the source has released tickets.
static void take_in_steps(struct farm_inference *inference) {
    const uint32_t count = farm_doorbells_poll(&inference->bells, inference->rung);
    const uint64_t now = count ? farm_now_ns() : 0;
    for (uint32_t i = 0; i < count; i++) take_in_ring(inference, inference->rings[inference->rung[i]], now, false);
    if (!inference->bells.release) return;
    const uint64_t released = farm_load_acquire(inference->bells.release);
    if (released == inference->bells.release_seen) return;
    inference->bells.release_seen = released;
    for (uint32_t r = 0; r < inference->ring_count && inference->held; r++)
        take_in_ring(inference, inference->rings[r], now, true);
}

// Fills a batch from the queue's front. A lane that does not fit whole stays at the front.
static uint32_t fill_batch(struct farm_inference *inference) {
    uint32_t room = inference->parts->config->inference.batch_max, count = 0;
    while (room && inference->queued) {
        struct farm_intake_lane *lane = inference->queue[inference->head];
        const uint32_t left = lane->lane->width - lane->env_done, part = left < room ? left : room;
        inference->rows[count++] = (struct farm_policy_rows){.lane = lane->lane,
                                                             .lane_id = lane->id,
                                                             .n = lane->answered,
                                                             .env_from = lane->env_done,
                                                             .env_count = part};
        lane->env_done += part;
        room -= part;
        inference->rows_queued -= part;
        if (part < left) break;
        inference->head = (inference->head + 1) % inference->room;
        inference->queued--;
    }
    return count;
}

// Once for an actor's neighbouring lanes, whose answers are all stored: it may run at once in this thread's place.
static void wake_actors(struct farm_inference *inference, uint32_t count) {
    struct farm_intake_lane *lanes = inference->parts->lanes.lanes, *last = NULL;
    for (uint32_t i = 0; i < count; i++) {
        struct farm_intake_lane *lane = &lanes[inference->rows[i].lane_id];
        if (lane->env_done < lane->lane->width || (last && lane->ring == last->ring)) continue;
        farm_learner_notify(lane->ring);
        last = lane;
    }
}

static enum farm_status answer_batch(struct farm_inference *inference, struct farm_error *err) {
    struct farm_learner_parts *parts = inference->parts;
    struct farm_stats *stats = inference->stats;
    const uint32_t count = fill_batch(inference);
    const enum farm_status status =
        parts->backend ? parts->ops->infer(parts->backend, inference->shard, inference->rows, count, err)
                       : farm_policy_answer(parts->policies[inference->shard], inference->rows, count, err);
    if (status) return status;
    const uint64_t now = farm_now_ns();
    for (uint32_t i = 0; i < count; i++) {
        struct farm_intake_lane *lane = &parts->lanes.lanes[inference->rows[i].lane_id];
        farm_stats_add(&stats->infer_rows, inference->rows[i].env_count);
        if (lane->env_done < lane->lane->width) continue;
        if (!parts->ops->stores_acted) farm_lane_answer(lane->lane, lane->answered);
        farm_stats_add(&stats->actor_wait_ns, now - lane->waiting_ns);
    }
    wake_actors(inference, count);
    farm_stats_add(&stats->infer_calls, 1); // before the push that may complete a deterministic round
    for (uint32_t i = 0; i < count; i++) {
        struct farm_intake_lane *lane = &parts->lanes.lanes[inference->rows[i].lane_id];
        if (lane->env_done < lane->lane->width) continue;
        lane->env_done = 0;
        lane->queued = lane->taken = false;
        account_step(inference, lane);
    }
    return FARM_OK;
}

// How long the queued lanes may still wait for others to share their batch; 0: not at all.
static uint64_t batch_wait_ns(const struct farm_inference *inference) {
    const struct farm_learner_config *learner = inference->parts->config;
    if (inference->rows_queued >= learner->inference.batch_max || learner->deterministic.on ||
        inference->queued + inference->held == inference->lane_count)
        return 0;
    const uint64_t most = (uint64_t)(learner->inference.wait_ms * 1e6);
    const uint64_t waited = farm_now_ns() - inference->queue[inference->head]->waiting_ns;
    return waited < most ? most - waited : 0;
}

static bool target_reached(const struct farm_inference *inference) {
    const struct farm_learner_config *learner = inference->parts->config;
    const uint64_t quota = inference->parts->lanes.quota;
    if (quota) return farm_load_relaxed(&learner->stats->episodes) >= quota;
    return !learner->deterministic.on && learner->target.frames &&
           farm_load_relaxed(&learner->stats->frames) >= learner->target.frames;
}

// Synchronous: a window's last step was answered because the window's iteration was over. Training no longer holds that
// window, even if `consumed` is still 0 because of the stack.
static void release_trained(const struct farm_inference *inference, struct farm_intake_lane *lane) {
    const struct farm_window_shape *shape = &inference->parts->plan.shape;
    while (inference->parts->trainer && inference->parts->plan.sync &&
           farm_window_ready(shape, &lane->cursor, lane->answered)) {
        const struct farm_window window = {.lane = lane->lane,
                                           .ring = lane->ring,
                                           .cursor = &lane->cursor,
                                           .start = farm_window_take(shape, &lane->cursor)};
        farm_window_release(shape, &window);
    }
}

// What a dead learner may have left undone: windows whose last answer it gave, and actors that it did not wake.
static void resume_lanes(struct farm_inference *inference) {
    for (uint32_t r = 0; r < inference->ring_count; r++) {
        struct farm_intake_lane *lanes = lanes_of(inference, inference->rings[r]);
        for (uint32_t l = 0; l < inference->rings[r]->spec.lanes; l++) {
            release_trained(inference, &lanes[l]);
            push_windows(inference, &lanes[l], lanes[l].answered);
        }
    }
    for (uint32_t r = 0; r < inference->ring_count; r++) farm_learner_notify(inference->rings[r]);
}

// ---- rings that join and leave ----

// Lists the shard's rings in the farm's order, without one of them.
static void list_rings(struct farm_inference *inference, uint32_t without) {
    const struct farm_lanes *lanes = &inference->parts->lanes;
    inference->ring_count = inference->lane_count = inference->held = 0;
    for (uint32_t r = 0; r < lanes->ring_count; r++) {
        if (r == without || !farm_lanes_serves(lanes, r, inference->shard)) continue;
        inference->rings[inference->ring_count++] = &lanes->rings[r];
        inference->lane_count += lanes->rings[r].spec.lanes;
        for (uint32_t l = 0; l < lanes->rings[r].spec.lanes; l++)
            inference->held += lanes_of(inference, &lanes->rings[r])[l].held;
    }
}

// The same with new doorbells, all of which are looked at once.
static enum farm_status list_with_bells(struct farm_inference *inference, uint32_t without, struct farm_error *err) {
    const struct farm_doorbells before = inference->bells;
    struct farm_doorbells bells;
    list_rings(inference, without);
    const enum farm_status status =
        farm_doorbells_make(&bells, inference->rings, inference->ring_count, before.eventfd, err);
    if (status) return status;
    bells.release = before.release;
    bells.release_seen = before.release_seen;
    bells.call = before.call;
    farm_doorbells_free(&inference->bells);
    inference->bells = bells;
    return FARM_OK;
}

// Takes the ring's lanes out of the queue; the others keep their order.
static void unqueue_ring(struct farm_inference *inference, const struct farm_ring *ring) {
    const uint32_t head = inference->head, count = inference->queued;
    inference->queued = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct farm_intake_lane *lane = inference->queue[(head + i) % inference->room];
        if (lane->ring == ring)
            inference->rows_queued -= lane->lane->width - lane->env_done;
        else
            inference->queue[(head + inference->queued++) % inference->room] = lane;
    }
}

static void carry_out_change(struct farm_inference *inference) {
    pthread_mutex_lock(&inference->change.lock);
    const uint32_t ring = inference->change.ring;
    const bool join = inference->change.join;
    inference->change.status = list_with_bells(inference, join ? NO_RING : ring, &inference->change.error);
    if (inference->change.status)
        list_rings(inference, join ? ring : NO_RING); // as before; the doorbells are unchanged
    else if (!join)
        unqueue_ring(inference, &inference->parts->lanes.rings[ring]);
    farm_store_relaxed(&inference->change.pending, 0);
    pthread_cond_signal(&inference->change.done);
    pthread_mutex_unlock(&inference->change.lock);
}

enum farm_status farm_inference_change(struct farm_inference *inference, uint32_t ring, bool join,
                                       struct farm_error *err) {
    const uint64_t one = 1;
    pthread_mutex_lock(&inference->change.lock);
    inference->change.ring = ring;
    inference->change.join = join;
    inference->change.status = FARM_OK;
    farm_store_release(&inference->change.pending, 1); // before the write, which ends the loop's sleep
    (void)!write(inference->parts->config->shards[inference->shard].eventfd, &one, sizeof one);
    while (farm_load_relaxed(&inference->change.pending) && !inference->change.over)
        pthread_cond_wait(&inference->change.done, &inference->change.lock);
    const bool done = !farm_load_relaxed(&inference->change.pending);
    const enum farm_status status = inference->change.status;
    if (done && status) *err = inference->change.error;
    pthread_mutex_unlock(&inference->change.lock);
    return done ? status : farm_fail(err, FARM_E_DEAD, "the learner ends");
}

void farm_inference_over(struct farm_inference *inference) {
    pthread_mutex_lock(&inference->change.lock);
    inference->change.over = true;
    pthread_cond_signal(&inference->change.done);
    pthread_mutex_unlock(&inference->change.lock);
}

// ---- the loop ----

static enum farm_status infer_until_stopped(struct farm_inference *inference, struct farm_error *err) {
    const struct farm_learner_config *learner = inference->parts->config;
    const uint64_t nap_ns = learner->inference.nap_ns ? learner->inference.nap_ns : NAP_NS;
    uint64_t check_ns = farm_now_ns();
    resume_lanes(inference);
    farm_store_release(&inference->stats->ready, 1);
    while (!farm_load_relaxed(inference->parts->stop)) {
        if (farm_load_relaxed(&inference->change.pending)) carry_out_change(inference);
        take_in_steps(inference);
        while (learner->deterministic.on && queue_wave(inference)) {
        }
        if (!inference->queued) {
            farm_doorbells_wait(&inference->bells, learner->inference.spin_ns, nap_ns);
        } else {
            const uint64_t wait_ns = batch_wait_ns(inference);
            if (wait_ns && farm_doorbells_wait(&inference->bells, learner->inference.spin_ns, wait_ns)) continue;
            const enum farm_status status = answer_batch(inference, err);
            if (status) return status;
        }
        if (target_reached(inference)) {
            farm_store_release(&inference->stats->done, 1);
            break;
        }
        if (inference->parts->trainer && farm_now_ns() - check_ns > NAP_NS) {
            check_ns = farm_now_ns();
            if (farm_trainer_failed(inference->parts->trainer)) break;
        }
    }
    return FARM_OK;
}

static void *run_shard(void *argument) {
    struct farm_inference *inference = argument;
    const struct farm_bitmap *cpus = inference->parts->config->shards[inference->shard].cpus;
    struct farm_error error;
    if (cpus && farm_bitmap_pin(cpus, &error)) farm_log_warn("could not pin an inference thread: %s", error.message);
    inference->status = infer_until_stopped(inference, &inference->error);
    farm_store_relaxed(inference->parts->stop, 1);
    return NULL;
}

enum farm_status farm_inference_run(struct farm_learner_parts *parts, struct farm_error *err) {
    struct farm_inference *const *loops = parts->loops;
    const uint32_t count = parts->shards;
    enum farm_status status = FARM_OK;
    for (uint32_t k = 1; k < count && !status; k++) {
        if ((errno = farm_thread_start(&loops[k]->thread, "infer", k, run_shard, loops[k])))
            status = farm_fail_errno(err, FARM_E_LIMIT, "an inference thread does not start (ulimit -u, ulimit -v)");
        loops[k]->started = !status;
    }
    if (status) farm_store_relaxed(parts->stop, 1);
    if (!status) run_shard(loops[0]);
    for (uint32_t k = 0; k < count; k++) {
        if (loops[k]->started) pthread_join(loops[k]->thread, NULL);
        if (status || !loops[k]->status) continue;
        status = loops[k]->status;
        *err = loops[k]->error;
    }
    return status;
}

// ---- start and end ----

static void free_loop(struct farm_inference *inference) {
    if (!inference) return;
    farm_doorbells_free(&inference->bells);
    pthread_cond_destroy(&inference->change.done);
    pthread_mutex_destroy(&inference->change.lock);
    free(inference->rings);
    free(inference->rung);
    free(inference->queue);
    free(inference->rows);
    free(inference);
}

static enum farm_status make_loop(struct farm_learner_parts *parts, uint32_t shard, struct farm_inference **out,
                                  struct farm_error *err) {
    const uint32_t lanes = parts->lanes.lane_count, rings = parts->lanes.ring_count;
    const int eventfd = parts->config->shards[shard].eventfd;
    enum farm_status status = FARM_OK;
    struct farm_inference *inference = calloc(1, sizeof *inference);
    if (!inference) return farm_fail(err, FARM_E_LIMIT, "no memory for inference");
    inference->parts = parts;
    inference->shard = shard;
    inference->stats = parts->config->stats;
    inference->bells.eventfd = -1;
    pthread_mutex_init(&inference->change.lock, NULL);
    pthread_cond_init(&inference->change.done, NULL);
    inference->room = lanes;
    inference->rings = calloc(rings, sizeof *inference->rings);
    inference->rung = calloc(rings, sizeof *inference->rung);
    inference->queue = calloc(lanes, sizeof *inference->queue);
    inference->rows = calloc(lanes, sizeof *inference->rows);
    if (!inference->rings || !inference->rung || !inference->queue || !inference->rows)
        status = farm_fail(err, FARM_E_LIMIT, "no memory for %u lanes", lanes);
    if (!status) list_rings(inference, NO_RING);
    if (!status && !inference->ring_count && parts->config->rings.admission < 0) // none can join
        status = farm_fail(err, FARM_E_INVALID,
                           "shard %u has no actor: more --actors, or fewer --gpus or --infer-threads", shard);
    if (!status) status = farm_doorbells_make(&inference->bells, inference->rings, inference->ring_count, eventfd, err);
    if (status) {
        free_loop(inference);
        return status;
    }
    inference->bells.call = &inference->change.pending;
    if (parts->source && parts->source->holds) inference->bells.release = &parts->source->released[shard];
    *out = inference;
    return FARM_OK;
}

enum farm_status farm_inference_make(struct farm_learner_parts *parts, struct farm_error *err) {
    enum farm_status status = FARM_OK;
    for (uint32_t k = 0; k < parts->shards && !status; k++) status = make_loop(parts, k, &parts->loops[k], err);
    return status;
}

void farm_inference_free(struct farm_learner_parts *parts) {
    for (uint32_t k = 0; k < parts->shards; k++) free_loop(parts->loops[k]);
}
