// Bandwidth: figures on this machine's own CPUs from small arrays, shapes of tables on machines that are not there,
// refusals, and what is left when somebody stops it. Speed is not looked at: ratios of it are the benchmarks' matter.
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "../support/recorded.h"
#include "bw/latency.h"
#include "bw/memory.h"
#include "bw/pages.h"
#include "bw/workers.h"
#include "here.h"

static struct farm_error err;

TestSuite(bw, .timeout = 60);

enum { SMALL = 1 << 20 };

static struct farm_bw_setup here(void) {
    return setup_here(0.4, 3, 1e-3);
}

static void read_synthetic(const char *text, struct farm_machine *out) {
    const struct farm_machine_source source = {.synthetic = text};
    cr_assert_eq(farm_machine_read(out, &source, &err), FARM_OK, "%s", err.message);
}

static bool is_rate(const struct farm_bw_figure *figure) {
    return figure->samples >= 1 && figure->median > 0 && isfinite(figure->median) && figure->spread >= 0;
}

Test(bw, every_kernel_gives_a_verified_rate) {
    const struct farm_bw_setup setup = here();
    for (int op = 0; op < FARM_BANDWIDTH_OPS; op++)
        for (int pattern = 0; pattern < 3; pattern++) {
            const struct farm_bw_memory_config config = {.op = (enum farm_bandwidth_op)op,
                                                         .pattern = (enum farm_bandwidth_pattern)pattern,
                                                         .array_bytes = SMALL,
                                                         .node = -1};
            struct farm_bw_memory_result result;
            cr_assert_eq(farm_bw_memory(&setup, &config, &result, &err), FARM_OK, "%s", err.message);
            cr_assert(is_rate(&result.bytes_per_s), "op %d pattern %d", op, pattern);
            cr_assert(result.conditions.verified && !result.conditions.stopped);
            cr_assert_eq(result.threads, 1);
        }
}

Test(bw, wrong_data_after_a_run_are_an_error_that_names_the_line) {
    const struct farm_bw_setup setup = here();
    struct farm_bw_conditions conditions = farm_bw_conditions_start();
    struct farm_bw_workers workers;
    const int cpu = farm_bitmap_next(&machine.allowed, 0);
    const struct farm_bw_workers_config config = {
        .cpus = &cpu, .cpu_count = 1, .node = -1, .arrays = 3, .array_bytes = SMALL};
    cr_assert_eq(farm_bw_workers_open(&setup, &config, &workers, &conditions, &err), FARM_OK, "%s", err.message);
    for (int op = 0; op < FARM_BANDWIDTH_OPS; op++) { // one after the other on the same arrays
        cr_assert_eq(farm_bw_workers_prepare(&workers, (enum farm_bandwidth_op)op, FARM_BANDWIDTH_TEMPORAL,
                                             FARM_BANDWIDTH_SEQUENTIAL, 0, &err),
                     FARM_OK);
        cr_assert_gt(farm_bw_workers_sample(&workers), 0);
        cr_assert_eq(farm_bw_workers_verify(&workers, &err), FARM_OK, "%s", err.message);
        struct farm_bandwidth_work *work = &workers.actor[0].work;
        double *array = farm_bandwidth_uses_d(work->op) ? work->d : (double *)(uintptr_t)work->a, held = array[8 * 77];
        array[8 * 77] = held + 1;
        cr_assert_eq(farm_bw_workers_verify(&workers, &err), FARM_E_IO);
        cr_assert(strstr(err.message, "line 77"), "%s", err.message);
        array[8 * 77] = held;
        workers.actor[0].sum++;
        cr_assert_eq(farm_bw_workers_verify(&workers, &err), op == FARM_BANDWIDTH_READ ? FARM_E_IO : FARM_OK);
    }
    farm_bw_workers_close(&workers);
}

Test(bw, an_array_that_is_read_again_after_it_was_written_is_filled_again) {
    const struct farm_bw_setup setup = here();
    struct farm_bw_conditions conditions = farm_bw_conditions_start();
    struct farm_bw_workers workers;
    const int cpu = farm_bitmap_next(&machine.allowed, 0);
    const struct farm_bw_workers_config config = {
        .cpus = &cpu, .cpu_count = 1, .node = -1, .arrays = 1, .array_bytes = SMALL};
    cr_assert_eq(farm_bw_workers_open(&setup, &config, &workers, &conditions, NULL), FARM_OK);
    const enum farm_bandwidth_op ops[] = {FARM_BANDWIDTH_READ, FARM_BANDWIDTH_WRITE, FARM_BANDWIDTH_READ};
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(
            farm_bw_workers_prepare(&workers, ops[i], FARM_BANDWIDTH_TEMPORAL, FARM_BANDWIDTH_SEQUENTIAL, 0, NULL),
            FARM_OK);
        farm_bw_workers_sample(&workers);
        cr_assert_eq(farm_bw_workers_verify(&workers, NULL), FARM_OK, "op %d of three", i);
    }
    farm_bw_workers_close(&workers);
}

