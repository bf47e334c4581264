// The chase of pointers: its way, its working sets; the hand-over of a line between CPUs.
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bw/handoff.h"
#include "bw/latency.h"
#include "here.h"

static struct farm_error err;

TestSuite(bw, .timeout = 60);

enum { SMALL = 1 << 20 };

static struct farm_bw_setup here(void) {
    return setup_here(0.3, 2, 1e-3);
}

static bool is_latency(const struct farm_bw_figure *figure) {
    return figure->samples >= 1 && figure->median > 0 && isfinite(figure->median);
}

Test(bw, a_chase_visits_every_line_exactly_once) {
    const size_t counts[] = {1, 2, 3, 64, 1000, 4097};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int spacing = 64; spacing <= 4096; spacing *= 64) {
            const size_t count = counts[c];
            char *memory = aligned_alloc(4096, (count * (size_t)spacing + 4095) / 4096 * 4096);
            uint32_t *order = malloc(count * sizeof *order);
            bool *seen = calloc(count, 1);
            cr_assert(memory && order && seen);
            const bool jitter = spacing > 64;
            void *first = farm_bw_chase_make(memory, count, (size_t)spacing, jitter, order, 3), *at = first;
            for (size_t i = 0; i < count; i++) {
                const size_t offset = (size_t)((char *)at - memory), place = offset / (size_t)spacing;
                cr_assert_lt(place, count);
                cr_assert_eq(offset % 64, 0);
                cr_assert_not(seen[place], "%zu places: %zu twice", count, place);
                seen[place] = true;
                at = farm_bw_chase_run(at, 1);
            }
            cr_assert_eq(at, first, "comes back");
            cr_assert_eq(farm_bw_chase_run(first, 37 * count), first);
            cr_assert(farm_bw_chase_is(memory, count, (size_t)spacing, jitter, order, 3));
            if (count > 2) {
                *(void **)farm_bw_chase_run(first, count / 2) = first; // cut short
                cr_assert_not(farm_bw_chase_is(memory, count, (size_t)spacing, jitter, order, 3));
            }
            free(memory), free(order), free(seen);
        }
}

Test(bw, a_chase_jumps_about) {
    enum { N = 4096 };
    char *memory = aligned_alloc(4096, N * 64);
    uint32_t *scratch = malloc(N * sizeof *scratch);
    cr_assert(memory && scratch);
    char *at = farm_bw_chase_make(memory, N, 64, false, scratch, 1);
    int near = 0;
    for (int i = 0; i < N; i++) {
        char *next = farm_bw_chase_run(at, 1);
        near += labs(next - at) <= 4096;
        at = next;
    }
    cr_assert_lt(near, N / 10, "%d of %d steps stay within a page's distance", near, N); // 3 % are expected
    free(memory), free(scratch);
}

