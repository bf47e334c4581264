// See lane.h: the parts that are not on the busy path of every step, and reading frames backwards.
#include "ring/lane.h"

void farm_lane_actor_take_over(struct farm_lane *lane) {
    lane->produced_local = farm_load_acquire(&lane->up->produced);
    lane->consumed_seen = farm_load_acquire(&lane->down->consumed);
    farm_store_relaxed(&lane->up_control->asleep, 0); // it may have died in its sleep, and this one is awake
    farm_store_release(&lane->up_control->doorbell, farm_load_relaxed(&lane->up_control->doorbell) + 1);
}

// How many frames before step n belong to its episode, at most `most`.
static unsigned frames_back(const struct farm_lane *lane, uint64_t n, uint32_t env, unsigned most) {
    for (unsigned k = 0; k < most; k++)
        if (n < k + 1 || farm_lane_flags(lane, n - k)[env] & FARM_STEP_FIRST) return k;
    return most;
}

const void *farm_lane_frame(const struct farm_lane *lane, unsigned field, uint64_t n, uint32_t env, unsigned back) {
    return frames_back(lane, n, env, back) == back ? farm_lane_obs(lane, field, n - back, env) : NULL;
}

void farm_lane_stack(const struct farm_lane *lane, unsigned field, uint64_t n, uint32_t env, unsigned stack,
                     const void **rows) {
    unsigned back = frames_back(lane, n, env, stack - 1);
    for (unsigned k = 0; k < stack; k++)
        rows[stack - 1 - k] = k <= back ? farm_lane_obs(lane, field, n - k, env) : NULL;
}