Test(bw, bus_factor_counts_the_lines_fetched_for_ordinary_stores) {
    struct farm_bw_setup setup = here();
    struct farm_bw_memory_result result;
    struct farm_bw_memory_config config = {.op = FARM_BANDWIDTH_COPY, .array_bytes = SMALL, .node = -1};
    cr_assert_eq(farm_bw_memory(&setup, &config, &result, NULL), FARM_OK);
    cr_assert_float_eq(result.bus_factor, 1.5, 1e-12);
    // The portable kernels have no stores past the caches: ordinary ones are made, counted as such, and said.
    config.stores = FARM_BANDWIDTH_NONTEMPORAL;
    setup.variant = FARM_BANDWIDTH_PORTABLE;
    cr_assert_eq(farm_bw_memory(&setup, &config, &result, NULL), FARM_OK);
    cr_assert_eq(result.stores, FARM_BANDWIDTH_TEMPORAL);
    cr_assert_float_eq(result.bus_factor, 1.5, 1e-12);
    cr_assert(strstr(result.conditions.note, "non-temporal"), "%s", result.conditions.note);
}

Test(bw, strides_longer_than_a_threads_arrays_are_left_out_and_said) {
    struct farm_bw_setup setup = here();
    setup.seconds = 1000; // the time is not what leaves them out
    const struct farm_bw_kernels_config config = {.array_bytes = 64 * 64, .extent = FARM_BW_KERNELS_ALL};
    struct farm_bw_kernels_result result;
    cr_assert_eq(farm_bw_kernels(&setup, &config, &result, &err), FARM_OK, "%s", err.message);
    for (int i = 0; i < result.rows; i++)
        cr_assert_eq(farm_bw_figure_is(&result.row[i].cores), result.row[i].pattern != FARM_BANDWIDTH_STRIDED);
    cr_assert(strstr(result.conditions.note, "stride"), "%s", result.conditions.note);
}

// This machine with a second node, all of whose memory others have.
static struct farm_bw_setup with_a_full_node(void) {
    struct farm_bw_setup setup = here();
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
    const struct farm_bw_setup setup = with_a_full_node();
    const struct farm_bw_matrix_config config = {.array_bytes = SMALL};
    struct farm_bw_matrix matrix;
    for (int latency = 0; latency < 2; latency++) {
        enum farm_status status = latency ? farm_bw_matrix_latency(&setup, &config, &matrix, &err)
                                          : farm_bw_matrix_bandwidth(&setup, &config, &matrix, &err);
        cr_assert_eq(status, FARM_OK, "%s", err.message);
        cr_assert_eq(matrix.columns, 2);
        cr_assert(farm_bw_figure_is(&matrix.cell[0]) && !farm_bw_figure_is(&matrix.cell[1]));
        cr_assert(strstr(matrix.conditions.note, "Left out: "), "%s", matrix.conditions.note);
        farm_bw_matrix_free(&matrix);
    }
    remove_root();
}

Test(bw, absurd_bandwidth_arrays_are_refused_before_anything_is_allocated) {
    const struct farm_bw_setup setup = here();
    struct farm_bw_memory_result result;
    const uint64_t absurd[] = {UINT64_MAX / 64 * 64, 1ull << 60, 1ull << 45};
    for (int i = 0; i < 3; i++) {
        const struct farm_bw_memory_config config = {.op = FARM_BANDWIDTH_TRIAD, .array_bytes = absurd[i], .node = -1};
        cr_assert_eq(farm_bw_memory(&setup, &config, &result, &err), FARM_E_LIMIT);
        cr_assert(strstr(err.message, "GiB"), "what is there is not said: %s", err.message);
    }
}

