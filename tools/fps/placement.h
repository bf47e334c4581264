// Where the rings of `farm fps` lie, and with them the actors' own memory: --numa and --numa-ab. Runs in the
// supervisor's process, between farm_run_make and farm_run_build.
#ifndef FARM_TOOLS_FPS_PLACEMENT_H
#define FARM_TOOLS_FPS_PLACEMENT_H

#include <stdbool.h>

#include "run/plan.h"

enum farm_fps_numa {
    FARM_FPS_NUMA_BIND,       // on the node of the actor's CPU, as in farm train
    FARM_FPS_NUMA_INTERLEAVE, // page by page over all nodes
    FARM_FPS_NUMA_REMOTE,     // on the node farthest from the actor's CPU
    FARM_FPS_NUMA_OFF,        // the kernel chooses
    FARM_FPS_NUMAS
};
extern const char *const farm_fps_numa_names[FARM_FPS_NUMAS];
bool farm_fps_numa_find(const char *name, enum farm_fps_numa *numa);

// Sets the memory nodes of the plan's actors.
void farm_fps_place(const struct farm_run_plan *plan, enum farm_fps_numa numa);
// INTERLEAVE: the policy for pages that this process touches first; reset by `on` false. A refusal is a warning.
void farm_fps_interleave(const struct farm_machine *machine, bool on);

#endif
