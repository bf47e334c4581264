// An environment that the registry has found: what it is, where it lies, its options and its spec.
#ifndef FARM_ENVS_ENV_H
#define FARM_ENVS_ENV_H

#include <farm/env.h>
#include <limits.h>

#include "config/recipe.h"
#include "envs/probe.h"

struct farm_env_python;
enum farm_env_kind { FARM_ENV_NATIVE, FARM_ENV_PLUGIN, FARM_ENV_PYTHON };

enum {
    FARM_ENV_KEYS = 3, // farm_env_key
    FARM_ENV_OPTIONS_MAX = FARM_RECIPE_OPTIONS_MAX + FARM_ENV_KEYS + 1,
};

// Must not be copied: options point into it.
struct farm_env {
    enum farm_env_kind kind;
    char name[FARM_ENV_NAME_BYTES];        // its own name, for messages and for its plug-in
    const struct farm_env_api *api;        // native; else NULL
    char plugin[PATH_MAX];                 // path of the shared object
    const struct farm_env_python *program; // Python
    char python[PATH_MAX], pythonpath[PATH_MAX];
    char lib[PATH_MAX];                                   // value of libenv's option
    char lasting[2 * PATH_MAX];                           // the recipe's name for it, valid in any folder
    struct farm_env_option options[FARM_ENV_OPTIONS_MAX]; // point into the recipe, or to lib
    size_t option_count;
    double start_s; // recipe key start_seconds
    bool confined;  // recipe key confine
    struct farm_env_spec spec;
};

#endif
