// What `scale` N makes of a recipe: environments grow N times, the algorithm's keys by powers of it (struct
// farm_algo_scale). `seconds`, and keys that flags set, stay. Pure functions, for the plan and `farm topo`.
#ifndef FARM_RUN_SCALE_H
#define FARM_RUN_SCALE_H

#include "config/recipe.h"

enum { FARM_ENVS_PER_ACTOR = 16 }; // by default: enough to fill a batch, few enough for a small cache

// Applies `scale` to a settled recipe, unless it has been (`scaled`), and keeps N in both keys. auto: the least with
// which all of `actors` actors (times the agents of an environment) get equal parts; 1 if deterministic, or if a flag
// or nothing sets the total. FARM_E_USAGE: no such scale, a second one, or a key leaves its range.
enum farm_status farm_run_scale_apply(struct farm_recipe *recipe, int64_t actors, struct farm_error *err);

// "scale 4: 128 environments, minibatch 256, lr 0.001" into text. Returns text.
char *farm_run_scale_format(const struct farm_recipe *recipe, int64_t environments, char *text, size_t bytes);

// envs_total as envs_per_actor: as many actors as have equal parts, of at most `planned`, or the requested ones, whose
// parts are rounded up, to whole environments of `agents` agents. expect: actors of other machines, which have parts
// too.
void farm_run_scale_divide(struct farm_recipe *recipe, int64_t expect, int64_t planned, int64_t agents);

#endif
