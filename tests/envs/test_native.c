// The built-in environments: the contract of farm/env.h, their rules, and CartPole against Gymnasium's states.
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../vectors/vectors.h"
#include "actor/actor.h"
#include "base/status.h"
#include "envs/native/native.h"
#include "envs/plugin.h"

enum { OBS_BYTES_MAX = 8192, GUARD_BYTES = 64, SIDE = 84, RESET = -1 };

// One environment, with a buffer for each field of its observation, between guards.
struct player {
    const struct farm_env_api *api;
    struct farm_env_spec spec;
    void *env;
    size_t at[FARM_OBS_FIELDS_MAX], bytes[FARM_OBS_FIELDS_MAX],
        end; // places of fields in memory; end of the last one's guard
    uint8_t memory[OBS_BYTES_MAX];
    float reward;
    uint32_t flags; // the last step's
    bool left[FARM_AGENTS_MAX];
};

static const void *field(const struct player *player, int f) {
    return player->memory + player->at[f];
}

static const uint8_t *observation(const struct player *player) {
    return field(player, 0);
}

static bool observations_equal(const struct player *a, const struct player *b) {
    bool equal = true;
    for (int f = 0; f < (int)a->spec.obs_count; f++) equal &= !memcmp(field(a, f), field(b, f), a->bytes[f]);
    return equal;
}

// Agent a makes move `move` + a. The first one's reward.
static uint32_t step_agents(struct player *player, int32_t move, void *const *obs) {
    int32_t actions[FARM_AGENTS_MAX];
    float rewards[FARM_AGENTS_MAX];
    uint8_t ends[FARM_AGENTS_MAX];
    for (int32_t a = 0; a < (int32_t)player->spec.agents; a++) actions[a] = (move + a) % 5;
    const bool over =
        farm_plugin_step(player->api, player->spec.agents, player->env, actions, obs, rewards, player->left, ends);
    if (over) memset(player->left, 0, sizeof player->left);
    player->reward = rewards[0];
    return over ? FARM_STEP_TERMINATED | FARM_STEP_GAME_END : 0;
}

// actions: of each dimension; the first RESET starts an episode.
static void advance_by(struct player *player, const int32_t *actions, int dirt) {
    void *obs[FARM_OBS_FIELDS_MAX];
    for (uint32_t f = 0; f < player->spec.obs_count; f++) obs[f] = player->memory + player->at[f];
    memset(player->memory, dirt, sizeof player->memory);
    player->reward = NAN;
    player->flags = 0;
    if (actions[0] == RESET)
        player->api->reset(player->env, obs);
    else if (player->api->step)
        player->flags = player->api->step(player->env, actions, obs, &player->reward);
    else
        player->flags = step_agents(player, actions[0], obs);
    for (uint32_t f = 0; f <= player->spec.obs_count; f++) {
        const size_t guard = f ? player->at[f - 1] + player->bytes[f - 1] : 0;
        for (size_t i = 0; i < GUARD_BYTES; i++)
            cr_assert_eq(player->memory[guard + i], dirt, "%s wrote beside its observation", player->api->name);
    }
}

static void advance(struct player *player, int32_t action, int dirt) {
    advance_by(player, &action, dirt);
}

static void reset(struct player *player) {
    advance(player, RESET, 0xff);
}

static void step(struct player *player, int32_t action) {
    advance(player, action, 0xff);
}

static struct player make_player(const char *name, uint64_t seed, const struct farm_env_option *option) {
    struct farm_env_config config = {.seed = seed, .options = option, .option_count = option ? 1 : 0};
    char error[200] = "";
    struct player player = {.api = farm_native_env_find(name)};
    cr_assert_not_null(player.api);
    cr_assert_eq(player.api->spec(&config, &player.spec, error, sizeof error), 0, "%s", error);
    player.env = player.api->create(&config, error, sizeof error);
    cr_assert_not_null(player.env, "%s", error);
    player.end = GUARD_BYTES;
    for (uint32_t f = 0; f < player.spec.obs_count; f++) {
        player.at[f] = player.end;
        player.bytes[f] = farm_field_bytes(&player.spec.obs[f]) * (player.spec.agents ? player.spec.agents : 1);
        player.end += player.bytes[f] + GUARD_BYTES;
    }
    cr_assert_leq(player.end, (size_t)OBS_BYTES_MAX);
    return player;
}

