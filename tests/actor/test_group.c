// A group of environments on a real ring, without processes: invalid return values, senseless numbers, continuous
// actions, writes outside an observation.
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/rings.h"
#include "actor/group.h"
#include "envs/native/native.h"
#include "envs/plugin.h"

enum { DIMS = 3 };

// ---- an environment that the test controls ----

struct script {
    struct farm_env_spec spec;
    uint32_t env;       // number of the faulty one
    int beside;         // offset from the field's start at which it writes too; 0: none
    uint32_t field;     // which that write, and the senseless number, is in
    bool in_reset;      // the fault occurs in reset, else in step
    float number;       // written as the field's first number, or with field == obs_count the reward
    bool bad, silent;   // bad: writes `number`; silent: step writes no reward
    uint32_t answer;    // every step's
    float got[2][DIMS]; // actions of environments 0 and 1
    uint32_t made, resets, steps;
};
static struct script script;

struct probe {
    uint32_t env;
    uint8_t stamp;
};

static int probe_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error,
                      size_t error_bytes) {
    *spec = script.spec;
    return 0;
}
static void *probe_create(const struct farm_env_config *config, char *error, size_t error_bytes) {
    struct probe *probe = calloc(1, sizeof *probe);
    probe->env = script.made++;
    return probe;
}
// Writes every byte of every field, with another value each time.
static void write_all(struct probe *probe, void *const *obs, bool reset) {
    probe->stamp = (uint8_t)((probe->stamp + 1) % 64);
    for (uint32_t f = 0; f < script.spec.obs_count; f++)
        memset(obs[f], probe->stamp, farm_field_bytes(&script.spec.obs[f]));
    if (probe->env != script.env || reset != script.in_reset) return;
    if (script.beside) ((uint8_t *)obs[script.field])[script.beside] ^= 0x55;
    if (script.bad && script.field < script.spec.obs_count) *(float *)obs[script.field] = script.number;
}
static void probe_reset(void *env, void *const *obs) {
    script.resets++;
    write_all(env, obs, true);
}
static uint32_t probe_step(void *env, const void *action, void *const *obs, float *reward) {
    const struct probe *probe = env;
    script.steps++;
    write_all(env, obs, false);
    if (probe->env < 2 && script.spec.action.kind == FARM_ACTION_CONTINUOUS)
        memcpy(script.got[probe->env], action, sizeof script.got[0]);
    if (!script.silent) *reward = 7;
    if (script.bad && script.field == script.spec.obs_count && probe->env == script.env) *reward = script.number;
    return script.answer;
}
static const struct farm_env_api probe_api = FARM_ENV_API("test/probe", "follows a script", probe, free);

// ---- the lane around it ----

struct fixture {
    struct views ring;
    struct farm_actor_config config;
    struct farm_group group;
    struct farm_call call;
};

static struct farm_env_spec flat_spec(uint32_t numbers) {
    return (struct farm_env_spec){.obs_count = 1,
                                  .obs[0] = {.name = "state", .dtype = FARM_F32, .rank = 1, .dims = {numbers}},
                                  .action = {.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {4}},
                                  .frames_per_step = 1};
}

static struct fixture fixture;
static bool same_step; // for set_up
static struct farm_error err;

static void tear_down(void) {
    farm_group_free(&fixture.group);
    close_views(&fixture.ring);
}

TestSuite(group, .fini = tear_down);

static void set_up(const struct farm_env_spec *spec, uint32_t width, uint32_t steps, enum farm_bad_values bad_values) {
    tear_down();
    memset(&fixture, 0, sizeof fixture);
    memset(&script, 0, sizeof script);
    script.spec = *spec;
    struct farm_ring_spec ring = {.lanes = 2, .width = width, .steps = steps, .autoreset = same_step, .env = *spec};
    farm_ring_spec_answers(&ring);
    fixture.ring = views_of(ring);
    fixture.config = (struct farm_actor_config){.api = &probe_api, .seed = 1, .bad_values = bad_values};
    cr_assert_eq(farm_group_make(&fixture.config, &probe_api, &fixture.ring.actor.spec, 1, 0, &fixture.call,
                                 &fixture.group, &err),
                 FARM_OK, "%s", err.message);
}

