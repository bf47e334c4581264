// See memory.h.
#include "bw/memory.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bw/workers.h"
#include "shm/limits.h"

enum { OPS = 6, MAIN_OPS = 3, STRIDE_DEFAULT = 4096 + FARM_BANDWIDTH_LINE };
static const double SATURATED = 0.95;

// ---- CPUs ----

static struct farm_bw_figure nothing(void) {
    return farm_bw_figure_of(NULL, 0);
}

static double bus_factor(enum farm_bandwidth_op op, enum farm_bandwidth_stores stores) {
    return (double)farm_bandwidth_bus_bytes(op, stores) / farm_bandwidth_program_bytes(op);
}

// What is made where non-temporal stores are asked for.
static enum farm_bandwidth_stores stores_had(const struct farm_bw_setup *setup, enum farm_bandwidth_stores asked,
                                             struct farm_bw_conditions *conditions) {
    if (asked == FARM_BANDWIDTH_TEMPORAL || farm_bandwidth_has_nontemporal(setup->variant)) return asked;
    farm_bw_conditions_note(conditions, "Kernels in plain C have no non-temporal stores: ordinary ones were made.");
    return FARM_BANDWIDTH_TEMPORAL;
}

// ---- one figure ----

enum farm_status farm_bw_memory(const struct farm_bw_setup *setup, const struct farm_bw_memory_config *config,
                                struct farm_bw_memory_result *result, struct farm_error *err) {
    int first = farm_bitmap_next(&setup->machine->allowed, 0);
    const int *cpus = config->cpu_count > 0 ? config->cpus : &first;
    const int threads = config->cpu_count > 0 ? config->cpu_count : 1;
    *result = (struct farm_bw_memory_result){.bytes_per_s = nothing(),
                                             .arrays = farm_bandwidth_arrays(config->op),
                                             .threads = threads,
                                             .variant = farm_bandwidth_resolve(setup->variant),
                                             .conditions = farm_bw_conditions_start()};
    struct farm_bw_conditions *conditions = &result->conditions;
    result->stores = stores_had(setup, config->stores, conditions);
    result->bus_factor = bus_factor(config->op, result->stores);
    struct farm_bw_clock clock = farm_bw_clock_start(setup, 5, 1, conditions);
    struct farm_bw_workers_config workers_config =
        farm_bw_workers_for(&clock, 1, cpus, threads, result->arrays, config->array_bytes);
    workers_config.node = config->node;
    workers_config.shuffled = config->pattern == FARM_BANDWIDTH_LISTED;
    struct farm_bw_workers workers;
    enum farm_status status = farm_bw_workers_open(setup, &workers_config, &workers, conditions, err);
    if (status) return status;
    result->array_bytes = workers.array_bytes;
    const uint64_t stride = config->stride_bytes ? config->stride_bytes : STRIDE_DEFAULT;
    if (farm_bw_clock_next(&clock, farm_bandwidth_op_name(config->op)))
        status = farm_bw_workers_figure(&workers, &clock, config->op, result->stores, config->pattern, stride,
                                        &result->bytes_per_s, err);
    result->passes = workers.passes;
    farm_bw_workers_close(&workers);
    return status;
}

// ---- all kernels ----

static void add_row(struct farm_bw_kernels_result *result, const struct farm_bw_setup *setup, enum farm_bandwidth_op op,
                    enum farm_bandwidth_stores stores, enum farm_bandwidth_pattern pattern) {
    assert(result->rows < FARM_BW_KERNELS_MAX);
    result->row[result->rows++] =
        (struct farm_bw_kernel_row){.op = op,
                                    .stores = stores,
                                    .pattern = pattern,
                                    .stride_bytes = pattern == FARM_BANDWIDTH_STRIDED ? STRIDE_DEFAULT : 0,
                                    .one = nothing(),
                                    .cores = nothing(),
                                    .bus_factor = bus_factor(op, stores)};
}

