// native/catch: a ball falls down a board of 10 rows and 5 columns, one row per step; the paddle in the bottom row
// catches it (+1) or not (-1). The smallest environment in which actions depend on the observation: 9 steps per
// episode; a perfect player's return is 1, a random one's about -0.6. Runs in an actor process.
// The game is bsuite's catch (Osband et al., "Behaviour suite for reinforcement learning", ICLR 2020, section A.1).
#include <stdlib.h>
#include <string.h>

#include "envs/native/native.h"

enum { ROWS = 10, COLUMNS = 5, LEFT = 0, STAY = 1, RIGHT = 2, ACTIONS = 3 };

struct catch_env {
    struct farm_native_random random;
    int ball_row, ball_column, paddle_column; // the paddle lies in the bottom row
};

static int catch_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error,
                      size_t error_bytes) {
    if (farm_native_read_options(config, farm_env_catch.name, NULL, 0, error, error_bytes)) return -1;
    *spec = farm_native_spec("board", ROWS * COLUMNS, ACTIONS);
    return 0;
}

static void *catch_create(const struct farm_env_config *config, char *error, size_t error_bytes) {
    if (farm_native_read_options(config, farm_env_catch.name, NULL, 0, error, error_bytes)) return NULL;
    const struct catch_env first = {.random.seed = config->seed};
    return farm_native_make(&first, sizeof first, farm_env_catch.name, error, error_bytes);
}

// board: f32 [ROWS][COLUMNS], 1 where ball and paddle are.
static void catch_draw(const struct catch_env *env, float *board) {
    memset(board, 0, ROWS * COLUMNS * sizeof *board);
    board[env->ball_row * COLUMNS + env->ball_column] = 1;
    board[(ROWS - 1) * COLUMNS + env->paddle_column] = 1;
}

static void catch_reset(void *self, void *const *obs) {
    struct catch_env *env = self;
    env->ball_row = 0;
    env->ball_column = (int)farm_native_below(&env->random, COLUMNS);
    env->paddle_column = COLUMNS / 2;
    catch_draw(env, obs[0]);
}

static uint32_t catch_step(void *self, const void *action, void *const *obs, float *reward) {
    struct catch_env *env = self;
    int32_t a;
    memcpy(&a, action, sizeof a);
    if (a == LEFT && env->paddle_column > 0) env->paddle_column--;
    if (a == RIGHT && env->paddle_column < COLUMNS - 1) env->paddle_column++;
    env->ball_row++;
    catch_draw(env, obs[0]);
    *reward = 0;
    if (env->ball_row < ROWS - 1) return 0;
    *reward = env->ball_column == env->paddle_column ? 1 : -1;
    return FARM_STEP_TERMINATED | FARM_STEP_GAME_END;
}

// A pixel per cell; the paddle lies over the ball.
static void catch_render(void *self, uint32_t size[2], uint8_t *rgb) {
    const struct catch_env *env = self;
    if (!farm_native_clear(size, COLUMNS, ROWS, rgb)) return;
    farm_native_fill(rgb, COLUMNS, env->ball_row, env->ball_column, 1, 1, 0xffd040);
    farm_native_fill(rgb, COLUMNS, ROWS - 1, env->paddle_column, 1, 1, 0x40a0ff);
}

const struct farm_env_api farm_env_catch = FARM_ENV_API_RENDER(
    "native/catch", "catch a falling ball: 10x5 board, 3 actions, 9 steps an episode; a perfect player gets 1", catch,
    free, catch_render);
