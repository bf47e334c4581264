// Bandwidth in `farm bw`: all kernels, reads to writes, cores, pages, node by node. See farm_bw.h.
#include <math.h>
#include <stdlib.h>

#include "base/json.h"
#include "bw/latency.h"
#include "bw/memory.h"
#include "bw/pages.h"
#include "tools/bw/bw.h"

static const double GB = 1e-9;

static const char *kernel_name(enum farm_bandwidth_op op, enum farm_bandwidth_stores stores, char *text, size_t bytes) {
    const bool past = op != FARM_BANDWIDTH_READ && stores == FARM_BANDWIDTH_NONTEMPORAL;
    snprintf(text, bytes, "%s%s", farm_bandwidth_op_name(op), past ? " nt" : "");
    return text;
}

// ---- all kernels ----

static void tell_kernel(struct farm_bw_job *job, json_t *rows, const struct farm_bw_kernel_row *row) {
    char name[48], key[96], bus[32];
    const char *pattern = farm_bandwidth_pattern_name(row->pattern);
    const bool in_order = row->pattern == FARM_BANDWIDTH_SEQUENTIAL;
    const char *dot = in_order ? "" : ".", *way = in_order ? "" : pattern;
    farm_bw_key(kernel_name(row->op, row->stores, name, sizeof name), key, sizeof key);
    json_t *object = farm_json_object(false);
    farm_json_set_text(object, "kernel", farm_bandwidth_op_name(row->op));
    farm_json_set_bool(object, "nontemporal", row->stores == FARM_BANDWIDTH_NONTEMPORAL);
    farm_json_set_text(object, "pattern", pattern);
    if (row->pattern == FARM_BANDWIDTH_STRIDED) farm_json_set_int(object, "stride_bytes", row->stride_bytes);
    fprintf(job->out, "  %-10s %-11s", name, pattern);
    farm_bw_tell(job, 10, object, "one_core_bytes_per_s", &row->one, &farm_bw_gb_per_s, "memory.%s%s%s.one_core", key,
                 dot, way);
    farm_bw_tell(job, 10, object, "all_cores_bytes_per_s", &row->cores, &farm_bw_gb_per_s, "memory.%s%s%s.all_cores",
                 key, dot, way);
    fprintf(job->out, " %10s\n", farm_bw_cell(&row->cores, GB * row->bus_factor, bus, sizeof bus));
    farm_json_set_real(object, "bus_bytes_per_program_byte", row->bus_factor);
    json_array_append_new(rows, object);
}

static void tell_kernels(struct farm_bw_job *job, json_t *section, const struct farm_bw_kernels_result *result) {
    json_t *rows = json_array();
    const double mib = 1 << 20;
    fprintf(job->out,
            "Bandwidth, GB/s of loads and stores (%d core%s, %s, arrays of %.0f MiB, %.0f MiB for one core)\n",
            result->cores, result->cores == 1 ? "" : "s", farm_bandwidth_variant_name(result->variant),
            (double)result->array_bytes / mib, (double)result->one_array_bytes / mib);
    fprintf(job->out, "  %-10s %-11s %10s %10s %10s\n", "", "", "one core", "all cores", "on the bus");
    for (int i = 0; i < result->rows; i++) tell_kernel(job, rows, &result->row[i]);
    farm_json_set_int(section, "cores", (uint64_t)result->cores);
    farm_json_set_text(section, "kernels", farm_bandwidth_variant_name(result->variant));
    farm_json_set_int(section, "array_bytes", result->array_bytes);
    farm_json_set_int(section, "one_core_array_bytes", result->one_array_bytes);
    farm_json_set(section, "rows", rows);
    farm_bw_tell_conditions(job, section, &result->conditions);
}

enum farm_status farm_bw_part_memory(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    static const enum farm_bw_kernels_extent extents[FARM_BW_DEPTHS] = {FARM_BW_KERNELS_FEW, FARM_BW_KERNELS_SEQUENTIAL,
                                                                        FARM_BW_KERNELS_ALL};
    struct farm_bw_kernels_result *result = calloc(1, sizeof *result);
    if (!result) return farm_fail_errno(err, FARM_E_LIMIT, "farm bw");
    const struct farm_bw_kernels_config config = {.array_bytes = job->size_bytes, .extent = extents[job->depth]};
    enum farm_status status = farm_bw_kernels(&job->setup, &config, result, err);
    if (!status) tell_kernels(job, section, result);
    free(result);
    return status;
}

