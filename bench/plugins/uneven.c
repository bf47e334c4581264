// An uneven environment for bench/fps: one step in a hundred takes a hundred times as long as the others (about 2 us),
// a reset a thousand times as long. The work is a number of loop turns, not a time, so that other programs on the CPU
// do not count as work.
#include <farm/env.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { STEP_TURNS = 1000, SLOW_STEP = 100, SLOW_ONE_IN = 100, EPISODE = 500, RESET = 1000 };

struct uneven {
    uint64_t random, sink;
    bool played; // the first reset is cheap, so that a farm starts at once
};

// SplitMix64's mix.
static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static int uneven_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error,
                       size_t error_bytes) {
    (void)config, (void)error, (void)error_bytes;
    *spec = (struct farm_env_spec){
        .obs_count = 1,
        .obs[0] = {.name = "none", .dtype = FARM_F32, .rank = 1, .dims = {4}},
        .action = {.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {2}},
        .frames_per_step = 1,
    };
    return 0;
}

static void *uneven_create(const struct farm_env_config *config, char *error, size_t error_bytes) {
    (void)error, (void)error_bytes;
    struct uneven *env = calloc(1, sizeof *env);
    if (env) env->random = config->seed;
    return env;
}

static void work_and_observe(struct uneven *env, uint64_t times, void *const *obs) {
    env->sink = env->random;
    for (uint64_t turn = times * STEP_TURNS; turn > 0; turn--) env->sink = mix(env->sink);
    const float numbers[4] = {(float)(env->sink >> 60)};
    memcpy(obs[0], numbers, sizeof numbers);
}

static void uneven_reset(void *self, void *const *obs) {
    struct uneven *env = self;
    work_and_observe(env, env->played ? RESET : 1, obs);
    env->played = true;
}

static uint32_t uneven_step(void *self, const void *action, void *const *obs, float *reward) {
    (void)action;
    struct uneven *env = self;
    env->random = mix(env->random);
    const uint32_t fate = (uint32_t)env->random, end = (uint32_t)(env->random >> 32);
    work_and_observe(env, fate < UINT32_MAX / SLOW_ONE_IN ? SLOW_STEP : 1, obs);
    *reward = 0;
    return end < UINT32_MAX / EPISODE ? FARM_STEP_TERMINATED | FARM_STEP_GAME_END : 0;
}

FARM_ENV_EXPORT const struct farm_env_api *farm_env_at(size_t index) {
    static const struct farm_env_api api = FARM_ENV_API("bench/uneven", "mostly cheap steps", uneven, free);
    return index == 0 ? &api : NULL;
}
