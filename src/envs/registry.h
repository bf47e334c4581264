// Environments by name: which exist, whether they can run here, and their specs. Native ones are functions of this
// program; plug-ins are shared objects, which only probes and actors load (probe.h, actor.h); ale/*, envpool/* and
// gym/* run in Python programs (python.h). Runs in the supervisor and in tools, before any worker.
//
//   native/NAME              built in
//   ale/GAME, envpool/ID, gym/ID   Python
//   plugin:PATH[:NAME]       a user's plug-in: its first environment, or the named one
//   libenv:PATH              a library with gym3's libenv interface, through the plug-in envs/libenv.so (option lib)
//   FAMILY/NAME, any other   environment "FAMILY/NAME" of the shipped plug-in envs/FAMILY.so
#ifndef FARM_ENVS_REGISTRY_H
#define FARM_ENVS_REGISTRY_H

#include "envs/env.h"

// Whether the name gives a user's file: "plugin:..." or "libenv:...".
bool farm_env_names_file(const char *name);

// Whether code beyond the installed environments runs for the name: such a file, or gym/PACKAGE:ID. libenv/* takes a
// file as its option.
bool farm_env_names_code(const char *name);

// Finds the environment recipe->env with its options. The recipe must outlive *env. Errors: FARM_E_USAGE: unknown name
// (the message has the nearest known one), option or plug-in file; FARM_E_NOT_FOUND: missing package, with the step
// that installs it; FARM_E_PERMISSION; FARM_E_FORMAT: unusable plug-in, with the reason.
enum farm_status farm_env_find(const struct farm_recipe *recipe, struct farm_env *env, struct farm_error *err);

// The i-th of the recipe's keys that gym/* takes as options: obs_keep, obs_drop, wrap. value "none": not given.
struct farm_env_option farm_env_key(const struct farm_recipe *recipe, size_t i);

// The option that ends training episodes at a lost life, or NULL. Evaluation sets it to false.
const char *farm_env_life_option(const char *name);

// All names that can run here, and the reasons why others cannot.
struct farm_env_list {
    size_t count;
    char (*names)[FARM_ENV_NAME_BYTES];
    char missing[2048]; // a line per family: "ale/*: reason"
};
// start_s: limit of each program's answer, as recipe key start_seconds; 0: its default.
enum farm_status farm_env_list_make(struct farm_env_list *list, double start_s, struct farm_error *err);
void farm_env_list_free(struct farm_env_list *list);

#endif
