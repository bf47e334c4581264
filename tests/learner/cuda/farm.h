// A small farm for tests of the CUDA backend's host code: real rings and validator; the test acts as actors and as the
// learner's loop. A run returns a record, to be compared with that of another backend or setting.
#ifndef TESTS_LEARNER_CUDA_FARM_H
#define TESTS_LEARNER_CUDA_FARM_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../support/learner.h"
#include "access.h"
#include "emulator.h"
#include "kernels/random.h"
#include "learner/backend.h"
#include "learner/cuda/backend.h"
#include "learner/cuda/context.h"
#include "learner/lanes.h"
#include "vendor_emulator.h"

enum { RINGS = 2, LANES = 2, WIDTH = 3, SIDE = 12, FRAME_STACK = 3, FLAT = 5, ACTIONS = 4, UNROLL = 4, STEPS = 20 };
enum { LANE_COUNT = RINGS * LANES, ENVIRONMENTS = LANE_COUNT * WIDTH, ROUNDS = 45, OBS_MAX = SIDE * SIDE };

struct setting {
    bool frames;
    enum farm_emulator_way obs_way; // the only fast way for registered frames
    enum farm_mirror mirror;
    enum farm_precision precision;
    uint32_t batch, micro_batch, infer_batch_max;
    bool loss_mean;
    uint64_t spin_ns;
    bool sync;            // trains on windows before their last step is answered
    uint32_t minibatches; // passes over an iteration, in two epochs of different order; 0: one pass over all
    uint32_t shards;      // if 2: ring r belongs to shard r
    float reward;         // if not 0: of every tenth step, scaled by the largest float; other steps have none
};

static inline struct setting usual(bool frames) {
    return (struct setting){.frames = frames,
                            .precision = FARM_PRECISION_F32,
                            .batch = ENVIRONMENTS,
                            .micro_batch = 5,
                            .infer_batch_max = 7,
                            .shards = 1,
                            .spin_ns = 1000};
}

static unsigned farms_open; // in this process

struct farm {
    struct setting setting;
    struct farm_ring made[RINGS], actors[RINGS];
    struct farm_lanes lanes;
    struct farm_stats stats;
    struct farm_learner_config learner;
    struct farm_net_spec spec;
    struct farm_net net;
    struct farm_algo_plan plan;
    uint32_t slot;    // of the next pass
    bool begun;       // its iteration is begun
    uint64_t version; // newest published
    const struct farm_backend_ops *ops;
    struct farm_backend *backend;
    struct farm_error err;
    uint64_t n, trained;                // steps answered, steps trained on
    struct farm_pass_stats pass_stats;  // of the newest update
    void (*between)(struct farm *farm); // called by `run` after each step and its updates; may be NULL
};

// All answers of a run, and the parameters at its end.
struct record {
    int32_t action[ROUNDS][ENVIRONMENTS];
    float logits[ROUNDS][ENVIRONMENTS][ACTIONS], value[ROUNDS][ENVIRONMENTS];
    uint64_t version[ROUNDS][LANE_COUNT];
    struct farm_pass_stats stats[ROUNDS];
    float *params;
    size_t count;
    uint64_t updates;
    uint64_t inferred[FARM_EMULATOR_WAYS], trained[FARM_EMULATOR_WAYS]; // bytes read of registered memory
    uint64_t counted[2]; // bytes that the backend reports: inference, training
};

// ---- a farm ----

static inline struct farm_learner_config learner_of(struct farm *farm) {
    const struct setting *s = &farm->setting;
    struct farm_learner_config learner = test_learner_config(FLAT, ACTIONS, UNROLL);
    struct farm_algo_config *algo = &learner.algo;
    if (s->frames) {
        learner.io = (struct farm_net_io){
            .frame_channels = 1, .height = SIDE, .width = SIDE, .stack = FRAME_STACK, .actions = ACTIONS};
        algo->stack = FRAME_STACK;
    }
    algo->batch = s->batch;
    algo->option[FARM_VTRACE_DISCOUNT] = 0.95f;
    algo->option[FARM_VTRACE_LAMBDA] = 0.9f;
    algo->reward_scale = s->reward != 0 ? 3e38 : 0.5;
    algo->grad_norm_clip = 2;
    algo->adam_epsilon = 1e-4;
    algo->loss_sum = !s->loss_mean;
    learner.stats = &farm->stats;
    learner.seed = 7;
    learner.precision = s->precision;
    learner.infer_batch_max = s->infer_batch_max;
    learner.micro_batch = s->micro_batch;
    learner.spin_ns = s->spin_ns;
    learner.memory_node = -1;
    learner.mirror = s->mirror;
    return learner;
}

