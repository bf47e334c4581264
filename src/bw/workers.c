// See workers.h.
#include "bw/workers.h"

#include <assert.h>
#include <stdlib.h>

#include "base/time.h"
#include "shm/limits.h"

enum {
    // Lines by which a thread's next array starts later in its page: loads would wait for stores to like addresses.
    STAGGER_LINES = 5,
    ARRAYS = 3,
    THREAD_BYTES_LEAST = 64 << 10, // per array, however short the time is
    TRIAL = 8,                     // the part of the arrays that is filled first, to see how long it takes
};
// POPULATE_SHARE: part of the time for making pages present. A figure (contents, a pass to warm up, a sample,
// verification) takes up to FIGURE_FILLS times as long as filling all arrays once.
static const double SAMPLE_S_DEFAULT = 0.05, CALIBRATION_S = 1e-3, POPULATE_SHARE = 0.5, FIGURE_FILLS = 2.5;

// ---- contents ----

static void set_work(struct farm_bw_workers *workers, const struct farm_bw_kernel *kernel) {
    const enum farm_bandwidth_op op = kernel->op;
    for (int i = 0; i < workers->config.cpu_count; i++) {
        struct farm_bw_worker *worker = &workers->worker[i];
        worker->work = (struct farm_bandwidth_work){.op = op,
                                                    .stores = kernel->stores,
                                                    .pattern = kernel->pattern,
                                                    .lines = worker->lines,
                                                    .stride_lines = kernel->stride_bytes / FARM_BANDWIDTH_LINE,
                                                    .order = worker->order};
        if (farm_bandwidth_uses_a(op)) worker->work.a = worker->array[0];
        if (farm_bandwidth_uses_b(op)) worker->work.b = worker->array[1];
        if (farm_bandwidth_uses_d(op)) worker->work.d = worker->array[workers->config.arrays - 1];
    }
}

static void fill_member(void *context, int member) {
    struct farm_bw_workers *workers = context;
    struct farm_bw_worker *worker = &workers->worker[member];
    const bool sources = (farm_bandwidth_uses_a(worker->work.op) && !worker->filled_a) ||
                         (farm_bandwidth_uses_b(worker->work.op) && !worker->filled_b);
    farm_bandwidth_fill(&worker->work, sources);
    worker->filled_a |= farm_bandwidth_uses_a(worker->work.op);
    worker->filled_b |= farm_bandwidth_uses_b(worker->work.op);
    // With fewer arrays than three, d shares the memory of a or b.
    if (farm_bandwidth_uses_d(worker->work.op) && workers->config.arrays < ARRAYS)
        worker->filled_a = worker->filled_b = false;
    worker->sum = 0;
}

// ---- opening ----

struct farm_bw_workers_config farm_bw_workers_for(const struct farm_bw_clock *clock, int figures, const int *cpus,
                                                  int cpu_count, int arrays, uint64_t array_bytes) {
    const double seconds = farm_bw_clock_share(clock, figures);
    return (struct farm_bw_workers_config){cpus, cpu_count, -1, arrays, 0, array_bytes, seconds, figures, false};
}

// Lines in each thread's arrays.
static size_t lines_of(const struct farm_bw_workers *workers) {
    return (size_t)(workers->config.array_bytes / FARM_BANDWIDTH_LINE) / (size_t)workers->config.cpu_count;
}

static void set_lines(struct farm_bw_workers *workers, size_t lines) {
    for (int i = 0; i < workers->config.cpu_count; i++) workers->worker[i].lines = lines;
    workers->config.array_bytes = (uint64_t)lines * FARM_BANDWIDTH_LINE * (uint64_t)workers->config.cpu_count;
}

static int node_of(const struct farm_bw_workers *workers, int cpu) {
    return workers->config.node >= 0 ? workers->config.node : farm_bw_node_of(workers->setup->machine, cpu);
}

// All threads' arrays together fit, on each node too.
static enum farm_status check_room(const struct farm_bw_workers *workers, struct farm_error *err) {
    const struct farm_bw_workers_config *config = &workers->config;
    const char *root = workers->setup->root;
    const uint64_t most = UINT64_MAX / 64, array_bytes = config->array_bytes < most ? config->array_bytes : most;
    const uint64_t order = config->shuffled ? array_bytes / FARM_BANDWIDTH_LINE * sizeof(uint32_t) : 0;
    const uint64_t total = (uint64_t)config->arrays * array_bytes + order;
    if (config->pages >= FARM_BW_PAGES_2M) return FARM_OK; // opening a buffer checks the pool
    if (config->pages == FARM_BW_PAGES_AUTO && farm_limits_huge_available_bytes(root, -1) >= total) return FARM_OK;
    enum farm_status status = farm_limits_check_memory(root, total, -1, err);
    for (int node = 0; !status && node < FARM_NODES_MAX; node++) {
        uint64_t threads = 0;
        for (int i = 0; i < config->cpu_count; i++) threads += node_of(workers, config->cpus[i]) == node;
        if (threads) status = farm_limits_check_memory(root, total / (uint64_t)config->cpu_count * threads, node, err);
    }
    return status;
}

