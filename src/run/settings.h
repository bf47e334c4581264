// Converts a recipe's words to settings of the run's processes. Pure functions.
#ifndef FARM_RUN_SETTINGS_H
#define FARM_RUN_SETTINGS_H

#include "actor/actor.h"
#include "run/caller.h"
#include "run/plan.h"

// The learner's settings from the plan. workers.h and the command add rings, bells, seed, checkpoints and evaluation.
// The plan must outlive the result, which points into it.
struct farm_learner_config farm_run_learner_settings(const struct farm_run_plan *plan);

// Steps of all environments in which the parameters get one version.
double farm_run_steps_per_version(const struct farm_run_plan *plan);

// How long a process spins before it sleeps. shared: other processes use its CPU.
uint64_t farm_run_spin_ns(const struct farm_recipe *recipe, bool shared);

// The engine of a bridge's next process. If the previous one, begun at *start_ns (0: none), died within a second, auto
// becomes poll with a warning: some seccomp filters kill a process that uses io_uring instead of refusing. *start_ns
// becomes now.
const char *farm_run_next_engine(const char *engine, uint64_t *start_ns, const struct farm_run_caller *caller);

#endif
