// Takes the place of engine_uring.c in a build without liburing. See engine.h.
#include "bridge/engine.h"

static enum farm_status create(uint32_t sockets, uint32_t watches, void *context, struct farm_engine **out,
                               struct farm_error *err) {
    (void)sockets, (void)watches, (void)context, (void)out;
    return farm_fail(err, FARM_E_UNSUPPORTED, "built without liburing (Debian: liburing-dev)");
}

const struct farm_engine_ops farm_engine_uring = {.name = "uring", .create = create};
