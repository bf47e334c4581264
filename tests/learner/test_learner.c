// The learner process as the supervisor runs it: forked, over a real ring, with a test actor that checks every answer.
#include "../support/test_farm.h"

#include "algo/r2d2.h"

enum { GAME = 8, AHEAD = 16 }; // AHEAD: steps that a replay's LOCAL lanes may go on with

typedef bool condition(void);

static struct test_farm farm;
static uint64_t goal; // updates

static struct test_actor *actor(void) {
    return &farm.actors[0];
}

static struct farm_stats *stats(void) {
    return &farm.shared->stats;
}

static const struct farm_lane *lane_of(uint32_t l) {
    return &farm.views[0].lanes[l];
}

static void set_up_mode(enum farm_answers answers) {
    test_farm_open(&farm, 1, answers);
    farm.config.algo.option[FARM_VTRACE_DISCOUNT] = 0.5f;
    farm.config.algo.option[FARM_VTRACE_ENTROPY_COST] = 0.001f;
    farm.config.algo.lr = farm.config.algo.lr_end = 0.003;
}

static void set_up(void) {
    set_up_mode(FARM_ANSWERS_CENTRAL);
}

static void tear_down(void) {
    test_farm_close(&farm);
}

TestSuite(learner, .init = set_up, .fini = tear_down, .timeout = 60);

// ---- acting ----

// Acts until the condition holds (true), or until the learner has ended or the time is up (false).
static bool act_until(condition *reached) {
    const uint64_t start = farm_now_ns();
    uint64_t acted[LANES] = {0};
    uint32_t lane = 0;
    while (farm_now_ns() - start < TEST_LIMIT_NS) {
        if (farm_actor_wait(&farm.views[0], NULL, 0, 20000000, &lane)) test_actor_step(actor(), lane);
        for (uint32_t l = 0; l < LANES; l++) {
            const uint64_t before = acted[l];
            acted[l] = farm_lane_acted(lane_of(l));
            cr_assert(acted[l] >= before && acted[l] <= farm_lane_actor_next(lane_of(l)),
                      "lane %u: acted went from %lu to %lu", l, before, acted[l]);
        }
        cr_assert(!actor()->wrong[0], "%s", actor()->wrong);
        if (reached && reached()) return true;
        if (test_farm_learner_ended(&farm)) return false;
    }
    return false;
}

static void launch_until(condition *reached) {
    test_farm_launch(&farm);
    cr_assert(act_until(reached), "return %.2f, %lu updates of %lu: %s", farm_stats_get(&stats()->return_mean),
              stats()->updates, goal, farm.shared->err.message);
}

static void run_until(condition *reached) {
    launch_until(reached);
    test_farm_end(&farm, SIGTERM);
}

static void launch_to_its_end(int exit_status) {
    test_farm_launch(&farm);
    cr_assert_not(act_until(NULL));
    test_farm_expect_exit(&farm, exit_status);
}

static bool made_updates(void) {
    return stats()->updates >= goal;
}

static void run_for_updates(uint64_t updates) {
    goal = stats()->updates + updates;
    run_until(made_updates);
}

// ---- figures ----

// In all answered steps; the newest one may have no answer.
static struct test_counts count_answered(uint64_t *steps) {
    struct test_counts sum = {0};
    *steps = 0;
    for (uint32_t l = 0; l < LANES; l++) {
        const struct test_seat *seat = &actor()->seats[l];
        const bool open = farm_lane_acted(lane_of(l)) < farm_lane_actor_next(lane_of(l));
        *steps += farm_lane_acted(lane_of(l));
        sum.transitions += seat->published.transitions - (open ? seat->newest.transitions : 0);
        sum.games += seat->published.games - (open ? seat->newest.games : 0);
        sum.bad += seat->published.bad - (open ? seat->newest.bad : 0);
    }
    return sum;
}

