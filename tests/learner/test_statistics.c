// Running statistics against direct computations over the same windows; when they reach the parameters.
#include "../support/learner.h"
#include "algo/ppo.h"
#include "learner/statistics.h"

enum { LANES = 2, WIDTH = 2, UNROLL = 4, STEPS = 32, ACTIONS = 3, CHOICES = 3, FLAT = 2 + CHOICES + 1 };
enum { SIDE = 3, CHANNELS = 3, PIXELS = CHANNELS * SIDE * SIDE, NUMBERS = PIXELS + 3 };

// Where number i lies in the tensors: pixels as planes, then the flat input's, without the choice.
static int place_of(int i) {
    return i < PIXELS + 2 ? i : PIXELS + 2 + CHOICES;
}

static struct rig rig;
static struct table {
    struct farm_iteration iteration;
    struct farm_statistics *statistics;
    float *params;
} table;

// Observations with a mean far from 0, ends of episodes, an abandoned one, a step that makes no sense.
static void write_step(uint32_t l, uint64_t n, uint32_t e) {
    struct farm_lane *lane = rig_actor(&rig, l);
    const float numbers[2] = {sinf((float)(7 * n + 3 * l + e)), 1000 + (float)((n * n + e) % 5)};
    const int32_t choice = (int32_t)(n % CHOICES), whole = 1000000 + (int32_t)(n * (l + 2) % 7);
    memcpy(farm_lane_obs(lane, 0, n, e), numbers, sizeof numbers);
    memcpy(farm_lane_obs(lane, 1, n, e), &choice, sizeof choice);
    memcpy(farm_lane_obs(lane, 2, n, e), &whole, sizeof whole);
    uint8_t *pixels = farm_lane_obs(lane, 3, n, e);
    for (uint64_t i = 0; i < PIXELS; i++) // some never change, some seldom, some always
        pixels[i] = (uint8_t)(i % 3 == 0 ? 255 : i % 3 == 1 ? 100 + (n + i + e) % 7 / 6 : 37 * (n + 3 * e + i));
    farm_lane_reward(lane, n)[e] = cosf((float)(5 * n + 2 * l + e)) + (float)l;
    farm_lane_flags(lane, n)[e] = n == 0 || n == 7 || (l == 0 && n == 14) ? FARM_STEP_FIRST
                                  : n == 6 ? FARM_STEP_LAST | (e ? FARM_STEP_TRUNCATED : FARM_STEP_TERMINATED)
                                           : 0;
    if (l == 0 && e == 1 && n == 10) farm_lane_reward(lane, n)[e] = NAN;
}