// ---- reads to writes ----

enum farm_status farm_bw_part_mix(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    struct farm_bw_mix_result result;
    const struct farm_bw_mix_config config = {.array_bytes = job->size_bytes};
    enum farm_status status = farm_bw_mix(&job->setup, &config, &result, err);
    if (status) return status;
    json_t *rows = json_array();
    fprintf(job->out, "Peak by reads to writes, GB/s on the bus (%d core%s)\n", result.threads,
            result.threads == 1 ? "" : "s");
    for (int i = 0; i < FARM_BW_MIXES; i++) {
        const struct farm_bw_mix_row *row = &result.row[i];
        char key[32];
        fprintf(job->out, "  %-22s", row->name);
        json_t *object = farm_json_object(false);
        farm_json_set_text(object, "mix", row->name);
        farm_json_set_text(object, "kernel", farm_bandwidth_op_name(row->op));
        farm_json_set_bool(object, "nontemporal", row->stores == FARM_BANDWIDTH_NONTEMPORAL);
        farm_bw_tell(job, 10, object, "bytes_per_s", &row->bytes_per_s, &farm_bw_gb_per_s, "mix.%s",
                     farm_bw_key(row->name, key, sizeof key));
        fprintf(job->out, "\n");
        json_array_append_new(rows, object);
    }
    farm_json_set_int(section, "threads", (uint64_t)result.threads);
    farm_json_set(section, "rows", rows);
    farm_bw_tell_conditions(job, section, &result.conditions);
    return FARM_OK;
}

// ---- number of cores ----

static json_t *tell_curve(struct farm_bw_job *job, const struct farm_bw_cores_curve *curve) {
    json_t *object = farm_json_object(false), *steps = json_array();
    fprintf(job->out, "  node %d:", curve->node);
    for (int i = 0; i < curve->steps; i++) {
        const struct farm_bw_cores_step *step = &curve->step[i];
        json_t *entry = farm_json_object(false);
        farm_json_set_int(entry, "cores", (uint64_t)step->cores);
        fprintf(job->out, "  %d:", step->cores);
        farm_bw_tell(job, 0, entry, "bytes_per_s", &step->bytes_per_s, &farm_bw_gb_per_s, "cores.node%d.%d",
                     curve->node, step->cores);
        json_array_append_new(steps, entry);
    }
    if (curve->saturated_cores) fprintf(job->out, "  (95 %% of it with %d)", curve->saturated_cores);
    fprintf(job->out, "\n");
    farm_json_set_int(object, "node", (uint64_t)curve->node);
    farm_json_set_int(object, "saturated_cores", (uint64_t)curve->saturated_cores);
    farm_json_set(object, "steps", steps);
    return object;
}

static enum farm_status draw_curves(struct farm_bw_job *job, const struct farm_bw_cores_result *result,
                                    struct farm_error *err) {
    enum { SERIES = 8 };
    struct farm_chart_series series[SERIES];
    double x[SERIES][FARM_BW_CORES_STEPS_MAX], y[SERIES][FARM_BW_CORES_STEPS_MAX];
    char names[SERIES][32];
    const int count = result->curves < SERIES ? result->curves : SERIES;
    for (int c = 0; c < count; c++) {
        const struct farm_bw_cores_curve *curve = &result->curve[c];
        snprintf(names[c], sizeof names[c], "node %d", curve->node);
        for (int i = 0; i < curve->steps; i++) {
            const struct farm_bw_figure *figure = &curve->step[i].bytes_per_s;
            x[c][i] = curve->step[i].cores;
            y[c][i] = farm_bw_figure_is(figure) ? figure->median * GB : (double)NAN;
        }
        series[c] = (struct farm_chart_series){names[c], x[c], y[c], (size_t)curve->steps};
    }
    const struct farm_chart chart = {.title = "Reads by number of cores, each node on its own memory",
                                     .x_axis = "cores",
                                     .y_axis = "bandwidth, GB/s",
                                     .series = series,
                                     .series_count = (size_t)count};
    return farm_bw_give_chart(job, "cores", &chart, err);
}

