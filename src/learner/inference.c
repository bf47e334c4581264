// See inference.h.
#include "learner/inference.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/time.h"

static const uint64_t NAP_NS = 50000000;
enum { NO_RING = UINT32_MAX };

struct farm_inference {
    struct farm_inference_config config;
    struct farm_trainer *trainer; // NULL in evaluation
    struct farm_stats *stats;
    struct farm_doorbells bells;
    // of the shard; room for all places of the farm
    struct farm_ring **rings;         // [ring_count]
    uint32_t *rung;                   // [ring_count]: places in `rings`
    struct farm_learner_lane **lanes; // [lane_count]
    uint32_t *first_lane;             // [ring_count] in `lanes`
    uint32_t ring_count, lane_count;
    // lanes with an unanswered step, first come first served
    struct farm_learner_lane **queue; // [room]
    uint32_t head, queued, room;
    uint32_t held; // lanes that wait with tickets; then bells.release is the source's word that lets them pass
    uint64_t rows_queued;
    struct farm_infer_rows *rows;      // [lane_count]
    struct farm_learner_lane **served; // [lane_count]: of the same index as rows
    // what another thread asks of the loop
    struct {
        pthread_mutex_t lock;
        pthread_cond_t done;
        uint64_t asked; // 1: look; also read without the lock
        uint32_t ring;
        bool join, over; // over: the loop does not run any more
        enum farm_status status;
        struct farm_error error;
    } change;
};

// ---- one turn ----

// Windows of this lane that are complete when `steps` of its steps are there: to training, or straight back to the
// actor.
static void hand_on(const struct farm_inference *inference, struct farm_learner_lane *lane, uint64_t steps) {
    const struct farm_inference_config *config = &inference->config;
    if (!inference->trainer) {
        uint64_t history = config->shape->stack - 1;
        if (steps > history) farm_lane_release(lane->lane, steps - history);
        return;
    }
    while (farm_window_ready(config->shape, &lane->cursor, steps))
        lane->ticket = farm_trainer_push(inference->trainer, lane, farm_window_take(config->shape, &lane->cursor));
}

// What no actor waits for: step `answered` is counted, and done with here.
static void finish(const struct farm_inference *inference, struct farm_learner_lane *lane) {
    const struct farm_inference_config *config = &inference->config;
    const uint64_t transitions = farm_lanes_account(config->lanes, lane, config->learner->evaluate, inference->stats);
    farm_stats_add(&inference->stats->frames, transitions * config->learner->frames_per_step);
    lane->answered++;
    hand_on(inference, lane, lane->answered);
    if (!inference->trainer) farm_learner_notify(lane->ring);
}

// Whether the lane's ticket lets it go on; if not, inference looks at the lane again when the source releases tickets.
static bool may_pass(struct farm_inference *inference, struct farm_learner_lane *lane) {
    const bool pass =
        !lane->ticket || farm_window_source_released(inference->config.source, inference->config.shard, lane->ticket);
    inference->held += !pass - lane->held;
    lane->held = !pass;
    return pass;
}

// LOCAL: takes in all steps that the bell was rung for (at most C), as far as tickets allow; they have their answers.
static void take_in_all(struct farm_inference *inference, struct farm_learner_lane *lane) {
    // In this order: no step below `produced` has a newer version.
    const uint64_t produced = farm_lane_produced(lane->lane);
    const uint64_t newest = farm_load_acquire(&inference->stats->publishes) - 1;
    for (uint32_t i = 0; i < lane->lane->steps && lane->answered != produced && may_pass(inference, lane); i++) {
        if (!farm_lanes_take_in(lane, newest, inference->stats)) return;
        farm_lane_answer(lane->lane, lane->answered);
        finish(inference, lane);
    }
}

// CENTRAL: takes in the lane's next step, if it is published, and puts the lane into the queue, unless its ticket holds
// it.
static void consider(struct farm_inference *inference, struct farm_learner_lane *lane, uint64_t now) {
    if (lane->queued) return;
    if (!lane->taken) {
        if (!farm_lanes_take_in(lane, 0, inference->stats)) return;
        lane->taken = true;
        lane->waiting_ns = now;
        // Synchronous: the window's last step is answered by the parameters that come of the window.
        if (inference->config.sync && inference->trainer) hand_on(inference, lane, lane->answered + 1);
    }
    if (!may_pass(inference, lane)) return;
    lane->queued = true;
    inference->queue[(inference->head + inference->queued++) % inference->room] = lane;
    inference->rows_queued += lane->lane->width;
}