// The group's next step, published and answered by `action` (NULL: zeros) for every environment.
static enum farm_status step_group(const void *action) {
    struct farm_lane *lane = &fixture.ring.actor.lanes[1], *answer = &fixture.ring.learner.lanes[1];
    const uint64_t n = farm_lane_actor_next(lane);
    cr_assert(farm_lane_actor_answered(lane) && farm_lane_actor_can_write(lane));
    const enum farm_status status = farm_group_step(&fixture.group, lane, &err);
    if (status) return status;
    farm_lane_actor_publish(lane);
    for (uint32_t e = 0; e < lane->width && action; e++)
        memcpy(farm_lane_action(answer, n, e), action, lane->answer[FARM_ANSWER_ACTION].bytes);
    farm_lane_answer(answer, n);
    farm_lane_release(answer, n);
    return FARM_OK;
}

static unsigned flags_of(uint32_t e) {
    const struct farm_lane *lane = &fixture.ring.actor.lanes[1];
    return farm_lane_flags(lane, farm_lane_actor_next(lane) - 1)[e];
}
static float reward_of(uint32_t e) {
    const struct farm_lane *lane = &fixture.ring.actor.lanes[1];
    return farm_lane_reward(lane, farm_lane_actor_next(lane) - 1)[e];
}

static void expect_message(const char *part) {
    cr_assert(strstr(err.message, part), "'%s' is not in: %s", part, err.message);
}

// ---- guards ----

Test(group, accepts_environments_that_write_exactly_their_observation) {
    static const uint32_t shapes[][3] = {{1, 2, 1}, {1, 3, 1},    {3, 2, 1},
                                         {5, 3, 4}, {2, 8, 1764}, {16, 4, 200}}; // W C F
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (uint32_t fields = 1; fields <= 3; fields++) {
            struct farm_env_spec spec = flat_spec(shapes[i][2]);
            spec.obs_count = fields;
            spec.obs[1] = (struct farm_field_spec){.name = "byte", .dtype = FARM_U8, .rank = 1, .dims = {1}};
            spec.obs[2] = (struct farm_field_spec){.name = "counts", .dtype = FARM_I32, .rank = 2, .dims = {7, 3}};
            set_up(&spec, shapes[i][0], shapes[i][1], FARM_BAD_COUNT);
            for (int k = 0; k < 100; k++) {
                script.answer = k % 5 == 4 ? FARM_STEP_TERMINATED : 0;
                cr_assert_eq(step_group(NULL), FARM_OK, "%s", err.message);
            }
        }
}

// Expects that a write at `offset` of field `field` of environment 2, from its third step on, is found: at once if the
// first field is large, else within a few steps.
static void check_found(const struct farm_env_spec *spec, uint32_t field, int offset, int in_reset) {
    same_step = in_reset == 2;
    set_up(spec, 4, 8, FARM_BAD_COUNT);
    for (int k = 0; k < 2; k++) cr_assert_eq(step_group(NULL), FARM_OK, "%s", err.message);
    script.env = 2;
    script.field = field;
    script.beside = offset;
    script.in_reset = in_reset;
    script.answer = in_reset ? FARM_STEP_TERMINATED : 0; // every other call is a reset
    enum farm_status status = FARM_OK;
    int turns = 0;
    while (!status && turns < 64) status = step_group(NULL), turns++;
    cr_assert_eq(status, FARM_E_INVALID, "field %u offset %d", field, offset);
    if (farm_field_bytes(&spec->obs[0]) >= 512) cr_assert_eq(turns, 1 + (in_reset == 1));
    expect_message(offset > 0 ? "environment test/probe writes past" : "environment test/probe writes before");
    expect_message(spec->obs[field].name);
    expect_message(in_reset ? "lane 1, number 2, in its reset" : "lane 1, number 2, in its step");
}

Test(group, names_an_environment_that_writes_outside_its_observation) {
    const struct farm_env_spec small = flat_spec(4);
    struct farm_env_spec large = flat_spec(1764), three = flat_spec(4);
    three.obs_count = 3;
    three.obs[1] = (struct farm_field_spec){.name = "image", .dtype = FARM_U8, .rank = 2, .dims = {30, 30}};
    three.obs[2] = (struct farm_field_spec){.name = "counts", .dtype = FARM_I32, .rank = 1, .dims = {10}};
    for (int in_reset = 0; in_reset <= 2; in_reset++) { // 2: in the same step
        check_found(&small, 0, 16, in_reset);
        check_found(&small, 0, 16 + 15, in_reset);
        check_found(&small, 0, -1, in_reset);
        check_found(&large, 0, 7056, in_reset);
        check_found(&large, 0, 7056 + 63, in_reset);
        check_found(&large, 0, -64, in_reset);
        check_found(&three, 1, 900, in_reset);
        check_found(&three, 2, -1, in_reset);
    }
}

