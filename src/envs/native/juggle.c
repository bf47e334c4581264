// native/juggle: a disc, a ring and a cross fall down a board of 5 by 5 cells, one row per step, and the paddle has to
// get below the wanted one: a step towards it, or at it, pays 0.25, any other -0.25. The observation has three fields,
// each of which is needed: a picture of what falls, the paddle's place as a vector, and the wanted thing as an integer.
// 4 steps an episode; a perfect player's return is 1, a random one's about -0.4. Runs in an actor process.
#include <stdlib.h>
#include <string.h>

#include "envs/native/native.h"

enum {
    CELLS = 5,
    PIXELS = 4,
    SIDE = CELLS * PIXELS,
    PADDLE_PIXELS = 2,
    STEPS = CELLS - 1,
    THINGS = 3,
    LEFT = 0,
    RIGHT = 2,
    ACTIONS = 3
};

static const char *const shapes[THINGS][PIXELS] = {
    {" ## ", "####", "####", " ## "}, {" ## ", "#  #", "#  #", " ## "}, {"#  #", " ## ", " ## ", "#  #"}};

struct juggle_env {
    struct farm_native_random random;
    int row, paddle, columns[THINGS]; // all things; paddle; each thing
    int32_t wanted;
};

static int juggle_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error,
                       size_t error_bytes) {
    if (farm_native_read_options(config, farm_env_juggle.name, NULL, 0, error, error_bytes)) return -1;
    *spec = (struct farm_env_spec){
        .obs_count = 3,
        .obs[0] = {.name = "picture", .dtype = FARM_U8, .rank = 2, .dims = {SIDE, SIDE}},
        .obs[1] = {.name = "paddle", .dtype = FARM_F32, .rank = 1, .dims = {1}},
        .obs[2] = {.name = "wanted", .dtype = FARM_I32, .rank = 1, .dims = {1}, .choices = THINGS},
        .action = {.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {ACTIONS}},
        .frames_per_step = 1,
    };
    return 0;
}

static void *juggle_create(const struct farm_env_config *config, char *error, size_t error_bytes) {
    if (farm_native_read_options(config, farm_env_juggle.name, NULL, 0, error, error_bytes)) return NULL;
    const struct juggle_env first = {.random.seed = config->seed};
    return farm_native_make(&first, sizeof first, farm_env_juggle.name, error, error_bytes);
}

// picture: u8 [SIDE][SIDE], things 255. paddle: f32, -1 at the left edge, 1 at the right. wanted: i32.
static void juggle_draw(const struct juggle_env *env, void *const *obs) {
    const float paddle = 2.0f * (float)env->paddle / (CELLS - 1) - 1;
    memset(obs[0], 0, (size_t)SIDE * SIDE);
    for (int thing = 0; thing < THINGS; thing++)
        for (int y = 0; y < PIXELS; y++)
            for (int x = 0; x < PIXELS; x++)
                if (shapes[thing][y][x] == '#')
                    ((uint8_t *)obs[0])[(env->row * PIXELS + y) * SIDE + env->columns[thing] * PIXELS + x] = 255;
    memcpy(obs[1], &paddle, sizeof paddle);
    memcpy(obs[2], &env->wanted, sizeof env->wanted);
}

// Things fall in different columns: the first of the board's, the second of the remaining ones, ...
static void juggle_reset(void *self, void *const *obs) {
    struct juggle_env *env = self;
    int free_columns[CELLS];
    for (int c = 0; c < CELLS; c++) free_columns[c] = c;
    for (int thing = 0; thing < THINGS; thing++) {
        const uint32_t place = farm_native_below(&env->random, (uint32_t)(CELLS - thing));
        env->columns[thing] = free_columns[place];
        free_columns[place] = free_columns[CELLS - 1 - thing];
    }
    env->row = 0;
    env->paddle = (int)farm_native_below(&env->random, CELLS);
    env->wanted = (int32_t)farm_native_below(&env->random, THINGS);
    juggle_draw(env, obs);
}

static uint32_t juggle_step(void *self, const void *action, void *const *obs, float *reward) {
    struct juggle_env *env = self;
    int32_t a;
    memcpy(&a, action, sizeof a);
    env->row++;
    const int before = abs(env->paddle - env->columns[env->wanted]);
    if (a == LEFT && env->paddle > 0) env->paddle--;
    if (a == RIGHT && env->paddle < CELLS - 1) env->paddle++;
    const int after = abs(env->paddle - env->columns[env->wanted]);
    *reward = (after < before || after == 0 ? 1.0f : -1.0f) / STEPS;
    juggle_draw(env, obs);
    return env->row == STEPS ? FARM_STEP_TERMINATED | FARM_STEP_GAME_END : 0;
}

// The picture with the wanted thing in green, above the paddle.
static void juggle_render(void *self, uint32_t size[2], uint8_t *rgb) {
    const struct juggle_env *env = self;
    if (!farm_native_clear(size, SIDE, SIDE + PADDLE_PIXELS, rgb)) return;
    for (int thing = 0; thing < THINGS; thing++)
        for (int y = 0; y < PIXELS; y++)
            for (int x = 0; x < PIXELS; x++)
                if (shapes[thing][y][x] == '#')
                    farm_native_fill(rgb, SIDE, env->row * PIXELS + y, env->columns[thing] * PIXELS + x, 1, 1,
                                     thing == env->wanted ? 0x40e060 : 0x909090);
    farm_native_fill(rgb, SIDE, SIDE, env->paddle * PIXELS, PADDLE_PIXELS, PIXELS, 0x40a0ff);
}

const struct farm_env_api farm_env_juggle = FARM_ENV_API_RENDER(
    "native/juggle",
    "catch the wanted one of three falling things: a picture, a vector and an integer, 3 actions, 4 steps an "
    "episode; a perfect player gets 1",
    juggle, free, juggle_render);
