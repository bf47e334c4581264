// libenv/any: runs an environment behind gym3's libenv interface (libenv.h) unchanged, in an actor process, one thread.
// Options:
//
//   lib=PATH            the shared object (`--env libenv:PATH` sets it)
//   seed_option=NAME    passes 31 bits of the environment's seed as the int32 option NAME. libenv has no seeds: without
//                       this option all environments of a farm may play the same
//   any other           an option of libenv_make. Its text chooses the type: true, false: bool (uint8); a whole number:
//                       int32; another number: float32; else string (uint8). A prefix int:, float:, bool: or string:
//                       overrides (string:7)
//
// Spaces: 1 to 8 observation tensors, each up to 4 dimensions; one action tensor, up to 32 discrete int32 or float32.
#include <errno.h>
#include <math.h>

#include "envs/libenv/libenv.h"

static bool parse_int(const char *text, int32_t *value) {
    char *end;
    errno = 0;
    const long long parsed = strtoll(text, &end, 10);
    if (end == text || *end || errno || parsed < INT32_MIN || parsed > INT32_MAX) return false;
    *value = (int32_t)parsed;
    return true;
}

static bool parse_float(const char *text, float *value) {
    char *end;
    *value = strtof(text, &end);
    return end != text && !*end && isfinite(*value);
}

static bool parse_bool(const char *text, bool *value) {
    *value = strcmp(text, "true") == 0;
    return *value || strcmp(text, "false") == 0;
}

// Whether text starts with this word; *rest is the remainder.
static bool has_prefix(const char *text, const char *word, const char **rest) {
    *rest = text + strlen(word);
    return strncmp(text, word, strlen(word)) == 0;
}

static bool pass_option(struct libenv_settings *settings, const char *key, const char *text,
                        struct libenv_error error) {
    const char *rest = text;
    int32_t whole;
    float number;
    bool on, room;
    if (has_prefix(text, "string:", &rest))
        room = libenv_set_text(settings, key, rest);
    else if (has_prefix(text, "int:", &rest) && parse_int(rest, &whole))
        room = libenv_set_int(settings, key, whole);
    else if (has_prefix(text, "float:", &rest) && parse_float(rest, &number))
        room = libenv_set(settings, key, FARM_F32, (union libenv_value){.f32 = number});
    else if (has_prefix(text, "bool:", &rest) && parse_bool(rest, &on))
        room = libenv_set_bool(settings, key, on);
    else if (has_prefix(text, "int:", &rest) || has_prefix(text, "float:", &rest) || has_prefix(text, "bool:", &rest))
        return libenv_fail(error, "libenv: invalid value of option \"%s\": \"%s\"", key, text);
    else if (parse_bool(text, &on))
        room = libenv_set_bool(settings, key, on);
    else if (parse_int(text, &whole))
        room = libenv_set_int(settings, key, whole);
    else if (parse_float(text, &number))
        room = libenv_set(settings, key, FARM_F32, (union libenv_value){.f32 = number});
    else
        room = libenv_set_text(settings, key, text);
    if (room) return true;
    return libenv_fail(error, "libenv: no room for option \"%s\" (%d options, names below %d characters)", key,
                       LIBENV_SETTINGS_MAX, LIBENV_NAME_BYTES);
}

static bool read_options(const struct farm_env_config *config, struct libenv_settings *settings, const char **path,
                         struct libenv_error error) {
    const char *seed_option = NULL;
    *path = NULL;
    for (size_t i = 0; i < config->option_count; i++) {
        const struct farm_env_option *option = &config->options[i];
        if (strcmp(option->key, "lib") == 0)
            *path = option->value;
        else if (strcmp(option->key, "seed_option") == 0)
            seed_option = option->value;
        else if (!pass_option(settings, option->key, option->value, error))
            return false;
    }
    if (!*path || !**path) return libenv_fail(error, "no library given: use --env libenv:PATH or --env.lib PATH");
    if (!seed_option ||
        libenv_set_int(settings, seed_option, (int32_t)((config->seed ^ config->seed >> 32) & INT32_MAX)))
        return true;
    return libenv_fail(error, "libenv: no room for option \"%s\"", seed_option);
}

static struct libenv_env *make_env(const struct farm_env_config *config, bool play, struct farm_env_spec *spec,
                                   struct libenv_error error) {
    char path[4096];
    const char *given;
    struct libenv_env *env = calloc(1, sizeof *env);
    if (!env) {
        libenv_fail(error, "no memory for an environment");
        return NULL;
    }
    bool good = read_options(config, &env->settings, &given, error);
    // dlopen(3) searches a name without a slash in other folders.
    if (good) snprintf(path, sizeof path, "%s%s", strchr(given, '/') ? "" : "./", given);
    good = good && libenv_open(path, &env->library, error);
    good = good && libenv_env_make(env, play, spec, error);
    if (good) return env;
    libenv_env_close(env);
    free(env);
    return NULL;
}

static void any_destroy(void *env) {
    libenv_env_close(env);
    free(env);
}

static int any_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error, size_t error_bytes) {
    struct libenv_env *env = make_env(config, false, spec, (struct libenv_error){error, error_bytes});
    if (!env) return -1;
    any_destroy(env);
    return 0;
}

static void *any_create(const struct farm_env_config *config, char *error, size_t error_bytes) {
    struct farm_env_spec spec;
    return make_env(config, true, &spec, (struct libenv_error){error, error_bytes});
}

static void any_reset(void *env, void *const *obs) {
    libenv_env_reset(env, obs);
}

static uint32_t any_step(void *env, const void *action, void *const *obs, float *reward) {
    const uint32_t answer = libenv_env_act(env, action, reward);
    libenv_env_copy(env, obs);
    return answer;
}

static const struct farm_env_api any_api = FARM_ENV_API(
    "libenv/any", "an environment behind gym3's libenv interface: --env libenv:PATH, its own options as env.NAME", any,
    any_destroy);

FARM_ENV_EXPORT const struct farm_env_api *farm_env_at(size_t index) {
    return index == 0 ? &any_api : NULL;
}
