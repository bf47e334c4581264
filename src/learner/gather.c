// See gather.h.
#include "learner/gather.h"

#include <assert.h>
#include <string.h>

uint32_t farm_columns_list(const struct farm_window *windows, uint32_t count, struct farm_column *columns,
                           uint32_t most) {
    uint32_t listed = 0;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t e = 0; e < windows[i].env_count; e++) {
            assert(listed < most);
            columns[listed++] = (struct farm_column){.lane = windows[i].lane,
                                                     .lane_id = windows[i].lane_id,
                                                     .start = windows[i].start,
                                                     .env = windows[i].env_from + e};
        }
    return listed;
}

void farm_gather_step(const struct farm_algo_config *algo, const struct farm_column *column, uint32_t step,
                      const struct farm_gathered *to, size_t row) {
    const struct farm_lane *lane = column->lane;
    const uint64_t n = column->start + step;
    const size_t policy_bytes = lane->answer[FARM_ANSWER_POLICY].bytes;
    const size_t action_bytes = lane->answer[FARM_ANSWER_ACTION].bytes;
    to->reward[row] = farm_algo_reward(algo, farm_lane_reward(lane, n)[column->env]);
    to->flags[row] = farm_lane_flags(lane, n)[column->env];
    to->behaviour_value[row] = farm_lane_value(lane, n)[column->env];
    memcpy(to->action + row * action_bytes, farm_lane_action(lane, n, column->env), action_bytes);
    memcpy(to->behaviour + row * (policy_bytes / sizeof(float)), farm_lane_policy(lane, n, column->env), policy_bytes);
}