static void destroy_player(struct player *player) {
    player->api->destroy(player->env);
}

#define with_player __attribute__((cleanup(destroy_player))) struct player // destroyed at the end of its scope

// Two environments of one seed write over 0x00 and 0xff: equal observations show that they write every byte.
Test(envs, native_environments_repeat_themselves_and_write_exactly_their_observation) {
    for (size_t i = 0; farm_native_env_at(i); i++) {
        with_player a = make_player(farm_native_env_at(i)->name, 11, NULL),
                    b = make_player(farm_native_env_at(i)->name, 11, NULL);
        uint32_t draw = 1;
        bool start = true;
        for (int n = 0; n < 3000; n++) {
            draw = draw * 1664525u + 1013904223u;
            const int32_t action = (int32_t)((draw >> 16) % a.spec.action.sizes[0]);
            advance(&a, start ? RESET : action, 0);
            advance(&b, start ? RESET : action, 0xff);
            cr_assert(start || a.reward == b.reward);
            cr_assert_eq(a.flags, b.flags);
            cr_assert(observations_equal(&a, &b), "%s differs at step %d", a.api->name, n);
            start = a.flags != 0;
        }
    }
}

// Games with chance; one without it may be equal for all seeds. Breakout's first difference is the serve.
Test(envs, environments_with_chance_differ_between_seeds) {
    static const char *const names[] = {"native/catch",  "native/cartpole", "native/breakout", "native/menu",
                                        "native/juggle", "native/recall",   "native/pursuit"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int different = 0;
        for (uint64_t seed = 1; seed <= 10; seed++) {
            with_player a = make_player(names[i], 0, NULL), b = make_player(names[i], seed, NULL);
            bool equal = true;
            for (int n = 0; n <= 8 && equal && !a.flags && !b.flags; n++) {
                advance(&a, n ? 1 : RESET, 0xff);
                advance(&b, n ? 1 : RESET, 0xff);
                equal = observations_equal(&a, &b);
            }
            different += !equal;
        }
        cr_assert_geq(different, 5, "%s: %d of 10 seeds differ from seed 0", names[i], different);
    }
}

