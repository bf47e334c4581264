// See observation.h.
#include "learner/observation.h"

static const void *part_of(const struct farm_net_input *input, const struct farm_lane *lane, uint64_t n, uint32_t env) {
    const bool first = farm_lane_flags(lane, n)[env] & FARM_STEP_FIRST;
    switch (input->source) {
    case FARM_SOURCE_LAST_ACTION:
        return first || n == 0 ? NULL : farm_lane_action(lane, n - 1, env);
    case FARM_SOURCE_LAST_REWARD:
        return first ? NULL : &farm_lane_reward(lane, n)[env];
    default:
        return farm_lane_obs(lane, (uint32_t)input->source, n, env);
    }
}

void farm_observation_parts(const struct farm_net *net, const struct farm_lane *lane, uint64_t n, uint32_t env,
                            const void **parts) {
    for (int i = 0; i < net->io.input_count; i++) parts[i] = part_of(&net->io.inputs[i], lane, n, env);
}

void farm_observation_list(const struct farm_net *net, const struct farm_lane *lane, uint64_t n, uint32_t env,
                           const void **rows) {
    const int stack = net->io.stack;
    for (int i = 0; i < net->io.images && net->io.frame_channels > 0; i++, rows += stack)
        farm_lane_stack(lane, (uint32_t)net->io.image_source[i], n, env, (unsigned)stack, rows);
    farm_observation_parts(net, lane, n, env, rows);
}