// The figures of a learner that was never killed are exactly those of the steps.
static void expect_exact_figures(void) {
    uint64_t steps;
    const struct test_counts sum = count_answered(&steps);
    cr_assert(stats()->agent_steps == sum.transitions && stats()->episodes == sum.games &&
                  stats()->bad_values == sum.bad,
              "%lu agent steps, %lu episodes, %lu bad values; the actor made %lu, %lu, %lu", stats()->agent_steps,
              stats()->episodes, stats()->bad_values, sum.transitions, sum.games, sum.bad);
    const uint64_t rows = lane_of(0)->local ? 0 : steps * WIDTH;
    cr_assert_geq(stats()->infer_rows, rows);
    cr_assert_lt(stats()->infer_rows, rows + LANES * WIDTH, "at most a part of a lane was computed for nothing");
    cr_assert_eq(stats()->windows, stats()->updates * farm.config.algo.batch);
    char findings[2000];
    const int count = actor()->spoil ? 0 : verify_lanes(&farm.views[0], findings, sizeof findings);
    cr_assert_eq(count, 0, "%s", findings);
}

// The newest checkpoint's vectors, to be freed; its path.
static float *newest_checkpoint(char path[512]) {
    struct farm_checkpoint_metadata metadata;
    float *vectors = test_newest_checkpoint(&farm.config, path, 512, &metadata);
    // A killed learner may have written a file that it did not count.
    cr_assert_geq(farm_checkpoint_get_u64(&metadata, "frames"), stats()->checkpoint_frames);
    farm_checkpoint_metadata_free(&metadata);
    return vectors;
}

static void check_checkpoint(void) {
    char path[512];
    free(newest_checkpoint(path));
}

static struct farm_net make_net(void) {
    struct farm_net net;
    cr_assert_eq(farm_net_make(&farm.config.net, &farm.config.io, &net, &farm.shared->err), FARM_OK);
    return net;
}

// Saves a checkpoint of version 0 with this pair of metadata, which the learner loads. Returns its parameters, to be
// freed.
static float *load_saved(const char *key, const char *value) {
    static char path[512];
    const struct farm_net net = make_net();
    const char *const pairs[][2] = {{key, value}};
    float *params = calloc(net.parameter_count, sizeof *params);
    for (size_t i = 0; i < net.parameter_count; i++) params[i] = 0.05f;
    const struct farm_backend_state state = farm_backend_state_of(params, NULL, NULL, 0, 0);
    snprintf(path, sizeof path, "%s/000000000000.safetensors", farm.folder);
    cr_assert_eq(farm_checkpoint_save(path, &net, &state, pairs, 1, &farm.shared->err), FARM_OK);
    farm.config.checkpoints.load = path;
    return params;
}

// ---- training ----

static bool has_learned(void) {
    return stats()->episodes >= 1000 && farm_stats_get(&stats()->return_mean) > 0.85 * GAME; // chance: GAME / 4
}

Test(learner, learns_answers_each_step_once_and_ends_on_sigterm_with_a_checkpoint) {
    // Earlier sessions took 30 s of a run of 40 s. No supervisor reports this session's first step here.
    farm.config.before.wall_s = 30;
    farm.config.target.seconds = 40;
    farm.config.algo.lr = 0.012;
    farm.config.algo.lr_end = 0;
    run_until(has_learned);
    expect_exact_figures();
    cr_assert_float_eq(farm_stats_get(&stats()->learning_rate), 0.003, 1e-12, "a quarter of the time is left");
    cr_assert_eq(stats()->done, 0, "the run has no target");
    cr_assert_gt(actor()->seats[0].version, 0, "answers come from trained parameters");
    check_checkpoint();
    cr_assert_eq(stats()->checkpoint_frames, stats()->frames, "the checkpoint is of the last moment");
}

static bool has_saved(void) {
    return stats()->checkpoints >= 2 && stats()->updates >= 20;
}

static bool went_on(void) {
    return stats()->updates >= goal && stats()->checkpoints >= 4;
}

