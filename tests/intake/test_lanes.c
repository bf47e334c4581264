// What counts as a step, a return, a game: farm_lanes_take_in and farm_lanes_account over steps that the test writes in
// an actor's place.
#include <criterion/criterion.h>
#include <math.h>

#include "../support/rig.h"

enum {
    FIRST = FARM_STEP_FIRST,
    LAST = FARM_STEP_LAST,
    TERMINATED = FARM_STEP_TERMINATED,
    TRUNCATED = FARM_STEP_TRUNCATED,
    GAME_END = FARM_STEP_GAME_END,
    LIFE_LOST = LAST | TERMINATED,
    GAME_OVER = LAST | TERMINATED | GAME_END,
    TIME_OVER = LAST | TRUNCATED | GAME_END,
    WIDTH = 2,
    STEPS = 8,
};
static struct table {
    struct rig rig;
    uint64_t n;      // next step of lane 0
    uint64_t newest; // version
} table;

static void set_up_spec(struct farm_ring_spec spec) {
    table = (struct table){.rig.learner = test_learner_config(1, 2, 3)};
    rig_open(&table.rig, spec, 1);
}

static void set_up(void) {
    set_up_spec(farm_ring_spec_plain(1, WIDTH, STEPS, FARM_F32, 1, 2));
}

static void tear_down(void) {
    rig_close(&table.rig);
}

TestSuite(intake, .init = set_up, .fini = tear_down, .timeout = 30);

// One step of both environments: written, published, taken in, answered, accounted.
static void play_step(unsigned flags0, float reward0, unsigned flags1, float reward1) {
    struct farm_lane *lane = rig_actor(&table.rig, 0);
    const uint64_t n = table.n++;
    farm_lane_flags(lane, n)[0] = (uint8_t)flags0;
    farm_lane_flags(lane, n)[1] = (uint8_t)flags1;
    farm_lane_reward(lane, n)[0] = reward0;
    farm_lane_reward(lane, n)[1] = reward1;
    farm_lane_actor_publish(lane);
    struct farm_intake_lane *ours = &table.rig.lanes.lanes[0];
    cr_assert(farm_lanes_take_in(ours, table.newest, &table.rig.stats), "step %lu is published", n);
    farm_lane_answer(ours->lane, n);
    farm_lanes_account(&table.rig.lanes, ours, &table.rig.stats);
    ours->answered = n + 1;
    farm_lane_release(ours->lane, ours->answered);
}

static double return_of(uint64_t game) {
    return farm_stats_get(&table.rig.stats.returns[game]);
}

// ---- games ----

static void expect_taken_in_again(void) {
    const struct farm_lane *ours = rig_lane(&table.rig, 0), *theirs = rig_actor(&table.rig, 0);
    cr_assert_eq(table.rig.lanes.lanes[0].answered, table.n);
    for (uint64_t n = table.n < STEPS ? 0 : table.n - STEPS; n < table.n; n++)
        for (uint32_t e = 0; e < WIDTH; e++)
            cr_assert(farm_lane_reward(ours, n)[e] == farm_lane_reward(theirs, n)[e] &&
                          farm_lane_flags(ours, n)[e] == farm_lane_flags(theirs, n)[e] &&
                          *(float *)farm_lane_obs(ours, 0, n, e) == *(float *)farm_lane_obs(theirs, 0, n, e),
                      "step %lu is not taken in again", n);
}