static inline struct farm_net_spec spec_of(bool frames) {
    if (!frames) return *farm_net_find("mlp", NULL);
    return (struct farm_net_spec){
        .name = "small",
        .about = "small",
        .layer_count = 3,
        .layers = {{.kind = FARM_LAYER_CONV, .out = 8, .kernel = 4, .stride = 2, .activation = FARM_ACTIVATION_RELU},
                   {.kind = FARM_LAYER_CONV, .out = 8, .kernel = 3, .stride = 1, .activation = FARM_ACTIVATION_RELU},
                   {.kind = FARM_LAYER_DENSE, .out = 16, .activation = FARM_ACTIVATION_RELU}}};
}

static inline void open_rings(struct farm *farm) {
    const struct farm_field_spec frame = {.name = "obs", .dtype = FARM_U8, .rank = 2, .dims = {SIDE, SIDE}};
    const struct farm_field_spec flat = {.name = "obs", .dtype = FARM_F32, .rank = 1, .dims = {FLAT}};
    struct farm_ring_spec spec = {.lanes = LANES, .width = WIDTH, .steps = STEPS};
    spec.env.obs_count = 1;
    spec.env.obs[0] = farm->setting.frames ? frame : flat;
    spec.env.action = (struct farm_action_spec){.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {ACTIONS}};
    spec.env.frames_per_step = 1;
    farm_ring_spec_answers(&spec);
    const struct farm_window_shape shape = {.stride = UNROLL, .length = UNROLL + 1, .stack = farm->learner.algo.stack};
    int fds[RINGS][2];
    for (int r = 0; r < RINGS; r++) {
        struct farm_ring *made = &farm->made[r];
        cr_assert_eq(farm_ring_create(&spec, (uint32_t)r, -1, false, made, &farm->err), FARM_OK, "%s",
                     farm->err.message);
        cr_assert_eq(farm_ring_open(dup(made->up.fd), dup(made->down.fd_readonly), FARM_RING_ACTOR, &farm->actors[r],
                                    &farm->err),
                     FARM_OK);
        fds[r][0] = dup(made->up.fd_readonly);
        fds[r][1] = dup(made->down.fd);
    }
    cr_assert_eq(farm_lanes_open(fds, RINGS, &shape, NULL, &farm->lanes, &farm->err), FARM_OK, "%s", farm->err.message);
    const uint32_t ring_shard[RINGS] = {0, farm->setting.shards - 1};
    farm_lanes_divide(&farm->lanes, ring_shard);
}

// Makes one way the fastest of the start's trial by far, whatever the machine's load.
static inline void prefer(enum farm_emulator_way way) {
    const int64_t slow_us = 2000;
    farm_emulator.major = way == FARM_EMULATOR_LOADS ? 8 : 9; // no bulk copies
    farm_emulator.no_batches = way != FARM_EMULATOR_COPIES;
    farm_emulator.slow_loads = way != FARM_EMULATOR_LOADS ? slow_us : 0;
    farm_emulator.slow_bulk = way == FARM_EMULATOR_COPIES ? slow_us : 0;
}

static inline struct farm *open_farm(struct setting setting) {
    struct farm *farm = calloc(1, sizeof *farm);
    farms_open++;
    farm->setting = setting;
    prefer(setting.obs_way);
    farm->spec = spec_of(setting.frames);
    farm->learner = learner_of(farm);
    cr_assert_eq(farm_net_make(&farm->spec, &farm->learner.io, &farm->net, &farm->err), FARM_OK, "%s",
                 farm->err.message);
    open_rings(farm);
    return farm;
}

static inline enum farm_status open_backend(struct farm *farm, const struct farm_backend_ops *ops) {
    cr_assert_eq(farm_algo_plan_make(&farm->learner.algo, &farm->plan, &farm->err), FARM_OK);
    farm->plan.sync = farm->setting.sync;
    if (farm->setting.minibatches) farm->plan.epochs = 2, farm->plan.minibatches = farm->setting.minibatches;
    const struct farm_backend_config config = {.learner = &farm->learner,
                                               .plan = &farm->plan,
                                               .net = &farm->net,
                                               .head = farm_head_categorical(ACTIONS),
                                               .width_max = WIDTH,
                                               .columns_max = farm->setting.batch,
                                               .lanes = &farm->lanes,
                                               .shards = ops->shards ? farm->setting.shards : 1};
    farm->ops = ops;
    const enum farm_status status = ops->create(&config, &farm->backend, &farm->err);
    farm_emulator.slow_loads = farm_emulator.slow_bulk = 0;
    return status;
}

