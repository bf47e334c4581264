// The environment interface: what an environment written in C gives to an actor. Native environments use it, and
// plug-ins (shared objects, docs/ADDING_AN_ENVIRONMENT.md) are loaded through it. One object is one environment (one
// game), of one agent or several. The actor steps a group of them; each writes its observation through the pointers
// below straight into shared memory. An environment must not keep those pointers: the next step's observation is
// elsewhere. Runs in an actor process, one thread.
#ifndef FARM_ENV_H
#define FARM_ENV_H

#include <stddef.h>
#include <stdint.h>

#include <farm/step.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FARM_ENV_ABI_VERSION 4u

enum {
    FARM_OBS_FIELDS_MAX = 8,
    FARM_FIELD_NAME_MAX = 24,
    FARM_FIELD_RANK_MAX = 4,
    FARM_ACTION_DIMS_MAX = 128,
    FARM_AGENTS_MAX = 64
};

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
    // Values are 0..choices-1; 0: unknown. The learner encodes i32 values one-hot (without choices: takes them as
    // numbers). Fields of u8 with 2 or 3 dims and without choices are images; it divides the values of others by
    // choices - 1 (without choices: by 255).
    uint32_t choices;
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
    uint32_t agents;          // agents that one environment steps, 1..FARM_AGENTS_MAX; 0 means 1. All have this spec
};

// An option as text: the recipe's keys that start with "env.", without that prefix.
struct farm_env_option {
    const char *key, *value;
};

// Hints: an environment may ignore them and must ignore unknown bits.
enum {
    FARM_ENV_OBS_FAR = 1, // the rings exceed the caches: farm_obs_copy (farm/obs.h) stores observations past the
                          // caches. Not for memory that the environment reads again
};

struct farm_env_config {
    uint64_t seed; // this one environment's
    const struct farm_env_option *options;
    size_t option_count;
    uint32_t hints; // FARM_ENV_OBS_FAR or 0
};

struct farm_env_api {
    uint32_t abi_version;  // FARM_ENV_ABI_VERSION
    uint32_t struct_bytes; // sizeof(struct farm_env_api) of the writer
    const char *name;      // "native/catch"
    const char *about;     // one line
    // Fills *spec. Returns 0, or -1 with a message in error[error_bytes] (an unknown option, ...).
    int (*spec)(const struct farm_env_config *config, struct farm_env_spec *spec, char *error, size_t error_bytes);
    // Makes an environment; the first call is reset. Returns NULL with a message in error[error_bytes] on failure.
    void *(*create)(const struct farm_env_config *config, char *error, size_t error_bytes);
    void (*destroy)(void *env);
    // Starts an episode and writes its first observation: obs[i] points to field i, uninitialised memory of exactly its
    // size. With several agents: to `agents` consecutive observations of it, all of which reset and step write.
    void (*reset)(void *env, void *const *obs);
    // Takes one step, writes the observation after it and the raw reward. action: as in spec.action. Returns 0, or
    // FARM_STEP_TERMINATED or FARM_STEP_TRUNCATED, either with FARM_STEP_GAME_END if a real game ended. After a
    // non-zero result the next call is reset. With several agents: `agents` actions and rewards; the result ends all.
    uint32_t (*step)(void *env, const void *action, void *const *obs, float *reward);
    // Optional, NULL: none. The picture that a player sees, for `farm eval --video`: writes size[0] = width and size[1]
    // = height, the same at every call and each at most FARM_RENDER_SIDE_MAX, and, unless rgb is NULL, the picture
    // after the last reset or step as rgb[height][width][3]. Before the first reset rgb is NULL. Must not change the
    // game. Plug-ins compiled before it existed have a smaller struct_bytes, and none.
    void (*render)(void *env, uint32_t size[2], uint8_t *rgb);
    // Optional, NULL: none. Replaces step, which may then be NULL: for agents of which some leave before the others.
    // ends[a] is 0; what step would return for agent a, if not 0, lets it leave until the next reset: what it does,
    // gets and sees is ignored. Returns 0, or, as step, the end of the agents that are left. struct_bytes as for
    // render.
    uint32_t (*step_agents)(void *env, const void *actions, void *const *obs, float *rewards, uint8_t *ends);
};

enum { FARM_RENDER_SIDE_MAX = 4096 };

// A struct farm_env_api of the functions PREFIX_spec, PREFIX_create, PREFIX_reset, PREFIX_step; with a render; and with
// PREFIX_step_agents for PREFIX_step.
#define FARM_ENV_API(name_, about_, prefix_, destroy_) FARM_ENV_API_RENDER(name_, about_, prefix_, destroy_, NULL)
#define FARM_ENV_API_RENDER(name_, about_, prefix_, destroy_, render_)                                                 \
    FARM_ENV_API_ALL(name_, about_, prefix_, destroy_, prefix_##_step, render_, NULL)
#define FARM_ENV_API_AGENTS(name_, about_, prefix_, destroy_, render_)                                                 \
    FARM_ENV_API_ALL(name_, about_, prefix_, destroy_, NULL, render_, prefix_##_step_agents)
#define FARM_ENV_API_ALL(name_, about_, prefix_, destroy_, step_, render_, step_agents_)                               \
    {                                                                                                                  \
        FARM_ENV_ABI_VERSION, sizeof(struct farm_env_api), name_, about_, prefix_##_spec, prefix_##_create, destroy_,  \
            prefix_##_reset, step_, render_, step_agents_                                                              \
    }

// The symbol that a plug-in exports: its index-th environment, NULL behind the last. The result is constant and belongs
// to the plug-in. Called first, in every process that opens the plug-in, also in those that only list environments.
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
