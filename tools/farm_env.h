// Environments by name: which there are, whether they can run here, what they look like, how their actors are started.
// Native ones are functions of this program; ALE's games run in a Python program of their own (its licence forbids
// linking). Runs in the supervisor and in tools, before any worker.
#ifndef FARM_TOOLS_ENV_H
#define FARM_TOOLS_ENV_H

#include <farm/env.h>
#include <limits.h>
#include <stdbool.h>

#include "base/status.h"
#include "report/recipe.h"

struct farm_env {
    char name[64];
    const struct farm_env_api *api; // native; NULL: a Python program
    char game[48];                  // of ALE: "Pong"
    char python[PATH_MAX], pythonpath[PATH_MAX];
    struct farm_env_option options[FARM_RECIPE_OPTIONS_MAX]; // point into the recipe
    size_t option_count;
    struct farm_env_spec spec;
};

// The environment that recipe->env names, with its options. The recipe must outlive *env. Errors: FARM_E_USAGE an
// unknown name (the nearest known one is named) or option; FARM_E_NOT_FOUND a package that is not there, with the make
// step that brings it.
enum farm_status farm_env_find(const struct farm_recipe *recipe, struct farm_env *env, struct farm_error *err);

// The option by which an environment ends training episodes at a lost life, NULL where it has none: evaluation sets it
// to false.
const char *farm_env_life_option(const char *name);

// All names that can run here, and why others cannot. Texts are the list's own.
struct farm_env_list {
    size_t count;
    char (*names)[64];
    char missing[512]; // "": nothing
};
enum farm_status farm_env_list_make(struct farm_env_list *list, struct farm_error *err);
void farm_env_list_free(struct farm_env_list *list);

// The command line of one actor program: texts and the arrays that point to them.
struct farm_env_program {
    char *argv[2 * FARM_RECIPE_OPTIONS_MAX + 32], **environment;
    char *texts; // one block
};
enum farm_status farm_env_program_make(const struct farm_env *env, uint32_t actor, int up_fd, int down_fd,
                                       int learner_eventfd, uint64_t seed, uint64_t spin_ns,
                                       struct farm_env_program *program, struct farm_error *err);
void farm_env_program_free(struct farm_env_program *program);

#endif