enum farm_status farm_bw_part_cores(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    struct farm_bw_cores_result result;
    const struct farm_bw_cores_config config = {.op = FARM_BANDWIDTH_READ, .array_bytes = job->size_bytes};
    enum farm_status status = farm_bw_cores(&job->setup, &config, &result, err);
    if (status) return status;
    json_t *curves = json_array();
    fprintf(job->out, "Reads by number of cores, GB/s (each node's own memory)\n");
    for (int i = 0; i < result.curves; i++) json_array_append_new(curves, tell_curve(job, &result.curve[i]));
    farm_json_set(section, "curves", curves);
    farm_bw_tell_conditions(job, section, &result.conditions);
    status = draw_curves(job, &result, err);
    farm_bw_cores_free(&result);
    return status;
}

// ---- size of pages ----

static void tell_pages(struct farm_bw_job *job, json_t *rows, const struct farm_bw_pages_row *row) {
    char key[32];
    const char *name = farm_bw_pages_name(row->pages);
    json_t *object = farm_json_object(false);
    farm_bw_key(name, key, sizeof key);
    farm_json_set_text(object, "pages", name);
    farm_json_set_bool(object, "available", row->available);
    farm_json_set_text(object, "reason", row->available ? NULL : row->reason);
    fprintf(job->out, "  %-18s", name);
    farm_bw_tell(job, 10, object, "read_bytes_per_s", &row->read_bytes_per_s, &farm_bw_gb_per_s, "pages.%s.read", key);
    farm_bw_tell(job, 10, object, "copy_bytes_per_s", &row->copy_bytes_per_s, &farm_bw_gb_per_s, "pages.%s.copy", key);
    farm_bw_tell(job, 10, object, "latency_ns", &row->latency_ns, &farm_bw_ns, "pages.%s.latency", key);
    fprintf(job->out, "%s%s\n", row->available ? "" : "  not here: ", row->available ? "" : row->reason);
    farm_json_set_real(object, "huge_share", row->huge_share);
    json_array_append_new(rows, object);
}

enum farm_status farm_bw_part_pages(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    struct farm_bw_pages_result *result = calloc(1, sizeof *result);
    if (!result) return farm_fail_errno(err, FARM_E_LIMIT, "farm bw");
    const struct farm_bw_pages_config config = {.array_bytes = job->size_bytes};
    enum farm_status status = farm_bw_page_sizes(&job->setup, &config, result, err);
    if (!status) {
        json_t *rows = json_array();
        fprintf(job->out, "Size of pages, one core\n  %-18s %10s %10s %10s\n", "", "read GB/s", "copy GB/s",
                "latency ns");
        for (int i = 0; i < 4; i++) tell_pages(job, rows, &result->row[i]);
        farm_json_set_int(section, "array_bytes", result->array_bytes);
        farm_json_set(section, "rows", rows);
        farm_bw_tell_conditions(job, section, &result->conditions);
    }
    free(result);
    return status;
}

// ---- node by node ----

static json_t *numbers_json(const int *numbers, int count) {
    json_t *list = json_array();
    for (int i = 0; i < count; i++) json_array_append_new(list, json_integer(numbers[i]));
    return list;
}

