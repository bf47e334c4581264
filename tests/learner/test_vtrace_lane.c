// The path from a lane to the parameters: a trajectory with ends of every kind lies in real rings that have wrapped
// around. test_updates.c shows that an update is PyTorch's; this one that it does not depend on threads, pieces, parts
// of lanes and steps that make no sense, and which rewards reach it.
#include "../support/learner.h"
#include "kernels/random.h"

enum {
    LANES = 2,
    WIDTH = 3,
    STEPS = 17, // a ring; NUMBER steps are written, so that the last 17 are there
    NUMBER = 40,
    UNROLL = 5,
    ACTIONS = 3,
    FLAT = 5,
    SIDE = 12, // pixels of a frame
    STACK = 3,
    OBS_MAX = SIDE * SIDE,
};

// One step of one environment, as the test wrote it.
struct step {
    uint8_t obs[OBS_MAX]; // frames: pixels; flat: FLAT floats
    float reward, logits[ACTIONS];
    uint8_t flags;
    int32_t action;
};

enum { COLUMNS = 7, WINDOWS = 4 };

// An update: windows that wrap around the ring's end (slots 16, 0, ...), parts of lanes, both lanes.
static const struct farm_window usual[WINDOWS] = {
    {.lane_id = 0, .start = 31, .env_from = 1, .env_count = 2}, // wraps between its steps 33 and 34
    {.lane_id = 1, .start = 33, .env_from = 0, .env_count = 3},
    {.lane_id = 0, .start = 26, .env_from = 0, .env_count = 1},
    {.lane_id = 1, .start = 28, .env_from = 2, .env_count = 1},
};

// Two windows of whole lanes, and their parts.
static const struct farm_window whole[WINDOWS] = {{.lane_id = 0, .start = 31, .env_count = 3},
                                                  {.lane_id = 1, .start = 33, .env_count = 3}};
static const struct farm_window parts[WINDOWS] = {{.lane_id = 1, .start = 33, .env_from = 2, .env_count = 1},
                                                  {.lane_id = 0, .start = 31, .env_from = 1, .env_count = 2},
                                                  {.lane_id = 1, .start = 33, .env_from = 0, .env_count = 2},
                                                  {.lane_id = 0, .start = 31, .env_from = 0, .env_count = 1}};

static struct problem {
    bool frames;
    struct rig rig;
    struct step steps[LANES][NUMBER][WIDTH];
    uint64_t bad;                      // values that made no sense, in the last filling
    const struct farm_window *windows; // [WINDOWS] of the update; those without environments do not count
} problem;

// ---- the trajectory ----

// Ends within the windows above, and abandoned episodes.
static void write_flags(void) {
    enum { DONE = FARM_STEP_LAST | FARM_STEP_TERMINATED, CUT = FARM_STEP_LAST | FARM_STEP_TRUNCATED };
    const struct {
        uint32_t lane, env, n, flags, next; // at step n; next: at step n + 1
    } marks[] = {
        {0, 1, 33, DONE, FARM_STEP_FIRST},        // across the ring's end
        {0, 2, 31, FARM_STEP_FIRST, 0},           // an episode that starts with the window
        {0, 2, 35, CUT, FARM_STEP_FIRST},         // cut in the window's last transition but one
        {1, 0, 35, FARM_STEP_FIRST, 0},           // abandoned
        {1, 1, 38, DONE | FARM_STEP_GAME_END, 0}, // ends with the window
        {1, 2, 34, CUT, FARM_STEP_FIRST},         {1, 2, 36, DONE, FARM_STEP_FIRST}, // a short one
        {0, 0, 31, FARM_STEP_FIRST, 0},                                              // abandoned at the boundary
        {1, 2, 28, DONE, FARM_STEP_FIRST},                                           // a window that starts with an end
    };
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        problem.steps[marks[i].lane][marks[i].n][marks[i].env].flags = (uint8_t)marks[i].flags;
        problem.steps[marks[i].lane][marks[i].n + 1][marks[i].env].flags |= (uint8_t)marks[i].next;
    }
    for (uint32_t l = 0; l < LANES; l++)
        for (uint32_t e = 0; e < WIDTH; e++) problem.steps[l][0][e].flags = FARM_STEP_FIRST;
}

static float random_unit(uint64_t stream, uint64_t counter) {
    return 2 * farm_random_uniform(11, stream, counter) - 1;
}

static void write_steps(void) {
    uint64_t number = 0;
    memset(problem.steps, 0, sizeof problem.steps);
    for (uint32_t l = 0; l < LANES; l++)
        for (uint32_t n = 0; n < NUMBER; n++)
            for (uint32_t e = 0; e < WIDTH; e++, number++) {
                struct step *step = &problem.steps[l][n][e];
                for (uint32_t i = 0; i < OBS_MAX; i++)
                    step->obs[i] = (uint8_t)(128 + 127 * random_unit(1000 + number, i));
                for (uint32_t i = 0; i < FLAT && !problem.frames; i++) {
                    const float value = random_unit(1000 + number, i);
                    memcpy(step->obs + i * sizeof value, &value, sizeof value);
                }
                for (uint32_t a = 0; a < ACTIONS; a++) step->logits[a] = random_unit(1, number * ACTIONS + a);
                step->reward = 3 * random_unit(2, number);
                step->action = (int32_t)(farm_random_uniform(11, 3, number) * ACTIONS);
            }
    write_flags();
}