// With a stack longer than a window nothing is released at first, and yet no window is trained on twice but the one
// whose update the killed learner counted and whose last step it did not answer.
Test(learner, a_synchronous_one_goes_on_with_the_window_that_was_not_trained_on) {
    farm.config.algo.regime = FARM_REGIME_SYNC;
    farm.config.algo.stack = 5 * UNROLL;
    goal = 3;
    launch_until(made_updates);
    test_farm_end(&farm, SIGKILL);
    const uint64_t again = farm_lane_acted(lane_of(0)) <= UNROLL * stats()->updates;
    run_for_updates(3);
    cr_assert_geq(farm_lane_acted(lane_of(0)), UNROLL * (stats()->updates - again), "%lu steps, %lu updates, %lu again",
                  farm_lane_acted(lane_of(0)), stats()->updates, again);
}

Test(learner, goes_on_where_it_was_after_sigkill) {
    char path[512];
    uint64_t acted, steps;
    farm.config.checkpoints.every_s = 0.03;
    launch_until(has_saved);
    for (int life = 0; life < 2; life++) {
        test_farm_end(&farm, SIGKILL);
        const struct farm_stats before = *stats();
        (void)count_answered(&acted);
        free(newest_checkpoint(path));
        farm.config.checkpoints.load = path;
        goal = before.updates + 20;
        launch_until(went_on);
        (void)count_answered(&steps);
        cr_assert(steps > acted && stats()->agent_steps > before.agent_steps && stats()->episodes > before.episodes);
    }
    test_farm_end(&farm, SIGTERM);
    // A killed learner may have answered one step of each lane without counting it.
    const uint64_t transitions = count_answered(&steps).transitions;
    cr_assert_leq(stats()->agent_steps, transitions);
    cr_assert_geq(stats()->agent_steps + 2 * LANES * WIDTH, transitions);
}

static bool has_updated(void) {
    return stats()->updates >= 20;
}

static bool all_taken_in(void) {
    bool all = true;
    for (uint32_t l = 0; l < LANES; l++) all &= farm_lane_acted(lane_of(l)) == farm_lane_actor_next(lane_of(l));
    return all;
}

Test(learner, takes_in_and_trains_on_steps_of_actors_that_run_the_policy_themselves) {
    tear_down();
    set_up_mode(FARM_ANSWERS_LOCAL);
    launch_until(has_updated);
    const uint64_t start = farm_now_ns();
    while (!all_taken_in()) cr_assert_lt(farm_now_ns() - start, TEST_LIMIT_NS, "published steps are left");
    test_farm_end(&farm, SIGTERM);
    expect_exact_figures();
    cr_assert_eq(stats()->infer_calls, 0);
}

// DQN over replay lanes: n 2, double, duelling, a target copied every 20 updates.
static void set_up_replay(enum farm_answers answers) {
    tear_down();
    test_farm_open(&farm, 0, answers);
    farm.spec.leaf_every = 1;
    test_farm_add(&farm, 0);
    const float options[] = {0.5f, 2, 20, 1, 1};
    memset(farm.config.algo.option, 0, sizeof farm.config.algo.option);
    memcpy(farm.config.algo.option, options, sizeof options);
    farm.config.algo.algo = &farm_dqn;
    farm.config.algo.batch = 16;
    farm.config.algo.lr = farm.config.algo.lr_end = 0.003;
    farm.config.head.q = farm.config.head.duelling = true;
    farm.config.first_stored = true;
    farm.config.replay = (struct farm_replay_config){
        .start = 100, .ratio = 4, .repeats = true, .exponent = 0.5f, .importance = 0.4f, .importance_end = 1};
}