static void set_up(void) {
    struct farm_ring_spec spec = farm_ring_spec_plain(LANES, WIDTH, STEPS, FARM_F32, 2, ACTIONS);
    memset(&table, 0, sizeof table);
    memset(&rig, 0, sizeof rig);
    spec.env.obs_count = 4;
    spec.env.obs[1] = (struct farm_field_spec){.name = "card", .dtype = FARM_I32, .rank = 1, .dims = {1}, .choices = 3};
    spec.env.obs[2] = (struct farm_field_spec){.name = "count", .dtype = FARM_I32, .rank = 1, .dims = {1}};
    spec.env.obs[3] =
        (struct farm_field_spec){.name = "picture", .dtype = FARM_U8, .rank = 3, .dims = {SIDE, SIDE, CHANNELS}};
    struct farm_net_io *io = &rig.learner.io;
    rig.learner = test_learner_config(FLAT, ACTIONS, UNROLL);
    rig.learner.algo.batch = LANES * WIDTH;
    rig.learner.algo.reward_clip = 1.5;
    rig.learner.algo.reward_scale = 2;
    rig.learner.inference.batch_max = 1;
    rig.learner.net = *net_spec("conv 8@2x2/1, dense 8");
    io->frame_channels = CHANNELS;
    io->height = io->width = SIDE;
    io->interleaved = io->normalise_frames = io->normalise_rewards = true;
    io->image_source[0] = 3;
    io->input_count = 3;
    io->inputs[0] = (struct farm_net_input){FARM_INPUT_NUMBERS, 2, 0, true, 0};
    io->inputs[1] = (struct farm_net_input){FARM_INPUT_ONE_HOT, 1, CHOICES, false, 1};
    io->inputs[2] = (struct farm_net_input){FARM_INPUT_WHOLE, 1, 0, true, 2};
    rig_open(&rig, spec, 1);
    for (uint32_t l = 0; l < LANES; l++)
        for (uint64_t n = 0; n < STEPS; n++) {
            for (uint32_t e = 0; e < WIDTH; e++) write_step(l, n, e);
            (void)farm_validator_step(&rig.lanes.lanes[l].validator, n, 0);
        }
    table.params = calloc(rig.net.parameter_count, sizeof *table.params);
    farm_net_init(&rig.net, FARM_INIT_ORTHOGONAL, 1, table.params);
    const struct farm_head head = farm_head_categorical(ACTIONS);
    cr_assert_eq(farm_iteration_make(&rig.learner.algo, &rig.plan, head, LANES * WIDTH, &table.iteration, NULL),
                 FARM_OK);
    cr_assert_eq(farm_statistics_make(&rig.net, &rig.learner.algo, LANES, WIDTH, &table.statistics, &rig.err), FARM_OK);
    farm_statistics_load(table.statistics, table.params);
}

static void tear_down(void) {
    farm_statistics_free(table.statistics);
    farm_iteration_free(&table.iteration);
    rig_close(&rig);
    free(table.params);
}

TestSuite(learner, .init = set_up, .fini = tear_down, .timeout = 30);

static const struct farm_lane *checked(uint32_t l) {
    return rig_lane(&rig, l);
}

// Windows of both lanes; UINT64_MAX: none.
static uint32_t list_windows(const uint64_t starts[LANES], struct farm_window windows[LANES]) {
    uint32_t count = 0;
    for (uint32_t l = 0; l < LANES; l++)
        if (starts[l] != UINT64_MAX) windows[count++] = rig_window(&rig, l, starts[l], WIDTH);
    return count;
}

static void begin(const uint64_t starts[LANES]) {
    struct farm_window windows[LANES];
    farm_iteration_list(&table.iteration, windows, list_windows(starts, windows));
    farm_statistics_begin(table.statistics, &table.iteration);
}

static const float *tensor(const float *params, int index) {
    return params + rig.net.tensors[index].offset;
}

// ---- direct computations ----

struct list {
    double values[LANES * WIDTH * STEPS];
    int count;
};

static double mean_of(const struct list *list) {
    double sum = 0;
    for (int i = 0; i < list->count; i++) sum += list->values[i];
    return sum / list->count;
}

static double variance_of(const struct list *list) {
    double sum = 0;
    for (int i = 0; i < list->count; i++) sum += pow(list->values[i] - mean_of(list), 2);
    return sum / list->count;
}

static double number_at(int i, uint32_t l, uint64_t n, uint32_t e) {
    const uint8_t *pixels = farm_lane_obs(checked(l), 3, n, e);
    if (i < PIXELS) return pixels[i % (SIDE * SIDE) * CHANNELS + i / (SIDE * SIDE)];
    i -= PIXELS;
    if (i < 2) return (double)((const float *)farm_lane_obs(checked(l), 0, n, e))[i];
    return ((const int32_t *)farm_lane_obs(checked(l), 2, n, e))[0];
}

static void append_numbers(struct list lists[NUMBERS], const uint64_t starts[LANES]) {
    for (uint32_t l = 0; l < LANES; l++)
        for (uint64_t n = starts[l]; starts[l] != UINT64_MAX && n < starts[l] + UNROLL; n++)
            for (uint32_t e = 0; e < WIDTH; e++)
                for (int i = 0; i < NUMBERS && !(farm_lane_flags(checked(l), n)[e] & FARM_STEP_SENSELESS); i++)
                    lists[i].values[lists[i].count++] = number_at(i, l, n, e);
}

