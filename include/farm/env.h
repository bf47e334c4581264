// The environment interface: what an environment written in C gives to an actor. The native environments use it, and
// plug-ins (shared objects, docs/ADDING_AN_ENVIRONMENT.md) are loaded through it. One object is one environment (one
// game); the actor steps a group of them and writes each observation through the pointers below straight into shared
// memory, so an environment must never keep those pointers: the next step's observation lies elsewhere. Runs in an
// actor process, one thread.
#ifndef FARM_ENV_H
#define FARM_ENV_H

#include <stddef.h>
#include <stdint.h>

#include <farm/step.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FARM_ENV_ABI_VERSION 2u

enum { FARM_OBS_FIELDS_MAX = 8, FARM_FIELD_NAME_MAX = 24, FARM_FIELD_RANK_MAX = 4, FARM_ACTION_DIMS_MAX = 32 };

enum farm_dtype { FARM_U8 = 1, FARM_I32 = 2, FARM_F32 = 3 };

enum farm_action_kind {
    FARM_ACTION_DISCRETE = 1,       // one i32 in [0, sizes[0])
    FARM_ACTION_MULTI_DISCRETE = 2, // `dims` i32, the i-th in [0, sizes[i])
    FARM_ACTION_CONTINUOUS = 3,     // `dims` f32, the i-th in [low[i], high[i]]
};

struct farm_field_spec {
    char name[FARM_FIELD_NAME_MAX];
    uint32_t dtype;                     // enum farm_dtype
    uint32_t rank;                      // 1..4
    uint32_t dims[FARM_FIELD_RANK_MAX]; // images: height, width[, channels]; row-major
};

struct farm_action_spec {
    uint32_t kind; // enum farm_action_kind
    uint32_t dims; // 1 for discrete
    uint32_t sizes[FARM_ACTION_DIMS_MAX];
    float low[FARM_ACTION_DIMS_MAX], high[FARM_ACTION_DIMS_MAX];
};

struct farm_env_spec {
    uint32_t obs_count;
    struct farm_field_spec obs[FARM_OBS_FIELDS_MAX];
    struct farm_action_spec action;
    uint32_t frames_per_step; // frames that one agent step counts for (Atari's action repeat 4, else 1)
};

// Environment options as text: "key=value" pairs of the recipe that start with "env." arrive here without that prefix.
struct farm_env_option {
    const char *key, *value;
};

// Hints: an environment may ignore them, and every bit that it does not know.
enum {
    FARM_ENV_OBS_FAR = 1, // observations go to more memory than the caches hold: farm_obs_copy (farm/obs.h) stores them
                          // past the caches. Not for memory that the environment reads again
};

struct farm_env_config {
    uint64_t seed; // of this one environment
    const struct farm_env_option *options;
    size_t option_count;
    uint32_t hints; // FARM_ENV_OBS_FAR or 0
};

struct farm_env_api {
    uint32_t abi_version;  // FARM_ENV_ABI_VERSION
    uint32_t struct_bytes; // sizeof(struct farm_env_api) of the writer
    const char *name;      // "native/catch"
    const char *about;     // one line
    // Fills *spec. 0, or -1 with a sentence in error[error_bytes] (an option that it does not know, ...).
    int (*spec)(const struct farm_env_config *config, struct farm_env_spec *spec, char *error, size_t error_bytes);
    // A new environment, to be reset before its first step; NULL with a sentence in error[error_bytes].
    void *(*create)(const struct farm_env_config *config, char *error, size_t error_bytes);
    void (*destroy)(void *env);
    // Starts an episode and writes its first observation: obs[i] points to field i, uninitialised memory of exactly
    // that size.
    void (*reset)(void *env, void *const *obs);
    // Takes one step, writes the observation after it and the raw reward. action: as spec.action says. Returns
    // FARM_STEP_TERMINATED, FARM_STEP_TRUNCATED, either with FARM_STEP_GAME_END where a real game ended, or 0. After a
    // non-zero answer the next call is reset.
    uint32_t (*step)(void *env, const void *action, void *const *obs, float *reward);
};

// A struct farm_env_api of functions whose names begin alike: PREFIX_spec, PREFIX_create, PREFIX_reset, PREFIX_step.
#define FARM_ENV_API(name_, about_, prefix_, destroy_)                                                                 \
    {                                                                                                                  \
        FARM_ENV_ABI_VERSION, sizeof(struct farm_env_api), name_, about_, prefix_##_spec, prefix_##_create, destroy_,  \
            prefix_##_reset, prefix_##_step                                                                            \
    }

// What a plug-in exports: its index-th environment, NULL behind the last. The answers are the plug-in's for ever, and
// the same at each call. Called before anything else of it, in any process, also in those that only ask what there is.
#if defined(__GNUC__)
#define FARM_ENV_EXPORT __attribute__((visibility("default")))
#else
#define FARM_ENV_EXPORT
#endif
FARM_ENV_EXPORT const struct farm_env_api *farm_env_at(size_t index);

#ifdef __cplusplus
}
#endif

#endif
