// A group: the W environments of one lane, stepped together. Runs in the actor process, one thread; the lane's memory
// orders are those of ring/lane.h, the caller waits and publishes.
//
// Each environment is watched: the bytes around what it may write, which belong to its neighbours and which nobody else
// writes meanwhile, must be the same after its step (where the first field is smaller than 512 bytes, in one turn of
// eight). What it answers must be what farm/env.h says. What it does to the rest of the process is not guarded here:
// its writes elsewhere hit this actor alone.
#ifndef FARM_ACTOR_GROUP_H
#define FARM_ACTOR_GROUP_H

#include <farm/env.h>
#include <stdbool.h>

#include "actor/config.h"
#include "actor/crash.h"
#include "base/status.h"
#include "ring/lane.h"

// Whether step() may return this.
static inline bool farm_group_answer_valid(uint32_t answer) {
    const uint32_t ends = FARM_STEP_TERMINATED | FARM_STEP_TRUNCATED;
    return !answer || (!(answer & ~(ends | FARM_STEP_GAME_END)) && (answer & ends));
}

struct farm_group {
    const struct farm_env_api *api;
    const struct farm_env_spec *spec; // the lane's
    void **envs;                      // [width]
    bool *ended;                      // [width]: the next step starts an episode
    uint32_t actor, lane, width;      // lane: number within the actor
    enum farm_bad_values bad_values;
    struct farm_call *call; // where the present call is noted
    bool warned;            // of senseless numbers
    bool obs_far;           // observations may have been stored past the caches: farm/obs.h
};

// Makes the environments of lane number `lane` of this actor. Environment e of lane l draws from farm_seed_derive(seed,
// actor * lanes + l, e, generation). `api` is the actor's environment, `spec` what its lanes were made for; both, and
// config, outlive the group. FARM_E_INVALID with the environment's own sentence.
enum farm_status farm_group_make(const struct farm_actor_config *config, const struct farm_env_api *api,
                                 const struct farm_ring_spec *ring, uint32_t lane, uint64_t generation,
                                 struct farm_call *call, struct farm_group *group, struct farm_error *err);

// Safe on a zeroed or partly made group.
void farm_group_free(struct farm_group *group);

// Writes step `next` of the lane, unpublished: each environment that is new or whose last step was LAST starts an
// episode, the others take the action answered to step next-1 (continuous ones clipped to the spec's bounds, NaN to the
// lower one). The caller has made sure that this answer is there and that the slot may be overwritten. FARM_E_INVALID
// where an environment answers something that is not in farm/env.h, writes beside its observation, or where
// config->bad_values makes an error of senseless numbers: the sentence names environment, field, lane and number.
enum farm_status farm_group_step(struct farm_group *group, struct farm_lane *lane, struct farm_error *err);

#endif