// The document's matrix: nodes, and a list of rows of figures; distances as the firmware tells them.
static json_t *matrix_json(struct farm_bw_job *job, const struct farm_bw_matrix *matrix, const char *key) {
    json_t *object = farm_json_object(false), *rows = json_array(), *distances = json_array();
    for (int r = 0; r < matrix->rows; r++) {
        json_t *row = json_array(), *far = json_array();
        for (int c = 0; c < matrix->columns; c++) {
            json_t *cell = farm_bw_figure_json(&matrix->cell[r * matrix->columns + c]);
            if (json_is_object(cell)) farm_json_set_bool(cell, "placed", matrix->placed[r * matrix->columns + c]);
            json_array_append_new(row, cell);
            json_array_append_new(
                far, json_integer(farm_machine_distance(job->machine, matrix->row_node[r], matrix->column_node[c])));
        }
        json_array_append_new(rows, row);
        json_array_append_new(distances, far);
    }
    farm_json_set(object, "cpu_nodes", numbers_json(matrix->row_node, matrix->rows));
    farm_json_set(object, "memory_nodes", numbers_json(matrix->column_node, matrix->columns));
    farm_json_set(object, "threads", numbers_json(matrix->threads, matrix->rows));
    farm_json_set(object, "distances", distances);
    farm_json_set(object, key, rows);
    return object;
}

struct matrix_kind {
    const char *name, *title, *key; // key: in the document, with its unit
    const struct farm_bw_unit *unit;
};

static enum farm_status tell_matrix(struct farm_bw_job *job, json_t *section, const struct matrix_kind *kind,
                                    const struct farm_bw_matrix *matrix, struct farm_error *err) {
    struct farm_bw_labels rows, columns;
    const int cells = matrix->rows * matrix->columns;
    double *values = malloc((size_t)cells * sizeof *values);
    char name[64];
    if (!values) return farm_fail_errno(err, FARM_E_LIMIT, "farm bw");
    for (int i = 0; i < cells; i++) {
        const struct farm_bw_figure *figure = &matrix->cell[i];
        values[i] = farm_bw_figure_is(figure) ? figure->median * kind->unit->scale : (double)NAN;
        farm_bw_add(job, figure, kind->unit, "matrix.%s.%d.%d", kind->name, matrix->row_node[i / matrix->columns],
                    matrix->column_node[i % matrix->columns]);
    }
    farm_bw_label(&rows, matrix->row_node, matrix->rows);
    farm_bw_label(&columns, matrix->column_node, matrix->columns);
    const struct farm_heatmap map = {.title = kind->title,
                                     .unit = kind->unit->name,
                                     .row_axis = "CPUs of node",
                                     .column_axis = "memory of node",
                                     .rows = (size_t)matrix->rows,
                                     .columns = (size_t)matrix->columns,
                                     .row_names = rows.names,
                                     .column_names = columns.names,
                                     .values = values,
                                     .higher_is_better = kind->unit->higher_is_better};
    json_t *object = matrix_json(job, matrix, kind->key);
    farm_json_set(section, kind->name, object);
    snprintf(name, sizeof name, "matrix_%s", kind->name);
    enum farm_status status = farm_bw_give_map(job, name, &map, err);
    farm_bw_tell_conditions(job, object, &matrix->conditions);
    free(values);
    return status;
}

enum farm_status farm_bw_part_matrix(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    static const struct matrix_kind latency = {"latency", "Latency node by node", "ns", &farm_bw_ns};
    static const struct matrix_kind bandwidth = {"bandwidth", "Reads node by node", "bytes_per_s", &farm_bw_gb_per_s};
    const struct farm_bw_setup setup = farm_bw_setup_for(job, 0.5);
    const struct farm_bw_matrix_config config = {.op = FARM_BANDWIDTH_READ, .array_bytes = job->size_bytes};
    struct farm_bw_matrix matrix = {0};
    if (job->depth == FARM_BW_QUICK && job->machine->node_count == 1) {
        fprintf(job->out, "Node by node: one NUMA node, nothing to add\n");
        farm_json_set_text(section, "not_measured", "one NUMA node: the other parts have its figures");
        return FARM_OK;
    }
    enum farm_status status = farm_bw_matrix_latency(&setup, &config, &matrix, err);
    if (!status) status = tell_matrix(job, section, &latency, &matrix, err);
    farm_bw_matrix_free(&matrix);
    if (status) return status;
    status = farm_bw_matrix_bandwidth(&setup, &config, &matrix, err);
    if (!status) status = tell_matrix(job, section, &bandwidth, &matrix, err);
    farm_bw_matrix_free(&matrix);
    return status;
}
