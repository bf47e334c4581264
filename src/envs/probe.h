// Asks a plug-in what there is in it and what an environment of it looks like, in a process of its own with a time
// limit: loading one runs foreign code, which may crash, hang or print. Runs in the supervisor and in tools, before any
// worker; what comes back is copied once and checked. Keeps nothing open. Actors open plug-ins themselves (actor.h).
#ifndef FARM_ENVS_PROBE_H
#define FARM_ENVS_PROBE_H

#include <farm/env.h>
#include <stdbool.h>

#include "base/status.h"

enum { FARM_ENV_NAME_BYTES = 96, FARM_PROBE_NAMES_MAX = 1024, FARM_PROBE_TIMEOUT_MS = 10000 };

// What a plug-in answered. Texts are printable ASCII.
struct farm_probe_answer {
    char name[FARM_ENV_NAME_BYTES]; // of the environment asked for
    struct farm_env_spec spec;      // checked (farm_plugin_spec)
    uint32_t name_count;            // all its environments
    char names[FARM_PROBE_NAMES_MAX][FARM_ENV_NAME_BYTES];
    bool misses_name; // FARM_E_NOT_FOUND was because of the name, not of the file
};

// `name` NULL: its first environment. *answer is heavy (100 KB): not for the stack. Errors: those of farm_plugin_open
// and farm_plugin_spec; FARM_E_DEAD where the plug-in died or did not answer within FARM_PROBE_TIMEOUT_MS, with what it
// was doing and the last line that it wrote to stderr; FARM_E_LIMIT. Where the environment was found, but its spec
// failed, the names are there all the same.
enum farm_status farm_probe_plugin(const char *path, const char *name, const struct farm_env_option *options,
                                   size_t option_count, struct farm_probe_answer *answer, struct farm_error *err);

#endif