Test(envs, native_environments_refuse_unknown_options) {
    static const struct {
        const struct farm_env_api *api;
        struct farm_env_option option;
        const char *message;
    } cases[] = {{&farm_env_catch, {"lifeloss", "true"}, "lifeloss"},
                 {&farm_env_cartpole, {"lifeloss", "true"}, "lifeloss"},
                 {&farm_env_cartpole, {"velocity", "2"}, "true or false"},
                 {&farm_env_juggle, {"lifeloss", "true"}, "lifeloss"},
                 {&farm_env_recall, {"delays", "3"}, "did you mean \"delay\""},
                 {&farm_env_recall, {"delay", "0"}, "whole number of at least 1"},
                 {&farm_env_recall, {"cues", "1"}, "from 2 to 1000, not 1"},
                 {&farm_env_recall, {"cues", "4294967297"}, "from 2 to 1000"},
                 {&farm_env_menu, {"drink", "true"}, "did you mean \"drinks\""},
                 {&farm_env_breakout, {"lifeloss", "true"}, "did you mean \"life_loss\""},
                 {&farm_env_breakout, {"life_loss", "maybe"}, "maybe"},
                 {&farm_env_breakout, {"max_steps", "0"}, "whole number of at least 1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct farm_env_config config = {.options = &cases[i].option, .option_count = 1};
        struct farm_env_spec spec;
        char error[200] = "";
        cr_assert_eq(cases[i].api->spec(&config, &spec, error, sizeof error), -1);
        cr_assert_not_null(strstr(error, cases[i].message), "%s", error);
        error[0] = 0;
        cr_assert_null(cases[i].api->create(&config, error, sizeof error));
        cr_assert_not_null(strstr(error, cases[i].message), "%s", error);
    }
}

// ---- catch ----

static int catch_column(const float *row) {
    for (int c = 0; c < 5; c++)
        if (row[c] == 1) return c;
    return -1;
}

// Plays one episode towards the ball (1) or away from it (-1). Returns the episode's return.
static float play_catch(struct player *player, int towards) {
    float total = 0;
    reset(player);
    for (int n = 1; n <= 9; n++) {
        const float *board = (const float *)(const void *)observation(player);
        const int ball = catch_column(board + 5 * (n - 1)), paddle = catch_column(board + 45);
        cr_assert(ball >= 0 && paddle >= 0, "ball and paddle are on the board");
        int32_t action = 1;
        if (towards > 0) action = ball < paddle ? 0 : ball > paddle ? 2 : 1;
        if (towards < 0) action = ball <= 2 ? 2 : 0;
        step(player, action);
        cr_assert_eq(player->flags, n < 9 ? 0 : FARM_STEP_TERMINATED | FARM_STEP_GAME_END);
        total += player->reward;
    }
    return total;
}

Test(envs, catch_rewards_the_catch_after_nine_steps) {
    with_player player = make_player("native/catch", 3, NULL);
    for (int i = 0; i < 50; i++) {
        cr_assert_eq(play_catch(&player, 1), 1.0f);
        cr_assert_eq(play_catch(&player, -1), -1.0f);
    }
}

// ---- cartpole ----

// The tolerance is a few units of f64's last place: cos and sin of two libraries differ, and errors add up over 40
// ticks.
Test(envs, cartpole_moves_like_gymnasiums) {
    static struct {
        double state[4];
        int32_t right, terminated; // -1: the row starts an episode
    } rows[41];                    // as make_cartpole.py writes them
    struct farm_cartpole_state state = {0};
    size_t ends = 0;
    vectors_read("tests/vectors/cartpole.bin", rows, sizeof rows);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const double *want = rows[i].state;
        if (rows[i].right < 0) {
            state = (struct farm_cartpole_state){want[0], want[1], want[2], want[3]};
            continue;
        }
        const bool fell = farm_cartpole_tick(&state, rows[i].right);
        const double got[4] = {state.position, state.velocity, state.angle, state.angle_velocity};
        for (int k = 0; k < 4; k++)
            cr_assert_leq(fabs(got[k] - want[k]), 1e-12, "row %zu, number %d: %.17g, Gymnasium %.17g", i, k, got[k],
                          want[k]);
        cr_assert_eq(fell, rows[i].terminated, "row %zu", i);
        ends += fell;
    }
    cr_assert_eq(ends, 5);
}

Test(envs, cartpole_starts_near_the_middle_and_is_truncated_after_500_steps) {
    with_player player = make_player("native/cartpole", 5, NULL);
    reset(&player);
    const float *state = (const float *)(const void *)observation(&player);
    for (int k = 0; k < 4; k++) cr_assert_leq(fabsf(state[k]), 0.05f);
    int n = 0;
    while (!player.flags) { // against the fall and, a little, the drift
        step(&player, state[2] + 0.4f * state[3] + 0.03f * state[0] + 0.08f * state[1] > 0);
        cr_assert_eq(player.reward, 1.0f);
        n++;
    }
    cr_assert_eq(n, 500);
    cr_assert_eq(player.flags, FARM_STEP_TRUNCATED | FARM_STEP_GAME_END);
    reset(&player);
    n = 0;
    for (; !player.flags; n++) step(&player, 1);
    cr_assert(n >= 7 && n <= 12, "always to the right falls within %d steps", n);
    cr_assert_eq(player.flags, FARM_STEP_TERMINATED | FARM_STEP_GAME_END);
}

Test(envs, cartpole_without_velocity_shows_position_and_angle_of_the_same_game) {
    const struct farm_env_option option = {"velocity", "false"};
    with_player all = make_player("native/cartpole", 5, NULL), part = make_player("native/cartpole", 5, &option);
    const float *state = field(&all, 0), *seen = field(&part, 0);
    cr_assert(all.bytes[0] == 4 * sizeof(float) && part.bytes[0] == 2 * sizeof(float));
    for (int n = 0; n < 200; n++) {
        const int32_t action = n == 0 || all.flags ? RESET : n / 2 % 2;
        advance(&all, action, 0xff);
        advance(&part, action, 0xff);
        cr_assert(seen[0] == state[0] && seen[1] == state[2] && part.flags == all.flags, "step %d", n);
    }
}

