// A learner without its loop, for tests and benchmarks: the farm's rings, their lanes and a backend in one process, by
// one thread. The caller acts (rings.h) and says when the learner takes in, answers and trains. A function that returns
// no status ends the process on an error (rings.h).
#ifndef TESTS_SUPPORT_RIG_H
#define TESTS_SUPPORT_RIG_H

#include "algo/vtrace.h"
#include "intake/lanes.h"
#include "learner/backend.h"
#include "learner/learner.h"
#include "nets.h"
#include "rings.h"

enum { RIG_RINGS = 4, RIG_LANES = 32, RIG_UNITS = 256 };

struct rig {
    void *context; // the caller's
    // The caller's, before rig_open.
    struct farm_learner_config learner; // complete but for its figures and rings
    uint32_t shards;                    // 0: one; several have the rings in order
    uint32_t batch;                     // environments of an iteration; 0: the algorithm's
    uint32_t passes, epochs;            // over an iteration, in two orders; passes 0: one pass over all
    double learning_rate, schedule;     // each pass's
    bool huge;                          // rings of huge pages

    struct farm_ring made[RIG_RINGS], actors[RIG_RINGS]; // the supervisor's and the actors'
    uint32_t rings;
    struct farm_lanes lanes;
    struct farm_stats stats;
    struct farm_algo_plan plan;
    struct farm_net net;
    struct farm_head head;
    const struct farm_backend_ops *ops;
    struct farm_backend *backend; // NULL: none
    struct farm_error err;
    uint64_t n, trained, version;      // steps answered, steps trained on, newest published
    uint64_t passes_made;              // by which the plan's sets are copied
    uint32_t slot;                     // the next pass's
    bool begun;                        // its iteration is begun
    struct farm_pass_stats pass_stats; // the newest update's
};

// ---- settings ----

// V-trace with Adam over an "mlp" of flat observations, f32, one training thread, anywhere. The
// caller adds seed and batch sizes.
static inline struct farm_learner_config test_learner_config(int flat, int actions, uint32_t unroll) {
    return (struct farm_learner_config){.rings = {.admission = -1},
                                        .net = *net_spec("mlp"),
                                        .io = {.stack = 1, .flat = flat, .actions = actions},
                                        .algo = {.unroll = unroll,
                                                 .stack = 1,
                                                 .algo = &farm_vtrace,
                                                 .option = {0.9f, 0.01f, 0.5f, 1, 1, 1, 1, 1}, // as in vtrace.h
                                                 .reward_scale = 1,
                                                 .optimiser = FARM_OPTIMISER_ADAM,
                                                 .lr = 0.001,
                                                 .lr_end = 0.001,
                                                 .adam_beta1 = 0.9,
                                                 .adam_beta2 = 0.999,
                                                 .adam_epsilon = 1e-8},
                                        .arithmetic = {.precision = FARM_PRECISION_F32},
                                        .training = {.threads = 1},
                                        .deterministic = {.sample_fd = -1},
                                        .memory_node = -1,
                                        .frames_per_step = 1};
}

// The same over `stack` frames of side x side pixels, with a small convolutional net.
static inline void test_learner_frames(struct farm_learner_config *config, struct farm_ring_spec *spec, int side,
                                       uint32_t stack) {
    const uint32_t pixels = (uint32_t)side;
    spec->env.obs[0] = (struct farm_field_spec){.name = "obs", .dtype = FARM_U8, .rank = 2, .dims = {pixels, pixels}};
    config->net = *net_spec("conv 8@4x4/2, dense 16 tanh");
    config->io = (struct farm_net_io){
        .frame_channels = 1, .height = side, .width = side, .stack = (int)stack, .actions = config->io.actions};
    config->algo.stack = stack;
}

// And with a second convolution.
static inline void test_learner_deeper_frames(struct farm_learner_config *config, struct farm_ring_spec *spec, int side,
                                              uint32_t stack) {
    test_learner_frames(config, spec, side, stack);
    config->net = *net_spec("conv 8@4x4/2, 8@3x3/1, dense 16");
}

// ---- opening ----

// What follows from the settings; again after the caller has changed them.
static inline void rig_plan(struct rig *rig) {
    must(farm_algo_plan_make(&rig->learner.algo, &rig->plan, &rig->err), &rig->err);
    must(farm_net_make(&rig->learner.net, &rig->learner.io, &rig->net, &rig->err), &rig->err);
    must(farm_head_make(&rig->made[0].spec.env, rig->learner.head, &rig->head, &rig->err), &rig->err);
    if (!rig->batch) rig->batch = rig->learner.algo.batch;
    rig->plan.minibatch = 0; // all
    if (!rig->passes) return;
    rig->plan.epochs = rig->epochs;
    rig->plan.minibatch = (farm_algo_units(&rig->plan, rig->batch) + rig->passes - 1) / rig->passes;
}

