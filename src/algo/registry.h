// The algorithms of all.h by name, and a recipe's hyperparameters for the one that it names. For the supervisor and
// tools; the learner gets an algorithm's table.
#ifndef FARM_ALGO_REGISTRY_H
#define FARM_ALGO_REGISTRY_H

#include "algo/algo.h"

// NULL with FARM_E_NOT_FOUND and the names.
const struct farm_algo *farm_algo_find(const char *name, struct farm_error *err);

// The i-th algorithm's name and recipe keys, NULL behind the last: for farm_recipe_defaults.
const struct farm_recipe_family *farm_algo_family_at(size_t i);

// A settled recipe's hyperparameters.
enum farm_status farm_algo_configure(const struct farm_recipe *recipe, struct farm_algo_config *out,
                                     struct farm_error *err);

#endif