struct opening {
    struct farm_bw_workers *workers;
    uint64_t until_ns; // end of making pages present; 0: all of them
};

static void open_member(void *context, int member) {
    const struct opening *opening = context;
    struct farm_bw_workers *workers = opening->workers;
    struct farm_bw_worker *worker = &workers->worker[member];
    const size_t lines = (size_t)workers->config.arrays * (lines_of(workers) + STAGGER_LINES);
    worker->status = farm_bw_buffer_open(workers->setup->root, lines * FARM_BANDWIDTH_LINE,
                                         node_of(workers, workers->config.cpus[member]), workers->config.pages,
                                         opening->until_ns, &worker->buffer, &worker->err);
}

// Gives all threads arrays of the length that the smallest buffer allows.
static void lay_out(struct farm_bw_workers *workers) {
    size_t lines = lines_of(workers);
    for (int i = 0; i < workers->config.cpu_count; i++) {
        const size_t had =
            workers->worker[i].buffer.bytes / FARM_BANDWIDTH_LINE / (size_t)workers->config.arrays - STAGGER_LINES;
        if (had < lines) lines = had;
    }
    for (int i = 0; i < workers->config.cpu_count; i++) {
        char *start = workers->worker[i].buffer.start;
        for (int k = 0; k < workers->config.arrays; k++)
            workers->worker[i].array[k] =
                (double *)(void *)(start + (size_t)k * (lines + STAGGER_LINES) * FARM_BANDWIDTH_LINE);
    }
    set_lines(workers, lines);
}

// Fills the arrays' first part, the coldest, and keeps of them what the time until end_ns suffices to fill and measure.
static void shorten_to_time(struct farm_bw_workers *workers, int figures, uint64_t end_ns) {
    static const enum farm_bandwidth_op ops[] = {FARM_BANDWIDTH_WRITE, FARM_BANDWIDTH_COPY, FARM_BANDWIDTH_TRIAD};
    const size_t lines = lines_of(workers);
    const uint64_t bytes = (uint64_t)lines * FARM_BANDWIDTH_LINE, part = bytes / TRIAL;
    const uint64_t least = bytes < THREAD_BYTES_LEAST ? bytes : THREAD_BYTES_LEAST, trial = part > least ? part : least;
    set_lines(workers, trial / FARM_BANDWIDTH_LINE);
    set_work(workers, &(struct farm_bw_kernel){.op = ops[workers->config.arrays - 1]});
    const uint64_t start_ns = farm_now_ns();
    farm_bw_team_run(workers->team, fill_member, workers);
    const uint64_t now_ns = farm_now_ns();
    for (int i = 0; i < workers->config.cpu_count; i++)
        workers->worker[i].filled_a = workers->worker[i].filled_b = false;
    const double took_s = (double)(now_ns - start_ns) * 1e-9,
                 left_s = (now_ns < end_ns ? (double)(end_ns - now_ns) * 1e-9 : 0) - figures * workers->sample_s;
    const uint64_t possible = farm_bw_bytes_in_time(bytes, trial, took_s, 1 + FIGURE_FILLS * figures, left_s);
    set_lines(workers, (possible > least ? possible : least) / FARM_BANDWIDTH_LINE);
}

// The first thread's that failed.
static enum farm_status first_failure(const struct farm_bw_workers *workers, struct farm_error *err) {
    for (int i = 0; i < workers->config.cpu_count; i++) {
        const struct farm_bw_worker *worker = &workers->worker[i];
        if (!worker->status) continue;
        if (err) *err = worker->err;
        return worker->status;
    }
    return FARM_OK;
}

static void shuffle_member(void *context, int member) {
    struct farm_bw_workers *workers = context;
    struct farm_bw_worker *worker = &workers->worker[member];
    worker->order = malloc(worker->lines * sizeof *worker->order);
    if (worker->order)
        farm_bandwidth_shuffle(worker->order, worker->lines, (uint64_t)member);
    else
        worker->status = farm_fail(&worker->err, FARM_E_LIMIT, "no memory for an order of %zu lines", worker->lines);
}

