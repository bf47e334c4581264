// Plug-ins from environments in PufferLib's ocean convention (its versions 2 and 3): a struct with the pointers
// observations, actions, rewards and terminals, and functions c_reset(env), c_step(env), c_close(env). A few lines make
// a plug-in of an unchanged environment (docs/ADDING_AN_ENVIRONMENT.md has a whole one):
//
//   #include <farm/ocean.h>     // first: redefines rand() for the environment
//   #include "squared.h"
//   static void describe(Squared *env, struct farm_ocean_setup *setup) { ... }
//   FARM_OCEAN(Squared, "ocean/squared", "find the target", describe, FARM_OCEAN_NOTHING, c_close, FARM_OCEAN_KEEP)
//
// Ends of episodes: a c_step that ends an episode starts the next one itself. It leaves terminals[0] = 1 and the NEXT
// episode's first observation; the last observation is lost. So the LAST step has the reward, the end and that first
// observation; the reset after it repeats the observation as FIRST without calling c_reset. Training uses no value of a
// TERMINATED step's observation, so this does no harm. The convention has no truncation: a time limit that sets
// terminals[0] counts as a real end. An environment that starts anew without setting terminals[0] hides the end: set it
// in a wrapper of c_step (`#define c_step my_step`).
//
// rand() and srand() in code included after this header use a generator per instance, seeded from the instance's seed:
// equal seeds give equal episodes, and instances are independent. Seed other sources of chance from setup->seed. One
// agent: num_agents of 1. Runs in an actor process, one thread. C only, for GNU C and clang.
#ifndef FARM_OCEAN_H
#define FARM_OCEAN_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <farm/env.h>

enum {
    FARM_OCEAN_DIRECT = 0, // observations points into the ring: c_reset and c_step write every byte at every call
    FARM_OCEAN_KEEP = 1, // observations is a buffer of the instance, copied at every call: for environments that change
                         // a few bytes of the last observation, or read it
};

#define FARM_OCEAN_NOTHING(env) ((void)(env))

// ---- the argument of `describe` ----

struct farm_ocean_setup {
    uint64_t seed; // 0 for spec()
    struct farm_env_spec *spec;
    const struct farm_env_config *config;
    uint64_t taken;  // bit i: option i is known
    char known[160]; // names of the known options
    char *error;
    size_t error_bytes;
    bool failed;
};

// The value of option `key` as text; `fallback` if the user did not set it.
static inline const char *farm_ocean_text(struct farm_ocean_setup *setup, const char *key, const char *fallback) {
    const size_t used = strlen(setup->known);
    const char *value = fallback;
    snprintf(setup->known + used, sizeof setup->known - used, "%s%s", used ? ", " : "", key);
    for (size_t i = 0; i < setup->config->option_count && i < 64; i++)
        if (strcmp(setup->config->options[i].key, key) == 0) {
            setup->taken |= (uint64_t)1 << i;
            value = setup->config->options[i].value;
        }
    return value;
}

// The value of a numeric option. Refuses a value that is not a number in low..high.
static inline double farm_ocean_real(struct farm_ocean_setup *setup, const char *key, double fallback, double low,
                                     double high) {
    char *end;
    const char *text = farm_ocean_text(setup, key, NULL);
    const double value = text ? strtod(text, &end) : fallback;
    if (!text || (end != text && !*end && value >= low && value <= high)) return value;
    if (!setup->failed)
        snprintf(setup->error, setup->error_bytes, "%s must be a number from %g to %g (got %s)", key, low, high, text);
    setup->failed = true;
    return fallback;
}

static inline int farm_ocean_int(struct farm_ocean_setup *setup, const char *key, int fallback, int low, int high) {
    const double value = farm_ocean_real(setup, key, fallback, low, high);
    if (value == (int)value) return (int)value;
    if (!setup->failed) snprintf(setup->error, setup->error_bytes, "%s must be a whole number (got %g)", key, value);
    setup->failed = true;
    return fallback;
}

// The shape of `observations`: dims[0..rank) elements of dtype (enum farm_dtype).
static inline void farm_ocean_observation(struct farm_ocean_setup *setup, uint32_t dtype, uint32_t rank,
                                          const uint32_t *dims) {
    struct farm_field_spec *field = &setup->spec->obs[setup->spec->obs_count++];
    *field = (struct farm_field_spec){.name = "observations", .dtype = dtype, .rank = rank};
    memcpy(field->dims, dims, rank * sizeof *dims);
}

