// Latency under load in `farm bw`: one core of a node chases, the others read, with pauses between lines. See job.h.
#include <stdatomic.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/time.h"
#include "bw/chase.h"
#include "bw/job.h"
#include "bw/workers.h"

enum {
    LINE = FARM_BANDWIDTH_LINE,
    DELAYS_MAX = 24,
    STREAM_CHUNK_LINES = 1 << 13, // 512 KiB: between two looks at the end, without delays
    DELAYED_LINES = 64,           // between two delays
    DELAY_LINES = 8,              // a row's delay is stated for this number of lines
};
static const double OPENING = 0.25, RAMP_S = 1e-3, SAMPLE_S = 0.02;

// Turns of an empty loop: Intel MLC's, and fewer of them.
static const int all_delays[] = {0,   2,    8,    15,   50,   100,  200,  300,  400,  500,
                                 700, 1000, 1300, 1700, 2500, 3500, 5000, 9000, 20000};
static const int few_delays[] = {0, 50, 200, 500, 1000, 2500, 20000};

struct stream {
    uint64_t pass; // complete ones since the arrays were filled
    uint64_t lines, took_ns;
    char apart[104]; // from the next thread's
};

// Member 0 of the team chases, the others stream over the workers' arrays until it is done.
struct loading {
    struct farm_bw_workers workers;
    struct farm_bw_team *team;
    struct farm_bw_chase chase;
    int delay;
    double sample_s, ns; // ns: in the last sample
    struct stream *stream;
    _Alignas(128) _Atomic bool done;
};

struct row {
    int delay;
    struct farm_bw_figure ns, bytes_per_s; // chasing thread; all streaming threads together
};

struct table {
    int rows, streams;
    int cpus[FARM_CPUS_MAX]; // the first one chases
    struct row row[DELAYS_MAX];
    struct farm_bw_conditions conditions;
};

// ---- streams ----

// Some lines of a thread's array, as separate work.
static struct farm_bandwidth_work work_of(const struct farm_bandwidth_work *work, size_t line, size_t lines) {
    struct farm_bandwidth_work part = *work;
    part.lines = lines;
    part.a += line * (LINE / sizeof(double));
    return part;
}

// The last pass is completed, so that every line has been read equally often, but not counted.
static void stream_until_done(struct loading *loading, int index) {
    struct farm_bw_worker *worker = &loading->workers.worker[index];
    struct stream *stream = &loading->stream[index];
    const size_t chunk = loading->delay > 0 ? DELAYED_LINES : STREAM_CHUNK_LINES;
    const uint64_t start = farm_now_ns();
    size_t line = 0;
    stream->lines = 0;
    while (!atomic_load_explicit(&loading->done, memory_order_relaxed)) {
        const size_t lines = worker->lines - line < chunk ? worker->lines - line : chunk;
        const struct farm_bandwidth_work part = work_of(&worker->work, line, lines);
        worker->sum += farm_bandwidth_run(&part, loading->workers.variant, stream->pass, 1);
        stream->lines += lines;
        line += lines;
        if (line == worker->lines) line = 0, stream->pass++;
        for (int i = 0; i < loading->delay * (DELAYED_LINES / DELAY_LINES); i++) __asm__ volatile("" ::: "memory");
    }
    stream->took_ns = farm_now_ns() - start;
    if (line == 0) return;
    const struct farm_bandwidth_work rest = work_of(&worker->work, line, worker->lines - line);
    worker->sum += farm_bandwidth_run(&rest, loading->workers.variant, stream->pass++, 1);
}

static void load_member(void *context, int member) {
    struct loading *loading = context;
    farm_bw_team_meet(loading->team);
    if (member > 0) {
        stream_until_done(loading, member - 1);
        return;
    }
    farm_bw_chase_time(&loading->chase, RAMP_S);
    loading->ns = farm_bw_chase_time(&loading->chase, loading->sample_s);
    atomic_store_explicit(&loading->done, true, memory_order_relaxed);
}

static void verify_member(void *context, int member) {
    struct loading *loading = context;
    if (member == 0) return;
    struct farm_bw_worker *worker = &loading->workers.worker[member - 1];
    const uint64_t passes = loading->stream[member - 1].pass;
    worker->good = farm_bandwidth_verify(&worker->work, passes, NULL) &&
                   worker->sum == farm_bandwidth_expected_sum(&worker->work, passes);
}

// Bytes per second of all streams in the last sample.
static double stream_rate(const struct loading *loading, int streams) {
    double bytes_per_s = 0;
    for (int i = 0; i < streams; i++) {
        const struct stream *stream = &loading->stream[i];
        if (stream->took_ns) bytes_per_s += (double)stream->lines * LINE / ((double)stream->took_ns * 1e-9);
    }
    return bytes_per_s;
}

// ---- rows ----

static void measure_row(struct loading *loading, struct farm_bw_clock *clock, int streams, struct row *row) {
    const struct farm_bw_workers *workers = &loading->workers;
    double ns[FARM_BW_SAMPLES_MAX], bytes_per_s[FARM_BW_SAMPLES_MAX];
    int count = 0;
    loading->delay = row->delay;
    for (; farm_bw_clock_more(clock, count); count++) {
        atomic_store_explicit(&loading->done, false, memory_order_relaxed);
        farm_bw_team_run(loading->team, load_member, loading);
        ns[count] = loading->ns;
        bytes_per_s[count] = stream_rate(loading, streams);
    }
    row->ns = farm_bw_figure_of(ns, count);
    row->bytes_per_s = farm_bw_figure_of(bytes_per_s, count);
    farm_bw_mark_in_cache(&row->ns, loading->chase.bytes, workers->setup->machine->l3_bytes, clock->conditions);
    farm_bw_mark_in_cache(&row->bytes_per_s, workers->config.array_bytes, workers->cache_bytes, clock->conditions);
    farm_bw_clock_took(clock);
}

