// A group: the W environments of one lane, stepped together. Runs in the actor process, one thread. Memory orders are
// those of ring/lane.h; the caller waits and publishes.
//
// The group checks each environment. The bytes around the memory that it may write belong to its neighbours and must
// not change during its call; if the first field is smaller than 512 bytes, this is checked in one step of eight.
// Return values must be valid. Writes to other memory of the process are not detected: they affect this actor alone.
#ifndef FARM_ACTOR_GROUP_H
#define FARM_ACTOR_GROUP_H

#include <farm/env.h>
#include <stdbool.h>

#include "actor/config.h"
#include "base/status.h"
#include "ring/lane.h"

// ---- crashes (crash.c) ----

enum farm_env_call {
    FARM_CALL_NONE,
    FARM_CALL_LOAD,
    FARM_CALL_CREATE,
    FARM_CALL_RESET,
    FARM_CALL_STEP,
    FARM_CALL_RENDER
};

// The present call. The actor writes it, the handler reads it. name: of the environment.
struct farm_call {
    const char *volatile name;
    volatile uint32_t actor, lane, env, call; // call: enum farm_env_call
    uint64_t *heartbeat;                      // the ring's, which counts calls that have returned; NULL: not yet
};

// Catches SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT on an alternate stack, except signals that are caught already (by
// a sanitizer), and exit(). Returns the process's one record; never NULL.
struct farm_call *farm_crash_watch(void);

// ---- groups ----

// Whether step() may return this.
static inline bool farm_group_answer_valid(uint32_t answer) {
    const uint32_t ends = FARM_STEP_TERMINATED | FARM_STEP_TRUNCATED;
    return !answer || (!(answer & ~(ends | FARM_STEP_GAME_END)) && (answer & ends));
}

struct farm_group {
    const struct farm_env_api *api;
    const struct farm_env_spec *spec; // the lane's
    const struct farm_actor_config *config;
    const struct farm_ring_spec *ring;
    void **envs;                // [env_count]
    bool *ended;                // [env_count][agents]: the agent has left; if all have, the next step starts an episode
    uint32_t lane, width;       // lane: number within the actor
    uint32_t agents, env_count; // agents of an environment, opponents too
    struct farm_lane *opponents; // their rows of each environment; the caller sets and answers it
    uint8_t *scratch;            // with opponents: an environment's observations
    double *numbers;             // [width][number_count] that resets have set, else NAN; NULL: no such resets
    enum farm_bad_values bad_values;
    int mask;               // observation field of action masks (kernels/head.h), or -1
    struct farm_call *call; // records the present call
    bool warned;            // about senseless numbers
    bool obs_far;           // observations may be stored past the caches: farm/obs.h
};

// Makes the environments of lane number `lane` of this actor. Environment e of lane l has the seed
// farm_seed_derive(seed, actor * lanes + l, e, generation). config, api and ring must outlive the group. FARM_E_INVALID
// with the environment's message.
enum farm_status farm_group_make(const struct farm_actor_config *config, const struct farm_env_api *api,
                                 const struct farm_ring_spec *ring, uint32_t lane, uint64_t generation,
                                 struct farm_call *call, struct farm_group *group, struct farm_error *err);

// Safe on a zeroed or partly made group.
void farm_group_free(struct farm_group *group);

// Writes step `next` of the lane, unpublished: an environment that is new or whose last step was LAST starts an
// episode, the others take the action answered to step next-1 (continuous ones clipped to the spec's bounds, NaN to the
// lower bound). With same-step resets an episode's end starts the next one at once (farm/step.h). The answer must exist
// and the slot be free. FARM_E_INVALID: an action that the environment does not have, or it returns an invalid value,
// writes outside its observation, or config->bad_values makes an error of senseless numbers; the message names
// environment, field, lane and number.
enum farm_status farm_group_step(struct farm_group *group, struct farm_lane *lane, struct farm_error *err);

// ---- resets on request (control.c), for farm_group_make and farm_group_step ----

// FARM_E_USAGE with the environment's message: a number's name is no option's.
enum farm_status farm_control_open(struct farm_group *group, struct farm_error *err);

// Lets those that the newest answer resets start an episode; a seed or a changed number makes such an environment anew.
// The first of its agents that is reset decides for all of them.
enum farm_status farm_control_obey(struct farm_group *group, const struct farm_lane *lane, struct farm_error *err);

#endif