// Every insertion is counted once, although the next learner finds windows that the dead one had inserted.
static void expect_sound_replay(uint64_t deaths) {
    uint64_t steps;
    (void)count_answered(&steps);
    const uint64_t inserted = stats()->replay_inserted, sampled = stats()->replay_sampled;
    cr_assert(inserted <= steps * WIDTH && inserted + (4 + 2 * deaths) * LANES * WIDTH >= steps * WIDTH,
              "%lu windows of %lu steps", inserted, steps * WIDTH);
    cr_assert_leq((double)sampled, 4 * (double)(inserted - 100));
    cr_assert_geq((double)sampled, 4 * (double)(inserted - 100) - 4 * (3 + AHEAD) * LANES * WIDTH - 4 * 16,
                  "%lu windows inserted, %lu handed out, death %lu", inserted, sampled, deaths);
    cr_assert_leq(stats()->replay_live, STEPS * LANES * WIDTH);
    cr_assert_eq(stats()->replay_bad_priorities, 0);
}

// The test actor's own answers: it is paid 1 for each, and predicts 0 for every action. So the errors of n 2 are 1.5 at
// first, and 1 before the end of a game.
static void expect_first_priorities(void) {
    uint32_t full = 0;
    for (uint32_t l = 0; l < LANES; l++)
        for (uint32_t i = 0; i < STEPS * WIDTH; i++) full += lane_of(l)->leaf[i] == sqrtf(1.5f);
    cr_assert_gt(full, WIDTH, "%u windows have the priority of their stored answers", full);
}

Test(learner, replays_windows_in_place_and_goes_on_with_their_priorities_after_sigkill) {
    for (int local = 0; local < 2; local++) {
        set_up_replay(local ? FARM_ANSWERS_LOCAL : FARM_ANSWERS_CENTRAL);
        for (uint64_t deaths = 0; deaths < 3; deaths++) {
            goal = stats()->updates + 50;
            launch_until(made_updates);
            test_farm_end(&farm, SIGKILL);
            expect_sound_replay(deaths);
            if (local) expect_first_priorities();
        }
        goal = stats()->updates + 50;
        run_until(local ? made_updates : has_learned);
        expect_sound_replay(3);
    }
}

// As a learner leaves them that dies while its training lags.
Test(learner, trains_on_lanes_that_are_full_and_answered_when_it_starts) {
    with_ring learner = open_view(&farm.made[0], FARM_RING_LEARNER);
    for (uint32_t l = 0; l < LANES; l++) {
        for (uint64_t n = 0; n < STEPS; n++) {
            test_actor_step(actor(), l);
            farm_lane_answer(&learner.lanes[l], n);
        }
        cr_assert_not(farm_lane_actor_can_write(&farm.views[0].lanes[l]));
    }
    run_until(has_updated);
}

Test(learner, reaches_its_frames_and_sets_done) {
    farm.config.frames_per_step = 4;
    farm.config.before.frames = 1000;
    farm.config.target.frames = 21000;
    launch_to_its_end(0);
    cr_assert_eq(stats()->done, 1);
    cr_assert_eq(stats()->frames, 1000 + 4 * stats()->agent_steps);
    cr_assert_geq(stats()->frames, 21000);
    cr_assert_leq(stats()->frames, 21000 + 4 * LANES * WIDTH, "it ends with the batch that reaches the target");
    expect_exact_figures();
    check_checkpoint();
}

Test(learner, counts_a_value_that_makes_no_sense_once_and_trains_on_none) {
    uint64_t steps;
    actor()->spoil = true;
    run_until(has_learned);
    const uint64_t bad = count_answered(&steps).bad;
    cr_assert_gt(bad, 50);
    cr_assert_eq(stats()->bad_values, bad, "%lu bad values, %lu were written", stats()->bad_values, bad);
    cr_assert(isfinite(farm_stats_get(&stats()->grad_norm)) &&
              isfinite(farm_stats_get(&stats()->algo[FARM_VTRACE_BASELINE - 1])));
    check_checkpoint(); // refuses numbers that are not finite
}

