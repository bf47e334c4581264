// The asynchronous source over real lanes: order, shares, parts of windows, release, and both limits of max_lag.
#include "lanes.h"

TestSuite(fifo, .fini = close_lanes, .timeout = 30);

// Lane l is of shard l * shards / LANES.
static void set_up(uint32_t shards, uint32_t share0, uint32_t share1, uint32_t max_lag) {
    const struct farm_window_source_config config = {
        .shape = shape, .shards = shards, .share = {share0, share1}, .capacity = 4 * LANES, .max_lag = max_lag};
    struct farm_window_source *source;
    struct farm_error err;
    cr_assert_eq(farm_window_source_make("fifo", &config, &source, &err), FARM_OK, "%s", err.message);
    set_up_lanes(source);
    for (uint32_t l = 0; l < LANES; l++) lanes.shards[l] = l * shards / LANES;
}

Test(fifo, first_in_is_first_out_and_a_lane_is_released_with_the_last_part_of_its_window) {
    set_up(1, WIDTH + 1, 0, 0);
    cr_assert_eq(lanes.source->windows_max, WIDTH + 1);
    push_window(2, 0);
    cr_assert_not(lanes.source->ops->ready(lanes.source));
    cr_assert_eq(take_windows(0), 0);
    cr_assert_eq(push_window(0, 0), 0, "no lane waits without max_lag");
    push_window(1, 0);
    cr_assert(lanes.source->ops->ready(lanes.source));
    cr_assert_eq(take_windows(0), 2);
    expect_window(0, 2, 0, 0, WIDTH);
    expect_window(1, 0, 0, 0, 1);
    expect_released(2, 0);
    finish_windows(2);
    expect_released(2, STRIDE);
    expect_released(0, 0);
    push_window(0, 0);
    cr_assert_eq(take_windows(0), 2);
    expect_window(0, 0, 0, 1, WIDTH - 1);
    expect_window(1, 1, 0, 0, 2);
    finish_windows(2);
    expect_released(0, STRIDE);
    expect_released(1, 0);
    cr_assert_eq(take_windows(0), 2);
    expect_window(0, 1, 0, 2, WIDTH - 2);
    expect_window(1, 0, STRIDE, 0, WIDTH);
    finish_windows(2);
    expect_released(0, 2 * STRIDE);
    cr_assert_eq(take_windows(0), 0);
}

Test(fifo, each_shard_gives_its_share_shard_after_shard) {
    set_up(2, WIDTH + 1, 2, 0);
    push_window(2, 0);
    push_window(3, 0);
    push_window(1, 0);
    cr_assert_not(lanes.source->ops->ready(lanes.source), "shard 1 has more than enough, shard 0 has too few");
    cr_assert_eq(take_windows(0), 0);
    push_window(0, 0);
    cr_assert_eq(take_windows(0), 3);
    expect_window(0, 1, 0, 0, WIDTH);
    expect_window(1, 0, 0, 0, 1);
    expect_window(2, 2, 0, 0, 2);
}

Test(fifo, a_ring_that_leaves_takes_its_windows_along_and_no_others) {
    set_up(1, WIDTH + 2, 0, 1);
    push_window(0, 0);
    push_window(2, 0);
    cr_assert_eq(take_windows(0), 2);
    push_window(1, 0);
    const uint64_t ticket = push_window(3, 0);
    cr_assert_not(is_released(3, ticket));
    forget_ring(0);
    cr_assert(is_released(3, ticket), "fewer windows wait");
    cr_assert_eq(take_windows(0), 0);
    push_window(2, 0);
    cr_assert_eq(take_windows(0), 3);
    expect_window(0, 2, 0, 2, WIDTH - 2);
    expect_window(1, 3, 0, 0, WIDTH);
    expect_window(2, 2, STRIDE, 0, 1);
    cr_assert_eq(lanes.source->dropped, 0);
}

Test(fifo, lanes_wait_while_the_windows_of_max_lag_iterations_wait) {
    uint64_t tickets[LANES];
    set_up(1, WIDTH, 0, 2);
    cr_assert(lanes.source->holds);
    for (uint32_t l = 0; l < LANES; l++) tickets[l] = push_window(l, 0);
    for (uint32_t taken = 0; taken <= 2; taken++) {
        for (uint32_t l = 0; l < LANES; l++)
            cr_assert_eq(is_released(l, tickets[l]), l < 2 + taken, "lane %u, %u iterations taken", l, taken);
        cr_assert_eq(take_windows(0), 1);
    }
}

Test(fifo, windows_begun_too_long_ago_are_dropped_wherever_they_wait) {
    set_up(1, WIDTH, 0, 2);
    push_window(0, 5);
    push_window(1, 4);
    const uint64_t ticket = push_window(2, 4);
    cr_assert_not(is_released(2, ticket));
    cr_assert_eq(take_windows(7), 1);
    expect_window(0, 0, 0, 0, WIDTH);
    cr_assert_eq(lanes.source->dropped, 2 * WIDTH);
    cr_assert(is_released(2, ticket));
    expect_released(0, 0);
    expect_released(1, STRIDE);
    expect_released(2, STRIDE);
    cr_assert_eq(take_windows(7), 0, "nothing waits");
}

// Its steps would be lost, and those of an earlier window of its lane with them.
Test(fifo, neither_a_window_partly_trained_on_nor_one_behind_it_in_its_lane_is_dropped) {
    set_up(1, 2, 0, 2);
    push_window(0, 0);
    push_window(0, 0);
    push_window(1, 0);
    cr_assert_eq(take_windows(0), 1);
    finish_windows(1);
    cr_assert_eq(take_windows(9), 2);
    expect_window(0, 0, 0, 2, 1);
    expect_window(1, 0, STRIDE, 0, 1);
    cr_assert_eq(lanes.source->dropped, WIDTH, "lane 1's");
    expect_released(0, 0);
    expect_released(1, STRIDE);
    finish_windows(2);
    expect_released(0, STRIDE);
}

// Actors that run as far as their rings let them, in any order, always fill an update that is said to fit.
Test(fifo, an_update_that_fits_the_rings_is_filled_again_and_again) {
    const uint64_t capacity = farm_window_capacity(&shape, STEPS) * WIDTH * LANES;
    const uint32_t count = (uint32_t)capacity - WIDTH;
    uint64_t random = 1;
    cr_assert(farm_window_update_fits(capacity, count, WIDTH) && count > WIDTH * LANES);
    set_up(1, count, 0, 0);
    for (int update = 0; update < 50; update++) {
        uint32_t parts, full = 0;
        while (!(parts = take_windows(0))) {
            const uint32_t lane = (uint32_t)(random_next(&random) % LANES);
            const uint64_t room = farm_lane_consumed(learner_lane(lane)) + STEPS;
            full = lanes.cursors[lane].next + shape.length > room ? full | 1u << lane : full;
            cr_assert_neq(full, (1u << LANES) - 1, "update %d: every ring is full", update);
            if (!(full & 1u << lane)) push_window(lane, 0);
        }
        finish_windows(parts);
    }
}