// Steps of both environments, flags and reward each. Flags: F FIRST, L a lost life, G the game's end, T the same by a
// time limit, - none, ? and ! impossible ones. Before a step: * a new actor, R the learner comes back.
static const struct game_case {
    const char *what, *steps;
    uint64_t transitions, games, bad;
    double returns[3], lengths[3];
} game_cases[] = {
    {"first steps are no transitions, and returns are unclipped",
     "F0F0 -7--1 G5-.25 F0T.25",
     5,
     2,
     0,
     {12, -0.5},
     {2, 3}},
    {"a lost life keeps adding to the game, and the next game starts from nothing",
     "F0F0 -1-0 L2-0 F0-0 -4-0 G8-0 F0-0 G3-0",
     12,
     2,
     0,
     {15, 3},
     {4, 1}},
    {"an abandoned episode has no return", "F0F0 -100-0 F0F0 G1-0", 4, 1, 0, {1}, {1}},
    {"a step that makes no sense is counted and not added", "F0F0 -nan-1 -inf?1 --inf!1 G2G2", 3, 2, 5, {2, 3}, {1, 2}},
    {"a game whose end makes no sense has no return", "F0F0 -50-0 Gnan-0 F0-0 G1-0", 6, 1, 1, {1}, {1}},
    {"a learner that comes back in mid game does not count that game",
     "F0F0 -10-20 R -1G1 G1F0 F0G5 G6F0",
     7,
     2,
     0,
     {5, 6},
     {1, 1}},
    {"a learner that comes back between two lives does not count that game",
     "F0F0 L10G20 R F0F0 G1G2 F0F0 G3-0",
     6,
     3,
     0,
     {20, 2, 3},
     {1, 1, 1}},
    {"a new actor's game does not inherit what the old one won before a lost life",
     "F0F0 L3-0 * F0F0 G4-0",
     4,
     1,
     0,
     {4},
     {1}},
};

static unsigned flags_of(char letter) {
    static const unsigned flags[] = {
        ['F'] = FIRST, ['L'] = LIFE_LOST, ['G'] = GAME_OVER, ['T'] = TIME_OVER, ['?'] = 0x20, ['!'] = 0x80 | GAME_OVER};
    return letter == '-' ? 0 : flags[(unsigned)letter];
}

static void play_case(const char *steps) {
    char letters[2];
    float rewards[2];
    for (int bytes; *steps; steps += bytes + (steps[bytes] == ' ')) {
        bytes = 1;
        if (*steps == '*') {
            farm_store_release(&table.rig.made[0].lanes[0].down->generation, 1); // as the supervisor does
        } else if (*steps == 'R') {
            rig_close_learner(&table.rig);
            rig_open_lanes(&table.rig);
            expect_taken_in_again();
        } else {
            cr_assert_eq(sscanf(steps, "%c%f%c%f%n", &letters[0], &rewards[0], &letters[1], &rewards[1], &bytes), 4,
                         "%s", steps);
            play_step(flags_of(letters[0]), rewards[0], flags_of(letters[1]), rewards[1]);
        }
    }
}

Test(intake, transitions_and_games_are_counted) {
    for (size_t i = 0; i < sizeof game_cases / sizeof *game_cases; i++) {
        const struct game_case *c = &game_cases[i];
        double sum = 0, squares = 0, length = 0;
        tear_down();
        set_up();
        play_case(c->steps);
        cr_assert(table.rig.stats.agent_steps == c->transitions && table.rig.stats.episodes == c->games &&
                      table.rig.stats.bad_values == c->bad && table.rig.stats.rejected_steps == c->bad,
                  "%s: %lu transitions, %lu games, %lu bad values, %lu steps rejected", c->what,
                  table.rig.stats.agent_steps, table.rig.stats.episodes, table.rig.stats.bad_values,
                  table.rig.stats.rejected_steps);
        for (uint64_t g = 0; g < c->games; g++) {
            cr_assert(return_of(g) == c->returns[g] && (double)table.rig.stats.lengths[g] == c->lengths[g],
                      "%s: game %lu has return %g and %lu transitions", c->what, g, return_of(g),
                      table.rig.stats.lengths[g]);
            sum += c->returns[g], squares += c->returns[g] * c->returns[g], length += c->lengths[g];
        }
        const double count = (double)c->games, mean = sum / count;
        cr_assert_float_eq(farm_stats_get(&table.rig.stats.return_mean), mean, 1e-9, "%s", c->what);
        cr_assert_float_eq(farm_stats_get(&table.rig.stats.return_std), sqrt(squares / count - mean * mean), 1e-9, "%s",
                           c->what);
        cr_assert_float_eq(farm_stats_get(&table.rig.stats.length_mean), length / count, 1e-9, "%s", c->what);
    }
}

Test(intake, means_are_over_the_last_hundred_games) {
    play_step(FIRST, 0, FIRST, 0);
    for (int game = 0; game < 150; game++) {
        play_step(GAME_OVER, (float)game, 0, 0);
        play_step(FIRST, 0, 0, 0);
    }
    cr_assert_eq(table.rig.stats.episodes, 150);
    cr_assert_float_eq(farm_stats_get(&table.rig.stats.return_mean), (50 + 149) / 2.0, 1e-9);
}

