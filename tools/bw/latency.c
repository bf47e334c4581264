// Latency in `farm bw`: the ladder of caches, the reach of the TLB, under load, from core to core. See farm_bw.h.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/format.h"
#include "base/json.h"
#include "bw/handoff.h"
#include "bw/latency.h"
#include "tools/bw/bw.h"

// As "48KiB", for the names of results.
static const char *tight_size_name(uint64_t bytes, char *text, size_t text_bytes) {
    struct farm_number_text name = farm_format_bytes((double)bytes);
    char *blank = strchr(name.text, ' ');
    snprintf(text, text_bytes, "%.*s%s", (int)(blank - name.text), name.text, blank + 1);
    return text;
}

static double median_of(const struct farm_bw_figure *figure, double scale) {
    return farm_bw_figure_is(figure) ? figure->median * scale : (double)NAN;
}

// ---- ladder ----

// With the lines side by side too where `dense`.
static json_t *tell_rungs(struct farm_bw_job *job, const struct farm_bw_ladder_result *ladder, const char *name,
                          bool dense) {
    json_t *rungs = json_array();
    char size[32], text[32];
    for (int i = 0; i < ladder->rungs; i++) {
        const struct farm_bw_rung *rung = &ladder->rung[i];
        json_t *object = farm_json_object(false);
        farm_json_set_int(object, "bytes", rung->bytes);
        fprintf(job->out, "  %12s", farm_format_bytes((double)rung->bytes).text);
        farm_bw_tell(job, 10, object, "ns", &rung->ns, &farm_bw_ns, "%s.%s", name,
                     tight_size_name(rung->bytes, size, sizeof size));
        if (dense) fprintf(job->out, " %10s", farm_bw_cell(&rung->dense_ns, 1, text, sizeof text));
        if (dense) farm_json_set(object, "dense_ns", farm_bw_figure_json(&rung->dense_ns));
        fprintf(job->out, "\n");
        json_array_append_new(rungs, object);
    }
    return rungs;
}

static enum farm_status draw_rungs(struct farm_bw_job *job, const struct farm_bw_ladder_result *ladder,
                                   const char *name, bool dense, struct farm_error *err) {
    double x[FARM_BW_RUNGS_MAX], y[FARM_BW_RUNGS_MAX], z[FARM_BW_RUNGS_MAX];
    for (int i = 0; i < ladder->rungs; i++) {
        x[i] = (double)ladder->rung[i].bytes;
        y[i] = median_of(&ladder->rung[i].ns, 1);
        z[i] = median_of(&ladder->rung[i].dense_ns, 1);
    }
    const size_t rungs = (size_t)ladder->rungs;
    const struct farm_chart_series series[] = {{dense ? "a line a page" : "idle", x, y, rungs},
                                               {"side by side", x, z, rungs}};
    const struct farm_chart chart = {.title = dense ? "Reach of the TLB" : "Idle latency by working set",
                                     .x_axis = dense ? "pages' size together" : "working set",
                                     .y_axis = "latency of a load, ns",
                                     .x_scale = FARM_CHART_BYTES,
                                     .y_scale = FARM_CHART_LOG10,
                                     .series = series,
                                     .series_count = dense ? 2 : 1};
    return farm_bw_give_chart(job, name, &chart, err);
}

static enum farm_status tell_idle(struct farm_bw_job *job, json_t *section, double share, struct farm_error *err) {
    const struct farm_bw_setup setup = farm_bw_setup_for(job, share);
    const struct farm_bw_idle_config config = {.bytes = job->size_bytes};
    struct farm_bw_idle_result result;
    char ns[32];
    enum farm_status status = farm_bw_idle(&setup, &config, &result, err);
    if (status) return status;
    json_t *object = farm_json_object(false);
    fprintf(job->out, "Idle latency of memory: %s ns (working set %s)\n", farm_bw_cell(&result.ns, 1, ns, sizeof ns),
            farm_format_bytes((double)result.bytes).text);
    farm_bw_add(job, &result.ns, &farm_bw_ns, "latency.idle");
    farm_json_set(object, "ns", farm_bw_figure_json(&result.ns));
    farm_json_set_int(object, "bytes", result.bytes);
    farm_bw_tell_conditions(job, object, &result.conditions);
    farm_json_set(section, "idle", object);
    return FARM_OK;
}

