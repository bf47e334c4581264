// What another process reads of a farm's rings through <farm/farm.h>.
#include <criterion/criterion.h>
#include <farm/farm.h>
#include <math.h>

#include "../support/rings.h"

Test(view, a_view_copies_the_leaves_of_a_replay) {
    struct farm_ring_spec spec = spec_of(1, 2, 8);
    spec.leaf_every = 2;
    with_ring ring = ring_of(spec, 1);
    char why[256];
    struct farm_view *view = farm_attach(getpid(), why, sizeof why);
    cr_assert(view, "%s", why);
    ring.lanes[0].up->produced = 5;
    memcpy(farm_lane_leaf(&ring.lanes[0], 4), (float[]){0.5f, -0.0f}, 8);
    float leaf[2] = {9, 9};
    cr_assert_eq(farm_view_bytes(view, 0, FARM_VIEW_LEAF), sizeof leaf);
    cr_assert(!farm_view_copy(view, 0, 3, FARM_VIEW_LEAF, leaf), "no window begins there");
    cr_assert(!farm_view_copy(view, 0, 6, FARM_VIEW_LEAF, leaf), "not published yet");
    cr_assert(farm_view_copy(view, 0, 4, FARM_VIEW_LEAF, leaf));
    cr_assert(leaf[0] == 0.5f && leaf[1] == 0 && signbit(leaf[1]));
    farm_detach(view);
}

Test(view, a_view_copies_a_last_observation_until_its_slot_is_taken) {
    struct farm_ring_spec spec = spec_of(1, 2, 8);
    char why[256];
    uint64_t last[2] = {0};
    with_ring plain = ring_of(spec, 1);
    spec.autoreset = FARM_AUTORESET_SAME_STEP;
    with_ring ring = ring_of(spec, 2);
    struct farm_view *view = farm_attach(getpid(), why, sizeof why);
    cr_assert(view, "%s", why);
    cr_assert_eq(farm_view_bytes(view, 0, FARM_VIEW_LAST), 0, "a ring without same-step resets");
    cr_assert_eq(farm_view_bytes(view, 1, FARM_VIEW_LAST), sizeof last);
    cr_assert_eq(farm_view_bytes(view, 1, FARM_VIEW_LAST + 1), 0);
    memcpy(farm_lane_last(&ring.lanes[0], 0, 5, 0), (uint64_t[]){7, 8}, sizeof last);
    for (uint64_t produced = 5; produced < 9; produced++) {
        ring.lanes[0].up->produced = produced;
        cr_assert_eq(farm_view_copy(view, 1, 5, FARM_VIEW_LAST, last), produced == 6, "%lu published", produced);
    }
    cr_assert(last[0] == 7 && last[1] == 8);
    farm_detach(view);
}
