// A small environment that breaks one rule of the contract, for the tests of `farm doctor`: option `fault` selects it
// ("none": no rule). -DABI=99, -DNO_ENTRY: a plug-in that cannot be opened; -DRARE: many actions, the last of which is
// rarely drawn.
#include <farm/env.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef RARE
enum { ACTIONS = 1000 };
#else
enum { ACTIONS = 6 };
#endif
enum { CELLS = 50, LENGTH = 20, EARLY = 5 }; // EARLY: the step of single faults

struct broken {
    uint64_t random;
    int position, steps, episodes;
    float *kept;
    float *own; // [CELLS]
};

// Shared by all instances, as their options are.
static char fault[32];
static int shared_state, spec_calls;
static void *volatile lost;

static bool is(const char *name) {
    return strcmp(fault, name) == 0;
}

static uint32_t draw(struct broken *env, uint32_t n) {
    if (is("rand")) return (uint32_t)rand() % n;
    env->random = env->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((env->random >> 33) % n);
}

static int broken_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error,
                       size_t error_bytes) {
    fault[0] = 0;
    for (size_t i = 0; i < config->option_count; i++)
        if (strcmp(config->options[i].key, "fault") == 0) snprintf(fault, sizeof fault, "%s", config->options[i].value);
    for (size_t i = 0; i < config->option_count && !is("options"); i++)
        if (strcmp(config->options[i].key, "fault") != 0) {
            if (!is("no_sentence")) snprintf(error, error_bytes, "no option %s", config->options[i].key);
            if (is("no_sentence")) error[0] = 0;
            return -1;
        }
    *spec = (struct farm_env_spec){
        .obs_count = 2,
        .obs[0] = {.name = "cells", .dtype = FARM_F32, .rank = 1, .dims = {CELLS}},
        .obs[1] = {.name = "clock", .dtype = FARM_U8, .rank = 1, .dims = {3}},
        .action = {.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {ACTIONS}},
        .frames_per_step = 1,
    };
    if (is("huge_spec")) spec->obs[0].dims[0] = 1u << 30;
    if (is("other_spec")) spec->obs[0].dims[0] += (uint32_t)spec_calls++;
    return 0;
}

static void *broken_create(const struct farm_env_config *config, char *error, size_t error_bytes) {
    struct broken *env = calloc(1, sizeof *env);
    struct farm_env_spec spec;
    if (!env || broken_spec(config, &spec, error, error_bytes)) return NULL;
    env->random = is("same_for_all") ? 3 : is("time") ? (uint64_t)time(NULL) : config->seed;
    env->own = calloc(CELLS, sizeof *env->own);
    if (is("no_second") && shared_state++) {
        snprintf(error, error_bytes, "there can be only one");
        return NULL;
    }
    if (is("descriptor") && open("/dev/null", O_RDONLY) < 0) return NULL;
    return env;
}

static void broken_destroy(void *self) {
    struct broken *env = self;
    if (!is("leak")) free(env->own);
    free(env);
}

static void write_observation(struct broken *env, void *const *obs) {
    float *cells = obs[0];
    uint8_t *clock = obs[1];
    const float before = cells[7];
    if (is("kept_pointer") && env->kept) env->kept[3] = 1;
    if (is("previous") && env->kept && env->steps > 1) env->position += env->kept[0] > 5;
    if (!is("unwritten")) memset(cells, 0, CELLS * sizeof *cells);
    if (!is("constant")) cells[env->position] = 1;
    if (is("unwritten")) cells[1] = 0;
    clock[0] = is("constant") ? 0 : (uint8_t)env->steps;
    clock[1] = 0;
    if (!is("unwritten_byte")) clock[2] = 0;
    if (is("reads_old")) cells[7] = before == 0 ? 2 : 3;
    if (is("past")) cells[CELLS] = 1;
    if (is("past_second")) clock[3] = 1;
    if (is("before")) cells[-1] = 1;
    if (is("obs_nan") && env->steps == EARLY) cells[9] = NAN;
    if (is("grows")) lost = memset(malloc(64), 1, 64);
    env->kept = cells;
}

static void broken_reset(void *self, void *const *obs) {
    struct broken *env = self;
    if (!is("stale")) env->steps = 0;
    env->position = (int)draw(env, CELLS);
    env->episodes++;
    write_observation(env, obs);
}

static int deeper(int depth) {
    volatile char room[4096];
    room[depth % 4096] = 1;
    return deeper(depth + 1) + room[0];
}

static void misbehave(struct broken *env, const void *action) {
    if (is("action")) *(int32_t *)(uintptr_t)action = 0;
    if (env->steps != EARLY) return;
    if (is("segfault")) *(volatile int *)8 = 1;
    if (is("recursion")) env->position = deeper(0) % CELLS;
    if (is("abort")) {
        fprintf(stderr, "the board is inconsistent\n");
        abort();
    }
    if (is("exit")) exit(3);
    while (is("hang")) usleep(1000);
    if (is("prints")) printf("{\"this\": is no JSON\n");
}

static uint32_t broken_step(void *self, const void *action, void *const *obs, float *reward) {
    struct broken *env = self;
    int32_t chosen;
    memcpy(&chosen, action, sizeof chosen);
    env->steps++;
    misbehave(env, action);
    if (is("action_crash") && chosen == ACTIONS - 1) *(volatile int *)16 = 1;
    env->position = (env->position + chosen) % CELLS;
    if (is("shared")) env->position = (env->position + shared_state++ % 7) % CELLS;
    write_observation(env, obs);
    if (!is("no_reward")) *reward = (float)chosen;
    if (is("reward_nan") && env->steps == EARLY) *reward = NAN;
    if (is("reward_infinite") && env->steps == EARLY) *reward = INFINITY;
    if (is("answer") && env->steps == EARLY) return FARM_STEP_LAST | FARM_STEP_TERMINATED;
    if (is("endless") || env->steps < LENGTH) return 0;
    return FARM_STEP_TERMINATED | (is("no_game_end") ? 0 : FARM_STEP_GAME_END);
}

#ifndef ABI
#define ABI FARM_ENV_ABI_VERSION
#endif

#ifndef NO_ENTRY
FARM_ENV_EXPORT const struct farm_env_api *farm_env_at(size_t index) {
    static const struct farm_env_api api = {
        .abi_version = ABI,
        .struct_bytes = sizeof(struct farm_env_api),
        .name = "test/broken",
        .about = "breaks one rule; options: fault (none)",
        .spec = broken_spec,
        .create = broken_create,
        .destroy = broken_destroy,
        .reset = broken_reset,
        .step = broken_step,
    };
    return index == 0 ? &api : NULL;
}
#endif