static enum farm_status measure_rows(struct loading *loading, struct farm_bw_clock *clock, struct table *table,
                                     struct farm_error *err) {
    for (int i = 0; i < table->rows && farm_bw_clock_next(clock, "loaded latency, delay %d", table->row[i].delay); i++)
        measure_row(loading, clock, table->streams, &table->row[i]);
    farm_bw_team_run(loading->team, verify_member, loading);
    for (int i = 0; i < table->streams; i++)
        if (!loading->workers.worker[i].good)
            return farm_fail(err, FARM_E_IO,
                             "loaded latency: a stream's data are wrong: memory of this machine is broken");
    return FARM_OK;
}

// The chase beside the streams' arrays.
static enum farm_status open_chase(struct loading *loading, struct farm_bw_clock *clock, const struct table *table,
                                   uint64_t bytes, struct farm_error *err) {
    const struct farm_bw_setup *setup = clock->setup;
    const struct farm_bw_kernel read = {.op = FARM_BANDWIDTH_READ};
    enum farm_status status = farm_bw_workers_prepare(&loading->workers, &read, err);
    for (int i = 0; i < table->streams; i++) loading->stream[i].pass = loading->workers.passes_done;
    if (!status) status = farm_bw_team_open(table->cpus, table->streams + 1, &loading->team, clock->conditions, err);
    if (status) return status;
    const struct farm_bw_chase_config config = {bytes, OPENING * farm_bw_clock_share(clock, clock->figures), LINE,
                                                farm_bw_node_of(setup->machine, table->cpus[0]), 0};
    status = farm_bw_chase_open(setup, &config, &loading->chase, clock->conditions, err);
    if (!status) farm_bw_chase_make(&loading->chase, (size_t)loading->chase.bytes / LINE, LINE, false);
    return status;
}

static enum farm_status measure_table(const struct farm_bw_job *job, struct table *table, struct farm_error *err) {
    struct loading loading = {.sample_s = job->setup.sample_s > 0 ? job->setup.sample_s : SAMPLE_S};
    struct farm_bw_clock clock =
        farm_bw_clock_start(&job->setup, 1 + 0.15 * table->rows, table->rows, &table->conditions);
    struct farm_bw_workers_config config =
        farm_bw_workers_for(&clock, table->rows, table->cpus + 1, table->streams, 1, job->size_bytes);
    config.seconds *= OPENING;
    config.figures = 1;
    enum farm_status status = farm_bw_workers_open(&job->setup, &config, &loading.workers, &table->conditions, err);
    if (status) return status;
    loading.stream = calloc((size_t)table->streams, sizeof *loading.stream);
    status = loading.stream ? open_chase(&loading, &clock, table, job->size_bytes, err)
                            : farm_fail(err, FARM_E_LIMIT, "no memory for %d threads", table->streams);
    if (!status) status = measure_rows(&loading, &clock, table, err);
    farm_bw_chase_close(&loading.chase);
    farm_bw_team_close(loading.team);
    free(loading.stream);
    farm_bw_workers_close(&loading.workers);
    return status;
}

static json_t *report_row(struct farm_bw_job *job, const struct row *row) {
    json_t *object = farm_json_object(false);
    farm_json_set_int(object, "delay_turns", (uint64_t)row->delay);
    fprintf(job->out, "  %12d", row->delay);
    farm_bw_report(job, 10, object, "ns", &row->ns, &farm_bw_ns, "loaded.%d.latency", row->delay);
    farm_bw_report(job, 10, object, "bytes_per_s", &row->bytes_per_s, &farm_bw_gb_per_s, "loaded.%d.bandwidth",
                   row->delay);
    fprintf(job->out, "\n");
    return object;
}

enum farm_status farm_bw_part_loaded(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    const struct farm_machine *machine = job->setup.machine;
    const bool full = job->depth == FARM_BW_FULL;
    const int *delays = full ? all_delays : few_delays;
    const struct farm_cpu *first = farm_machine_cpu(machine, farm_bitmap_next(&machine->allowed, 0));
    struct table table = {.rows = (int)(full ? sizeof all_delays : sizeof few_delays) / (int)sizeof(int),
                          .conditions = farm_bw_conditions_start()};
    table.streams = farm_bw_cpus(machine, first ? first->node : -1, table.cpus, FARM_CPUS_MAX) - 1;
    for (int i = 0; i < table.rows; i++)
        table.row[i] = (struct row){delays[i], farm_bw_figure_of(NULL, 0), farm_bw_figure_of(NULL, 0)};
    enum farm_status status = FARM_OK;
    if (table.streams > 0)
        status = measure_table(job, &table, err);
    else
        farm_bw_conditions_note(&table.conditions, "Loaded latency needs two cores: one chases, one streams.");
    if (status) return status;
    json_t *rows = json_array();
    fprintf(job->out, "Latency under load: one core chases, %d read\n  %12s %10s %10s\n", table.streams, "delay", "ns",
            "GB/s");
    for (int i = 0; i < table.rows; i++) farm_json_append(rows, report_row(job, &table.row[i]));
    farm_json_set_int(section, "streaming_threads", (uint64_t)table.streams);
    farm_json_set(section, "rows", rows);
    farm_bw_report_conditions(job, section, &table.conditions);
    return FARM_OK;
}
