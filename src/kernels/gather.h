// What turns stored steps into the numbers that training and networks take: reward clipping and pixels as f32. Pure
// arithmetic; runs in whichever process infers or trains. Does not read lanes and does not stack frames: the caller
// hands it rows.
#ifndef FARM_KERNELS_GATHER_H
#define FARM_KERNELS_GATHER_H

#include <stdint.h>

#include "kernels/device.h"

// The reward clipped to [-limit, limit]; limit <= 0 leaves it as it is. A NaN stays one, so that it is noticed.
static inline FARM_HD float farm_reward_clip(float reward, float limit) {
    if (limit <= 0) return reward;
    return reward > limit ? limit : reward < -limit ? -limit : reward;
}

// A pixel as the network sees it: x / 255, in [0, 1].
static inline FARM_HD float farm_pixel_unit(uint8_t pixel) {
    return (float)pixel / 255.0f;
}

#endif
