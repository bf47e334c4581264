// Finds the usable checkpoint of a run. Runs in the supervisor process and in tools; the learner loads it.
#ifndef FARM_RUN_CHECKPOINTS_H
#define FARM_RUN_CHECKPOINTS_H

#include "run/caller.h"
#include "run/plan.h"

// The newest usable checkpoint of the run's folder; each skipped one is named on stderr with the reason. Usable: the
// plan's learner can load it (tensors of network and optimiser, all finite); without a plan (NULL): length and header
// are valid. caller may be NULL. False: there is none.
bool farm_run_find_checkpoint(const char *run_path, const struct farm_run_plan *plan,
                              const struct farm_run_caller *caller, char *path, size_t path_bytes);

#endif
