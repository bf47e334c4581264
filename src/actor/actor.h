// The actor process: steps the environments of its lanes, one group while the others wait for their actions, and writes
// each observation once, into the lane. It has no model: the learner answers (CENTRAL), or config->answer does (LOCAL).
// Runs as a forked child of the supervisor.
#ifndef FARM_ACTOR_ACTOR_H
#define FARM_ACTOR_ACTOR_H

#include "actor/config.h"
#include "base/status.h"
#include "ring/wait.h"

// Result of an actor whose environment broke its contract (farm_group_step failed) or lacks a number (FARM_E_USAGE of
// farm_group_make): a new actor would fail again. The process then dies of SIGRTMAX (supervisor/worker.h), as actors in
// Python do (actor.py).
enum { FARM_ACTOR_ENV_BROKEN = 3 };

// Attaches to the ring, takes over its lanes (generation 0: they are empty), opens the plug-in if there is one, and
// steps until down.stop, SIGTERM, or a failure of the environment. Returns the exit status: 0, 1 or
// FARM_ACTOR_ENV_BROKEN; *err has the reason if it is not 0. A crash of the environment is reported on stderr
// (crash.c).
int farm_actor_run(const struct farm_actor_config *config, struct farm_error *err);

#endif