// Writes and takes in all steps in order, so that later ones overwrite earlier ones.
static void fill_rings(void) {
    problem.bad = 0;
    for (uint32_t l = 0; l < LANES; l++)
        for (uint32_t n = 0; n < NUMBER; n++) {
            for (uint32_t e = 0; e < WIDTH; e++) {
                const struct step *step = &problem.steps[l][n][e];
                struct farm_lane *up = rig_actor(&problem.rig, l), *down = rig_lane(&problem.rig, l);
                memcpy(farm_lane_obs(up, 0, n, e), step->obs, up->obs_bytes[0]);
                farm_lane_reward(up, n)[e] = step->reward;
                farm_lane_flags(up, n)[e] = step->flags;
                memcpy(farm_lane_action(down, n, e), &step->action, sizeof step->action);
                memcpy(farm_lane_policy(down, n, e), step->logits, sizeof step->logits);
            }
            problem.bad += farm_validator_step(&problem.rig.lanes.lanes[l].validator, n, 0);
        }
}

static void set_up_with(bool frames) {
    struct farm_ring_spec spec = farm_ring_spec_plain(LANES, WIDTH, STEPS, FARM_F32, FLAT, ACTIONS);
    memset(&problem, 0, sizeof problem);
    problem.frames = frames;
    problem.windows = usual;
    problem.rig.learner = test_learner_config(FLAT, ACTIONS, UNROLL);
    if (frames) test_learner_frames(&problem.rig.learner, &spec, SIDE, STACK);
    struct farm_algo_config *algo = &problem.rig.learner.algo;
    const float options[] = {
        [FARM_VTRACE_DISCOUNT] = 0.9f, [FARM_VTRACE_ENTROPY_COST] = 0.02f, [FARM_VTRACE_BASELINE_COST] = 0.4f,
        [FARM_VTRACE_RHO_CLIP] = 1.1f, [FARM_VTRACE_C_CLIP] = 0.9f,        [FARM_VTRACE_PG_RHO_CLIP] = 1.2f,
        [FARM_VTRACE_LAMBDA] = 0.95f};
    memcpy(algo->option, options, sizeof options);
    algo->batch = COLUMNS;
    algo->reward_clip = 2;
    algo->reward_scale = 0.7;
    algo->optimiser = FARM_OPTIMISER_RMSPROP; // with its second moment at 1 nearly the gradient itself
    algo->rmsprop_decay = 0.99;
    algo->rmsprop_epsilon = 0.01;
    algo->adam_epsilon = 1; // far from the point where only signs matter
    algo->loss_sum = true;
    problem.rig.learner.seed = 5;
    problem.rig.learner.inference.batch_max = 1;
    rig_open(&problem.rig, spec, 1);
    write_steps();
}

static void set_up(void) {
    set_up_with(false);
}

static void tear_down(void) {
    rig_close(&problem.rig);
}

TestSuite(learner, .init = set_up, .fini = tear_down, .timeout = 30);

// ---- the backend's update: parameters after it minus before ----

static float *update_of_backend(struct farm_pass_stats *stats) {
    struct rig *rig = &problem.rig;
    const size_t count = rig->net.parameter_count;
    struct farm_window windows[WINDOWS];
    uint32_t windows_count = 0;
    fill_rings();
    for (; windows_count < WINDOWS && problem.windows[windows_count].env_count; windows_count++) {
        windows[windows_count] = problem.windows[windows_count];
        windows[windows_count].lane = rig_lane(rig, windows[windows_count].lane_id);
    }
    rig_plan(rig);
    must(rig_open_backend(rig, &farm_backend_cpu), &rig->err);
    float *update = malloc(count * sizeof *update);
    memcpy(update, rig_params(rig), count * sizeof *update);
    cr_assert_eq(test_train(rig->ops, rig->backend, windows, windows_count, 1.0, 7, stats, &rig->err), FARM_OK);
    cr_assert_eq(rig->ops->state(rig->backend).version, 7);
    for (size_t i = 0; i < count; i++) update[i] = rig_params(rig)[i] - update[i];
    rig_close_backend(rig);
    return update;
}

// ---- comparisons ----

// Largest difference over the largest element of b.
static double difference_of(const float *a, const float *b) {
    double most = 0, size = 0;
    for (size_t i = 0; i < problem.rig.net.parameter_count; i++) {
        cr_assert(isfinite(a[i]) && isfinite(b[i]));
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
        size = fmax(size, fabs((double)b[i]));
    }
    cr_assert_gt(size, 1e-3, "the update is too small to compare");
    return most / size;
}

