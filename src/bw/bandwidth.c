// Bandwidth in `farm bw`: all kernels, ratios of reads to writes, numbers of cores, sizes of pages. Rates are bytes per
// second as the program sees them (STREAM's count); times bus_factor, with write-allocate traffic. See job.h.
#include <assert.h>
#include <stdlib.h>

#include "base/json.h"
#include "bw/job.h"
#include "bw/latency.h"
#include "bw/workers.h"

static struct farm_bw_figure nothing(void) {
    return farm_bw_figure_of(NULL, 0);
}

// ---- all kernels ----

enum { ROWS_MAX = 36, OPS = 6, MAIN_OPS = 3, STRIDE = 4096 + FARM_BANDWIDTH_LINE };

struct row {
    struct farm_bw_kernel kernel;
    double bus_factor;              // bytes on the bus for one that the program sees
    struct farm_bw_figure one, all; // one core alone, all cores together
};

struct table {
    struct farm_bw_job *job;
    struct farm_bw_conditions conditions;
    int cpus[FARM_CPUS_MAX], cores;
    uint64_t one_array_bytes, array_bytes;
    int rows, main_rows; // read, copy and triad in order come first: they are taken even when the time is over
    struct row row[ROWS_MAX];
};

static void add_row(struct table *table, enum farm_bandwidth_op op, enum farm_bandwidth_stores stores,
                    enum farm_bandwidth_pattern pattern) {
    assert(table->rows < ROWS_MAX);
    table->row[table->rows++] =
        (struct row){.kernel = {op, stores, pattern, pattern == FARM_BANDWIDTH_STRIDED ? STRIDE : 0},
                     .bus_factor = (double)farm_bandwidth_bus_bytes(op, stores) / farm_bandwidth_program_bytes(op),
                     .one = nothing(),
                     .all = nothing()};
}

// quick: three ops in order, non-temporal if possible; summary: six, both ways; full: also at a stride and shuffled.
static void plan_rows(struct table *table) {
    static const enum farm_bandwidth_op ops[OPS] = {FARM_BANDWIDTH_READ,  FARM_BANDWIDTH_COPY,  FARM_BANDWIDTH_TRIAD,
                                                    FARM_BANDWIDTH_WRITE, FARM_BANDWIDTH_SCALE, FARM_BANDWIDTH_ADD};
    static const enum farm_bandwidth_pattern patterns[] = {FARM_BANDWIDTH_SEQUENTIAL, FARM_BANDWIDTH_STRIDED,
                                                           FARM_BANDWIDTH_LISTED};
    const bool few = table->job->depth == FARM_BW_QUICK;
    const bool nontemporal = farm_bandwidth_has_nontemporal(table->job->setup.variant);
    for (int p = 0; p < (table->job->depth == FARM_BW_FULL ? 3 : 1); p++)
        for (int i = 0; i < (few ? MAIN_OPS : OPS); i++) {
            const bool past_caches = nontemporal && ops[i] != FARM_BANDWIDTH_READ;
            if (!few || !past_caches) add_row(table, ops[i], FARM_BANDWIDTH_TEMPORAL, patterns[p]);
            if (past_caches) add_row(table, ops[i], FARM_BANDWIDTH_NONTEMPORAL, patterns[p]);
            if (p == 0 && i == MAIN_OPS - 1) table->main_rows = table->rows;
        }
}

// All rows on one core or on all, until the clock's end. The sizes of arrays are chosen for the main rows.
static enum farm_status fill_column(struct table *table, bool one, struct farm_bw_clock *clock,
                                    struct farm_error *err) {
    struct farm_bw_workers_config config = farm_bw_workers_for(
        clock, clock->figures, table->cpus, one ? 1 : table->cores, FARM_BW_ARRAYS_MAX, table->job->size_bytes);
    config.figures = table->main_rows;
    config.shuffled = table->job->depth == FARM_BW_FULL;
    struct farm_bw_workers workers;
    enum farm_status status = farm_bw_workers_open(clock->setup, &config, &workers, clock->conditions, err);
    if (status) return status;
    *(one ? &table->one_array_bytes : &table->array_bytes) = workers.config.array_bytes;
    clock->due = table->main_rows;
    for (int i = 0; !status && i < table->rows; i++) {
        struct row *row = &table->row[i];
        clock->figures = i < table->main_rows ? table->main_rows : table->rows;
        if (!farm_bw_clock_next(clock, "%s", farm_bandwidth_op_name(row->kernel.op))) break;
        if (workers.worker[0].lines < row->kernel.stride_bytes / FARM_BANDWIDTH_LINE)
            farm_bw_conditions_note(clock->conditions,
                                    "Left out: a stride is longer than a thread's part of an array.");
        else
            status = farm_bw_workers_figure(&workers, clock, &row->kernel, one ? &row->one : &row->all, err);
    }
    farm_bw_workers_close(&workers);
    return status;
}

