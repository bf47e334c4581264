// The numbers of a run over the emulator: those of the CPU's backend, by every mirror and way across the bus, with one
// GPU and with two. The emulator runs work only when a thread waits for it, so reading an answer or an update too early
// is wrong in every run; with two GPUs it aborts if one touches the other's memory.
#include "access.h"
#include "farm.h"

#include "algo/vtrace.h"

TestSuite(cuda_numbers, .timeout = 240);

// ---- beside the CPU's backend ----

static void expect_near(const struct record *ours, const struct record *theirs) {
    cr_assert_eq(ours->updates, theirs->updates);
    cr_assert_gt(theirs->updates, 4);
    for (int n = 0; n < ROUNDS; n++) {
        for (int row = 0; row < ENVIRONMENTS; row++)
            cr_assert(ours->action[n][row] == theirs->action[n][row] &&
                          theirs->logits[n][row][theirs->action[n][row]] > -INFINITY,
                      "step %d row %d", n, row);
        for (int row = 0; row < ENVIRONMENTS && ours->squash; row++)
            for (int d = 0; d < 2; d++)
                cr_assert(fabsf(ours->sample[n][row][d] - theirs->sample[n][row][d]) < 1e-3f &&
                              fabsf(ours->squashed[n][row][d] - (d ? 3 : 1) * tanhf(ours->sample[n][row][d])) < 1e-6f &&
                              ours->sample[n][row][d] != 0,
                          "step %d row %d", n, row);
        for (int id = 0; id < LANE_COUNT; id++)
            cr_assert_eq(ours->version[n][id], theirs->version[n][id], "step %d lane %d", n, id);
        cr_assert_lt(distance(ours->logits[n][0], theirs->logits[n][0], ENVIRONMENTS * ACTIONS), 1e-3, "step %d", n);
        cr_assert_lt(distance(ours->value[n], theirs->value[n], ENVIRONMENTS), 1e-3, "step %d", n);
    }
    for (uint64_t k = 0; k < ours->updates; k++) {
        cr_assert_eq(ours->stats[k].bad_step, theirs->stats[k].bad_step);
        cr_assert_eq(isfinite(ours->stats[k].grad_norm) != 0, isfinite(theirs->stats[k].grad_norm) != 0);
        if (!isfinite(theirs->stats[k].grad_norm))
            cr_assert_str_eq(ours->stats[k].bad_tensor, theirs->stats[k].bad_tensor);
        if (!isfinite(theirs->stats[k].grad_norm)) continue;
        cr_assert_float_eq(ours->stats[k].grad_norm, theirs->stats[k].grad_norm, 1e-3 * theirs->stats[k].grad_norm);
        cr_assert_eq(ours->stats[k].terms[FARM_VTRACE_ROWS], theirs->stats[k].terms[FARM_VTRACE_ROWS]);
        cr_assert_lt(distance(ours->priorities[k], theirs->priorities[k], ENVIRONMENTS), 1e-3);
        cr_assert_float_eq(ours->stats[k].terms[FARM_VTRACE_POLICY], theirs->stats[k].terms[FARM_VTRACE_POLICY],
                           1e-3 * (1 + fabs(theirs->stats[k].terms[FARM_VTRACE_POLICY])));
    }
    cr_assert_lt(distance(ours->params, theirs->params, ours->count), 1e-4);
}

static void expect_as_cpu(const struct setting *settings, size_t count) {
    for (size_t i = 0; i < count; i++) {
        farm_emulator.devices = settings[i].shards;
        with_record *theirs = run_alone(settings[i], &farm_backend_cpu);
        with_record *ours = run_alone(settings[i], &farm_backend_cuda);
        expect_near(ours, theirs);
    }
}

