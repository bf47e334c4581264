// See observation.h.
#include "policy/observation.h"

#include <string.h>

#include "base/format.h"

// ---- what a network reads ----

enum { ONE_HOT_MAX = 1 << 16 };

static bool is_mask(const struct farm_field_spec *field) {
    return strcmp(field->name, FARM_HEAD_MASK_NAME) == 0;
}

bool farm_policy_reads_image(const struct farm_field_spec *field) {
    return farm_field_is_image(field) && !is_mask(field);
}

// The first image field decides the shape of all.
static enum farm_status add_image(const struct farm_env_spec *env, uint32_t f, struct farm_net_io *io,
                                  struct farm_error *err) {
    const struct farm_field_spec *field = &env->obs[f], *first = io->images ? &env->obs[io->image_source[0]] : field;
    const struct farm_image image = farm_field_image(field);
    if (field->rank != first->rank || memcmp(field->dims, first->dims, field->rank * sizeof *field->dims) != 0)
        return farm_fail(err, FARM_E_UNSUPPORTED,
                         "observation fields '%s' and '%s' are images of different shapes: images of one shape can be "
                         "trained (or small ones as f32)",
                         first->name, field->name);
    io->image_source[io->images++] = (int)f;
    io->interleaved = field->rank == 3 && !image.planes;
    io->frame_channels = (int)image.channels;
    io->height = (int)image.height;
    io->width = (int)image.width;
    return FARM_OK;
}

static enum farm_status add_flat(const struct farm_env_spec *env, uint32_t f, struct farm_net_io *io,
                                 struct farm_error *err) {
    const struct farm_field_spec *field = &env->obs[f];
    struct farm_net_input *input = &io->inputs[io->input_count++];
    *input = (struct farm_net_input){.count = (int)farm_field_values(field), .source = (int)f};
    if (field->dtype == FARM_F32) input->kind = FARM_INPUT_NUMBERS;
    if (field->dtype == FARM_I32) input->kind = field->choices ? FARM_INPUT_ONE_HOT : FARM_INPUT_WHOLE;
    if (field->dtype == FARM_U8) {
        input->kind = FARM_INPUT_BYTES;
        input->choices = field->choices == 0 ? 256 : field->choices == 1 ? 2 : (int)field->choices; // a divisor of 1
    }
    if (input->kind == FARM_INPUT_ONE_HOT) {
        const uint64_t numbers = (uint64_t)input->count * field->choices;
        if (numbers > ONE_HOT_MAX)
            return farm_fail(err, FARM_E_UNSUPPORTED,
                             "observation field '%s': %d integers of %u choices are %s numbers one-hot, at most %d can "
                             "be trained; without choices, or as f32, they are %d",
                             field->name, input->count, field->choices, farm_format_count((double)numbers).text,
                             ONE_HOT_MAX, input->count);
        input->choices = (int)field->choices;
    }
    io->flat += farm_net_input_width(input);
    return FARM_OK;
}

static enum farm_status choose_io(const struct farm_env_spec *env, const struct farm_policy_options *options,
                                  struct farm_net_io *io, struct farm_error *err) {
    struct farm_head head;
    *io = (struct farm_net_io){.stack = (int)options->stack, .actions = (int)farm_policy_outputs(&env->action)};
    enum farm_status status = farm_head_make(env, farm_policy_head_options(options), &head, err);
    if (status) return status;
    io->free_outputs = head.free_outputs;
    io->biased_outputs = env->action.kind == FARM_ACTION_CONTINUOUS ? head.dims : 0; // log sigma
    for (uint32_t f = 0; f < env->obs_count && !status; f++) {
        const struct farm_field_spec *field = &env->obs[f];
        if (!is_mask(field))
            status = farm_field_is_image(field) ? add_image(env, f, io, err) : add_flat(env, f, io, err);
    }
    if (status) return status;
    if (!io->images && !io->input_count)
        return farm_fail(err, FARM_E_UNSUPPORTED,
                         "the observation has no field besides '" FARM_HEAD_MASK_NAME "': a network needs one to read");
    if (io->images || options->stack == 1) return FARM_OK;
    return farm_fail(err, FARM_E_USAGE, "stack: flat observations cannot be stacked (--stack 1)");
}

// What the recipe adds to the observation: statistics, the last action and the last reward.
static enum farm_status add_options(const struct farm_env_spec *env, const struct farm_policy_options *options,
                                    struct farm_net_io *io, struct farm_error *err) {
    const struct farm_action_spec *action = &env->action;
    struct farm_net_input last = {
        .kind = FARM_INPUT_ONE_HOT, .count = (int)action->dims, .source = FARM_SOURCE_LAST_ACTION};
    io->lstm = (int)options->lstm;
    io->lstm_layers = options->lstm ? (int)options->lstm_layers : 0;
    io->normalise_rewards = options->normalise_rewards;
    io->normalise_frames = options->normalise_observations && io->images;
    for (int i = 0; i < io->input_count; i++)
        io->inputs[i].normalise = options->normalise_observations &&
                                  (io->inputs[i].kind == FARM_INPUT_NUMBERS || io->inputs[i].kind == FARM_INPUT_WHOLE);
    if (!options->last_inputs) return FARM_OK;
    if (io->input_count + 2 > FARM_NET_INPUTS_MAX)
        return farm_fail(err, FARM_E_UNSUPPORTED, "last_inputs: a network reads at most %d fields beside them, not %d",
                         FARM_NET_INPUTS_MAX - 2, io->input_count);
    if (action->kind == FARM_ACTION_CONTINUOUS)
        last.kind = options->scale_actions ? FARM_INPUT_SCALED : FARM_INPUT_NUMBERS;
    for (uint32_t d = 0; d < action->dims && last.kind == FARM_INPUT_SCALED; d++)
        farm_head_scale(action, d, &io->last_offset[d], &io->last_scale[d]);
    for (uint32_t d = 0; d < action->dims && last.kind == FARM_INPUT_ONE_HOT; d++)
        if ((int)action->sizes[d] > last.choices) last.choices = (int)action->sizes[d];
    io->inputs[io->input_count++] = last;
    io->inputs[io->input_count++] =
        (struct farm_net_input){.kind = FARM_INPUT_SIGN, .count = 1, .source = FARM_SOURCE_LAST_REWARD};
    io->flat += farm_net_input_width(&last) + 1;
    return FARM_OK;
}

enum farm_status farm_policy_io(const struct farm_env_spec *env, const struct farm_policy_options *options,
                                struct farm_net_io *io, struct farm_error *err) {
    const enum farm_status status = choose_io(env, options, io, err);
    return status ? status : add_options(env, options, io, err);
}

struct farm_head_options farm_policy_head_options(const struct farm_policy_options *options) {
    return (struct farm_head_options){.state_sigma = options->state_sigma,
                                      .squash = options->squash,
                                      .scale = options->scale_actions,
                                      .q = options->q,
                                      .duelling = options->duelling};
}

// ---- where it lies ----

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
