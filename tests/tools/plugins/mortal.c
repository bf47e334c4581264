// An environment that cannot be made while a file named "closed" lies in the actor's folder.
#include <farm/env.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CELLS = 4, LENGTH = 10 };

static int spec(const struct farm_env_config *config, struct farm_env_spec *out, char *error, size_t error_bytes) {
    (void)config, (void)error, (void)error_bytes;
    memset(out, 0, sizeof *out);
    out->obs_count = 1;
    out->obs[0] = (struct farm_field_spec){.name = "obs", .dtype = FARM_F32, .rank = 1, .dims = {CELLS}};
    out->action = (struct farm_action_spec){.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {2}};
    out->frames_per_step = 1;
    return 0;
}

static void *create(const struct farm_env_config *config, char *error, size_t error_bytes) {
    (void)config;
    if (access("closed", F_OK) != 0) return calloc(1, sizeof(int));
    snprintf(error, error_bytes, "it is closed");
    return NULL;
}

static void write_obs(int steps, void *const *obs) {
    for (int i = 0; i < CELLS; i++) ((float *)obs[0])[i] = (float)(steps == i);
}

static void reset(void *env, void *const *obs) {
    *(int *)env = 0;
    write_obs(0, obs);
}

static uint32_t step(void *env, const void *action, void *const *obs, float *reward) {
    const int steps = ++*(int *)env;
    *reward = *(const int32_t *)action ? 1 : 0;
    write_obs(steps, obs);
    return steps == LENGTH ? FARM_STEP_TERMINATED | FARM_STEP_GAME_END : 0;
}

FARM_ENV_EXPORT const struct farm_env_api *farm_env_at(size_t index) {
    static const struct farm_env_api api = {
        FARM_ENV_ABI_VERSION, sizeof api, "mortal", "now and then closed", spec, create, free, reset, step};
    return index ? NULL : &api;
}
