// `farm train --init-from RUN|FILE`: a new run begins with the parameters of a trained network. Runs in the supervisor
// process; the learner reads the file (farm_checkpoint_take).
#ifndef FARM_TOOLS_INIT_FROM_H
#define FARM_TOOLS_INIT_FROM_H

#include "run/plan.h"

// The file that `what` names: itself, or the best checkpoint of a run's folder, without one the newest that can be
// read. Also takes its `scale_actions` into the recipe, unless a recipe file or flag sets it. Errors: FARM_E_NOT_FOUND,
// FARM_E_USAGE, FARM_E_FORMAT.
enum farm_status farm_init_from_find(const char *what, struct farm_recipe *recipe, char *path, size_t path_bytes,
                                     struct farm_error *err);

// Reads it as the learner will, and prints on stderr what the network takes, what begins fresh and what is left.
enum farm_status farm_init_from_check(const struct farm_run_plan *plan, const char *path, struct farm_error *err);

#endif