Test(intake, the_quota_keeps_short_games_from_crowding_out_long_ones) {
    farm_lanes_set_quota(&table.rig.lanes, 3); // two of environment 0, one of environment 1
    play_step(FIRST, 0, FIRST, 0);
    for (int game = 0; game < 5; game++) {
        play_step(GAME_OVER, 1, 0, 0);
        play_step(FIRST, 0, 0, 0);
    }
    cr_assert_eq(table.rig.stats.episodes, 2, "environment 0 may count twice");
    play_step(0, 0, GAME_OVER, 10);
    cr_assert_eq(table.rig.stats.episodes, 3);
    cr_assert_float_eq(farm_stats_get(&table.rig.stats.return_mean), 12 / 3.0, 1e-9);
    cr_assert_float_eq(farm_stats_get(&table.rig.stats.return_std), sqrt((1 + 1 + 100) / 3.0 - 16), 1e-9);
    play_step(0, 0, FIRST, 0);
    play_step(GAME_OVER, 1, GAME_OVER, 10);
    cr_assert_eq(table.rig.stats.episodes, 3);
}

// ---- what is taken in ----

static float *obs_of(uint64_t n, uint32_t env) {
    return farm_lane_obs(rig_actor(&table.rig, 0), 0, n, env);
}

Test(intake, a_step_stays_what_it_was_when_it_was_taken_in) {
    *obs_of(0, 0) = 0.25f;
    *obs_of(0, 1) = 0.5f;
    play_step(FIRST, 0, FIRST, 0);
    *obs_of(1, 0) = 0.75f;
    *obs_of(1, 1) = -0.5f;
    play_step(0, 3, GAME_OVER, 4);
    const struct farm_lane *ours = rig_lane(&table.rig, 0);
    for (int turn = 0; turn < 2; turn++) {
        cr_assert_eq(*(float *)farm_lane_obs(ours, 0, 0, 1), 0.5f);
        cr_assert_eq(*(float *)farm_lane_obs(ours, 0, 1, 0), 0.75f);
        cr_assert_eq(farm_lane_reward(ours, 1)[0], 3);
        cr_assert_eq(farm_lane_reward(ours, 1)[1], 4);
        cr_assert_eq(farm_lane_flags(ours, 1)[1], GAME_OVER);
        struct farm_ring *actor = &table.rig.actors[0]; // now everything is something else
        memset((char *)actor->up.header + actor->layout.up_arrays, 0xff, actor->up.bytes - actor->layout.up_arrays);
    }
}

Test(intake, numbers_that_would_overflow_a_network_make_no_sense) {
    const struct {
        float obs, reward;
        unsigned flags;
        uint64_t bad;
    } steps[] = {
        {1e9f, -1e9f, 0, 0},     {1.1e9f, 0, 0, 1},         {-3e38f, 0, 0, 1},
        {0, 1.1e9f, 0, 1},       {0, -3e38f, 0, 1},         {NAN, NAN, 0, 2},
        {INFINITY, 0, 0x80, 2},  {0, 0, GAME_END, 1},       {0, 0, TERMINATED, 1},
        {0, 0, TRUNCATED, 1},    {0, 0, FIRST | LAST, 0},   {0, 0, FIRST | GAME_END, 1},
        {-0.0f, -0.0f, 0xff, 1}, {1e-42f, 1e-42f, LAST, 0}, {0, 0, LAST | TRUNCATED | GAME_END, 0},
    };
    play_step(FIRST, 0, FIRST, 0);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        const uint64_t n = table.n, before = table.rig.stats.bad_values;
        *obs_of(n, 0) = steps[i].obs;
        *obs_of(n, 1) = 7;
        play_step(steps[i].flags, steps[i].reward, 0, 1);
        cr_assert_eq(table.rig.stats.bad_values - before, steps[i].bad, "case %zu", i);
        const struct farm_lane *ours = rig_lane(&table.rig, 0);
        const bool bad = steps[i].bad > 0;
        cr_assert_eq(farm_lane_flags(ours, n)[0], bad ? FIRST | LAST | FARM_STEP_SENSELESS : steps[i].flags, "case %zu",
                     i);
        cr_assert_eq(farm_lane_reward(ours, n)[0], bad ? 0 : steps[i].reward);
        const float seen = *(float *)farm_lane_obs(ours, 0, n, 0);
        cr_assert(fabsf(seen) <= 1e9f, "case %zu: %g", i, (double)seen);
        cr_assert_eq(*(float *)farm_lane_obs(ours, 0, n, 1), 7, "the other environment's");
        cr_assert_eq(farm_lane_reward(ours, n)[1], 1);
        cr_assert_eq(farm_lane_flags(ours, n)[1], 0);
    }
    const struct farm_bad_value *first = &table.rig.stats.first_bad;
    cr_assert(first->known == 2 && first->field == FARM_BAD_OBS && first->step == 2 && first->environment == 0 &&
                  farm_stats_get(&first->value) == (double)1.1e9f,
              "the first of them stays: field %lu, step %lu", first->field, first->step);
}

