// The synchronous source over real lanes: the windows of an iteration, when tickets are released, and lanes that are
// left out.
#include <criterion/criterion.h>
#include <criterion/redirect.h>

#include "lanes.h"

TestSuite(sync, .fini = close_lanes, .timeout = 30);

// Two shards: ring 0's lanes are of shard 1, ring 1's of shard 0. With a grace of 1 ns an actor hangs if it has done
// nothing between two calls of take.
static void set_up(uint32_t rings, uint64_t grace_ns) {
    const struct farm_window_source_config config = {.shape = shape, .shards = 2, .lanes = LANES, .grace_ns = grace_ns};
    struct farm_window_source *source;
    struct farm_error err;
    cr_assert_eq(farm_window_source_make("sync", &config, &source, &err), FARM_OK, "%s", err.message);
    set_up_lanes(source);
    for (uint32_t l = 0; l < LANES; l++) lanes.shards[l] = l < RING_LANES;
    for (uint32_t r = 0; r < rings; r++) admit_ring(r);
}

static void push_windows(uint32_t count, uint64_t tickets[LANES]) {
    for (uint32_t l = 0; l < count; l++) tickets[l] = push_window(l, 0);
}

static void publish_parameters(void) {
    lanes.source->ops->published(lanes.source);
}

// Polls until an iteration is taken without the lanes that hang.
static uint32_t take_within(void) {
    uint32_t count;
    do count = take_windows(0);
    while (!count);
    return count;
}

Test(sync, an_iteration_is_one_window_of_every_lane_shard_after_shard) {
    static const uint32_t order[LANES] = {2, 3, 0, 1};
    uint64_t tickets[LANES];
    set_up(RINGS, 0);
    cr_assert_geq(lanes.source->windows_max, LANES);
    for (uint64_t iteration = 0; iteration < 3; iteration++) {
        for (uint32_t i = 0; i < LANES; i++) {
            cr_assert_not(lanes.source->ops->ready(lanes.source));
            cr_assert_eq(take_windows(0), 0, "%u lanes have a window", i);
            const uint32_t lane = LANES - 1 - i;
            tickets[lane] = push_window(lane, 0);
        }
        cr_assert(lanes.source->ops->ready(lanes.source));
        cr_assert_eq(take_windows(0), LANES);
        for (uint32_t i = 0; i < LANES; i++) expect_window(i, order[i], iteration * STRIDE, 0, WIDTH);
        cr_assert_eq(take_windows(0), 0, "it is taken once");
        expect_released(0, iteration * STRIDE);
        finish_windows(LANES);
        for (uint32_t l = 0; l < LANES; l++) {
            expect_released(l, (iteration + 1) * STRIDE);
            cr_assert_not(is_released(l, tickets[l]), "lane %u is released before the publication", l);
        }
        publish_parameters();
        for (uint32_t l = 0; l < LANES; l++) cr_assert(is_released(l, tickets[l]), "lane %u", l);
    }
}

Test(sync, a_lane_counts_from_when_it_comes_until_it_leaves) {
    uint64_t tickets[LANES];
    set_up(1, 0);
    push_window(0, 0);
    admit_ring(1);
    push_window(2, 0);
    forget_ring(1);
    cr_assert_eq(take_windows(0), 0, "lane 1 has no window, and lane 2 has left");
    push_window(1, 0);
    cr_assert_eq(take_windows(0), RING_LANES);
    finish_windows(RING_LANES);
    publish_parameters();
    push_windows(RING_LANES, tickets);
    admit_ring(1);
    cr_assert_eq(take_windows(0), 0, "two lanes have joined without windows");
    push_window(2, 0);
    push_window(3, 0);
    cr_assert_eq(take_windows(0), LANES);
}

Test(sync, a_lane_that_hangs_is_left_out_and_its_late_window_dropped) {
    uint64_t tickets[LANES];
    cr_redirect_stderr();
    set_up(RINGS, 1);
    answer_step_of(3, 0);
    for (int iteration = 0; iteration < 2; iteration++) {
        push_windows(LANES - 1, tickets);
        cr_assert_eq(lanes.source->ops->ready(lanes.source), iteration > 0, "it is not waited for twice");
        cr_assert_eq(take_within(), LANES - 1);
        for (uint32_t i = 0; i < LANES - 1; i++) cr_assert_neq(lanes.taken[i].lane_id, 3);
        finish_windows(LANES - 1);
        if (iteration == 0) publish_parameters();
    }
    cr_assert_eq(lanes.source->dropped, 0);
    cr_assert_stderr_eq_str(
        "farm: warning: an iteration is trained on without lane 3, whose actor has done nothing for "
        "1e-09 s, and its next window will be dropped: raise sync_grace_s if environments take so "
        "long\n",
        "once");
    const uint64_t late = push_window(3, 0);
    cr_assert_eq(lanes.source->dropped, WIDTH);
    expect_released(3, STRIDE);
    cr_assert_not(is_released(3, late), "an iteration is being trained on");
    publish_parameters();
    cr_assert(is_released(3, late));
    push_windows(LANES - 1, tickets);
    answer_step_of(3, 0);
    cr_assert(!lanes.source->ops->ready(lanes.source) && !take_windows(0), "it acts again");
    push_window(3, 0);
    cr_assert_eq(take_windows(0), LANES);
    expect_window(1, 3, STRIDE, 0, WIDTH);
    cr_assert_eq(lanes.source->dropped, WIDTH);
}

Test(sync, a_late_lane_goes_on_at_once_if_nothing_is_being_trained_on) {
    uint64_t tickets[LANES];
    set_up(RINGS, 1);
    for (int iteration = 0; iteration < 2; iteration++) {
        push_windows(LANES - 1, tickets);
        cr_assert_eq(take_within(), LANES - 1);
        finish_windows(LANES - 1);
        publish_parameters();
        if (iteration == 0) cr_assert(is_released(3, push_window(3, 0)), "the next iteration waits for this lane");
    }
    forget_ring(1); // late
    push_windows(RING_LANES, tickets);
    cr_assert(lanes.source->ops->ready(lanes.source));
    cr_assert_eq(take_windows(0), RING_LANES);
}

Test(sync, a_slow_lane_is_waited_for_while_its_actor_moves_or_waits_for_an_answer) {
    uint64_t tickets[LANES];
    set_up(RINGS, 1);
    push_windows(LANES - 1, tickets);
    for (int look = 0; look < 20; look++) {
        actor_lane(3)->up_control->heartbeat++;
        cr_assert_eq(take_windows(0), 0, "its environment is called");
    }
    answer_step_of(3, 0);
    cr_assert_eq(take_windows(0), 0, "it has published a step");
    publish_step(actor_lane(3), false);
    for (int look = 0; look < 20; look++) cr_assert_eq(take_windows(0), 0, "its step has no answer");
    answer_step(learner_lane(3));
    cr_assert_eq(take_within(), LANES - 1, "it has its answer and does nothing");
}