Test(learner, stops_at_the_first_gradient_that_is_not_finite_and_saves_what_it_had) {
    farm.config.algo.reward_scale = 1e38;
    launch_to_its_end(1);
    const char *message = farm.shared->err.message;
    cr_assert(strstr(message, "at optimiser step ") && strstr(message, " is not finite"), "%s", message);
    cr_assert(strstr(message, "value.bias") && strstr(message, "nor is loss_value"), "%s", message);
    check_checkpoint();
}

// ---- a device: the CPU backend, whose state is a copy as a GPU's is; it may be lost ----

enum { LOST_AFTER = 200 }; // updates, more than a learner makes before it ends
static struct {
    uint64_t copied_after; // version of the last copy before the loss; 0: the first parameters
    size_t count;          // parameters
    struct farm_backend_state copy;
} device;

static void copy_device(struct farm_backend *backend) {
    const struct farm_backend_state from = farm_backend_cpu.state(backend);
    const size_t bytes = device.count * sizeof(float);
    for (uint32_t v = 0; v < from.vector_count; v++) {
        struct farm_backend_vector *to = &device.copy.vectors[v];
        if (!to->values) *to = (struct farm_backend_vector){from.vectors[v].name, malloc(bytes)};
        memcpy(to->values, from.vectors[v].values, bytes);
    }
    device.copy.vector_count = from.vector_count;
    device.copy.version = from.version;
    device.copy.optimiser_step = from.optimiser_step;
}

static enum farm_status begin_on_device(struct farm_backend *backend, uint32_t slot, const struct farm_window *windows,
                                        uint32_t count, struct farm_error *err) {
    const uint64_t made = farm_backend_cpu.state(backend).version;
    if (made == LOST_AFTER) return farm_fail(err, FARM_E_DEAD, "the device is lost");
    if (made == 0) copy_device(backend);
    return farm_backend_cpu.begin(backend, slot, windows, count, err);
}

static enum farm_status finish_on_device(struct farm_backend *backend, struct farm_pass_stats *result,
                                         struct farm_error *err) {
    const enum farm_status status = farm_backend_cpu.finish(backend, result, err);
    result->copied = farm_backend_cpu.state(backend).version == device.copied_after;
    if (result->copied) copy_device(backend);
    return status;
}

static struct farm_backend_state state_of_device(struct farm_backend *backend) {
    if (farm_backend_cpu.state(backend).version < LOST_AFTER) copy_device(backend);
    return device.copy;
}

static enum farm_status restore_device(struct farm_backend *backend, uint64_t version, uint64_t optimiser_step,
                                       struct farm_error *err) {
    const struct farm_backend_state to = farm_backend_cpu.state(backend);
    for (uint32_t v = 0; v < to.vector_count; v++)
        memcpy(to.vectors[v].values, device.copy.vectors[v].values, device.count * sizeof(float));
    return farm_backend_cpu.state_changed(backend, version, optimiser_step, err);
}

Test(learner, a_device_goes_on_from_the_parameters_of_a_checkpoint) {
    struct farm_backend_ops ops = farm_backend_cpu;
    char path[512], later[512];
    device.count = make_net().parameter_count;
    ops.state = state_of_device;
    ops.state_changed = restore_device;
    farm.config.device.backend = &ops;
    run_for_updates(20);
    float *first = newest_checkpoint(path);
    farm.config.checkpoints.load = path;
    farm.config.algo.lr = farm.config.algo.lr_end = 0;
    run_for_updates(15); // more than the rings hold, so with other frames
    float *second = newest_checkpoint(later);
    cr_assert_str_neq(path, later);
    cr_assert_arr_eq(first, second, device.count * sizeof(float));
    free(first);
    free(second);
}

static bool acted_to_goal(void) {
    return farm_lane_acted(lane_of(0)) >= goal;
}

static bool was_answered(void) {
    return farm_lane_acted(lane_of(0)) > 0;
}