Test(intake, a_last_observation_is_copied_and_checked_where_an_episode_ends) {
    static const float values[] = {0.5f, NAN, 2e9f, -0.25f};
    tear_down();
    struct farm_ring_spec spec = farm_ring_spec_plain(1, WIDTH, STEPS, FARM_F32, 1, 2);
    spec.autoreset = FARM_AUTORESET_SAME_STEP;
    set_up_spec(spec);
    play_step(FIRST, 0, FIRST, 0);
    for (size_t i = 0; i < 8; i++) {
        const uint64_t n = table.n, bad = table.rig.stats.bad_values;
        const unsigned flags = i % 2 ? FIRST | GAME_OVER : 0;
        const bool valid = !flags || fabsf(values[i / 2]) < 1;
        float *last = farm_lane_last(rig_actor(&table.rig, 0), 0, n, 0);
        *last = values[i / 2];
        play_step(flags, 3, 0, 1);
        *last = NAN; // the learner has its own copy
        const struct farm_lane *ours = rig_lane(&table.rig, 0);
        cr_assert_eq(table.rig.stats.bad_values - bad, !valid, "case %zu", i);
        cr_assert_eq(farm_lane_flags(ours, n)[0], valid ? flags : FIRST | LAST | FARM_STEP_SENSELESS);
        cr_assert_eq(farm_lane_reward(ours, n)[0], valid ? 3 : 0);
        if (flags) cr_assert_eq(*(float *)farm_lane_last(ours, 0, n, 0), valid ? values[i / 2] : 0, "case %zu", i);
    }
    const uint64_t bad = table.rig.stats.bad_values;
    play_step(GAME_OVER, 3, 0, 1);
    cr_assert_eq(table.rig.stats.bad_values - bad, 1, "LAST alone makes no sense there");
}

// Two discrete actions of 2 and 3 choices; environment 0's mask, then environment 1's is of no choice at an end.
Test(intake, a_mask_permits_a_choice_of_each_action_before_an_episodes_end) {
    static const struct {
        uint8_t mask[5];
        unsigned flags;
        uint64_t bad, blocked;
    } steps[] = {{{1, 0, 0, 0, 2}, FIRST, 0, 0},
                 {{0, 0, 0, 0, 0}, LIFE_LOST, 0, 0},
                 {{1, 1, 0, 0, 0}, 0, 1, 1},
                 {{0, 0, 1, 1, 1}, FIRST, 1, 0}};
    struct farm_ring_spec spec = farm_ring_spec_plain(1, WIDTH, STEPS, FARM_F32, 1, 2);
    spec.env.obs[spec.env.obs_count++] =
        (struct farm_field_spec){.name = "action_mask", .dtype = FARM_U8, .rank = 1, .dims = {5}};
    spec.env.action = (struct farm_action_spec){.kind = FARM_ACTION_MULTI_DISCRETE, .dims = 2, .sizes = {2, 3}};
    farm_ring_spec_answers(&spec);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        tear_down();
        set_up_spec(spec);
        for (uint64_t n = 0; n < 2; n++) {
            uint8_t *mask = farm_lane_obs(rig_actor(&table.rig, 0), 1, n, 0);
            memcpy(mask, steps[i].mask, sizeof steps[i].mask);
            memset(mask + 5, 0, 5);
            play_step(steps[i].flags, 3, GAME_OVER, 1);
            memset(mask, 7, 10); // the learner has its own copy
            const struct farm_lane *ours = rig_lane(&table.rig, 0);
            cr_assert_arr_eq((uint8_t *)farm_lane_obs(ours, 1, n, 0), steps[i].mask, 5);
            cr_assert_eq(farm_lane_flags(ours, n)[0],
                         steps[i].bad ? FIRST | LAST | FARM_STEP_SENSELESS : steps[i].flags, "mask %zu", i);
            cr_assert_eq(farm_lane_flags(ours, n)[1], GAME_OVER);
        }
        cr_assert_eq(table.rig.stats.bad_values, 2 * steps[i].bad, "mask %zu", i);
        const struct farm_bad_value *first = &table.rig.stats.first_bad;
        if (!steps[i].bad) continue;
        cr_assert(first->field == FARM_BAD_OBS + 1 && first->step == 0 && first->environment == 0 &&
                  first->element == steps[i].blocked);
    }
}