Test(cuda_numbers, plays_and_learns_as_the_cpu_does) {
    static const struct setting settings[] = {
        {true, 1, ENVIRONMENTS, 5, 7, .spin_ns = 1000},
        {false, 1, ENVIRONMENTS, 0, 2, .loss_mean = true}, // lanes wider than a batch; the host sleeps while it waits
        {true, 1, ENVIRONMENTS, 5, 7, 3, true, .spin_ns = 1000, .masked = true},
        {true, 2, ENVIRONMENTS, 5, 7, .spin_ns = 1000},
        {false, 2, ENVIRONMENTS, 5, 7, .spin_ns = 1000, .squash = true, .sigma = true},
        {true, 2, 9, 2, 7, .loss_mean = true, .spin_ns = 1000}, // uneven shares; the mean is over all windows, not over
                                                                // each GPU's
        {true, 1, ENVIRONMENTS, 2, 7, 4, .spin_ns = 1000, .ppo = true},
        {false, 1, ENVIRONMENTS, 5, 7, 3, .loss_mean = true, .ppo = true, .squash = true},
        {true, 2, 9, 2, 7, 5, .loss_mean = true, .spin_ns = 1000, .ppo = true, .masked = true},
        {true, 1, ENVIRONMENTS, 5, 7, .spin_ns = 1000, .dict = true},
        {true, 2, ENVIRONMENTS, 2, 7, 2, .ppo = true, .dict = true, .normalise = true, .mirror = FARM_MIRROR_WINDOW},
        {false, 1, ENVIRONMENTS, 5, 7, 3, .loss_mean = true, .ppo = true, .normalise = true},
        {false, 2, ENVIRONMENTS, 5, 7, .normalise = true},
        {false, 1, ENVIRONMENTS, 5, 7, 3, .reward = 5}, // after a gradient that is not finite no pass changes anything
    };
    expect_as_cpu(settings, sizeof settings / sizeof *settings);
}

Test(cuda_numbers, plays_and_learns_with_a_memory_as_the_cpu_does) {
    static const struct setting settings[] = {
        {false, 1, ENVIRONMENTS, 5, 7, .lstm = 1},
        {false, 2, 9, 2, 7, 2, .lstm = 2, .burn_in = 3},
        {true, 1, ENVIRONMENTS, 5, 7, .lstm = 1, .burn_in = 6, .mirror = FARM_MIRROR_WINDOW},
        {true, 1, ENVIRONMENTS, 5, 7, 3, .dict = true, .ppo = true, .lstm = 2, .burn_in = 2},
        {true, 2, 9, 2, 7, 2, .loss_mean = true, .ppo = true, .lstm = 1, .mirror = FARM_MIRROR_WINDOW},
    };
    expect_as_cpu(settings, sizeof settings / sizeof *settings);
}

Test(cuda_numbers, learns_action_values_as_the_cpu_does) {
    static const struct setting settings[] = {
        {true, 1, ENVIRONMENTS, 5, 7, .q = 2, .masked = true},
        {true, 2, 9, 2, 7, .loss_mean = true, .q = 7, .mirror = FARM_MIRROR_WINDOW},
        {true, 2, ENVIRONMENTS, 5, 7, .q = 3, .dict = true, .normalise = true, .mirror = FARM_MIRROR_OFF},
        {false, 2, ENVIRONMENTS, 0, 7, .q = 1, .normalise = true},
        {true, 1, ENVIRONMENTS, 5, 7, .q = 2, .lstm = 1, .burn_in = 5, .mirror = FARM_MIRROR_WINDOW},
        {false, 2, 9, 2, 7, 3, .loss_mean = true, .q = 3, .lstm = 2, .burn_in = 2, .masked = true},
        {true, 2, 9, 2, 7, 3, .ppo = true, .q = 1, .masked = true},
    };
    expect_as_cpu(settings, sizeof settings / sizeof *settings);
}

// ---- the same steps and updates by both backends ----

typedef void script(struct rig *farm, const struct farm_backend_ops *ops);