enum farm_status farm_bw_part_latency(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    const bool quick = job->depth == FARM_BW_QUICK;
    enum farm_status status = tell_idle(job, section, quick ? 1 : 0.25, err);
    if (status || quick) return status;
    struct farm_bw_ladder_result *ladder = calloc(1, sizeof *ladder);
    if (!ladder) return farm_fail_errno(err, FARM_E_LIMIT, "farm bw");
    const struct farm_bw_setup setup = farm_bw_setup_for(job, 0.75);
    const struct farm_bw_ladder_config config = {.bytes_most = job->size_bytes,
                                                 .steps_per_doubling = job->depth == FARM_BW_FULL ? 2 : 1};
    if (!farm_bw_stop(job)) status = farm_bw_ladder(&setup, &config, ladder, err);
    if (!status && ladder->rungs) {
        fprintf(job->out, "The cache ladder: ns of a load, CPU %d\n", ladder->cpu);
        farm_json_set_int(section, "cpu", (uint64_t)ladder->cpu);
        farm_json_set(section, "ladder", tell_rungs(job, ladder, "latency", false));
        farm_bw_tell_conditions(job, section, &ladder->conditions);
        status = draw_rungs(job, ladder, "ladder", false, err);
    }
    free(ladder);
    return status;
}

enum farm_status farm_bw_part_tlb(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    struct farm_bw_ladder_result *ladder = calloc(1, sizeof *ladder);
    if (!ladder) return farm_fail_errno(err, FARM_E_LIMIT, "farm bw");
    const struct farm_bw_ladder_config config = {.bytes_most = job->size_bytes, .steps_per_doubling = 1};
    enum farm_status status = farm_bw_tlb(&job->setup, &config, ladder, err);
    if (!status) {
        fprintf(job->out, "Reach of the TLB: ns of a load, one line a page, and as many lines side by side\n");
        farm_json_set_int(section, "cpu", (uint64_t)ladder->cpu);
        farm_json_set(section, "ladder", tell_rungs(job, ladder, "tlb", true));
        farm_bw_tell_conditions(job, section, &ladder->conditions);
        status = draw_rungs(job, ladder, "tlb", true, err);
    }
    free(ladder);
    return status;
}

// ---- under load ----

static enum farm_status draw_loaded(struct farm_bw_job *job, const struct farm_bw_loaded_result *result,
                                    struct farm_error *err) {
    double x[FARM_BW_DELAYS_MAX], y[FARM_BW_DELAYS_MAX];
    for (int i = 0; i < result->rows; i++) {
        x[i] = median_of(&result->row[i].bytes_per_s, 1e-9);
        y[i] = median_of(&result->row[i].ns, 1);
    }
    const struct farm_chart_series series = {"reads", x, y, (size_t)result->rows};
    const struct farm_chart chart = {.title = "Latency under load",
                                     .x_axis = "bandwidth of the others, GB/s",
                                     .y_axis = "latency of a load, ns",
                                     .series = &series,
                                     .series_count = 1};
    return farm_bw_give_chart(job, "loaded", &chart, err);
}

enum farm_status farm_bw_part_loaded(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    struct farm_bw_loaded_result result;
    static const int few[] = {0, 50, 200, 500, 1000, 2500, 20000};
    const struct farm_bw_loaded_config config = {.op = FARM_BANDWIDTH_READ,
                                                 .delays = job->depth == FARM_BW_FULL ? NULL : few,
                                                 .delay_count =
                                                     job->depth == FARM_BW_FULL ? 0 : sizeof few / sizeof *few,
                                                 .array_bytes = job->size_bytes,
                                                 .chase_bytes = job->size_bytes};
    enum farm_status status = farm_bw_loaded(&job->setup, &config, &result, err);
    if (status) return status;
    json_t *rows = json_array();
    fprintf(job->out, "Latency under load: one core chases, %d read\n  %12s %10s %10s\n", result.streams, "delay", "ns",
            "GB/s");
    for (int i = 0; i < result.rows; i++) {
        const struct farm_bw_loaded_row *row = &result.row[i];
        json_t *object = farm_json_object(false);
        farm_json_set_int(object, "delay_turns", (uint64_t)row->delay);
        fprintf(job->out, "  %12d", row->delay);
        farm_bw_tell(job, 10, object, "ns", &row->ns, &farm_bw_ns, "loaded.%d.latency", row->delay);
        farm_bw_tell(job, 10, object, "bytes_per_s", &row->bytes_per_s, &farm_bw_gb_per_s, "loaded.%d.bandwidth",
                     row->delay);
        fprintf(job->out, "\n");
        json_array_append_new(rows, object);
    }
    farm_json_set_int(section, "streaming_threads", (uint64_t)result.streams);
    farm_json_set(section, "rows", rows);
    farm_bw_tell_conditions(job, section, &result.conditions);
    return draw_loaded(job, &result, err);
}

