// gym3's libenv interface (version 1) from the caller's side, and one environment behind it as include/farm/env.h needs
// it. procgen.c and libenv.c each compile a copy; runs in an actor process, one thread. Not here: several environments
// in one libenv; info tensors (libenv gets memory for them; no code reads it).
//
// Each environment is a libenv of one environment with its own buffers. libenv keeps its buffers for its whole life, so
// each observation is copied from there.
//
// An action yields a reward, an observation and the flag `first`. The reward belongs to that action. first = 1: the
// action ended the episode, and the observation is already the next episode's; libenv shows neither the last
// observation nor the reason of the end. Such a step is FARM_STEP_TERMINATED | FARM_STEP_GAME_END (a time limit inside
// libenv looks the same, and there is no observation to bootstrap from). It carries the next episode's observation,
// which no learner uses, and the following reset() returns that observation again. No action and no reward is lost.
#ifndef FARM_ENVS_LIBENV_H
#define FARM_ENVS_LIBENV_H

#include <assert.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <farm/env.h>

// ---- the interface: layout and numbers are gym3's ----

enum { LIBENV_VERSION = 1, LIBENV_NAME_BYTES = 128, LIBENV_RANK_MAX = 16 };
enum { LIBENV_REAL = 1, LIBENV_DISCRETE = 2 };
enum { LIBENV_OBSERVATIONS = 1, LIBENV_ACTIONS = 2, LIBENV_INFOS = 3 };

union libenv_value {
    uint8_t u8;
    int32_t i32;
    float f32;
};

struct libenv_tensor {
    char name[LIBENV_NAME_BYTES];
    int32_t scalar, dtype; // LIBENV_REAL or LIBENV_DISCRETE; an enum farm_dtype
    int32_t shape[LIBENV_RANK_MAX], rank;
    union libenv_value low, high;
};

struct libenv_option {
    char name[LIBENV_NAME_BYTES];
    int32_t dtype, count;
    void *data;
};

struct libenv_options {
    struct libenv_option *items;
    int32_t count;
};

struct libenv_buffers {
    void **obs;
    float *reward;
    uint8_t *first;
    void **info;
    void **action;
};

static_assert(sizeof(struct libenv_tensor) == 212 && sizeof(struct libenv_option) == 144, "libenv's layout");

struct libenv_library {
    int (*version)(void);
    void *(*make)(int environments, struct libenv_options options);
    int (*tensors)(void *handle, int space, struct libenv_tensor *tensors); // tensors NULL: counts only
    void (*set_buffers)(void *handle, struct libenv_buffers *buffers);
    void (*observe)(void *handle);
    void (*act)(void *handle);
    void (*close)(void *handle);
};

// ---- our side ----

enum { LIBENV_INFOS_MAX = 64, LIBENV_SETTINGS_MAX = 64, LIBENV_ALIGN = 64 };
static const size_t libenv_tensor_bytes_max = 64u << 20;

// Options and the memory that they point to, which libenv may read until it is closed. Must not be copied.
struct libenv_settings {
    int32_t count;
    struct libenv_option items[LIBENV_SETTINGS_MAX];
    union libenv_value values[LIBENV_SETTINGS_MAX];
    char *texts[LIBENV_SETTINGS_MAX];
};

// Must not be moved: libenv keeps addresses in it.
struct libenv_env {
    struct libenv_library library;
    struct libenv_settings settings;
    void *handle;
    uint32_t obs_count;
    size_t obs_bytes[FARM_OBS_FIELDS_MAX], action_bytes;
    void *obs[FARM_OBS_FIELDS_MAX], *info[LIBENV_INFOS_MAX], *action, *memory;
    float reward;
    uint8_t first;
    struct libenv_buffers buffers;
    bool at_start; // obs holds an episode's first observation, which reset() has not returned yet
};

// Where a function writes its message.
struct libenv_error {
    char *text;
    size_t bytes;
};

// Writes the message; returns false.
__attribute__((format(printf, 2, 3))) static inline bool libenv_fail(struct libenv_error error, const char *format,
                                                                     ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(error.text, error.bytes, format, values);
    va_end(values);
    return false;
}