// ---- numbers ----

static const float senseless[] = {NAN, INFINITY, -INFINITY, 2e9f};

Test(group, counts_or_refuses_senseless_numbers_as_bad_values_demands) {
    const struct farm_env_spec spec = flat_spec(4);
    for (size_t i = 0; i < 4 * sizeof senseless / sizeof *senseless; i++) {
        const bool reward = i & 1, fail = i & 2;
        set_up(&spec, 3, 8, fail ? FARM_BAD_FAIL : FARM_BAD_COUNT);
        cr_assert_eq(step_group(NULL), FARM_OK);
        script.bad = true;
        script.env = 1;
        script.field = reward; // 1: behind the only field
        script.number = senseless[i / 4];
        cr_assert_eq(step_group(NULL), fail ? FARM_E_INVALID : FARM_OK);
        if (fail) {
            expect_message(reward ? "a reward" : "'state'");
            expect_message("lane 1, number 1, in its step");
            continue;
        }
        const float written = reward_of(1), wanted = reward ? senseless[i / 4] : 7;
        cr_assert_eq(memcmp(&written, &wanted, sizeof wanted), 0, "%g", (double)written);
        cr_assert(reward_of(0) == 7.0f && flags_of(1) == 0);
    }
}

Test(group, abandons_the_episode_at_senseless_numbers_with_bad_values_reset) {
    const struct farm_env_spec spec = flat_spec(4);
    set_up(&spec, 3, 8, FARM_BAD_RESET);
    for (int k = 0; k < 3; k++) cr_assert_eq(step_group(NULL), FARM_OK);
    for (uint32_t field = 0; field < 2; field++) {
        const uint32_t resets = script.resets;
        script.bad = true;
        script.env = 1;
        script.field = field;
        script.number = INFINITY;
        script.answer = field ? FARM_STEP_TERMINATED : 0; // whether or not that step ends the episode
        cr_assert_eq(step_group(NULL), FARM_OK, "%s", err.message);
        cr_assert_eq(flags_of(1), FARM_STEP_FIRST, "another episode in the step's place");
        cr_assert_eq(reward_of(1), 0.0f);
        cr_assert_eq(script.resets, resets + 1);
        cr_assert_eq(farm_load_relaxed(&fixture.ring.learner.up_control->abandoned), field + 1);
        cr_assert_eq(flags_of(0), field ? FARM_STEP_LAST | FARM_STEP_TERMINATED : 0, "the others step on");
        script.bad = false;
        script.answer = 0;
        cr_assert_eq(step_group(NULL), FARM_OK);
        cr_assert_eq(flags_of(1), 0, "and it continues");
        cr_assert_eq(reward_of(1), 7.0f);
        cr_assert_eq(script.resets, resets + 1 + 2 * field);
    }
}

Test(group, a_mask_must_permit_a_choice_before_an_episodes_end) {
    struct farm_env_spec spec = flat_spec(4);
    spec.obs_count = 2;
    spec.obs[1] = (struct farm_field_spec){.name = "action_mask", .dtype = FARM_U8, .rank = 1, .dims = {4}};
    for (int k = 0; k < 3; k++) {
        set_up(&spec, 3, 8, k == 2 ? FARM_BAD_RESET : FARM_BAD_FAIL);
        cr_assert_eq(step_group(NULL), FARM_OK, "%s", err.message);
        script.bad = true;
        script.env = script.field = 1;
        script.number = 0; // four permitted choices become none
        script.answer = k == 0 ? FARM_STEP_TERMINATED : 0;
        cr_assert_eq(step_group(NULL), k == 1 ? FARM_E_INVALID : FARM_OK, "%s", err.message);
        if (k == 1)
            expect_message(
                "'action_mask' that forbids every choice of an action, before its episode's end, at step 1: lane 1");
        cr_assert_eq(script.resets, k == 2 ? 4 : 3, "an episode abandoned");
    }
}