// ---- from core to core ----

static enum farm_status draw_handoff(struct farm_bw_job *job, const struct farm_bw_handoff_result *result,
                                     struct farm_error *err) {
    const size_t cpus = (size_t)result->cpus;
    struct farm_bw_labels labels;
    double *values = calloc(cpus * cpus, sizeof *values);
    if (!values) return farm_fail_errno(err, FARM_E_LIMIT, "farm bw");
    for (size_t i = 0; i < cpus * cpus; i++) values[i] = (double)result->ns[i];
    farm_bw_label(&labels, result->cpu, result->cpus);
    const struct farm_heatmap picture = {.title = "Hand-off of a cache line",
                                         .unit = "ns",
                                         .row_axis = "CPU",
                                         .column_axis = "CPU",
                                         .rows = cpus,
                                         .columns = cpus,
                                         .row_names = labels.names,
                                         .column_names = labels.names,
                                         .values = values};
    enum farm_status status = farm_bw_give_map(job, "handoff", &picture, err);
    free(values);
    return status;
}

static void set_handoff(struct farm_bw_job *job, json_t *section, const struct farm_bw_handoff_result *result) {
    json_t *cpus = json_array(), *rows = json_array(), *near = farm_json_object(false);
    for (int i = 0; i < result->cpus; i++) {
        json_t *row = json_array();
        for (int j = 0; j < result->cpus; j++) {
            const double ns = (double)result->ns[i * result->cpus + j];
            json_array_append_new(row, isfinite(ns) ? json_real(ns) : json_null());
        }
        json_array_append_new(rows, row);
        json_array_append_new(cpus, json_integer(result->cpu[i]));
    }
    for (int i = 0; i < FARM_BW_NEARNESSES; i++) {
        const struct farm_bw_figure *figure = &result->by_nearness[i];
        const char *name = farm_bw_nearness_name((enum farm_bw_nearness)i);
        char key[48], text[32];
        if (!farm_bw_figure_is(figure)) continue;
        farm_bw_key(name, key, sizeof key);
        fprintf(job->out, "  %-24s %s ns\n", name, farm_bw_cell(figure, 1, text, sizeof text));
        farm_bw_add(job, figure, &farm_bw_ns, "handoff.%s", key);
        farm_json_set(near, key, farm_bw_figure_json(figure));
    }
    farm_json_set(section, "cpus", cpus);
    farm_json_set(section, "ns", rows);
    farm_json_set(section, "by_nearness_ns", near);
}

enum farm_status farm_bw_part_handoff(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    struct farm_bw_handoff_result result = {0};
    const struct farm_bw_handoff_config config = {.cpus_most = job->depth == FARM_BW_QUICK     ? 8
                                                               : job->depth == FARM_BW_SUMMARY ? 32
                                                                                               : FARM_BW_LABELS_MAX};
    enum farm_status status = farm_bw_handoff(&job->setup, &config, &result, err);
    if (!status && result.cpus > 1) status = draw_handoff(job, &result, err);
    if (!status) {
        if (result.cpus <= 1) fprintf(job->out, "Hand-off of a cache line: not measured\n");
        set_handoff(job, section, &result);
        farm_bw_tell_conditions(job, section, &result.conditions);
    }
    farm_bw_handoff_free(&result);
    return status;
}
