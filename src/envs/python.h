// Environments that run in our Python programs, ale/*, envpool/* and gym/*: their interpreter, its packages, their
// specs, and the command lines of their actors. Runs in the supervisor and in tools, before any worker.
#ifndef FARM_ENVS_PYTHON_H
#define FARM_ENVS_PYTHON_H

#include "envs/env.h"

// How every Python program of ours starts: `PYTHON START NAME ...` in this environment. Nothing of the current folder
// is imported, whatever Python it is (python/actorfarm/start.py). package: farm_path_package's. The environment is this
// process's, with the package first in PYTHONPATH and one thread per library: one block, or NULL.
char **farm_python_environment(const char *package);
void farm_python_start(const char *package, char *start, size_t bytes);

// Whether the name belongs to a family in Python, known or not.
bool farm_env_is_python(const char *name);

// Whether farm_env_find of this name would install packages (farm_env_setup).
bool farm_env_would_install(const char *name);

// Finds env->name, a name of such a family, with its options. Errors as in farm_env_find.
enum farm_status farm_env_find_python(struct farm_env *env, struct farm_error *err);

// Names of family 0, 1, ... that can run here: a line each, without *prefix; the caller frees them. An error says why
// there are none. *prefix NULL: there is no such family.
enum farm_status farm_env_python_names(size_t family, double start_s, const char **prefix, char **names,
                                       struct farm_error *err);

// Makes the Python environment of an installed copy with PREFIX/lib/farm/venv.sh, or brings it up to date: in the
// prefix, or in this user's data folder if the prefix is not writable. Logs what it downloads. Stores its interpreter.
// FARM_E_UNSUPPORTED in a build folder; FARM_E_IO with the reason; FARM_E_INTERRUPTED by SIGINT, SIGTERM or SIGHUP.
enum farm_status farm_env_setup(char *python, size_t python_bytes, struct farm_error *err);

// The command line of a Python program that plays the environment, and its texts.
enum { FARM_ENV_ARGUMENTS_MAX = 10 };
struct farm_env_program {
    char *argv[2 * FARM_RECIPE_OPTIONS_MAX + 40], **environment;
    void *texts; // one block
};
struct farm_env_argument {
    const char *flag, *text; // text NULL: the number
    uint64_t number;
    bool alone; // a flag without a value
};
// module NULL: the environment's program, which gets the name without the prefix. Always free *program.
enum farm_status farm_env_program_make(const struct farm_env *env, const char *module,
                                       const struct farm_env_argument *arguments, size_t count,
                                       struct farm_env_program *program, struct farm_error *err);
void farm_env_program_free(struct farm_env_program *program);

#endif