// ---- breakout ----

enum { NOOP, FIRE, RIGHT, LEFT };

// The leftmost column of a pixel of this grey in rows [from, to); -1 if there is no such pixel.
static int column_of(const struct player *player, int from, int to, uint8_t grey) {
    for (int y = from; y < to; y++)
        for (int x = 2; x < 82; x++)
            if (observation(player)[y * SIDE + x] == grey) return x;
    return -1;
}

static int count_lives(const struct player *player) {
    int lives = 0;
    for (int x = 0; x < SIDE; x++) lives += observation(player)[3 * SIDE + x] && !observation(player)[3 * SIDE + x - 1];
    return lives;
}

// The action that moves the paddle's middle under the ball.
static int32_t follow_ball(const struct player *player) {
    const int ball = column_of(player, 10, 84, 255), paddle = column_of(player, 76, 77, 200);
    if (ball < 0) return FIRE;
    const int ahead = ball - (paddle + 5);
    return ahead > 2 ? RIGHT : ahead < -2 ? LEFT : NOOP;
}

Test(envs, breakout_ends_an_episode_with_each_life_and_the_game_with_the_last) {
    with_player player = make_player("native/breakout", 1, NULL);
    for (int game = 0; game < 3; game++) {
        for (int life = 5; life >= 1; life--) {
            reset(&player);
            cr_assert_eq(count_lives(&player), life);
            cr_assert_eq(column_of(&player, 10, 84, 255), -1, "no ball before the serve");
            int n = 0;
            for (; !player.flags && n < 500; n++) step(&player, LEFT);
            cr_assert_geq(n, 15, "the ball comes by itself, but not at once");
            cr_assert_eq(player.flags, life > 1 ? FARM_STEP_TERMINATED : FARM_STEP_TERMINATED | FARM_STEP_GAME_END);
        }
        cr_assert_eq(count_lives(&player), 0);
    }
}

Test(envs, breakout_without_life_loss_ends_with_the_game_only) {
    const struct farm_env_option option = {"life_loss", "false"};
    with_player player = make_player("native/breakout", 1, &option);
    reset(&player);
    int n = 0;
    for (; !player.flags && n < 2000; n++) step(&player, LEFT);
    cr_assert_eq(player.flags, FARM_STEP_TERMINATED | FARM_STEP_GAME_END);
    cr_assert_eq(count_lives(&player), 0);
}

// Bricks by row, counted in the picture.
static void count_bricks(const struct player *player, int *bricks) {
    for (int r = 0; r < 6; r++) {
        bricks[r] = 0;
        for (int c = 0; c < 20; c++) {
            const uint8_t grey = observation(player)[(21 + 3 * r) * SIDE + 3 + 4 * c];
            bricks[r] += grey != 0 && grey != 255;
        }
    }
}

// Each reward is the value of the bricks that vanished; the game ends after two walls, 960 points.
Test(envs, breakout_pays_for_each_brick_by_its_row_and_ends_after_two_walls) {
    static const int worth[6] = {7, 7, 4, 4, 1, 1};
    with_player player = make_player("native/breakout", 2, NULL);
    reset(&player);
    step(&player, NOOP);
    cr_assert_eq(column_of(&player, 10, 84, 255), -1);
    step(&player, FIRE);
    cr_assert_geq(column_of(&player, 10, 84, 255), 0, "FIRE serves at once");
    int before[6], after[6];
    float total = 0;
    for (int n = 0; !player.flags && n < 10000; n++) {
        count_bricks(&player, before);
        step(&player, follow_ball(&player));
        count_bricks(&player, after);
        int points = 0, rebuilt = 0;
        for (int r = 0; r < 6; r++) {
            points += (before[r] - after[r]) * worth[r];
            rebuilt |= after[r] > before[r];
        }
        if (!rebuilt) cr_assert_eq(player.reward, (float)points, "step %d paid %g for %d", n, player.reward, points);
        total += player.reward;
    }
    cr_assert_eq(player.flags, FARM_STEP_TERMINATED | FARM_STEP_GAME_END);
    cr_assert_eq(count_lives(&player), 5);
    cr_assert_eq(total, 960.0f);
}

