// See width.h. The two constants were measured on 2 cores of a virtual Zen 3; only their order of magnitude matters.
#include "topo/width.h"

static const double TURN_NS = 15000;          // from actor to inference and back on one core: wake-ups, switches
static const double MEMORY_BYTES_PER_NS = 20; // one core storing to memory past the caches, or reading from it
enum { RING_SHARE = 2, STATE_SHARE = 4 };     // a ring may fill 1/2 of its part of the cache, all states 1/4

double farm_width_step_ns(const struct farm_width_request *request, uint32_t envs) {
    const uint64_t state_bytes = request->step_bytes * envs, ring_bytes = state_bytes * request->steps;
    const double memory_ns = (double)request->step_bytes / MEMORY_BYTES_PER_NS;
    double ns = request->step_ns + (TURN_NS + request->turn_ns) / envs;
    if (ring_bytes * RING_SHARE > request->cache_bytes) ns += memory_ns;
    if (state_bytes * STATE_SHARE > request->cache_bytes) ns += memory_ns;
    return ns;
}

uint32_t farm_width_choose(const struct farm_width_request *request) {
    double best = farm_width_step_ns(request, FARM_WIDTH_ENVS_MIN);
    for (uint32_t envs = FARM_WIDTH_ENVS_MIN; envs <= FARM_WIDTH_ENVS_MAX; envs *= 2) {
        const double ns = farm_width_step_ns(request, envs);
        if (ns < best) best = ns;
    }
    uint32_t envs = FARM_WIDTH_ENVS_MIN;
    while (envs < FARM_WIDTH_ENVS_MAX && farm_width_step_ns(request, envs) > 1.02 * best) envs *= 2;
    return (envs + request->lanes - 1) / request->lanes * request->lanes;
}