// Opens the team and its arrays; until_ns not 0: arrays may be smaller than wanted.
static enum farm_status open_arrays(struct farm_bw_workers *workers, uint64_t until_ns,
                                    struct farm_bw_conditions *conditions, struct farm_error *err) {
    const int threads = workers->config.cpu_count;
    workers->worker = calloc((size_t)threads, sizeof *workers->worker);
    if (!workers->worker) return farm_fail(err, FARM_E_LIMIT, "no memory for %d threads", threads);
    enum farm_status status = farm_bw_team_open(workers->config.cpus, threads, &workers->team, conditions, err);
    if (status) return status;
    struct opening opening = {workers, until_ns};
    farm_bw_team_run(workers->team, open_member, &opening);
    if ((status = first_failure(workers, err))) return status;
    for (int i = 0; i < threads; i++) farm_bw_buffer_add_conditions(&workers->worker[i].buffer, conditions);
    lay_out(workers);
    return FARM_OK;
}

enum farm_status farm_bw_workers_open(const struct farm_bw_setup *setup, const struct farm_bw_workers_config *config,
                                      struct farm_bw_workers *workers, struct farm_bw_conditions *conditions,
                                      struct farm_error *err) {
    const uint64_t start_ns = farm_now_ns(), end_ns = start_ns + (uint64_t)(config->seconds * 1e9);
    const bool chosen = config->array_bytes == 0;
    *workers =
        (struct farm_bw_workers){.setup = setup,
                                 .config = *config,
                                 .cache_bytes = farm_bw_cache_bytes(setup->machine, config->cpus, config->cpu_count),
                                 .variant = farm_bandwidth_resolve(setup->variant),
                                 .sample_s = setup->sample_s > 0 ? setup->sample_s : SAMPLE_S_DEFAULT};
    uint64_t *bytes = &workers->config.array_bytes;
    if (chosen) *bytes = farm_bw_array_bytes(setup, config->cpus, config->cpu_count);
    if (config->cpu_count < 1 || lines_of(workers) == 0)
        return farm_fail(err, FARM_E_INVALID, "arrays of %llu bytes for %d threads: at least a line of %d bytes each",
                         (unsigned long long)*bytes, config->cpu_count, FARM_BANDWIDTH_LINE);
    enum farm_status status = check_room(workers, err);
    // A node may have less room than the machine.
    while (status == FARM_E_LIMIT && chosen && lines_of(workers) > THREAD_BYTES_LEAST / FARM_BANDWIDTH_LINE) {
        *bytes /= 2;
        status = check_room(workers, err);
    }
    if (status) return status;
    const uint64_t populate_ns = (uint64_t)((double)(end_ns - start_ns) * POPULATE_SHARE);
    status = open_arrays(workers, chosen ? start_ns + populate_ns : 0, conditions, err);
    if (!status && chosen) shorten_to_time(workers, config->figures, end_ns);
    if (!status && config->shuffled) {
        farm_bw_team_run(workers->team, shuffle_member, workers);
        status = first_failure(workers, err);
    }
    const uint64_t rounding = (uint64_t)config->cpu_count * FARM_BANDWIDTH_LINE;
    if (!status && chosen && *bytes + rounding < FARM_BW_CACHES * workers->cache_bytes)
        farm_bw_conditions_note(
            conditions, "Time or memory is short: arrays are smaller than %d x the last-level caches.", FARM_BW_CACHES);
    if (status) farm_bw_workers_close(workers);
    return status;
}

void farm_bw_workers_close(struct farm_bw_workers *workers) {
    farm_bw_team_close(workers->team);
    for (int i = 0; workers->worker && i < workers->config.cpu_count; i++) {
        farm_bw_buffer_close(&workers->worker[i].buffer);
        free(workers->worker[i].order);
    }
    free(workers->worker);
    *workers = (struct farm_bw_workers){0};
}

// ---- figures ----

static void run_member(void *context, int member) {
    struct farm_bw_workers *workers = context;
    struct farm_bw_worker *worker = &workers->worker[member];
    farm_bw_team_meet(workers->team);
    worker->start_ns = farm_now_ns();
    worker->sum += farm_bandwidth_run(&worker->work, workers->variant, workers->passes_done, workers->passes);
    worker->end_ns = farm_now_ns();
}

