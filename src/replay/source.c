// See source.h.
#include "replay/source.h"

#include "ring/wait.h"

void farm_window_release(const struct farm_window_shape *shape, const struct farm_window *window) {
    farm_window_done(shape, window->cursor, window->start);
    farm_lane_release(window->lane, farm_window_needs(shape, window->cursor));
    farm_learner_notify(window->ring);
}
