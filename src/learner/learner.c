// The inference loop and the life of the learner process. See learner.h.
#include "learner/learner.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/time.h"
#include "learner/backend.h"
#include "learner/backend_library.h"
#include "learner/checkpoint.h"
#include "learner/lanes.h"
#include "learner/trainer.h"

static const uint64_t NAP_NS = 50000000;

struct learner {
    const struct farm_learner_config *config;
    struct farm_net net;
    struct farm_lanes lanes;
    struct farm_window_shape shape;
    struct farm_doorbells bells;
    const struct farm_backend_ops *ops;
    struct farm_backend *backend;
    struct farm_trainer *trainer; // NULL in evaluation
    uint32_t *rung;               // [ring_count]
    // lanes with an unanswered step, first come first served
    struct farm_learner_lane **queue; // [lane_count]
    uint32_t head, queued;
    uint64_t rows_queued;
    struct farm_infer_rows *rows;      // [lane_count]
    struct farm_learner_lane **served; // [lane_count]: of the same index as rows
};

static volatile sig_atomic_t stop_asked;

static void on_stop(int signal_number) {
    (void)signal_number;
    stop_asked = 1;
}

static void catch_stop(void) {
    struct sigaction action = {.sa_handler = on_stop};
    stop_asked = 0;
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
}

// ---- one turn of inference ----

// Puts the lanes behind bells that have rung into the queue.
static void look(struct learner *learner) {
    uint32_t count = farm_doorbells_poll(&learner->bells, learner->rung);
    uint64_t now = count ? farm_now_ns() : 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t r = learner->rung[i];
        for (uint32_t l = 0; l < learner->lanes.rings[r].spec.lanes; l++) {
            struct farm_learner_lane *lane = &learner->lanes.lanes[learner->lanes.first_lane[r] + l];
            if (lane->queued || !farm_lanes_take_in(lane, learner->config->board)) continue;
            lane->queued = true;
            lane->waiting_ns = now;
            learner->queue[(learner->head + learner->queued++) % learner->lanes.lane_count] = lane;
            learner->rows_queued += lane->lane->width;
        }
    }
}

// Takes rows from the queue's front, at most a batch; a lane that does not fit whole stays at the front with its rest.
static uint32_t take(struct learner *learner) {
    uint32_t room = learner->config->infer_batch_max, count = 0;
    while (room && learner->queued) {
        struct farm_learner_lane *lane = learner->queue[learner->head];
        uint32_t left = lane->lane->width - lane->env_done, part = left < room ? left : room;
        learner->rows[count] = (struct farm_infer_rows){.lane = lane->lane,
                                                        .lane_id = lane->id,
                                                        .n = lane->answered,
                                                        .env_from = lane->env_done,
                                                        .env_count = part};
        learner->served[count++] = lane;
        lane->env_done += part;
        room -= part;
        learner->rows_queued -= part;
        if (part < left) break;
        learner->head = (learner->head + 1) % learner->lanes.lane_count;
        learner->queued--;
    }
    return count;
}

// Windows of this lane that its newest answer has completed: to training, or straight back to the actor.
static void hand_on(struct learner *learner, struct farm_learner_lane *lane) {
    if (!learner->trainer) {
        uint64_t history = learner->shape.stack - 1;
        if (lane->answered > history) farm_lane_release(lane->lane, lane->answered - history);
        return;
    }
    while (farm_window_ready(&learner->shape, &lane->cursor, lane->answered))
        farm_trainer_push(learner->trainer, lane, farm_window_take(&learner->shape, &lane->cursor));
}

static enum farm_status serve(struct learner *learner, struct farm_error *err) {
    struct farm_board *board = learner->config->board;
    uint64_t start = farm_now_ns();
    uint32_t count = take(learner);
    enum farm_status status = learner->ops->infer(learner->backend, learner->rows, count, err);
    if (status) return status;
    uint64_t now = farm_now_ns();
    for (uint32_t i = 0; i < count; i++) {
        struct farm_learner_lane *lane = learner->served[i];
        farm_board_add(&board->infer_rows, learner->rows[i].env_count);
        if (lane->env_done < lane->lane->width) continue;
        if (!learner->ops->stores_acted) farm_lane_answer(lane->lane, lane->answered);
        farm_learner_notify(lane->ring);
        farm_board_add(&board->actor_wait_ns, now - lane->waiting_ns);
    }
    for (uint32_t i = 0; i < count; i++) { // what no actor waits for
        struct farm_learner_lane *lane = learner->served[i];
        if (lane->env_done < lane->lane->width) continue;
        farm_lanes_account(&learner->lanes, lane, learner->config->evaluate, board);
        lane->answered++;
        lane->env_done = 0;
        lane->queued = false;
        hand_on(learner, lane);
        if (!learner->trainer) farm_learner_notify(lane->ring);
    }
    farm_board_add(&board->infer_calls, 1);
    farm_board_add(&board->infer_busy_ns, farm_now_ns() - start);
    farm_store_relaxed(&board->frames, learner->config->frames_start +
                                           farm_load_relaxed(&board->agent_steps) * learner->config->frames_per_step);
    return FARM_OK;
}

