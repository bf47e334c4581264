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

void farm_lane_stack(const struct farm_lane *lane, unsigned field, uint64_t n, uint32_t env, unsigned stack,
                     const void **rows) {
    bool same_episode = true;
    for (unsigned back = 0; back < stack; back++) {
        if (back && same_episode)
            same_episode = n >= back && !(farm_lane_flags(lane, n - back + 1)[env] & FARM_STEP_FIRST);
        rows[stack - 1 - back] = same_episode ? farm_lane_obs(lane, field, n - back, env) : NULL;
    }
}