// The learner's side of the rings; again after rig_close_learner.
static inline void rig_open_lanes(struct rig *rig) {
    int fds[RIG_RINGS][2];
    uint32_t ring_shard[RIG_RINGS];
    for (uint32_t r = 0; r < rig->rings; r++) {
        lend_ring(&rig->made[r], fds[r]);
        ring_shard[r] = r * rig->shards / rig->rings;
    }
    must(farm_lanes_open(fds, rig->rings, &rig->plan.shape, NULL, &rig->lanes, &rig->err), &rig->err);
    farm_lanes_divide(&rig->lanes, ring_shard);
}

// Everything but the backend.
static inline void rig_open(struct rig *rig, struct farm_ring_spec spec, uint32_t rings) {
    rig->rings = rings;
    rig->shards = rig->shards ? rig->shards : 1;
    rig->learner.stats = &rig->stats;
    for (uint32_t r = 0; r < rings; r++) {
        rig->made[r] = make_ring(spec, r, rig->huge);
        rig->actors[r] = open_view(&rig->made[r], FARM_RING_ACTOR);
    }
    rig_plan(rig);
    rig_open_lanes(rig);
}

// Writable descriptors of the `up` segments, for a device that registers no read-only memory.
static inline void rig_lend_writable(struct rig *rig) {
    for (uint32_t r = 0; r < rig->rings; r++) farm_lanes_lend_writable(&rig->lanes, r, dup(rig->made[r].up.fd));
}

static inline enum farm_status rig_open_backend(struct rig *rig, const struct farm_backend_ops *ops) {
    const struct farm_backend_config config = {.learner = &rig->learner,
                                               .plan = &rig->plan,
                                               .net = &rig->net,
                                               .head = rig->head,
                                               .width_max = rig->lanes.width_max,
                                               .columns_max = rig->learner.algo.batch,
                                               .lanes = &rig->lanes,
                                               .shards = ops->shards ? rig->shards : 1};
    rig->ops = ops;
    return ops->create(&config, &rig->backend, &rig->err);
}

static inline void rig_close_backend(struct rig *rig) {
    if (rig->backend) rig->ops->destroy(rig->backend);
    rig->backend = NULL;
}

static inline void rig_close_learner(struct rig *rig) {
    rig_close_backend(rig);
    farm_lanes_close(&rig->lanes);
}

static inline void rig_close(struct rig *rig) {
    rig_close_learner(rig);
    for (uint32_t r = 0; r < rig->rings; r++) {
        farm_ring_close(&rig->actors[r]);
        farm_ring_close(&rig->made[r]);
    }
}

// ---- acting ----

// The actor's side of a lane, the learner's, and the learner's as a backend gets it.
static inline struct farm_lane *rig_actor(struct rig *rig, uint32_t id) {
    const uint32_t each = rig->made[0].spec.lanes;
    return &rig->actors[id / each].lanes[id % each];
}

static inline struct farm_lane *rig_lane(const struct rig *rig, uint32_t id) {
    return rig->lanes.lanes[id].lane;
}

static inline void rig_take_in(struct rig *rig) {
    for (uint32_t id = 0; id < rig->lanes.lane_count; id++)
        must_hold(farm_lanes_take_in(&rig->lanes.lanes[id], 0, &rig->stats), "a step cannot be taken in");
}

// Inference of step n of all lanes in batches of at most infer_batch_max of one shard, splitting lanes that do not fit.
static inline enum farm_status rig_infer(struct rig *rig) {
    struct farm_policy_rows rows[RIG_LANES];
    uint32_t id = 0, env = 0;
    while (id < rig->lanes.lane_count) {
        uint32_t room = rig->learner.inference.batch_max, count = 0;
        const uint32_t shard = rig->lanes.lanes[id].shard;
        while (room && id < rig->lanes.lane_count && rig->lanes.lanes[id].shard == shard) {
            struct farm_lane *lane = rig_lane(rig, id);
            const uint32_t left = lane->width - env, part = left < room ? left : room;
            rows[count++] =
                (struct farm_policy_rows){.lane = lane, .lane_id = id, .n = rig->n, .env_from = env, .env_count = part};
            room -= part;
            env = (env + part) % lane->width;
            id += env == 0;
        }
        const enum farm_status status = rig->ops->infer(rig->backend, shard, rows, count, &rig->err);
        if (status) return status;
        for (uint32_t i = 0; i < count && rig->ops->stores_acted; i++) // unless the step was answered before
            must_hold(farm_lane_acted(rows[i].lane) > rig->n ||
                          rows[i].env_from + rows[i].env_count < rows[i].lane->width,
                      "a whole answer is not stored");
    }
    return FARM_OK;
}