Test(intake, an_impossible_counter_is_ignored_and_counted_once_a_life) {
    const uint64_t lies[] = {0, 1, 4, 5, 3 + STEPS, 1ull << 63, UINT64_MAX - 1, UINT64_MAX};
    for (int n = 0; n < 2; n++) play_step(n ? 0 : FIRST, 0, n ? 0 : FIRST, 0);
    struct farm_intake_lane *ours = &table.rig.lanes.lanes[0];
    for (uint64_t generation = 0; generation < 2; generation++) {
        farm_store_release(&table.rig.made[0].lanes[0].down->generation, generation);
        for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
            farm_store_release(&rig_actor(&table.rig, 0)->up->produced, lies[i]);
            cr_assert_not(farm_lanes_take_in(ours, 0, &table.rig.stats), "%lu published, 2 answered", lies[i]);
        }
        cr_assert_eq(table.rig.stats.bad_values, generation + 1);
    }
    farm_store_release(&rig_actor(&table.rig, 0)->up->produced, 2);
    cr_assert_not(farm_lanes_take_in(ours, 0, &table.rig.stats), "nothing is published");
    play_step(0, 1, 0, 1);
    cr_assert_eq(table.rig.stats.bad_values, 2, "with a possible counter the lane goes on");
    cr_assert_eq(table.rig.stats.agent_steps, 4);
}

Test(intake, a_step_waits_until_training_has_released_its_slot) {
    struct farm_intake_lane *ours = &table.rig.lanes.lanes[0];
    for (int n = 0; n < STEPS; n++) play_step(FIRST, 0, FIRST, 0);
    farm_lane_release(ours->lane, 0); // as if nothing had been
    farm_lane_actor_publish(rig_actor(&table.rig, 0));
    cr_assert_not(farm_lanes_take_in(ours, 0, &table.rig.stats), "an honest actor would have waited");
    farm_lane_release(ours->lane, 1);
    cr_assert(farm_lanes_take_in(ours, 0, &table.rig.stats));
    cr_assert_eq(table.rig.stats.bad_values, 0);
}

Test(intake, actors_with_different_environments_are_refused) {
    const struct farm_ring_spec one = farm_ring_spec_plain(1, WIDTH, STEPS, FARM_F32, 1, 2);
    struct farm_ring_spec others[] = {farm_ring_spec_plain(1, WIDTH, STEPS, FARM_F32, 2, 2),
                                      farm_ring_spec_plain(1, WIDTH, STEPS, FARM_F32, 1, 3), one};
    others[2].answers = FARM_ANSWERS_LOCAL;
    struct farm_lanes lanes;
    struct farm_error err = {0};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        with_views a = views_of(one), b = views_of(others[i]);
        int fds[2][2];
        lend_ring(&a.made, fds[0]);
        lend_ring(&b.made, fds[1]);
        cr_assert_eq(farm_lanes_open(fds, 2, &table.rig.plan.shape, NULL, &lanes, &err), FARM_E_INVALID);
        cr_assert(strstr(err.message, "different environments") != NULL, "%s", err.message);
    }
    cr_assert_eq(farm_lanes_open(NULL, 0, &table.rig.plan.shape, NULL, &lanes, &err), FARM_E_INVALID);
}

// ---- LOCAL: actors that run the policy ----