// The contents of `actions`. Discrete: `count` whole numbers, the i-th in 0..sizes[i]-1 (even if the struct has float
// *actions). Continuous: `count` numbers in low..high.
static inline void farm_ocean_discrete(struct farm_ocean_setup *setup, uint32_t count, const uint32_t *sizes) {
    struct farm_action_spec *action = &setup->spec->action;
    action->kind = count == 1 ? FARM_ACTION_DISCRETE : FARM_ACTION_MULTI_DISCRETE;
    action->dims = count;
    memcpy(action->sizes, sizes, count * sizeof *sizes);
}

static inline void farm_ocean_continuous(struct farm_ocean_setup *setup, uint32_t count, float low, float high) {
    struct farm_action_spec *action = &setup->spec->action;
    action->kind = FARM_ACTION_CONTINUOUS;
    action->dims = count;
    for (uint32_t i = 0; i < count; i++) {
        action->low[i] = low;
        action->high[i] = high;
    }
}

// ---- random numbers: splitmix64 (Steele, Lea, Flood 2014) of the present instance ----

static uint64_t *farm_ocean_random;

static inline int farm_ocean_rand(void) {
    uint64_t x = *farm_ocean_random += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (int)(x >> 33) & RAND_MAX;
}

#define rand()      farm_ocean_rand()
#define srand(seed) ((void)(seed))

// ---- the part without the environment's types ----

struct farm_ocean_base {
    uint64_t random;
    size_t obs_bytes;
    uint32_t actions;
    bool continuous, keep;
    bool begun;    // the next episode has begun; its first observation is in `kept`
    uint8_t *kept; // [obs_bytes]
};

static inline int farm_ocean_check(const struct farm_ocean_setup *setup, const char *name) {
    if (setup->failed) return -1;
    for (size_t i = 0; i < setup->config->option_count; i++) {
        if (i < 64 && setup->taken >> i & 1) continue;
        snprintf(setup->error, setup->error_bytes, "%s has no option '%s'; it has %s", name,
                 setup->config->options[i].key, setup->known[0] ? setup->known : "none");
        return -1;
    }
    return 0;
}

static inline size_t farm_ocean_bytes(const struct farm_field_spec *field) {
    size_t bytes = field->dtype == FARM_U8 ? 1 : 4;
    for (uint32_t i = 0; i < field->rank; i++) bytes *= field->dims[i];
    return bytes;
}

static inline bool farm_ocean_base_make(struct farm_ocean_base *base, const struct farm_env_spec *spec, uint64_t seed,
                                        bool keep) {
    *base = (struct farm_ocean_base){.random = seed,
                                     .obs_bytes = farm_ocean_bytes(&spec->obs[0]),
                                     .actions = spec->action.dims,
                                     .continuous = spec->action.kind == FARM_ACTION_CONTINUOUS,
                                     .keep = keep};
    base->kept = calloc(1, base->obs_bytes);
    return base->kept != NULL;
}

static inline double farm_ocean_action(const struct farm_ocean_base *base, const void *action, uint32_t i) {
    float real;
    int32_t whole;
    memcpy(&real, (const uint8_t *)action + 4 * i, sizeof real);
    memcpy(&whole, (const uint8_t *)action + 4 * i, sizeof whole);
    return base->continuous ? (double)real : (double)whole;
}

// After c_reset or c_step: copies the observation to the farm, and keeps it for the next reset after an end.
static inline uint32_t farm_ocean_after(struct farm_ocean_base *base, void *obs, bool ended) {
    if (base->keep)
        memcpy(obs, base->kept, base->obs_bytes);
    else if (ended)
        memcpy(base->kept, obs, base->obs_bytes);
    base->begun = ended;
    return ended ? FARM_STEP_TERMINATED | FARM_STEP_GAME_END : 0;
}

// ---- the plug-in ----