// Opens the library until the process ends (unloading is unsafe: threads, thread-local objects); checks its version.
static inline bool libenv_open(const char *path, struct libenv_library *library, struct libenv_error error) {
    static const char *const names[] = {"libenv_version",     "libenv_make",    "libenv_get_tensortypes",
                                        "libenv_set_buffers", "libenv_observe", "libenv_act",
                                        "libenv_close"};
    void *symbols[7];
    static_assert(sizeof symbols == sizeof *library, "one pointer per function");
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) return libenv_fail(error, "cannot load a libenv library: %s", dlerror());
    for (size_t i = 0; i < 7; i++) {
        symbols[i] = dlsym(handle, names[i]);
        if (symbols[i]) continue;
        dlclose(handle);
        return libenv_fail(error, "%s exports no %s: it is not a libenv library (gym3)", path, names[i]);
    }
    memcpy(library, symbols, sizeof *library);
    const int version = library->version();
    dlclose(handle);
    if (version == LIBENV_VERSION) return true;
    return libenv_fail(error, "%s has version %d of the libenv interface; this farm has %d", path, version,
                       LIBENV_VERSION);
}

// ---- options ----

// Adds a setting and returns its value; NULL if there is no room or the name is too long.
static inline union libenv_value *libenv_add_setting(struct libenv_settings *settings, const char *name,
                                                     enum farm_dtype dtype) {
    const int32_t i = settings->count;
    if (i == LIBENV_SETTINGS_MAX || strlen(name) >= LIBENV_NAME_BYTES) return NULL;
    struct libenv_option *item = &settings->items[i];
    memcpy(item->name, name, strlen(name) + 1);
    item->dtype = (int32_t)dtype;
    item->count = 1;
    item->data = &settings->values[i];
    settings->count++;
    return &settings->values[i];
}

static inline bool libenv_set(struct libenv_settings *settings, const char *name, enum farm_dtype dtype,
                              union libenv_value value) {
    union libenv_value *place = libenv_add_setting(settings, name, dtype);
    if (place) *place = value;
    return place != NULL;
}

static inline bool libenv_set_int(struct libenv_settings *settings, const char *name, int32_t value) {
    return libenv_set(settings, name, FARM_I32, (union libenv_value){.i32 = value});
}

static inline bool libenv_set_bool(struct libenv_settings *settings, const char *name, bool value) {
    return libenv_set(settings, name, FARM_U8, (union libenv_value){.u8 = value});
}

// Copies the text.
static inline bool libenv_set_text(struct libenv_settings *settings, const char *name, const char *value) {
    char *copy = strdup(value);
    if (!copy || !libenv_add_setting(settings, name, FARM_U8)) {
        free(copy);
        return false;
    }
    struct libenv_option *item = &settings->items[settings->count - 1];
    item->data = settings->texts[settings->count - 1] = copy;
    item->count = (int32_t)strlen(copy);
    return true;
}

static inline void libenv_settings_free(struct libenv_settings *settings) {
    for (int32_t i = 0; i < settings->count; i++) free(settings->texts[i]);
    settings->count = 0;
}

// ---- spaces ----

struct libenv_spaces {
    int obs_count, info_count;
    struct libenv_tensor obs[FARM_OBS_FIELDS_MAX], action, info[LIBENV_INFOS_MAX];
};

// Elements of a tensor; 0 if its shape is invalid or too large.
static inline size_t libenv_elements(const struct libenv_tensor *tensor) {
    size_t count = 1;
    if (tensor->rank < 0 || tensor->rank > LIBENV_RANK_MAX) return 0;
    for (int32_t i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] < 1 || (size_t)tensor->shape[i] > libenv_tensor_bytes_max / count) return 0;
        count *= (size_t)tensor->shape[i];
    }
    return count;
}

static inline size_t libenv_bytes(const struct libenv_tensor *tensor) {
    return libenv_elements(tensor) * (tensor->dtype == FARM_U8 ? 1 : 4);
}

static inline bool libenv_check_tensor(const struct libenv_tensor *tensor, const char *kind, int number,
                                       struct libenv_error error) {
    if (!memchr(tensor->name, 0, sizeof tensor->name))
        return libenv_fail(error, "libenv: the name of its %s tensor %d does not end", kind, number);
    const bool known = tensor->scalar == LIBENV_REAL ? tensor->dtype == FARM_F32
                                                     : tensor->scalar == LIBENV_DISCRETE &&
                                                           (tensor->dtype == FARM_U8 || tensor->dtype == FARM_I32);
    if (!known)
        return libenv_fail(error,
                           "libenv: %s tensor '%s' has scalar type %d with dtype %d; real float32 and discrete uint8 "
                           "or int32 are possible",
                           kind, tensor->name, tensor->scalar, tensor->dtype);
    if (!libenv_elements(tensor) || libenv_bytes(tensor) > libenv_tensor_bytes_max)
        return libenv_fail(
            error,
            "libenv: %s tensor '%s' has an invalid shape of %d dimensions (0..%d dimensions of 1 or more, at "
            "most %zu MiB)",
            kind, tensor->name, tensor->rank, LIBENV_RANK_MAX, libenv_tensor_bytes_max >> 20);
    return true;
}

