// What the words of a recipe mean to the processes of a run. Pure functions.
#ifndef FARM_RUN_SETTINGS_H
#define FARM_RUN_SETTINGS_H

#include "actor/actor.h"
#include "run/plan.h"

// What the plan says of the learner. Rings, bells, seed, checkpoints and evaluation are filled in by workers.h and the
// command. The plan must outlive the result, which points into it.
struct farm_learner_config farm_run_learner_settings(const struct farm_run_plan *plan);

// How long a process spins before it sleeps; shared: it has its CPU not for itself.
uint64_t farm_run_spin_ns(const struct farm_recipe *recipe, bool shared);

enum farm_bad_values farm_run_bad_values(const struct farm_recipe *recipe);

#endif