// All cores have half of the time, one core has the rest.
static enum farm_status fill_table(struct table *table, struct farm_error *err) {
    struct farm_bw_conditions *conditions = &table->conditions;
    struct farm_bw_clock clock =
        farm_bw_clock_start(&table->job->setup, table->job->depth == FARM_BW_FULL ? 30 : 10, table->rows, conditions);
    const uint64_t end_ns = clock.end_ns;
    if (table->cores > 1) clock.end_ns -= (end_ns - clock.start_ns) / 2;
    enum farm_status status = fill_column(table, false, &clock, err);
    if (status || conditions->stopped) return status;
    if (table->cores == 1) {
        for (int i = 0; i < table->rows; i++) table->row[i].one = table->row[i].all;
        table->one_array_bytes = table->array_bytes;
        return FARM_OK;
    }
    // One core has the memory of one node only: if a size given by the user does not fit, its column stays empty.
    struct farm_error why = {0};
    int measured = 0;
    clock.end_ns = end_ns, clock.taken = 0;
    status = fill_column(table, true, &clock, &why);
    return farm_bw_leave_out(status, &why, &measured, conditions, err);
}

static json_t *report_row(struct farm_bw_job *job, const struct row *row) {
    char name[48], key[96];
    const struct farm_bw_kernel *kernel = &row->kernel;
    const char *pattern = farm_bandwidth_pattern_name(kernel->pattern);
    const bool in_order = kernel->pattern == FARM_BANDWIDTH_SEQUENTIAL;
    const bool nontemporal = kernel->stores == FARM_BANDWIDTH_NONTEMPORAL;
    const char *dot = in_order ? "" : ".", *way = in_order ? "" : pattern;
    snprintf(name, sizeof name, "%s%s", farm_bandwidth_op_name(kernel->op), nontemporal ? " nt" : "");
    farm_bw_key(name, key, sizeof key);
    json_t *object = farm_json_object(false);
    farm_json_set_text(object, "kernel", farm_bandwidth_op_name(kernel->op));
    farm_json_set_bool(object, "nontemporal", nontemporal);
    farm_json_set_text(object, "pattern", pattern);
    if (kernel->stride_bytes) farm_json_set_int(object, "stride_bytes", kernel->stride_bytes);
    fprintf(job->out, "  %-10s %-11s", name, pattern);
    farm_bw_report(job, 10, object, "one_core_bytes_per_s", &row->one, &farm_bw_gb_per_s, "memory.%s%s%s.one_core", key,
                   dot, way);
    farm_bw_report(job, 10, object, "all_cores_bytes_per_s", &row->all, &farm_bw_gb_per_s, "memory.%s%s%s.all_cores",
                   key, dot, way);
    fprintf(job->out, " %10s\n", farm_bw_figure_text(&row->all, farm_bw_gb_per_s.scale * row->bus_factor).text);
    farm_json_set_real(object, "bus_bytes_per_program_byte", row->bus_factor);
    return object;
}

static void report_table(const struct table *table, json_t *section) {
    struct farm_bw_job *job = table->job;
    json_t *rows = json_array();
    const double mib = 1 << 20;
    const char *variant = farm_bandwidth_variant_name(farm_bandwidth_resolve(job->setup.variant));
    fprintf(job->out,
            "Bandwidth, GB/s of loads and stores (%d core%s, %s, arrays of %.0f MiB, %.0f MiB for one core)\n",
            table->cores, table->cores == 1 ? "" : "s", variant, (double)table->array_bytes / mib,
            (double)table->one_array_bytes / mib);
    fprintf(job->out, "  %-10s %-11s %10s %10s %10s\n", "", "", "one core", "all cores", "on the bus");
    for (int i = 0; i < table->rows; i++) farm_json_append(rows, report_row(job, &table->row[i]));
    farm_json_set_int(section, "cores", (uint64_t)table->cores);
    farm_json_set_text(section, "kernels", variant);
    farm_json_set_int(section, "array_bytes", table->array_bytes);
    farm_json_set_int(section, "one_core_array_bytes", table->one_array_bytes);
    farm_json_set(section, "rows", rows);
    farm_bw_report_conditions(job, section, &table->conditions);
}