static void expect_observations(const float *params, const struct list lists[NUMBERS]) {
    const float *mean = tensor(params, rig.net.normalise), *variance = tensor(params, rig.net.normalise + 1);
    for (int i = 0; i < NUMBERS; i++) {
        const double right_mean = mean_of(&lists[i]), right = variance_of(&lists[i]);
        cr_expect_float_eq(mean[place_of(i)], right_mean, 1e-6 * (fabs(right_mean) + 1), "mean %d", i);
        cr_expect_float_eq(variance[place_of(i)], right, 1e-6 * right, "variance %d: %g, not %g", i,
                           (double)variance[place_of(i)], right);
    }
    for (int i = PIXELS + 2; i < PIXELS + 2 + CHOICES; i++)
        cr_expect(mean[i] == 0 && variance[i] == 1, "a choice is not normalised");
    cr_expect_eq(tensor(params, rig.net.normalise + 2)[0], lists[0].count);
}

static const uint64_t NONE = UINT64_MAX;
static const uint64_t ITERATIONS[][LANES] = {{0, 0}, {4, 4}, {8, NONE}, {NONE, 8}, {16, 12}, {20, 16}};
enum { ITERATION_COUNT = sizeof ITERATIONS / sizeof *ITERATIONS };

Test(learner, statistics_of_observations_are_those_of_all_steps_counted_once) {
    static struct list lists[NUMBERS];
    for (int i = 0; i < ITERATION_COUNT; i++) {
        begin(ITERATIONS[i]);
        append_numbers(lists, ITERATIONS[i]);
        farm_statistics_write(table.statistics, table.params);
        expect_observations(table.params, lists);
    }
    cr_expect_eq(lists[0].count, 10 * WIDTH * UNROLL - 1, "one step makes no sense");
}

// ---- returns ----

static double literal_reward(float reward) {
    return fmax(-1.5, fmin(1.5, (double)reward)) * 2;
}

// Gymnasium's NormalizeReward over the transitions into steps start + 1 to start + UNROLL.
static void append_returns(struct list *list, double returns[LANES][WIDTH], uint64_t next[LANES],
                           const uint64_t starts[LANES]) {
    const double discount = (double)rig.learner.algo.option[FARM_VTRACE_DISCOUNT];
    for (uint32_t l = 0; l < LANES; l++) {
        if (starts[l] == NONE) continue;
        for (uint32_t e = 0; e < WIDTH; e++) {
            double g = next[l] == starts[l] ? returns[l][e] : 0;
            for (uint64_t n = starts[l] + 1; n <= starts[l] + UNROLL; n++) {
                const unsigned flags = farm_lane_flags(checked(l), n)[e];
                const bool ended = farm_lane_flags(checked(l), n - 1)[e] & FARM_STEP_LAST || flags & FARM_STEP_FIRST;
                g = ended ? 0 : discount * g + literal_reward(farm_lane_reward(checked(l), n)[e]);
                if (!ended) list->values[list->count++] = g;
            }
            returns[l][e] = g;
        }
        next[l] = starts[l] + UNROLL;
    }
}

static float reward_of_row(uint32_t column, uint32_t step) {
    float behaviour[ACTIONS], value, reward;
    uint8_t flags;
    int32_t action;
    const struct farm_gathered to = {.behaviour = behaviour,
                                     .behaviour_value = &value,
                                     .reward = &reward,
                                     .action = (uint8_t *)&action,
                                     .flags = &flags};
    farm_iteration_row(&table.iteration, column, step, &to, 0);
    return reward;
}

