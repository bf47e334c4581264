// A group: the W environments of one lane, stepped together. Runs in the actor process, one thread; the lane's memory
// orders are those of ring/lane.h, the caller waits and publishes.
#ifndef FARM_ACTOR_GROUP_H
#define FARM_ACTOR_GROUP_H

#include <farm/env.h>
#include <stdbool.h>

#include "actor/actor.h"
#include "base/status.h"
#include "ring/lane.h"

struct farm_group {
    const struct farm_env_api *api;
    void **envs; // [width]
    uint32_t width;
    bool fresh; // nothing stepped yet: the next step is FIRST for every environment
};

// Makes the lane's environments. Environment e of lane l draws from farm_seed_derive(seed, actor * lanes + l, e,
// generation). FARM_E_INVALID with the environment's own sentence.
enum farm_status farm_group_make(const struct farm_actor_config *config, uint32_t lane_id, uint64_t generation,
                                 uint32_t width, struct farm_group *group, struct farm_error *err);

// Safe on a zeroed or partly made group.
void farm_group_free(struct farm_group *group);

// Writes step `next` of the lane, unpublished: each environment that is fresh or whose last step was LAST starts an
// episode, the others take the action answered to step next-1. The caller has made sure that this answer is there and
// that the slot may be overwritten. FARM_E_INVALID where an environment answers something that is not in farm/env.h.
enum farm_status farm_group_step(struct farm_group *group, struct farm_lane *lane, struct farm_error *err);

#endif
