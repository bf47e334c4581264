// example/gridworld: a small game as a plug-in, to copy and to change. The agent walks north, south, west or east on a
// square board until it stands on the goal. Build it, check it, train on it:
//
//   cc -O2 -shared -fPIC -Iinclude examples/gridworld.c -o gridworld.so
//   farm doctor ./gridworld.so
//   farm train --env plugin:./gridworld.so --seconds 20
//
// (-Iinclude: the folder with farm/env.h; not needed after `make install` into /usr/local.) The comments above each
// function give its part of the contract; docs/ADDING_AN_ENVIRONMENT.md has the whole.
#include <farm/env.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "example/gridworld" // as farm train and farm envs show it

enum { NORTH, SOUTH, WEST, EAST, ACTIONS };
enum { SIDE_DEFAULT = 5, SIDE_MIN = 2, SIDE_MAX = 32, STEPS_PER_SIDE = 8 };
static const float STEP_REWARD = -0.05f, GOAL_REWARD = 1;

// All state is in here: an actor steps hundreds of instances in one process, in turn. No static variables.
struct gridworld {
    uint64_t random; // state of the random numbers
    int size, row, column, goal_row, goal_column, steps;
};

// ---- options ----

// Options are the recipe's keys "env.*", without that prefix: `--env.size 7` arrives as {"size", "7"}. Refuse unknown
// keys with a message for the user, otherwise a mistyped one is silently ignored.
static int read_options(const struct farm_env_config *config, int *size, char *error, size_t error_bytes) {
    *size = SIDE_DEFAULT;
    for (size_t i = 0; i < config->option_count; i++) {
        const struct farm_env_option *option = &config->options[i];
        if (strcmp(option->key, "size") != 0) {
            snprintf(error, error_bytes, NAME " has no option '%s'; it has size", option->key);
            return -1;
        }
        char *end;
        const long value = strtol(option->value, &end, 10);
        *size = (int)value;
        if (*end || value < SIDE_MIN || value > SIDE_MAX) {
            snprintf(error, error_bytes, "size must be %d to %d (got %s)", SIDE_MIN, SIDE_MAX, option->value);
            return -1;
        }
    }
    return 0;
}

// Describes observations and actions under these options. Several processes call it, also some that play nothing: the
// result depends on the options alone. *spec is zeroed before the call.
static int gridworld_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error,
                          size_t error_bytes) {
    int size;
    if (read_options(config, &size, error, error_bytes)) return -1;
    *spec = (struct farm_env_spec){
        .obs_count = 1,
        // Two planes of size x size: the agent's place and the goal's. f32 of any rank suits the network "mlp"; FARM_U8
        // of height x width is a picture, for "shallow" and "nature".
        .obs[0] = {.name = "planes", .dtype = FARM_F32, .rank = 3, .dims = {2, (uint32_t)size, (uint32_t)size}},
        .action = {.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {ACTIONS}},
        .frames_per_step = 1,
    };
    return 0;
}

// ---- an instance ----

// config and its texts are invalid after the call: copy what you need. Do expensive things (files, tables) here, not in
// reset.
static void *gridworld_create(const struct farm_env_config *config, char *error, size_t error_bytes) {
    int size;
    if (read_options(config, &size, error, error_bytes)) return NULL;
    struct gridworld *env = calloc(1, sizeof *env);
    if (!env) {
        snprintf(error, error_bytes, "no memory for " NAME);
        return NULL;
    }
    env->size = size;
    env->random = config->seed; // the only source of chance: equal seeds give equal episodes
    return env;
}

// Frees what create and reset allocated.
static void gridworld_destroy(void *self) {
    free(self);
}

// A random number below n by splitmix64 (Steele, Lea, Flood 2014). Not rand(): all instances share its state.
static int draw_below(struct gridworld *env, int n) {
    uint64_t x = env->random += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (int)((x >> 32) * (uint64_t)n >> 32);
}

