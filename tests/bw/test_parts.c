// Parts of `farm bw`: what their sections hold when time is short, when a signal ends them, and on machines that this
// one is not. Speeds are not looked at: their ratios are the benchmarks' matter.
#include <criterion/criterion.h>

#include "../support/recorded.h"
#include "bw/buffer.h"
#include "here.h"

TestSuite(bw, .timeout = 120);

Test(bw, a_stopped_part_has_the_figures_measured_so_far) {
    static const struct {
        farm_bw_part *part;
        const char *rows, *first, *last; // in a row: the first figure to be measured, the last one
        int stop_at;
    } cases[] = {{farm_bw_part_memory, "rows", "all_cores_bytes_per_s", "one_core_bytes_per_s", 8},
                 {farm_bw_part_memory, "rows", NULL, "all_cores_bytes_per_s", 0},
                 {farm_bw_part_mix, "rows", "bytes_per_s", "bytes_per_s", 6},
                 {farm_bw_part_tlb, "ladder", "ns", "dense_ns", 7},
                 {farm_bw_part_loaded, "rows", "ns", "bytes_per_s", 7}};
    struct farm_bw_setup setup = setup_here(1000, 3, 1e-3); // time is not what ends them
    skip_without_two_cores();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int left = cases[i].stop_at;
        const struct farm_bw_control control = {.stop = stop_after, .context = &left};
        setup.control = &control;
        with_section *section = section_of(cases[i].part, &setup, FARM_BW_SUMMARY, SMALL);
        const json_t *rows = value_at(section, cases[i].rows);
        cr_assert(is_true_at(section, "conditions.stopped"), "case %zu", i);
        if (cases[i].first)
            cr_assert_not_null(value_at(json_object_get(json_array_get(rows, 0), cases[i].first), "median"), "case %zu",
                               i);
        cr_assert(json_is_null(json_object_get(json_array_get(rows, json_array_size(rows) - 1), cases[i].last)),
                  "case %zu", i);
    }
}

Test(bw, a_stopped_ring_ends_at_once) {
    struct farm_bw_setup setup = setup_here(3600, 4, 0);
    int left = 2;
    const struct farm_bw_control control = {.stop = stop_after, .context = &left};
    skip_without_two_cores();
    setup.control = &control;
    with_section *section = section_of(farm_bw_part_ring, &setup, FARM_BW_QUICK, 0);
    cr_assert(is_true_at(section, "hops.0.conditions.stopped"));
    cr_assert(json_is_null(value_at(section, "hops.0.p50_ns")));
    cr_assert_eq(json_array_size(value_at(section, "rates")), 0);
}

Test(bw, lanes_carry_every_step_and_count_each_byte_once) {
    const struct farm_bw_setup setup = setup_here(0.4, 3, 0);
    skip_without_two_cores();
    with_section *section = section_of(farm_bw_part_ring, &setup, FARM_BW_SUMMARY, 0);
    const json_t *hop = value_at(section, "hops.0"), *rates = value_at(section, "rates"), *rate;
    size_t i;
    cr_assert_eq(number_at(hop, "p50_ns.samples"), 3);
    cr_assert(number_at(hop, "p50_ns.median") > 5 &&
              number_at(hop, "p50_ns.median") <= number_at(hop, "p99_ns.median") &&
              number_at(hop, "p99_ns.median") <= number_at(hop, "p999_ns.median"));
    cr_assert(json_is_false(value_at(hop, "conditions.verified")), "a hop moves no payload");
    json_array_foreach(rates, i, rate) {
        const double bytes = number_at(rate, "payload_bytes"), ring_bytes = number_at(rate, "ring_bytes");
        cr_assert_eq(number_at(rate, "steps_per_s.samples"), 3);
        cr_assert_float_eq(number_at(rate, "payload_bytes_per_s.most"), number_at(rate, "steps_per_s.most") * bytes, 1);
        cr_assert_gt(number_at(rate, "cpu_s_per_million_steps"), 0);
        cr_assert(ring_bytes >= 4 * 2 * bytes && ring_bytes <= 16 << 20);
        cr_assert(is_true_at(rate, "conditions.verified"));
    }
    cr_assert_geq(i, 7);
}

Test(bw, time_that_is_over_leaves_figures_out_and_the_section_states_it) {
    const struct farm_bw_setup setup = setup_here(1e-6, 3, 1e-3);
    with_section *section = section_of(farm_bw_part_mix, &setup, FARM_BW_SUMMARY, SMALL);
    cr_assert(is_true_at(section, "conditions.out_of_time") && !is_true_at(section, "conditions.stopped"));
    cr_assert(number_at(section, "rows.0.bytes_per_s.median") > 0, "the first is always taken");
    cr_assert(json_is_null(value_at(section, "rows.4.bytes_per_s")));
}

