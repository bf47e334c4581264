// The learner process: inference for every lane, training from windows of the same lanes, checkpoints. One process with
// one thread of inference a shard (a GPU, or an inference thread on CPUs, with its actors) and one of training for all.
// Forked by the supervisor; may die and be started again on living lanes. Talks to the rest through the rings, the
// stats (figures for the supervisor) and checkpoint files; prints nothing but diagnostics.
#ifndef FARM_LEARNER_LEARNER_H
#define FARM_LEARNER_LEARNER_H

#include "learner/config.h"

// The body of the learner process. Ends on SIGTERM (writes a checkpoint), when frames_target or episodes_target is
// reached (stats.done = 1), or on an error. Returns the exit status; *err says why where it is not 0.
int farm_learner_run(const struct farm_learner_config *config, struct farm_error *err);

#endif
