// The bare simulator: the environments of a lane under random actions, stepped by the best loop that we can write,
// without the farm: fixed buffers, no flags, no ring, no waiting. `farm fps` measures the farm against it. Runs in a
// child process, one thread; shares nothing.
#ifndef FARM_ACTOR_BARE_H
#define FARM_ACTOR_BARE_H

#include "actor/config.h"
#include "actor/random_actions.h"
#include "envs/plugin.h"

struct farm_bare {
    const struct farm_env_api *api;
    struct farm_plugin plugin; // zeroed for native environments
    uint32_t width, obs_count, agents;
    uint32_t action_bytes;
    void **envs;   // [width]: environment e, of `agents` agents, has rows e to e + agents - 1, then comes the next
    void **obs;    // [width][obs_count]: into `memory`
    void *memory;  // observations, then actions
    void *actions; // [width][action_bytes]
    bool *ended;   // [2][width]: the next call is reset; the agent has left
    struct farm_random_actions source;
    int mask; // observation field of action masks (kernels/head.h), or -1
};

// Makes `width` environments as an actor's lane has them, from config's api or plug-in, options and seed. Errors: those
// of farm_plugin_open, farm_plugin_spec and farm_plugin_create; FARM_E_LIMIT. Close *bare in any case.
enum farm_status farm_bare_open(const struct farm_actor_config *config, uint32_t width, struct farm_bare *bare,
                                struct farm_error *err);

// Steps all environments in turn for that time, and resets those whose episode has ended. Returns the transitions
// (without resets); *taken_ns: the time they took.
uint64_t farm_bare_run(struct farm_bare *bare, uint64_t time_ns, uint64_t *taken_ns);

void farm_bare_close(struct farm_bare *bare);

#endif
