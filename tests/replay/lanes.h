// What the tests of window sources share: two rings of two lanes, numbers 0 to 3, with both sides of each.
#ifndef TESTS_REPLAY_LANES_H
#define TESTS_REPLAY_LANES_H

#include <criterion/criterion.h>

#include "../support/rings.h"

#include "replay/source.h"

enum { RINGS = 2, RING_LANES = 2, LANES = RINGS * RING_LANES, WIDTH = 3, STRIDE = 4, STEPS = 16 };

// A test may change both before set_up_lanes.
static struct farm_window_shape shape = {.stride = STRIDE, .length = STRIDE + 1, .stack = 1};
static uint32_t ring_steps = STEPS;

static struct lanes {
    struct views rings[RINGS];
    struct farm_window_cursor cursors[LANES];
    uint32_t shards[LANES]; // each lane's
    struct farm_window_source *source;
    struct farm_window taken[4 * LANES]; // by the last take_windows
} lanes;

static inline struct views new_ring(void) {
    struct farm_ring_spec spec = spec_of(RING_LANES, WIDTH, ring_steps);
    spec.leaf_every = shape.stride;
    return views_of(spec);
}

static inline void set_up_lanes(struct farm_window_source *source) {
    memset(&lanes, 0, sizeof lanes);
    for (int r = 0; r < RINGS; r++) lanes.rings[r] = new_ring();
    lanes.source = source;
}

static inline void close_lanes(void) {
    lanes.source->ops->destroy(lanes.source);
    for (int r = 0; r < RINGS; r++) close_views(&lanes.rings[r]);
}

static inline struct farm_lane *actor_lane(uint32_t lane) {
    return &lanes.rings[lane / RING_LANES].actor.lanes[lane % RING_LANES];
}

static inline struct farm_lane *learner_lane(uint32_t lane) {
    return &lanes.rings[lane / RING_LANES].learner.lanes[lane % RING_LANES];
}

static inline void admit_ring(uint32_t ring) {
    for (uint32_t l = RING_LANES * ring; l < RING_LANES * (ring + 1); l++)
        lanes.source->ops->admit(lanes.source, learner_lane(l), l, lanes.shards[l]);
}

static inline void forget_ring(uint32_t ring) {
    lanes.source->ops->forget(lanes.source, &lanes.rings[ring].learner, RING_LANES * ring);
}

// One more step of the lane, answered by this version.
static inline void answer_step_of(uint32_t lane, uint64_t version) {
    struct farm_lane *learner = learner_lane(lane);
    const uint64_t n = farm_lane_acted(learner);
    cr_assert(farm_lane_actor_can_write(actor_lane(lane)), "lane %u has no room for step %lu", lane, n);
    publish_step(actor_lane(lane), n == 0);
    answer_step(learner);
    *farm_lane_version(learner, n) = version;
}

// Pushes the lane's next window, which is complete; returns the ticket.
static inline uint64_t push_next(uint32_t lane) {
    struct farm_window_cursor *cursor = &lanes.cursors[lane];
    const struct farm_window window = {.lane = learner_lane(lane),
                                       .cursor = cursor,
                                       .ring = &lanes.rings[lane / RING_LANES].learner,
                                       .lane_id = lane,
                                       .shard = lanes.shards[lane],
                                       .start = farm_window_take(&shape, cursor),
                                       .env_count = WIDTH};
    return lanes.source->ops->push(lanes.source, &window);
}

static inline bool is_complete(uint32_t lane) {
    return farm_window_ready(&shape, &lanes.cursors[lane], farm_lane_acted(learner_lane(lane)));
}

// Completes the lane's next window and pushes it; returns the ticket.
static inline uint64_t push_window(uint32_t lane, uint64_t version) {
    while (!is_complete(lane)) answer_step_of(lane, version);
    return push_next(lane);
}

static inline uint32_t take_windows(uint64_t version) {
    return lanes.source->ops->take(lanes.source, version, lanes.taken);
}

static inline void finish_windows(uint32_t count) {
    lanes.source->ops->done(lanes.source, lanes.taken, count, NULL);
}

static inline bool is_released(uint32_t lane, uint64_t ticket) {
    return farm_window_source_released(lanes.source, lanes.shards[lane], ticket);
}

// The i-th window that was taken is the lane's window at `start`, environments [from, from + count).
static inline void expect_window(uint32_t i, uint32_t lane, uint64_t start, uint32_t from, uint32_t count) {
    const struct farm_window *window = &lanes.taken[i];
    cr_assert(window->lane_id == lane && window->start == start && window->env_from == from &&
                  window->env_count == count,
              "window %u: lane %u step %lu environments %u+%u", i, window->lane_id, window->start, window->env_from,
              window->env_count);
}

// Steps of the lane before `step` were released, and no others.
static inline void expect_released(uint32_t lane, uint64_t step) {
    cr_assert_eq(farm_lane_consumed(learner_lane(lane)), step, "lane %u: released to %lu, not %lu", lane,
                 farm_lane_consumed(learner_lane(lane)), step);
}

#endif
