// example/gridworld: a small game as a plug-in, to copy and to change. A square board; the agent walks north, south,
// west or east until it stands on the goal. Build it, check it, train on it:
//
//   cc -O2 -shared -fPIC -Iinclude examples/gridworld.c -o gridworld.so
//   farm doctor ./gridworld.so
//   farm train --env plugin:./gridworld.so --seconds 20
//
// (-Iinclude: the folder that holds farm/env.h; leave it out where `make install` has put that into /usr/local.)
// docs/ADDING_AN_ENVIRONMENT.md tells the whole contract; what each function must keep of it stands above it here.
#include <farm/env.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NORTH, SOUTH, WEST, EAST, ACTIONS };
enum { SIDE_DEFAULT = 5, SIDE_MIN = 2, SIDE_MAX = 32, STEPS_PER_SIDE = 8 };
static const float STEP_REWARD = -0.05f, GOAL_REWARD = 1;

// All state lies in here: an actor plays hundreds of these in one process, in turn. No static variables.
struct gridworld {
    uint64_t random; // state of its own random numbers
    int size, row, column, goal_row, goal_column, steps;
};

// ---- options ----

// Options are the recipe's keys "env.*", without that prefix: `--env.size 7` arrives as {"size", "7"}. A key that is
// none of ours is an error with a sentence for the user, else a mistyped one would be ignored in silence.
static int read_options(const struct farm_env_config *config, int *size, char *error, size_t error_bytes) {
    *size = SIDE_DEFAULT;
    for (size_t i = 0; i < config->option_count; i++) {
        const struct farm_env_option *option = &config->options[i];
        if (strcmp(option->key, "size") != 0) {
            snprintf(error, error_bytes, "example/gridworld has no option '%s'; it has size", option->key);
            return -1;
        }
        char *end;
        const long value = strtol(option->value, &end, 10);
        *size = (int)value;
        if (*end || value < SIDE_MIN || value > SIDE_MAX) {
            snprintf(error, error_bytes, "size=%s: %d to %d are possible", option->value, SIDE_MIN, SIDE_MAX);
            return -1;
        }
    }
    return 0;
}

// What it looks like under these options. Asked in several processes, also where nothing is played: it depends on the
// options alone. *spec comes in zeroed.
static int gridworld_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error,
                          size_t error_bytes) {
    int size;
    if (read_options(config, &size, error, error_bytes)) return -1;
    *spec = (struct farm_env_spec){
        .obs_count = 1,
        // Two planes of size x size: where the agent is, where the goal is. f32 of any rank goes to the network "mlp";
        // FARM_U8 of height x width is a picture, for "shallow" and "nature".
        .obs[0] = {.name = "planes", .dtype = FARM_F32, .rank = 3, .dims = {2, (uint32_t)size, (uint32_t)size}},
        .action = {.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {ACTIONS}},
        .frames_per_step = 1,
    };
    return 0;
}

// ---- an instance ----

// config and what it points to is gone after the call: copy what you need. Expensive things (files, tables) belong
// here, not into reset.
static void *gridworld_create(const struct farm_env_config *config, char *error, size_t error_bytes) {
    int size;
    if (read_options(config, &size, error, error_bytes)) return NULL;
    struct gridworld *env = calloc(1, sizeof *env);
    if (!env) {
        snprintf(error, error_bytes, "no memory for example/gridworld");
        return NULL;
    }
    env->size = size;
    env->random = config->seed; // the only source of chance: equal seeds, equal episodes
    return env;
}

// Frees what create and reset took.
static void gridworld_destroy(void *self) {
    free(self);
}

// splitmix64 (Steele, Lea, Flood 2014), then a number below n. No rand(): that is shared by all instances.
static int below(struct gridworld *env, int n) {
    uint64_t x = env->random += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (int)((x >> 32) * (uint64_t)n >> 32);
}

// Every byte of the observation is written, at every call: the memory is a slot of the ring and holds an old step's
// data. It lies elsewhere at the next call, so the pointer is never kept.
static void draw(const struct gridworld *env, float *planes) {
    const size_t plane = (size_t)env->size * (size_t)env->size;
    memset(planes, 0, 2 * plane * sizeof *planes);
    planes[env->row * env->size + env->column] = 1;
    planes[plane + (size_t)(env->goal_row * env->size + env->goal_column)] = 1;
}

// Starts an episode: first call after create, and the call after each end. obs[i] is field i of the spec.
static void gridworld_reset(void *self, void *const *obs) {
    struct gridworld *env = self;
    env->steps = 0;
    env->row = below(env, env->size);
    env->column = below(env, env->size);
    do {
        env->goal_row = below(env, env->size);
        env->goal_column = below(env, env->size);
    } while (env->goal_row == env->row && env->goal_column == env->column);
    draw(env, obs[0]);
}

// One step. The action is read-only and as spec says: one int32_t here. The reward is always set.
//
// The answer: 0 while the episode goes on.
//   FARM_STEP_TERMINATED  it ended by itself: nothing more can be gained, what follows is worth 0.
//   FARM_STEP_TRUNCATED   it was cut, here by a limit of steps: it could have gone on, so training takes the value of
//                         this last observation for what would have followed.
//   FARM_STEP_GAME_END    together with either: a whole game ended; `episodes` and `return_mean` count these.
// obs of an end is what the agent saw last. The next call is reset.
static uint32_t gridworld_step(void *self, const void *action, void *const *obs, float *reward) {
    static const int moves[ACTIONS][2] = {[NORTH] = {-1, 0}, [SOUTH] = {1, 0}, [WEST] = {0, -1}, [EAST] = {0, 1}};
    struct gridworld *env = self;
    int32_t chosen;
    memcpy(&chosen, action, sizeof chosen);
    const int row = env->row + moves[chosen][0], column = env->column + moves[chosen][1];
    if (row >= 0 && row < env->size) env->row = row; // else a wall
    if (column >= 0 && column < env->size) env->column = column;
    env->steps++;
    draw(env, obs[0]);
    const bool reached = env->row == env->goal_row && env->column == env->goal_column;
    *reward = reached ? GOAL_REWARD : STEP_REWARD;
    if (reached) return FARM_STEP_TERMINATED | FARM_STEP_GAME_END;
    if (env->steps == STEPS_PER_SIDE * env->size) return FARM_STEP_TRUNCATED | FARM_STEP_GAME_END;
    return 0;
}

// ---- what the plug-in exports ----

static const struct farm_env_api gridworld = {
    .abi_version = FARM_ENV_ABI_VERSION,
    .struct_bytes = sizeof(struct farm_env_api),
    .name = "example/gridworld",
    .about = "walk to the goal on a small board; options: size (5)",
    .spec = gridworld_spec,
    .create = gridworld_create,
    .destroy = gridworld_destroy,
    .reset = gridworld_reset,
    .step = gridworld_step,
};

// The only symbol that others see. A plug-in may offer several environments: index 0, 1, ..., NULL behind the last.
FARM_ENV_EXPORT const struct farm_env_api *farm_env_at(size_t index) {
    return index == 0 ? &gridworld : NULL;
}
