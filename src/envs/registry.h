// Environments by name: which there are, whether they can run here, what they look like, how their actors are started.
// Native ones are functions of this program; plug-ins are shared objects that only a process of its own ever loads
// (probe.h, actor.h); ale/* and gym/* run in Python programs. Runs in the supervisor and in tools, before any
// worker.
//
//   native/NAME              built in
//   ale/GAME, gym/ID         Python
//   plugin:PATH[:NAME]       a plug-in of the user's: its first environment, or the one of that name
//   libenv:PATH              a library with gym3's libenv interface, by way of the plug-in envs/libenv.so (option lib)
//   FAMILY/NAME, any other   the plug-in envs/FAMILY.so that came along, its environment "FAMILY/NAME"
#ifndef FARM_ENVS_REGISTRY_H
#define FARM_ENVS_REGISTRY_H

#include <farm/env.h>
#include <limits.h>
#include <stdbool.h>

#include "base/status.h"
#include "config/recipe.h"
#include "envs/probe.h"

struct farm_env_python;
enum farm_env_kind { FARM_ENV_NATIVE, FARM_ENV_PLUGIN, FARM_ENV_PYTHON };

// Not to be copied: options point into it.
struct farm_env {
    enum farm_env_kind kind;
    char name[FARM_ENV_NAME_BYTES];        // as it calls itself: for messages and for finding it in its plug-in
    const struct farm_env_api *api;        // native; else NULL
    char plugin[PATH_MAX];                 // of the shared object
    const struct farm_env_python *program; // Python: env.c's table
    char python[PATH_MAX], pythonpath[PATH_MAX];
    char lib[PATH_MAX];                                          // value of libenv's option
    char lasting[2 * PATH_MAX];                                  // the recipe's name for it, good in any folder
    struct farm_env_option options[FARM_RECIPE_OPTIONS_MAX + 1]; // point into the recipe, or to lib
    size_t option_count;
    struct farm_env_spec spec;
};

// Whether this is the name of a file of the user's: "plugin:..." or "libenv:...".
bool farm_env_names_file(const char *name);

// The environment that recipe->env names, with its options. The recipe must outlive *env. Errors: FARM_E_USAGE an
// unknown name (the nearest known one is named), option or plug-in file; FARM_E_NOT_FOUND a package that is not there,
// with the make step that brings it; FARM_E_FORMAT, FARM_E_DEAD a plug-in that cannot be used, with the reason.
enum farm_status farm_env_find(const struct farm_recipe *recipe, struct farm_env *env, struct farm_error *err);

// The option by which an environment ends training episodes at a lost life, NULL where it has none: evaluation sets it
// to false.
const char *farm_env_life_option(const char *name);

// All names that can run here, and why others cannot. Texts are the list's own.
struct farm_env_list {
    size_t count;
    char (*names)[FARM_ENV_NAME_BYTES];
    char missing[2048]; // a line each: "ale/*: why"; "": nothing
};
enum farm_status farm_env_list_make(struct farm_env_list *list, struct farm_error *err);
void farm_env_list_free(struct farm_env_list *list);

// The command line of a Python program that plays the environment: texts and the arrays that point to them.
enum { FARM_ENV_ARGUMENTS_MAX = 8 };
struct farm_env_program {
    char *argv[2 * FARM_RECIPE_OPTIONS_MAX + 40], **environment;
    void *texts; // one block
};
struct farm_env_argument {
    const char *flag, *text; // text NULL: the number
    uint64_t number;
    bool alone; // a flag without a value
};
// module NULL: the environment's own, which gets its name without the prefix. *program can be freed in any case.
enum farm_status farm_env_program_make(const struct farm_env *env, const char *module,
                                       const struct farm_env_argument *arguments, size_t count,
                                       struct farm_env_program *program, struct farm_error *err);
void farm_env_program_free(struct farm_env_program *program);

#endif