// How long the lanes in the queue may still wait for company; 0: serve them now.
static uint64_t patience_ns(const struct learner *learner) {
    if (learner->rows_queued >= learner->config->infer_batch_max || learner->queued == learner->lanes.lane_count)
        return 0;
    uint64_t most = (uint64_t)(learner->config->infer_wait_ms * 1e6);
    uint64_t waited = farm_now_ns() - learner->queue[learner->head]->waiting_ns;
    return waited < most ? most - waited : 0;
}

static bool target_reached(const struct learner *learner) {
    const struct farm_learner_config *config = learner->config;
    if (config->evaluate) return farm_load_relaxed(&config->board->episodes) >= config->episodes_target;
    return config->frames_target && farm_load_relaxed(&config->board->frames) >= config->frames_target;
}

// A learner that came back: windows whose last answer its predecessor gave, and actors that it did not get to wake.
static void resume(struct learner *learner) {
    for (uint32_t i = 0; i < learner->lanes.lane_count; i++) hand_on(learner, &learner->lanes.lanes[i]);
    for (uint32_t r = 0; r < learner->lanes.ring_count; r++) farm_learner_notify(&learner->lanes.rings[r]);
}

static enum farm_status infer_until_stopped(struct learner *learner, struct farm_error *err) {
    struct farm_board *board = learner->config->board;
    resume(learner);
    farm_store_release(&board->ready, 1);
    const uint64_t nap_ns = learner->config->nap_ns ? learner->config->nap_ns : NAP_NS;
    uint64_t check_ns = farm_now_ns();
    while (!stop_asked) {
        look(learner);
        if (!learner->queued) {
            farm_doorbells_wait(&learner->bells, learner->config->spin_ns, nap_ns);
        } else {
            uint64_t patience = patience_ns(learner);
            if (patience && farm_doorbells_wait(&learner->bells, learner->config->spin_ns, patience)) continue;
            const enum farm_status status = serve(learner, err);
            if (status) return status;
        }
        if (target_reached(learner)) {
            farm_store_release(&board->done, 1);
            break;
        }
        if (learner->trainer && farm_now_ns() - check_ns > NAP_NS) {
            check_ns = farm_now_ns();
            if (farm_trainer_failed(learner->trainer)) break;
        }
    }
    return FARM_OK;
}

// ---- start and end ----

static enum farm_status check_config(const struct farm_learner_config *config, struct farm_error *err) {
    if (!config->infer_batch_max) return farm_fail(err, FARM_E_INVALID, "infer_batch_max is 0");
    if (config->io.stack != (int)config->algo.stack)
        return farm_fail(err, FARM_E_INVALID, "a network over %d frames and a recipe that stacks %u", config->io.stack,
                         config->algo.stack);
    if (!config->evaluate && (config->algo.unroll < 1 || config->algo.batch < 1))
        return farm_fail(err, FARM_E_INVALID, "unroll %u, batch %u: both must be at least 1", config->algo.unroll,
                         config->algo.batch);
    if (config->evaluate && !config->episodes_target)
        return farm_fail(err, FARM_E_INVALID, "evaluation of no episodes");
    return FARM_OK;
}

static enum farm_status check_environment(const struct learner *learner, struct farm_error *err) {
    const struct farm_env_spec *env = &learner->lanes.rings[0].spec.env;
    const struct farm_net_io *io = &learner->config->io;
    if (env->action.kind != FARM_ACTION_DISCRETE)
        return farm_fail(err, FARM_E_UNSUPPORTED, "training of multi-discrete and continuous actions is not there yet");
    size_t bytes = io->flat ? (size_t)io->flat * sizeof(float)
                            : (size_t)io->frame_channels * (size_t)io->height * (size_t)io->width;
    if (env->obs_count != 1 || farm_field_bytes(&env->obs[0]) != bytes ||
        env->obs[0].dtype != (io->flat ? FARM_F32 : FARM_U8) ||
        learner->lanes.rings[0].spec.policy_outputs != (uint32_t)io->actions)
        return farm_fail(err, FARM_E_INVALID, "the network's input or output does not fit the environment's");
    return FARM_OK;
}