enum farm_status farm_bw_part_memory(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    struct table *table = calloc(1, sizeof *table);
    if (!table) return farm_fail_errno(err, FARM_E_LIMIT, "farm bw");
    *table = (struct table){.job = job, .conditions = farm_bw_conditions_start()};
    table->cores = farm_bw_cpus(job->setup.machine, -1, table->cpus, FARM_CPUS_MAX);
    plan_rows(table);
    enum farm_status status = fill_table(table, err);
    if (!status) report_table(table, section);
    free(table);
    return status;
}

// ---- reads to writes ----

enum farm_status farm_bw_part_mix(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    const bool nontemporal = farm_bandwidth_has_nontemporal(job->setup.variant);
    const struct {
        const char *name;
        struct farm_bw_kernel kernel;
    } mixes[] = {{"all reads", {FARM_BANDWIDTH_READ, 0, 0, 0}},
                 {"3:1", {FARM_BANDWIDTH_MIX31, 0, 0, 0}},
                 {"2:1", {FARM_BANDWIDTH_MIX21, 0, 0, 0}},
                 {"1:1", {FARM_BANDWIDTH_MIX11, 0, 0, 0}},
                 {"triad-like",
                  {FARM_BANDWIDTH_TRIAD, nontemporal ? FARM_BANDWIDTH_NONTEMPORAL : FARM_BANDWIDTH_TEMPORAL, 0, 0}}};
    enum { MIXES = sizeof mixes / sizeof *mixes };
    struct farm_bw_figure figures[MIXES];
    struct farm_bw_conditions conditions = farm_bw_conditions_start();
    int cpus[FARM_CPUS_MAX];
    const int count = farm_bw_cpus(job->setup.machine, -1, cpus, FARM_CPUS_MAX);
    if (!nontemporal)
        farm_bw_conditions_note(&conditions,
                                "Kernels in plain C have no non-temporal stores: ordinary ones were made.");
    struct farm_bw_clock clock = farm_bw_clock_start(&job->setup, 4, MIXES, &conditions);
    const struct farm_bw_workers_config config =
        farm_bw_workers_for(&clock, MIXES, cpus, count, FARM_BW_ARRAYS_MAX, job->size_bytes);
    struct farm_bw_workers workers;
    for (int i = 0; i < MIXES; i++) figures[i] = nothing();
    enum farm_status status = farm_bw_workers_open(&job->setup, &config, &workers, &conditions, err);
    if (status) return status;
    for (int i = 0; !status && i < MIXES && farm_bw_clock_next(&clock, "%s", mixes[i].name); i++)
        status = farm_bw_workers_figure(&workers, &clock, &mixes[i].kernel, &figures[i], err);
    farm_bw_workers_close(&workers);
    if (status) return status;
    json_t *rows = json_array();
    fprintf(job->out, "Peak by reads to writes, GB/s on the bus (%d core%s)\n", count, count == 1 ? "" : "s");
    for (int i = 0; i < MIXES; i++) {
        char key[32];
        json_t *object = farm_json_object(false);
        farm_json_set_text(object, "mix", mixes[i].name);
        farm_json_set_text(object, "kernel", farm_bandwidth_op_name(mixes[i].kernel.op));
        farm_json_set_bool(object, "nontemporal", mixes[i].kernel.stores == FARM_BANDWIDTH_NONTEMPORAL);
        fprintf(job->out, "  %-22s", mixes[i].name);
        farm_bw_report(job, 10, object, "bytes_per_s", &figures[i], &farm_bw_gb_per_s, "mix.%s",
                       farm_bw_key(mixes[i].name, key, sizeof key));
        fprintf(job->out, "\n");
        farm_json_append(rows, object);
    }
    farm_json_set_int(section, "threads", (uint64_t)count);
    farm_json_set(section, "rows", rows);
    farm_bw_report_conditions(job, section, &conditions);
    return FARM_OK;
}

// ---- number of cores ----

enum { STEPS_MAX = 48 };
static const double SATURATED = 0.95;

struct curve {
    int node, steps, cores[STEPS_MAX]; // 1, 2, 3, 4, 6, 8, 12, ... all
    struct farm_bw_figure figure[STEPS_MAX];
};

static void plan_curve(struct curve *curve, int node, int cores) {
    *curve = (struct curve){.node = node};
    for (int n = 1; n < cores && curve->steps < STEPS_MAX - 1; n += n < 4 ? 1 : n & (n - 1) ? n / 3 : n / 2)
        curve->cores[curve->steps++] = n;
    if (cores > 0) curve->cores[curve->steps++] = cores;
    for (int i = 0; i < curve->steps; i++) curve->figure[i] = nothing();
}

