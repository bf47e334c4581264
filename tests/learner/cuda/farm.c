// See farm.h.
#include "farm.h"

#include "../../support/learner.h"
#include "algo/ppo.h"
#include "kernels/random.h"

enum { LSTM_UNITS = 9 };

static unsigned farms_open; // in this process

struct setting usual_setting(bool frames, uint32_t shards) {
    farm_emulator.devices = shards;
    return (struct setting){.frames = frames,
                            .shards = shards,
                            .batch = ENVIRONMENTS,
                            .micro_batch = 5,
                            .infer_batch_max = 7,
                            .spin_ns = 1000};
}

// ---- a farm ----

static const struct farm_net_input numbers = {.kind = FARM_INPUT_NUMBERS, .count = FLAT};

// Two colour images beside numbers and choices.
static struct farm_net_io dict_io(void) {
    return (struct farm_net_io){
        .frame_channels = 3,
        .height = SIDE,
        .width = DICT_WIDTH,
        .interleaved = true,
        .stack = DICT_STACK,
        .images = 2,
        .image_source = {1, 3},
        .flat = DICT_FLAT,
        .input_count = 4,
        .inputs = {numbers,
                   {.kind = FARM_INPUT_ONE_HOT, .count = 1, .choices = CHOICES, .source = 2},
                   {.kind = FARM_INPUT_ONE_HOT, .count = 1, .choices = ACTIONS, .source = FARM_SOURCE_LAST_ACTION},
                   {.kind = FARM_INPUT_SIGN, .count = 1, .source = FARM_SOURCE_LAST_REWARD}},
        .actions = ACTIONS};
}

static struct farm_learner_config learner_config(struct farm *farm) {
    const struct setting *s = &farm->setting;
    struct farm_learner_config learner = test_learner_config(FLAT, ACTIONS, UNROLL);
    struct farm_algo_config *algo = &learner.algo;
    if (s->frames) {
        learner.io = (struct farm_net_io){
            .frame_channels = 1, .height = SIDE, .width = SIDE, .stack = FRAME_STACK, .actions = ACTIONS};
        algo->stack = FRAME_STACK;
    }
    if (s->dict) learner.io = dict_io();
    if (s->normalise && !s->frames) learner.io.inputs[0] = numbers, learner.io.input_count = 1;
    learner.io.inputs[0].normalise = learner.io.normalise_rewards = s->normalise;
    learner.io.normalise_frames = s->normalise && s->frames;
    learner.io.lstm = s->lstm ? LSTM_UNITS : 0;
    learner.io.lstm_layers = (int)s->lstm;
    algo->recurrent = s->lstm > 0;
    algo->burn_in = s->burn_in;
    learner.head = (struct farm_head_options){.squash = s->squash, .state_sigma = s->sigma};
    learner.io.free_outputs = s->squash && !s->sigma ? 2 : 0;
    algo->batch = s->batch;
    algo->option[FARM_VTRACE_DISCOUNT] = 0.95f;
    algo->option[FARM_VTRACE_LAMBDA] = 0.9f;
    if (s->ppo) {
        const float option[] = {0.95f, 0.9f, 0.2f, 0.1f, 0.01f, 0.5f, 2, 1, FARM_PPO_NORMALISE_MINIBATCH};
        algo->algo = &farm_ppo;
        memcpy(algo->option, option, sizeof option);
    }
    algo->reward_scale = s->reward != 0 ? 3e38 : 0.5;
    algo->grad_norm_clip = 2;
    algo->adam_epsilon = 1e-4;
    algo->loss_sum = !s->loss_mean;
    learner.stats = &farm->stats;
    learner.seed = 7;
    learner.precision = s->bf16 ? FARM_PRECISION_BF16 : FARM_PRECISION_F32;
    learner.infer_batch_max = s->infer_batch_max;
    learner.micro_batch = s->micro_batch;
    learner.spin_ns = s->spin_ns;
    learner.memory_node = -1;
    learner.mirror = s->mirror;
    return learner;
}

