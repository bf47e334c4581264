// NUMA node by node in `farm bw`: latency from the row's first core, and reads by all cores of the row's node, from the
// column's memory. Rows are nodes with CPUs that this process may use; columns are nodes with memory that it may use,
// including those without CPUs (CXL). See job.h.
#include <math.h>
#include <stdlib.h>

#include "base/json.h"
#include "bw/chase.h"
#include "bw/heatmap.h"
#include "bw/job.h"
#include "bw/workers.h"

static const double CHASE_OPENING = 0.5; // the share of a column's time for making its chase

struct matrix {
    const struct farm_bw_job *job;
    struct farm_bw_setup setup;
    struct farm_bw_conditions conditions;
    int rows, columns, count;
    int row_node[FARM_NODES_MAX], column_node[FARM_NODES_MAX], threads[FARM_NODES_MAX]; // threads: per row
    struct farm_bw_figure *figure;                                                      // [rows][columns]
    bool *placed; // whether all pages of that figure were on its column's node
    int measured;
    struct farm_error why; // why the last one was left out
};

static enum farm_status open_matrix(struct farm_bw_job *job, struct matrix *matrix, struct farm_error *err) {
    const struct farm_machine *machine = job->setup.machine;
    int cpus[FARM_CPUS_MAX];
    *matrix =
        (struct matrix){.job = job, .setup = farm_bw_setup_for(job, 0.5), .conditions = farm_bw_conditions_start()};
    for (int i = 0; i < machine->node_count; i++) {
        const struct farm_node *node = &machine->node[i];
        const int threads = farm_bw_cpus(machine, node->node, cpus, FARM_CPUS_MAX);
        if (threads > 0) {
            matrix->threads[matrix->rows] = threads;
            matrix->row_node[matrix->rows++] = node->node;
        }
        if (node->usable && node->total_bytes > 0) matrix->column_node[matrix->columns++] = node->node;
    }
    matrix->count = matrix->rows * matrix->columns;
    if (!matrix->count)
        return farm_fail(err, FARM_E_LIMIT,
                         "there is no NUMA node with CPUs, or none with memory, that this process may use");
    matrix->figure = malloc((size_t)matrix->count * sizeof *matrix->figure);
    matrix->placed = calloc((size_t)matrix->count, sizeof *matrix->placed);
    if (!matrix->figure || !matrix->placed)
        return farm_fail(err, FARM_E_LIMIT, "no memory for %d figures", matrix->count);
    for (int i = 0; i < matrix->count; i++) matrix->figure[i] = farm_bw_figure_of(NULL, 0);
    return FARM_OK;
}

// All rows of a column: one piece of memory, chased through from each node in turn.
static enum farm_status measure_latency_column(struct matrix *matrix, int column, struct farm_bw_clock *clock,
                                               struct farm_error *err) {
    const struct farm_bw_setup *setup = &matrix->setup;
    const size_t line = FARM_BANDWIDTH_LINE;
    const double seconds = CHASE_OPENING * farm_bw_clock_share(clock, matrix->rows);
    const struct farm_bw_chase_config config = {matrix->job->size_bytes, seconds, line, matrix->column_node[column], 0};
    struct farm_bw_chase chase;
    enum farm_status status = farm_bw_chase_open(setup, &config, &chase, clock->conditions, err);
    if (status) return status;
    farm_bw_chase_make(&chase, (size_t)chase.bytes / line, line, false);
    for (int row = 0; row < matrix->rows; row++) {
        const int i = row * matrix->columns + column;
        int cpu;
        struct farm_bw_team *team;
        if (!farm_bw_clock_next(clock, "latency, node %d to %d", matrix->row_node[row], matrix->column_node[column]))
            break;
        farm_bw_cpus(setup->machine, matrix->row_node[row], &cpu, 1);
        status = farm_bw_team_open(&cpu, 1, &team, clock->conditions, err);
        if (status) break;
        farm_bw_chase_figure(&chase, team, clock, &matrix->figure[i]);
        farm_bw_mark_in_cache(&matrix->figure[i], chase.bytes, setup->machine->l3_bytes, clock->conditions);
        matrix->placed[i] = chase.buffer.placed;
        farm_bw_team_close(team);
    }
    if (!status) status = farm_bw_chase_check(&chase, err);
    farm_bw_chase_close(&chase);
    return status;
}

static enum farm_status measure_latency(struct matrix *matrix, struct farm_error *err) {
    struct farm_bw_clock clock =
        farm_bw_clock_start(&matrix->setup, 1 + 0.3 * matrix->count, matrix->count, &matrix->conditions);
    enum farm_status status = FARM_OK;
    for (int column = 0; column < matrix->columns && !status && !farm_bw_clock_over(&clock); column++) {
        status = measure_latency_column(matrix, column, &clock, &matrix->why);
        status = farm_bw_leave_out(status, &matrix->why, &matrix->measured, &matrix->conditions, err);
    }
    for (int row = 0; row < matrix->rows; row++) matrix->threads[row] = 1;
    return status;
}