Test(group, fails_if_a_reset_is_senseless_too) {
    const struct farm_env_spec spec = flat_spec(4);
    for (int k = 0; k < 2; k++) {
        same_step = k;
        set_up(&spec, 3, 8, FARM_BAD_RESET);
        for (int n = 0; n < k; n++) cr_assert_eq(step_group(NULL), FARM_OK);
        script.bad = script.in_reset = true;
        script.answer = FARM_STEP_TRUNCATED;
        script.number = NAN;
        cr_assert_eq(step_group(NULL), FARM_E_INVALID);
        expect_message("in its reset");
    }
}

Test(group, an_unwritten_reward_is_0_and_integers_are_senseless_only_outside_their_choices) {
    struct farm_env_spec spec = flat_spec(4);
    spec.obs[0].dtype = FARM_I32;
    set_up(&spec, 2, 4, FARM_BAD_FAIL);
    script.bad = true;
    script.number = NAN; // its bits are written into the i32
    for (int k = 0; k < 6; k++) {
        script.silent = k >= 4; // the slot held rewards of 7
        cr_assert_eq(step_group(NULL), FARM_OK, "%s", err.message);
        cr_assert_eq(reward_of(1), k == 0 || k >= 4 ? 0.0f : 7.0f);
    }
    spec.obs[0].choices = 1u << 30; // NaN's bits are more
    set_up(&spec, 2, 4, FARM_BAD_FAIL);
    cr_assert_eq(step_group(NULL), FARM_OK);
    script.bad = true;
    script.number = NAN;
    cr_assert_eq(step_group(NULL), FARM_E_INVALID);
    expect_message("'state' that is outside its choices");
}

// ---- actions and answers ----

Test(group, clips_continuous_actions_to_their_bounds) {
    struct farm_env_spec spec = flat_spec(4);
    spec.action = (struct farm_action_spec){
        .kind = FARM_ACTION_CONTINUOUS, .dims = DIMS, .low = {-1, 0, -INFINITY}, .high = {1, 0.5f, INFINITY}};
    static const float given[][DIMS] = {
        {0.25f, 0.5f, 1e20f}, {1.5f, -0.1f, -3}, {-INFINITY, INFINITY, 0}, {NAN, NAN, NAN}};
    static const float wanted[][DIMS] = {{0.25f, 0.5f, 1e20f}, {1, 0, -3}, {-1, 0.5f, 0}, {-1, 0, -INFINITY}};
    set_up(&spec, 3, 8, FARM_BAD_COUNT);
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        cr_assert_eq(step_group(given[i]), FARM_OK);
        if (i == 0) continue;
        for (int e = 0; e < 2; e++)
            for (int d = 0; d < DIMS; d++) cr_assert_eq(script.got[e][d], wanted[i - 1][d]);
    }
    cr_assert_eq(step_group(NULL), FARM_OK);
    for (int d = 0; d < DIMS; d++) cr_assert_eq(script.got[1][d], wanted[3][d]);
}

Test(group, hands_an_environment_no_choice_that_it_does_not_have) {
    static const int32_t wrong[] = {4, -1, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const struct farm_env_spec spec = flat_spec(4);
        char words[64];
        set_up(&spec, 2, 4, FARM_BAD_COUNT);
        cr_assert_eq(step_group(&wrong[i]), FARM_OK);
        cr_assert_eq(step_group(NULL), FARM_E_INVALID);
        cr_expect_eq(script.steps, 0);
        snprintf(words, sizeof words, "was given action %d, which it does not have: lane 1, number 0", wrong[i]);
        expect_message(words);
    }
}

Test(group, refuses_return_values_that_the_interface_does_not_allow) {
    static const uint32_t answers[] = {FARM_STEP_FIRST,
                                       FARM_STEP_LAST,
                                       FARM_STEP_GAME_END,
                                       32,
                                       1u << 31,
                                       UINT32_MAX,
                                       FARM_STEP_TERMINATED | FARM_STEP_LAST};
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        const struct farm_env_spec spec = flat_spec(4);
        set_up(&spec, 2, 4, FARM_BAD_COUNT);
        cr_assert_eq(step_group(NULL), FARM_OK);
        script.answer = answers[i];
        cr_assert_eq(step_group(NULL), FARM_E_INVALID);
        expect_message("which farm/env.h does not allow: lane 1, number 0");
    }
}

