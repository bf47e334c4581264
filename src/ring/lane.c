// See lane.h: take-over, checks of counters, and stacks of frames.
#include "ring/lane.h"

#include <string.h>

void farm_lane_actor_take_over(struct farm_lane *lane) {
    lane->produced_local = farm_load_acquire(&lane->up->produced);
    lane->consumed_seen = farm_load_acquire(&lane->down->consumed);
    farm_store_relaxed(&lane->up_control->asleep, 0); // the dead actor may have slept
    farm_store_release(&lane->up_control->doorbell, farm_load_relaxed(&lane->up_control->doorbell) + 1);
}

bool farm_lane_sound(const struct farm_lane *lane) {
    // All counters may grow meanwhile: `acted` is loaded before and after `produced`, `consumed` last.
    const uint64_t least = farm_lane_acted(lane), produced = farm_lane_produced(lane),
                   most = farm_lane_acted(lane) + farm_lane_ahead_max(lane);
    return produced >= least && produced <= most && (int64_t)(produced - farm_lane_consumed(lane)) <= lane->steps;
}

bool farm_lane_restore(struct farm_lane *lane) {
    // The writer of `produced` is dead. The other two grow: `consumed` first, which never passes `acted`.
    const uint64_t produced = farm_lane_produced(lane), consumed = farm_lane_consumed(lane),
                   acted = farm_lane_acted(lane);
    const uint64_t held = acted - consumed, left = held < lane->steps ? lane->steps - held : 0,
                   most = farm_lane_ahead_max(lane);
    const bool room = left > 0; // else the learner would never answer the step
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
