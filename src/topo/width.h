// How many environments an actor steps, from the cost of a step. A pure function. It weighs three costs: each turn of
// an actor that shares its core with inference costs two context switches, which many environments share; rings larger
// than the cache cost the time of writing every observation to memory; and environments whose state (assumed as large
// as their observation) exceeds their part of the cache cost the time of reading it from memory.
#ifndef FARM_TOPO_WIDTH_H
#define FARM_TOPO_WIDTH_H

#include <stdint.h>

struct farm_width_request {
    double step_ns;       // one environment's step in the bare loop
    double turn_ns;       // what a turn costs beyond the context switches
    uint64_t step_bytes;  // written to the ring by a step of one environment
    uint32_t steps;       // C of the ring
    uint32_t lanes;       // the actor's: the result is a multiple of it
    uint64_t cache_bytes; // this actor's part of the last-level cache; 0: no such cache
};

enum { FARM_WIDTH_ENVS_MIN = 16, FARM_WIDTH_ENVS_MAX = 8192 };

// Environments of one actor, all lanes: the least power of two times ENVS_MIN within 2 % of the best time per step.
uint32_t farm_width_choose(const struct farm_width_request *request);

// The expected time of a step with `envs` environments: an estimate, only good for comparing widths of one environment.
double farm_width_step_ns(const struct farm_width_request *request, uint32_t envs);

#endif