// Looks at the lanes behind bells that have rung; at all of them, if some are held and training lets lanes pass.
static void look(struct farm_inference *inference) {
    uint32_t count = farm_doorbells_poll(&inference->bells, inference->rung);
    uint64_t now = count ? farm_now_ns() : 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t r = inference->rung[i];
        for (uint32_t l = 0; l < inference->rings[r]->spec.lanes; l++) {
            struct farm_learner_lane *lane = inference->lanes[inference->first_lane[r] + l];
            if (lane->lane->local)
                take_in_all(inference, lane);
            else
                consider(inference, lane, now);
        }
    }
    if (!inference->bells.release) return;
    const uint64_t released = farm_load_acquire(inference->bells.release);
    if (released == inference->bells.release_seen) return;
    inference->bells.release_seen = released;
    for (uint32_t i = 0; i < inference->lane_count && inference->held; i++)
        if (!inference->lanes[i]->held)
            continue;
        else if (inference->lanes[i]->lane->local)
            take_in_all(inference, inference->lanes[i]);
        else if (inference->lanes[i]->taken)
            consider(inference, inference->lanes[i], now);
}

// Takes rows from the queue's front, at most a batch; a lane that does not fit whole stays at the front with its rest.
static uint32_t take(struct farm_inference *inference) {
    uint32_t room = inference->config.learner->infer_batch_max, count = 0;
    while (room && inference->queued) {
        struct farm_learner_lane *lane = inference->queue[inference->head];
        uint32_t left = lane->lane->width - lane->env_done, part = left < room ? left : room;
        inference->rows[count] = (struct farm_infer_rows){.lane = lane->lane,
                                                          .lane_id = lane->id,
                                                          .n = lane->answered,
                                                          .env_from = lane->env_done,
                                                          .env_count = part};
        inference->served[count++] = lane;
        lane->env_done += part;
        room -= part;
        inference->rows_queued -= part;
        if (part < left) break;
        inference->head = (inference->head + 1) % inference->room;
        inference->queued--;
    }
    return count;
}

static enum farm_status serve(struct farm_inference *inference, struct farm_error *err) {
    const struct farm_inference_config *config = &inference->config;
    struct farm_stats *stats = inference->stats;
    uint32_t count = take(inference);
    enum farm_status status = config->ops->infer(config->backend, config->shard, inference->rows, count, err);
    if (status) return status;
    uint64_t now = farm_now_ns();
    for (uint32_t i = 0; i < count; i++) {
        struct farm_learner_lane *lane = inference->served[i];
        farm_stats_add(&stats->infer_rows, inference->rows[i].env_count);
        if (lane->env_done < lane->lane->width) continue;
        if (!config->ops->stores_acted) farm_lane_answer(lane->lane, lane->answered);
        farm_learner_notify(lane->ring);
        farm_stats_add(&stats->actor_wait_ns, now - lane->waiting_ns);
    }
    for (uint32_t i = 0; i < count; i++) { // what no actor waits for
        struct farm_learner_lane *lane = inference->served[i];
        if (lane->env_done < lane->lane->width) continue;
        lane->env_done = 0;
        lane->queued = lane->taken = false;
        finish(inference, lane);
    }
    farm_stats_add(&stats->infer_calls, 1);
    return FARM_OK;
}

// How long the lanes in the queue may still wait for company; 0: serve them now.
static uint64_t limit_ns(const struct farm_inference *inference) {
    const struct farm_learner_config *learner = inference->config.learner;
    if (inference->rows_queued >= learner->infer_batch_max ||
        inference->queued + inference->held == inference->lane_count)
        return 0;
    uint64_t most = (uint64_t)(learner->infer_wait_ms * 1e6);
    uint64_t waited = farm_now_ns() - inference->queue[inference->head]->waiting_ns;
    return waited < most ? most - waited : 0;
}