static inline bool libenv_read_space(const struct libenv_library *library, void *handle, int space, const char *kind,
                                     int least, int most, struct libenv_tensor *tensors, int *count,
                                     struct libenv_error error) {
    *count = library->tensors(handle, space, NULL);
    if (*count < least || *count > most)
        return libenv_fail(error, "libenv: %d %s tensors; %d..%d are possible", *count, kind, least, most);
    if (*count) library->tensors(handle, space, tensors);
    for (int i = 0; i < *count; i++)
        if (!libenv_check_tensor(&tensors[i], kind, i, error)) return false;
    return true;
}

static inline bool libenv_read_spaces(const struct libenv_library *library, void *handle, struct libenv_spaces *spaces,
                                      struct libenv_error error) {
    int actions;
    memset(spaces, 0, sizeof *spaces);
    return libenv_read_space(library, handle, LIBENV_OBSERVATIONS, "observation", 1, FARM_OBS_FIELDS_MAX, spaces->obs,
                             &spaces->obs_count, error) &&
           libenv_read_space(library, handle, LIBENV_ACTIONS, "action", 1, 1, &spaces->action, &actions, error) &&
           libenv_read_space(library, handle, LIBENV_INFOS, "info", 0, LIBENV_INFOS_MAX, spaces->info,
                             &spaces->info_count, error);
}

// 0: any byte, and ranges that do not begin at 0 or have no end.
static inline uint32_t libenv_choices(const struct libenv_tensor *tensor) {
    const bool whole = tensor->scalar == LIBENV_DISCRETE;
    if (whole && tensor->dtype == FARM_U8)
        return !tensor->low.u8 && tensor->high.u8 && tensor->high.u8 < UINT8_MAX ? tensor->high.u8 + 1u : 0;
    const int32_t high = whole && !tensor->low.i32 ? tensor->high.i32 : 0;
    return high > 0 && high < INT32_MAX ? (uint32_t)high + 1 : 0;
}

// A scalar becomes a vector of 1. An invalid or too long name becomes ob_NUMBER.
static inline bool libenv_obs_spec(const struct libenv_tensor *tensor, uint32_t number, struct farm_field_spec *field,
                                   struct libenv_error error) {
    if (tensor->rank > FARM_FIELD_RANK_MAX)
        return libenv_fail(error, "libenv: observation '%s' has %d dimensions; at most %d are possible", tensor->name,
                           tensor->rank, FARM_FIELD_RANK_MAX);
    const size_t length = strlen(tensor->name);
    if (length && length < sizeof field->name)
        memcpy(field->name, tensor->name, length + 1);
    else
        snprintf(field->name, sizeof field->name, "ob_%u", number);
    field->dtype = (uint32_t)tensor->dtype;
    field->rank = tensor->rank ? (uint32_t)tensor->rank : 1;
    field->dims[0] = 1;
    for (int32_t i = 0; i < tensor->rank; i++) field->dims[i] = (uint32_t)tensor->shape[i];
    field->choices = libenv_choices(tensor);
    return true;
}

static inline bool libenv_action_spec(const struct libenv_tensor *tensor, struct farm_action_spec *action,
                                      struct libenv_error error) {
    const size_t count = libenv_elements(tensor);
    const bool discrete = tensor->scalar == LIBENV_DISCRETE;
    if (count > FARM_ACTION_DIMS_MAX)
        return libenv_fail(error, "libenv: actions of %zu numbers; at most %d are possible", count,
                           FARM_ACTION_DIMS_MAX);
    if (discrete && tensor->dtype != FARM_I32)
        return libenv_fail(error, "libenv: discrete actions of dtype uint8; int32 is possible");
    if (discrete && (tensor->low.i32 != 0 || tensor->high.i32 < 0 || tensor->high.i32 == INT32_MAX))
        return libenv_fail(error, "libenv: discrete actions from %d to %d; 0 to something is possible", tensor->low.i32,
                           tensor->high.i32);
    action->kind = !discrete ? FARM_ACTION_CONTINUOUS : count == 1 ? FARM_ACTION_DISCRETE : FARM_ACTION_MULTI_DISCRETE;
    action->dims = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        action->sizes[i] = discrete ? (uint32_t)tensor->high.i32 + 1 : 0;
        action->low[i] = discrete ? 0 : tensor->low.f32;
        action->high[i] = discrete ? 0 : tensor->high.f32;
    }
    return true;
}

