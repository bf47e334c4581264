// The replay of a run, for its plan: the counts that its recipe leaves open, and the memory that it takes.
#ifndef FARM_RUN_REPLAY_H
#define FARM_RUN_REPLAY_H

#include "algo/algo.h"

// What no replay permits, before anything is planned. FARM_E_USAGE with the key to change.
enum farm_status farm_run_replay_check(const struct farm_recipe *recipe, const struct farm_algo *algo,
                                       struct farm_error *err);

// Chooses batch, `replay` and its start, and ring_steps, for this number of environments. If both `replay` and
// ring_steps are set, the stronger layer decides.
void farm_run_replay_choose(struct farm_recipe *recipe, const struct farm_algo_plan *passes, int64_t environments);

// Whether start and updates fit the replay, once chosen. FARM_E_USAGE.
enum farm_status farm_run_replay_check_counts(const struct farm_recipe *recipe, const struct farm_algo_plan *passes,
                                              int64_t environments, struct farm_error *err);

// Memory of the rings of all environments, of the learner's checked copies of what they hold, and of its index.
struct farm_run_replay_bytes {
    uint64_t rings, copies, index;
};
struct farm_run_replay_bytes farm_run_replay_bytes(const struct farm_ring_spec *spec,
                                                   const struct farm_ring_layout *layout, int64_t environments);

// Whether the replay fits machine and control group, with `others` bytes for the rest of the run. If not, and if
// neither a flag nor a file sets it, lowers it, with ring_steps and layout, to what fits. FARM_E_LIMIT names what
// would.
enum farm_status farm_run_replay_fit(struct farm_recipe *recipe, int64_t environments, uint64_t others,
                                     struct farm_ring_spec *spec, struct farm_ring_layout *layout,
                                     struct farm_error *err);

#endif