// Two discrete dimensions of 2 and 3, and a state every second step.
static struct farm_ring_spec local_spec(void) {
    struct farm_ring_spec spec = farm_ring_spec_plain(1, WIDTH, STEPS, FARM_F32, 1, 2);
    spec.env.action = (struct farm_action_spec){.kind = FARM_ACTION_MULTI_DISCRETE, .dims = 2, .sizes = {2, 3}};
    farm_ring_spec_answers(&spec);
    spec.answers = FARM_ANSWERS_LOCAL;
    spec.answer[spec.answer_count++] = (struct farm_answer_spec){"state", FARM_F32, 2, 2, 0};
    return spec;
}

struct local_answer {
    int32_t action[2];
    float policy[5], value, state[2];
    uint64_t version;
};

static const struct local_answer GOOD = {{1, 2}, {-INFINITY, 0.5f, -2, -INFINITY, 1e9f}, 3, {4, 5}, 9};

// The answer to step n, and the state before the next step, if that is even.
static void write_local(uint64_t n, uint32_t env, const struct local_answer *answer) {
    struct farm_lane *lane = rig_actor(&table.rig, 0);
    memcpy(farm_lane_action(lane, n, env), answer->action, sizeof answer->action);
    memcpy(farm_lane_policy(lane, n, env), answer->policy, sizeof answer->policy);
    farm_lane_value(lane, n)[env] = answer->value;
    *farm_lane_version(lane, n) = answer->version;
    if (n % 2) memcpy(farm_lane_answer_at(lane, 4, n + 1, env), answer->state, sizeof answer->state);
}

static void expect_taken_in(const struct farm_lane *ours, uint64_t n, uint32_t env, const struct local_answer *answer) {
    cr_assert_arr_eq((int32_t *)farm_lane_action(ours, n, env), answer->action, sizeof answer->action);
    cr_assert_arr_eq(farm_lane_policy(ours, n, env), answer->policy, sizeof answer->policy);
    cr_assert_eq(farm_lane_value(ours, n)[env], answer->value);
    if (n % 2) cr_assert_arr_eq((float *)farm_lane_answer_at(ours, 4, n + 1, env), answer->state, sizeof answer->state);
}

#define CHANGED(change)                                                                                                \
    ({                                                                                                                 \
        struct local_answer a = GOOD;                                                                                  \
        a.change;                                                                                                      \
        a;                                                                                                             \
    })

Test(intake, an_answer_that_makes_no_sense_makes_the_step_after_it_senseless) {
    const struct {
        struct local_answer answer;
        bool both;    // a version is of both environments
        uint64_t bad; // 2: action 0, which takes an invalid one's place, is masked
    } cases[] = {
        {CHANGED(action[0] = 2), false, 2},      {CHANGED(action[0] = -1), false, 2},
        {CHANGED(action[1] = 3), false, 2},      {CHANGED(action[0] = 0), false, 1}, // masked
        {CHANGED(action[1] = 1), false, 1},                                          // masked
        {CHANGED(policy[1] = NAN), false, 1},    {CHANGED(policy[2] = INFINITY), false, 1},
        {CHANGED(policy[4] = 1.1e9f), false, 1}, {CHANGED(value = NAN), false, 1},
        {CHANGED(value = -INFINITY), false, 1},  {CHANGED(state[1] = INFINITY), false, 1},
        {CHANGED(version = 10), true, 1},        {CHANGED(version = UINT64_MAX), true, 1},
    };
    tear_down();
    set_up_spec(local_spec());
    table.newest = 9;
    play_step(0, 1, 0, 1);
    for (uint32_t e = 0; e < 2; e++) write_local(0, e, &GOOD);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint64_t n = table.n, before = table.rig.stats.bad_values; // odd: the next has a state
        const struct farm_lane *ours = rig_lane(&table.rig, 0);
        play_step(0, 1, 0, 1);
        write_local(n, 1, &GOOD);
        write_local(n, 0, &cases[i].answer);
        play_step(0, 1, 0, 1);
        cr_assert_eq(table.rig.stats.bad_values - before, cases[i].bad, "case %zu", i);
        for (uint32_t e = 0; e < 2; e++) {
            const unsigned senseless = e == 0 || cases[i].both ? FIRST | LAST | FARM_STEP_SENSELESS : 0;
            cr_assert_eq(farm_lane_flags(ours, n)[e], 0, "case %zu", i);
            cr_assert_eq(farm_lane_flags(ours, n + 1)[e], senseless, "case %zu", i);
        }
        expect_taken_in(ours, n, 1, &GOOD);
        const int32_t *action = farm_lane_action(ours, n, 0);
        cr_assert(action[0] >= 0 && action[0] < 2 && action[1] >= 0 && action[1] < 3 &&
                  *farm_lane_version(ours, n) <= 9);
        write_local(n + 1, 0, &GOOD);
        write_local(n + 1, 1, &GOOD);
        *(float *)farm_lane_answer_at(rig_actor(&table.rig, 0), 4, n + 1, 0) = NAN; // it has been copied
    }
}