Test(envs, breakout_truncates_a_game_after_max_steps) {
    const struct farm_env_option option = {"max_steps", "100"};
    with_player player = make_player("native/breakout", 1, &option);
    for (int game = 0; game < 2; game++) {
        int lives_lost = 0;
        for (int n = 1; n <= 100; n++) {
            if (n == 1 || player.flags) reset(&player);
            cr_assert_eq(count_lives(&player), 5 - lives_lost);
            step(&player, n < 60 ? LEFT : follow_ball(&player));
            if (n < 100 && player.flags) {
                cr_assert_eq(player.flags, FARM_STEP_TERMINATED);
                lives_lost++;
            }
        }
        cr_assert_gt(lives_lost, 0);
        cr_assert_eq(player.flags, FARM_STEP_TRUNCATED | FARM_STEP_GAME_END);
    }
}

// ---- menu ----

// The n dishes (drinks) from `stock` on: the `which`-th in stock from the guest's best on, or, if it is -1, one that is
// not in stock. The order is the header's: each guest's begins five places behind the guest's before.
static int32_t menu_choose(int32_t guest, const uint8_t *stock, int n, int which) {
    for (int rank = 0; rank < n; rank++) {
        const int item = (rank + 5 * guest) % n;
        if (which < 0 ? !stock[item] : stock[item] && which-- == 0) return item;
    }
    cr_assert_fail("no such dish");
    return -1;
}

// Plays a game by such choices. Returns its return.
static float play_menu(struct player *player, int dish, int drink) {
    const uint8_t *mask = field(player, 1);
    float total = 0;
    for (reset(player); !player->flags; total += player->reward) {
        const int32_t guest = *(const int32_t *)field(player, 0);
        int stock = 0;
        for (size_t i = 0; i < player->bytes[1]; i++) stock += mask[i];
        cr_assert_eq(stock, player->bytes[1] == 12 ? 3 : 6);
        advance_by(
            player,
            (int32_t[]){menu_choose(guest, mask, 12, dish), drink < -1 ? 0 : menu_choose(guest, mask + 12, 8, drink)},
            0xff);
    }
    cr_assert_eq(player->flags, FARM_STEP_TERMINATED | FARM_STEP_GAME_END);
    return total;
}

Test(envs, menu_pays_for_the_best_in_stock_and_ends_at_what_is_not) {
    const struct farm_env_option option = {"drinks", "true"};
    with_player dishes = make_player("native/menu", 3, NULL), both = make_player("native/menu", 3, &option);
    cr_assert(both.spec.action.kind == FARM_ACTION_MULTI_DISCRETE && both.spec.action.dims == 2 && both.bytes[1] == 20);
    for (int i = 0; i < 20; i++) {
        cr_assert_float_eq(play_menu(&dishes, 0, -2), 1, 1e-5);
        cr_assert_eq(play_menu(&dishes, 1, -2), 0.0f);
        cr_assert_eq(play_menu(&dishes, -1, -2), -1.0f, "the first dish is not in stock");
        cr_assert_float_eq(play_menu(&both, 0, 0), 1, 1e-5);
        cr_assert_float_eq(play_menu(&both, 0, 2), 0.5, 1e-5);
        cr_assert_eq(play_menu(&both, 0, -1), -1.0f);
    }
}

// ---- juggle ----

// Plays a game towards thing `wanted + other` by what the fields show. Returns its return.
static float play_juggle(struct player *player, int other) {
    static const uint8_t corner[3][2] = {{0, 255}, {0, 0}, {255, 255}}; // pixels (0, 0) and (1, 1) of each thing
    const int cell = 4, cells = 5, side = cell * cells;
    const uint8_t *picture = field(player, 0);
    float total = 0;
    reset(player);
    for (int row = 0; !player->flags; row++) {
        const int32_t thing = (*(const int32_t *)field(player, 2) + other) % 3;
        const int paddle = (int)lroundf((*(const float *)field(player, 1) + 1) / 2 * (float)(cells - 1));
        int column = -1;
        for (int c = 0; c < cells; c++) {
            const uint8_t *at = picture + row * cell * side + c * cell;
            if ((at[1] || at[0]) && at[0] == corner[thing][0] && at[side + 1] == corner[thing][1]) column = c;
        }
        cr_assert_geq(column, 0, "no thing %d in row %d", thing, row);
        step(player, column < paddle ? 0 : column > paddle ? 2 : 1);
        total += player->reward;
    }
    cr_assert_eq(player->flags, FARM_STEP_TERMINATED | FARM_STEP_GAME_END);
    return total;
}

