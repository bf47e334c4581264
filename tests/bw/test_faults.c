// Measurements without the right to bind, to pin, to read the placement of pages, to choose huge pages; and with every
// call failing in turn: an error or a result, and nothing left behind.
#include <criterion/criterion.h>
#include <errno.h>

#include "../support/faults.h"
#include "bw/workers.h"
#include "here.h"

TestSuite(bw, .timeout = 120);

enum { TINY = 64 << 10 };

static struct farm_bw_conditions conditions;
static struct farm_bw_figure figure;

static enum farm_status measure_kernel(const struct farm_bw_setup *setup, struct farm_bw_kernel kernel,
                                       uint64_t array_bytes, struct farm_error *why) {
    const int cpu = farm_bitmap_next(&machine.allowed, 0);
    conditions = farm_bw_conditions_start();
    struct farm_bw_clock clock = farm_bw_clock_start(setup, 1e-3, 1, &conditions);
    return farm_bw_bandwidth(&clock, &kernel, &cpu, 1, -1, array_bytes, &figure, why);
}

static struct farm_bw_setup here(void) {
    return setup_here(2e-4, 1, 1e-4);
}

#define assert_contains(note, text) cr_assert(strstr(note, text), "'%s' is not in '%s'", text, note)

// What the faults set by the test do to a figure; they end with it.
static void measure_under_faults(const struct farm_bw_setup *setup, uint64_t array_bytes) {
    enum farm_status status =
        measure_kernel(setup, (struct farm_bw_kernel){.op = FARM_BANDWIDTH_COPY}, array_bytes, &err);
    farm_faults_clear();
    cr_assert_eq(status, FARM_OK, "%s", err.message);
    cr_assert(farm_bw_figure_is(&figure) && conditions.verified);
}

Test(bw, without_the_right_to_bind_or_to_pin_it_is_measured_and_noted) {
    const struct farm_bw_setup setup = here();
    farm_faults_fail("mbind", 1, 1000, EPERM);
    farm_faults_fail("sched_setaffinity", 1, 1000, EPERM);
    measure_under_faults(&setup, TINY);
    cr_assert(!conditions.bound && !conditions.pinned);
    assert_contains(conditions.note, "mbind");
    assert_contains(conditions.note, "pin");
}

Test(bw, placement_that_the_kernel_does_not_report_is_noted_as_unknown) {
    const struct farm_bw_setup setup = here();
    farm_faults_fail("move_pages", 1, 1000, EPERM);
    farm_faults_fail("fopen", 1, 1000, EACCES);
    measure_under_faults(&setup, TINY);
    cr_assert_not(conditions.placed);
    assert_contains(conditions.note, "is unknown");
}

Test(bw, memory_that_may_not_choose_its_pages_is_measured_as_it_is) {
    const struct farm_bw_setup setup = here();
    farm_faults_fail("madvise", 1, 1000, EINVAL);
    measure_under_faults(&setup, 4 << 20);
    assert_contains(conditions.note, "page size");
}

static long place_elsewhere(int pid, unsigned long count, void **pages, const int *to, int *status, int flags) {
    for (unsigned long i = 0; i < count; i++) status[i] = 7;
    return 0;
}

Test(bw, pages_on_another_node_are_found) {
    const struct farm_bw_setup setup = here();
    farm_faults_replace("move_pages", (void (*)(void))place_elsewhere);
    measure_under_faults(&setup, TINY);
    cr_assert_not(conditions.placed);
    assert_contains(conditions.note, "elsewhere");
}

// ---- every call fails once ----

// A part whose report is kept out of the sweep's account: the streams and lists are the test's own.
static struct farm_bw_job job;

static enum farm_status sweep_part(farm_bw_part *part, struct farm_error *why) {
    json_t *section = json_object();
    const enum farm_status status = part(&job, section, why);
    json_decref(section);
    json_array_clear(job.results);
    return status;
}

static void sweep_over(farm_bw_part *part, enum farm_bw_depth depth) {
    unsigned failed = 0;
    job = (struct farm_bw_job){.depth = depth, .setup = here(), .size_bytes = TINY, .columns = 100};
    job.out = fopen("/dev/null", "w");
    job.results = json_array();
    for (struct farm_sweep sweep = {.one_error = true}; farm_sweep_next(&sweep);) {
        struct farm_error why = {0};
        enum farm_status status =
            part ? sweep_part(part, &why)
                 : measure_kernel(&job.setup, (struct farm_bw_kernel){.pattern = FARM_BANDWIDTH_LISTED}, TINY, &why);
        const struct farm_fault fault = farm_sweep_end(&sweep);
        const char *call = fault.call ? fault.call : "nothing";
        cr_assert(fault.call || status == FARM_OK, "undisturbed, and yet: %s", why.message);
        if (status) cr_assert(why.message[0], "%s failed without a message", call);
        failed += status != FARM_OK;
        const char *left = farm_sweep_left(&sweep, &fault);
        cr_assert_null(left, "%s (%d, the %u.) failed: %s", call, fault.error, fault.number, left);
    }
    cr_assert_gt(failed, 0, "no fault had an effect: the sweep tried nothing");
    json_decref(job.results);
    fclose(job.out);
}

#define SWEEP(what, part, depth)                                                                                       \
    Test(bw, what##_survives_every_fault) {                                                                            \
        sweep_over(part, depth);                                                                                       \
    }
SWEEP(bandwidth, NULL, FARM_BW_QUICK)
SWEEP(the_main_table, farm_bw_part_memory, FARM_BW_QUICK)
SWEEP(every_matrix, farm_bw_part_matrix, FARM_BW_SUMMARY)
SWEEP(the_curve_over_cores, farm_bw_part_cores, FARM_BW_SUMMARY)
SWEEP(the_ladder, farm_bw_part_latency, FARM_BW_SUMMARY)
SWEEP(the_ladder_of_the_tlb, farm_bw_part_tlb, FARM_BW_FULL)
SWEEP(the_hand_off, farm_bw_part_handoff, FARM_BW_QUICK)

Test(bw, loaded_latency_survives_every_fault) {
    int cpus[2];
    if (farm_bw_cpus(here().machine, -1, cpus, 2) < 2) cr_skip_test("one core: nothing to load it with");
    sweep_over(farm_bw_part_loaded, FARM_BW_SUMMARY);
}
Test(bw, lanes_survive_every_fault) {
    int cpus[2];
    if (farm_bw_cpus(here().machine, -1, cpus, 2) < 2) cr_skip_test("one core: lanes need two");
    sweep_over(farm_bw_part_ring, FARM_BW_QUICK);
}