Test(bw, a_config_that_makes_no_sense_is_refused) {
    const struct farm_bw_setup setup = here();
    struct farm_bw_memory_result result;
    struct farm_bw_memory_config config = {
        .array_bytes = SMALL, .node = -1, .cpus = (const int[]){4000}, .cpu_count = 1};
    cr_assert_eq(farm_bw_memory(&setup, &config, &result, &err), FARM_E_INVALID);
    cr_assert(strstr(err.message, "4000"), "%s", err.message);
    config = (struct farm_bw_memory_config){.array_bytes = SMALL, .node = 63};
    cr_assert_eq(farm_bw_memory(&setup, &config, &result, &err), FARM_E_LIMIT);
    config = (struct farm_bw_memory_config){
        .array_bytes = SMALL, .node = -1, .pattern = FARM_BANDWIDTH_STRIDED, .stride_bytes = 100};
    cr_assert_eq(farm_bw_memory(&setup, &config, &result, &err), FARM_E_INVALID);
    config = (struct farm_bw_memory_config){.array_bytes = 32, .node = -1};
    cr_assert_eq(farm_bw_memory(&setup, &config, &result, &err), FARM_E_INVALID);
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
    cr_assert_eq(farm_bw_bytes_in_time(wanted, piece, 0, 6, 0), wanted, "too fast to be seen");
}

// A cache of 1 GiB and hardly any time stand for memory that is as slow.
Test(bw, the_main_table_is_complete_on_any_cache_in_any_time_and_says_what_is_no_figure_of_memory) {
    struct farm_bw_setup setup = here();
    static struct farm_bw_kernels_result result;
    int cpus[FARM_CPUS_MAX];
    const int count = farm_bw_cpus(&machine, -1, false, cpus, FARM_CPUS_MAX);
    machine.l3_bytes = 1 << 30;
    const uint64_t cache_bytes = farm_bw_cache_bytes(&machine, cpus, count);
    const double seconds[] = {1e-6, 0.02, 0.5};
    for (int i = 0; i < 3; i++) {
        setup.seconds = seconds[i];
        for (int extent = FARM_BW_KERNELS_FEW; extent <= FARM_BW_KERNELS_ALL; extent++) {
            const struct farm_bw_kernels_config config = {.extent = (enum farm_bw_kernels_extent)extent};
            cr_assert_eq(farm_bw_kernels(&setup, &config, &result, &err), FARM_OK, "%s", err.message);
            cr_assert(result.conditions.verified);
            cr_assert_lt(result.array_bytes, farm_bw_array_bytes(&setup, cpus, count));
            cr_assert(strstr(result.conditions.note, "is short"), "%s", result.conditions.note);
            int complete = 0;
            for (int row = 0; row < result.rows; row++) {
                const struct farm_bw_kernel_row *at = &result.row[row];
                const bool in_cache = farm_bandwidth_arrays(at->op) * result.array_bytes <= cache_bytes;
                if (farm_bw_figure_is(&at->cores)) cr_assert_eq(at->cores.in_cache, in_cache);
                complete += complete == row && is_rate(&at->one) && is_rate(&at->cores);
            }
            cr_assert_geq(complete,
                          extent == FARM_BW_KERNELS_FEW                   ? 3
                          : farm_bandwidth_has_nontemporal(setup.variant) ? 5
                                                                          : 3,
                          "%d of %d rows", complete, result.rows);
            for (int row = 0; row < complete && row < 3; row++) cr_assert_leq(result.row[row].op, FARM_BANDWIDTH_TRIAD);
        }
    }
}

Test(bw, who_stops_a_table_gets_the_rows_measured_so_far) {
    struct farm_bw_setup setup = here();
    static struct farm_bw_kernels_result result;
    int left = 8;
    const struct farm_bw_control control = {.stop = stop_after, .context = &left};
    setup.control = &control;
    setup.seconds = 1000; // the time is not what ends it
    const struct farm_bw_kernels_config config = {.array_bytes = SMALL};
    cr_assert_eq(farm_bw_kernels(&setup, &config, &result, NULL), FARM_OK);
    cr_assert(result.conditions.stopped);
    cr_assert(is_rate(&result.row[0].cores));
    cr_assert_not(farm_bw_figure_is(&result.row[result.rows - 1].one));
    cr_assert(isnan(result.row[result.rows - 1].one.median));
    left = 0;
    cr_assert_eq(farm_bw_kernels(&setup, &config, &result, NULL), FARM_OK);
    cr_assert_not(farm_bw_figure_is(&result.row[0].cores), "stopped before it began");
}

Test(bw, time_that_is_over_leaves_figures_out_and_says_so) {
    struct farm_bw_setup setup = here();
    setup.seconds = 1e-6;
    struct farm_bw_mix_result result;
    const struct farm_bw_mix_config config = {.array_bytes = SMALL};
    cr_assert_eq(farm_bw_mix(&setup, &config, &result, NULL), FARM_OK);
    cr_assert(result.conditions.out_of_time && !result.conditions.stopped);
    cr_assert(farm_bw_figure_is(&result.row[0].bytes_per_s), "the first is always taken");
    cr_assert_not(farm_bw_figure_is(&result.row[FARM_BW_MIXES - 1].bytes_per_s));
}