static inline void expect_obs_path(const struct farm *farm) {
    for (uint32_t k = 0; k < farm->setting.shards; k++) {
        const struct farm_cuda_context *context = farm_cuda_backend_context(farm->backend, k);
        if (!context->direct) continue;
        cr_assert_eq(context->obs_path.copies, farm->setting.obs_way == FARM_EMULATOR_COPIES);
        if (context->obs_path.copies) continue;
        cr_assert_eq(context->obs_path.way,
                     farm->setting.obs_way == FARM_EMULATOR_BULK ? FARM_CUDA_PULL_BULK : FARM_CUDA_PULL_LOADS);
    }
}

static inline void must_open_backend(struct farm *farm, const struct farm_backend_ops *ops) {
    const enum farm_status status = open_backend(farm, ops);
    cr_assert_eq(status, FARM_OK, "%s", farm->err.message);
    if (ops == &farm_backend_cuda) expect_obs_path(farm);
}

static inline struct farm *open_ready(struct setting setting) {
    struct farm *farm = open_farm(setting);
    must_open_backend(farm, &farm_backend_cuda);
    return farm;
}

static inline void expect_nothing_left(void) {
    const struct farm_emulator_account a = farm_emulator_account();
    cr_assert_eq(a.allocations + a.pinned + a.registered + a.streams + a.events + a.graphs + a.graph_execs, 0,
                 "left behind: %lu allocations, %lu pinned, %lu registered, %lu streams, %lu events, %lu graphs, %lu "
                 "instances",
                 a.allocations, a.pinned, a.registered, a.streams, a.events, a.graphs, a.graph_execs);
}

// After the last farm nothing of the GPU is in use.
static inline void close_farm(struct farm *farm) {
    if (farm->backend) farm->ops->destroy(farm->backend);
    farm_lanes_close(&farm->lanes);
    for (int r = 0; r < RINGS; r++) {
        farm_ring_close(&farm->actors[r]);
        farm_ring_close(&farm->made[r]);
    }
    free(farm);
    if (--farms_open == 0) expect_nothing_left();
}

// ---- actors and the learner's loop ----

static inline double uniform(uint64_t lane, uint64_t env, uint64_t n, uint64_t what) {
    return (double)(farm_random_mix(what ^ farm_random_mix(n ^ farm_random_mix(env ^ farm_random_mix(lane)))) >> 11) /
           9007199254740992.0;
}

static inline bool is_first(uint64_t lane, uint64_t env, uint64_t n) {
    return n == 0 || uniform(lane, env, n - 1, 1) < 0.15;
}

static inline void write_step(struct farm *farm, uint32_t id, uint64_t n) {
    struct farm_lane *lane = &farm->actors[id / LANES].lanes[id % LANES];
    cr_assert_eq(farm_lane_actor_next(lane), n);
    cr_assert(farm_lane_actor_can_write(lane));
    for (uint32_t e = 0; e < WIDTH; e++) {
        uint8_t *obs = farm_lane_obs(lane, 0, n, e);
        for (size_t i = 0; i < lane->obs_bytes[0] && farm->setting.frames; i++)
            obs[i] = (uint8_t)(256 * uniform(id, e, n, 100 + i));
        for (size_t i = 0; i < FLAT && !farm->setting.frames; i++)
            ((float *)(void *)obs)[i] = (float)(2 * uniform(id, e, n, 100 + i) - 1);
        const bool first = is_first(id, e, n), last = is_first(id, e, n + 1);
        farm_lane_flags(lane, n)[e] =
            (uint8_t)((first ? FARM_STEP_FIRST : 0) | (last ? FARM_STEP_LAST | FARM_STEP_TERMINATED : 0));
        farm_lane_reward(lane, n)[e] = farm->setting.reward == 0 ? (float)(uniform(id, e, n, 2) - 0.5)
                                       : n % 10 == 9             ? farm->setting.reward
                                                                 : 0;
    }
    farm_lane_actor_publish(lane);
}

