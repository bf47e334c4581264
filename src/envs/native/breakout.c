// native/breakout: a game like Atari's Breakout, fast and quick to learn: 84x84 grey pixels, six rows of bricks worth
// 7 7 4 4 1 1 points from the top, two walls, five lives, Atari's actions (noop, fire, right, left). The ball's angle
// depends on where it meets the paddle; it speeds up after twelve such meetings or in the two top rows. Fire serves; a
// ball also starts after ten steps. Not an emulation: scores differ from ale/Breakout's, and nothing flickers, so one
// frame per step suffices. Runs in an actor process.
//
// A step changes ball, paddle and broken bricks on a canvas and copies it to the observation. Positions are whole
// numbers of 1/256 pixel, so the same seed and actions give the same game on every machine.
#include <farm/obs.h>
#include <stdlib.h>
#include <string.h>

#include "envs/native/native.h"

enum { NOOP = 0, FIRE = 1, RIGHT = 2, LEFT = 3, ACTIONS = 4 };

enum {
    SIDE = 84,
    WALL_LEFT = 2,   // first column of the playing field
    WALL_RIGHT = 82, // first column right of it
    CEILING = 10,    // first row of the playing field; the wall above it is two rows
    BRICK_TOP = 20,
    BRICK_ROWS = 6,
    BRICK_COLUMNS = 20,
    BRICK_HEIGHT = 3,
    BRICK_WIDTH = 4,
    PADDLE_TOP = 76,
    PADDLE_WIDTH = 12,
    PADDLE_HEIGHT = 2,
    BALL = 2, // rows and columns
    SERVE_ROW = 42,
    LIVES_ROW = 2,
};
_Static_assert(WALL_RIGHT - WALL_LEFT == BRICK_COLUMNS * BRICK_WIDTH, "the bricks fill the field's width");

enum {
    PIXEL = 256,                // units of position
    TICKS = 4,                  // steps of physics per step, as for Atari agents
    SPEED_SLOW = PIXEL * 3 / 4, // vertical, a tick
    SPEED_FAST = PIXEL,
    PADDLE_SPEED = PIXEL * 5 / 4,
    FAST_AFTER_HITS = 12,
    SERVE_AFTER_STEPS = 10,
    LIVES = 5,
    WALLS = 2,
};

enum { GREY_WALL = 142, GREY_PADDLE = 200, GREY_BALL = 255, GREY_LIFE = 170 };
static const uint8_t brick_grey[BRICK_ROWS] = {90, 110, 125, 140, 155, 100};
static const int brick_points[BRICK_ROWS] = {7, 7, 4, 4, 1, 1};

struct breakout_env {
    struct farm_native_random random;
    bool life_loss;      // option: a lost life ends the episode
    int64_t steps_max;   // option: limit of a game
    bool game_continues; // the episode that ended was a life, not the game
    int64_t steps;
    int lives, walls_done, bricks_left;
    bool served;
    int steps_unserved, paddle_hits;
    bool fast;
    int32_t x, y, velocity_x, velocity_y; // ball's upper left corner
    int32_t paddle;                       // paddle's left end
    uint32_t bricks[BRICK_ROWS];          // bit c: the brick in column c stands
    uint32_t hints;
    uint8_t canvas[SIDE * SIDE];
};

static int breakout_read(const struct farm_env_config *config, struct breakout_env *env, char *error, size_t n) {
    struct farm_native_option options[] = {{"life_loss", true, 1}, {"max_steps", false, 10000}};
    if (farm_native_read_options(config, farm_env_breakout.name, options, 2, error, n)) return -1;
    env->life_loss = options[0].value;
    env->steps_max = options[1].value;
    env->hints = config->hints;
    return 0;
}

static int breakout_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error,
                         size_t error_bytes) {
    struct breakout_env env;
    if (breakout_read(config, &env, error, error_bytes)) return -1;
    *spec = (struct farm_env_spec){
        .obs_count = 1,
        .obs[0] = {.name = "frame", .dtype = FARM_U8, .rank = 2, .dims = {SIDE, SIDE}},
        .action = {.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {ACTIONS}},
        .frames_per_step = 1,
    };
    return 0;
}

FARM_NATIVE_CREATE(breakout)

// ---- drawing ----

static void fill_rectangle(struct breakout_env *env, int row, int column, int height, int width, uint8_t grey) {
    for (int r = row; r < row + height; r++) memset(env->canvas + r * SIDE + column, grey, (size_t)width);
}

static void draw_brick(struct breakout_env *env, int row, int column, uint8_t grey) {
    fill_rectangle(env, BRICK_TOP + row * BRICK_HEIGHT, WALL_LEFT + column * BRICK_WIDTH, BRICK_HEIGHT, BRICK_WIDTH,
                   grey);
}

