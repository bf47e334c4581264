// See native.h: the table of built-in environments, and the reading of their options, whose meaning it does not know.
#include "envs/native/native.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli.h"

static const struct farm_env_api *const native_envs[] = {&farm_env_catch,  &farm_env_cartpole, &farm_env_breakout,
                                                         &farm_env_menu,   &farm_env_juggle,   &farm_env_recall,
                                                         &farm_env_pursuit};
enum { NATIVE_ENVS = sizeof native_envs / sizeof native_envs[0], OPTIONS_MAX = 8 };

const struct farm_env_api *farm_native_env_at(size_t i) {
    return i < NATIVE_ENVS ? native_envs[i] : NULL;
}

const struct farm_env_api *farm_native_env_find(const char *name) {
    for (size_t i = 0; i < NATIVE_ENVS; i++)
        if (strcmp(native_envs[i]->name, name) == 0) return native_envs[i];
    return NULL;
}

static int fail_unknown_option(const char *key, const char *name, const struct farm_native_option *options,
                               size_t count, char *error, size_t error_bytes) {
    if (count == 0) {
        snprintf(error, error_bytes, "%s has no options, so no \"%s\"", name, key);
        return -1;
    }
    const char *keys[OPTIONS_MAX] = {NULL};
    for (size_t i = 0; i < count; i++) keys[i] = options[i].key;
    const char *near = farm_nearest(key, keys, count);
    snprintf(error, error_bytes, "%s has no option \"%s\"; %s \"%s\"", name, key,
             near ? "did you mean" : "it has, for example,", near ? near : keys[0]);
    return -1;
}

static bool parse_value(const char *text, struct farm_native_option *option) {
    if (!option->is_switch) return farm_parse_int(text, &option->value) && option->value >= 1;
    bool on;
    if (!farm_parse_bool(text, &on)) return false;
    option->value = on;
    return true;
}

int farm_native_read_options(const struct farm_env_config *config, const char *name, struct farm_native_option *options,
                             size_t count, char *error, size_t error_bytes) {
    for (size_t i = 0; i < config->option_count; i++) {
        const struct farm_env_option *given = &config->options[i];
        size_t o = 0;
        while (o < count && strcmp(options[o].key, given->key) != 0) o++;
        if (o == count) return fail_unknown_option(given->key, name, options, count, error, error_bytes);
        if (parse_value(given->value, &options[o])) continue;
        snprintf(error, error_bytes, "%s: option \"%s\" is %s, not \"%s\"", name, given->key,
                 options[o].is_switch ? "true or false" : "a whole number of at least 1", given->value);
        return -1;
    }
    return 0;
}

struct farm_env_spec farm_native_spec(const char *field, uint32_t numbers, uint32_t actions) {
    struct farm_env_spec spec = {.obs_count = 1,
                                 .obs[0] = {.dtype = FARM_F32, .rank = 1, .dims = {numbers}},
                                 .action = {.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {actions}},
                                 .frames_per_step = 1};
    snprintf(spec.obs[0].name, sizeof spec.obs[0].name, "%s", field);
    return spec;
}

void *farm_native_make(const void *state, size_t bytes, const char *name, char *error, size_t error_bytes) {
    void *env = malloc(bytes);
    if (!env) snprintf(error, error_bytes, "no memory for %s", name);
    return env ? memcpy(env, state, bytes) : NULL;
}
