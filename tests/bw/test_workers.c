// Workers: wrong data found after every kernel, arrays refilled, sizes chosen and refused.
#include <criterion/criterion.h>

#include "bw/workers.h"
#include "here.h"

TestSuite(bw, .timeout = 60);

static struct farm_bw_conditions conditions;

static struct farm_bw_workers open_workers(const struct farm_bw_setup *setup, int arrays) {
    struct farm_bw_workers workers;
    const int cpu = farm_bitmap_next(&machine.allowed, 0);
    const struct farm_bw_workers_config config = {
        .cpus = &cpu, .cpu_count = 1, .node = -1, .arrays = arrays, .array_bytes = SMALL};
    conditions = farm_bw_conditions_start();
    cr_assert_eq(farm_bw_workers_open(setup, &config, &workers, &conditions, &err), FARM_OK, "%s", err.message);
    return workers;
}

Test(bw, wrong_data_after_a_run_are_an_error_that_names_the_line) {
    const struct farm_bw_setup setup = setup_here(0.4, 3, 1e-3);
    struct farm_bw_workers workers = open_workers(&setup, 3);
    for (int op = 0; op < FARM_BANDWIDTH_OPS; op++) { // one after the other on the same arrays
        const struct farm_bw_kernel kernel = {.op = (enum farm_bandwidth_op)op};
        cr_assert_eq(farm_bw_workers_prepare(&workers, &kernel, &err), FARM_OK);
        cr_assert_gt(farm_bw_workers_sample(&workers), 0);
        cr_assert_eq(farm_bw_workers_verify(&workers, &err), FARM_OK, "%s", err.message);
        struct farm_bandwidth_work *work = &workers.worker[0].work;
        double *array = farm_bandwidth_uses_d(work->op) ? work->d : (double *)(uintptr_t)work->a, held = array[8 * 77];
        array[8 * 77] = held + 1;
        cr_assert_eq(farm_bw_workers_verify(&workers, &err), FARM_E_IO);
        cr_assert(strstr(err.message, "line 77"), "%s", err.message);
        array[8 * 77] = held;
        workers.worker[0].sum++;
        cr_assert_eq(farm_bw_workers_verify(&workers, &err), op == FARM_BANDWIDTH_READ ? FARM_E_IO : FARM_OK);
    }
    farm_bw_workers_close(&workers);
}

Test(bw, an_array_is_filled_again_after_a_kernel_wrote_to_it) {
    static const enum farm_bandwidth_op ops[] = {FARM_BANDWIDTH_READ, FARM_BANDWIDTH_WRITE, FARM_BANDWIDTH_READ};
    const struct farm_bw_setup setup = setup_here(0.4, 3, 1e-3);
    struct farm_bw_workers workers = open_workers(&setup, 1);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(farm_bw_workers_prepare(&workers, &(struct farm_bw_kernel){.op = ops[i]}, NULL), FARM_OK);
        farm_bw_workers_sample(&workers);
        cr_assert_eq(farm_bw_workers_verify(&workers, NULL), FARM_OK, "op %d of three", i);
    }
    farm_bw_workers_close(&workers);
}

Test(bw, absurd_arrays_are_refused_before_anything_is_allocated) {
    static const struct {
        uint64_t array_bytes;
        enum farm_status status;
        const char *words;
    } cases[] = {{UINT64_MAX / 64 * 64, FARM_E_LIMIT, "GiB"}, // the available memory
                 {1ull << 60, FARM_E_LIMIT, "GiB"},
                 {1ull << 45, FARM_E_LIMIT, "GiB"},
                 {32, FARM_E_INVALID, "at least a line"}};
    const struct farm_bw_setup setup = setup_here(0.4, 3, 1e-3);
    const int cpu = farm_bitmap_next(&machine.allowed, 0);
    struct farm_bw_workers workers;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct farm_bw_workers_config config = {
            .cpus = &cpu, .cpu_count = 1, .node = -1, .arrays = 3, .array_bytes = cases[i].array_bytes};
        cr_assert_eq(farm_bw_workers_open(&setup, &config, &workers, &conditions, &err), cases[i].status);
        cr_assert(strstr(err.message, cases[i].words), "%s", err.message);
    }
}

Test(bw, as_many_bytes_are_used_as_the_time_suffices_for) {
    const uint64_t wanted = 4ull << 30, piece = 48 << 20; // 4 x a cache of 1 GiB
    const double rates[] = {0.1e9, 2e9, 20e9, 500e9}, seconds[] = {-1, 0, 1e-3, 1, 30};
    for (size_t r = 0; r < sizeof rates / sizeof *rates; r++)
        for (size_t s = 0, last = 0; s < sizeof seconds / sizeof *seconds; s++)
            for (int figures = 1; figures <= 6; figures += 5) {
                const double took_s = (double)piece / rates[r];
                const uint64_t bytes = farm_bw_bytes_in_time(wanted, piece, took_s, figures, seconds[s]);
                cr_assert(bytes >= 64 && bytes % 64 == 0 && bytes <= wanted);
                cr_assert(bytes == 64 || (double)bytes / rates[r] * figures <= seconds[s] * (1 + 1e-9),
                          "%g GB/s, %g s: %llu bytes", rates[r] * 1e-9, seconds[s], (unsigned long long)bytes);
                if (figures > 1) continue;
                cr_assert_geq(bytes, last, "more time, less memory");
                last = bytes;
            }
    cr_assert_eq(farm_bw_bytes_in_time(wanted, piece, 1e-3, 6, 30), wanted);
    cr_assert_eq(farm_bw_bytes_in_time(wanted, piece, 0, 6, 0), wanted, "too short to measure");
}

Test(bw, cpus_are_one_a_core) {
    int cpus[64];
    read_machine("pack:1 [numa(memory=4GB)] l3:2 core:3 pu:2");
    cr_assert_eq(farm_bw_cpus(&machine, -1, cpus, 64), 6);
    for (int i = 1; i < 6; i++)
        cr_assert_neq(farm_machine_cpu(&machine, cpus[i])->core, farm_machine_cpu(&machine, cpus[i - 1])->core);
    cr_assert_eq(farm_bw_cpus(&machine, -1, cpus, 5), 5);
    cr_assert_eq(farm_bw_cpus(&machine, 7, cpus, 64), 0);
}
