// The plug-in of ocean_spring.h.
#include <farm/ocean.h>

#include "ocean_spring.h"

static void describe(Spring *env, struct farm_ocean_setup *setup) {
    env->stiffness = (float)farm_ocean_real(setup, "stiffness", 1, 0, 10);
    farm_ocean_observation(setup, FARM_F32, 1, (uint32_t[]){3});
    farm_ocean_continuous(setup, 2, 0, 1);
}

FARM_OCEAN(Spring, "ocean/spring", "bring a weight on a spring to rest; options: stiffness (1)", describe, init,
           c_close, FARM_OCEAN_DIRECT);