static enum farm_status load(struct learner *learner, struct farm_error *err) {
    const struct farm_learner_config *config = learner->config;
    if (!config->checkpoint_load) return FARM_OK;
    struct farm_backend_state state = learner->ops->state(learner->backend);
    struct farm_checkpoint_metadata metadata;
    bool has_optimiser;
    if (config->evaluate) state.first = state.second = NULL;
    enum farm_status status =
        farm_checkpoint_load(config->checkpoint_load, &learner->net, &state, &has_optimiser, &metadata, err);
    if (status) return status;
    if (!config->evaluate && !has_optimiser)
        farm_log_warn("%s holds no state of this optimiser: it starts afresh", config->checkpoint_load);
    status = learner->ops->state_changed(learner->backend, farm_checkpoint_get_u64(&metadata, "version"),
                                         has_optimiser ? farm_checkpoint_get_u64(&metadata, "optimiser_step") : 0, err);
    farm_checkpoint_metadata_free(&metadata);
    return status;
}

// What computes: what the caller chose, or what `device` says. AUTO takes the GPU where all that it needs is there.
static enum farm_status make_backend(struct learner *learner, struct farm_error *err) {
    const struct farm_learner_config *config = learner->config;
    const struct farm_backend_config backend = {
        .learner = config, .net = &learner->net, .width_max = learner->lanes.width_max, .lanes = &learner->lanes};
    learner->ops = config->backend ? config->backend : &farm_backend_cpu;
    if (!config->backend &&
        (config->device == FARM_DEVICE_CUDA || (config->device == FARM_DEVICE_AUTO && config->cuda_library))) {
        enum farm_status status = farm_backend_library_open(config->cuda_library, &learner->ops, err);
        if (!status) status = learner->ops->create(&backend, &learner->backend, err);
        if (!status || config->device == FARM_DEVICE_CUDA) return status;
        farm_log_warn("device auto: cpu, for cuda says: %s", err->message);
        learner->ops = &farm_backend_cpu;
    }
    return learner->ops->create(&backend, &learner->backend, err);
}

static enum farm_status start(struct learner *learner, struct farm_error *err) {
    const struct farm_learner_config *config = learner->config;
    learner->shape = (struct farm_window_shape){
        .stride = config->algo.unroll, .length = config->algo.unroll + 1, .stack = config->algo.stack};
    if (config->evaluate) learner->shape.stride = learner->shape.length = 1;
    enum farm_status status = check_config(config, err);
    if (!status) status = farm_net_make(&config->net, &config->io, &learner->net, err);
    if (!status) status = farm_lanes_open(config->ring_fds, config->ring_count, &learner->shape, &learner->lanes, err);
    if (!status) status = check_environment(learner, err);
    if (status) return status;
    uint32_t lanes = learner->lanes.lane_count;
    learner->rung = calloc(config->ring_count, sizeof *learner->rung);
    learner->queue = calloc(lanes, sizeof *learner->queue);
    learner->rows = calloc(lanes, sizeof *learner->rows);
    learner->served = calloc(lanes, sizeof *learner->served);
    if (!learner->rung || !learner->queue || !learner->rows || !learner->served)
        return farm_fail(err, FARM_E_LIMIT, "no memory for %u lanes", lanes);
    status =
        farm_doorbells_make(&learner->bells, learner->lanes.ring_pointers, config->ring_count, config->eventfd, err);
    if (status) return status;
    status = make_backend(learner, err);
    if (!status) status = load(learner, err);
    if (status) return status;
    if (config->evaluate) {
        farm_lanes_set_quota(&learner->lanes, config->episodes_target);
        return FARM_OK;
    }
    struct farm_trainer_config trainer = {.learner = config,
                                          .ops = learner->ops,
                                          .backend = learner->backend,
                                          .net = &learner->net,
                                          .lanes = &learner->lanes,
                                          .shape = learner->shape};
    return farm_trainer_start(&trainer, &learner->trainer, err);
}

static void finish(struct learner *learner) {
    if (learner->backend) learner->ops->destroy(learner->backend);
    farm_doorbells_free(&learner->bells);
    farm_lanes_close(&learner->lanes);
    free(learner->rung);
    free(learner->queue);
    free(learner->rows);
    free(learner->served);
}

int farm_learner_run(const struct farm_learner_config *config, struct farm_error *err) {
    struct learner *learner = calloc(1, sizeof *learner);
    if (!learner) return farm_fail(err, FARM_E_LIMIT, "no memory for the learner"), 1;
    learner->config = config;
    catch_stop();
    enum farm_status status = start(learner, err);
    if (!status) {
        status = infer_until_stopped(learner, err);
        struct farm_error *other = status ? NULL : err; // the first error is the one to tell
        enum farm_status stopped = learner->trainer ? farm_trainer_stop(learner->trainer, other) : FARM_OK;
        if (!status) status = stopped;
    }
    finish(learner);
    free(learner);
    return status ? 1 : 0;
}