Test(learner, loads_a_checkpoint_of_version_0) {
    char later[512];
    float *params = load_saved("learning_rate_factor", "0.25");
    farm.config.algo.lr = farm.config.algo.lr_end = 0;
    goal = 5;
    launch_until(was_answered);
    test_expect_lane_answers(&farm.config, params, lane_of(0), 0, "before any update: lane 0");
    cr_assert(act_until(made_updates), "%s", farm.shared->err.message);
    test_farm_end(&farm, SIGTERM);
    float *kept = newest_checkpoint(later);
    cr_assert_arr_eq(kept, params, make_net().parameter_count * sizeof(float));
    struct farm_checkpoint_metadata metadata;
    cr_assert_eq(farm_checkpoint_read_metadata(later, &metadata, NULL), FARM_OK);
    cr_assert_eq(strtod(farm_checkpoint_get(&metadata, "learning_rate_factor"), NULL), 0.25, "kept by what resumes");
    farm_checkpoint_metadata_free(&metadata);
    free(params);
    free(kept);
}

// Each step trained on is counted once; in evaluation the statistics stay.
Test(learner, statistics_go_on_from_a_checkpoint_and_are_frozen_in_evaluation) {
    farm.config.io.input_count = 1;
    farm.config.io.inputs[0] = (struct farm_net_input){FARM_INPUT_NUMBERS, FLAT, 0, true, 0};
    farm.config.io.normalise_rewards = true;
    const struct farm_net net = make_net();
    char path[512];
    float *kept = NULL;
    for (int life = 0; life < 2; life++) {
        run_for_updates(10);
        free(kept);
        kept = newest_checkpoint(path);
        cr_assert_eq(kept[net.tensors[net.normalise + 2].offset], stats()->windows * UNROLL, "life %d", life);
        for (int i = 0; i < FLAT; i++) { // uniform in [-1, 1]
            cr_expect_float_eq(kept[net.tensors[net.normalise].offset + i], 0, 0.2);
            cr_expect_float_eq(kept[net.tensors[net.normalise + 1].offset + i], 1.0 / 3, 0.1);
        }
        farm.config.checkpoints.load = path;
    }
    farm.config.checkpoints.held = path;
    farm.config.checkpoints.load = "/removed.safetensors"; // as by a training beside the player
    farm.play.games = UINT32_MAX;
    goal = farm_lane_acted(lane_of(0)) + 2 * STEPS;
    run_until(acted_to_goal);
    test_expect_lane_answers(&farm.config, kept, lane_of(0), farm_lane_acted(lane_of(0)) - 1, "lane 0");
    free(kept);
}

// IMPALA's inputs; also in a learner that goes on after another was killed.
Test(learner, the_network_sees_the_last_action_and_reward) {
    enum { CHECKED = STEPS - 8 };
    farm.config.io = (struct farm_net_io){.stack = 1, .flat = FLAT + ACTIONS + 1, .input_count = 3, .actions = ACTIONS};
    const struct farm_net_input inputs[] = {{FARM_INPUT_NUMBERS, FLAT, 0, false, 0},
                                            {FARM_INPUT_ONE_HOT, 1, ACTIONS, false, FARM_SOURCE_LAST_ACTION},
                                            {FARM_INPUT_SIGN, 1, 0, false, FARM_SOURCE_LAST_REWARD}};
    memcpy(farm.config.io.inputs, inputs, sizeof inputs);
    farm.config.algo.stack = 2;
    farm.config.algo.lr = farm.config.algo.lr_end = 0;
    goal = 2 * STEPS;
    launch_until(acted_to_goal);
    test_farm_end(&farm, SIGKILL);
    goal = farm_lane_acted(lane_of(0)) + CHECKED / 2;
    run_until(acted_to_goal);
    const struct farm_lane *lane = lane_of(0);
    for (uint64_t n = farm_lane_acted(lane) - CHECKED; n < farm_lane_acted(lane); n++) {
        const void *rows[WIDTH][3];
        for (uint32_t e = 0; e < WIDTH; e++) {
            const bool first = farm_lane_flags(lane, n)[e] & FARM_STEP_FIRST;
            rows[e][0] = farm_lane_obs(lane, 0, n, e);
            rows[e][1] = first ? NULL : farm_lane_action(lane, n - 1, e);
            rows[e][2] = first ? NULL : &farm_lane_reward(lane, n)[e];
        }
        test_expect_answers(&farm.config, NULL, lane, n, &rows[0][0], "lane 0");
    }
}

