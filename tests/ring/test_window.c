// Windows over a lane: every step is trained on once, no step that is needed is overwritten, and no wait is for ever.
#include <criterion/criterion.h>

#include "../support/rings.h"
#include "ring/window.h"

TestSuite(ring, .timeout = 30);

static const struct farm_window_shape shapes[] = {
    {.stride = 20, .length = 21, .stack = 4}, // V-trace: neighbours share the boundary step
    {.stride = 20, .length = 21, .stack = 1}, {.stride = 40, .length = 120, .stack = 1}, // R2D2: overlap and burn-in
    {.stride = 1, .length = 1, .stack = 1},   {.stride = 1, .length = 5, .stack = 4},
    {.stride = 7, .length = 3, .stack = 2}, // gaps between windows
    {.stride = 3, .length = 9, .stack = 5},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

// Publishes and answers a step.
static void run_step(struct views *v) {
    publish_step(&v->actor.lanes[0], farm_lane_actor_next(&v->actor.lanes[0]) == 0);
    answer_step(&v->learner.lanes[0]);
}

static bool can_step(struct views *v) {
    return farm_lane_actor_can_write(&v->actor.lanes[0]);
}

Test(ring, a_ring_has_room_for_the_windows_in_training_and_one_more) {
    for (uint64_t windows = 1; windows < 5; windows++)
        cr_assert_eq(farm_ring_steps_needed(windows, 20, 21, 4), (windows + 1) * 20 + 21 + 4);
}

Test(ring, every_window_is_taken_once_in_order_and_untouched_until_done) {
    for (size_t s = 0; s < SHAPES; s++) {
        enum { IN_TRAINING = 3, WINDOWS = 200 };
        const struct farm_window_shape *shape = &shapes[s];
        uint32_t steps = (uint32_t)farm_ring_steps_needed(IN_TRAINING, shape->stride, shape->length, shape->stack);
        struct farm_window_cursor cursor;
        uint64_t state = s + 1, taken = 0, done = 0, needs_before = 0;
        with_views v = views_of(spec_of(1, 2, steps));
        struct farm_lane *lane = &v.learner.lanes[0];
        farm_window_cursor_start(lane, shape, &cursor);
        for (uint64_t turns = 0; done < WINDOWS; turns++) {
            cr_assert_lt(turns, 1000000, "actor and training wait for each other");
            switch (random_next(&state) % 4) {
            case 0:
            case 1: // the actor runs while there is room
                for (uint64_t i = random_next(&state) % 40; i > 0 && can_step(&v); i--) run_step(&v);
                break;
            case 2:
                if (taken - done < IN_TRAINING && farm_window_ready(shape, &cursor, farm_lane_produced(lane))) {
                    cr_assert_eq(farm_window_take(shape, &cursor), taken * shape->stride, "skipped or repeated");
                    taken++;
                }
                break;
            default:
                if (done == taken) break;
                // Training ends: the window and the frames stacked before it must still be what the actor wrote.
                uint64_t start = done * shape->stride, from = start - least(start, shape->stack - 1);
                for (uint64_t n = from; n < start + shape->length; n++)
                    cr_assert(step_is_right(lane, n), "shape %zu: step %llu of window %llu was overwritten", s,
                              (unsigned long long)n, (unsigned long long)done);
                farm_window_done(shape, &cursor, start);
                done++;
            }
            uint64_t ready = 0; // by the definition: windows that end at or before the newest step
            while ((taken + ready) * shape->stride + shape->length <= farm_lane_produced(lane)) ready++;
            cr_assert_eq(farm_window_ready(shape, &cursor, farm_lane_produced(lane)), ready);
            uint64_t needs = farm_window_needs(shape, &cursor), held = done * shape->stride;
            cr_assert_geq(needs, needs_before, "a released step cannot be held again");
            cr_assert_eq(needs, held - least(held, shape->stack - 1), "stack - 1 steps before the oldest window stay");
            farm_lane_release(lane, least(needs, farm_lane_produced(lane)));
            needs_before = needs;
        }
    }
}

Test(ring, a_restarted_reader_starts_at_the_first_complete_window) {
    for (size_t s = 0; s < SHAPES; s++)
        for (uint64_t consumed = 0; consumed < 60; consumed++) {
            const struct farm_window_shape *shape = &shapes[s];
            struct farm_window_cursor cursor;
            with_views v = views_of(spec_of(1, 1, 512));
            struct farm_lane *lane = &v.learner.lanes[0];
            for (int i = 0; i < 100; i++) run_step(&v);
            farm_lane_release(lane, consumed);
            farm_window_cursor_start(lane, shape, &cursor);
            cr_assert_eq(cursor.next % shape->stride, 0, "not a window's start");
            uint64_t needs = farm_window_needs(shape, &cursor);
            cr_assert_geq(needs, consumed, "shape %zu: step %llu may be overwritten already", s,
                          (unsigned long long)needs);
            if (cursor.next >= shape->stride) { // and it is the first such start
                uint64_t earlier = cursor.next - shape->stride;
                bool all_there = consumed == 0 || earlier >= consumed + shape->stack - 1;
                cr_assert_not(all_there, "shape %zu: window %llu is skipped", s, (unsigned long long)earlier);
            }
        }
}

Test(ring, a_restart_repeats_the_windows_in_training_and_skips_none) {
    const struct farm_window_shape *shape = &shapes[0];
    struct farm_window_cursor cursor, again;
    with_views v = views_of(spec_of(1, 1, 256));
    struct farm_lane *lane = &v.learner.lanes[0];
    farm_window_cursor_start(lane, shape, &cursor);
    for (int i = 0; i < 150; i++) run_step(&v);
    for (int k = 0; k < 4; k++) farm_window_take(shape, &cursor);
    farm_window_done(shape, &cursor, 20); // windows 0 and 20 are trained on, 40 and 60 are not yet
    farm_lane_release(lane, farm_window_needs(shape, &cursor));
    farm_window_done(shape, &cursor, 0);
    cr_assert_eq(cursor.held, 40, "windows end in any order, and a released step is never held again");
    farm_window_cursor_start(lane, shape, &again);
    cr_assert_eq(again.next, 40);
    cr_assert_eq(farm_window_needs(shape, &again), 37);
}

Test(ring, the_capacity_is_the_number_of_windows_before_an_actor_waits) {
    for (size_t s = 0; s < SHAPES; s++) {
        const struct farm_window_shape *shape = &shapes[s];
        const uint32_t one = shape->length + shape->stack - 1; // steps that hold one window and its history
        cr_assert_eq(farm_window_capacity(shape, one - 1), 0);
        for (uint32_t steps = one > 1 ? one : 2; steps < one + 3 * shape->stride; steps++) {
            with_views v = views_of(spec_of(1, 1, steps));
            struct farm_window_cursor cursor;
            struct farm_lane *lane = &v.learner.lanes[0];
            farm_window_cursor_start(lane, shape, &cursor);
            for (uint64_t round = 0; round < 4; round++) {
                while (can_step(&v)) {
                    run_step(&v);
                    farm_lane_release(lane, least(farm_window_needs(shape, &cursor), farm_lane_produced(lane)));
                }
                const uint64_t ready = farm_window_ready(shape, &cursor, farm_lane_produced(lane));
                if (cursor.next + 1 >= shape->stack) // the first windows have no history yet
                    cr_assert_eq(ready, farm_window_capacity(shape, steps), "shape %zu, %u steps", s, steps);
                farm_window_done(shape, &cursor, farm_window_take(shape, &cursor));
                farm_lane_release(lane, least(farm_window_needs(shape, &cursor), farm_lane_produced(lane)));
            }
        }
    }
}

Test(ring, an_update_fits_if_a_lanes_width_of_windows_remains) {
    static const struct {
        uint64_t capacity, count;
        uint32_t width;
        bool fits;
    } table[] = {{12, 9, 3, true}, {12, 10, 3, false}, {2, 1, 1, true},
                 {1, 1, 1, false}, {12, 0, 3, false},  {0, 0, 0, false},
                 {0, 1, 0, false}, {1, 1, 0, true},    {UINT64_C(1) << 33, (UINT64_C(1) << 33) - 4, 4, true}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        cr_assert_eq(farm_window_update_fits(table[i].capacity, table[i].count, table[i].width), table[i].fits,
                     "row %zu", i);
}