static void draw_lives(struct breakout_env *env) {
    for (int i = 0; i < LIVES; i++) fill_rectangle(env, LIVES_ROW, 4 + 5 * i, 3, 3, i < env->lives ? GREY_LIFE : 0);
}

static void draw_moving(struct breakout_env *env, uint8_t paddle, uint8_t ball) {
    fill_rectangle(env, PADDLE_TOP, env->paddle / PIXEL, PADDLE_HEIGHT, PADDLE_WIDTH, paddle);
    if (env->served) fill_rectangle(env, env->y / PIXEL, env->x / PIXEL, BALL, BALL, ball);
}

// ---- rules ----

static void build_wall(struct breakout_env *env) {
    env->bricks_left = BRICK_ROWS * BRICK_COLUMNS;
    for (int r = 0; r < BRICK_ROWS; r++) {
        env->bricks[r] = (1u << BRICK_COLUMNS) - 1;
        for (int c = 0; c < BRICK_COLUMNS; c++) draw_brick(env, r, c, brick_grey[r]);
    }
}

static void remove_ball(struct breakout_env *env) {
    env->served = env->fast = false;
    env->steps_unserved = env->paddle_hits = 0;
}

static void start_game(struct breakout_env *env) {
    memset(env->canvas, 0, sizeof env->canvas);
    fill_rectangle(env, CEILING - 2, 0, 2, SIDE, GREY_WALL);
    fill_rectangle(env, CEILING, 0, SIDE - CEILING, WALL_LEFT, GREY_WALL);
    fill_rectangle(env, CEILING, WALL_RIGHT, SIDE - CEILING, SIDE - WALL_RIGHT, GREY_WALL);
    env->lives = LIVES;
    env->walls_done = 0;
    env->steps = 0;
    env->paddle = (SIDE - PADDLE_WIDTH) / 2 * PIXEL;
    remove_ball(env);
    build_wall(env);
    draw_lives(env);
}

static void serve_ball(struct breakout_env *env) {
    env->served = true;
    env->x = (WALL_LEFT + 8 + (int32_t)farm_native_below(&env->random, WALL_RIGHT - WALL_LEFT - 16 - BALL)) * PIXEL;
    env->y = SERVE_ROW * PIXEL;
    env->velocity_y = SPEED_SLOW;
    env->velocity_x = SPEED_SLOW / 2 + (int32_t)farm_native_below(&env->random, SPEED_SLOW / 2);
    if (farm_native_below(&env->random, 2)) env->velocity_x = -env->velocity_x;
}

static void speed_up(struct breakout_env *env) {
    env->fast = true;
    env->velocity_y = env->velocity_y < 0 ? -SPEED_FAST : SPEED_FAST;
}

// Breaks at most one brick under the ball. Returns its points, or 0.
static int break_brick(struct breakout_env *env) {
    for (int corner = 0; corner < 4; corner++) {
        const int row = (env->y / PIXEL + (corner & 1) - BRICK_TOP) / BRICK_HEIGHT;
        const int column = (env->x / PIXEL + (corner >> 1) - WALL_LEFT) / BRICK_WIDTH;
        if (env->y / PIXEL + (corner & 1) < BRICK_TOP || row >= BRICK_ROWS || !(env->bricks[row] & 1u << column))
            continue;
        env->bricks[row] &= ~(1u << column);
        env->bricks_left--;
        draw_brick(env, row, column, 0);
        if (row < 2) speed_up(env);
        return brick_points[row];
    }
    return 0;
}

// Moves the ball sideways, off walls and bricks. Returns points.
static int move_ball_sideways(struct breakout_env *env) {
    const int32_t left = WALL_LEFT * PIXEL, right = (WALL_RIGHT - BALL) * PIXEL, before = env->x;
    env->x += env->velocity_x;
    if (env->x < left || env->x > right) {
        env->x = (env->x < left ? 2 * left : 2 * right) - env->x;
        env->velocity_x = -env->velocity_x;
    }
    const int points = break_brick(env);
    if (points) {
        env->x = before;
        env->velocity_x = -env->velocity_x;
    }
    return points;
}