static struct farm_net_spec net_spec(const struct setting *setting) {
    if (!setting->frames) return *farm_net_find(setting->normalise ? "separate" : "mlp", NULL);
    return (struct farm_net_spec){
        .name = "small",
        .about = "small",
        .layer_count = 3,
        .layers = {{.kind = FARM_LAYER_CONV, .out = 8, .kernel = 4, .stride = 2, .activation = FARM_ACTIVATION_RELU},
                   {.kind = FARM_LAYER_CONV, .out = 8, .kernel = 3, .stride = 1, .activation = FARM_ACTIVATION_RELU},
                   {.kind = FARM_LAYER_DENSE, .out = 16, .activation = FARM_ACTIVATION_RELU}}};
}

static void open_rings(struct farm *farm) {
    const struct farm_field_spec frame = {.name = "obs", .dtype = FARM_U8, .rank = 2, .dims = {SIDE, SIDE}};
    const struct farm_field_spec flat = {.name = "obs", .dtype = FARM_F32, .rank = 1, .dims = {FLAT}};
    struct farm_ring_spec spec = {.lanes = LANES, .width = WIDTH, .steps = STEPS};
    const struct farm_field_spec dict[] = {
        flat,
        {.name = "left", .dtype = FARM_U8, .rank = 3, .dims = {SIDE, DICT_WIDTH, 3}},
        {.name = "card", .dtype = FARM_I32, .rank = 1, .dims = {1}, .choices = CHOICES},
        {.name = "right", .dtype = FARM_U8, .rank = 3, .dims = {SIDE, DICT_WIDTH, 3}},
    };
    spec.env.obs_count = farm->setting.dict ? sizeof dict / sizeof *dict : 1;
    memcpy(spec.env.obs,
           farm->setting.dict     ? dict
           : farm->setting.frames ? &frame
                                  : &flat,
           spec.env.obs_count * sizeof *dict);
    if (farm->setting.masked)
        spec.env.obs[spec.env.obs_count++] =
            (struct farm_field_spec){.name = "action_mask", .dtype = FARM_U8, .rank = 1, .dims = {ACTIONS}};
    spec.env.action = (struct farm_action_spec){.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {ACTIONS}};
    if (farm->setting.squash)
        spec.env.action =
            (struct farm_action_spec){.kind = FARM_ACTION_CONTINUOUS, .dims = 2, .low = {-1, -3}, .high = {1, 3}};
    spec.env.frames_per_step = 1;
    farm_ring_spec_answers(&spec);
    if (farm->setting.squash) farm_ring_spec_sample(&spec);
    if (farm->setting.lstm) // a burn-in may begin at any step
        farm_ring_spec_state(&spec, farm->setting.lstm * 2 * LSTM_UNITS, farm->setting.burn_in ? 1 : UNROLL);
    const struct farm_window_shape shape = {.stride = UNROLL,
                                            .length = farm->setting.burn_in + UNROLL + 1,
                                            .burn_in = farm->setting.burn_in,
                                            .stack = farm->learner.algo.stack};
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
static void make_way_fastest(enum farm_emulator_way way) {
    const int64_t slow_us = 2000;
    farm_emulator.major = way == FARM_EMULATOR_LOADS ? 8 : 9; // no bulk copies
    farm_emulator.no_batches = way != FARM_EMULATOR_COPIES;
    farm_emulator.slow_loads = way != FARM_EMULATOR_LOADS ? slow_us : 0;
    farm_emulator.slow_bulk = way == FARM_EMULATOR_COPIES ? slow_us : 0;
}

struct farm *open_farm(struct setting setting) {
    struct farm *farm = calloc(1, sizeof *farm);
    farms_open++;
    farm->setting = setting;
    make_way_fastest(setting.obs_way);
    farm->spec = net_spec(&setting);
    farm->learner = learner_config(farm);
    cr_assert_eq(farm_net_make(&farm->spec, &farm->learner.io, &farm->net, &farm->err), FARM_OK, "%s",
                 farm->err.message);
    open_rings(farm);
    return farm;
}

void lend_descriptors(struct farm *farm) {
    for (uint32_t r = 0; r < RINGS; r++) farm_lanes_lend_writable(&farm->lanes, r, dup(farm->made[r].up.fd));
}

enum farm_status open_backend(struct farm *farm, const struct farm_backend_ops *ops) {
    cr_assert_eq(farm_algo_plan_make(&farm->learner.algo, &farm->plan, &farm->err), FARM_OK);
    farm->plan.sync = farm->setting.sync;
    if (farm->setting.passes) {
        farm->plan.epochs = 2;
        farm->plan.minibatch =
            (farm_algo_units(&farm->plan, farm->setting.batch) + farm->setting.passes - 1) / farm->setting.passes;
    }
    struct farm_head head;
    cr_assert_eq(farm_head_make(&farm->made[0].spec.env, farm->learner.head, &head, &farm->err), FARM_OK);
    const struct farm_backend_config config = {.learner = &farm->learner,
                                               .plan = &farm->plan,
                                               .net = &farm->net,
                                               .head = head,
                                               .width_max = WIDTH,
                                               .columns_max = farm->setting.batch,
                                               .lanes = &farm->lanes,
                                               .shards = ops->shards ? farm->setting.shards : 1};
    farm->ops = ops;
    const enum farm_status status = ops->create(&config, &farm->backend, &farm->err);
    farm_emulator.slow_loads = farm_emulator.slow_bulk = 0;
    return status;
}

void expect_obs_path(const struct farm *farm) {
    for (uint32_t k = 0; k < farm->setting.shards; k++) {
        const struct farm_cuda_context *context = farm_cuda_backend_context(farm->backend, k);
        if (!context->direct) continue;
        cr_assert_eq(context->obs_path.copies, farm->setting.obs_way == FARM_EMULATOR_COPIES);
        if (context->obs_path.copies) continue;
        cr_assert_eq(context->obs_path.way,
                     farm->setting.obs_way == FARM_EMULATOR_BULK ? FARM_CUDA_PULL_BULK : FARM_CUDA_PULL_LOADS);
    }
}

void must_open_backend(struct farm *farm, const struct farm_backend_ops *ops) {
    const enum farm_status status = open_backend(farm, ops);
    cr_assert_eq(status, FARM_OK, "%s", farm->err.message);
    if (ops == &farm_backend_cuda) expect_obs_path(farm);
}

struct farm *open_ready(struct setting setting) {
    struct farm *farm = open_farm(setting);
    must_open_backend(farm, &farm_backend_cuda);
    return farm;
}

void expect_nothing_left(void) {
    const struct farm_emulator_account a = farm_emulator_account();
    cr_assert_eq(a.allocations + a.pinned + a.registered + a.streams + a.events + a.graphs + a.graph_execs, 0,
                 "left behind: %lu allocations, %lu pinned, %lu registered, %lu streams, %lu events, %lu graphs, %lu "
                 "instances",
                 a.allocations, a.pinned, a.registered, a.streams, a.events, a.graphs, a.graph_execs);
}

void close_farm(struct farm *farm) {
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

static double draw_uniform(uint64_t lane, uint64_t env, uint64_t n, uint64_t what) {
    return (double)(farm_random_mix(what ^ farm_random_mix(n ^ farm_random_mix(env ^ farm_random_mix(lane)))) >> 11) /
           9007199254740992.0;
}

bool is_first(uint64_t lane, uint64_t env, uint64_t n) {
    return n == 0 || draw_uniform(lane, env, n - 1, 1) < 0.15;
}

static void write_field(struct farm *farm, struct farm_lane *lane, uint32_t f, uint32_t id, uint32_t e, uint64_t n) {
    const struct farm_field_spec *field = &farm->made[0].spec.env.obs[f];
    uint8_t *obs = farm_lane_obs(lane, f, n, e);
    for (size_t i = 0; i < farm_field_values(field); i++) {
        const double draw = draw_uniform(id, e, n, 100 + 1000 * f + i);
        if (field->dtype == FARM_U8) obs[i] = (uint8_t)(256 * draw);
        if (field->dtype == FARM_F32) ((float *)(void *)obs)[i] = (float)(2 * draw - 1);
        if (field->dtype == FARM_I32) ((int32_t *)(void *)obs)[i] = (int32_t)(CHOICES * draw);
    }
}

void write_step(struct farm *farm, uint32_t id, uint64_t n) {
    struct farm_lane *lane = &farm->actors[id / LANES].lanes[id % LANES];
    cr_assert_eq(farm_lane_actor_next(lane), n);
    cr_assert(farm_lane_actor_can_write(lane));
    for (uint32_t e = 0; e < WIDTH; e++) {
        for (uint32_t f = 0; f < lane->obs_count; f++) write_field(farm, lane, f, id, e, n);
        const bool first = is_first(id, e, n), last = is_first(id, e, n + 1);
        uint8_t *mask = farm->setting.masked ? farm_lane_obs(lane, 1, n, e) : NULL;
        for (uint64_t a = 0; a < ACTIONS && mask; a++)
            mask[a] = !last && (a == n % 3 || draw_uniform(id, e, n, a) < 0.4);
        farm_lane_flags(lane, n)[e] =
            (uint8_t)((first ? FARM_STEP_FIRST : 0) | (last ? FARM_STEP_LAST | FARM_STEP_TERMINATED : 0));
        const bool rewarded = n % 10 == 9 && id == 1;
        farm_lane_reward(lane, n)[e] = farm->setting.reward == 0 ? (float)(draw_uniform(id, e, n, 2) - 0.5)
                                       : rewarded                ? farm->setting.reward
                                                                 : 0;
    }
    farm_lane_actor_publish(lane);
}

enum farm_status answer_lanes(struct farm *farm, bool again) {
    struct farm_policy_rows rows[LANE_COUNT];
    uint32_t lane = 0, env = 0;
    while (lane < LANE_COUNT) {
        uint32_t room = farm->setting.infer_batch_max, count = 0;
        const uint32_t shard = farm->lanes.lanes[lane].shard;
        while (room && lane < LANE_COUNT && farm->lanes.lanes[lane].shard == shard) {
            const uint32_t left = WIDTH - env, part = left < room ? left : room;
            rows[count++] = (struct farm_policy_rows){.lane = farm->lanes.lanes[lane].lane,
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

void publish_lanes(struct farm *farm) {
    for (uint32_t id = 0; id < LANE_COUNT; id++) {
        write_step(farm, id, farm->n);
        cr_assert(farm_lanes_take_in(&farm->lanes.lanes[id], 0, &farm->stats));
    }
}

enum farm_status answer_published(struct farm *farm) {
    const enum farm_status status = answer_lanes(farm, false);
    if (status) return status;
    for (uint32_t id = 0; id < LANE_COUNT; id++) {
        cr_assert_eq(farm_lane_acted(farm->lanes.lanes[id].lane), farm->n + 1, "lane %u", id);
        farm->lanes.lanes[id].answered++;
    }
    farm->n++;
    return FARM_OK;
}

enum farm_status play_step(struct farm *farm) {
    publish_lanes(farm);
    return answer_published(farm);
}

static void release_steps(struct farm *farm) {
    const uint64_t history = farm->learner.algo.stack - 1;
    for (uint32_t id = 0; id < LANE_COUNT; id++)
        if (farm->trained > history) farm_lane_release(farm->lanes.lanes[id].lane, farm->trained - history);
}

// Begins the iteration of the windows from `start` on of `batch` environments, each shard's first ones.
static enum farm_status begin_iteration(struct farm *farm, uint64_t start) {
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
static enum farm_status run_passes(struct farm *farm) {
    const uint32_t parts = farm->setting.passes, units = farm_algo_units(&farm->plan, farm->setting.batch);
    uint32_t order[ENVIRONMENTS * UNROLL];
    enum farm_status status = FARM_OK;
    if (!parts) {
        const struct farm_pass all = {.learning_rate = 0.003};
        return farm->ops->pass(farm->backend, farm->slot, &all, &farm->err);
    }
    for (uint32_t epoch = 0; epoch < 2; epoch++) {
        for (uint32_t i = 0; i < units; i++) order[i] = (5 * i + epoch) % units; // 5 divides no batch here
        for (uint32_t m = 0; m < parts && !status; m++) {
            const uint32_t from = units * m / parts, to = units * (m + 1) / parts;
            const struct farm_pass part = {.indices = order + from, .count = to - from, .learning_rate = 0.003};
            status = farm->ops->pass(farm->backend, farm->slot, &part, &farm->err);
        }
    }
    return status;
}

enum farm_status make_update(struct farm *farm, bool ahead) {
    enum farm_status status = farm->begun ? FARM_OK : begin_iteration(farm, farm->trained);
    if (!status) status = run_passes(farm);
    if (!status) status = farm->ops->publish(farm->backend, farm->version + 1, &farm->err);
    farm->slot = !farm->slot;
    farm->begun = false;
    if (!status && ahead) status = begin_iteration(farm, farm->trained + UNROLL);
    farm->pass_stats = (struct farm_pass_stats){0};
    if (!status) status = farm->ops->finish(farm->backend, &farm->pass_stats, &farm->err);
    if (status) return status;
    farm->version++;
    farm->trained += UNROLL;
    release_steps(farm);
    return FARM_OK;
}

void must_update(struct farm *farm) {
    cr_assert_eq(make_update(farm, false), FARM_OK, "%s", farm->err.message);
}

void play_to(struct farm *farm, uint64_t steps) {
    while (farm->n < steps) cr_assert_eq(play_step(farm), FARM_OK, "%s", farm->err.message);
}

struct farm *open_played(struct setting setting, uint64_t steps) {
    struct farm *farm = open_ready(setting);
    play_to(farm, steps);
    return farm;
}

float *read_params(struct farm *farm) {
    const struct farm_backend_state state = farm->ops->state(farm->backend);
    return farm_backend_vector(&state, "");
}

// ---- a run ----

void record_answers(struct farm *farm, struct record *record) {
    const uint64_t n = farm->n - 1;
    for (uint32_t id = 0; id < LANE_COUNT; id++) {
        const struct farm_lane *lane = farm->lanes.lanes[id].lane;
        record->version[n][id] = *farm_lane_version(lane, n);
        for (uint32_t e = 0; e < WIDTH; e++) {
            const uint32_t row = id * WIDTH + e;
            if (farm->setting.squash) {
                memcpy(record->squashed[n][row], farm_lane_action(lane, n, e), sizeof record->squashed[n][row]);
                memcpy(record->sample[n][row], farm_lane_answer_at(lane, FARM_ANSWER_SAMPLE, n, e),
                       sizeof record->sample[n][row]);
            } else {
                memcpy(&record->action[n][row], farm_lane_action(lane, n, e), sizeof(int32_t));
            }
            memcpy(record->logits[n][row], farm_lane_policy(lane, n, e), sizeof record->logits[n][row]);
            record->value[n][row] = farm_lane_value(lane, n)[e];
        }
    }
}

void add_bytes_read(uint64_t *sum, const struct farm_emulator_account *before) {
    const struct farm_emulator_account now = farm_emulator_account();
    for (int way = 0; way < FARM_EMULATOR_WAYS; way++) sum[way] += now.read[way] - before->read[way];
}

void record_end(struct farm *farm, struct record *record) {
    record->counted[0] = farm->stats.bus_infer_bytes;
    record->counted[1] = farm->stats.bus_train_bytes;
    record->count = farm->net.parameter_count;
    record->squash = farm->setting.squash;
    record->params = memcpy(malloc(record->count * sizeof(float)), read_params(farm), record->count * sizeof(float));
}

// A ring leaves and joins again while the other one is served; its registration and mirror go and return.
static void leave_and_join(struct farm *farm) {
    const struct farm_emulator_account before = farm_emulator_account();
    farm->ops->leave(farm->backend, 1);
    const struct farm_emulator_account absent = farm_emulator_account();
    cr_assert_eq(before.registered - absent.registered, before.registered > 0 ? 2 : 0);
    cr_assert_lt(absent.device_bytes, before.device_bytes);
    lend_descriptors(farm);
    cr_assert_eq(farm->ops->join(farm->backend, 1, &farm->err), FARM_OK, "%s", farm->err.message);
    farm_lanes_end_writable(&farm->lanes);
    const struct farm_emulator_account again = farm_emulator_account();
    cr_assert_eq(again.registered, before.registered);
    cr_assert_eq(again.device_bytes, before.device_bytes);
}

struct record *run_farm(struct farm *farm) {
    struct record *record = calloc(1, sizeof *record);
    while (farm->n < ROUNDS) {
        struct farm_emulator_account before = farm_emulator_account();
        play_to(farm, farm->n + 1);
        add_bytes_read(record->inferred, &before);
        record_answers(farm, record);
        while (farm->trained + farm->setting.burn_in + UNROLL < farm->n) {
            before = farm_emulator_account();
            must_update(farm);
            add_bytes_read(record->trained, &before);
            struct farm_pass_stats *stats = &record->stats[record->updates++];
            *stats = farm->pass_stats;
            if (stats->bad_tensor) stats->bad_tensor = strdup(stats->bad_tensor); // the farm's
        }
        if (farm->ring_leaves && farm->n % 7 == 3) leave_and_join(farm);
    }
    record_end(farm, record);
    return record;
}

struct record *run_alone(struct setting setting, const struct farm_backend_ops *ops) {
    struct farm *farm = open_farm(setting);
    must_open_backend(farm, ops);
    struct record *record = run_farm(farm);
    close_farm(farm);
    return record;
}

// ---- comparing runs ----

double distance(const float *a, const float *b, size_t count) {
    double apart = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        if (isinf(b[i]) && a[i] == b[i]) continue; // a forbidden choice
        apart += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(apart / (size > 0 ? size : 1));
}

void expect_same(const struct record *ours, const struct record *theirs, const char *what) {
    cr_assert_eq(ours->updates, theirs->updates);
    cr_assert_arr_eq(ours->action, theirs->action, sizeof ours->action, "%s", what);
    cr_assert_arr_eq(ours->sample, theirs->sample, sizeof ours->sample, "%s", what);
    cr_assert_arr_eq(ours->squashed, theirs->squashed, sizeof ours->squashed, "%s", what);
    cr_assert_arr_eq(ours->logits, theirs->logits, sizeof ours->logits, "%s", what);
    cr_assert_arr_eq(ours->value, theirs->value, sizeof ours->value, "%s", what);
    cr_assert_arr_eq(ours->version, theirs->version, sizeof ours->version, "%s", what);
    cr_assert_arr_eq(ours->params, theirs->params, ours->count * sizeof(float), "%s", what);
}

void free_record(struct record *record) {
    for (uint64_t k = 0; k < record->updates; k++) free((char *)record->stats[k].bad_tensor);
    free(record->params);
    free(record);
}

void expect_absence_changes_nothing(struct farm *farm, struct record *steady) {
    farm->ring_leaves = true;
    struct record *record = run_farm(farm);
    close_farm(farm);
    expect_same(record, steady, "a ring that leaves and joins");
    free_record(record);
    free_record(steady);
}

void expect_refused(struct setting setting, enum farm_status status, const char *word) {
    struct farm *farm = open_farm(setting);
    const enum farm_status got = open_backend(farm, &farm_backend_cuda);
    cr_assert_eq(got, status, "%d: %s", (int)got, farm->err.message);
    cr_assert(strstr(farm->err.message, word) != NULL, "no '%s' in: %s", word, farm->err.message);
    close_farm(farm);
}
