// See head.h.
#include "kernels/head.h"

#include <stdio.h>

enum farm_status farm_head_mask_field(const struct farm_env_spec *env, int *field, struct farm_error *err) {
    const struct farm_action_spec *action = &env->action;
    uint32_t choices = 0, values = 1;
    *field = -1;
    for (uint32_t f = 0; f < env->obs_count && *field < 0; f++)
        if (strncmp(env->obs[f].name, FARM_HEAD_MASK_NAME, FARM_FIELD_NAME_MAX) == 0) *field = (int)f;
    if (*field < 0) return FARM_OK;
    const struct farm_field_spec *mask = &env->obs[*field];
    if (action->kind == FARM_ACTION_CONTINUOUS)
        return farm_fail(err, FARM_E_UNSUPPORTED,
                         "observation '" FARM_HEAD_MASK_NAME "' with continuous actions: a mask forbids choices of "
                         "discrete actions; give the field another name, or the environment discrete actions");
    for (uint32_t d = 0; d < action->dims && d < FARM_ACTION_DIMS_MAX; d++) choices += action->sizes[d];
    for (uint32_t i = 0; i < mask->rank && i < FARM_FIELD_RANK_MAX; i++) values *= mask->dims[i];
    if (mask->dtype == FARM_U8 && values == choices) return FARM_OK;
    return farm_fail(
        err, FARM_E_UNSUPPORTED,
        "observation '" FARM_HEAD_MASK_NAME "' holds %u values of %s: a mask has one u8 per choice, %u here", values,
        mask->dtype == FARM_U8    ? "u8"
        : mask->dtype == FARM_I32 ? "i32"
                                  : "f32",
        choices);
}

int farm_head_mask_blocked(const struct farm_action_spec *action, const uint8_t *mask) {
    for (uint32_t d = 0; d < action->dims; mask += action->sizes[d++]) {
        uint8_t any = 0;
        for (uint32_t a = 0; a < action->sizes[d]; a++) any |= mask[a];
        if (!any) return (int)d;
    }
    return -1;
}

static bool is_bounded(const struct farm_action_spec *action, uint32_t d) {
    const float low = action->low[d], high = action->high[d];
    return low >= -1e30f && high <= 1e30f && 0.5f * high - 0.5f * low >= 0.5e-30f;
}

void farm_head_scale(const struct farm_action_spec *action, uint32_t d, float *offset, float *scale) {
    const float low = action->low[d], high = action->high[d];
    *offset = is_bounded(action, d) ? 0.5f * low + 0.5f * high : 0;
    *scale = is_bounded(action, d) ? 0.5f * high - 0.5f * low : 1;
}

// Bounds between which tanh is mapped.
static enum farm_status set_bounds(const struct farm_action_spec *action, struct farm_head *head,
                                   struct farm_error *err) {
    for (uint32_t d = 0; d < action->dims; d++) {
        const float low = action->low[d], high = action->high[d];
        if (!is_bounded(action, d))
            return farm_fail(
                err, FARM_E_USAGE,
                "squash: action %u has bounds [%g, %g], a squashed one needs finite bounds, within +-1e30: --squash "
                "false draws without bounds",
                d, (double)low, (double)high);
        head->offset[d] = low;
        head->scale[d] = 0.5f * high - 0.5f * low;
        head->log_scale += logf(head->scale[d]);
    }
    return FARM_OK;
}

enum farm_status farm_head_make(const struct farm_env_spec *env, struct farm_head_options options,
                                struct farm_head *out, struct farm_error *err) {
    const struct farm_action_spec *action = &env->action;
    const bool continuous = action->kind == FARM_ACTION_CONTINUOUS, squash = continuous && options.squash;
    int mask;
    *out = (struct farm_head){.kind = options.q    ? FARM_HEAD_GREEDY_Q
                                      : squash     ? FARM_HEAD_TANH_GAUSSIAN
                                      : continuous ? FARM_HEAD_GAUSSIAN
                                                   : FARM_HEAD_CATEGORICAL,
                              .dims = (int)action->dims,
                              .duelling = options.q && options.duelling,
                              .samples = squash};
    if (action->dims < 1 || action->dims > FARM_ACTION_DIMS_MAX)
        return farm_fail(err, FARM_E_UNSUPPORTED, "%u actions a step: 1 to %d can be trained", action->dims,
                         FARM_ACTION_DIMS_MAX);
    if (options.q && (continuous || action->dims > 1))
        return farm_fail(err, continuous ? FARM_E_USAGE : FARM_E_UNSUPPORTED,
                         "algo: action-values are of one discrete action, not of %u %s (--algo ppo or vtrace)",
                         action->dims, continuous ? "continuous" : "discrete ones");
    out->action_bytes = (int)(action->dims * sizeof(int32_t)); // or of f32
    out->outputs = continuous ? 2 * out->dims : 0;
    out->free_outputs = continuous && !options.state_sigma ? out->dims : 0;
    for (int d = 0; d < out->dims && !continuous; d++) out->outputs += out->sizes[d] = (int)action->sizes[d];
    const enum farm_status status = farm_head_mask_field(env, &mask, err);
    out->mask_field = mask + 1;
    for (uint32_t d = 0; d < action->dims; d++) {
        out->scale[d] = 1;
        if (continuous && options.scale) farm_head_scale(action, d, &out->offset[d], &out->scale[d]);
    }
    return status || !squash ? status : set_bounds(action, out, err);
}

void farm_head_describe(const struct farm_head *head, char text[FARM_HEAD_TEXT_BYTES]) {
    static const char *const kinds[] = {[FARM_HEAD_CATEGORICAL] = "categorical",
                                        [FARM_HEAD_GAUSSIAN] = "gaussian",
                                        [FARM_HEAD_TANH_GAUSSIAN] = "tanh_gaussian",
                                        [FARM_HEAD_GREEDY_Q] = "greedy_q"};
    const bool discrete = head->kind == FARM_HEAD_CATEGORICAL || head->kind == FARM_HEAD_GREEDY_Q;
    bool scaled = false;
    for (int d = 0; d < head->dims && head->kind == FARM_HEAD_GAUSSIAN; d++)
        scaled |= head->offset[d] != 0 || head->scale[d] != 1;
    int length = snprintf(text, FARM_HEAD_TEXT_BYTES, "%s%s %d", scaled ? "scaled_" : "",
                          head->duelling ? "duelling_q" : kinds[head->kind], discrete ? head->sizes[0] : head->dims);
    for (int d = 1; d < head->dims && discrete; d++)
        length += snprintf(text + length, FARM_HEAD_TEXT_BYTES - (size_t)length, "x%d", head->sizes[d]);
}