// Runs a learner until its device is lost and the learner has ended.
static void lose_device(struct farm_backend_ops *ops, uint64_t copied_after) {
    device.count = make_net().parameter_count;
    device.copied_after = copied_after;
    *ops = farm_backend_cpu;
    ops->begin = begin_on_device;
    ops->finish = finish_on_device;
    ops->state = state_of_device;
    farm.config.device.backend = ops;
    launch_to_its_end(1);
    cr_assert_str_eq(farm.shared->err.message, "the device is lost");
    cr_assert_eq(stats()->updates, LOST_AFTER);
}

Test(learner, the_checkpoint_after_a_lost_device_says_when_its_parameters_were) {
    enum { COPIED = 20, STEPS_OF_UPDATE = LANES * WIDTH * UNROLL };
    struct farm_backend_ops ops;
    struct farm_checkpoint_metadata metadata;
    char path[512], name[32], last[256];
    lose_device(&ops, COPIED);
    cr_assert(test_folder_files(farm.folder, last, sizeof last) > 0 && stats()->checkpoints == 1);
    free(newest_checkpoint(path));
    cr_assert_eq(farm_checkpoint_read_metadata(path, &metadata, &farm.shared->err), FARM_OK);
    static const char *const counts[] = {"version", "updates", "optimiser_step"};
    for (int i = 0; i < 3; i++) cr_assert_eq(farm_checkpoint_get_u64(&metadata, counts[i]), COPIED, "%s", counts[i]);
    const uint64_t frames = farm_checkpoint_get_u64(&metadata, "frames");
    cr_assert_eq(farm_checkpoint_get_u64(&metadata, "agent_steps"), frames);
    cr_assert_leq(farm_checkpoint_get_u64(&metadata, "episodes"), frames / GAME);
    farm_checkpoint_metadata_free(&metadata);
    // One step in GAME + 1 is FIRST, no transition; the rings hold some steps more.
    cr_assert_gt(frames, COPIED * STEPS_OF_UPDATE * GAME / (GAME + 1) - LANES * WIDTH);
    cr_assert_lt(frames, COPIED * STEPS_OF_UPDATE + LANES * WIDTH * STEPS);
    snprintf(name, sizeof name, "%012lu.safetensors", frames);
    cr_assert_str_eq(last, name);
    cr_assert_eq(stats()->checkpoint_frames, frames);
}

Test(learner, no_checkpoint_is_written_of_parameters_that_a_lost_device_has_not_trained) {
    struct farm_backend_ops ops;
    lose_device(&ops, 0);
    cr_assert_eq(test_folder_files(farm.folder, NULL, 0), 0);
    cr_assert_eq(stats()->checkpoints, 0);
}

// ---- evaluation ----

Test(learner, evaluation_counts_exactly_its_games_spread_over_the_environments) {
    for (int local = 0; local < 2; local++) {
        tear_down();
        set_up_mode(local ? FARM_ANSWERS_LOCAL : FARM_ANSWERS_CENTRAL);
        actor()->own_lengths = true;
        farm.play = (struct farm_run_play){.games = 3 * LANES * WIDTH, .greedy = true};
        launch_to_its_end(0);
        cr_assert_eq(stats()->done, 1);
        cr_assert_eq(stats()->episodes, farm.play.games);
        cr_assert_float_eq(farm_stats_get(&stats()->return_mean), (LANES * WIDTH - 1) / 2.0, 1e-9,
                           "each environment counts alike");
        cr_assert_eq(stats()->updates, 0);
        cr_assert_eq(test_folder_files(farm.folder, NULL, 0), 0, "evaluation writes no checkpoint");
    }
}

