// Random actions for a lane's step, in whole rows: what the bare loop and the stand-in learner of `farm fps` draw
// alike, so that drawing costs both the same. Runs in either; memory only. Not the actions of a policy, and not a
// promise to give the same ones for ever.
#ifndef FARM_ACTOR_RANDOM_ACTIONS_H
#define FARM_ACTOR_RANDOM_ACTIONS_H

#include <farm/env.h>

struct farm_random_actions {
    uint32_t kind, dims;
    uint32_t sizes[FARM_ACTION_DIMS_MAX];
    float low[FARM_ACTION_DIMS_MAX], span[FARM_ACTION_DIMS_MAX]; // continuous: uniform in [low, low + span)
    uint64_t state;
};

// Continuous ranges that are not finite, or too wide to be meant, are drawn from [-1, 1].
void farm_random_actions_start(const struct farm_action_spec *spec, uint64_t seed, struct farm_random_actions *source);

// The actions of `width` environments, [width][dims] as farm/env.h says: i32, continuous f32. About a nanosecond each.
void farm_random_actions_draw(struct farm_random_actions *source, uint32_t width, void *actions);

#endif