// Lane 0 has no window at step 12, so its returns begin at 0 again at step 16.
Test(learner, rewards_are_divided_by_the_deviation_of_returns) {
    static struct list list;
    double returns[LANES][WIDTH] = {0};
    uint64_t next[LANES] = {0};
    for (int i = 0; i < ITERATION_COUNT; i++) {
        begin(ITERATIONS[i]);
        append_returns(&list, returns, next, ITERATIONS[i]);
        const uint32_t l = ITERATIONS[i][0] == NONE, e = 1;
        const double deviation = sqrt(variance_of(&list) + 1e-8);
        for (uint32_t step = 1; step <= UNROLL; step++) {
            const double raw = literal_reward(farm_lane_reward(checked(l), ITERATIONS[i][l] + step)[e]);
            cr_expect_float_eq(reward_of_row(e, step), raw / deviation, 1e-6 * (1 + fabs(raw / deviation)));
        }
        farm_statistics_write(table.statistics, table.params);
        const float *written = tensor(table.params, rig.net.normalise_return);
        cr_expect_float_eq(written[0], mean_of(&list), 1e-6 * (1 + fabs(mean_of(&list))), "iteration %d", i);
        cr_expect_float_eq(written[1], variance_of(&list), 1e-6 * variance_of(&list), "iteration %d", i);
        cr_expect_eq(written[2], list.count);
    }
    float *held = table.params + rig.net.tensors[rig.net.normalise_return].offset;
    held[0] = 0, held[1] = 1e-8f, held[2] = 1e9f;
    farm_statistics_load(table.statistics, table.params);
    begin(ITERATIONS[0]);
    cr_expect_eq(fabsf(reward_of_row(1, 1)), 10, "normalised rewards are clipped");
}

// ---- the backend ----

// PPO, whose ratio is 1 in the first pass only if the statistics are those of acting.
Test(learner, statistics_change_at_publish_only_and_go_on_from_a_checkpoint) {
    const struct farm_pass pass = {.learning_rate = 0.01};
    struct farm_window windows[LANES];
    struct farm_pass_stats stats;
    static struct list lists[NUMBERS];
    rig.learner.algo.algo = &farm_ppo;
    const float options[FARM_PPO_OPTIONS] = {
        [FARM_PPO_DISCOUNT] = 0.9f, [FARM_PPO_CLIP] = 0.2f, [FARM_PPO_EPOCHS] = 1, [FARM_PPO_MINIBATCH] = 1000};
    memcpy(rig.learner.algo.option, options, sizeof options);
    rig_plan(&rig);
    must(rig_open_backend(&rig, &farm_backend_cpu), &rig.err);
    const size_t first = rig.net.tensors[rig.net.normalise].offset,
                 bytes = (rig.net.parameter_count - first) * sizeof(float);
    float *params = rig_params(&rig), before[256];
    for (int i = 0; i < 4; i++) {
        const uint32_t count = list_windows(ITERATIONS[i], windows);
        memcpy(before, params + first, bytes);
        cr_assert_eq(rig.ops->begin(rig.backend, 0, windows, count, &rig.err), FARM_OK);
        cr_assert_eq(rig.ops->pass(rig.backend, 0, &pass, &rig.err), FARM_OK);
        cr_assert_arr_eq(before, params + first, bytes, "iteration %d: before it is published", i);
        cr_assert_eq(rig.ops->publish(rig.backend, FARM_SET_ONLINE, (uint64_t)i + 1, &rig.err), FARM_OK);
        cr_assert_eq(rig.ops->finish(rig.backend, &stats, &rig.err), FARM_OK);
        append_numbers(lists, ITERATIONS[i]);
        expect_observations(params, lists);
        if (i == 1) { // as if a checkpoint of iteration 0 were loaded
            memcpy(params + first, before, bytes);
            cr_assert_eq(rig.ops->state_changed(rig.backend, 9, 0, &rig.err), FARM_OK);
            cr_assert_arr_eq(before, params + first, bytes);
            for (int k = 0; k < NUMBERS; k++) lists[k].count = LANES * WIDTH * UNROLL;
        }
    }
}
