// See observation.h.
#include "policy/observation.h"

// A field of `count` values, as an input of this kind reads them.
static bool field_fits(const struct farm_env_spec *env, int source, uint32_t dtype, size_t count) {
    if (source < 0 || (uint32_t)source >= env->obs_count) return false;
    return env->obs[source].dtype == dtype && farm_field_values(&env->obs[source]) == count;
}

bool farm_observation_fits(const struct farm_net *net, const struct farm_env_spec *env) {
    static const uint32_t dtypes[] = {
        [FARM_INPUT_NUMBERS] = FARM_F32, [FARM_INPUT_WHOLE] = FARM_I32, [FARM_INPUT_ONE_HOT] = FARM_I32,
        [FARM_INPUT_BYTES] = FARM_U8,    [FARM_INPUT_SIGN] = FARM_F32,  [FARM_INPUT_SCALED] = FARM_F32};
    const struct farm_net_io *io = &net->io;
    const size_t pixels = (size_t)io->frame_channels * (size_t)io->height * (size_t)io->width;
    bool fits = true;
    for (int i = 0; i < io->images && pixels; i++) fits &= field_fits(env, io->image_source[i], FARM_U8, pixels);
    for (int i = 0; i < io->input_count && fits; i++) {
        const struct farm_net_input *input = &io->inputs[i];
        if (input->source < 0) continue;
        fits = field_fits(env, input->source, dtypes[input->kind], (size_t)input->count) &&
               (input->kind != FARM_INPUT_ONE_HOT || env->obs[input->source].choices == (uint32_t)input->choices);
    }
    return fits;
}

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