// Answers all lanes' step n in batches of at most infer_batch_max of one shard, splitting lanes that do not fit. again:
// the step is answered already.
static inline enum farm_status answer(struct farm *farm, bool again) {
    struct farm_infer_rows rows[LANE_COUNT];
    uint32_t lane = 0, env = 0;
    while (lane < LANE_COUNT) {
        uint32_t room = farm->setting.infer_batch_max, count = 0;
        const uint32_t shard = farm->lanes.lanes[lane].shard;
        while (room && lane < LANE_COUNT && farm->lanes.lanes[lane].shard == shard) {
            const uint32_t left = WIDTH - env, part = left < room ? left : room;
            rows[count++] = (struct farm_infer_rows){.lane = farm->lanes.lanes[lane].lane,
                                                     .lane_id = lane,
                                                     .n = farm->n,
                                                     .env_from = env,
                                                     .env_count = part};
            room -= part;
            env = (env + part) % WIDTH;
            lane += env == 0;
        }
        const enum farm_status status = farm->ops->infer(farm->backend, shard, rows, count, &farm->err);
        if (status) return status;
        for (uint32_t i = 0; i < count; i++) {
            const bool whole = rows[i].env_from + rows[i].env_count == WIDTH;
            if (whole && !farm->ops->stores_acted) farm_lane_answer(rows[i].lane, farm->n);
            if (!again) cr_assert_eq(farm_lane_acted(rows[i].lane), farm->n + whole, "an answer in parts");
        }
    }
    return FARM_OK;
}

static inline void publish_step(struct farm *farm) {
    for (uint32_t id = 0; id < LANE_COUNT; id++) {
        write_step(farm, id, farm->n);
        cr_assert(farm_lanes_take_in(&farm->lanes.lanes[id], 0, &farm->stats));
    }
}

static inline enum farm_status answer_step(struct farm *farm) {
    const enum farm_status status = answer(farm, false);
    if (status) return status;
    for (uint32_t id = 0; id < LANE_COUNT; id++) {
        cr_assert_eq(farm_lane_acted(farm->lanes.lanes[id].lane), farm->n + 1, "lane %u", id);
        farm->lanes.lanes[id].answered++;
    }
    farm->n++;
    return FARM_OK;
}

static inline enum farm_status step(struct farm *farm) {
    publish_step(farm);
    return answer_step(farm);
}

static inline void release(struct farm *farm) {
    const uint64_t history = farm->learner.algo.stack - 1;
    for (uint32_t id = 0; id < LANE_COUNT; id++)
        if (farm->trained > history) farm_lane_release(farm->lanes.lanes[id].lane, farm->trained - history);
}

// Begins the iteration of the windows from `start` on of `batch` environments, each shard's first ones.
static inline enum farm_status begin(struct farm *farm, uint64_t start) {
    struct farm_window windows[LANE_COUNT];
    uint32_t count = 0, left[RINGS];
    for (uint32_t k = 0; k < farm->setting.shards; k++)
        left[k] = farm_learner_share(farm->setting.batch, farm->setting.shards, k);
    for (uint32_t id = 0; id < LANE_COUNT; id++) {
        uint32_t *const want = &left[farm->lanes.lanes[id].shard], part = *want < WIDTH ? *want : WIDTH;
        if (!part) continue;
        windows[count++] =
            (struct farm_window){.lane = farm->lanes.lanes[id].lane, .lane_id = id, .start = start, .env_count = part};
        *want -= part;
    }
    farm->begun = true;
    return farm->ops->begin(farm->backend, farm->slot, windows, count, &farm->err);
}

// The passes over the begun iteration.
static inline enum farm_status pass(struct farm *farm) {
    const uint32_t parts = farm->setting.minibatches, columns = farm->setting.batch;
    uint32_t order[ENVIRONMENTS];
    enum farm_status status = FARM_OK;
    if (!parts) {
        const struct farm_pass all = {.learning_rate = 0.003};
        return farm->ops->pass(farm->backend, farm->slot, &all, &farm->err);
    }
    for (uint32_t epoch = 0; epoch < 2; epoch++) {
        for (uint32_t i = 0; i < columns; i++) order[i] = (5 * i + epoch) % columns; // 5 divides no batch here
        for (uint32_t m = 0; m < parts && !status; m++) {
            const uint32_t from = columns * m / parts, to = columns * (m + 1) / parts;
            const struct farm_pass part = {.columns = order + from, .count = to - from, .learning_rate = 0.003};
            status = farm->ops->pass(farm->backend, farm->slot, &part, &farm->err);
        }
    }
    return status;
}

