// What a run that repeats bit for bit (recipe key `deterministic`) refuses and chooses. Runs in the supervisor process.
#ifndef FARM_RUN_DETERMINISTIC_H
#define FARM_RUN_DETERMINISTIC_H

#include "config/recipe.h"

// Settles the recipe of a deterministic run, which `listens` for other machines or not: synchronous, on the CPU, with
// one inference thread, without a time limit, numbers of updates chosen. FARM_E_USAGE: the user has set what
// contradicts it.
enum farm_status farm_run_deterministic_settle(struct farm_recipe *recipe, bool listens, struct farm_error *err);

#endif