// Inference and the store of `acted`.
static inline enum farm_status rig_answer(struct rig *rig) {
    for (uint32_t id = 0; id < rig->lanes.lane_count; id++)
        must_hold(farm_lane_acted(rig_lane(rig, id)) == rig->n, "a step is answered early");
    const enum farm_status status = rig_infer(rig);
    if (status) return status;
    for (uint32_t id = 0; id < rig->lanes.lane_count; id++) {
        if (!rig->ops->stores_acted) farm_lane_answer(rig_lane(rig, id), rig->n);
        must_hold(farm_lane_acted(rig_lane(rig, id)) == rig->n + 1, "a step has no answer");
        rig->lanes.lanes[id].answered++;
    }
    rig->n++;
    return FARM_OK;
}

// ---- training ----

static inline struct farm_window rig_window(const struct rig *rig, uint32_t id, uint64_t start, uint32_t env_count) {
    return (struct farm_window){.lane = rig_lane(rig, id), .lane_id = id, .start = start, .env_count = env_count};
}

// Begins the iteration of the windows from `start` on, of each shard's first environments; a replay's differ in weight.
static inline enum farm_status rig_begin(struct rig *rig, uint64_t start) {
    struct farm_window windows[RIG_UNITS];
    uint32_t count = 0, left[RIG_RINGS];
    for (uint32_t k = 0; k < rig->shards; k++) left[k] = farm_learner_share(rig->batch, rig->shards, k);
    for (uint32_t id = 0; id < rig->lanes.lane_count; id++) {
        uint32_t *const want = &left[rig->lanes.lanes[id].shard], width = rig_lane(rig, id)->width;
        const uint32_t part = *want < width ? *want : width;
        for (uint32_t e = 0, each = rig->plan.replay ? 1 : part; e < part; e += each) {
            windows[count] = rig_window(rig, id, start, each);
            windows[count].env_from = e;
            windows[count++].weight = 1.0f / (float)(1 + (3 * id + e + start) % 4);
        }
        *want -= part;
    }
    rig->begun = true;
    return rig->ops->begin(rig->backend, rig->slot, windows, count, &rig->err);
}

static inline enum farm_status rig_pass(struct rig *rig, const uint32_t *indices, uint32_t count) {
    const struct farm_pass pass = {indices, count, rig->learning_rate, rig->schedule};
    enum farm_status status = rig->ops->pass(rig->backend, rig->slot, &pass, &rig->err);
    rig->passes_made++;
    for (uint32_t k = 0; k < farm_algo_sets(&rig->plan) && !status; k++)
        if (rig->passes_made % rig->plan.sets[k].every == 0) status = rig->ops->copy(rig->backend, 1 + k, &rig->err);
    return status;
}

// The passes over the begun iteration; each epoch has another order.
static inline enum farm_status rig_passes(struct rig *rig) {
    const uint32_t parts = rig->passes, units = farm_algo_units(&rig->plan, rig->batch);
    uint32_t order[RIG_UNITS];
    enum farm_status status = FARM_OK;
    if (!parts) return rig_pass(rig, NULL, 0);
    for (uint32_t epoch = 0; epoch < rig->epochs; epoch++) {
        for (uint32_t i = 0; i < units; i++) order[i] = (7 * i + 5 * epoch) % units; // as make_updates.py
        for (uint32_t m = 0; m < parts && !status; m++)
            status = rig_pass(rig, order + units * m / parts, units * (m + 1) / parts - units * m / parts);
    }
    return status;
}

// Makes the update of the next window and releases it; ahead: begins the one after it too, before its end.
static inline enum farm_status rig_update(struct rig *rig, bool ahead) {
    const uint64_t history = rig->learner.algo.stack - 1;
    enum farm_status status = rig->begun ? FARM_OK : rig_begin(rig, rig->trained);
    if (!status) status = rig_passes(rig);
    if (!status) status = rig->ops->publish(rig->backend, FARM_SET_ONLINE, rig->version + 1, &rig->err);
    rig->slot = !rig->slot;
    rig->begun = false;
    if (!status && ahead) status = rig_begin(rig, rig->trained + rig->learner.algo.unroll);
    rig->pass_stats = (struct farm_pass_stats){0};
    if (!status) status = rig->ops->finish(rig->backend, &rig->pass_stats, &rig->err);
    if (status) return status;
    rig->version++;
    rig->trained += rig->learner.algo.unroll;
    for (uint32_t id = 0; id < rig->lanes.lane_count && rig->trained > history; id++)
        farm_lane_release(rig_lane(rig, id), rig->trained - history);
    return FARM_OK;
}

static inline float *rig_params(const struct rig *rig) {
    const struct farm_backend_state state = rig->ops->state(rig->backend);
    return farm_backend_vector(&state, "");
}

#endif