static void verify_member(void *context, int member) {
    struct farm_bw_workers *workers = context;
    struct farm_bw_worker *worker = &workers->worker[member];
    worker->good = farm_bandwidth_verify(&worker->work, workers->passes_done, &worker->wrong_line);
    if (worker->work.op == FARM_BANDWIDTH_READ)
        worker->good &= worker->sum == farm_bandwidth_expected_sum(&worker->work, workers->passes_done);
}

// Seconds from the first thread's start to the last one's end.
static double run_all(struct farm_bw_workers *workers, uint64_t passes) {
    workers->passes = passes;
    farm_bw_team_run(workers->team, run_member, workers);
    workers->passes_done += passes;
    uint64_t start_ns = UINT64_MAX, end_ns = 0;
    for (int i = 0; i < workers->config.cpu_count; i++) {
        if (workers->worker[i].start_ns < start_ns) start_ns = workers->worker[i].start_ns;
        if (workers->worker[i].end_ns > end_ns) end_ns = workers->worker[i].end_ns;
    }
    return (double)(end_ns - start_ns) * 1e-9;
}

enum farm_status farm_bw_workers_prepare(struct farm_bw_workers *workers, const struct farm_bw_kernel *kernel,
                                         struct farm_error *err) {
    assert(farm_bandwidth_arrays(kernel->op) <= workers->config.arrays &&
           kernel->stride_bytes % FARM_BANDWIDTH_LINE == 0);
    set_work(workers, kernel);
    workers->passes_done = 0;
    farm_bw_team_run(workers->team, fill_member, workers);
    double took_s = run_all(workers, 1);
    uint64_t passes = 1;
    while (took_s < CALIBRATION_S) took_s = run_all(workers, passes *= 4);
    workers->passes = (uint64_t)(workers->sample_s / (took_s / (double)passes)) + 1;
    return FARM_OK;
}

double farm_bw_workers_sample(struct farm_bw_workers *workers) {
    const double took_s = run_all(workers, workers->passes);
    double bytes = 0;
    for (int i = 0; i < workers->config.cpu_count; i++)
        bytes += (double)workers->worker[i].work.lines * farm_bandwidth_program_bytes(workers->worker[i].work.op);
    return bytes * (double)workers->passes / took_s;
}

enum farm_status farm_bw_workers_verify(struct farm_bw_workers *workers, struct farm_error *err) {
    farm_bw_team_run(workers->team, verify_member, workers);
    for (int i = 0; i < workers->config.cpu_count; i++)
        if (!workers->worker[i].good)
            return farm_fail(
                err, FARM_E_IO,
                "%s in %s kernels: wrong data after %llu passes in line %zu of thread %d: memory or CPU of "
                "this machine is broken, or the kernel is",
                farm_bandwidth_op_name(workers->worker[i].work.op), farm_bandwidth_variant_name(workers->variant),
                (unsigned long long)workers->passes_done, workers->worker[i].wrong_line, i);
    return FARM_OK;
}

enum farm_status farm_bw_workers_figure(struct farm_bw_workers *workers, struct farm_bw_clock *clock,
                                        const struct farm_bw_kernel *kernel, struct farm_bw_figure *figure,
                                        struct farm_error *err) {
    double samples[FARM_BW_SAMPLES_MAX];
    int count = 0;
    enum farm_status status = farm_bw_workers_prepare(workers, kernel, err);
    if (status) return status;
    while (farm_bw_clock_more(clock, count)) samples[count++] = farm_bw_workers_sample(workers);
    status = farm_bw_workers_verify(workers, err);
    if (status) return status;
    *figure = farm_bw_figure_of(samples, count);
    farm_bw_mark_in_cache(figure, (uint64_t)farm_bandwidth_arrays(kernel->op) * workers->config.array_bytes,
                          workers->cache_bytes, clock->conditions);
    farm_bw_clock_took(clock);
    return FARM_OK;
}

enum farm_status farm_bw_bandwidth(struct farm_bw_clock *clock, const struct farm_bw_kernel *kernel, const int *cpus,
                                   int cpu_count, int node, uint64_t array_bytes, struct farm_bw_figure *figure,
                                   struct farm_error *err) {
    struct farm_bw_workers_config config =
        farm_bw_workers_for(clock, 1, cpus, cpu_count, farm_bandwidth_arrays(kernel->op), array_bytes);
    struct farm_bw_workers workers;
    config.node = node;
    config.shuffled = kernel->pattern == FARM_BANDWIDTH_LISTED;
    enum farm_status status = farm_bw_workers_open(clock->setup, &config, &workers, clock->conditions, err);
    if (status) return status;
    status = farm_bw_workers_figure(&workers, clock, kernel, figure, err);
    farm_bw_workers_close(&workers);
    return status;
}