static bool target_reached(const struct farm_inference *inference) {
    const struct farm_learner_config *learner = inference->config.learner;
    if (learner->evaluate) return farm_load_relaxed(&learner->stats->episodes) >= learner->episodes_target;
    return learner->frames_target && farm_load_relaxed(&learner->stats->frames) >= learner->frames_target;
}

// A learner that came back: windows whose last answer its predecessor gave, and actors that it did not get to wake.
static void resume(struct farm_inference *inference) {
    for (uint32_t i = 0; i < inference->lane_count; i++)
        hand_on(inference, inference->lanes[i], inference->lanes[i]->answered);
    for (uint32_t r = 0; r < inference->ring_count; r++) farm_learner_notify(inference->rings[r]);
}

// ---- rings that come and go ----

// The shard's rings and lanes, in the order of the farm's, but for one.
static void list(struct farm_inference *inference, uint32_t without) {
    const struct farm_lanes *lanes = inference->config.lanes;
    inference->ring_count = inference->lane_count = inference->held = 0;
    for (uint32_t r = 0; r < lanes->ring_count; r++) {
        struct farm_learner_lane *first = &lanes->lanes[lanes->first_lane[r]];
        if (r == without || !farm_lanes_serves(lanes, r, inference->config.shard)) continue;
        inference->first_lane[inference->ring_count] = inference->lane_count;
        inference->rings[inference->ring_count++] = &lanes->rings[r];
        for (uint32_t l = 0; l < lanes->rings[r].spec.lanes; l++) {
            inference->lanes[inference->lane_count++] = first + l;
            inference->held += first[l].held;
        }
    }
}

// All rings but one, with bells that are looked at once more.
static enum farm_status list_with_bells(struct farm_inference *inference, uint32_t without, struct farm_error *err) {
    struct farm_doorbells bells;
    list(inference, without);
    const enum farm_status status =
        farm_doorbells_make(&bells, inference->rings, inference->ring_count, inference->bells.eventfd, err);
    if (status) return status;
    bells.release = inference->bells.release;
    bells.release_seen = inference->bells.release_seen;
    bells.call = inference->bells.call;
    farm_doorbells_free(&inference->bells);
    inference->bells = bells;
    return FARM_OK;
}

// Takes the ring's lanes out of the queue; the others keep their order.
static void unqueue(struct farm_inference *inference, const struct farm_ring *ring) {
    const uint32_t head = inference->head, count = inference->queued;
    inference->queued = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct farm_learner_lane *lane = inference->queue[(head + i) % inference->room];
        if (lane->ring == ring)
            inference->rows_queued -= lane->lane->width - lane->env_done;
        else
            inference->queue[(head + inference->queued++) % inference->room] = lane;
    }
}

static void change(struct farm_inference *inference) {
    pthread_mutex_lock(&inference->change.lock);
    const uint32_t ring = inference->change.ring;
    const bool join = inference->change.join;
    inference->change.status = list_with_bells(inference, join ? NO_RING : ring, &inference->change.error);
    if (inference->change.status)
        list(inference, join ? ring : NO_RING); // as it was: the bells are still those
    else if (!join)
        unqueue(inference, &inference->config.lanes->rings[ring]);
    farm_store_relaxed(&inference->change.asked, 0);
    pthread_cond_signal(&inference->change.done);
    pthread_mutex_unlock(&inference->change.lock);
}

// The loop may sleep: the word that it looks at is set, and this ends its sleep.
static void call(const struct farm_inference *inference) {
    const uint64_t one = 1;
    const int eventfd = inference->config.learner->shards[inference->config.shard].eventfd;
    if (write(eventfd, &one, sizeof one) < 0) return; // it looks after its nap, too
}