// One node's cores on its own memory. FARM_E_LIMIT: the steps from there on are left out.
static enum farm_status measure_curve(const struct farm_bw_job *job, struct curve *curve, struct farm_bw_clock *clock,
                                      struct farm_error *err) {
    static const struct farm_bw_kernel read = {.op = FARM_BANDWIDTH_READ};
    int cpus[FARM_CPUS_MAX];
    const int cores = farm_bw_cpus(job->setup.machine, curve->node, cpus, FARM_CPUS_MAX);
    enum farm_status status = FARM_OK;
    for (int i = 0; i < curve->steps && !status; i++) {
        if (!farm_bw_clock_next(clock, "node %d, %d of %d cores", curve->node, curve->cores[i], cores)) break;
        status = farm_bw_bandwidth(clock, &read, cpus, curve->cores[i], -1, job->size_bytes, &curve->figure[i], err);
    }
    return status;
}

// The fewest cores that reach 95 % of the most; 0: nothing was measured.
static int saturated_cores(const struct curve *curve) {
    double most = 0;
    for (int i = 0; i < curve->steps; i++)
        if (curve->figure[i].median > most) most = curve->figure[i].median;
    for (int i = 0; i < curve->steps && most > 0; i++)
        if (curve->figure[i].median >= SATURATED * most) return curve->cores[i];
    return 0;
}

static json_t *report_curve(struct farm_bw_job *job, const struct curve *curve) {
    json_t *object = farm_json_object(false), *steps = json_array();
    const int saturated = saturated_cores(curve);
    fprintf(job->out, "  node %d:", curve->node);
    for (int i = 0; i < curve->steps; i++) {
        json_t *step = farm_json_object(false);
        farm_json_set_int(step, "cores", (uint64_t)curve->cores[i]);
        fprintf(job->out, "  %d:", curve->cores[i]);
        farm_bw_report(job, 0, step, "bytes_per_s", &curve->figure[i], &farm_bw_gb_per_s, "cores.node%d.%d",
                       curve->node, curve->cores[i]);
        farm_json_append(steps, step);
    }
    if (saturated) fprintf(job->out, "  (95 %% of it with %d)", saturated);
    fprintf(job->out, "\n");
    farm_json_set_int(object, "node", (uint64_t)curve->node);
    farm_json_set_int(object, "saturated_cores", (uint64_t)saturated);
    farm_json_set(object, "steps", steps);
    return object;
}

enum farm_status farm_bw_part_cores(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    const struct farm_machine *machine = job->setup.machine;
    struct farm_bw_conditions conditions = farm_bw_conditions_start();
    struct curve *curve = calloc((size_t)machine->node_count, sizeof *curve);
    int cpus[FARM_CPUS_MAX], curves = 0, figures = 0, measured = 0;
    if (!curve) return farm_fail_errno(err, FARM_E_LIMIT, "farm bw");
    for (int i = 0; i < machine->node_count; i++) {
        plan_curve(&curve[curves], machine->node[i].node,
                   farm_bw_cpus(machine, machine->node[i].node, cpus, FARM_CPUS_MAX));
        figures += curve[curves].steps;
        curves += curve[curves].steps > 0;
    }
    struct farm_bw_clock clock = farm_bw_clock_start(&job->setup, 1 + 0.5 * figures, figures, &conditions);
    enum farm_status status = FARM_OK;
    struct farm_error why = {0};
    for (int i = 0; !status && i < curves; i++)
        status = farm_bw_leave_out(measure_curve(job, &curve[i], &clock, &why), &why, &measured, &conditions, err);
    if (!status) status = farm_bw_all_left_out(measured, &why, err);
    if (!status) {
        json_t *rows = json_array();
        fprintf(job->out, "Reads by number of cores, GB/s (each node's own memory)\n");
        for (int i = 0; i < curves; i++) farm_json_append(rows, report_curve(job, &curve[i]));
        farm_json_set(section, "curves", rows);
        farm_bw_report_conditions(job, section, &conditions);
    }
    free(curve);
    return status;
}

// ---- size of pages ----

struct pages {
    enum farm_bw_pages kind;
    bool available;
    char reason[768]; // not available: why, and what to set
    struct farm_bw_figure read, copy, latency;
    double huge_share; // part of the memory that has pages of that size
};

