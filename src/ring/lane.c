// See lane.h: the parts that are not on the busy path of every step, and reading frames backwards.
#include "ring/lane.h"

#include <string.h>

void farm_lane_actor_take_over(struct farm_lane *lane) {
    lane->produced_local = farm_load_acquire(&lane->up->produced);
    lane->consumed_seen = farm_load_acquire(&lane->down->consumed);
    farm_store_relaxed(&lane->up_control->asleep, 0); // it may have died in its sleep, and this one is awake
    farm_store_release(&lane->up_control->doorbell, farm_load_relaxed(&lane->up_control->doorbell) + 1);
}

bool farm_lane_sound(const struct farm_lane *lane) {
    // `acted` on both sides of `produced`, and `consumed` behind it, for all may grow meanwhile (and `consumed` beyond
    // what `produced` was).
    const uint64_t least = farm_lane_acted(lane), produced = farm_lane_produced(lane),
                   most = farm_lane_acted(lane) + farm_lane_ahead_max(lane);
    return produced >= least && produced <= most && (int64_t)(produced - farm_lane_consumed(lane)) <= lane->steps;
}

bool farm_lane_restore(struct farm_lane *lane) {
    // `produced` cannot grow, for its writer is dead; `consumed` before `acted`, for both grow, and it is never beyond.
    const uint64_t produced = farm_lane_produced(lane), consumed = farm_lane_consumed(lane),
                   acted = farm_lane_acted(lane);
    const uint64_t held = acted - consumed, left = held < lane->steps ? lane->steps - held : 0,
                   most = farm_lane_ahead_max(lane);
    const bool room = left > 0; // else the learner answers nothing here
    if (produced - acted <= (most < left ? most : left)) return false;
    if (room) {
        memset(farm_lane_flags(lane, acted), FARM_STEP_FIRST, lane->width);
        memset(farm_lane_reward(lane, acted), 0, lane->width * sizeof *lane->reward);
    }
    farm_store_release(&lane->up->produced, acted + room);
    return true;
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