static void expect_equal(const float *update, const char *what) {
    struct farm_pass_stats stats;
    float *other = update_of_backend(&stats);
    const double difference = difference_of(other, update);
    cr_assert_lt(difference, 2e-5, "%s: %s: updates differ by %.2g of the largest change",
                 problem.frames ? "frames" : "flat", what, difference);
    free(other);
}

static void compare_variants(bool frames) {
    struct farm_pass_stats stats;
    tear_down();
    set_up_with(frames);
    struct farm_learner_config *learner = &problem.rig.learner;
    float *update = update_of_backend(&stats); // one thread, all in one piece
    for (uint32_t micro_batch = 1; micro_batch <= COLUMNS; micro_batch += 2)
        for (uint32_t threads = 1; threads <= 5; threads++) {
            char what[64];
            learner->training.micro_batch = micro_batch;
            learner->training.threads = threads;
            learner->training.group_count = threads == 5 ? 3 : 0;
            for (uint32_t g = 0; g < 3; g++)
                learner->training.groups[g] = (struct farm_pool_group){.node = g ? 0 : -1, .threads = 1 + g % 2 * 2};
            snprintf(what, sizeof what, "micro-batches of %u on %u threads", micro_batch, threads);
            expect_equal(update, what);
        }
    learner->training.group_count = 0;
    free(update);
    problem.windows = whole;
    update = update_of_backend(&stats);
    problem.windows = parts;
    expect_equal(update, "parts of lanes");
    free(update);
}

Test(learner, an_update_is_the_same_in_pieces_on_threads_and_of_parts_of_lanes) {
    compare_variants(false);
    compare_variants(true);
}

// A step that makes no sense is one of zeros in which an episode begins and is abandoned.
Test(learner, steps_that_make_no_sense_are_not_trained_on) {
    static const struct {
        uint32_t lane, n, env;
    } bad[] = {{0, 33, 2}, {1, 36, 0}, {1, 35, 1}, {0, 31, 0}}; // the last one: a bootstrap step
    struct farm_pass_stats stats;
    struct step kept[4];
    for (int i = 0; i < 4; i++) {
        struct step *step = &problem.steps[bad[i].lane][bad[i].n][bad[i].env];
        kept[i] = *step;
        memset(step->obs, 0, sizeof step->obs);
        step->reward = 0;
        step->flags = FARM_STEP_FIRST | FARM_STEP_LAST;
    }
    float *update = update_of_backend(&stats);
    cr_assert_eq(problem.bad, 0);
    for (int i = 0; i < 4; i++) problem.steps[bad[i].lane][bad[i].n][bad[i].env] = kept[i];
    const float nan = NAN;
    memcpy(problem.steps[0][33][2].obs, &nan, sizeof nan);
    problem.steps[1][36][0].reward = INFINITY;
    problem.steps[1][35][1].flags = 0x40;
    problem.steps[0][31][0].reward = NAN;
    expect_equal(update, "with values that make no sense");
    cr_assert_eq(problem.bad, 4);
    free(update);
}

// How much the update changes with one reward.
static double effect_of_reward(uint32_t lane, uint32_t n, uint32_t env) {
    struct farm_pass_stats stats;
    problem.rig.learner.algo.reward_clip = 0;
    float *before = update_of_backend(&stats);
    problem.steps[lane][n][env].reward += 1;
    float *after = update_of_backend(&stats);
    problem.steps[lane][n][env].reward -= 1;
    const double effect = difference_of(after, before);
    free(before);
    free(after);
    return effect;
}

Test(learner, a_reward_counts_for_the_transition_into_its_step) {
    cr_assert_eq(effect_of_reward(1, 33, 1), 0, "the reward of a window's first step belongs to the window before");
    cr_assert_gt(effect_of_reward(1, 34, 1), 1e-3, "the first transition's");
    cr_assert_gt(effect_of_reward(1, 38, 1), 1e-3, "the last transition's");
    cr_assert_gt(effect_of_reward(0, 33, 1), 1e-3, "that of an episode's last step");
    cr_assert_eq(effect_of_reward(0, 34, 1), 0, "FIRST has no reward");
    cr_assert_eq(effect_of_reward(0, 31, 0), 0, "nor has FIRST after an abandoned episode");
    cr_assert_eq(effect_of_reward(1, 39, 1), 0, "beyond the window");
    cr_assert_eq(effect_of_reward(0, 32, 0), 0, "an environment that is not in the batch there");
}

Test(learner, an_update_of_values_that_overflow_changes_nothing) {
    struct farm_pass_stats stats;
    problem.steps[1][35][1].logits[0] = INFINITY; // a policy that had diverged when it acted
    float *update = update_of_backend(&stats);
    cr_assert_not(isfinite(stats.grad_norm));
    for (size_t i = 0; i < problem.rig.net.parameter_count; i++) cr_assert_eq(update[i], 0);
    free(update);
}