static inline bool libenv_make_spec(const struct libenv_spaces *spaces, struct farm_env_spec *spec,
                                    struct libenv_error error) {
    memset(spec, 0, sizeof *spec);
    spec->obs_count = (uint32_t)spaces->obs_count;
    spec->frames_per_step = 1;
    for (uint32_t i = 0; i < spec->obs_count; i++)
        if (!libenv_obs_spec(&spaces->obs[i], i, &spec->obs[i], error)) return false;
    return libenv_action_spec(&spaces->action, &spec->action, error);
}

// ---- one environment ----

static inline size_t libenv_room(const struct libenv_tensor *tensor) {
    return (libenv_bytes(tensor) + LIBENV_ALIGN - 1) / LIBENV_ALIGN * LIBENV_ALIGN;
}

// Memory for all tensors, in one block.
static inline bool libenv_make_buffers(struct libenv_env *env, const struct libenv_spaces *spaces) {
    size_t bytes = libenv_room(&spaces->action);
    for (int i = 0; i < spaces->obs_count; i++) bytes += libenv_room(&spaces->obs[i]);
    for (int i = 0; i < spaces->info_count; i++) bytes += libenv_room(&spaces->info[i]);
    uint8_t *at = env->memory = aligned_alloc(LIBENV_ALIGN, bytes);
    if (!at) return false;
    memset(at, 0, bytes);
    env->action = at;
    env->action_bytes = libenv_bytes(&spaces->action);
    at += libenv_room(&spaces->action);
    env->obs_count = (uint32_t)spaces->obs_count;
    for (int i = 0; i < spaces->obs_count; at += libenv_room(&spaces->obs[i++])) {
        env->obs[i] = at;
        env->obs_bytes[i] = libenv_bytes(&spaces->obs[i]);
    }
    for (int i = 0; i < spaces->info_count; at += libenv_room(&spaces->info[i++])) env->info[i] = at;
    env->buffers = (struct libenv_buffers){env->obs, &env->reward, &env->first, env->info, &env->action};
    return true;
}

// Safe on a zeroed one and after libenv_env_make has failed.
static inline void libenv_env_close(struct libenv_env *env) {
    if (env->handle) env->library.close(env->handle);
    env->handle = NULL;
    libenv_settings_free(&env->settings);
    free(env->memory);
    env->memory = NULL;
}

// Makes the environment of env->library and env->settings, which the caller has filled, and writes its spec. `play`
// false: for the spec only; no step may follow. The caller closes *env in any case.
static inline bool libenv_env_make(struct libenv_env *env, bool play, struct farm_env_spec *spec,
                                   struct libenv_error error) {
    struct libenv_spaces spaces;
    env->handle = env->library.make(1, (struct libenv_options){env->settings.items, env->settings.count});
    if (!env->handle) return libenv_fail(error, "libenv_make returned no environment");
    if (!libenv_read_spaces(&env->library, env->handle, &spaces, error)) return false;
    if (!libenv_make_spec(&spaces, spec, error)) return false;
    if (!play) return true;
    if (!libenv_make_buffers(env, &spaces)) return libenv_fail(error, "no memory for libenv's buffers");
    env->library.set_buffers(env->handle, &env->buffers);
    env->library.observe(env->handle);
    env->at_start = true;
    return true;
}

static inline void libenv_env_copy(const struct libenv_env *env, void *const *obs) {
    for (uint32_t i = 0; i < env->obs_count; i++) memcpy(obs[i], env->obs[i], env->obs_bytes[i]);
}

// libenv has no reset. If no episode has just ended, the new one starts with the current observation.
static inline void libenv_env_reset(struct libenv_env *env, void *const *obs) {
    libenv_env_copy(env, obs);
    env->at_start = false;
}

// Takes one step, with the observation in env->obs; returns the flags of struct farm_env_api's step.
static inline uint32_t libenv_env_act(struct libenv_env *env, const void *action, float *reward) {
    memcpy(env->action, action, env->action_bytes);
    env->library.act(env->handle);
    env->library.observe(env->handle);
    *reward = env->reward;
    env->at_start = env->first != 0;
    return env->at_start ? FARM_STEP_TERMINATED | FARM_STEP_GAME_END : 0;
}

#endif
