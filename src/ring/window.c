// See window.h.
#include "ring/window.h"

uint64_t farm_window_capacity(const struct farm_window_shape *shape, uint64_t steps) {
    const uint64_t held = (uint64_t)shape->stack - 1 + shape->length;
    return steps < held ? 0 : (steps - held) / shape->stride + 1;
}

void farm_window_cursor_start(const struct farm_lane *lane, const struct farm_window_shape *shape,
                              struct farm_window_cursor *cursor) {
    uint64_t consumed = farm_lane_consumed(lane);
    uint64_t first = consumed ? consumed + shape->stack - 1 : 0;
    cursor->next = (first + shape->stride - 1) / shape->stride * shape->stride;
    cursor->held = cursor->next;
}

uint64_t farm_window_ready(const struct farm_window_shape *shape, const struct farm_window_cursor *cursor,
                           uint64_t steps) {
    if (steps < cursor->next + shape->length) return 0;
    return (steps - cursor->next - shape->length) / shape->stride + 1;
}

uint64_t farm_window_take(const struct farm_window_shape *shape, struct farm_window_cursor *cursor) {
    uint64_t start = cursor->next;
    cursor->next += shape->stride;
    return start;
}

void farm_window_done(const struct farm_window_shape *shape, struct farm_window_cursor *cursor, uint64_t start) {
    if (start + shape->stride > cursor->held) cursor->held = start + shape->stride;
}

uint64_t farm_window_needs(const struct farm_window_shape *shape, const struct farm_window_cursor *cursor) {
    uint64_t history = shape->stack - 1;
    return cursor->held > history ? cursor->held - history : 0;
}

uint64_t farm_window_oldest(const struct farm_window_shape *shape, uint64_t first, uint64_t end, uint32_t steps,
                            const uint32_t *pins, uint32_t slots) {
    struct farm_window_cursor oldest = {.held = first};
    while (farm_window_needs(shape, &oldest) + steps < end && !pins[oldest.held / shape->stride % slots])
        oldest.held += shape->stride;
    return oldest.held;
}
