// Shapes of rings that several tests and the fuzzers' seeds use.
#ifndef FARM_TESTS_SUPPORT_SPECS_H
#define FARM_TESTS_SUPPORT_SPECS_H

#include "ring/spec.h"

// One observation field of 8 bytes (i32[2]) and a discrete action of 5.
static inline struct farm_ring_spec spec_of(uint32_t lanes, uint32_t width, uint32_t steps) {
    return farm_ring_spec_plain(lanes, width, steps, FARM_I32, 2, 5);
}

// Every kind of observation field, and a multi-discrete action.
static inline struct farm_ring_spec spec_rich(uint32_t lanes, uint32_t width, uint32_t steps) {
    struct farm_ring_spec spec = {
        .lanes = lanes,
        .width = width,
        .steps = steps,
        .env = {.obs_count = 3,
                .frames_per_step = 4,
                .obs = {{.name = "image", .dtype = FARM_U8, .rank = 3, .dims = {7, 5, 3}},
                        {.name = "inventory", .dtype = FARM_I32, .rank = 1, .dims = {11}},
                        {.name = "joints", .dtype = FARM_F32, .rank = 2, .dims = {3, 3}}},
                .action = {.kind = FARM_ACTION_MULTI_DISCRETE, .dims = 3, .sizes = {2, 3, 5}}},
    };
    farm_ring_spec_answers(&spec);
    return spec;
}

#endif