Test(intake, continuous_actions_and_their_distributions_are_numbers) {
    struct farm_ring_spec spec = local_spec();
    spec.env.action = (struct farm_action_spec){.kind = FARM_ACTION_CONTINUOUS, .dims = 1, .high = {1}};
    farm_ring_spec_answers(&spec);
    farm_ring_spec_sample(&spec);
    const float rows[][4] = {{0.5f, 0, -1, 1e9f}, {2, 0, -1, -9},       {NAN, 0, 0, 0},
                             {0, NAN, 0, 0},      {0, 0, -INFINITY, 0}, {0, 0, 0, INFINITY}};
    tear_down();
    set_up_spec(spec);
    play_step(0, 1, 0, 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        memcpy(farm_lane_action(rig_actor(&table.rig, 0), table.n - 1, 0), rows[i], sizeof(float));
        memcpy(farm_lane_policy(rig_actor(&table.rig, 0), table.n - 1, 0), rows[i] + 1, 2 * sizeof(float));
        memcpy(farm_lane_answer_at(rig_actor(&table.rig, 0), FARM_ANSWER_SAMPLE, table.n - 1, 0), rows[i] + 3,
               sizeof(float));
        play_step(0, 1, 0, 1);
        cr_assert_eq(table.rig.stats.bad_values, i < 2 ? 0 : i - 1, "case %zu", i);
    }
}

// All that is published, until a counter lies; answers are what they were when they were taken in.
Test(intake, steps_of_a_local_lane_are_taken_in_as_far_as_there_is_room) {
    tear_down();
    set_up_spec(local_spec());
    struct farm_intake_lane *ours = &table.rig.lanes.lanes[0];
    struct farm_lane *lane = rig_actor(&table.rig, 0);
    for (uint64_t n = 0; n < STEPS; n++) {
        struct local_answer answer = GOOD;
        answer.value = (float)n;
        for (uint32_t e = 0; e < WIDTH && n; e++) write_local(n - 1, e, &answer);
        farm_lane_actor_publish(lane);
    }
    for (uint64_t n = 0; n < STEPS; n++) {
        cr_assert(farm_lanes_take_in(ours, 9, &table.rig.stats), "step %lu", n);
        farm_lane_answer(ours->lane, ours->answered++);
    }
    cr_assert_not(farm_lanes_take_in(ours, 9, &table.rig.stats), "nothing more is published");
    farm_lane_actor_publish(lane);
    cr_assert_not(farm_lanes_take_in(ours, 9, &table.rig.stats), "an honest actor would have waited for room");
    farm_lane_release(ours->lane, 1);
    const uint64_t lies[] = {0, STEPS - 1, 2 * STEPS, 2 * STEPS + 1, UINT64_MAX};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        farm_store_release(&lane->up->produced, lies[i]);
        cr_assert_not(farm_lanes_take_in(ours, 9, &table.rig.stats), "%lu published", lies[i]);
    }
    cr_assert_eq(table.rig.stats.bad_values, 1, "counted once a life");
    farm_store_release(&lane->up->produced, STEPS + 1);
    cr_assert(farm_lanes_take_in(ours, 9, &table.rig.stats));
    memset((char *)table.rig.actors[0].up.header + table.rig.actors[0].layout.up_arrays, 0xff,
           table.rig.actors[0].up.bytes - table.rig.actors[0].layout.up_arrays);
    for (uint64_t n = 0; n < STEPS - 1; n++) cr_assert_eq(farm_lane_value(ours->lane, n)[1], (float)n + 1);
}
