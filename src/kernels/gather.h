// From stored steps to the numbers of training and networks: which steps follow one another, reward clipping and pixels
// as f32. Pure arithmetic, for every process that infers or trains. Does not read lanes nor stack frames.
#ifndef FARM_KERNELS_GATHER_H
#define FARM_KERNELS_GATHER_H

#include <farm/step.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/device.h"

// Whether step t leads to step t+1 within one episode: not after LAST(t), nor to a FIRST(t+1) without LAST(t) (an
// abandoned episode). The transition's reward and end lie in step t+1.
static inline FARM_HD bool farm_step_leads(unsigned flags, unsigned next_flags) {
    return !(flags & FARM_STEP_LAST) && !(next_flags & FARM_STEP_FIRST);
}

// The reward clipped to [-limit, limit]; limit <= 0: unchanged. NaN stays NaN.
static inline FARM_HD float farm_reward_clip(float reward, float limit) {
    if (limit <= 0) return reward;
    return reward > limit ? limit : reward < -limit ? -limit : reward;
}

// A pixel as the network sees it: x / 255, in [0, 1].
static inline FARM_HD float farm_pixel_unit(uint8_t pixel) {
    return (float)pixel / 255.0f;
}

#endif