// ---- resets in the same step, and on request ----

// Environments of native/NAME on a ring of their own, and what they did.
enum { PLAYED_MAX = 256, OBS_MAX = 8, BOTH = FARM_STEP_FIRST | FARM_STEP_LAST };
struct played {
    float obs[OBS_MAX], last[OBS_MAX], reward;
    unsigned flags;
};
struct players {
    struct views ring;
    struct farm_actor_config config;
    struct farm_call call;
    struct farm_group group;
    uint64_t reset[FARM_CONTROL_NUMBERS + 1]; // environment 1 gets it with the next answer
    uint32_t played[2];                       // by environment
    struct played steps[2][PLAYED_MAX];
};

static void stop_players(struct players *players) {
    farm_group_free(&players->group);
    close_views(&players->ring);
}
#define with_players __attribute__((cleanup(stop_players))) struct players

static struct farm_ring_spec players_spec(const char *name, enum farm_autoreset autoreset) {
    struct farm_ring_spec spec = {.lanes = 1, .width = 2, .steps = 4, .autoreset = autoreset};
    cr_assert_eq(farm_plugin_spec(farm_native_env_find(name), NULL, 0, &spec.env, &err), FARM_OK, "%s", err.message);
    farm_ring_spec_answers(&spec);
    return spec;
}

static enum farm_status start_players(struct players *players, const char *name, const struct farm_ring_spec *spec) {
    memset(players, 0, sizeof *players);
    players->ring = views_of(*spec);
    players->config = (struct farm_actor_config){.seed = 5, .bad_values = FARM_BAD_FAIL};
    return farm_group_make(&players->config, farm_native_env_find(name), &players->ring.actor.spec, 0, 0,
                           &players->call, &players->group, &err);
}

// One step of both; the action depends on how many an environment has played before.
static enum farm_status play_step(struct players *players) {
    struct farm_lane *lane = players->ring.actor.lanes, *answer = players->ring.learner.lanes;
    const uint64_t n = farm_lane_actor_next(lane);
    const enum farm_status status = farm_group_step(&players->group, lane, &err);
    if (status) return status;
    farm_lane_actor_publish(lane);
    for (uint32_t e = 0; e < 2; e++) {
        struct played *step = &players->steps[e][players->played[e]];
        struct played now = {.flags = farm_lane_flags(lane, n)[e], .reward = farm_lane_reward(lane, n)[e]};
        memcpy(now.obs, farm_lane_obs(lane, 0, n, e), lane->obs_bytes[0]);
        if (lane->last[0] && now.flags & FARM_STEP_LAST)
            memcpy(now.last, farm_lane_last(lane, 0, n, e), lane->obs_bytes[0]);
        if (!lane->last[0] && players->played[e] && (step[-1].flags & BOTH) == FARM_STEP_LAST) { // as if one step
            now.flags |= step[-1].flags;
            now.reward = step[-1].reward;
            memcpy(now.last, step[-1].obs, sizeof now.last);
            players->played[e]--;
            step--;
        }
        *step = now;
        *(int32_t *)farm_lane_action(answer, n, e) = (int32_t)((players->played[e]++ * 7 + e) / 3 % 2);
    }
    if (lane->control) memcpy(farm_lane_answer_at(answer, lane->control, n, 1), players->reset, sizeof players->reset);
    if (players->reset[0]) players->played[1] = 0;
    players->reset[0] = 0;
    farm_lane_answer(answer, n);
    farm_lane_release(answer, n);
    return FARM_OK;
}

Test(group, resets_in_the_same_step_leave_out_the_steps_of_resets) {
    static const char *const names[] = {"native/cartpole", "native/recall"};
    for (size_t i = 0; i < 2; i++) {
        const struct farm_ring_spec spec[] = {players_spec(names[i], FARM_AUTORESET_NEXT_STEP),
                                              players_spec(names[i], FARM_AUTORESET_SAME_STEP)};
        with_players next, same;
        uint32_t ends = 0;
        cr_assert_eq(start_players(&next, names[i], &spec[0]), FARM_OK, "%s", err.message);
        cr_assert_eq(start_players(&same, names[i], &spec[1]), FARM_OK, "%s", err.message);
        for (int n = 0; n < 200; n++) cr_assert_eq(play_step(&next) || play_step(&same), FARM_OK, "%s", err.message);
        for (uint32_t e = 0; e < 2; e++) {
            const uint32_t count =
                next.played[e] - ((next.steps[e][next.played[e] - 1].flags & BOTH) == FARM_STEP_LAST);
            cr_assert_eq(same.played[e], 200);
            cr_assert_arr_eq(same.steps[e], next.steps[e], count * sizeof same.steps[e][0], "%s, number %u", names[i],
                             e);
            for (uint32_t k = 0; k < count; k++) ends += (same.steps[e][k].flags & BOTH) == BOTH;
        }
        cr_assert_gt(ends, 10, "%s: nothing was at stake", names[i]);
    }
}

