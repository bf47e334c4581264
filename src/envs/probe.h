// Reads a plug-in's names and the spec of one environment in a child process with a time limit, because loading runs
// foreign code, which may crash, hang or print. Runs in the supervisor and in tools, before any worker; copies the
// result once, then checks it. Keeps nothing open. Actors open plug-ins themselves (actor.h).
#ifndef FARM_ENVS_PROBE_H
#define FARM_ENVS_PROBE_H

#include <farm/env.h>
#include <stdbool.h>

#include "base/status.h"

enum { FARM_ENV_NAME_BYTES = 96, FARM_PROBE_NAMES_MAX = 1024 };

// What a plug-in returned. Texts are printable ASCII.
struct farm_probe_answer {
    char name[FARM_ENV_NAME_BYTES]; // requested environment
    struct farm_env_spec spec;      // checked (farm_plugin_spec)
    uint32_t name_count;            // all its environments
    char names[FARM_PROBE_NAMES_MAX][FARM_ENV_NAME_BYTES];
    bool misses_name; // FARM_E_NOT_FOUND: the file exists, the name does not
};

// `name` NULL: its first environment. *answer has 100 KB: keep it off the stack. Errors: those of farm_plugin_open and
// farm_plugin_spec; FARM_E_DEAD: the plug-in died or did not return within limit_s, with the function it was in and its
// last line on stderr; FARM_E_INTERRUPTED (farm_program_read); FARM_E_LIMIT. If only the spec fails, the names are
// valid.
enum farm_status farm_probe_plugin(const char *path, const char *name, const struct farm_env_option *options,
                                   size_t option_count, double limit_s, bool confined, struct farm_probe_answer *answer,
                                   struct farm_error *err);

#endif
