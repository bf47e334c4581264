// The actor process: steps the environments of its lanes, one group while the others wait for their actions, and writes
// each observation once, into the lane. There is no model here: the learner answers (CENTRAL), or `answer` does
// (LOCAL). Runs as a forked child of the supervisor.
#ifndef FARM_ACTOR_ACTOR_H
#define FARM_ACTOR_ACTOR_H

#include "actor/config.h"
#include "base/status.h"
#include "ring/wait.h"

// Exit status of an actor whose environment broke its contract (answers, writes beside its observation, senseless
// numbers under FARM_BAD_FAIL): it would again. Python's actors end with it too (actor.py).
enum { FARM_ACTOR_ENV_BROKEN = 3 };

// Attaches, takes over the lanes (generation 0: finds them empty), opens the plug-in where the environment is one's,
// steps until down.stop is set, SIGTERM comes, or the environment fails. Returns the exit status, 0, 1 or
// FARM_ACTOR_ENV_BROKEN; *err says why where it is not 0. A signal by which the environment dies (SIGSEGV, SIGBUS,
// SIGFPE, SIGILL, SIGABRT) is told on stderr, with environment, lane and number, before it takes its course.
int farm_actor_run(const struct farm_actor_config *config, struct farm_error *err);

#endif