// The newest answers, the newest update and the parameters agree after the script.
static void expect_agree(struct setting setting, script *play) {
    struct rig *const farms[] = {open_farm(setting), open_farm(setting)}, *const ours = farms[0],
                      *const theirs = farms[1];
    play(ours, &farm_backend_cuda);
    play(theirs, &farm_backend_cpu);
    for (uint32_t id = 0; id < LANE_COUNT; id++)
        cr_assert_lt(distance(farm_lane_policy(rig_lane(ours, id), ours->n - 1, 0),
                              farm_lane_policy(rig_lane(theirs, id), ours->n - 1, 0), WIDTH * ACTIONS),
                     1e-4);
    const struct farm_pass_stats *const a = &ours->pass_stats, *const b = &theirs->pass_stats;
    cr_assert_gt(a->terms[FARM_VTRACE_ROWS], 0);
    cr_assert_eq(a->terms[FARM_VTRACE_ROWS], b->terms[FARM_VTRACE_ROWS]);
    cr_assert_float_eq(a->grad_norm, b->grad_norm, 1e-3 * b->grad_norm);
    cr_assert_lt(distance(rig_params(ours), rig_params(theirs), ours->net.parameter_count), 1e-5);
    for (int i = 0; i < 2; i++) close_farm(farms[i]);
}

static void update_of_a_part(struct rig *farm, const struct farm_backend_ops *ops) {
    must_open_backend(farm, ops);
    play_to(farm, UNROLL + 1);
    farm->batch = farm->shards == 2 ? 7 : WIDTH;
    must_update(farm);
}

// The mean is over the update's windows, not over the batch's or each GPU's. Adam ignores a gradient's scale; its norm
// shows it.
Test(cuda_numbers, makes_updates_smaller_than_the_batch) {
    for (uint32_t shards = 1; shards <= 2; shards++) {
        struct setting setting = usual_setting(true, shards);
        setting.loss_mean = shards == 2;
        expect_agree(setting, update_of_a_part);
    }
}

// Four windows, each trained on before its last step is answered.
static void train_before_answers(struct rig *farm, const struct farm_backend_ops *ops) {
    must_open_backend(farm, ops);
    for (uint64_t window = 1; window <= 4; window++) {
        play_to(farm, window * UNROLL);
        publish_lanes(farm);
        must_update(farm);
        cr_assert_eq(rig_answer(farm), FARM_OK);
    }
}

Test(cuda_numbers, trains_windows_whose_last_step_is_unanswered_as_the_cpu_does) {
    for (int k = 0; k < 5; k++) { // the mirrors with frames, numbers, both
        struct setting setting = usual_setting(k != 3, 1);
        setting.sync = true;
        setting.dict = k == 4;
        setting.mirror = k < 3 ? (enum farm_mirror)k : FARM_MIRROR_FULL;
        expect_agree(setting, train_before_answers);
    }
    expect_nothing_left();
}

static void restart(struct rig *farm, const struct farm_backend_ops *ops) {
    must_open_backend(farm, &farm_backend_cpu);
    play_to(farm, UNROLL + 3);
    rig_close_backend(farm);
    must_open_backend(farm, ops);
    play_to(farm, UNROLL + 4); // its stack reaches back before the restart
    must_update(farm);
}

Test(cuda_numbers, a_restarted_learner_goes_on_with_earlier_steps_and_states) {
    struct setting setting = usual_setting(true, 1);
    expect_agree(setting, restart);
    setting.lstm = 1;
    expect_agree(setting, restart);
}

static void restore_statistics(struct rig *farm, const struct farm_backend_ops *ops) {
    must_open_backend(farm, ops);
    play_to(farm, UNROLL + 1);
    must_update(farm);
    rig_params(farm)[farm->net.tensors[farm->net.normalise].offset + 1] += 0.5f;
    must(farm->ops->state_changed(farm->backend, 5, 1, &farm->err), &farm->err);
    farm->version = 5;
    play_to(farm, 2 * UNROLL + 1);
    must_update(farm);
}

// The statistics of a restored state normalise the next answers, and go on from there, on every GPU.
Test(cuda_numbers, restored_statistics_are_used_as_the_cpu_does) {
    for (int frames = 0; frames < 2; frames++) {
        struct setting setting = usual_setting(frames, 2);
        setting.normalise = true;
        expect_agree(setting, restore_statistics);
    }
}

// ---- updates begun ahead ----