Test(envs, juggle_pays_for_each_step_towards_the_wanted_thing_only) {
    with_player player = make_player("native/juggle", 3, NULL);
    float others = 0;
    for (int i = 0; i < 50; i++) {
        cr_assert_eq(play_juggle(&player, 0), 1.0f);
        others += play_juggle(&player, 1) / 50;
    }
    cr_assert_lt(others, 0.5, "towards another thing: %g", others);
}

// ---- recall ----

// The place of the only 1 in an observation whose other places are 0; -1: all are 0.
static int recall_shown(const struct player *player) {
    const float *places = field(player, 0);
    int shown = -1;
    for (int i = 0; i <= (int)player->spec.action.sizes[0]; i++) {
        cr_assert(places[i] == 0 || (places[i] == 1 && shown < 0));
        if (places[i] == 1) shown = i;
    }
    return shown;
}

// Plays one episode and names its cue before the question, and the one `other` behind it at the question. Returns the
// cue.
static int play_recall(struct player *player, int delay, int other) {
    const int cues = (int)player->spec.action.sizes[0];
    reset(player);
    const int cue = recall_shown(player);
    cr_assert(cue >= 0 && cue < cues);
    for (int n = 1; n <= delay; n++) {
        step(player, cue);
        cr_assert_eq(recall_shown(player), n == delay ? cues : -1, "step %d shows the question only", n);
        cr_assert(player->reward == 0 && player->flags == 0);
    }
    step(player, (cue + other) % cues);
    cr_assert_eq(recall_shown(player), -1);
    cr_assert_eq(player->flags, FARM_STEP_TERMINATED | FARM_STEP_GAME_END);
    cr_assert_eq(player->reward, other == 0);
    return cue;
}

// Cues are uniform: a constant answer gets 1 / cues. Of 1,000 games the standard deviation is 0.014.
Test(envs, recall_shows_the_cue_once_and_pays_for_it_at_the_question_only) {
    const struct farm_env_option delay = {"delay", "1"}, cues = {"cues", "7"};
    with_player usual = make_player("native/recall", 3, NULL), soon = make_player("native/recall", 3, &delay),
                many = make_player("native/recall", 3, &cues);
    int counts[4] = {0};
    for (int i = 0; i < 1000; i++) counts[play_recall(&usual, 10, i % 4)]++;
    for (int c = 0; c < 4; c++) cr_assert_float_eq(counts[c] / 1000.0, 0.25, 0.07, "cue %d: %d", c, counts[c]);
    for (int i = 0; i < 20; i++) {
        play_recall(&soon, 1, i % 4);
        play_recall(&many, 10, i % 7);
    }
}

// ---- pursuit ----

Test(envs, pursuit_is_won_in_either_seat_by_who_goes_to_the_prey) {
    for (int seat = 0; seat < 2; seat++) {
        with_player player = make_player("native/pursuit", 5, NULL);
        float seen[2][244], rewards[2];
        void *obs[] = {seen};
        int wins = 0;
        for (int game = 0; game < 100; game++) {
            bool left[2] = {false}, over = false;
            uint8_t ends[2];
            for (player.api->reset(player.env, obs); !over;) {
                int prey = 0;
                while (seen[seat][prey] == 0) prey++;
                int32_t actions[2] = {0};
                actions[seat] = prey / 9 != 4 ? 1 + (prey / 9 > 4) : 3 + (prey % 9 > 4);
                over = farm_plugin_step(player.api, 2, player.env, actions, obs, rewards, left, ends);
            }
            cr_expect_eq(rewards[0], -rewards[1]);
            wins += rewards[seat] > 0;
        }
        cr_expect(wins >= 95, "%d", wins);
    }
}
