// What `farm fps` is put together from: measurements of one setting each. A setting is a recipe, as `farm train` takes
// it; a measurement makes the farm for it, runs it for a while and takes it down again. Runs in the supervisor's
// process, which has SIGINT, SIGTERM and SIGHUP blocked all the while: a signal ends the measurement that runs, or the
// next one as it begins.
#ifndef FARM_TOOLS_FPS_RUN_H
#define FARM_TOOLS_FPS_RUN_H

#include "tools/fps/responder.h"

// Where the rings lie, and the actors' own memory with them.
enum farm_fps_numa {
    FARM_FPS_NUMA_BIND,       // on the node of the actor's CPU, as farm train has them
    FARM_FPS_NUMA_INTERLEAVE, // page by page over all nodes
    FARM_FPS_NUMA_REMOTE,     // on the node farthest from the actor's CPU
    FARM_FPS_NUMA_OFF,        // wherever the kernel puts them
};
enum { FARM_FPS_NUMAS = 4 };
const char *farm_fps_numa_name(enum farm_fps_numa numa);
bool farm_fps_numa_find(const char *name, enum farm_fps_numa *numa);

struct farm_fps_result {
    struct farm_fps_samples samples;
    uint32_t actors, lanes, width, steps, frames_per_step;
    double cores;   // physical ones that the actors run on, at most as many as there are actors, or the quota
    uint32_t nodes; // NUMA nodes with memory
    bool pinned;
    uint64_t ring_bytes; // of all actors
    char ring_note[512]; // where the first actor's ring lies, in the segment's own words
    bool interrupted;
};

// The farm under random actions, with the bare simulator where turns->bare_s is not 0. *result is zeroed first.
enum farm_status farm_fps_measure(const struct farm_recipe *recipe, enum farm_fps_numa numa,
                                  const struct farm_fps_turns *turns, bool quiet, struct farm_fps_result *result,
                                  struct farm_error *err);

// The farm with a network that answers, and trains or not. Rates are of the last two thirds of `seconds`.
struct farm_fps_rung {
    double agent_steps_per_s;                    // NAN: not measured
    double actor_wait_share, learner_wait_share; // report/metrics.h
    uint32_t actors, lanes, width;
    bool interrupted;
};
enum farm_status farm_fps_learn(const struct farm_recipe *recipe, bool trains, double seconds,
                                struct farm_fps_rung *rung, struct farm_error *err);

// Sets recipe->envs_per_actor by topo/width.h: C environments are measured for a moment, in a process of its own; a
// Python one is taken for as dear as it usually is.
enum farm_status farm_fps_choose_width(struct farm_recipe *recipe, struct farm_error *err);

#endif
