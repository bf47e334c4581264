// Runs that repeat bit for bit (recipe key `deterministic`): what such a run refuses, and how it goes on behind a
// checkpoint. There the learner ends (learner/config.h), and the same processes start again with new rings and the
// checkpoint, exactly as `--resume` would start them. Runs in the supervisor process.
#ifndef FARM_RUN_DETERMINISTIC_H
#define FARM_RUN_DETERMINISTIC_H

#include "run/run.h"

// Settles the recipe of a deterministic plan: synchronous, on the CPU, without a time limit, numbers of updates chosen.
// FARM_E_USAGE: the user has set what contradicts it.
enum farm_status farm_run_deterministic_settle(struct farm_run_plan *plan, struct farm_error *err);

// After farm_supervisor_run: whether the learner has ended at a checkpoint before the end of the run.
bool farm_run_deterministic_goes_on(const struct farm_run *run);

// Makes the rings anew and enlists all processes.
enum farm_status farm_run_deterministic_again(struct farm_run *run, struct farm_error *err);

#endif
