// See farm.h.
#include "farm.h"

#include "algo/pqn.h"
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

// The learner's configuration, and the rings'.
static struct farm_ring_spec configure(struct rig *farm, const struct setting *s) {
    struct farm_ring_spec spec = farm_ring_spec_plain(LANES, WIDTH, STEPS, FARM_F32, FLAT, ACTIONS);
    struct farm_learner_config *learner = &farm->learner;
    *learner = test_learner_config(FLAT, ACTIONS, UNROLL);
    const struct farm_field_spec dict[] = {
        spec.env.obs[0],
        {.name = "left", .dtype = FARM_U8, .rank = 3, .dims = {SIDE, DICT_WIDTH, 3}},
        {.name = "card", .dtype = FARM_I32, .rank = 1, .dims = {1}, .choices = CHOICES},
        {.name = "right", .dtype = FARM_U8, .rank = 3, .dims = {SIDE, DICT_WIDTH, 3}},
    };
    if (s->frames) test_learner_deeper_frames(learner, &spec, SIDE, FRAME_STACK);
    if (s->dict) {
        memcpy(spec.env.obs, dict, sizeof dict);
        spec.env.obs_count = sizeof dict / sizeof *dict;
        learner->io = dict_io();
    }
    if (s->normalise && !s->frames) {
        learner->net = *net_spec("separate");
        learner->io.inputs[0] = numbers, learner->io.input_count = 1;
    }
    learner->io.inputs[0].normalise = learner->io.normalise_rewards = s->normalise;
    learner->io.normalise_frames = s->normalise && s->frames;
    if (s->masked)
        spec.env.obs[spec.env.obs_count++] =
            (struct farm_field_spec){.name = "action_mask", .dtype = FARM_U8, .rank = 1, .dims = {ACTIONS}};
    if (s->squash)
        spec.env.action =
            (struct farm_action_spec){.kind = FARM_ACTION_CONTINUOUS, .dims = 2, .low = {-1, -3}, .high = {1, 3}};
    farm_ring_spec_answers(&spec);
    if (s->squash) farm_ring_spec_sample(&spec);
    learner->head =
        (struct farm_head_options){.squash = s->squash, .state_sigma = s->sigma, .q = s->q > 0, .duelling = s->q > 0};
    learner->io.free_outputs = s->squash && !s->sigma ? 2 : 0;
    learner->io.lstm = s->lstm ? LSTM_UNITS : 0;
    learner->io.lstm_layers = (int)s->lstm;
    if (s->lstm) // a burn-in may begin at any step
        farm_ring_spec_state(&spec, s->lstm * 2 * LSTM_UNITS, s->burn_in ? 1 : UNROLL);
    learner->seed = 7;
    learner->arithmetic.precision = s->bf16 ? FARM_PRECISION_BF16 : FARM_PRECISION_F32;
    learner->inference.batch_max = s->infer_batch_max;
    learner->training.micro_batch = s->micro_batch;
    learner->inference.spin_ns = s->spin_ns;
    learner->device.mirror = s->mirror;
    return spec;
}

static void configure_algo(struct farm_algo_config *algo, const struct setting *s) {
    algo->recurrent = s->lstm > 0;
    algo->burn_in = s->burn_in;
    algo->batch = s->batch;
    algo->option[FARM_VTRACE_DISCOUNT] = 0.95f;
    algo->option[FARM_VTRACE_LAMBDA] = 0.9f;
    if (s->ppo) {
        const float option[] = {0.95f, 0.9f, 0.2f, 0.1f, 0.01f, 0.5f, 2, 1, FARM_PPO_NORMALISE_MINIBATCH};
        algo->algo = &farm_ppo;
        memcpy(algo->option, option, sizeof option);
    }
    if (s->q) {
        const float option[FARM_ALGO_OPTIONS_MAX] = {0.95f, (float)s->q, 2, true, true, s->lstm > 0, s->lstm > 0, 0.9f};
        algo->algo = s->ppo ? &farm_pqn : s->lstm ? &farm_r2d2 : &farm_dqn;
        memcpy(algo->option, option, sizeof option);
    }
    algo->reward_scale = s->reward != 0 ? 3e38 : 0.5;
    algo->grad_norm_clip = 2;
    algo->adam_epsilon = 1e-4;
    algo->loss_sum = !s->loss_mean;
}

// Makes one way the fastest of the start's trial by far, whatever the machine's load.
static void make_way_fastest(enum farm_emulator_way way) {
    const int64_t slow_us = 2000;
    farm_emulator.major = way == FARM_EMULATOR_LOADS ? 8 : 9; // no bulk copies
    farm_emulator.no_batches = way != FARM_EMULATOR_COPIES;
    farm_emulator.slow_loads = way != FARM_EMULATOR_LOADS ? slow_us : 0;
    farm_emulator.slow_bulk = way == FARM_EMULATOR_COPIES ? slow_us : 0;
}