// Plays, then makes three updates; ahead: each begins the next one before its end.
static struct record *run_updates(struct setting setting, bool ahead) {
    struct record *record = calloc(1, sizeof *record);
    with_farm *farm = open_farm(setting);
    must_open_backend(farm, &farm_backend_cuda);
    for (; farm->n < 3 * UNROLL + 1; record_answers(farm, record)) play_to(farm, farm->n + 1);
    const uint64_t launched = farm_emulator_account().graph_launches;
    while (record->updates < 3) {
        cr_assert_eq(rig_update(farm, ahead && record->updates < 2), FARM_OK, "%s", farm->err.message);
        record_update(farm, record);
        cr_assert_eq(farm->ops->state(farm->backend).version, record->updates); // also while the next one runs
    }
    cr_assert_eq(farm_emulator_account().graph_launches - launched, 3 * 2 * setting.shards, "gradients and steps");
    record_end(farm, record);
    return record;
}

// An update that begins while the one before it runs is the same update.
static void expect_ahead_agrees(struct setting setting) {
    with_record *ahead = run_updates(setting, true), *after = run_updates(setting, false);
    expect_same(ahead, after, "begun ahead");
    cr_assert_arr_eq(ahead->stats, after->stats, sizeof ahead->stats);
}

Test(cuda_numbers, an_update_begun_ahead_is_the_same_update) {
    for (uint32_t shards = 1; shards <= 2; shards++)
        for (int frames = 0; frames < 2; frames++) {
            struct setting setting = usual_setting(frames, shards);
            setting.normalise = true;
            for (; setting.mirror <= (shards == 1 ? FARM_MIRROR_OFF : FARM_MIRROR_FULL); setting.mirror++)
                expect_ahead_agrees(setting);
        }
    struct setting bounced = usual_setting(true, 1);
    farm_emulator.refuse_registration = 1;
    bounced.mirror = FARM_MIRROR_WINDOW;
    bounced.q = 4;
    expect_ahead_agrees(bounced);
    expect_nothing_left();
}

// ---- mirrors, ways across the bus ----

// Frames of the network's input in one window: each step's stack within its episode. q: of the first step and, by both
// sets, of the one after its horizon.
static uint64_t frames_seen(uint32_t q, uint32_t lane, uint32_t env, uint64_t start, uint64_t stack) {
    uint64_t seen = 0, ahead = q ? 0 : 1;
    while (ahead < q && !is_first(lane, env, start + ahead + 1)) ahead++;
    for (uint64_t row = 0; row <= (q ? 1 : UNROLL); row++)
        for (uint64_t k = 0; k < stack; k++) {
            seen += q && row ? 2 : 1;
            if (is_first(lane, env, start + row * ahead - k)) break;
        }
    return seen;
}

// Frames of an image that the updates read of the registered rings.
static uint64_t frames_trained(struct setting setting, uint64_t updates, uint64_t stack) {
    uint64_t seen = 0, more = setting.q ? setting.q : UNROLL;
    if (setting.mirror == FARM_MIRROR_FULL) return 0;
    if (setting.mirror == FARM_MIRROR_WINDOW) // complete windows; none before the first step
        return ENVIRONMENTS * (updates * (more + stack) - (stack - 1));
    for (uint64_t start = 0; start < updates * UNROLL; start += UNROLL)
        for (uint32_t lane = 0; lane < LANE_COUNT; lane++)
            for (uint32_t env = 0; env < WIDTH; env++) seen += frames_seen(setting.q, lane, env, start, stack);
    return seen;
}

static void expect_read(const uint64_t *read, enum farm_emulator_way by, uint64_t bytes, const char *what) {
    for (int way = 0; way < FARM_EMULATOR_WAYS; way++) {
        if (way == FARM_EMULATOR_LOADS && !farm_emulator_sees_loads) continue;
        const uint64_t expected = way == (int)by ? bytes : 0;
        cr_assert_eq(read[way], expected, "%s has read %lu bytes of the rings by way %d, not %lu", what, read[way], way,
                     expected);
    }
}