// How many rows from the first one on have both columns, each marked if its arrays fit into the caches.
static int complete_rows(const json_t *section, uint64_t cache_bytes) {
    const uint64_t array_bytes = (uint64_t)number_at(section, "array_bytes");
    const json_t *rows = value_at(section, "rows"), *row;
    size_t i;
    int complete = 0;
    json_array_foreach(rows, i, row) {
        const char *kernel = json_string_value(value_at(row, "kernel"));
        const bool one = strcmp(kernel, "read") == 0 || strcmp(kernel, "write") == 0,
                   three = strcmp(kernel, "triad") == 0 || strcmp(kernel, "add") == 0;
        const uint64_t bytes = array_bytes * (one ? 1 : three ? 3 : 2);
        if (json_is_object(value_at(row, "all_cores_bytes_per_s")))
            cr_assert_eq(is_true_at(row, "all_cores_bytes_per_s.in_cache"), bytes <= cache_bytes, "%s", kernel);
        if (complete == (int)i && number_at(row, "one_core_bytes_per_s.median") > 0 &&
            number_at(row, "all_cores_bytes_per_s.median") > 0)
            complete++;
        if (i < 3) cr_assert(strcmp(kernel, "read") == 0 || strcmp(kernel, "copy") == 0 || three, "%s", kernel);
    }
    return complete;
}

// A cache of 1 GiB and hardly any time: as a machine with memory as slow as that.
Test(bw, the_main_table_is_complete_with_any_cache_in_any_time) {
    static const double seconds[] = {1e-6, 0.02, 0.5};
    struct farm_bw_setup setup = setup_here(0.4, 3, 1e-3);
    int cpus[FARM_CPUS_MAX];
    const int count = farm_bw_cpus(&machine, -1, cpus, FARM_CPUS_MAX);
    machine.l3_bytes = 1 << 30;
    const uint64_t cache_bytes = farm_bw_cache_bytes(&machine, cpus, count);
    for (int i = 0; i < 3; i++)
        for (int depth = FARM_BW_QUICK; depth < FARM_BW_DEPTHS; depth++) {
            setup.seconds = seconds[i];
            with_section *section = section_of(farm_bw_part_memory, &setup, (enum farm_bw_depth)depth, 0);
            const bool both_stores = depth != FARM_BW_QUICK && farm_bandwidth_has_nontemporal(setup.variant);
            cr_assert(is_true_at(section, "conditions.verified"));
            cr_assert_lt(number_at(section, "array_bytes"), (double)farm_bw_array_bytes(&setup, cpus, count));
            assert_noted(section, "is short");
            cr_assert_geq(complete_rows(section, cache_bytes), both_stores ? 5 : 3);
        }
}

Test(bw, strides_longer_than_a_threads_arrays_are_left_out) {
    const struct farm_bw_setup setup = setup_here(1000, 1, 1e-4); // time is not what leaves them out
    with_section *section = section_of(farm_bw_part_memory, &setup, FARM_BW_FULL, 64 * 64);
    const json_t *row;
    size_t i;
    json_array_foreach(value_at(section, "rows"), i, row)
        cr_assert_eq(json_is_null(value_at(row, "all_cores_bytes_per_s")), !!value_at(row, "stride_bytes"));
    assert_noted(section, "stride");
}

Test(bw, portable_kernels_make_ordinary_stores_and_count_the_lines_fetched_for_them) {
    struct farm_bw_setup setup = setup_here(0.4, 1, 1e-3);
    const json_t *row;
    size_t i;
    setup.variant = FARM_BANDWIDTH_PORTABLE;
    json_t *memory = section_of(farm_bw_part_memory, &setup, FARM_BW_SUMMARY, SMALL);
    json_array_foreach(value_at(memory, "rows"), i, row) cr_assert_not(is_true_at(row, "nontemporal"));
    cr_assert_float_eq(number_at(memory, "rows.1.bus_bytes_per_program_byte"), 1.5, 1e-12, "copy");
    json_t *mix = section_of(farm_bw_part_mix, &setup, FARM_BW_SUMMARY, SMALL);
    assert_noted(mix, "non-temporal");
    json_decref(memory);
    json_decref(mix);
}

// This machine with a second node, all of whose memory others have.
static struct farm_bw_setup setup_with_a_full_node(void) {
    struct farm_bw_setup setup = setup_here(0.4, 3, 1e-3);
    make_root();
    record("proc/meminfo", "MemTotal: 67108864 kB\nMemFree: 60000000 kB\nMemAvailable: 60000000 kB\n");
    record_v2("/a");
    record_bytes("sys/fs/cgroup/a/memory.max", 64 << 20); // of all nodes: room enough
    record("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 33554432 kB\nNode 0 MemFree: 30000000 kB\n");
    record("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 33554432 kB\nNode 1 MemFree: 12 kB\n");
    machine.node[machine.node_count] = machine.node[0];
    machine.node[machine.node_count++].node = 1;
    setup.root = root;
    return setup;
}