// TYPE      the environment's struct
// NAME      "family/thing"; ABOUT one line
// DESCRIBE  void (TYPE *env, struct farm_ocean_setup *setup): as my_init in PufferLib's binding.c, without allocating:
//           reads options into env, and describes observations and actions
// INIT      init(TYPE *) of the environment, called once per instance after DESCRIBE; CLOSE c_close. Either may be
//           FARM_OCEAN_NOTHING. INIT must not use observations.
// KEEP      FARM_OCEAN_DIRECT or FARM_OCEAN_KEEP
#define FARM_OCEAN(TYPE, NAME, ABOUT, DESCRIBE, INIT, CLOSE, KEEP)                                                     \
    struct farm_ocean_instance {                                                                                       \
        struct farm_ocean_base base;                                                                                   \
        TYPE env;                                                                                                      \
        __typeof__(*((TYPE *)0)->actions) actions[FARM_ACTION_DIMS_MAX];                                               \
        __typeof__(*((TYPE *)0)->rewards) rewards[1];                                                                  \
        __typeof__(*((TYPE *)0)->terminals) terminals[1];                                                              \
    };                                                                                                                 \
                                                                                                                       \
    static int farm_ocean_describe(TYPE *env, const struct farm_env_config *config, struct farm_env_spec *spec,        \
                                   char *error, size_t error_bytes) {                                                  \
        uint64_t random = config->seed;                                                                                \
        struct farm_ocean_setup setup = {                                                                              \
            .seed = config->seed, .spec = spec, .config = config, .error = error, .error_bytes = error_bytes};         \
        *spec = (struct farm_env_spec){.frames_per_step = 1};                                                          \
        farm_ocean_random = &random;                                                                                   \
        DESCRIBE(env, &setup);                                                                                         \
        return farm_ocean_check(&setup, NAME);                                                                         \
    }                                                                                                                  \
                                                                                                                       \
    static int farm_ocean_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error,          \
                               size_t error_bytes) {                                                                   \
        TYPE env;                                                                                                      \
        memset(&env, 0, sizeof env);                                                                                   \
        return farm_ocean_describe(&env, config, spec, error, error_bytes);                                            \
    }                                                                                                                  \
                                                                                                                       \
    static void *farm_ocean_create(const struct farm_env_config *config, char *error, size_t error_bytes) {            \
        struct farm_env_spec spec;                                                                                     \
        struct farm_ocean_instance *self = calloc(1, sizeof *self);                                                    \
        if (!self || farm_ocean_describe(&self->env, config, &spec, error, error_bytes) ||                             \
            !farm_ocean_base_make(&self->base, &spec, config->seed, (KEEP) == FARM_OCEAN_KEEP)) {                      \
            free(self);                                                                                                \
            return NULL;                                                                                               \
        }                                                                                                              \
        self->env.actions = self->actions;                                                                             \
        self->env.rewards = self->rewards;                                                                             \
        self->env.terminals = self->terminals;                                                                         \
        farm_ocean_random = &self->base.random;                                                                        \
        INIT(&self->env);                                                                                              \
        return self;                                                                                                   \
    }                                                                                                                  \
                                                                                                                       \
    static void farm_ocean_destroy(void *instance) {                                                                   \
        struct farm_ocean_instance *self = instance;                                                                   \
        CLOSE(&self->env);                                                                                             \
        free(self->base.kept);                                                                                         \
        free(self);                                                                                                    \
    }                                                                                                                  \
                                                                                                                       \
    static void farm_ocean_reset(void *instance, void *const *obs) {                                                   \
        struct farm_ocean_instance *self = instance;                                                                   \
        if (self->base.begun) {                                                                                        \
            memcpy(obs[0], self->base.kept, self->base.obs_bytes);                                                     \
            self->base.begun = false;                                                                                  \
            return;                                                                                                    \
        }                                                                                                              \
        farm_ocean_random = &self->base.random;                                                                        \
        self->env.observations = self->base.keep ? (void *)self->base.kept : obs[0];                                   \
        c_reset(&self->env);                                                                                           \
        farm_ocean_after(&self->base, obs[0], false);                                                                  \
    }                                                                                                                  \
                                                                                                                       \
    static uint32_t farm_ocean_step(void *instance, const void *action, void *const *obs, float *reward) {             \
        struct farm_ocean_instance *self = instance;                                                                   \
        for (uint32_t i = 0; i < self->base.actions; i++)                                                              \
            self->actions[i] = (__typeof__(self->actions[0]))farm_ocean_action(&self->base, action, i);                \
        self->rewards[0] = 0;                                                                                          \
        self->terminals[0] = 0;                                                                                        \
        farm_ocean_random = &self->base.random;                                                                        \
        self->env.observations = self->base.keep ? (void *)self->base.kept : obs[0];                                   \
        c_step(&self->env);                                                                                            \
        *reward = (float)self->rewards[0];                                                                             \
        return farm_ocean_after(&self->base, obs[0], self->terminals[0] != 0);                                         \
    }                                                                                                                  \
                                                                                                                       \
    FARM_ENV_EXPORT const struct farm_env_api *farm_env_at(size_t index) {                                             \
        static const struct farm_env_api api = FARM_ENV_API(NAME, ABOUT, farm_ocean, farm_ocean_destroy);              \
        return index == 0 ? &api : NULL;                                                                               \
    }                                                                                                                  \
    struct farm_ocean_instance /* so that FARM_OCEAN(...); ends as a declaration does */

#endif
