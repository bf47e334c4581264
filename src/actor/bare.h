// The bare simulator: the same environments under the same kind of actions as in a lane, stepped by the best loop that
// we can write, with nothing of the farm around it: fixed buffers, no flags, no ring, nobody to wait for. What `farm
// fps` measures the farm against. Runs in a process of its own, one thread; shares nothing.
#ifndef FARM_ACTOR_BARE_H
#define FARM_ACTOR_BARE_H

#include "actor/config.h"
#include "actor/random_actions.h"
#include "envs/plugin.h"

struct farm_bare {
    const struct farm_env_api *api;
    struct farm_plugin plugin; // zeroed for native environments
    uint32_t width, obs_count;
    uint32_t action_bytes;
    void **envs;    // [width]
    void **obs;     // [width][obs_count]: into `memory`
    void *memory;   // observations, then actions
    void *actions;  // [width][action_bytes]
    uint8_t *ended; // [width]: to be reset instead of stepped
    struct farm_random_actions source;
};

// Makes `width` environments as an actor's lane has them: config's api or plug-in, options and seed (its descriptors
// are not looked at). Errors: farm_plugin_open's and farm_plugin_spec's; FARM_E_INVALID with the environment's own
// sentence; FARM_E_LIMIT. *bare is to be closed in any case.
enum farm_status farm_bare_open(const struct farm_actor_config *config, uint32_t width, struct farm_bare *bare,
                                struct farm_error *err);

// Steps all environments in turn until so much time has passed, resetting those whose episode ends. Returns the
// transitions (resets are not counted), and the time they took.
uint64_t farm_bare_run(struct farm_bare *bare, uint64_t time_ns, uint64_t *taken_ns);

void farm_bare_close(struct farm_bare *bare);

#endif
