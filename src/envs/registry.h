// Environments by name: which exist, whether they can run here, their specs, and the command lines of their actors.
// Native ones are functions of this program; plug-ins are shared objects, which only probes and actors load (probe.h,
// actor.h); ale/* and gym/* run in Python programs. Runs in the supervisor and in tools, before any worker.
//
//   native/NAME              built in
//   ale/GAME, gym/ID         Python
//   plugin:PATH[:NAME]       a user's plug-in: its first environment, or the named one
//   libenv:PATH              a library with gym3's libenv interface, through the plug-in envs/libenv.so (option lib)
//   FAMILY/NAME, any other   environment "FAMILY/NAME" of the shipped plug-in envs/FAMILY.so
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

// Must not be copied: options point into it.
struct farm_env {
    enum farm_env_kind kind;
    char name[FARM_ENV_NAME_BYTES];        // its own name, for messages and for its plug-in
    const struct farm_env_api *api;        // native; else NULL
    char plugin[PATH_MAX];                 // path of the shared object
    const struct farm_env_python *program; // Python
    char python[PATH_MAX], pythonpath[PATH_MAX];
    char lib[PATH_MAX];                                          // value of libenv's option
    char lasting[2 * PATH_MAX];                                  // the recipe's name for it, valid in any folder
    struct farm_env_option options[FARM_RECIPE_OPTIONS_MAX + 1]; // point into the recipe, or to lib
    size_t option_count;
    struct farm_env_spec spec;
};

// Whether the name gives a user's file: "plugin:..." or "libenv:...".
bool farm_env_names_file(const char *name);

// Whether the name belongs to a family in Python, known or not.
bool farm_env_is_python(const char *name);

// Finds the environment recipe->env with its options. The recipe must outlive *env. Errors: FARM_E_USAGE: unknown name
// (the message has the nearest known one), option or plug-in file; FARM_E_NOT_FOUND: missing package, with the step
// that installs it (an installed copy makes its Python environment on first need); FARM_E_PERMISSION; FARM_E_FORMAT:
// unusable plug-in, with the reason.
enum farm_status farm_env_find(const struct farm_recipe *recipe, struct farm_env *env, struct farm_error *err);

// Makes the Python environment of an installed copy with PREFIX/lib/farm/venv.sh, or brings it up to date: in the
// prefix, or in this user's data folder if the prefix is not writable. Logs what it downloads. Stores its interpreter.
// Errors: FARM_E_UNSUPPORTED in a build folder; FARM_E_IO with the reason; FARM_E_INTERRUPTED by SIGINT, SIGTERM or
// SIGHUP.
enum farm_status farm_env_setup(char *python, size_t python_bytes, struct farm_error *err);

// The option that ends training episodes at a lost life, or NULL. Evaluation sets it to false.
const char *farm_env_life_option(const char *name);

// All names that can run here, and the reasons why others cannot.
struct farm_env_list {
    size_t count;
    char (*names)[FARM_ENV_NAME_BYTES];
    char missing[2048]; // a line per family: "ale/*: reason"
};
enum farm_status farm_env_list_make(struct farm_env_list *list, struct farm_error *err);
void farm_env_list_free(struct farm_env_list *list);

// The command line of a Python program that plays the environment, and its texts.
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
// module NULL: the environment's program, which gets the name without the prefix. The caller frees *program in any
// case.
enum farm_status farm_env_program_make(const struct farm_env *env, const char *module,
                                       const struct farm_env_argument *arguments, size_t count,
                                       struct farm_env_program *program, struct farm_error *err);
void farm_env_program_free(struct farm_env_program *program);

#endif
