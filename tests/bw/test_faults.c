// Measurements where the machine refuses: without the right to bind, to pin, to ask where pages lie, to have huge
// pages; and every call that can fail made to fail in turn: an error or a result, and nothing left behind.
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "../support/faults.h"
#include "bw/handoff.h"
#include "bw/latency.h"
#include "bw/memory.h"
#include "here.h"

TestSuite(bw, .timeout = 120);

enum { SMALL = 64 << 10 };

static struct farm_bw_setup here(void) {
    return setup_here(1e-3, 1, 1e-4);
}

#define says(where, text) cr_assert(strstr(where, text), "'%s' does not say '%s'", where, text)

static const struct farm_bw_memory_config copy = {.op = FARM_BANDWIDTH_COPY, .array_bytes = SMALL, .node = -1};

// What is measured under the faults that the test has set; they end with it.
static struct farm_bw_memory_result measured(const struct farm_bw_setup *setup,
                                             const struct farm_bw_memory_config *config) {
    struct farm_bw_memory_result result;
    struct farm_error err = {0};
    enum farm_status status = farm_bw_memory(setup, config, &result, &err);
    farm_faults_clear();
    cr_assert_eq(status, FARM_OK, "%s", err.message);
    return result;
}

Test(bw, without_the_right_to_bind_or_to_pin_it_is_measured_and_said) {
    const struct farm_bw_setup setup = here();
    farm_faults_fail("mbind", 1, 1000, EPERM);
    farm_faults_fail("sched_setaffinity", 1, 1000, EPERM);
    const struct farm_bw_memory_result result = measured(&setup, &copy);
    cr_assert(farm_bw_figure_is(&result.bytes_per_s));
    cr_assert(!result.conditions.bound && !result.conditions.pinned && result.conditions.verified);
    says(result.conditions.note, "mbind");
    says(result.conditions.note, "pin");
}

Test(bw, where_pages_lie_is_said_to_be_unknown_where_nobody_tells) {
    const struct farm_bw_setup setup = here();
    farm_faults_fail("move_pages", 1, 1000, EPERM);
    farm_faults_fail("fopen", 1, 1000, EACCES);
    const struct farm_bw_memory_result result = measured(&setup, &copy);
    cr_assert_not(result.conditions.placed);
    says(result.conditions.note, "cannot be asked");
}

Test(bw, memory_that_may_not_choose_its_pages_is_measured_as_it_is) {
    const struct farm_bw_setup setup = here();
    struct farm_bw_memory_config large = copy;
    large.array_bytes = 4 << 20;
    farm_faults_fail("madvise", 1, 1000, EINVAL);
    const struct farm_bw_memory_result result = measured(&setup, &large);
    says(result.conditions.note, "page size");
}

static long all_elsewhere(int pid, unsigned long count, void **pages, const int *to, int *status, int flags) {
    for (unsigned long i = 0; i < count; i++) status[i] = 7;
    return 0;
}

Test(bw, pages_on_another_node_are_found) {
    const struct farm_bw_setup setup = here();
    farm_faults_replace("move_pages", (void (*)(void))all_elsewhere);
    const struct farm_bw_memory_result result = measured(&setup, &copy);
    cr_assert_not(result.conditions.placed);
    says(result.conditions.note, "elsewhere");
}

// ---- every call fails once ----

static enum farm_status try_memory(const struct farm_bw_setup *setup, struct farm_error *err) {
    struct farm_bw_memory_result result;
    struct farm_bw_memory_config config = copy;
    config.pattern = FARM_BANDWIDTH_LISTED;
    return farm_bw_memory(setup, &config, &result, err);
}

static enum farm_status try_matrices(const struct farm_bw_setup *setup, struct farm_error *err) {
    struct farm_bw_matrix matrix = {0};
    const struct farm_bw_matrix_config config = {.array_bytes = SMALL};
    enum farm_status status = farm_bw_matrix_bandwidth(setup, &config, &matrix, err);
    farm_bw_matrix_free(&matrix);
    if (!status) status = farm_bw_matrix_latency(setup, &config, &matrix, err);
    farm_bw_matrix_free(&matrix);
    return status;
}

static enum farm_status try_cores(const struct farm_bw_setup *setup, struct farm_error *err) {
    struct farm_bw_cores_result result = {0};
    const struct farm_bw_cores_config config = {.array_bytes = SMALL};
    enum farm_status status = farm_bw_cores(setup, &config, &result, err);
    farm_bw_cores_free(&result);
    return status;
}

static enum farm_status try_ladder(const struct farm_bw_setup *setup, struct farm_error *err) {
    static struct farm_bw_ladder_result result;
    const struct farm_bw_ladder_config config = {.bytes_most = SMALL, .steps_per_doubling = 1};
    enum farm_status status = farm_bw_ladder(setup, &config, &result, err);
    return status ? status : farm_bw_tlb(setup, &config, &result, err);
}

static enum farm_status try_loaded(const struct farm_bw_setup *setup, struct farm_error *err) {
    static struct farm_bw_loaded_result result;
    const struct farm_bw_loaded_config config = {
        .delays = (const int[]){0}, .delay_count = 1, .array_bytes = SMALL, .chase_bytes = SMALL};
    return farm_bw_loaded(setup, &config, &result, err);
}

static enum farm_status try_handoff(const struct farm_bw_setup *setup, struct farm_error *err) {
    struct farm_bw_handoff_result result;
    const struct farm_bw_handoff_config config = {.cpus_most = 2};
    enum farm_status status = farm_bw_handoff(setup, &config, &result, err);
    farm_bw_handoff_free(&result);
    return status;
}

static void sweep_over(enum farm_status (*measure)(const struct farm_bw_setup *setup, struct farm_error *err)) {
    const struct farm_bw_setup setup = here();
    unsigned failed = 0;
    for (struct farm_sweep sweep = {0}; farm_sweep_next(&sweep);) {
        struct farm_error err = {0};
        enum farm_status status = measure(&setup, &err);
        const struct farm_fault fault = farm_sweep_end(&sweep);
        const char *call = fault.call ? fault.call : "nothing";
        cr_assert(fault.call || status == FARM_OK, "undisturbed, and yet: %s", err.message);
        if (status) cr_assert(err.message[0], "%s failed, and nothing is said", call);
        failed += status != FARM_OK;
        const char *left = farm_sweep_left(&sweep, &fault);
        cr_assert_null(left, "%s (%d, the %u.) failed: %s", call, fault.error, fault.number, left);
    }
    cr_assert_gt(failed, 0, "no fault was one: the sweep tried nothing");
}

Test(bw, bandwidth_survives_every_fault) {
    sweep_over(try_memory);
}
Test(bw, matrices_survive_every_fault) {
    sweep_over(try_matrices);
}
Test(bw, curves_survive_every_fault) {
    sweep_over(try_cores);
}
Test(bw, ladders_survive_every_fault) {
    sweep_over(try_ladder);
}
Test(bw, loaded_latency_survives_every_fault) {
    int cpus[2];
    if (farm_bw_cpus(here().machine, -1, false, cpus, 2) < 2) cr_skip_test("one core: nothing to load it with");
    sweep_over(try_loaded);
}
Test(bw, hand_overs_survive_every_fault) {
    sweep_over(try_handoff);
}