struct rig *open_farm(struct setting setting) {
    struct rig *farm = calloc(1, sizeof *farm);
    farms_open++;
    farm->context = memcpy(malloc(sizeof setting), &setting, sizeof setting);
    farm->shards = setting.shards;
    farm->passes = setting.passes;
    farm->epochs = 2;
    farm->learning_rate = 0.003;
    make_way_fastest(setting.obs_way);
    const struct farm_ring_spec spec = configure(farm, &setting);
    configure_algo(&farm->learner.algo, &setting);
    rig_open(farm, spec, RINGS);
    farm->plan.sync = setting.sync;
    return farm;
}

const struct setting *setting_of(const struct rig *farm) {
    return farm->context;
}

enum farm_status open_backend(struct rig *farm, const struct farm_backend_ops *ops) {
    const enum farm_status status = rig_open_backend(farm, ops);
    farm_emulator.slow_loads = farm_emulator.slow_bulk = 0;
    return status;
}

void expect_obs_path(const struct rig *farm) {
    for (uint32_t k = 0; k < setting_of(farm)->shards; k++) {
        const struct farm_cuda_context *context = farm_cuda_backend_context(farm->backend, k);
        if (!context->direct) continue;
        cr_assert_eq(context->obs_path.copies, setting_of(farm)->obs_way == FARM_EMULATOR_COPIES);
        if (context->obs_path.copies) continue;
        cr_assert_eq(context->obs_path.way,
                     setting_of(farm)->obs_way == FARM_EMULATOR_BULK ? FARM_CUDA_PULL_BULK : FARM_CUDA_PULL_LOADS);
    }
}

void must_open_backend(struct rig *farm, const struct farm_backend_ops *ops) {
    const enum farm_status status = open_backend(farm, ops);
    cr_assert_eq(status, FARM_OK, "%s", farm->err.message);
    if (ops == &farm_backend_cuda) expect_obs_path(farm);
}

