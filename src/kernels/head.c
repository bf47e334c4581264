// See head.h.
#include "kernels/head.h"

enum farm_status farm_head_make(const struct farm_action_spec *action, struct farm_head *out, struct farm_error *err) {
    if (action->kind != FARM_ACTION_DISCRETE)
        return farm_fail(err, FARM_E_UNSUPPORTED, "only one discrete action a step can be trained yet");
    *out = farm_head_categorical((int)action->sizes[0]);
    return FARM_OK;
}