// Makes the update of the next window; ahead: begins the one after it too.
static inline enum farm_status update_and(struct farm *farm, bool ahead) {
    enum farm_status status = farm->begun ? FARM_OK : begin(farm, farm->trained);
    if (!status) status = pass(farm);
    if (!status) status = farm->ops->publish(farm->backend, farm->version + 1, &farm->err);
    farm->slot = !farm->slot;
    farm->begun = false;
    if (!status && ahead) status = begin(farm, farm->trained + UNROLL);
    farm->pass_stats = (struct farm_pass_stats){0};
    if (!status) status = farm->ops->finish(farm->backend, &farm->pass_stats, &farm->err);
    if (status) return status;
    farm->version++;
    farm->trained += UNROLL;
    release(farm);
    return FARM_OK;
}

static inline enum farm_status update(struct farm *farm) {
    return update_and(farm, false);
}

static inline void must_update(struct farm *farm) {
    cr_assert_eq(update(farm), FARM_OK, "%s", farm->err.message);
}

static inline void play_to(struct farm *farm, uint64_t steps) {
    while (farm->n < steps) cr_assert_eq(step(farm), FARM_OK, "%s", farm->err.message);
}

// A farm that has answered `steps` steps.
static inline struct farm *open_played(struct setting setting, uint64_t steps) {
    struct farm *farm = open_ready(setting);
    play_to(farm, steps);
    return farm;
}

static inline float *params_now(struct farm *farm) {
    const struct farm_backend_state state = farm->ops->state(farm->backend);
    return farm_backend_vector(&state, "");
}

static inline void note(struct farm *farm, struct record *record) {
    const uint64_t n = farm->n - 1;
    for (uint32_t id = 0; id < LANE_COUNT; id++) {
        const struct farm_lane *lane = farm->lanes.lanes[id].lane;
        record->version[n][id] = *farm_lane_version(lane, n);
        for (uint32_t e = 0; e < WIDTH; e++) {
            const uint32_t row = id * WIDTH + e;
            memcpy(&record->action[n][row], farm_lane_action(lane, n, e), sizeof(int32_t));
            memcpy(record->logits[n][row], farm_lane_policy(lane, n, e), sizeof record->logits[n][row]);
            record->value[n][row] = farm_lane_value(lane, n)[e];
        }
    }
}

// Adds the bytes read of registered memory since `before`, by way.
static inline void add_read(uint64_t *sum, const struct farm_emulator_account *before) {
    const struct farm_emulator_account now = farm_emulator_account();
    for (int way = 0; way < FARM_EMULATOR_WAYS; way++) sum[way] += now.read[way] - before->read[way];
}

static inline void keep_end(struct farm *farm, struct record *record) {
    record->counted[0] = farm->stats.bus_infer_bytes;
    record->counted[1] = farm->stats.bus_train_bytes;
    record->count = farm->net.parameter_count;
    record->params = memcpy(malloc(record->count * sizeof(float)), params_now(farm), record->count * sizeof(float));
}

static inline struct record *run(struct farm *farm) {
    struct record *record = calloc(1, sizeof *record);
    while (farm->n < ROUNDS) {
        struct farm_emulator_account before = farm_emulator_account();
        play_to(farm, farm->n + 1);
        add_read(record->inferred, &before);
        note(farm, record);
        while (farm->trained + UNROLL < farm->n) {
            before = farm_emulator_account();
            must_update(farm);
            add_read(record->trained, &before);
            record->stats[record->updates++] = farm->pass_stats;
        }
        if (farm->between) farm->between(farm);
    }
    keep_end(farm, record);
    return record;
}

static inline struct record *run_alone(struct setting setting, const struct farm_backend_ops *ops) {
    struct farm *farm = open_farm(setting);
    must_open_backend(farm, ops);
    struct record *record = run(farm);
    close_farm(farm);
    return record;
}

// Plays, then makes three updates; ahead: each begins the next one before its end.
static inline struct record *run_updates(struct setting setting, bool ahead) {
    struct record *record = calloc(1, sizeof *record);
    struct farm *farm = open_farm(setting);
    must_open_backend(farm, &farm_backend_cuda);
    for (; farm->n < 3 * UNROLL + 1; note(farm, record)) play_to(farm, farm->n + 1);
    const uint64_t launched = farm_emulator_account().graph_launches;
    for (; record->updates < 3; record->updates++) {
        cr_assert_eq(update_and(farm, ahead && record->updates < 2), FARM_OK, "%s", farm->err.message);
        record->stats[record->updates] = farm->pass_stats;
        cr_assert_eq(farm->ops->state(farm->backend).version, record->updates + 1); // also while the next one runs
    }
    cr_assert_eq(farm_emulator_account().graph_launches - launched, 3 * 2 * setting.shards, "gradients and steps");
    keep_end(farm, record);
    close_farm(farm);
    return record;
}

