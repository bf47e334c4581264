// Random actions for a lane's step, in whole rows. The bare loop, the responder of `farm fps` and `farm doctor` draw
// from it, so that drawing costs each the same. Memory only. Not the actions of a policy; the sequence may change
// between versions.
#ifndef FARM_ACTOR_RANDOM_ACTIONS_H
#define FARM_ACTOR_RANDOM_ACTIONS_H

#include <farm/env.h>

struct farm_random_actions {
    uint32_t kind, dims;
    uint32_t sizes[FARM_ACTION_DIMS_MAX];
    float low[FARM_ACTION_DIMS_MAX], span[FARM_ACTION_DIMS_MAX]; // continuous: uniform in [low, low + span)
    uint64_t state;
};

// A continuous bound beyond 1e6 counts as open: values then span 2 from the other bound, or [-1, 1].
void farm_random_actions_start(const struct farm_action_spec *spec, uint64_t seed, struct farm_random_actions *source);

// Writes the actions of `width` environments, [width][dims] as in farm/env.h: i32, or continuous f32. About a
// nanosecond each.
void farm_random_actions_draw(struct farm_random_actions *source, uint32_t width, void *actions);

// With action masks (kernels/head.h): replaces each forbidden choice by the next permitted one, the first after the
// last. masks: [width][sum of sizes], of the steps that the actions answer.
void farm_random_actions_permit(const struct farm_random_actions *source, uint32_t width, const uint8_t *masks,
                                void *actions);

#endif