// The emulator and the backend count the same bytes read of the rings. Flat inputs do not come from there.
static void expect_obs_paths(const struct record *record, struct setting setting) {
    const uint64_t bytes = setting.dict ? 2 * 3 * SIDE * DICT_WIDTH : SIDE * SIDE;
    const uint64_t inferred = (uint64_t)ROUNDS * ENVIRONMENTS * bytes;
    const uint64_t trained = frames_trained(setting, record->updates, setting.dict ? DICT_STACK : FRAME_STACK) * bytes;
    const uint64_t flat = setting.dict ? ENVIRONMENTS * DICT_FLAT * sizeof(float) : 0;
    const bool by_bulk = setting.obs_way == FARM_EMULATOR_BULK && setting.mirror == FARM_MIRROR_WINDOW;
    expect_read(record->inferred, setting.obs_way, inferred, "inference");
    expect_read(record->trained, by_bulk ? FARM_EMULATOR_BULK : FARM_EMULATOR_LOADS, trained, "training");
    cr_assert_eq(record->counted[0], inferred + ROUNDS * flat);
    cr_assert_eq(record->counted[1], trained + record->updates * (UNROLL + 1) * flat);
}

static void expect_all_mirrors_agree(struct setting setting) {
    with_record *full = run_alone(setting, &farm_backend_cuda);
    if (setting.frames) expect_obs_paths(full, setting);
    for (enum farm_mirror mirror = FARM_MIRROR_WINDOW; mirror <= FARM_MIRROR_OFF; mirror++) {
        setting.mirror = mirror;
        with_record *other = run_alone(setting, &farm_backend_cuda);
        expect_same(other, full, mirror == FARM_MIRROR_OFF ? "off" : "window");
        if (setting.frames) expect_obs_paths(other, setting);
    }
}

static void expect_bounced_agrees(struct setting setting, int64_t *refusal) {
    with_record *registered = run_alone(setting, &farm_backend_cuda);
    *refusal = 1;
    for (setting.mirror = FARM_MIRROR_FULL; setting.mirror <= FARM_MIRROR_OFF; setting.mirror++) {
        with_record *bounced = run_alone(setting, &farm_backend_cuda);
        expect_same(bounced, registered, "bounced");
        expect_read(bounced->inferred, FARM_EMULATOR_LOADS, 0, "inference");
        expect_read(bounced->trained, FARM_EMULATOR_LOADS, 0, "training");
    }
}

Test(cuda_numbers, frames_cross_the_bus_as_often_as_the_mirror_requires_and_no_number_changes) {
    struct setting dict = usual_setting(true, 1);
    dict.dict = true;
    expect_all_mirrors_agree(dict);
    expect_all_mirrors_agree(usual_setting(true, 1));
    expect_all_mirrors_agree(usual_setting(true, 2));
    struct setting setting = usual_setting(true, 1);
    setting.q = 5;
    expect_all_mirrors_agree(setting);
}

Test(cuda_numbers, the_mirror_changes_no_number_of_flat_observations_in_bf16) {
    struct setting setting = usual_setting(false, 1);
    setting.bf16 = true;
    expect_all_mirrors_agree(setting);
}

Test(cuda_numbers, refused_registration_changes_no_number) {
    struct setting numbers = usual_setting(false, 1);
    numbers.squash = true;
    numbers.lstm = 2, numbers.burn_in = 1;
    expect_bounced_agrees(numbers, &farm_emulator.refuse_registration);
    farm_emulator_reset();
    struct setting dict = usual_setting(true, 1);
    dict.dict = true;
    expect_bounced_agrees(dict, &farm_emulator.refuse_read_only);
    farm_emulator_reset();
    expect_bounced_agrees(usual_setting(true, 2), &farm_emulator.refuse_registration);
}

// Inference uses the fastest way; so do training's windows, except the copy engines, which its graph cannot contain.
static void expect_way_agrees(enum farm_emulator_way way) {
    struct setting setting = usual_setting(true, 1);
    setting.mirror = FARM_MIRROR_WINDOW;
    with_record *by_loads = run_alone(setting, &farm_backend_cuda);
    setting.obs_way = way;
    with_record *other = run_alone(setting, &farm_backend_cuda);
    expect_obs_paths(other, setting);
    expect_same(other, by_loads, "another way");
    expect_nothing_left();
}

Test(cuda_numbers, observations_are_the_same_by_bulk_copies_and_by_copy_engines) {
    expect_way_agrees(FARM_EMULATOR_BULK);
    expect_way_agrees(FARM_EMULATOR_COPIES);
}
