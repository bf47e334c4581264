// The replay of a run: the counts that its recipe leaves open, the memory that it takes, and what the learner needs to
// know. Runs in the supervisor, for the plan.
#ifndef FARM_RUN_REPLAY_H
#define FARM_RUN_REPLAY_H

#include "run/plan.h"

// What no replay permits, before anything is planned. FARM_E_USAGE with the key to change.
enum farm_status farm_run_replay_check(const struct farm_recipe *recipe, const struct farm_algo *algo,
                                       struct farm_error *err);

// Chooses batch, `replay` and its start, and ring_steps, for this number of environments. Of `replay` and ring_steps
// the one of the stronger layer decides.
void farm_run_replay_choose(struct farm_recipe *recipe, const struct farm_algo_plan *passes, int64_t environments);

// Whether start and updates fit the replay. FARM_E_USAGE.
enum farm_status farm_run_replay_check_counts(const struct farm_run_plan *plan, struct farm_error *err);

// Whether the plan's replay fits machine and control group, with all else that the run takes. If not, and if neither a
// flag nor a file sets it, lowers it, with ring_steps and layout, to what fits. FARM_E_LIMIT names what would fit.
enum farm_status farm_run_replay_fit(struct farm_run_plan *plan, struct farm_error *err);

// Memory of the learner beside the rings: checked copies, and the index of windows.
uint64_t farm_run_replay_copied_bytes(const struct farm_run_plan *plan);
uint64_t farm_run_replay_index_bytes(const struct farm_run_plan *plan);

struct farm_replay_config farm_run_replay_config(const struct farm_run_plan *plan);

// Steps of all environments in which the parameters get one version.
double farm_run_steps_per_version(const struct farm_run_plan *plan);

// Of a head of action-values: the schedule of the training, or eval_epsilon in an evaluation.
struct farm_sampler farm_run_exploration(const struct farm_run_plan *plan);

#endif
