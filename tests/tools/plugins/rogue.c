// A small environment for the tests of plug-ins in `farm train`: four numbers, two actions, episodes of 40 steps.
// Option `fault` selects a fault, `at` its step in an episode (0: the first), `while_there` a file whose removal ends
// it. -DABI=99, -DNO_ENTRY, -DNO_STEP: plug-ins that cannot be opened; -DEARLY: dies while it is loaded.
#include <farm/env.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef ABI
#define ABI FARM_ENV_ABI_VERSION
#endif
enum { NUMBERS = 4, LENGTH = 40 };

struct rogue {
    char fault[32], while_there[256];
    int at, steps, all_steps;
};

static const char *option(const struct farm_env_config *config, const char *key, const char *otherwise) {
    for (size_t i = 0; i < config->option_count; i++)
        if (strcmp(config->options[i].key, key) == 0) return config->options[i].value;
    return otherwise;
}

static void crash(void) {
    *(volatile int *)8 = 1;
}

static int rogue_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error,
                      size_t error_bytes) {
    const char *fault = option(config, "fault", "none");
    for (size_t i = 0; i < config->option_count; i++)
        if (!strstr("fault at while_there", config->options[i].key)) {
            snprintf(error, error_bytes, "rogue has no option %s", config->options[i].key);
            return -1;
        }
    *spec = (struct farm_env_spec){
        .obs_count = 1,
        .obs[0] = {.name = "state", .dtype = FARM_F32, .rank = 1, .dims = {NUMBERS}},
        .action = {.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {2}},
        .frames_per_step = 1,
    };
    if (strcmp(fault, "spec_dims") == 0) spec->obs[0].dims[0] = 1u << 30;
    if (strcmp(fault, "spec_fields") == 0) spec->obs_count = 1000;
    if (strcmp(fault, "spec_actions") == 0) spec->action.sizes[0] = 0;
    if (strcmp(fault, "spec_rank") == 0) spec->obs[0].rank = 77;
    if (strcmp(fault, "spec_name") == 0) memset(spec->obs[0].name, 'x', sizeof spec->obs[0].name);
    if (strcmp(fault, "spec_noise") == 0) memset(spec->obs[0].name + 6, getpid() & 0x7f, 8); // behind the name's end
    if (strcmp(fault, "spec_noise") == 0) spec->action.low[3] = (float)getpid();
    if (strcmp(fault, "spec_crash") == 0) crash();
    if (strcmp(fault, "spec_exit") == 0) fprintf(stderr, "no licence\n"), exit(0);
    if (strcmp(fault, "spec_hang") == 0) sleep(1000);
    if (strcmp(fault, "continuous") == 0)
        spec->action =
            (struct farm_action_spec){.kind = FARM_ACTION_CONTINUOUS, .dims = 2, .low = {-1, -1}, .high = {1, 1}};
    return 0;
}

static void *rogue_create(const struct farm_env_config *config, char *error, size_t error_bytes) {
    struct rogue *env = calloc(1, sizeof *env);
    snprintf(env->fault, sizeof env->fault, "%s", option(config, "fault", "none"));
    snprintf(env->while_there, sizeof env->while_there, "%s", option(config, "while_there", ""));
    env->at = atoi(option(config, "at", "0"));
    const bool mended = env->while_there[0] && access(env->while_there, F_OK) != 0;
    if (strcmp(env->fault, "create") != 0 || mended) return env;
    snprintf(error, error_bytes, "the moon is not full");
    free(env);
    return NULL;
}

static void rogue_reset(void *self, void *const *obs) {
    struct rogue *env = self;
    env->steps = 0;
    memset(obs[0], 0, NUMBERS * sizeof(float));
    if (strcmp(env->fault, "reset_crash") == 0) crash();
}

static uint32_t rogue_step(void *self, const void *action, void *const *obs, float *reward) {
    struct rogue *env = self;
    float *state = obs[0];
    int32_t a;
    memcpy(&a, action, sizeof a);
    for (int i = 0; i < NUMBERS; i++) state[i] = (float)env->steps / LENGTH;
    *reward = (float)a;
    if (strcmp(env->fault, "late_crash") == 0 && env->all_steps++ == 1000) crash();
    if (env->steps++ == env->at) {
        if (strcmp(env->fault, "step_crash") == 0) crash();
        if (strcmp(env->fault, "step_abort") == 0) abort();
        if (strcmp(env->fault, "past") == 0) state[NUMBERS] += 1;
        if (strcmp(env->fault, "before") == 0) state[-1] += 1;
        if (strcmp(env->fault, "nan_reward") == 0) *reward = NAN;
        if (strcmp(env->fault, "nan_state") == 0) state[2] = NAN;
        if (strcmp(env->fault, "answer") == 0) return 64;
        while (strcmp(env->fault, "hang") == 0 && access(env->while_there, F_OK) == 0) usleep(1000);
    }
    return env->steps == LENGTH ? FARM_STEP_TERMINATED | FARM_STEP_GAME_END : 0;
}

static const struct farm_env_api rogue = {.abi_version = ABI,
                                          .struct_bytes = sizeof(struct farm_env_api),
                                          .name = "rogue/first",
                                          .about = "does what its option says",
                                          .spec = rogue_spec,
                                          .create = rogue_create,
                                          .destroy = free,
                                          .reset = rogue_reset,
#ifndef NO_STEP
                                          .step = rogue_step
#endif
};
static struct farm_env_api second;

#ifdef EARLY
__attribute__((constructor)) static void at_loading(void) {
    abort();
}
#endif

#ifdef NO_ENTRY
const void *farm_env_other(size_t index) {
    return index ? (const void *)&second : (const void *)&rogue;
}
#else
FARM_ENV_EXPORT const struct farm_env_api *farm_env_at(size_t index) {
    second = rogue;
    second.name = "rogue/second";
    return index == 0 ? &rogue : index == 1 ? &second : NULL;
}
#endif
