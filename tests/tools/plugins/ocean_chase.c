// The plug-in of ocean_chase.h. -DDIRECT: without the buffer that it needs.
#include <farm/ocean.h>

#include "ocean_chase.h"

#ifndef DIRECT
#define DIRECT 0
#endif

static void describe(Chase *env, struct farm_ocean_setup *setup) {
    env->cells = farm_ocean_int(setup, "cells", 9, 3, 1000);
    farm_ocean_observation(setup, FARM_U8, 1, (uint32_t[]){(uint32_t)env->cells});
    farm_ocean_discrete(setup, 1, (uint32_t[]){CHASE_ACTIONS});
}

FARM_OCEAN(Chase, "ocean/chase", "catch the target on a ring; options: cells (9)", describe, FARM_OCEAN_NOTHING,
           FARM_OCEAN_NOTHING, DIRECT ? FARM_OCEAN_DIRECT : FARM_OCEAN_KEEP);
