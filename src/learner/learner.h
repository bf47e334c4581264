// The learner process: inference for every lane, training on windows of the same lanes, checkpoints. One inference
// thread a shard and one training thread for all. The supervisor forks it; it may die and start again on living lanes.
// It talks to other processes through rings, stats and checkpoint files, and prints diagnostics only.
#ifndef FARM_LEARNER_LEARNER_H
#define FARM_LEARNER_LEARNER_H

#include "learner/config.h"

// The body of the learner process. Ends on SIGTERM (writes a checkpoint), when target.frames is
// reached (stats.done = 1), or on an error. Returns the exit status; not 0: *err holds the reason.
int farm_learner_run(const struct farm_learner_config *config, struct farm_error *err);

#endif