Test(group, a_request_resets_one_environment_with_its_seed_and_numbers) {
    enum { STEPS = 40 };
    static const struct {
        uint64_t seed; // 0: none
        double delay;
        int as; // an equal one before; -1: none
    } resets[] = {{9, NAN, -1}, {0, NAN, -1}, {9, NAN, 0}, {9, 3, -1}, {9, NAN, 3}, {9, 10, 0}, {0, 3, -1}};
    static struct played kept[sizeof resets / sizeof *resets][STEPS];
    struct farm_ring_spec spec = players_spec("native/recall", FARM_AUTORESET_NEXT_STEP);
    spec.number_count = 1;
    strcpy(spec.numbers[0], "delays");
    farm_ring_spec_control(&spec);
    with_players wrong, players;
    cr_assert_eq(start_players(&wrong, "native/recall", &spec), FARM_E_USAGE);
    expect_message("number 'delays' of resets: native/recall has no option \"delays\"; did you mean \"delay\"");
    strcpy(spec.numbers[0], "delay");
    cr_assert_eq(start_players(&players, "native/recall", &spec), FARM_OK, "%s", err.message);
    for (int i = 0; i < (int)(sizeof resets / sizeof *resets); i++) {
        players.reset[FARM_CONTROL_DO] = FARM_CONTROL_RESET | (resets[i].seed ? FARM_CONTROL_RESEED : 0);
        players.reset[FARM_CONTROL_SEED] = resets[i].seed;
        memcpy(&players.reset[FARM_CONTROL_NUMBERS], &resets[i].delay, sizeof resets[i].delay);
        players.played[0] = 0;
        for (int n = 0; n <= STEPS || players.played[1] < STEPS; n++)
            cr_assert_eq(play_step(&players), FARM_OK, "%s", err.message);
        memcpy(kept[i], players.steps[1], sizeof kept[i]);
        cr_assert(kept[i]->flags == FARM_STEP_FIRST && kept[i]->reward == 0.0f);
        for (int k = 0; k < i; k++) {
            const bool equal = memcmp(kept[i], kept[k], sizeof kept[i]) == 0, wanted = k == resets[i].as;
            if (wanted || resets[i].as < 0) cr_assert_eq(equal, wanted, "resets %d and %d", k, i);
        }
    }
    players.reset[FARM_CONTROL_DO] = FARM_CONTROL_RESET;
    memcpy(&players.reset[FARM_CONTROL_NUMBERS], &(double){0.5}, sizeof(double));
    cr_assert_eq(play_step(&players), FARM_OK);
    cr_assert_eq(play_step(&players), FARM_E_INVALID);
    expect_message(
        "native/recall cannot be reset: lane 0, number 1: native/recall: option \"delay\" is a whole number");
}

// ---- crashes ----

Test(group, names_an_environment_that_dies_of_a_signal) {
    static const int signals[] = {SIGSEGV, SIGABRT, SIGFPE};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        int output[2], status;
        char text[2048] = "", expected[80];
        cr_assert_eq(pipe(output), 0);
        const pid_t pid = fork();
        if (pid == 0) {
            signal(signals[i], SIG_DFL); // as in a worker of the supervisor
            dup2(output[1], STDERR_FILENO);
            struct farm_call *call = farm_crash_watch();
            call->name = "test/probe";
            call->actor = 12;
            call->lane = 1;
            call->env = 305;
            call->call = FARM_CALL_STEP;
            raise(signals[i]);
            _exit(0);
        }
        close(output[1]);
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == signals[i]);
        cr_assert_gt(read(output[0], text, sizeof text - 1), 0); // all of it: the process has ended
        cr_assert(strstr(text, "actor 12: environment test/probe died of signal "), "%s", text);
        snprintf(expected, sizeof expected, " in its step: lane 1, number 305, pid %d\nfarm: frame 0x", (int)pid);
        cr_assert(strstr(text, expected), "%s", text);
        close(output[0]);
    }
}

