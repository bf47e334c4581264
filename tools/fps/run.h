// The measurements of `farm fps`, of one setting each. A setting is a recipe as `farm train` takes it; a measurement
// makes the farm for it, runs it for a while and ends it. Runs in the supervisor's process with SIGINT, SIGTERM and
// SIGHUP blocked: a signal ends the present measurement, or the next one as it begins.
#ifndef FARM_TOOLS_FPS_RUN_H
#define FARM_TOOLS_FPS_RUN_H

#include "run/rate.h"
#include "tools/fps/placement.h"
#include "tools/fps/responder.h"

struct farm_fps_result {
    struct farm_fps_samples samples;
    uint32_t actors, lanes, width, steps, frames_per_step, agents;
    double cores;   // physical ones that the actors run on, at most as many as there are actors, or the quota
    uint32_t nodes; // NUMA nodes with memory
    bool pinned;
    uint64_t ring_bytes;                    // all actors'
    uint64_t checked_steps, rejected_steps; // a sample of all steps; of these, those with invalid values
    char ring_note[512];                    // placement of the first actor's ring (farm_segment_describe)
    bool interrupted;
};

// Measures the farm under random actions, and the bare simulator if turns->bare_s is not 0. *result is zeroed first.
enum farm_status farm_fps_measure(const struct farm_recipe *recipe, enum farm_fps_numa numa,
                                  const struct farm_fps_turns *turns, bool quiet, struct farm_fps_result *result,
                                  struct farm_error *err);

// Sets recipe->envs_per_actor by topo/width.h, from a short measurement in a child (Atari: a typical cost).
enum farm_status farm_fps_choose_width(struct farm_recipe *recipe, struct farm_error *err);

#endif