// Read, copy and latency on one core. The first kind's size of arrays is every kind's.
static enum farm_status measure_pages(const struct farm_bw_setup *setup, uint64_t *array_bytes, struct pages *pages,
                                      struct farm_bw_clock *clock, struct farm_error *err) {
    static const struct farm_bw_kernel read = {.op = FARM_BANDWIDTH_READ}, copy = {.op = FARM_BANDWIDTH_COPY};
    const char *name = farm_bw_pages_name(pages->kind);
    const int cpu = farm_bitmap_next(&setup->machine->allowed, 0);
    struct farm_bw_workers_config config = farm_bw_workers_for(clock, 2, &cpu, 1, 2, *array_bytes);
    struct farm_bw_workers workers;
    config.pages = pages->kind;
    if (farm_bw_clock_over(clock)) return FARM_OK;
    enum farm_status status = farm_bw_workers_open(setup, &config, &workers, clock->conditions, err);
    if (status) return status;
    const struct farm_bw_buffer *buffer = &workers.worker[0].buffer;
    *array_bytes = workers.config.array_bytes;
    pages->huge_share = pages->kind == FARM_BW_PAGES_SMALL ? 1 : (double)buffer->huge_bytes / (double)buffer->bytes;
    if (farm_bw_clock_next(clock, "%s", name))
        status = farm_bw_workers_figure(&workers, clock, &read, &pages->read, err);
    if (!status && farm_bw_clock_next(clock, "%s", name))
        status = farm_bw_workers_figure(&workers, clock, &copy, &pages->copy, err);
    farm_bw_workers_close(&workers);
    if (status || !farm_bw_clock_next(clock, "%s", name)) return status;
    struct farm_bw_setup one = *setup;
    struct farm_bw_conditions unused = farm_bw_conditions_start();
    struct farm_bw_idle idle;
    one.seconds = (double)(clock->end_ns - clock->start_ns) * 1e-9 / clock->figures;
    status = farm_bw_idle_latency(&one, *array_bytes, pages->kind, &idle, &unused, err);
    pages->latency = idle.ns;
    farm_bw_clock_took(clock);
    return status;
}

static json_t *report_pages(struct farm_bw_job *job, const struct pages *pages) {
    char key[32];
    const char *name = farm_bw_pages_name(pages->kind);
    json_t *object = farm_json_object(false);
    farm_bw_key(name, key, sizeof key);
    farm_json_set_text(object, "pages", name);
    farm_json_set_bool(object, "available", pages->available);
    farm_json_set_text(object, "reason", pages->available ? NULL : pages->reason);
    fprintf(job->out, "  %-18s", name);
    farm_bw_report(job, 10, object, "read_bytes_per_s", &pages->read, &farm_bw_gb_per_s, "pages.%s.read", key);
    farm_bw_report(job, 10, object, "copy_bytes_per_s", &pages->copy, &farm_bw_gb_per_s, "pages.%s.copy", key);
    farm_bw_report(job, 10, object, "latency_ns", &pages->latency, &farm_bw_ns, "pages.%s.latency", key);
    fprintf(job->out, "%s%s\n", pages->available ? "" : "  not here: ", pages->available ? "" : pages->reason);
    farm_json_set_real(object, "huge_share", pages->huge_share);
    return object;
}

enum farm_status farm_bw_part_pages(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    enum { KINDS = FARM_BW_PAGES_KINDS - 1 }; // all but AUTO
    struct farm_bw_conditions conditions = farm_bw_conditions_start();
    struct pages all[KINDS];
    uint64_t array_bytes = job->size_bytes;
    struct farm_bw_clock clock = farm_bw_clock_start(&job->setup, 6, 3 * KINDS, &conditions);
    for (int i = 0; i < KINDS; i++) {
        struct pages *pages = &all[i];
        const enum farm_bw_pages kind = (enum farm_bw_pages)(FARM_BW_PAGES_SMALL + i);
        struct farm_error why = {0};
        *pages = (struct pages){.kind = kind, .read = nothing(), .copy = nothing(), .latency = nothing()};
        pages->available = farm_bw_pages_available(job->setup.root, kind, pages->reason, sizeof pages->reason);
        if (!pages->available) continue;
        const enum farm_status status = measure_pages(&job->setup, &array_bytes, pages, &clock, &why);
        if (!status) continue;
        pages->available = false;
        snprintf(pages->reason, sizeof pages->reason, "%s", why.message);
        if (status == FARM_E_UNSUPPORTED || (status == FARM_E_LIMIT && kind >= FARM_BW_PAGES_2M)) continue;
        if (err) *err = why;
        return status;
    }
    json_t *rows = json_array();
    fprintf(job->out, "Size of pages, one core\n  %-18s %10s %10s %10s\n", "", "read GB/s", "copy GB/s", "latency ns");
    for (int i = 0; i < KINDS; i++) farm_json_append(rows, report_pages(job, &all[i]));
    farm_json_set_int(section, "array_bytes", array_bytes);
    farm_json_set(section, "rows", rows);
    farm_bw_report_conditions(job, section, &conditions);
    return FARM_OK;
}