// The table without figures. Returns how many rows are the main ones.
static int plan_rows(struct farm_bw_kernels_result *result, const struct farm_bw_setup *setup,
                     enum farm_bw_kernels_extent extent) {
    static const enum farm_bandwidth_op ops[] = {FARM_BANDWIDTH_READ,  FARM_BANDWIDTH_COPY,  FARM_BANDWIDTH_TRIAD,
                                                 FARM_BANDWIDTH_WRITE, FARM_BANDWIDTH_SCALE, FARM_BANDWIDTH_ADD};
    const enum farm_bandwidth_pattern patterns[] = {FARM_BANDWIDTH_SEQUENTIAL, FARM_BANDWIDTH_STRIDED,
                                                    FARM_BANDWIDTH_LISTED};
    const bool few = extent == FARM_BW_KERNELS_FEW, past = farm_bandwidth_has_nontemporal(setup->variant);
    int main_rows = 0;
    for (int p = 0; p < (extent == FARM_BW_KERNELS_ALL ? 3 : 1); p++)
        for (int i = 0; i < (few ? MAIN_OPS : OPS); i++) {
            const bool stores = ops[i] != FARM_BANDWIDTH_READ && past;
            if (!few || !stores) add_row(result, setup, ops[i], FARM_BANDWIDTH_TEMPORAL, patterns[p]);
            if (stores) add_row(result, setup, ops[i], FARM_BANDWIDTH_NONTEMPORAL, patterns[p]);
            if (p == 0 && i == MAIN_OPS - 1) main_rows = result->rows;
        }
    return main_rows;
}

// All rows on these CPUs until the clock's end: the column `one`, or `cores`. The main rows are taken in any case, and
// the arrays are chosen for them.
static enum farm_status fill_column(const struct farm_bw_setup *setup, const struct farm_bw_kernels_config *config,
                                    const int *cpus, int count, bool one, int main_rows, struct farm_bw_clock *clock,
                                    struct farm_bw_kernels_result *result, struct farm_error *err) {
    struct farm_bw_workers_config workers_config =
        farm_bw_workers_for(clock, clock->figures, cpus, count, FARM_BW_ARRAYS_MAX, config->array_bytes);
    workers_config.figures = main_rows;
    workers_config.shuffled = config->extent == FARM_BW_KERNELS_ALL;
    struct farm_bw_workers workers;
    enum farm_status status = farm_bw_workers_open(setup, &workers_config, &workers, clock->conditions, err);
    if (status) return status;
    *(one ? &result->one_array_bytes : &result->array_bytes) = workers.array_bytes;
    clock->due = main_rows;
    for (int i = 0; !status && i < result->rows; i++) {
        struct farm_bw_kernel_row *row = &result->row[i];
        clock->figures = i < main_rows ? main_rows : result->rows;
        if (!farm_bw_clock_next(clock, farm_bandwidth_op_name(row->op))) break;
        if (row->pattern == FARM_BANDWIDTH_STRIDED &&
            workers.actor[0].lines < row->stride_bytes / FARM_BANDWIDTH_LINE) {
            farm_bw_conditions_note(clock->conditions,
                                    "Left out: a stride is longer than a thread's part of an array.");
            continue;
        }
        status = farm_bw_workers_figure(&workers, clock, row->op, row->stores, row->pattern, row->stride_bytes,
                                        one ? &row->one : &row->cores, err);
    }
    farm_bw_workers_close(&workers);
    return status;
}