// ---- comparing runs ----

static inline double distance(const float *a, const float *b, size_t count) {
    double apart = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        apart += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(apart / (size > 0 ? size : 1));
}

static inline void expect_near(const struct record *ours, const struct record *theirs) {
    cr_assert_eq(ours->updates, theirs->updates);
    cr_assert_gt(theirs->updates, 5);
    for (int n = 0; n < ROUNDS; n++) {
        for (int row = 0; row < ENVIRONMENTS; row++)
            cr_assert_eq(ours->action[n][row], theirs->action[n][row], "step %d row %d", n, row);
        for (int id = 0; id < LANE_COUNT; id++)
            cr_assert_eq(ours->version[n][id], theirs->version[n][id], "step %d lane %d", n, id);
        cr_assert_lt(distance(ours->logits[n][0], theirs->logits[n][0], ENVIRONMENTS * ACTIONS), 1e-3, "step %d", n);
        cr_assert_lt(distance(ours->value[n], theirs->value[n], ENVIRONMENTS), 1e-3, "step %d", n);
    }
    for (uint64_t k = 0; k < ours->updates; k++) {
        cr_assert_float_eq(ours->stats[k].grad_norm, theirs->stats[k].grad_norm, 1e-3 * theirs->stats[k].grad_norm);
        cr_assert_eq(ours->stats[k].terms[FARM_VTRACE_ROWS], theirs->stats[k].terms[FARM_VTRACE_ROWS]);
        cr_assert_float_eq(ours->stats[k].terms[FARM_VTRACE_POLICY], theirs->stats[k].terms[FARM_VTRACE_POLICY],
                           1e-3 * (1 + fabs(theirs->stats[k].terms[FARM_VTRACE_POLICY])));
    }
    cr_assert_lt(distance(ours->params, theirs->params, ours->count), 1e-4);
}

static inline void expect_same(const struct record *ours, const struct record *theirs, const char *what) {
    cr_assert_eq(ours->updates, theirs->updates);
    cr_assert_arr_eq(ours->action, theirs->action, sizeof ours->action, "%s", what);
    cr_assert_arr_eq(ours->logits, theirs->logits, sizeof ours->logits, "%s", what);
    cr_assert_arr_eq(ours->value, theirs->value, sizeof ours->value, "%s", what);
    cr_assert_arr_eq(ours->version, theirs->version, sizeof ours->version, "%s", what);
    cr_assert_arr_eq(ours->params, theirs->params, ours->count * sizeof(float), "%s", what);
}

static inline void forget(struct record *record) {
    free(record->params);
    free(record);
}

// An update that begins while the one before it runs is the same update.
static inline void expect_ahead_agrees(struct setting setting) {
    struct record *ahead = run_updates(setting, true), *after = run_updates(setting, false);
    expect_same(ahead, after, "begun ahead");
    cr_assert_arr_eq(ahead->stats, after->stats, sizeof ahead->stats);
    forget(ahead);
    forget(after);
}

// `between` changes no number of the farm's run: they are those of `steady`. Closes the farm.
static inline void expect_steady(struct farm *farm, void (*between)(struct farm *), struct record *steady,
                                 const char *what) {
    farm->between = between;
    struct record *record = run(farm);
    close_farm(farm);
    expect_same(record, steady, what);
    forget(record);
    forget(steady);
}

static inline void expect_what_the_cpu_does(struct setting setting) {
    struct record *theirs = run_alone(setting, &farm_backend_cpu), *ours = run_alone(setting, &farm_backend_cuda);
    expect_near(ours, theirs);
    forget(ours);
    forget(theirs);
}

// ---- for one GPU and several ----

// Frames of the network's input in one window: each step's stack within its episode.
static inline uint64_t frames_seen(uint32_t lane, uint32_t env, uint64_t start) {
    uint64_t seen = 0;
    for (uint64_t n = start; n <= start + UNROLL; n++)
        for (uint64_t k = 0; k < FRAME_STACK; k++) {
            seen++;
            if (is_first(lane, env, n - k)) break;
        }
    return seen;
}

