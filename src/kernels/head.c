// See head.h.
#include "kernels/head.h"

#include <stdbool.h>

enum farm_status farm_head_make(const struct farm_action_spec *action, struct farm_head *out, struct farm_error *err) {
    const bool continuous = action->kind == FARM_ACTION_CONTINUOUS;
    *out =
        (struct farm_head){.kind = continuous ? FARM_HEAD_GAUSSIAN : FARM_HEAD_CATEGORICAL, .dims = (int)action->dims};
    if (action->dims < 1 || action->dims > FARM_ACTION_DIMS_MAX)
        return farm_fail(err, FARM_E_UNSUPPORTED, "%u actions a step: 1 to %d can be trained", action->dims,
                         FARM_ACTION_DIMS_MAX);
    out->action_bytes = (int)(action->dims * sizeof(int32_t)); // or of f32
    out->outputs = continuous ? 2 * out->dims : 0;
    out->free_outputs = continuous ? out->dims : 0;
    for (int d = 0; d < out->dims && !continuous; d++) out->outputs += out->sizes[d] = (int)action->sizes[d];
    return FARM_OK;
}