enum farm_status farm_bw_kernels(const struct farm_bw_setup *setup, const struct farm_bw_kernels_config *config,
                                 struct farm_bw_kernels_result *result, struct farm_error *err) {
    int cpus[FARM_CPUS_MAX];
    const int count = farm_bw_cpus(setup->machine, -1, false, cpus, FARM_CPUS_MAX);
    *result = (struct farm_bw_kernels_result){
        .cores = count, .variant = farm_bandwidth_resolve(setup->variant), .conditions = farm_bw_conditions_start()};
    const int main_rows = plan_rows(result, setup, config->extent);
    struct farm_bw_clock clock =
        farm_bw_clock_start(setup, config->extent == FARM_BW_KERNELS_ALL ? 30 : 10, result->rows, &result->conditions);
    const uint64_t end_ns = clock.end_ns;
    if (count > 1) clock.end_ns -= (end_ns - clock.start_ns) / 2; // the other half is one core's
    enum farm_status status = fill_column(setup, config, cpus, count, false, main_rows, &clock, result, err);
    if (status || count < 1 || clock.conditions->stopped) return status;
    if (count == 1) {
        for (int i = 0; i < result->rows; i++) result->row[i].one = result->row[i].cores;
        result->one_array_bytes = result->array_bytes;
        return FARM_OK;
    }
    // One core has the memory of one node alone: if the size asked for does not fit, its column stays empty.
    struct farm_error why = {0};
    clock.end_ns = end_ns, clock.taken = 0;
    status = fill_column(setup, config, cpus, 1, true, main_rows, &clock, result, &why);
    return farm_bw_leave_out(status, &why, &result->conditions, err);
}

// ---- node x node ----

enum farm_status farm_bw_matrix_shape(const struct farm_machine *machine, struct farm_bw_matrix *matrix,
                                      struct farm_error *err) {
    int cpus[FARM_CPUS_MAX];
    *matrix = (struct farm_bw_matrix){.conditions = farm_bw_conditions_start()};
    for (int i = 0; i < machine->node_count; i++) {
        const struct farm_node *node = &machine->node[i];
        const int threads = farm_bw_cpus(machine, node->node, false, cpus, FARM_CPUS_MAX);
        if (threads > 0) {
            matrix->threads[matrix->rows] = threads;
            matrix->row_node[matrix->rows++] = node->node;
        }
        if (node->usable && node->total_bytes > 0) matrix->column_node[matrix->columns++] = node->node;
    }
    if (matrix->rows == 0 || matrix->columns == 0)
        return farm_fail(err, FARM_E_LIMIT, "no NUMA node with CPUs, or none with memory, that this process may use");
    const size_t cells = (size_t)matrix->rows * (size_t)matrix->columns;
    matrix->cell = malloc(cells * sizeof *matrix->cell);
    matrix->placed = calloc(cells, sizeof *matrix->placed);
    if (!matrix->cell || !matrix->placed) {
        farm_bw_matrix_free(matrix);
        return farm_fail(err, FARM_E_LIMIT, "no memory for %zu figures", cells);
    }
    for (size_t i = 0; i < cells; i++) matrix->cell[i] = nothing();
    return FARM_OK;
}

void farm_bw_matrix_free(struct farm_bw_matrix *matrix) {
    if (!matrix) return;
    free(matrix->cell);
    free(matrix->placed);
    matrix->cell = NULL;
    matrix->placed = NULL;
}

static enum farm_status bandwidth_cell(const struct farm_bw_setup *setup, const struct farm_bw_matrix_config *config,
                                       struct farm_bw_matrix *matrix, int row, int column, struct farm_bw_clock *clock,
                                       struct farm_error *err) {
    int cpus[FARM_CPUS_MAX];
    const int count = farm_bw_cpus(setup->machine, matrix->row_node[row], false, cpus, FARM_CPUS_MAX);
    struct farm_bw_workers_config workers_config =
        farm_bw_workers_for(clock, 1, cpus, count, farm_bandwidth_arrays(config->op), config->array_bytes);
    workers_config.node = matrix->column_node[column];
    struct farm_bw_workers workers;
    enum farm_status status = farm_bw_workers_open(setup, &workers_config, &workers, clock->conditions, err);
    if (status) return status;
    status = farm_bw_workers_figure(&workers, clock, config->op, FARM_BANDWIDTH_TEMPORAL, FARM_BANDWIDTH_SEQUENTIAL, 0,
                                    &matrix->cell[row * matrix->columns + column], err);
    farm_bw_workers_close(&workers);
    return status;
}