static bool has_acted(void) {
    return farm_lane_acted(lane_of(0)) > 200 && farm_lane_acted(lane_of(1)) > 200;
}

Test(learner, lanes_wider_than_a_batch_are_answered_in_parts) {
    farm.play = (struct farm_run_play){.games = UINT32_MAX, .greedy = true};
    farm.config.inference.batch_max = 3;
    run_until(has_acted);
    expect_exact_figures();
    cr_assert_leq(stats()->infer_rows, stats()->infer_calls * 3);
    for (uint32_t l = 0; l < LANES; l++) {
        const uint64_t n = farm_lane_acted(lane_of(l)) - 1;
        test_expect_lane_answers(&farm.config, NULL, lane_of(l), n, l ? "lane 1" : "lane 0");
        for (uint32_t e = 0; e < WIDTH; e++)
            cr_assert_eq(*(int32_t *)farm_lane_action(lane_of(l), n, e),
                         farm_categorical_greedy(farm_lane_policy(lane_of(l), n, e), ACTIONS));
    }
}

// ---- refusals ----

// With device auto the CPU computes where CUDA is unavailable; if the plan had a GPU, the log says what that costs.
Test(learner, falls_back_to_the_cpu_and_logs_why_and_what_it_costs) {
    for (int planned = 0; planned < 2; planned++) {
        char text[4096] = "";
        const int errors = memfd_create("log", MFD_CLOEXEC), before = dup(STDERR_FILENO);
        tear_down();
        set_up();
        farm.config.device.kind = FARM_DEVICE_AUTO;
        farm.config.device.cuda_library = "/nowhere/libfarm_cuda.so";
        farm.config.shards[0].gpu = planned ? "0000:01:00.0" : NULL;
        dup2(errors, STDERR_FILENO);
        test_farm_launch(&farm);
        dup2(before, STDERR_FILENO);
        cr_assert(act_until(has_updated), "%s", farm.shared->err.message);
        test_farm_end(&farm, SIGTERM);
        cr_assert_gt(pread(errors, text, sizeof text - 1, 0), 0);
        cr_expect(strstr(text, "using the CPU; CUDA is unavailable: the CUDA backend does not load: /nowhere/") != NULL,
                  "%s", text);
        cr_expect_eq(strstr(text, "--device cpu plans more") != NULL, planned, "%s", text);
        close(errors);
        close(before);
    }
}

static void expect_refused(const char *reason) {
    struct farm_error *err = &farm.shared->err;
    test_farm_launch(&farm);
    test_farm_expect_exit(&farm, 1);
    cr_assert(strstr(err->message, reason) != NULL, "no '%s' in: %s", reason, err->message);
    cr_assert_eq(stats()->ready, 0);
    cr_assert_eq(test_folder_files(farm.folder, NULL, 0), 0, "nothing is written");
    farm.config = test_farm_config(&farm);
}

Test(learner, refuses_what_cannot_work_with_a_sentence) {
    farm.config.algo.batch = 1000;
    expect_refused("does not fit the rings");
    cr_assert(strstr(farm.shared->err.message, "--ring-steps") != NULL, "%s", farm.shared->err.message);
    farm.config.algo.unroll = STEPS;
    expect_refused("does not fit the rings");
    farm.config.io.flat = FLAT + 1;
    expect_refused("does not fit the environment's");
    farm.config.io.actions = ACTIONS + 1;
    expect_refused("does not fit the environment's");
    farm.config.checkpoints.load = "/nowhere.safetensors";
    expect_refused("/nowhere.safetensors");
}

Test(learner, refuses_a_checkpoint_of_other_actions_whose_tensors_fit) {
    float *params = load_saved("head", "gaussian 2");
    launch_to_its_end(1);
    const char *message = farm.shared->err.message;
    cr_assert(strstr(message, "its policy, gaussian 2, cannot choose") && strstr(message, "need categorical "), "%s",
              message);
    free(params);
}
