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

static long place_elsewhere(int pid, unsigned long count, void **pages, const int *to, int *status, int flags) {
    for (unsigned long i = 0; i < count; i++) status[i] = 7;
    return 0;
}

Test(bw, what_the_kernel_refuses_is_measured_without_and_noted) {
    static const struct {
        const char *call, *second; // second NULL: one call fails
        int error, second_error;   // 0: it is replaced
        uint64_t array_bytes;
        bool *missing, *second_missing; // conditions that do not hold
        const char *note, *second_note;
    } cases[] = {
        {"mbind", "sched_setaffinity", EPERM, EPERM, TINY, &conditions.bound, &conditions.pinned, "mbind", "pin"},
        {"move_pages", "fopen", EPERM, EACCES, TINY, &conditions.placed, &conditions.placed, "is unknown", ""},
        {"madvise", NULL, EINVAL, 0, 4 << 20, NULL, NULL, "page size", ""},
        {"move_pages", NULL, 0, 0, TINY, &conditions.placed, &conditions.placed, "elsewhere", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct farm_bw_setup setup = here();
        const struct farm_bw_kernel copy = {.op = FARM_BANDWIDTH_COPY};
        if (cases[i].error)
            farm_faults_fail(cases[i].call, 1, 1000, cases[i].error);
        else
            farm_faults_replace(cases[i].call, (void (*)(void))place_elsewhere);
        if (cases[i].second) farm_faults_fail(cases[i].second, 1, 1000, cases[i].second_error);
        const enum farm_status status = measure_kernel(&setup, copy, cases[i].array_bytes, &err);
        farm_faults_clear();
        cr_assert_eq(status, FARM_OK, "%s", err.message);
        cr_assert(farm_bw_figure_is(&figure) && conditions.verified, "%s", cases[i].call);
        if (cases[i].missing) cr_assert(!*cases[i].missing && !*cases[i].second_missing, "%s", cases[i].call);
        assert_contains(conditions.note, cases[i].note);
        assert_contains(conditions.note, cases[i].second_note);
    }
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

#define SWEEP_OF_TWO_CORES(what, part, depth)                                                                          \
    Test(bw, what##_survives_every_fault) {                                                                            \
        (void)here();                                                                                                  \
        skip_without_two_cores();                                                                                      \
        sweep_over(part, depth);                                                                                       \
    }
SWEEP_OF_TWO_CORES(loaded_latency, farm_bw_part_loaded, FARM_BW_SUMMARY)
SWEEP_OF_TWO_CORES(a_lane, farm_bw_part_ring, FARM_BW_QUICK)
