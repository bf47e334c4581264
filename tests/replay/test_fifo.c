// The asynchronous source over real lanes: order, shares, parts of windows, release, and both limits of max_lag.
#include "lanes.h"

TestSuite(fifo, .timeout = 30);

// Lane l is of shard l * shards / LANES.
static void set_up(struct lanes *lanes, uint32_t shards, uint32_t share0, uint32_t share1, uint32_t max_lag) {
    const struct farm_fifo_config config = {
        .shape = shape, .shards = shards, .share = {share0, share1}, .capacity = 4 * LANES, .max_lag = max_lag};
    struct farm_window_source *source;
    struct farm_error err;
    cr_assert_eq(farm_fifo_make(&config, &source, &err), FARM_OK, "%s", err.message);
    open_lanes(lanes, source);
    for (uint32_t l = 0; l < LANES; l++) lanes->shards[l] = l * shards / LANES;
}

Test(fifo, first_in_is_first_out_and_a_lane_is_released_with_the_last_part_of_its_window) {
    struct lanes lanes;
    set_up(&lanes, 1, WIDTH + 1, 0, 0);
    cr_assert_eq(lanes.source->windows_max, WIDTH + 1);
    hand_over(&lanes, 2, 0);
    cr_assert_not(lanes.source->ops->ready(lanes.source));
    cr_assert_eq(take(&lanes, 0), 0);
    cr_assert_eq(hand_over(&lanes, 0, 0), 0, "no lane waits without max_lag");
    hand_over(&lanes, 1, 0);
    cr_assert(lanes.source->ops->ready(lanes.source));
    cr_assert_eq(take(&lanes, 0), 2);
    expect_window(&lanes, 0, 2, 0, 0, WIDTH);
    expect_window(&lanes, 1, 0, 0, 0, 1);
    expect_released(&lanes, 2, 0);
    done(&lanes, 2);
    expect_released(&lanes, 2, STRIDE);
    expect_released(&lanes, 0, 0);
    hand_over(&lanes, 0, 0);
    cr_assert_eq(take(&lanes, 0), 2);
    expect_window(&lanes, 0, 0, 0, 1, WIDTH - 1);
    expect_window(&lanes, 1, 1, 0, 0, 2);
    done(&lanes, 2);
    expect_released(&lanes, 0, STRIDE);
    expect_released(&lanes, 1, 0);
    cr_assert_eq(take(&lanes, 0), 2);
    expect_window(&lanes, 0, 1, 0, 2, WIDTH - 2);
    expect_window(&lanes, 1, 0, STRIDE, 0, WIDTH);
    done(&lanes, 2);
    expect_released(&lanes, 0, 2 * STRIDE);
    cr_assert_eq(take(&lanes, 0), 0);
    close_lanes(&lanes);
}

Test(fifo, each_shard_gives_its_share_shard_after_shard) {
    struct lanes lanes;
    set_up(&lanes, 2, WIDTH + 1, 2, 0);
    hand_over(&lanes, 2, 0);
    hand_over(&lanes, 3, 0);
    hand_over(&lanes, 1, 0);
    cr_assert_not(lanes.source->ops->ready(lanes.source), "shard 1 has more than enough, shard 0 has too few");
    cr_assert_eq(take(&lanes, 0), 0);
    hand_over(&lanes, 0, 0);
    cr_assert_eq(take(&lanes, 0), 3);
    expect_window(&lanes, 0, 1, 0, 0, WIDTH);
    expect_window(&lanes, 1, 0, 0, 0, 1);
    expect_window(&lanes, 2, 2, 0, 0, 2);
    close_lanes(&lanes);
}

Test(fifo, a_ring_that_leaves_takes_its_windows_along_and_no_others) {
    struct lanes lanes;
    set_up(&lanes, 1, WIDTH + 2, 0, 1);
    hand_over(&lanes, 0, 0);
    hand_over(&lanes, 2, 0);
    cr_assert_eq(take(&lanes, 0), 2);
    hand_over(&lanes, 1, 0);
    const uint64_t ticket = hand_over(&lanes, 3, 0);
    cr_assert_not(is_open(&lanes, 3, ticket));
    forget_ring(&lanes, 0);
    cr_assert(is_open(&lanes, 3, ticket), "fewer windows wait");
    cr_assert_eq(take(&lanes, 0), 0);
    hand_over(&lanes, 2, 0);
    cr_assert_eq(take(&lanes, 0), 3);
    expect_window(&lanes, 0, 2, 0, 2, WIDTH - 2);
    expect_window(&lanes, 1, 3, 0, 0, WIDTH);
    expect_window(&lanes, 2, 2, STRIDE, 0, 1);
    cr_assert_eq(lanes.source->dropped, 0);
    close_lanes(&lanes);
}