// Writes every byte of the observation at every call: the memory is a slot of the ring with an old step's data. At the
// next call it is elsewhere, so the pointer is not kept.
static void write_planes(const struct gridworld *env, float *planes) {
    const size_t plane = (size_t)env->size * (size_t)env->size;
    memset(planes, 0, 2 * plane * sizeof *planes);
    planes[env->row * env->size + env->column] = 1;
    planes[plane + (size_t)(env->goal_row * env->size + env->goal_column)] = 1;
}

// Starts an episode: the first call after create, and the call after each end. obs[i] is field i of the spec.
static void gridworld_reset(void *self, void *const *obs) {
    struct gridworld *env = self;
    env->steps = 0;
    env->row = draw_below(env, env->size);
    env->column = draw_below(env, env->size);
    do {
        env->goal_row = draw_below(env, env->size);
        env->goal_column = draw_below(env, env->size);
    } while (env->goal_row == env->row && env->goal_column == env->column);
    write_planes(env, obs[0]);
}

// One step. The action is read-only and as in the spec: one int32_t here. Always set the reward.
//
// Returns 0 while the episode continues, else
//   FARM_STEP_TERMINATED  it ended by itself: the value of what follows is 0.
//   FARM_STEP_TRUNCATED   it was cut, here by a limit of steps: training uses this last observation's value instead of
//   what
//                         would have followed.
//   FARM_STEP_GAME_END    with either: a whole game ended; `episodes` and `return_mean` count these.
// obs at an end is the agent's last observation. The next call is reset.
static uint32_t gridworld_step(void *self, const void *action, void *const *obs, float *reward) {
    static const int moves[ACTIONS][2] = {[NORTH] = {-1, 0}, [SOUTH] = {1, 0}, [WEST] = {0, -1}, [EAST] = {0, 1}};
    struct gridworld *env = self;
    int32_t chosen;
    memcpy(&chosen, action, sizeof chosen);
    const int row = env->row + moves[chosen][0], column = env->column + moves[chosen][1];
    if (row >= 0 && row < env->size) env->row = row; // otherwise a wall
    if (column >= 0 && column < env->size) env->column = column;
    env->steps++;
    write_planes(env, obs[0]);
    const bool reached = env->row == env->goal_row && env->column == env->goal_column;
    *reward = reached ? GOAL_REWARD : STEP_REWARD;
    if (reached) return FARM_STEP_TERMINATED | FARM_STEP_GAME_END;
    if (env->steps == STEPS_PER_SIDE * env->size) return FARM_STEP_TRUNCATED | FARM_STEP_GAME_END;
    return 0;
}

// Optional: the picture for `farm eval --video`, one pixel per cell here. rgb may be NULL: then only the size is asked.
static void gridworld_render(void *self, uint32_t size[2], uint8_t *rgb) {
    const struct gridworld *env = self;
    size[0] = size[1] = (uint32_t)env->size;
    if (!rgb) return;
    memset(rgb, 0, (size_t)env->size * (size_t)env->size * 3);
    rgb[(env->goal_row * env->size + env->goal_column) * 3 + 1] = 255; // green
    rgb[(env->row * env->size + env->column) * 3] = 255;               // red; yellow at the goal
}

// ---- the exported symbol ----

static const struct farm_env_api gridworld = {
    .abi_version = FARM_ENV_ABI_VERSION,
    .struct_bytes = sizeof(struct farm_env_api),
    .name = NAME,
    .about = "walk to the goal on a small board; options: size (5)",
    .spec = gridworld_spec,
    .create = gridworld_create,
    .destroy = gridworld_destroy,
    .reset = gridworld_reset,
    .step = gridworld_step,
    .render = gridworld_render,
};

// The plug-in's only exported symbol. It may have several environments: index 0, 1, ..., NULL behind the last.
FARM_ENV_EXPORT const struct farm_env_api *farm_env_at(size_t index) {
    return index == 0 ? &gridworld : NULL;
}