// ---- several agents ----

// Agent a leaves in step a + 1 of each episode; the observation is {step, agent}, the mask forbids action 0, and the
// reward is the action.
enum { CROWD = 3, CROWD_WIDTH = 2 * CROWD };
static struct {
    int step[2];
    uint32_t made, past, over; // past: the environment writes there, behind its agents' observations; over: its result
    float bad;                 // agent 1's reward in step 1, unless it is 0
} crowd;

static int crowd_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error, size_t n) {
    *spec = flat_spec(2);
    spec->obs_count = 2;
    spec->obs[1] = (struct farm_field_spec){.name = "action_mask", .dtype = FARM_U8, .rank = 1, .dims = {4}};
    spec->agents = CROWD;
    return 0;
}
static void *crowd_create(const struct farm_env_config *config, char *error, size_t error_bytes) {
    return &crowd.step[crowd.made++ % 2];
}
static void crowd_destroy(void *env) {}
static void crowd_write(const int *step, void *const *obs) {
    for (int a = 0; a < CROWD; a++) {
        ((float *)obs[0])[2 * a] = (float)*step;
        ((float *)obs[0])[2 * a + 1] = (float)a;
        memcpy((uint8_t *)obs[1] + 4 * a, "\0\1\1\1", 4);
    }
    if (crowd.past) ((uint8_t *)obs[1])[4 * CROWD + crowd.past - 1] ^= 0x55;
}
static void crowd_reset(void *env, void *const *obs) {
    *(int *)env = 0;
    crowd_write(env, obs);
}
static uint32_t crowd_step_agents(void *env, const void *actions, void *const *obs, float *rewards, uint8_t *ends) {
    const int step = ++*(int *)env;
    crowd_write(env, obs);
    for (int a = 0; a < CROWD; a++) {
        rewards[a] = (float)((const int32_t *)actions)[a];
        if (a + 1 == step) ends[a] = FARM_STEP_TERMINATED | FARM_STEP_GAME_END;
    }
    if (crowd.bad != 0 && step == 1) rewards[1] = crowd.bad;
    return step == 2 ? crowd.over : 0;
}
static const struct farm_env_api crowd_api = {FARM_ENV_ABI_VERSION, sizeof crowd_api, "test/crowd",
                                              "leaves one by one",  crowd_spec,       crowd_create,
                                              crowd_destroy,        crowd_reset,      .step_agents = crowd_step_agents};

// opponents: a lane whose policy plays the last agent of each environment.
static void meet_crowd(enum farm_bad_values bad_values, bool same, uint32_t opponents, struct views *others) {
    tear_down();
    memset(&fixture, 0, sizeof fixture);
    memset(&crowd, 0, sizeof crowd);
    struct farm_ring_spec ring = {.lanes = 2, .width = CROWD_WIDTH - 2 * opponents, .steps = 16, .autoreset = same};
    crowd_spec(NULL, &ring.env, NULL, 0);
    ring.env.agents -= opponents;
    farm_ring_spec_answers(&ring);
    if (opponents) farm_ring_spec_control(&ring);
    fixture.ring = views_of(ring);
    fixture.config =
        (struct farm_actor_config){.api = &crowd_api, .seed = 1, .bad_values = bad_values, .opponents = opponents};
    cr_assert_eq(farm_group_make(&fixture.config, &crowd_api, &fixture.ring.actor.spec, 1, 0, &fixture.call,
                                 &fixture.group, &err),
                 FARM_OK, "%s", err.message);
    ring.width = 2 * opponents;
    ring.env.agents = opponents;
    if (opponents) *others = views_of(ring), fixture.group.opponents = &others->actor.lanes[1];
}