// Frames that the updates read of the registered rings.
static inline uint64_t frames_trained(enum farm_mirror mirror, uint64_t updates) {
    uint64_t seen = 0;
    if (mirror == FARM_MIRROR_FULL) return 0;
    if (mirror == FARM_MIRROR_WINDOW) // complete windows; none before the first step
        return ENVIRONMENTS * (updates * (UNROLL + FRAME_STACK) - (FRAME_STACK - 1));
    for (uint64_t start = 0; start < updates * UNROLL; start += UNROLL)
        for (uint32_t lane = 0; lane < LANE_COUNT; lane++)
            for (uint32_t env = 0; env < WIDTH; env++) seen += frames_seen(lane, env, start);
    return seen;
}

static inline void expect_read(const uint64_t *read, enum farm_emulator_way by, uint64_t bytes, const char *what) {
    for (int way = 0; way < FARM_EMULATOR_WAYS; way++) {
        if (way == FARM_EMULATOR_LOADS && !farm_emulator_sees_loads) continue;
        const uint64_t expected = way == (int)by ? bytes : 0;
        cr_assert_eq(read[way], expected, "%s has read %lu bytes of the rings by way %d, not %lu", what, read[way], way,
                     expected);
    }
}

// The emulator and the backend count the same bytes read of the rings.
static inline void expect_obs_paths(const struct record *record, struct setting setting) {
    const uint64_t bytes = SIDE * SIDE, inferred = (uint64_t)ROUNDS * ENVIRONMENTS * bytes;
    const uint64_t trained = frames_trained(setting.mirror, record->updates) * bytes;
    const bool by_bulk = setting.obs_way == FARM_EMULATOR_BULK && setting.mirror == FARM_MIRROR_WINDOW;
    expect_read(record->inferred, setting.obs_way, inferred, "inference");
    expect_read(record->trained, by_bulk ? FARM_EMULATOR_BULK : FARM_EMULATOR_LOADS, trained, "training");
    cr_assert_eq(record->counted[0], inferred);
    cr_assert_eq(record->counted[1], trained);
}

static inline void expect_all_mirrors_agree(struct setting setting) {
    struct record *full = run_alone(setting, &farm_backend_cuda);
    if (setting.frames) expect_obs_paths(full, setting);
    for (enum farm_mirror mirror = FARM_MIRROR_WINDOW; mirror <= FARM_MIRROR_OFF; mirror++) {
        setting.mirror = mirror;
        struct record *other = run_alone(setting, &farm_backend_cuda);
        expect_same(other, full, mirror == FARM_MIRROR_OFF ? "off" : "window");
        if (setting.frames) expect_obs_paths(other, setting);
        forget(other);
    }
    forget(full);
}

static inline void expect_bounced_agrees(struct setting setting, int64_t *refusal) {
    struct record *registered = run_alone(setting, &farm_backend_cuda);
    *refusal = 1;
    for (setting.mirror = FARM_MIRROR_FULL; setting.mirror <= FARM_MIRROR_OFF; setting.mirror++) {
        struct record *bounced = run_alone(setting, &farm_backend_cuda);
        expect_same(bounced, registered, "bounced");
        expect_read(bounced->inferred, FARM_EMULATOR_LOADS, 0, "inference");
        expect_read(bounced->trained, FARM_EMULATOR_LOADS, 0, "training");
        forget(bounced);
    }
    forget(registered);
}

static inline void expect_refused(struct setting setting, enum farm_status status, const char *word) {
    struct farm *farm = open_farm(setting);
    const enum farm_status got = open_backend(farm, &farm_backend_cuda);
    cr_assert_eq(got, status, "%d: %s", (int)got, farm->err.message);
    cr_assert(strstr(farm->err.message, word) != NULL, "no '%s' in: %s", word, farm->err.message);
    close_farm(farm);
}

// An update of `batch` windows, fewer than the setting's.
static inline void expect_smaller_update(struct setting setting, uint32_t batch) {
    struct farm *const farms[] = {open_farm(setting), open_farm(setting)};
    const struct farm_pass_stats *const ours = &farms[0]->pass_stats, *const theirs = &farms[1]->pass_stats;
    for (int i = 0; i < 2; i++) {
        must_open_backend(farms[i], i ? &farm_backend_cpu : &farm_backend_cuda);
        play_to(farms[i], UNROLL + 1);
        farms[i]->setting.batch = batch;
        must_update(farms[i]);
    }
    cr_assert_gt(ours->terms[FARM_VTRACE_ROWS], 0);
    cr_assert_eq(ours->terms[FARM_VTRACE_ROWS], theirs->terms[FARM_VTRACE_ROWS]);
    cr_assert_float_eq(ours->grad_norm, theirs->grad_norm, 1e-3 * theirs->grad_norm);
    cr_assert_lt(distance(params_now(farms[0]), params_now(farms[1]), farms[0]->net.parameter_count), 1e-4);
    for (int i = 0; i < 2; i++) close_farm(farms[i]);
}

