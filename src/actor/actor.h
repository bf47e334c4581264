// The actor process: steps the environments of its lanes, one group while the others wait for their actions, and writes
// each observation once, into the lane. Central inference: no model here. Runs as a forked child of the supervisor.
#ifndef FARM_ACTOR_ACTOR_H
#define FARM_ACTOR_ACTOR_H

#include <farm/env.h>

#include "base/status.h"
#include "ring/wait.h"

struct farm_actor_config {
    uint32_t actor;     // number; lane ids for seeds are actor * lanes + lane
    int up_fd, down_fd; // owned
    int learner_eventfd;
    const struct farm_env_api *api;
    const struct farm_env_option *options;
    size_t option_count;
    uint64_t seed; // of the run
    uint64_t spin_ns;
};

// Attaches, takes over the lanes (generation 0: finds them empty), steps until down.stop is set, SIGTERM comes, or the
// environment fails. Returns the exit status; *err says why where it is not 0.
int farm_actor_run(const struct farm_actor_config *config, struct farm_error *err);

// Native environments, by index until NULL; find by full name ("native/catch").
const struct farm_env_api *farm_native_env_at(size_t i);
const struct farm_env_api *farm_native_env_find(const char *name);

#endif