struct rig *open_ready(struct setting setting) {
    struct rig *farm = open_farm(setting);
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

void close_farm(struct rig *farm) {
    rig_close(farm);
    free(farm->context);
    free(farm);
    if (--farms_open == 0) expect_nothing_left();
}

void close_farm_at(struct rig **farm) {
    close_farm(*farm);
}

// ---- actors and the learner's loop ----

static double draw_uniform(uint64_t lane, uint64_t env, uint64_t n, uint64_t what) {
    return (double)(farm_random_mix(what ^ farm_random_mix(n ^ farm_random_mix(env ^ farm_random_mix(lane)))) >> 11) /
           9007199254740992.0;
}

bool is_first(uint64_t lane, uint64_t env, uint64_t n) {
    return n == 0 || draw_uniform(lane, env, n - 1, 1) < 0.15;
}

static void write_field(struct rig *farm, struct farm_lane *lane, uint32_t f, uint32_t id, uint32_t e, uint64_t n) {
    const struct farm_field_spec *field = &farm->made[0].spec.env.obs[f];
    uint8_t *obs = farm_lane_obs(lane, f, n, e);
    for (size_t i = 0; i < farm_field_values(field); i++) {
        const double draw = draw_uniform(id, e, n, 100 + 1000 * f + i);
        if (field->dtype == FARM_U8) obs[i] = (uint8_t)(256 * draw);
        if (field->dtype == FARM_F32) ((float *)(void *)obs)[i] = (float)(2 * draw - 1);
        if (field->dtype == FARM_I32) ((int32_t *)(void *)obs)[i] = (int32_t)(CHOICES * draw);
    }
}

void write_step(struct rig *farm, uint32_t id, uint64_t n) {
    struct farm_lane *lane = rig_actor(farm, id);
    cr_assert_eq(farm_lane_actor_next(lane), n);
    cr_assert(farm_lane_actor_can_write(lane));
    for (uint32_t e = 0; e < WIDTH; e++) {
        for (uint32_t f = 0; f < lane->obs_count; f++) write_field(farm, lane, f, id, e, n);
        const bool first = is_first(id, e, n), last = is_first(id, e, n + 1);
        uint8_t *mask = setting_of(farm)->masked ? farm_lane_obs(lane, 1, n, e) : NULL;
        for (uint64_t a = 0; a < ACTIONS && mask; a++)
            mask[a] = !last && (a == n % 3 || draw_uniform(id, e, n, a) < 0.4);
        farm_lane_flags(lane, n)[e] =
            (uint8_t)((first ? FARM_STEP_FIRST : 0) | (last ? FARM_STEP_LAST | FARM_STEP_TERMINATED : 0));
        const bool rewarded = n % 10 == 9 && id == 1;
        farm_lane_reward(lane, n)[e] = setting_of(farm)->reward == 0 ? (float)(draw_uniform(id, e, n, 2) - 0.5)
                                       : rewarded                    ? setting_of(farm)->reward
                                                                     : 0;
    }
    farm_lane_actor_publish(lane);
}

void publish_lanes(struct rig *farm) {
    for (uint32_t id = 0; id < LANE_COUNT; id++) write_step(farm, id, farm->n);
    rig_take_in(farm);
}

enum farm_status play_step(struct rig *farm) {
    publish_lanes(farm);
    return rig_answer(farm);
}

void must_update(struct rig *farm) {
    cr_assert_eq(rig_update(farm, false), FARM_OK, "%s", farm->err.message);
}

void play_to(struct rig *farm, uint64_t steps) {
    while (farm->n < steps) cr_assert_eq(play_step(farm), FARM_OK, "%s", farm->err.message);
}

struct rig *open_played(struct setting setting, uint64_t steps) {
    struct rig *farm = open_ready(setting);
    play_to(farm, steps);
    return farm;
}

// ---- a run ----

void record_answers(struct rig *farm, struct record *record) {
    const uint64_t n = farm->n - 1;
    for (uint32_t id = 0; id < LANE_COUNT; id++) {
        const struct farm_lane *lane = rig_lane(farm, id);
        record->version[n][id] = *farm_lane_version(lane, n);
        for (uint32_t e = 0; e < WIDTH; e++) {
            const uint32_t row = id * WIDTH + e;
            if (setting_of(farm)->squash) {
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

void record_update(struct rig *farm, struct record *record) {
    struct farm_pass_stats *stats = &record->stats[record->updates];
    *stats = farm->pass_stats;
    if (stats->priorities) memcpy(record->priorities[record->updates], stats->priorities, farm->batch * sizeof(float));
    stats->priorities = NULL; // the farm's, as a tensor's name is
    if (stats->bad_tensor) stats->bad_tensor = strdup(stats->bad_tensor);
    record->updates++;
}

void add_bytes_read(uint64_t *sum, const struct farm_emulator_account *before) {
    const struct farm_emulator_account now = farm_emulator_account();
    for (int way = 0; way < FARM_EMULATOR_WAYS; way++) sum[way] += now.read[way] - before->read[way];
}

void record_end(struct rig *farm, struct record *record) {
    record->counted[0] = farm->stats.bus_infer_bytes;
    record->counted[1] = farm->stats.bus_train_bytes;
    record->count = farm->net.parameter_count;
    record->squash = setting_of(farm)->squash;
    record->params = memcpy(malloc(record->count * sizeof(float)), rig_params(farm), record->count * sizeof(float));
}

// A ring leaves and joins again while the other one is served; its registration and mirror go and return.
static void leave_and_join(struct rig *farm) {
    const struct farm_emulator_account before = farm_emulator_account();
    farm->ops->leave(farm->backend, 1);
    const struct farm_emulator_account absent = farm_emulator_account();
    cr_assert_eq(before.registered - absent.registered, before.registered > 0 ? 2 : 0);
    cr_assert_lt(absent.device_bytes, before.device_bytes);
    rig_lend_writable(farm);
    cr_assert_eq(farm->ops->join(farm->backend, 1, &farm->err), FARM_OK, "%s", farm->err.message);
    farm_lanes_end_writable(&farm->lanes);
    const struct farm_emulator_account again = farm_emulator_account();
    cr_assert_eq(again.registered, before.registered);
    cr_assert_eq(again.device_bytes, before.device_bytes);
}

struct record *run_farm(struct rig *farm, bool leaves) {
    struct record *record = calloc(1, sizeof *record);
    const uint64_t length = farm->plan.shape.length, most = length > UNROLL ? length : UNROLL + 1;
    while (farm->n < ROUNDS) {
        struct farm_emulator_account before = farm_emulator_account();
        play_to(farm, farm->n + 1);
        add_bytes_read(record->inferred, &before);
        record_answers(farm, record);
        while (farm->trained + most <= farm->n) {
            before = farm_emulator_account();
            must_update(farm);
            add_bytes_read(record->trained, &before);
            record_update(farm, record);
        }
        if (leaves && farm->n % 7 == 3) leave_and_join(farm);
    }
    record_end(farm, record);
    return record;
}

struct record *run_alone(struct setting setting, const struct farm_backend_ops *ops) {
    with_farm *farm = open_farm(setting);
    must_open_backend(farm, ops);
    return run_farm(farm, false);
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
    cr_assert_arr_eq(ours, theirs, offsetof(struct record, stats), "%s: all answers", what);
    cr_assert_arr_eq(ours->params, theirs->params, ours->count * sizeof(float), "%s", what);
}

void free_record(struct record *record) {
    for (uint64_t k = 0; k < record->updates; k++) free((char *)record->stats[k].bad_tensor);
    free(record->params);
    free(record);
}

void free_record_at(struct record **record) {
    free_record(*record);
}

void expect_absence_changes_nothing(struct rig *farm, struct record *steady) {
    with_record *record = run_farm(farm, true);
    close_farm(farm);
    expect_same(record, steady, "a ring that leaves and joins");
    free_record(steady);
}

void expect_refused(struct setting setting, enum farm_status status, const char *word) {
    struct rig *farm = open_farm(setting);
    const enum farm_status got = open_backend(farm, &farm_backend_cuda);
    cr_assert_eq(got, status, "%d: %s", (int)got, farm->err.message);
    cr_assert(strstr(farm->err.message, word) != NULL, "no '%s' in: %s", word, farm->err.message);
    close_farm(farm);
}