static inline void expect_registered(struct setting setting) {
    struct farm *farm = open_ready(setting);
    uint64_t bytes = 0;
    for (int r = 0; r < RINGS; r++) bytes += farm->lanes.rings[r].up.bytes + farm->lanes.rings[r].down.bytes;
    cr_assert_eq(farm_emulator_account().registered, 2 * RINGS);
    cr_assert_eq(farm_emulator_account().registered_bytes, bytes);
    const unsigned both = cudaHostRegisterPortable | cudaHostRegisterMapped;
    for (uint32_t id = 0; id < LANE_COUNT; id++) {
        const struct farm_cuda_context *context = farm_cuda_backend_context(farm->backend, farm->lanes.lanes[id].shard);
        const struct farm_lane *lane = farm->lanes.lanes[id].lane;
        cr_assert_eq(farm_emulator_registration(farm_cuda_up(context, id, farm_lane_obs(lane, 0, 0, 0))),
                     both | cudaHostRegisterReadOnly);
        cr_assert_eq(farm_emulator_registration(farm_cuda_down(context, id, &lane->down->acted)), both);
    }
    farm->ops->destroy(farm->backend);
    farm->backend = NULL;
    expect_nothing_left();
    close_farm(farm);
}

// A state restored as another version is what every GPU's next answers use, and what the next update changes.
static inline void expect_state_restored(struct setting setting) {
    struct farm *farm = open_played(setting, 2 * UNROLL + 1);
    const size_t count = farm->net.parameter_count, bytes = count * sizeof(float);
    must_update(farm);
    struct farm_backend_state state = farm->ops->state(farm->backend);
    cr_assert(state.version == 1 && state.optimiser_step == 1);
    float *const vectors[] = {state.vectors[0].values, state.vectors[1].values, state.vectors[2].values};
    float *kept[3], *after[3];
    for (int v = 0; v < 3; v++) kept[v] = memcpy(malloc(bytes), vectors[v], bytes);
    must_update(farm);
    (void)farm->ops->state(farm->backend);
    for (int v = 0; v < 3; v++) after[v] = memcpy(malloc(bytes), vectors[v], bytes);
    cr_assert_gt(distance(after[0], kept[0], count), 1e-6);
    for (int v = 0; v < 3; v++) memcpy(vectors[v], kept[v], bytes);
    cr_assert_eq(farm->ops->state_changed(farm->backend, 40, 1, &farm->err), FARM_OK);
    farm->version = 40;
    play_to(farm, farm->n + 1);
    for (uint32_t id = 0; id < LANE_COUNT; id++)
        cr_assert_eq(*farm_lane_version(farm->lanes.lanes[id].lane, farm->n - 1), 40, "lane %u", id);
    farm->trained -= UNROLL;
    must_update(farm);
    cr_assert_eq(farm->ops->state(farm->backend).version, 41);
    for (int v = 0; v < 3; v++) cr_assert_arr_eq(vectors[v], after[v], bytes, "vector %d", v);
    for (int v = 0; v < 3; v++) free(kept[v]), free(after[v]);
    const struct farm_emulator_account account = farm_emulator_account();
    cr_assert_geq(account.device_to_host_bytes, 9 * bytes);
    cr_assert_eq(account.device_to_pageable_bytes, 0, "pageable memory: the driver copies piece by piece");
    close_farm(farm);
}

// Whichever allocation fails, all earlier ones are released.
static inline void expect_released(struct setting setting, int64_t parts) {
    struct farm *farm = open_ready(setting);
    const int64_t all = (int64_t)(farm_emulator_account().device_bytes / setting.shards);
    farm->ops->destroy(farm->backend);
    for (int64_t part = 0; part < parts; part++) {
        farm_emulator.memory = all * part / parts;
        farm->backend = NULL;
        cr_assert_eq(open_backend(farm, &farm_backend_cuda), FARM_E_LIMIT, "%s", farm->err.message);
        expect_nothing_left();
    }
    farm->backend = NULL;
    close_farm(farm);
}

#endif