enum farm_status farm_bw_matrix_bandwidth(const struct farm_bw_setup *setup, const struct farm_bw_matrix_config *config,
                                          struct farm_bw_matrix *matrix, struct farm_error *err) {
    enum farm_status status = farm_bw_matrix_shape(setup->machine, matrix, err);
    if (status) return status;
    const int cells = matrix->rows * matrix->columns;
    bool all_placed = true;
    int measured = 0;
    struct farm_error why = {0};
    struct farm_bw_clock clock = farm_bw_clock_start(setup, 1 + 0.5 * cells, cells, &matrix->conditions);
    for (int i = 0; !status && i < cells; i++) {
        char what[64];
        const int row = i / matrix->columns, column = i % matrix->columns;
        snprintf(what, sizeof what, "bandwidth, node %d to %d", matrix->row_node[row], matrix->column_node[column]);
        if (!farm_bw_clock_next(&clock, what)) break;
        matrix->conditions.placed = true; // of this cell
        status = bandwidth_cell(setup, config, matrix, row, column, &clock, &why);
        if (!status) matrix->placed[i] = matrix->conditions.placed, measured++;
        all_placed &= matrix->conditions.placed;
        status = farm_bw_leave_out(status, &why, &matrix->conditions, err);
    }
    matrix->conditions.placed = all_placed;
    if (!status && measured == 0) status = farm_bw_all_left_out(&why, err);
    if (status) farm_bw_matrix_free(matrix);
    return status;
}

// ---- reads to writes ----

enum farm_status farm_bw_mix(const struct farm_bw_setup *setup, const struct farm_bw_mix_config *config,
                             struct farm_bw_mix_result *result, struct farm_error *err) {
    int cpus[FARM_CPUS_MAX];
    const int count = farm_bw_cpus(setup->machine, -1, false, cpus, FARM_CPUS_MAX);
    *result = (struct farm_bw_mix_result){
        .row = {{"all reads", FARM_BANDWIDTH_READ, FARM_BANDWIDTH_TEMPORAL, nothing()},
                {"3:1", FARM_BANDWIDTH_MIX31, FARM_BANDWIDTH_TEMPORAL, nothing()},
                {"2:1", FARM_BANDWIDTH_MIX21, FARM_BANDWIDTH_TEMPORAL, nothing()},
                {"1:1", FARM_BANDWIDTH_MIX11, FARM_BANDWIDTH_TEMPORAL, nothing()},
                {"triad-like", FARM_BANDWIDTH_TRIAD, FARM_BANDWIDTH_NONTEMPORAL, nothing()}},
        .threads = count,
        .conditions = farm_bw_conditions_start()};
    struct farm_bw_conditions *conditions = &result->conditions;
    result->row[FARM_BW_MIXES - 1].stores = stores_had(setup, FARM_BANDWIDTH_NONTEMPORAL, conditions);
    struct farm_bw_clock clock = farm_bw_clock_start(setup, 4, FARM_BW_MIXES, conditions);
    const struct farm_bw_workers_config workers_config =
        farm_bw_workers_for(&clock, FARM_BW_MIXES, cpus, count, FARM_BW_ARRAYS_MAX, config->array_bytes);
    struct farm_bw_workers workers;
    enum farm_status status = farm_bw_workers_open(setup, &workers_config, &workers, conditions, err);
    if (status) return status;
    for (int i = 0; !status && i < FARM_BW_MIXES; i++) {
        struct farm_bw_mix_row *row = &result->row[i];
        if (!farm_bw_clock_next(&clock, row->name)) break;
        status = farm_bw_workers_figure(&workers, &clock, row->op, row->stores, FARM_BANDWIDTH_SEQUENTIAL, 0,
                                        &row->bytes_per_s, err);
    }
    farm_bw_workers_close(&workers);
    return status;
}

// ---- number of cores ----

int farm_bw_cores_steps(int cores, int *steps, int most) {
    int count = 0;
    for (int step = 1; step < cores && count < most - 1; step += step < 4 ? 1 : step & (step - 1) ? step / 3 : step / 2)
        steps[count++] = step;
    if (cores > 0 && most > 0) steps[count++] = cores;
    return count;
}

static int saturation(const struct farm_bw_cores_curve *curve) {
    double most = 0;
    for (int i = 0; i < curve->steps; i++)
        if (curve->step[i].bytes_per_s.median > most) most = curve->step[i].bytes_per_s.median;
    for (int i = 0; i < curve->steps && most > 0; i++)
        if (curve->step[i].bytes_per_s.median >= SATURATED * most) return curve->step[i].cores;
    return 0;
}