Test(bw, the_ladder_climbs_from_the_first_cache_in_even_steps) {
    const struct farm_bw_setup setup = here();
    static struct farm_bw_ladder_result result;
    const struct farm_bw_ladder_config config = {.bytes_most = 4 * SMALL};
    cr_assert_eq(farm_bw_ladder(&setup, &config, &result, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(result.rungs, 2 * 10 + 1);
    cr_assert_eq(result.rung[0].bytes, 4096);
    cr_assert_eq(result.rung[result.rungs - 1].bytes, 4 * SMALL);
    for (int i = 0; i < result.rungs; i++) {
        cr_assert_eq(result.rung[i].bytes % 64, 0);
        if (i > 0) cr_assert_gt(result.rung[i].bytes, result.rung[i - 1].bytes);
        if (!result.conditions.out_of_time) cr_assert(is_latency(&result.rung[i].ns));
    }
    cr_assert(is_latency(&result.rung[0].ns));
}

Test(bw, hardly_any_time_shortens_chases_and_a_chase_within_the_cache_is_marked) {
    struct farm_bw_setup setup = here();
    struct farm_bw_idle_result idle;
    static struct farm_bw_ladder_result ladder;
    const struct farm_bw_idle_config idle_config = {0};
    const struct farm_bw_ladder_config ladder_config = {0};
    machine.l3_bytes = 1 << 30;
    setup.seconds = 1e-6;
    cr_assert_eq(farm_bw_idle(&setup, &idle_config, &idle, NULL), FARM_OK);
    cr_assert(is_latency(&idle.ns));
    cr_assert_leq(idle.bytes, machine.l3_bytes);
    cr_assert(idle.ns.in_cache && strstr(idle.conditions.note, "a figure of caches"), "%s", idle.conditions.note);
    cr_assert_eq(farm_bw_ladder(&setup, &ladder_config, &ladder, NULL), FARM_OK);
    cr_assert(is_latency(&ladder.rung[0].ns) && !ladder.rung[0].ns.in_cache, "a ladder is about caches");
    cr_assert(strstr(ladder.conditions.note, "ends within the last-level cache"), "%s", ladder.conditions.note);
}

Test(bw, the_reach_of_the_tlb_is_measured_beside_as_many_lines_close_together) {
    const struct farm_bw_setup setup = here();
    static struct farm_bw_ladder_result result;
    const struct farm_bw_ladder_config config = {.bytes_most = SMALL, .steps_per_doubling = 1};
    cr_assert_eq(farm_bw_tlb(&setup, &config, &result, NULL), FARM_OK);
    cr_assert_eq(result.conditions.pages, FARM_BW_PAGES_SMALL);
    cr_assert_geq(result.rungs, 1);
    cr_assert(is_latency(&result.rung[0].ns) && is_latency(&result.rung[0].dense_ns));
}

Test(bw, working_sets_that_make_no_sense_are_refused) {
    const struct farm_bw_setup setup = here();
    static struct farm_bw_ladder_result result;
    struct farm_bw_idle_result idle;
    struct farm_bw_ladder_config config = {.bytes_most = 2048};
    cr_assert_eq(farm_bw_ladder(&setup, &config, &result, &err), FARM_E_INVALID);
    config = (struct farm_bw_ladder_config){.bytes_most = 1ull << 36};
    cr_assert_eq(farm_bw_ladder(&setup, &config, &result, &err), FARM_E_LIMIT, "64 GiB");
    const struct farm_bw_idle_config absurd = {.bytes = 1ull << 60};
    cr_assert_eq(farm_bw_idle(&setup, &absurd, &idle, &err), FARM_E_LIMIT);
}

Test(bw, who_stops_the_ladder_gets_the_rungs_climbed) {
    struct farm_bw_setup setup = here();
    static struct farm_bw_ladder_result result;
    int left = 7;
    const struct farm_bw_control control = {.stop = stop_after, .context = &left};
    setup.control = &control;
    setup.seconds = 1000; // the time is not what ends it
    const struct farm_bw_ladder_config config = {.bytes_most = SMALL};
    cr_assert_eq(farm_bw_ladder(&setup, &config, &result, NULL), FARM_OK);
    cr_assert(result.conditions.stopped);
    cr_assert(is_latency(&result.rung[0].ns));
    cr_assert(isnan(result.rung[result.rungs - 1].ns.median));
}

Test(bw, the_latency_matrix_is_full) {
    const struct farm_bw_setup setup = here();
    struct farm_bw_matrix matrix;
    const struct farm_bw_matrix_config config = {.array_bytes = SMALL};
    cr_assert_eq(farm_bw_matrix_latency(&setup, &config, &matrix, NULL), FARM_OK);
    for (int i = 0; i < matrix.rows * matrix.columns && !matrix.conditions.out_of_time; i++)
        cr_assert(is_latency(&matrix.cell[i]));
    farm_bw_matrix_free(&matrix);
}

Test(bw, loaded_latency_verifies_its_streams_at_every_delay) {
    const struct farm_bw_setup setup = here();
    static struct farm_bw_loaded_result result;
    const enum farm_bandwidth_op ops[] = {FARM_BANDWIDTH_READ, FARM_BANDWIDTH_MIX21};
    for (int i = 0; i < 2; i++) {
        const struct farm_bw_loaded_config config = {.delays = (const int[]){0, 20000},
                                                     .delay_count = 2,
                                                     .op = ops[i],
                                                     .array_bytes = SMALL + 64 * 7,
                                                     .chase_bytes = SMALL};
        cr_assert_eq(farm_bw_loaded(&setup, &config, &result, &err), FARM_OK, "%s", err.message);
        if (result.streams == 0) {
            cr_assert(strstr(result.conditions.note, "two cores"), "%s", result.conditions.note);
            cr_skip_test("one core: nothing to load it with");
        }
        cr_assert_eq(result.rows, 2);
        cr_assert(is_latency(&result.row[0].ns));
        for (int row = 0; row < 2; row++) {
            cr_assert_eq(result.row[row].delay, config.delays[row]);
            cr_assert_eq(result.row[row].ns.samples, result.row[row].bytes_per_s.samples);
        }
    }
}

Test(bw, hand_overs_fill_a_symmetric_matrix) {
    const struct farm_bw_setup setup = here();
    struct farm_bw_handoff_result result;
    const struct farm_bw_handoff_config config = {0};
    cr_assert_eq(farm_bw_handoff(&setup, &config, &result, &err), FARM_OK, "%s", err.message);
    if (result.cpus < 2) {
        cr_assert(result.conditions.note[0]);
        farm_bw_handoff_free(&result);
        cr_skip_test("one CPU: nobody to hand over to");
    }
    for (int a = 0; a < result.cpus; a++)
        for (int b = 0; b < result.cpus; b++) {
            const float ns = result.ns[a * result.cpus + b];
            if (a == b)
                cr_assert(isnan(ns));
            else if (!isnan(ns))
                cr_assert_eq(ns, result.ns[b * result.cpus + a]);
        }
    cr_assert_gt(result.ns[1], 0);
    const enum farm_bw_nearness nearness = farm_bw_nearness_of(&machine, result.cpu[0], result.cpu[1]);
    cr_assert_geq(result.by_nearness[nearness].samples, 1);
    farm_bw_handoff_free(&result);
    farm_bw_handoff_free(&result);
}

Test(bw, cpus_are_as_near_as_what_they_share) {
    static struct farm_machine two;
    const struct farm_machine_source source = {.synthetic = "pack:2 [numa(memory=4GB)] l3:2 core:2 pu:2"};
    cr_assert_eq(farm_machine_read(&two, &source, NULL), FARM_OK);
    cr_assert_eq(farm_bw_nearness_of(&two, two.cpu[0].cpu, two.cpu[1].cpu), FARM_BW_SAME_CORE);
    cr_assert_eq(farm_bw_nearness_of(&two, two.cpu[0].cpu, two.cpu[2].cpu), FARM_BW_SAME_CACHE);
    cr_assert_eq(farm_bw_nearness_of(&two, two.cpu[0].cpu, two.cpu[4].cpu), FARM_BW_SAME_NODE);
    cr_assert_eq(farm_bw_nearness_of(&two, two.cpu[0].cpu, two.cpu[8].cpu), FARM_BW_OTHER_SOCKET);
}
