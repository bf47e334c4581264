// See source.h.
#include "replay/source.h"

#include <string.h>

#include "ring/wait.h"

enum farm_status farm_window_source_make(const char *name, const struct farm_window_source_config *config,
                                         struct farm_window_source **out, struct farm_error *err) {
#define MAKE_IF_NAMED(source)                                                                                          \
    if (strcmp(name, #source) == 0) return farm_##source##_make(config, out, err);
    FARM_WINDOW_SOURCES(MAKE_IF_NAMED)
#undef MAKE_IF_NAMED
    return farm_fail(err, FARM_E_INVALID, "no source of windows has the name %s", name);
}

void farm_window_release(const struct farm_window_shape *shape, const struct farm_window *window) {
    farm_window_done(shape, window->cursor, window->start);
    struct farm_lane *lane = window->lane;
    const uint64_t before = farm_lane_consumed(lane);
    farm_lane_release(lane, farm_window_needs(shape, window->cursor));
    // A full lane's actor waits for room; another one sleeps until an answer comes. A bridge counts every step.
    farm_fence_full(); // `consumed` before `produced`; partner: the fence in farm_actor_announce
    if (window->ring->wake_fd >= 0 || farm_lane_produced(lane) - before >= lane->steps)
        farm_learner_notify(window->ring);
}
