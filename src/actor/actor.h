// The actor process: steps the environments of its lanes, one group while the others wait for their actions, and writes
// each observation once, into the lane. Central inference: no model here. Runs as a forked child of the supervisor.
#ifndef FARM_ACTOR_ACTOR_H
#define FARM_ACTOR_ACTOR_H

#include <farm/env.h>

#include "base/status.h"
#include "ring/wait.h"

// What becomes of a reward or an f32 observation that base/number.h finds senseless.
enum farm_bad_values {
    FARM_BAD_COUNT, // written as it is, and not looked for here: the learner finds it, counts it, trains nothing on it
    FARM_BAD_FAIL,  // the actor ends with a sentence that names environment, field, lane and number
    FARM_BAD_RESET, // the episode is abandoned: the environment is reset at once, its first observation takes the
                    // step's place with FIRST, and up_control.abandoned counts one. A reset that answers with senseless
                    // numbers too ends the actor
};

struct farm_actor_config {
    uint32_t actor;     // number; lane ids for seeds are actor * lanes + lane
    int up_fd, down_fd; // owned
    int learner_eventfd;
    const struct farm_env_api *api;  // NULL: a plug-in's, which the actor opens itself
    const char *plugin, *plugin_env; // path, and name of the environment in it (NULL: its first)
    enum farm_bad_values bad_values;
    const struct farm_env_option *options;
    size_t option_count;
    uint64_t seed; // of the run
    bool obs_far;  // the rings outgrow the caches: environments get the hint FARM_ENV_OBS_FAR
    uint64_t spin_ns;
    bool rings_late; // shares its CPU with who answers: rings when no lane can go on, and then for all of them at once
    uint64_t nap_ns; // how long a sleep lasts at most, the answer to a SIGTERM that comes just before it; 0: 100 ms
};

// Exit status of an actor whose environment broke its contract (answers, writes beside its observation, senseless
// numbers under FARM_BAD_FAIL): it would again. Python's actors end with it too (actor.py).
enum { FARM_ACTOR_ENV_BROKEN = 3 };

// Attaches, takes over the lanes (generation 0: finds them empty), opens the plug-in where the environment is one's,
// steps until down.stop is set, SIGTERM comes, or the environment fails. Returns the exit status, 0, 1 or
// FARM_ACTOR_ENV_BROKEN; *err says why where it is not 0. A signal by which the environment dies (SIGSEGV, SIGBUS,
// SIGFPE, SIGILL, SIGABRT) is told on stderr, with environment, lane and number, before it takes its course.
int farm_actor_run(const struct farm_actor_config *config, struct farm_error *err);

// Native environments, by index until NULL; find by full name ("native/catch").
const struct farm_env_api *farm_native_env_at(size_t i);
const struct farm_env_api *farm_native_env_find(const char *name);

#endif