static enum farm_status measure_curve(const struct farm_bw_setup *setup, const struct farm_bw_cores_config *config,
                                      struct farm_bw_cores_curve *curve, struct farm_bw_clock *clock,
                                      struct farm_error *err) { // FARM_E_LIMIT: the steps from here on are left out
    int cpus[FARM_CPUS_MAX];
    const int cores = farm_bw_cpus(setup->machine, curve->node, false, cpus, FARM_CPUS_MAX);
    enum farm_status status = FARM_OK;
    for (int i = 0; !status && i < curve->steps; i++) {
        struct farm_bw_cores_step *step = &curve->step[i];
        char what[64];
        snprintf(what, sizeof what, "node %d, %d of %d cores", curve->node, step->cores, cores);
        if (!farm_bw_clock_next(clock, what)) break;
        const struct farm_bw_workers_config workers_config =
            farm_bw_workers_for(clock, 1, cpus, step->cores, farm_bandwidth_arrays(config->op), config->array_bytes);
        struct farm_bw_workers workers;
        status = farm_bw_workers_open(setup, &workers_config, &workers, clock->conditions, err);
        if (status) break;
        status = farm_bw_workers_figure(&workers, clock, config->op, config->stores, FARM_BANDWIDTH_SEQUENTIAL, 0,
                                        &step->bytes_per_s, err);
        farm_bw_workers_close(&workers);
    }
    curve->saturated_cores = saturation(curve);
    return status;
}

// Curves and steps without figures; returns how many figures there will be.
static int plan_curves(const struct farm_machine *machine, struct farm_bw_cores_result *result) {
    int cpus[FARM_CPUS_MAX], steps[FARM_BW_CORES_STEPS_MAX], figures = 0;
    for (int i = 0; i < machine->node_count; i++) {
        const int cores = farm_bw_cpus(machine, machine->node[i].node, false, cpus, FARM_CPUS_MAX);
        if (cores == 0) continue;
        struct farm_bw_cores_curve *curve = &result->curve[result->curves++];
        *curve = (struct farm_bw_cores_curve){.node = machine->node[i].node};
        curve->steps = farm_bw_cores_steps(cores, steps, FARM_BW_CORES_STEPS_MAX);
        for (int k = 0; k < curve->steps; k++)
            curve->step[k] = (struct farm_bw_cores_step){.cores = steps[k], .bytes_per_s = nothing()};
        figures += curve->steps;
    }
    return figures;
}

enum farm_status farm_bw_cores(const struct farm_bw_setup *setup, const struct farm_bw_cores_config *config,
                               struct farm_bw_cores_result *result, struct farm_error *err) {
    *result = (struct farm_bw_cores_result){.op = config->op, .conditions = farm_bw_conditions_start()};
    struct farm_bw_cores_config had = *config;
    had.stores = stores_had(setup, config->stores, &result->conditions);
    result->curve = calloc((size_t)setup->machine->node_count, sizeof *result->curve);
    if (!result->curve) return farm_fail(err, FARM_E_LIMIT, "no memory for %d curves", setup->machine->node_count);
    const int figures = plan_curves(setup->machine, result);
    struct farm_bw_clock clock = farm_bw_clock_start(setup, 1 + 0.5 * figures, figures, &result->conditions);
    enum farm_status status = FARM_OK;
    struct farm_error why = {0};
    int measured = 0;
    for (int i = 0; !status && i < result->curves; i++) {
        status = measure_curve(setup, &had, &result->curve[i], &clock, &why);
        measured += !status;
        status = farm_bw_leave_out(status, &why, &result->conditions, err);
    }
    if (!status && measured == 0) status = farm_bw_all_left_out(&why, err);
    if (status) farm_bw_cores_free(result);
    return status;
}

void farm_bw_cores_free(struct farm_bw_cores_result *result) {
    free(result->curve);
    result->curve = NULL;
    result->curves = 0;
}
