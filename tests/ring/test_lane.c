// The lane: wrap-around, backpressure, answers, take-over, stacks of frames. Interleavings are searched in tests/model;
// two processes at its ends, and kills at random places, are in tests/chaos.
#include <criterion/criterion.h>

#include "../support/rings.h"
#include "ring/wait.h"

TestSuite(ring, .timeout = 60);

Test(ring, steps_keep_their_bytes_round_after_round) {
    with_views v = views_of(spec_of(2, 3, 5));
    for (uint64_t n = 0; n < 23; n++) // four and a half rounds; neither lane touches the other
        for (uint32_t l = 0; l < 2; l++) {
            struct farm_lane *actor = &v.actor.lanes[l], *learner = &v.learner.lanes[l];
            cr_assert_eq(farm_lane_actor_next(actor), n);
            cr_assert(farm_lane_actor_can_write(actor));
            publish_step(actor, n == 0);
            cr_assert_not(farm_lane_actor_answered(actor));
            cr_assert_eq(farm_lane_produced(learner), n + 1);
            cr_assert_eq(farm_lane_acted(learner), n);
            for (uint64_t old = n + 1 > 5 ? n - 4 : 0; old <= n; old++) cr_assert(step_is_right(learner, old));
            answer_step(learner);
            cr_assert(farm_lane_actor_answered(actor));
            cr_assert(answer_is_right(actor, n));
            if (n >= 3) farm_lane_release(learner, n - 3);
            cr_assert_eq(farm_lane_consumed(learner), n >= 3 ? n - 3 : 0);
        }
    expect_sound(&v.made);
}

Test(ring, refuses_to_write_when_exactly_full) {
    for (uint32_t steps = 2; steps < 9; steps++) {
        with_views v = views_of(spec_of(1, 1, steps));
        struct farm_lane *actor = &v.actor.lanes[0], *learner = &v.learner.lanes[0];
        for (uint64_t n = 0; n < 3 * steps; n++) { // full from n = steps on
            cr_assert_eq(farm_lane_actor_can_write(actor), n < steps, "step %lu of %u", n, steps);
            if (n >= steps) farm_lane_release(learner, n - steps + 1);
            cr_assert(farm_lane_actor_can_write(actor), "step %lu of %u", n, steps);
            publish_step(actor, n == 0);
            answer_step(learner);
            for (uint64_t held = farm_lane_consumed(learner); held <= n; held++)
                cr_assert(step_is_right(learner, held));
        }
    }
}

// ---- take-over ----

Test(ring, a_new_actor_takes_over_between_the_two_stores_of_a_publish) {
    with_views v = views_of(spec_of(1, 2, 4));
    struct farm_lane *old = &v.actor.lanes[0], *learner = &v.learner.lanes[0];
    struct farm_ring *rings[] = {&v.learner};
    with_ring fresh = open_view(&v.made, FARM_RING_ACTOR); // opened early: its copies of the counters are old
    struct farm_doorbells bells;
    uint32_t rung;
    cr_assert_eq(farm_doorbells_make(&bells, rings, 1, -1, NULL), FARM_OK);
    publish_step(old, true);
    answer_step(learner);
    publish_step(old, false);
    answer_step(learner);
    cr_assert_eq(farm_doorbells_poll(&bells, &rung), 1);
    // Step 2 is published, and the old actor dies there: the doorbell has not rung.
    uint64_t bell = farm_load_acquire(&v.actor.up_control->doorbell);
    publish_step(old, false);
    farm_store_release(&v.actor.up_control->doorbell, bell);
    cr_assert_eq(farm_doorbells_poll(&bells, &rung), 0, "the learner cannot see it");

    struct farm_lane *next = &fresh.lanes[0];
    farm_lane_actor_take_over(next);
    cr_assert_eq(farm_doorbells_poll(&bells, &rung), 1, "now it can");
    cr_assert_eq(farm_lane_actor_next(next), 3);
    cr_assert_not(farm_lane_actor_answered(next), "the dead actor's last step is answered first");
    cr_assert(step_is_right(learner, 2));
    answer_step(learner);
    cr_assert(farm_lane_actor_answered(next));
    publish_step(next, true);
    cr_assert_eq(farm_lane_produced(learner), 4);
    cr_assert_eq(farm_lane_flags(learner, 3)[1], FARM_STEP_FIRST, "FIRST without LAST: an abandoned episode");
    expect_sound(&v.made);
    farm_doorbells_free(&bells);
}