Test(bw, a_node_without_room_is_left_out_of_matrices_and_the_others_are_measured) {
    const struct farm_bw_setup setup = setup_with_a_full_node();
    static const char *const names[] = {"latency", "bandwidth"}, *const figures[] = {"ns.0", "bytes_per_s.0"};
    json_t *section = section_of(farm_bw_part_matrix, &setup, FARM_BW_SUMMARY, SMALL);
    for (int i = 0; i < 2; i++) {
        const json_t *matrix = json_object_get(section, names[i]), *row = value_at(matrix, figures[i]);
        cr_assert_eq(json_array_size(value_at(matrix, "memory_nodes")), 2);
        cr_assert(number_at(row, "0.median") > 0 && json_is_null(json_array_get(row, 1)), "%s", names[i]);
        assert_noted(matrix, "Left out: ");
    }
    json_decref(section);
    machine.node[1].total_bytes = 0; // a node without memory has no column
    section = section_of(farm_bw_part_matrix, &setup, FARM_BW_SUMMARY, SMALL);
    cr_assert_eq(json_array_size(value_at(section, "bandwidth.memory_nodes")), 1);
    json_decref(section);
    remove_root();
}

Test(bw, curves_over_cores_have_every_small_number_and_always_all) {
    static const int expected[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 28};
    struct farm_bw_setup setup = setup_here(1000, 1, 1e-4);
    read_machine("pack:1 [numa(memory=4GB)] core:28 pu:1"); // most of these CPUs do not exist: threads run unpinned
    with_section *section = section_of(farm_bw_part_cores, &setup, FARM_BW_SUMMARY, 64 << 10);
    const json_t *steps = value_at(section, "curves.0.steps");
    cr_assert_eq(json_array_size(steps), sizeof expected / sizeof *expected);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        cr_assert_eq(number_at(json_array_get(steps, i), "cores"), expected[i]);
        cr_assert_gt(number_at(json_array_get(steps, i), "bytes_per_s.median"), 0);
    }
    cr_assert_geq(number_at(section, "curves.0.saturated_cores"), 1);
}

Test(bw, the_ladder_climbs_from_the_first_cache_in_even_steps) {
    const struct farm_bw_setup setup = setup_here(10, 1, 1e-4);
    with_section *section = section_of(farm_bw_part_latency, &setup, FARM_BW_FULL, 4 * SMALL);
    const json_t *ladder = value_at(section, "ladder"), *rung;
    double before = 0;
    size_t i;
    json_array_foreach(ladder, i, rung) {
        cr_assert_gt(number_at(rung, "bytes"), before);
        before = number_at(rung, "bytes");
        cr_assert_eq(fmod(before, 64), 0);
    }
    cr_assert_eq(i, 2 * 10 + 1);
    cr_assert_eq(number_at(ladder, "0.bytes"), 4096);
    cr_assert_eq(before, 4 * SMALL);
    cr_assert_gt(number_at(ladder, "0.ns.median"), 0);
}

Test(bw, a_ladder_in_too_little_time_ends_within_the_cache_and_the_note_states_it) {
    const struct farm_bw_setup setup = setup_here(1e-6, 1, 1e-4);
    machine.l3_bytes = 1 << 30;
    with_section *section = section_of(farm_bw_part_latency, &setup, FARM_BW_SUMMARY, 0);
    assert_noted(section, "ends within the last-level cache");
    cr_assert(json_is_false(value_at(section, "ladder.0.ns.in_cache")), "a ladder is about caches");
}

Test(bw, the_reach_of_the_tlb_is_measured_beside_as_many_lines_close_together) {
    const struct farm_bw_setup setup = setup_here(0.3, 2, 1e-3);
    with_section *section = section_of(farm_bw_part_tlb, &setup, FARM_BW_FULL, SMALL);
    cr_assert_str_eq(json_string_value(value_at(section, "conditions.pages")), "4 KiB");
    cr_assert(number_at(section, "ladder.0.ns.median") > 0 && number_at(section, "ladder.0.dense_ns.median") > 0);
}

Test(bw, hand_offs_fill_a_symmetric_matrix) {
    const struct farm_bw_setup setup = setup_here(0.3, 2, 1e-3);
    with_section *section = section_of(farm_bw_part_handoff, &setup, FARM_BW_SUMMARY, 0);
    const json_t *ns = value_at(section, "ns");
    const size_t cpus = json_array_size(value_at(section, "cpus"));
    for (size_t a = 0; a < cpus; a++)
        for (size_t b = 0; b < cpus; b++)
            cr_assert(json_equal(json_array_get(json_array_get(ns, a), b), json_array_get(json_array_get(ns, b), a)));
    cr_assert(json_is_null(value_at(ns, "0.0")));
    if (cpus > 1) {
        cr_assert_gt(number_at(ns, "0.1"), 0);
        cr_assert_geq(json_object_size(value_at(section, "by_nearness_ns")), 1);
    } else {
        assert_noted(section, "two CPUs");
    }
}