// The farther from the paddle's middle, the flatter the angle: up to 53 degrees, never vertical.
static void bounce_off_paddle(struct breakout_env *env) {
    const int32_t reach = (PADDLE_WIDTH + BALL) * PIXEL / 2;
    const int32_t offset = env->x + BALL * PIXEL / 2 - (env->paddle + PADDLE_WIDTH * PIXEL / 2);
    if (++env->paddle_hits >= FAST_AFTER_HITS) env->fast = true;
    const int32_t speed = env->fast ? SPEED_FAST : SPEED_SLOW;
    const bool to_left = offset ? offset < 0 : env->velocity_x < 0;
    const int32_t across = speed * 4 * abs(offset) / (3 * reach);
    env->y = (PADDLE_TOP - BALL) * PIXEL;
    env->velocity_y = -speed;
    env->velocity_x = across < speed / 4 ? speed / 4 : across;
    if (to_left) env->velocity_x = -env->velocity_x;
    if (env->bricks_left == 0) build_wall(env); // now, because no brick may appear under the ball
}

// Moves the ball up or down, off ceiling, bricks and paddle. Returns points.
static int move_ball_vertically(struct breakout_env *env) {
    const int32_t before = env->y;
    env->y += env->velocity_y;
    if (env->y < CEILING * PIXEL) {
        env->y = 2 * CEILING * PIXEL - env->y;
        env->velocity_y = -env->velocity_y;
    }
    const int points = break_brick(env);
    if (points) {
        env->y = before;
        env->velocity_y = -env->velocity_y;
        return points;
    }
    const int32_t top = (PADDLE_TOP - BALL) * PIXEL; // top of the ball when it touches the paddle
    const bool reaches = before <= top && env->y > top;
    const bool meets = env->x + BALL * PIXEL > env->paddle && env->x < env->paddle + PADDLE_WIDTH * PIXEL;
    if (reaches && meets) bounce_off_paddle(env);
    return 0;
}

static void move_paddle(struct breakout_env *env, int32_t action) {
    if (action == RIGHT) env->paddle += PADDLE_SPEED;
    if (action == LEFT) env->paddle -= PADDLE_SPEED;
    if (env->paddle < WALL_LEFT * PIXEL) env->paddle = WALL_LEFT * PIXEL;
    if (env->paddle > (WALL_RIGHT - PADDLE_WIDTH) * PIXEL) env->paddle = (WALL_RIGHT - PADDLE_WIDTH) * PIXEL;
}

// One tick. Adds points to *reward. Returns whether the ball is lost.
static bool play_tick(struct breakout_env *env, int32_t action, float *reward) {
    move_paddle(env, action);
    if (!env->served) return false;
    int points = move_ball_sideways(env);
    points += move_ball_vertically(env);
    *reward += (float)points;
    if (points && env->bricks_left == 0) env->walls_done++;
    return env->y > (SIDE - BALL) * PIXEL;
}

static uint32_t lose_life(struct breakout_env *env) {
    remove_ball(env);
    env->lives--;
    draw_lives(env);
    if (env->lives == 0) return FARM_STEP_TERMINATED | FARM_STEP_GAME_END;
    env->game_continues = env->life_loss;
    return env->life_loss ? FARM_STEP_TERMINATED : 0;
}

static void breakout_reset(void *self, void *const *obs) {
    struct breakout_env *env = self;
    if (!env->game_continues) start_game(env);
    env->game_continues = false;
    draw_moving(env, GREY_PADDLE, GREY_BALL);
    farm_obs_copy(obs[0], env->canvas, sizeof env->canvas, env->hints);
}

static uint32_t breakout_step(void *self, const void *action, void *const *obs, float *reward) {
    struct breakout_env *env = self;
    int32_t a;
    memcpy(&a, action, sizeof a);
    uint32_t answer = 0;
    *reward = 0;
    draw_moving(env, 0, 0);
    if (!env->served && (a == FIRE || ++env->steps_unserved >= SERVE_AFTER_STEPS)) serve_ball(env);
    for (int t = 0; t < TICKS; t++) {
        if (play_tick(env, a, reward)) {
            answer = lose_life(env);
            break;
        }
        if (env->walls_done == WALLS) answer = FARM_STEP_TERMINATED | FARM_STEP_GAME_END;
        if (answer) break;
    }
    // max_steps counts the whole game. A life lost in the last step ends both.
    if (++env->steps >= env->steps_max && !(answer & FARM_STEP_GAME_END)) {
        answer |= (answer ? 0 : FARM_STEP_TRUNCATED) | FARM_STEP_GAME_END;
        env->game_continues = false;
    }
    draw_moving(env, GREY_PADDLE, GREY_BALL);
    farm_obs_copy(obs[0], env->canvas, sizeof env->canvas, env->hints);
    return answer;
}

const struct farm_env_api farm_env_breakout = FARM_ENV_API(
    "native/breakout", "break bricks with a ball: 84x84 grey pixels, 4 actions, 5 lives; options life_loss, max_steps",
    breakout, free);