Test(ring, a_new_actor_overwrites_a_step_that_was_never_published) {
    with_views v = views_of(spec_of(1, 2, 4));
    struct farm_lane *old = &v.actor.lanes[0], *learner = &v.learner.lanes[0];
    publish_step(old, true);
    answer_step(learner);
    memset(farm_lane_obs(old, 0, 1, 0), 0xee, 8); // half of step 1, then it dies
    farm_lane_flags(old, 1)[0] = 0xee;
    with_ring fresh = open_view(&v.made, FARM_RING_ACTOR);
    struct farm_lane *next = &fresh.lanes[0];
    farm_lane_actor_take_over(next);
    cr_assert_eq(farm_lane_actor_next(next), 1);
    cr_assert(farm_lane_actor_answered(next));
    cr_assert_eq(farm_lane_produced(learner), 1, "the half-written step was not published");
    publish_step(next, true);
    cr_assert(step_is_right(learner, 1));
    cr_assert_eq(farm_lane_flags(learner, 1)[0], FARM_STEP_FIRST);
}

Test(ring, a_successor_clears_the_flag_of_a_sleeper_that_died) {
    with_views v = views_of(spec_of(1, 1, 3));
    farm_store_release(&v.actor.up_control->asleep, 1); // an actor that is killed in its sleep leaves this
    with_ring fresh = open_view(&v.made, FARM_RING_ACTOR);
    farm_lane_actor_take_over(&fresh.lanes[0]);
    cr_assert_eq(farm_load_acquire(&v.learner.up_control->asleep), 0);
    farm_store_release(&v.learner.down_control->asleep, 1); // and a learner this
    struct farm_ring *rings[] = {&v.learner};
    struct farm_doorbells bells;
    cr_assert_eq(farm_doorbells_make(&bells, rings, 1, -1, NULL), FARM_OK);
    cr_assert_eq(farm_load_acquire(&v.actor.down_control->asleep), 0);
    farm_doorbells_free(&bells);
}

// ---- stacks ----

Test(ring, stacks_read_backwards_to_first_and_across_the_wrap) {
    enum { STEPS = 200, WIDTH = 3, STACK = 5, RING = 16 };
    static uint8_t first[STEPS][WIDTH]; // what was written, kept by the test
    uint64_t state = 42;
    with_views v = views_of(spec_of(1, WIDTH, RING));
    struct farm_lane *actor = &v.actor.lanes[0], *learner = &v.learner.lanes[0];
    for (uint64_t n = 0; n < STEPS; n++) {
        publish_step(actor, n == 0);
        for (uint32_t e = 0; e < WIDTH; e++) {
            first[n][e] =
                n == 0 ? e > 0 : random_next(&state) % 6 == 0; // before step 0 there is none, without FIRST too
            farm_lane_flags(actor, n)[e] = first[n][e]                                ? FARM_STEP_FIRST
                                           : n + 1 < STEPS && random_next(&state) % 2 ? FARM_STEP_LAST
                                                                                      : 0;
        }
        answer_step(learner);
        if (n + 1 >= RING) farm_lane_release(learner, n + 2 - RING);
        for (uint32_t e = 0; e < WIDTH; e++) {
            const void *rows[STACK];
            farm_lane_stack(learner, 0, n, e, 1, rows);
            cr_assert_eq(rows[0], farm_lane_obs(learner, 0, n, e), "a stack of one is the step itself");
            farm_lane_stack(learner, 0, n, e, STACK, rows);
            bool same_episode = true;
            for (unsigned back = 0; back < STACK; back++) {
                const void *frame = rows[STACK - 1 - back];
                uint64_t number = 0;
                if (back > 0 && (back > n || first[n - back + 1][e])) same_episode = false;
                if (frame) memcpy(&number, frame, sizeof number);
                cr_assert_eq(number, same_episode ? number_of(n - back, e) : 0, "step %llu env %u back %u",
                             (unsigned long long)n, e, back);
            }
        }
    }
}