enum farm_status farm_inference_change(struct farm_inference *inference, uint32_t ring, bool join,
                                       struct farm_error *err) {
    pthread_mutex_lock(&inference->change.lock);
    inference->change.ring = ring;
    inference->change.join = join;
    inference->change.status = FARM_OK;
    farm_store_release(&inference->change.asked, 1);
    call(inference);
    while (farm_load_relaxed(&inference->change.asked) && !inference->change.over)
        pthread_cond_wait(&inference->change.done, &inference->change.lock);
    const bool done = !farm_load_relaxed(&inference->change.asked);
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
    const struct farm_learner_config *learner = inference->config.learner;
    resume(inference);
    farm_store_release(&inference->stats->ready, 1);
    const uint64_t nap_ns = learner->nap_ns ? learner->nap_ns : NAP_NS;
    uint64_t check_ns = farm_now_ns();
    while (!farm_load_relaxed(inference->config.stop)) {
        if (farm_load_relaxed(&inference->change.asked)) change(inference);
        look(inference);
        if (!inference->queued) {
            farm_doorbells_wait(&inference->bells, learner->spin_ns, nap_ns);
        } else {
            uint64_t patience = limit_ns(inference);
            if (patience && farm_doorbells_wait(&inference->bells, learner->spin_ns, patience)) continue;
            const enum farm_status status = serve(inference, err);
            if (status) return status;
        }
        if (target_reached(inference)) {
            farm_store_release(&inference->stats->done, 1);
            break;
        }
        if (inference->trainer && farm_now_ns() - check_ns > NAP_NS) {
            check_ns = farm_now_ns();
            if (farm_trainer_failed(inference->trainer)) break;
        }
    }
    return FARM_OK;
}

enum farm_status farm_inference_run(struct farm_inference *inference, struct farm_trainer *trainer,
                                    struct farm_error *err) {
    inference->trainer = trainer;
    const enum farm_status status = infer_until_stopped(inference, err);
    farm_store_relaxed(inference->config.stop, 1);
    return status;
}

// ---- start and end ----

enum farm_status farm_inference_make(const struct farm_inference_config *config, struct farm_inference **out,
                                     struct farm_error *err) {
    const uint32_t lanes = config->lanes->lane_count, rings = config->lanes->ring_count;
    struct farm_inference *inference = calloc(1, sizeof *inference);
    if (!inference) return farm_fail(err, FARM_E_LIMIT, "no memory for inference");
    inference->config = *config;
    inference->stats = config->learner->stats;
    inference->bells.eventfd = -1;
    pthread_mutex_init(&inference->change.lock, NULL);
    pthread_cond_init(&inference->change.done, NULL);
    inference->room = lanes;
    inference->rings = calloc(rings, sizeof *inference->rings);
    inference->rung = calloc(rings, sizeof *inference->rung);
    inference->first_lane = calloc(rings, sizeof *inference->first_lane);
    inference->lanes = calloc(lanes, sizeof *inference->lanes);
    inference->queue = calloc(lanes, sizeof *inference->queue);
    inference->rows = calloc(lanes, sizeof *inference->rows);
    inference->served = calloc(lanes, sizeof *inference->served);
    enum farm_status status = FARM_OK;
    if (!inference->rings || !inference->rung || !inference->first_lane || !inference->lanes || !inference->queue ||
        !inference->rows || !inference->served)
        status = farm_fail(err, FARM_E_LIMIT, "no memory for %u lanes", lanes);
    if (!status) list(inference, NO_RING);
    if (!status && !inference->ring_count && !config->learner->admission) // none can come
        status = farm_fail(err, FARM_E_INVALID,
                           "shard %u has no actor: more --actors, or fewer --gpus or --infer-threads", config->shard);
    if (!status)
        status = farm_doorbells_make(&inference->bells, inference->rings, inference->ring_count,
                                     config->learner->shards[config->shard].eventfd, err);
    if (status) {
        farm_inference_free(inference);
        return status;
    }
    inference->bells.call = &inference->change.asked;
    if (config->source && config->source->holds) inference->bells.release = &config->source->released[config->shard];
    *out = inference;
    return FARM_OK;
}

void farm_inference_free(struct farm_inference *inference) {
    if (!inference) return;
    farm_doorbells_free(&inference->bells);
    pthread_cond_destroy(&inference->change.done);
    pthread_mutex_destroy(&inference->change.lock);
    free(inference->rings);
    free(inference->rung);
    free(inference->first_lane);
    free(inference->lanes);
    free(inference->queue);
    free(inference->rows);
    free(inference->served);
    free(inference);
}