// Flags of an environment's agents after each step, in letters: F FIRST, L LAST, B both, . neither.
static void expect_flags(const char *const *steps, size_t count, uint32_t agents) {
    const struct farm_lane *lane = &fixture.ring.actor.lanes[1];
    const int32_t action = 2;
    for (size_t n = 0; n < count; n++) {
        cr_assert_eq(step_group(&action), FARM_OK, "%s", err.message);
        for (uint32_t row = 0; row < 2 * agents; row++) {
            const char letter = ".FLB"[flags_of(row) & 3];
            const float *obs = farm_lane_obs(lane, 0, n, row);
            cr_expect_eq(letter, steps[n][row % agents], "step %zu, row %u: %c", n, row, letter);
            cr_expect_eq(reward_of(row), letter == 'F' ? 0.0f : 2.0f, "step %zu, row %u", n, row);
            const bool blank = strchr("FB", letter) && strpbrk(steps[n], ".L"); // the others go on
            cr_expect_eq(obs[1], blank ? 0.0f : (float)(row % agents), "step %zu, row %u", n, row);
            cr_expect_eq(*(uint8_t *)farm_lane_obs(lane, 1, n, row), blank, "the mask permits all");
        }
    }
}

Test(group, an_agent_that_has_left_writes_first_until_all_start_again) {
    static const char *const next[] = {"FFF", "L..", "FL.", "FFL", "FFF", "L.."}, *const same[] = {"FFF", "B..", "FB.",
                                                                                                   "FFB", "B.."};
    static const char *const all[] = {"FFF", "L..", "FLL", "FFF", "L.."}, *const bad[] = {"FFF", "FFF", "FFF"};
    meet_crowd(FARM_BAD_RESET, false, 0, NULL);
    expect_flags(next, 6, CROWD);
    meet_crowd(FARM_BAD_COUNT, true, 0, NULL);
    expect_flags(same, 5, CROWD);
    meet_crowd(FARM_BAD_COUNT, false, 0, NULL);
    crowd.over = FARM_STEP_TRUNCATED;
    expect_flags(all, 5, CROWD);
    meet_crowd(FARM_BAD_RESET, false, 0, NULL);
    crowd.bad = INFINITY;
    expect_flags(bad, 3, CROWD);
    cr_expect_eq(farm_load_relaxed(&fixture.ring.learner.up_control->abandoned), 4, "2 environments, 2 steps");
}

Test(group, several_agents_write_within_their_observations_and_may_have_opponents) {
    static const int32_t actions[] = {2, 3};
    struct views others;
    for (uint32_t past = 0; past < 2; past++) {
        meet_crowd(FARM_BAD_COUNT, false, 1, &others);
        struct farm_lane *lane = &others.actor.lanes[1];
        for (uint64_t n = 0; n < 5; n++) {
            cr_assert_eq(step_group(&actions[0]), FARM_OK, "%s", err.message);
            for (uint32_t e = 0; e < 2; e++) {
                const float *obs = farm_lane_obs(lane, 0, n, e);
                cr_expect_eq(obs[1], (float)CROWD - 1);
                cr_expect_eq(farm_lane_reward(lane, n)[e], n == 0 || n == 4 ? 0.0f : 3.0f, "step %d", (int)n);
                cr_expect_eq(flags_of(2 * e), n == 1 ? 22u : n == 0 || n > 1 ? 1u : 0u);
                cr_expect_eq(farm_lane_flags(lane, n)[e], n == 0 || n == 4 ? 1 : n == 3 ? 22 : 0, "step %d", (int)n);
                memcpy(farm_lane_action(&others.learner.lanes[1], n, e), &actions[1], sizeof *actions);
            }
            farm_lane_actor_publish(lane);
        }
        struct farm_lane *answers = &fixture.ring.learner.lanes[1]; // a consumer resets the second environment
        *(uint64_t *)farm_lane_answer_at(answers, answers->control, 4, 2) = FARM_CONTROL_RESET | FARM_CONTROL_RESEED;
        cr_assert_eq(step_group(&actions[0]), FARM_OK, "%s", err.message);
        cr_expect(flags_of(0) == 22 && flags_of(2) == 1 && flags_of(3) == 1 && farm_lane_flags(lane, 5)[1] == 1);
        cr_expect_eq(crowd.made, 3u);
        farm_lane_actor_publish(lane);
        crowd.past = 1 + past * 15;
        cr_expect_eq(step_group(&actions[0]), FARM_E_INVALID);
        expect_message(
            "test/crowd writes past its observation 'action_mask' of 4 bytes: lane 1, number 0, in its step");
        close_views(&others);
    }
}