Test(bw, matrices_have_a_row_for_nodes_with_cpus_and_a_column_for_nodes_with_memory) {
    static struct farm_machine four;
    struct farm_bw_matrix matrix;
    read_synthetic("pack:2 [numa(memory=4GB)] [numa(memory=4GB)] l3:1 core:4 pu:2", &four);
    cr_assert_eq(farm_bw_matrix_shape(&four, &matrix, NULL), FARM_OK);
    cr_assert_eq(matrix.columns, 4);
    cr_assert_geq(matrix.rows, 2);
    int threads = 0;
    for (int i = 0; i < matrix.rows; i++) threads += matrix.threads[i];
    cr_assert_eq(threads, 8, "each core once: %d", threads);
    for (int i = 0; i < matrix.rows * matrix.columns; i++) cr_assert_not(farm_bw_figure_is(&matrix.cell[i]));
    farm_bw_matrix_free(&matrix);
    farm_bw_matrix_free(&matrix);
    // A node without memory is no column.
    four.node[3].total_bytes = 0;
    cr_assert_eq(farm_bw_matrix_shape(&four, &matrix, NULL), FARM_OK);
    cr_assert_eq(matrix.columns, 3);
    farm_bw_matrix_free(&matrix);
}

Test(bw, this_machines_matrix_is_full) {
    const struct farm_bw_setup setup = here();
    struct farm_bw_matrix matrix;
    const struct farm_bw_matrix_config config = {.array_bytes = SMALL};
    cr_assert_eq(farm_bw_matrix_bandwidth(&setup, &config, &matrix, &err), FARM_OK, "%s", err.message);
    for (int i = 0; i < matrix.rows * matrix.columns && !matrix.conditions.out_of_time; i++)
        cr_assert(is_rate(&matrix.cell[i]), "cell %d", i);
    cr_assert(matrix.conditions.placed || matrix.conditions.note[0]);
    farm_bw_matrix_free(&matrix);
}

Test(bw, cpus_are_one_a_core_unless_threads_are_wanted) {
    static struct farm_machine machine_;
    int cpus[64];
    read_synthetic("pack:1 [numa(memory=4GB)] l3:2 core:3 pu:2", &machine_);
    cr_assert_eq(farm_bw_cpus(&machine_, -1, false, cpus, 64), 6);
    for (int i = 1; i < 6; i++)
        cr_assert_neq(farm_machine_cpu(&machine_, cpus[i])->core, farm_machine_cpu(&machine_, cpus[i - 1])->core);
    cr_assert_eq(farm_bw_cpus(&machine_, -1, true, cpus, 64), 12);
    cr_assert_eq(farm_bw_cpus(&machine_, -1, true, cpus, 5), 5);
    cr_assert_eq(farm_bw_cpus(&machine_, 7, false, cpus, 64), 0);
}

Test(bw, curves_over_cores_take_every_small_number_and_always_all) {
    int steps[FARM_BW_CORES_STEPS_MAX];
    cr_assert_eq(farm_bw_cores_steps(1, steps, FARM_BW_CORES_STEPS_MAX), 1);
    const int expected[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 28};
    const int count = farm_bw_cores_steps(28, steps, FARM_BW_CORES_STEPS_MAX);
    cr_assert_eq(count, 10, "%d", count);
    cr_assert_arr_eq(steps, expected, sizeof expected);
    cr_assert_eq(steps[farm_bw_cores_steps(4096, steps, 8) - 1], 4096);
    const struct farm_bw_setup setup = here();
    struct farm_bw_cores_result result;
    const struct farm_bw_cores_config config = {.op = FARM_BANDWIDTH_COPY, .array_bytes = SMALL};
    cr_assert_eq(farm_bw_cores(&setup, &config, &result, NULL), FARM_OK);
    cr_assert_geq(result.curves, 1);
    cr_assert(is_rate(&result.curve[0].step[0].bytes_per_s));
    cr_assert_geq(result.curve[0].saturated_cores, 1);
    farm_bw_cores_free(&result);
}

Test(bw, page_sizes_are_measured_or_said_to_be_missing) {
    struct farm_bw_setup setup = here();
    static struct farm_bw_pages_result result;
    const struct farm_bw_pages_config config = {.array_bytes = 4 * SMALL};
    cr_assert_eq(farm_bw_page_sizes(&setup, &config, &result, NULL), FARM_OK);
    for (int i = 0; i < 4; i++) {
        if (result.row[i].available) continue;
        cr_assert(result.row[i].reason[0], "row %d", i);
        cr_assert_not(farm_bw_figure_is(&result.row[i].read_bytes_per_s));
    }
    cr_assert(result.row[0].available && is_rate(&result.row[0].read_bytes_per_s));
}