Test(fifo, lanes_wait_while_the_windows_of_max_lag_iterations_wait) {
    struct lanes lanes;
    uint64_t tickets[LANES];
    set_up(&lanes, 1, WIDTH, 0, 2);
    cr_assert(lanes.source->holds);
    for (uint32_t l = 0; l < LANES; l++) tickets[l] = hand_over(&lanes, l, 0);
    for (uint32_t taken = 0; taken <= 2; taken++) {
        for (uint32_t l = 0; l < LANES; l++)
            cr_assert_eq(is_open(&lanes, l, tickets[l]), l < 2 + taken, "lane %u, %u iterations taken", l, taken);
        cr_assert_eq(take(&lanes, 0), 1);
    }
    close_lanes(&lanes);
}

Test(fifo, windows_begun_too_long_ago_are_dropped_wherever_they_wait) {
    struct lanes lanes;
    set_up(&lanes, 1, WIDTH, 0, 2);
    hand_over(&lanes, 0, 5);
    hand_over(&lanes, 1, 4);
    const uint64_t ticket = hand_over(&lanes, 2, 4);
    cr_assert_not(is_open(&lanes, 2, ticket));
    cr_assert_eq(take(&lanes, 7), 1);
    expect_window(&lanes, 0, 0, 0, 0, WIDTH);
    cr_assert_eq(lanes.source->dropped, 2 * WIDTH);
    cr_assert(is_open(&lanes, 2, ticket));
    expect_released(&lanes, 0, 0);
    expect_released(&lanes, 1, STRIDE);
    expect_released(&lanes, 2, STRIDE);
    cr_assert_eq(take(&lanes, 7), 0, "nothing waits");
    close_lanes(&lanes);
}

// Its steps would be lost, and those of an earlier window of its lane with them.
Test(fifo, neither_a_window_partly_trained_on_nor_one_behind_it_in_its_lane_is_dropped) {
    struct lanes lanes;
    set_up(&lanes, 1, 2, 0, 2);
    hand_over(&lanes, 0, 0);
    hand_over(&lanes, 0, 0);
    hand_over(&lanes, 1, 0);
    cr_assert_eq(take(&lanes, 0), 1);
    done(&lanes, 1);
    cr_assert_eq(take(&lanes, 9), 2);
    expect_window(&lanes, 0, 0, 0, 2, 1);
    expect_window(&lanes, 1, 0, STRIDE, 0, 1);
    cr_assert_eq(lanes.source->dropped, WIDTH, "lane 1's");
    expect_released(&lanes, 0, 0);
    expect_released(&lanes, 1, STRIDE);
    done(&lanes, 2);
    expect_released(&lanes, 0, STRIDE);
    close_lanes(&lanes);
}

// Actors that run as far as their rings let them, in any order, always fill an update that is said to fit.
Test(fifo, an_update_that_fits_the_rings_is_filled_again_and_again) {
    const uint64_t capacity = farm_window_capacity(&shape, STEPS) * WIDTH * LANES;
    const uint32_t count = (uint32_t)capacity - WIDTH;
    struct lanes lanes;
    uint64_t random = 1;
    cr_assert(farm_window_update_fits(capacity, count, WIDTH) && count > WIDTH * LANES);
    set_up(&lanes, 1, count, 0, 0);
    for (int update = 0; update < 50; update++) {
        uint32_t parts, full = 0;
        while (!(parts = take(&lanes, 0))) {
            const uint32_t lane = (uint32_t)(random_next(&random) % LANES);
            const uint64_t room = farm_lane_consumed(learners(&lanes, lane)) + STEPS;
            full = lanes.cursors[lane].next + shape.length > room ? full | 1u << lane : full;
            cr_assert_neq(full, (1u << LANES) - 1, "update %d: every ring is full", update);
            if (!(full & 1u << lane)) hand_over(&lanes, lane, 0);
        }
        done(&lanes, parts);
    }
    close_lanes(&lanes);
}
