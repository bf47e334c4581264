// native/recall: a cue, one of `cues` (4), is shown in the first step only. `delay` (10) steps later a question
// follows; the cue as action there pays 1, another 0, and ends the episode. Actions before the question have no effect,
// and all observations between cue and question are equal: none tells the time. A policy without memory answers every
// question from the same observation, so its expected return is exactly 1 / cues, whatever it learns; a perfect
// player's is 1. The last action is a memory too: a policy that sees it (recipe key `last_inputs`) can repeat the cue
// as action up to the question. The game is bsuite's memory_len (Osband et al., "Behaviour suite for reinforcement
// learning", ICLR 2020) without its clock, and with several cues. Runs in an actor process.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "envs/native/native.h"

enum { CUES_MIN = 2, CUES_MAX = 1000 };

struct recall_env {
    struct farm_native_random random;
    int64_t delay, steps;      // from the cue to the question; since the cue
    uint32_t cues, cue, shown; // `shown` is one place of the observation: a cue, `cues` (the question), or no place
};

// Reads options into env->delay and env->cues.
static int recall_read(const struct farm_env_config *config, struct recall_env *env, char *error, size_t error_bytes) {
    struct farm_native_option options[] = {{.key = "delay", .value = 10}, {.key = "cues", .value = 4}};
    const int64_t *delay = &options[0].value, *cues = &options[1].value;
    if (farm_native_read_options(config, farm_env_recall.name, options, 2, error, error_bytes)) return -1;
    if (*cues < CUES_MIN || *cues > CUES_MAX) {
        snprintf(error, error_bytes, "%s: option \"cues\" is a whole number from %d to %d, not %lld",
                 farm_env_recall.name, CUES_MIN, CUES_MAX, (long long)*cues);
        return -1;
    }
    env->delay = *delay;
    env->cues = (uint32_t)*cues;
    return 0;
}

static int recall_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error,
                       size_t error_bytes) {
    struct recall_env env;
    if (recall_read(config, &env, error, error_bytes)) return -1;
    *spec = farm_native_spec("cue_or_question", env.cues + 1, env.cues);
    return 0;
}

FARM_NATIVE_CREATE(recall)

// places: f32 [cues + 1], 1 at the cue, or at the last for the question; otherwise 0.
static void recall_show(struct recall_env *env, uint32_t shown, float *places) {
    env->shown = shown;
    for (uint32_t i = 0; i <= env->cues; i++) places[i] = i == shown;
}

static void recall_reset(void *self, void *const *obs) {
    struct recall_env *env = self;
    env->steps = 0;
    env->cue = farm_native_below(&env->random, env->cues);
    recall_show(env, env->cue, obs[0]);
}

static uint32_t recall_step(void *self, const void *action, void *const *obs, float *reward) {
    struct recall_env *env = self;
    const bool asked = env->steps++ == env->delay;
    int32_t a;
    memcpy(&a, action, sizeof a);
    *reward = asked && (uint32_t)a == env->cue;
    recall_show(env, env->steps == env->delay ? env->cues : UINT32_MAX, obs[0]);
    return asked ? FARM_STEP_TERMINATED | FARM_STEP_GAME_END : 0;
}

// A pixel per place of the observation: what it shows is bright. The cue stays visible, dark, for those who watch.
static void recall_render(void *self, uint32_t size[2], uint8_t *rgb) {
    const struct recall_env *env = self;
    if (!farm_native_clear(size, env->cues + 1, 1, rgb)) return;
    farm_native_fill(rgb, (int)size[0], 0, (int)env->cue, 1, 1, env->shown == env->cue ? 0xffd040 : 0x604e18);
    if (env->shown == env->cues) farm_native_fill(rgb, (int)size[0], 0, (int)env->cues, 1, 1, 0x40a0ff);
}

const struct farm_env_api farm_env_recall = FARM_ENV_API_RENDER(
    "native/recall",
    "name a cue that was shown once: 4 cues, asked for 10 steps later; chance gets 0.25, a memory 1; options delay, "
    "cues",
    recall, free, recall_render);