static enum farm_status measure_bandwidth(struct matrix *matrix, struct farm_error *err) {
    static const struct farm_bw_kernel read = {.op = FARM_BANDWIDTH_READ};
    struct farm_bw_conditions *conditions = &matrix->conditions;
    struct farm_bw_clock clock =
        farm_bw_clock_start(&matrix->setup, 1 + 0.5 * matrix->count, matrix->count, conditions);
    enum farm_status status = FARM_OK;
    bool all_placed = true;
    for (int i = 0; i < matrix->count && !status; i++) {
        const int row = matrix->row_node[i / matrix->columns], column = matrix->column_node[i % matrix->columns];
        int cpus[FARM_CPUS_MAX];
        const int count = farm_bw_cpus(matrix->setup.machine, row, cpus, FARM_CPUS_MAX);
        if (!farm_bw_clock_next(&clock, "bandwidth, node %d to %d", row, column)) break;
        conditions->placed = true; // for this figure
        status = farm_bw_bandwidth(&clock, &read, cpus, count, column, matrix->job->size_bytes, &matrix->figure[i],
                                   &matrix->why);
        matrix->placed[i] = !status && conditions->placed;
        all_placed &= conditions->placed;
        status = farm_bw_leave_out(status, &matrix->why, &matrix->measured, conditions, err);
    }
    conditions->placed = all_placed;
    return status;
}

// ---- the report ----

static json_t *numbers_json(const int *numbers, int count) {
    json_t *list = json_array();
    for (int i = 0; i < count; i++) farm_json_append(list, json_integer(numbers[i]));
    return list;
}

// Nodes, distances as the firmware states them, and the figures row by row under `key`.
static json_t *matrix_json(const struct matrix *matrix, const char *key) {
    json_t *object = farm_json_object(false), *rows = json_array(), *distances = json_array();
    for (int r = 0; r < matrix->rows; r++) {
        json_t *figures = json_array(), *far = json_array();
        for (int c = 0; c < matrix->columns; c++) {
            const int i = r * matrix->columns + c;
            json_t *figure = farm_bw_figure_json(&matrix->figure[i]);
            if (json_is_object(figure)) farm_json_set_bool(figure, "placed", matrix->placed[i]);
            farm_json_append(figures, figure);
            farm_json_append(far, json_integer(farm_machine_distance(matrix->setup.machine, matrix->row_node[r],
                                                                     matrix->column_node[c])));
        }
        farm_json_append(rows, figures);
        farm_json_append(distances, far);
    }
    farm_json_set(object, "cpu_nodes", numbers_json(matrix->row_node, matrix->rows));
    farm_json_set(object, "memory_nodes", numbers_json(matrix->column_node, matrix->columns));
    farm_json_set(object, "threads", numbers_json(matrix->threads, matrix->rows));
    farm_json_set(object, "distances", distances);
    farm_json_set(object, key, rows);
    return object;
}

struct kind {
    const char *name, *title, *key; // key: in the document, with its unit
    const struct farm_bw_unit *unit;
    enum farm_status (*measure)(struct matrix *matrix, struct farm_error *err);
};

static enum farm_status report_matrix(struct farm_bw_job *job, json_t *section, const struct kind *kind,
                                      const struct matrix *matrix, struct farm_error *err) {
    double *values = malloc((size_t)matrix->count * sizeof *values);
    if (!values) return farm_fail(err, FARM_E_LIMIT, "no memory for %d figures", matrix->count);
    for (int i = 0; i < matrix->count; i++) {
        values[i] = farm_bw_median(&matrix->figure[i], kind->unit);
        farm_bw_add_result(job, &matrix->figure[i], kind->unit, "matrix.%s.%d.%d", kind->name,
                           matrix->row_node[i / matrix->columns], matrix->column_node[i % matrix->columns]);
    }
    const struct farm_heatmap map = {.title = kind->title,
                                     .unit = kind->unit->name,
                                     .row_axis = "CPUs of node",
                                     .column_axis = "memory of node",
                                     .rows = matrix->rows,
                                     .columns = matrix->columns,
                                     .row_numbers = matrix->row_node,
                                     .column_numbers = matrix->column_node,
                                     .values = values,
                                     .higher_is_better = kind->unit->higher_is_better};
    json_t *object = matrix_json(matrix, kind->key);
    farm_json_set(section, kind->name, object);
    farm_heatmap_draw(job->out, &map, job->colour, job->columns);
    farm_bw_report_conditions(job, object, &matrix->conditions);
    free(values);
    return FARM_OK;
}

enum farm_status farm_bw_part_matrix(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    static const struct kind kinds[] = {
        {"latency", "Latency node by node", "ns", &farm_bw_ns, measure_latency},
        {"bandwidth", "Reads node by node", "bytes_per_s", &farm_bw_gb_per_s, measure_bandwidth}};
    if (job->depth == FARM_BW_QUICK && job->setup.machine->node_count == 1) {
        fprintf(job->out, "Node by node: one NUMA node, nothing to add\n");
        farm_json_set_text(section, "not_measured", "one NUMA node: the other parts have its figures");
        return FARM_OK;
    }
    enum farm_status status = FARM_OK;
    for (int i = 0; i < 2 && !status; i++) {
        struct matrix matrix;
        status = open_matrix(job, &matrix, err);
        if (!status) status = kinds[i].measure(&matrix, err);
        if (!status) status = farm_bw_all_left_out(matrix.measured, &matrix.why, err);
        if (!status) status = report_matrix(job, section, &kinds[i], &matrix, err);
        free(matrix.figure);
        free(matrix.placed);
    }
    return status;
}
