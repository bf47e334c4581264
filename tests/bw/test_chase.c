// The chase of pointers: one random cycle through all places, changes of it found, sizes chosen by time.
#include <criterion/criterion.h>

#include "bw/chase.h"
#include "bw/latency.h"
#include "here.h"

TestSuite(bw, .timeout = 60);

// A chase on memory of the heap, without a cycle.
static struct farm_bw_chase chase_of(size_t count, size_t spacing) {
    struct farm_bw_chase chase = {.buffer.start = aligned_alloc(4096, (count * spacing + 4095) / 4096 * 4096),
                                  .order = malloc(count * sizeof *chase.order)};
    cr_assert(chase.buffer.start && chase.order);
    return chase;
}

static void free_chase(struct farm_bw_chase *chase) {
    free(chase->buffer.start);
    free(chase->order);
}

Test(bw, a_chase_visits_every_line_exactly_once) {
    const size_t counts[] = {1, 2, 3, 64, 1000, 4097};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t spacing = 64; spacing <= 4096; spacing *= 64) {
            const size_t count = counts[c];
            struct farm_bw_chase chase = chase_of(count, spacing);
            bool *seen = calloc(count, 1);
            farm_bw_chase_make(&chase, count, spacing, spacing > 64);
            void *first = chase.at;
            for (size_t i = 0; i < count; i++) {
                const size_t offset = (size_t)((char *)chase.at - (char *)chase.buffer.start), place = offset / spacing;
                cr_assert_lt(place, count);
                cr_assert_eq(offset % 64, 0);
                cr_assert_not(seen[place], "%zu places: %zu twice", count, place);
                seen[place] = true;
                farm_bw_chase_follow(&chase, 1);
            }
            cr_assert_eq(chase.at, first, "the cycle does not close");
            farm_bw_chase_follow(&chase, 37 * count);
            cr_assert_eq(chase.at, first);
            cr_assert_eq(farm_bw_chase_check(&chase, &err), FARM_OK);
            if (count > 2) {
                farm_bw_chase_follow(&chase, count / 2);
                *(void **)chase.at = first; // a shorter cycle
                cr_assert_eq(farm_bw_chase_check(&chase, &err), FARM_E_IO);
            }
            free(seen);
            free_chase(&chase);
        }
}

Test(bw, neighbours_in_a_chase_are_far_apart) {
    enum { N = 4096 };
    struct farm_bw_chase chase = chase_of(N, 64);
    int near = 0;
    farm_bw_chase_make(&chase, N, 64, false);
    for (int i = 0; i < N; i++) {
        const char *before = chase.at;
        farm_bw_chase_follow(&chase, 1);
        near += labs((const char *)chase.at - before) <= 4096;
    }
    cr_assert_lt(near, N / 10, "%d of %d steps stay within a page's distance", near, N); // 3 % are expected
    free_chase(&chase);
}

Test(bw, a_chase_in_too_little_time_is_shorter_and_its_figure_is_marked) {
    struct farm_bw_setup setup = setup_here(1e-6, 2, 1e-3);
    struct farm_bw_conditions conditions = farm_bw_conditions_start();
    struct farm_bw_idle idle;
    machine.l3_bytes = 1 << 30;
    cr_assert_eq(farm_bw_idle_latency(&setup, 0, FARM_BW_PAGES_AUTO, &idle, &conditions, NULL), FARM_OK);
    cr_assert(is_measured(&idle.ns));
    cr_assert_leq(idle.bytes, machine.l3_bytes);
    cr_assert(idle.ns.in_cache && strstr(conditions.note, "a figure of caches"), "%s", conditions.note);
    cr_assert_eq(farm_bw_idle_latency(&setup, 1ull << 60, FARM_BW_PAGES_AUTO, &idle, &conditions, NULL), FARM_E_LIMIT);
}
