// See workers.h.
#include "bw/workers.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "shm/limits.h"

enum {
    SAMPLES_DEFAULT = 5,
    // Arrays of one thread start so many lines later within a page than the one before: at the same place in a page
    // loads would wait for stores to addresses that look alike.
    STAGGER_LINES = 5,
    ARRAYS = 3,
    THREAD_BYTES_LEAST = 64 << 10, // of an array, however short the time is
    TRIAL = 8,                     // the part of the arrays that is filled first, to see how long it takes
};
// Of a workers's time: making pages present. A figure (contents, a pass to warm up, a sample, verification) takes up to
// so many times as long as filling all arrays once.
static const double SAMPLE_S_DEFAULT = 0.05, CALIBRATION_S = 1e-3, POPULATE_SHARE = 0.5, FIGURE_FILLS = 2.5;

// ---- time and stop ----

struct farm_bw_clock farm_bw_clock_start(const struct farm_bw_setup *setup, double default_seconds, int figures,
                                         struct farm_bw_conditions *conditions) {
    const double seconds = setup->seconds > 0 ? setup->seconds : default_seconds;
    const uint64_t now = farm_now_ns();
    return (struct farm_bw_clock){.setup = setup,
                                  .start_ns = now,
                                  .end_ns = now + (uint64_t)(seconds * 1e9),
                                  .figures = figures,
                                  .due = 1,
                                  .conditions = conditions};
}

static bool stopped(struct farm_bw_clock *clock) {
    const struct farm_bw_control *control = clock->setup->control;
    if (control && control->stop && control->stop(control->context)) clock->conditions->stopped = true;
    return clock->conditions->stopped;
}

bool farm_bw_clock_next(struct farm_bw_clock *clock, const char *what) {
    if (stopped(clock)) return false;
    const struct farm_bw_control *control = clock->setup->control;
    if (control && control->progress)
        control->progress(control->context, what, clock->figures ? (double)clock->taken / clock->figures : 1);
    const uint64_t now = farm_now_ns();
    const bool over = now >= clock->end_ns;
    const int left = clock->figures > clock->taken ? clock->figures - clock->taken : 1;
    clock->until_ns = over ? now : now + (clock->end_ns - now) / (uint64_t)left;
    if (over && clock->taken >= clock->due) clock->conditions->out_of_time = true;
    return !over || clock->taken < clock->due;
}

bool farm_bw_clock_more(struct farm_bw_clock *clock, int done) {
    if (done == 0) return true;
    if (done >= farm_bw_samples(clock->setup) || stopped(clock)) return false;
    if (farm_now_ns() < clock->until_ns) return true;
    clock->conditions->out_of_time = true;
    return false;
}

bool farm_bw_clock_over(struct farm_bw_clock *clock) {
    return stopped(clock) || (clock->taken >= clock->due && farm_now_ns() >= clock->end_ns);
}

void farm_bw_clock_took(struct farm_bw_clock *clock) {
    clock->taken++;
}

double farm_bw_clock_share(const struct farm_bw_clock *clock, int figures) {
    const uint64_t now = farm_now_ns();
    const int left = clock->figures > clock->taken + figures ? clock->figures - clock->taken : figures;
    return now < clock->end_ns ? (double)(clock->end_ns - now) * 1e-9 * figures / left : 0;
}

int farm_bw_samples(const struct farm_bw_setup *setup) {
    if (setup->samples < 1) return SAMPLES_DEFAULT;
    return setup->samples < FARM_BW_SAMPLES_MAX ? setup->samples : FARM_BW_SAMPLES_MAX;
}

// ---- sizes ----

uint64_t farm_bw_bytes_in_time(uint64_t bytes, uint64_t piece, double took_s, double times, double seconds) {
    const double possible = took_s > 0 ? (double)piece * (seconds / (took_s * times)) : (double)bytes;
    if (possible >= (double)bytes) return bytes;
    return possible > FARM_BANDWIDTH_LINE ? (uint64_t)possible & ~(uint64_t)(FARM_BANDWIDTH_LINE - 1)
                                          : FARM_BANDWIDTH_LINE;
}

// ---- conditions ----

enum farm_status farm_bw_leave_out(enum farm_status status, const struct farm_error *why,
                                   struct farm_bw_conditions *conditions, struct farm_error *err) {
    if (status && err) *err = *why;
    if (status != FARM_E_LIMIT) return status;
    farm_bw_conditions_note(conditions, "Left out: %s.", why->message);
    return FARM_OK;
}

enum farm_status farm_bw_all_left_out(const struct farm_error *why, struct farm_error *err) {
    if (why->status && err) *err = *why;
    return why->status;
}

void farm_bw_mark_in_cache(struct farm_bw_figure *figure, uint64_t bytes, uint64_t cache_bytes,
                           struct farm_bw_conditions *conditions) {
    if (bytes > cache_bytes || !farm_bw_figure_is(figure)) return;
    figure->in_cache = true;
    farm_bw_conditions_note(conditions,
                            "*: the memory used fits into the last-level caches (%.0f MiB): a figure of caches.",
                            (double)cache_bytes / (1 << 20));
}

void farm_bw_conditions_add_buffer(struct farm_bw_conditions *conditions, const struct farm_bw_buffer *buffer) {
    struct farm_bw_conditions one = farm_bw_conditions_start();
    one.bound = buffer->bound;
    one.placed = buffer->placed;
    one.pages = buffer->pages;
    snprintf(one.note, sizeof one.note, "%s", buffer->note);
    farm_bw_conditions_merge(conditions, &one);
}

// ---- contents ----

static void set_work(struct farm_bw_workers *workers, enum farm_bandwidth_op op, enum farm_bandwidth_stores stores,
                     enum farm_bandwidth_pattern pattern, uint64_t stride_bytes) {
    for (int i = 0; i < workers->threads; i++) {
        struct farm_bw_actor *actor = &workers->actor[i];
        actor->work = (struct farm_bandwidth_work){.op = op,
                                                   .stores = stores,
                                                   .pattern = pattern,
                                                   .lines = actor->lines,
                                                   .stride_lines = stride_bytes / FARM_BANDWIDTH_LINE,
                                                   .order = actor->order};
        if (farm_bandwidth_uses_a(op)) actor->work.a = actor->array[0];
        if (farm_bandwidth_uses_b(op)) actor->work.b = actor->array[1];
        if (farm_bandwidth_uses_d(op)) actor->work.d = actor->array[workers->arrays - 1];
    }
}

static void fill_member(void *context, int member) {
    struct farm_bw_workers *workers = context;
    struct farm_bw_actor *actor = &workers->actor[member];
    const bool sources = (farm_bandwidth_uses_a(actor->work.op) && !actor->filled_a) ||
                         (farm_bandwidth_uses_b(actor->work.op) && !actor->filled_b);
    farm_bandwidth_fill(&actor->work, sources);
    actor->filled_a |= farm_bandwidth_uses_a(actor->work.op);
    actor->filled_b |= farm_bandwidth_uses_b(actor->work.op);
    // With fewer arrays than three, d is where a or b was.
    if (farm_bandwidth_uses_d(actor->work.op) && workers->arrays < ARRAYS) actor->filled_a = actor->filled_b = false;
    actor->sum = 0;
}

// ---- opening ----

enum farm_status farm_bw_check_cpus(const struct farm_bw_setup *setup, const int *cpus, int count,
                                    struct farm_error *err) {
    for (int i = 0; i < count; i++)
        if (!farm_bitmap_has(&setup->machine->allowed, cpus[i]))
            return farm_fail(err, FARM_E_INVALID, "CPU %d does not exist or this process may not use it", cpus[i]);
    return FARM_OK;
}

enum farm_status farm_bw_workers_team(const struct farm_bw_setup *setup, const int *cpus, int count,
                                      struct farm_bw_team **team, struct farm_bw_conditions *conditions,
                                      struct farm_error *err) {
    enum farm_status status = farm_bw_check_cpus(setup, cpus, count, err);
    if (!status) status = farm_bw_team_open(cpus, count, team, err);
    if (status || farm_bw_team_is_pinned(*team)) return status;
    conditions->pinned = false;
    farm_bw_conditions_note(conditions, "No right to pin threads to CPUs: they run where the system puts them.");
    return FARM_OK;
}

// Of each thread's arrays.
static size_t lines_of(const struct farm_bw_workers *workers) {
    return (size_t)(workers->array_bytes / FARM_BANDWIDTH_LINE / (uint64_t)workers->threads);
}

static void set_lines(struct farm_bw_workers *workers, size_t lines) {
    for (int i = 0; i < workers->threads; i++) workers->actor[i].lines = lines;
    workers->array_bytes = (uint64_t)lines * FARM_BANDWIDTH_LINE * (uint64_t)workers->threads;
}

static size_t buffer_bytes(const struct farm_bw_workers *workers, size_t lines) {
    return (size_t)workers->arrays * (lines + STAGGER_LINES) * FARM_BANDWIDTH_LINE;
}

// The node of a thread's memory, by the kernel's number; -1: unknown.
static int node_of(const struct farm_bw_workers *workers, int cpu) {
    if (workers->node >= 0) return workers->node;
    const struct farm_cpu *entry = farm_machine_cpu(workers->setup->machine, cpu);
    return entry ? farm_machine_memory_node(workers->setup->machine, entry->node) : -1;
}

// All threads' arrays together fit, on each node too.
static enum farm_status check_room(const struct farm_bw_workers *workers, const struct farm_bw_workers_config *config,
                                   struct farm_error *err) {
    const uint64_t most = UINT64_MAX / 64;
    const uint64_t array_bytes = workers->array_bytes < most ? workers->array_bytes : most;
    const uint64_t order = config->shuffled ? array_bytes / FARM_BANDWIDTH_LINE * sizeof(uint32_t) : 0;
    const uint64_t total = (uint64_t)config->arrays * array_bytes + order;
    if (config->pages == FARM_BW_PAGES_2M || config->pages == FARM_BW_PAGES_1G) return FARM_OK; // the pool will say
    if (config->pages == FARM_BW_PAGES_AUTO && farm_limits_huge_available_bytes(workers->setup->root, -1) >= total)
        return FARM_OK;
    enum farm_status status = farm_limits_check_memory(workers->setup->root, total, -1, err);
    for (int node = 0; !status && node < FARM_NODES_MAX; node++) {
        int threads = 0;
        for (int i = 0; i < config->cpu_count; i++) threads += node_of(workers, config->cpus[i]) == node;
        if (threads)
            status = farm_limits_check_memory(workers->setup->root,
                                              total / (uint64_t)config->cpu_count * (uint64_t)threads, node, err);
    }
    return status;
}

struct opening {
    struct farm_bw_workers *workers;
    const struct farm_bw_workers_config *config;
    uint64_t until_ns; // of making pages present; 0: all of them
};

static void open_member(void *context, int member) {
    const struct opening *opening = context;
    struct farm_bw_workers *workers = opening->workers;
    struct farm_bw_actor *actor = &workers->actor[member];
    actor->status = farm_bw_buffer_open(workers->setup->root, buffer_bytes(workers, lines_of(workers)),
                                        node_of(workers, opening->config->cpus[member]), workers->pages,
                                        opening->until_ns, &actor->buffer, &actor->err);
}

// Arrays as long as the smallest buffer allows, in all threads.
static void lay_out(struct farm_bw_workers *workers) {
    size_t lines = lines_of(workers);
    for (int i = 0; i < workers->threads; i++) {
        const size_t had =
            workers->actor[i].buffer.bytes / FARM_BANDWIDTH_LINE / (size_t)workers->arrays - STAGGER_LINES;
        if (had < lines) lines = had;
    }
    for (int i = 0; i < workers->threads; i++) {
        char *start = workers->actor[i].buffer.start;
        for (int k = 0; k < workers->arrays; k++)
            workers->actor[i].array[k] =
                (double *)(void *)(start + (size_t)k * (lines + STAGGER_LINES) * FARM_BANDWIDTH_LINE);
    }
    set_lines(workers, lines);
}

// Fills the first part of the arrays, which is the coldest, and uses as much of them as the time until end_ns suffices
// for: filling the rest, and the figures.
static void fit_time(struct farm_bw_workers *workers, int figures, uint64_t end_ns) {
    static const enum farm_bandwidth_op ops[] = {FARM_BANDWIDTH_WRITE, FARM_BANDWIDTH_COPY, FARM_BANDWIDTH_TRIAD};
    const size_t lines = lines_of(workers);
    const uint64_t bytes = (uint64_t)lines * FARM_BANDWIDTH_LINE, part = bytes / TRIAL;
    const uint64_t least = bytes < THREAD_BYTES_LEAST ? bytes : THREAD_BYTES_LEAST, trial = part > least ? part : least;
    set_lines(workers, trial / FARM_BANDWIDTH_LINE);
    set_work(workers, ops[workers->arrays - 1], FARM_BANDWIDTH_TEMPORAL, FARM_BANDWIDTH_SEQUENTIAL, 0);
    const uint64_t start_ns = farm_now_ns();
    farm_bw_team_run(workers->team, fill_member, workers);
    const uint64_t now_ns = farm_now_ns();
    for (int i = 0; i < workers->threads; i++) workers->actor[i].filled_a = workers->actor[i].filled_b = false;
    const double took_s = (double)(now_ns - start_ns) * 1e-9,
                 left_s = (now_ns < end_ns ? (double)(end_ns - now_ns) * 1e-9 : 0) - figures * workers->sample_s;
    const uint64_t fit = farm_bw_bytes_in_time(bytes, trial, took_s, 1 + FIGURE_FILLS * figures, left_s);
    set_lines(workers, (fit > least ? fit : least) / FARM_BANDWIDTH_LINE);
}

// The first thread's that failed.
static enum farm_status first_failure(const struct farm_bw_workers *workers, struct farm_error *err) {
    for (int i = 0; i < workers->threads; i++) {
        const struct farm_bw_actor *actor = &workers->actor[i];
        if (!actor->status) continue;
        if (err) *err = actor->err;
        return actor->status;
    }
    return FARM_OK;
}

static void shuffle_member(void *context, int member) {
    struct farm_bw_workers *workers = context;
    struct farm_bw_actor *actor = &workers->actor[member];
    actor->order = malloc(actor->lines * sizeof *actor->order);
    if (actor->order)
        farm_bandwidth_shuffle(actor->order, actor->lines, (uint64_t)member);
    else
        actor->status = farm_fail(&actor->err, FARM_E_LIMIT, "no memory for an order of %zu lines", actor->lines);
}

static enum farm_status check_config(const struct farm_bw_setup *setup, const struct farm_bw_workers_config *config,
                                     uint64_t array_bytes, struct farm_error *err) {
    if (config->cpu_count < 1) return farm_fail(err, FARM_E_INVALID, "bandwidth: no CPU to measure on");
    const enum farm_status status = farm_bw_check_cpus(setup, config->cpus, config->cpu_count, err);
    if (status) return status;
    if (config->node >= 0) {
        const struct farm_node *node = farm_machine_node(setup->machine, config->node);
        if (!node || !node->usable || node->total_bytes == 0)
            return farm_fail(err, FARM_E_LIMIT, "NUMA node %d does not exist, has no memory, or may not be used here",
                             config->node);
    }
    if (array_bytes / FARM_BANDWIDTH_LINE < (uint64_t)config->cpu_count)
        return farm_fail(err, FARM_E_INVALID, "arrays of %llu bytes for %d threads: at least a line of %d bytes each",
                         (unsigned long long)array_bytes, config->cpu_count, FARM_BANDWIDTH_LINE);
    if (!farm_bandwidth_has(setup->variant))
        return farm_fail(err, FARM_E_UNSUPPORTED, "this CPU has no %s", farm_bandwidth_variant_name(setup->variant));
    return FARM_OK;
}

// A team with arrays; their sizes are the workers's own choice if until_ns is given.
static enum farm_status open_arrays(struct farm_bw_workers *workers, const struct farm_bw_workers_config *config,
                                    uint64_t until_ns, struct farm_bw_conditions *conditions, struct farm_error *err) {
    workers->actor = calloc((size_t)workers->threads, sizeof *workers->actor);
    if (!workers->actor) return farm_fail(err, FARM_E_LIMIT, "no memory for %d threads", workers->threads);
    enum farm_status status =
        farm_bw_workers_team(workers->setup, config->cpus, workers->threads, &workers->team, conditions, err);
    if (status) return status;
    struct opening opening = {workers, config, until_ns};
    farm_bw_team_run(workers->team, open_member, &opening);
    if ((status = first_failure(workers, err))) return status;
    for (int i = 0; i < workers->threads; i++) farm_bw_conditions_add_buffer(conditions, &workers->actor[i].buffer);
    lay_out(workers);
    return FARM_OK;
}

enum farm_status farm_bw_workers_open(const struct farm_bw_setup *setup, const struct farm_bw_workers_config *config,
                                      struct farm_bw_workers *workers, struct farm_bw_conditions *conditions,
                                      struct farm_error *err) {
    const uint64_t start_ns = farm_now_ns(), end_ns = start_ns + (uint64_t)(config->seconds * 1e9);
    const bool chosen = config->array_bytes == 0;
    const uint64_t wanted = chosen ? farm_bw_array_bytes(setup, config->cpus, config->cpu_count) : config->array_bytes;
    *workers =
        (struct farm_bw_workers){.setup = setup,
                                 .threads = config->cpu_count,
                                 .node = config->node,
                                 .pages = config->pages,
                                 .arrays = config->arrays,
                                 .array_bytes = wanted,
                                 .cache_bytes = farm_bw_cache_bytes(setup->machine, config->cpus, config->cpu_count),
                                 .variant = farm_bandwidth_resolve(setup->variant),
                                 .sample_s = setup->sample_s > 0 ? setup->sample_s : SAMPLE_S_DEFAULT};
    assert(config->arrays >= 1 && config->arrays <= ARRAYS);
    enum farm_status status = check_config(setup, config, wanted, err);
    if (status) return status;
    status = check_room(workers, config, err);
    // A node may have less room than the machine.
    while (status == FARM_E_LIMIT && chosen && lines_of(workers) > THREAD_BYTES_LEAST / FARM_BANDWIDTH_LINE) {
        workers->array_bytes /= 2;
        status = check_room(workers, config, err);
    }
    if (status) return status;
    const uint64_t populate_ns = (uint64_t)((double)(end_ns - start_ns) * POPULATE_SHARE);
    status = open_arrays(workers, config, chosen ? start_ns + populate_ns : 0, conditions, err);
    if (!status && chosen) fit_time(workers, config->figures, end_ns);
    if (!status && config->shuffled) {
        farm_bw_team_run(workers->team, shuffle_member, workers);
        status = first_failure(workers, err);
    }
    if (status) farm_bw_workers_close(workers);
    const uint64_t rounding = (uint64_t)config->cpu_count * FARM_BANDWIDTH_LINE;
    if (!status && chosen && workers->array_bytes + rounding < FARM_BW_CACHES * workers->cache_bytes)
        farm_bw_conditions_note(
            conditions, "Time or memory is short: arrays are smaller than %d x the last-level caches.", FARM_BW_CACHES);
    return status;
}

void farm_bw_workers_close(struct farm_bw_workers *workers) {
    farm_bw_team_close(workers->team);
    for (int i = 0; workers->actor && i < workers->threads; i++) {
        farm_bw_buffer_close(&workers->actor[i].buffer);
        free(workers->actor[i].order);
    }
    free(workers->actor);
    *workers = (struct farm_bw_workers){0};
}

// ---- figures ----

static void run_member(void *context, int member) {
    struct farm_bw_workers *workers = context;
    struct farm_bw_actor *actor = &workers->actor[member];
    farm_bw_team_meet(workers->team);
    actor->start_ns = farm_now_ns();
    actor->sum += farm_bandwidth_run(&actor->work, workers->variant, workers->passes_done, workers->passes);
    actor->end_ns = farm_now_ns();
}

static void verify_member(void *context, int member) {
    struct farm_bw_workers *workers = context;
    struct farm_bw_actor *actor = &workers->actor[member];
    actor->good = farm_bandwidth_verify(&actor->work, workers->passes_done, &actor->wrong_line);
    if (actor->work.op == FARM_BANDWIDTH_READ)
        actor->good &= actor->sum == farm_bandwidth_expected_sum(&actor->work, workers->passes_done);
}

// Seconds from the first thread's start to the last one's end.
static double run_all(struct farm_bw_workers *workers, uint64_t passes) {
    workers->passes = passes;
    farm_bw_team_run(workers->team, run_member, workers);
    workers->passes_done += passes;
    uint64_t start_ns = UINT64_MAX, end_ns = 0;
    for (int i = 0; i < workers->threads; i++) {
        if (workers->actor[i].start_ns < start_ns) start_ns = workers->actor[i].start_ns;
        if (workers->actor[i].end_ns > end_ns) end_ns = workers->actor[i].end_ns;
    }
    return (double)(end_ns - start_ns) * 1e-9;
}

enum farm_status farm_bw_workers_prepare(struct farm_bw_workers *workers, enum farm_bandwidth_op op,
                                         enum farm_bandwidth_stores stores, enum farm_bandwidth_pattern pattern,
                                         uint64_t stride_bytes, struct farm_error *err) {
    if (stride_bytes % FARM_BANDWIDTH_LINE)
        return farm_fail(err, FARM_E_INVALID, "a stride of %llu bytes: a multiple of %d",
                         (unsigned long long)stride_bytes, FARM_BANDWIDTH_LINE);
    assert(farm_bandwidth_arrays(op) <= workers->arrays);
    set_work(workers, op, stores, pattern, stride_bytes);
    for (int i = 0; i < workers->threads; i++) {
        enum farm_status status = farm_bandwidth_check(&workers->actor[i].work, workers->variant, err);
        if (status) return status;
    }
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
    for (int i = 0; i < workers->threads; i++)
        bytes += (double)workers->actor[i].work.lines * farm_bandwidth_program_bytes(workers->actor[i].work.op);
    return bytes * (double)workers->passes / took_s;
}

enum farm_status farm_bw_workers_verify(struct farm_bw_workers *workers, struct farm_error *err) {
    farm_bw_team_run(workers->team, verify_member, workers);
    for (int i = 0; i < workers->threads; i++)
        if (!workers->actor[i].good)
            return farm_fail(
                err, FARM_E_IO,
                "%s in %s kernels: wrong data after %llu passes in line %zu of thread %d: memory or CPU of "
                "this machine is broken, or the kernel is",
                farm_bandwidth_op_name(workers->actor[i].work.op), farm_bandwidth_variant_name(workers->variant),
                (unsigned long long)workers->passes_done, workers->actor[i].wrong_line, i);
    return FARM_OK;
}

enum farm_status farm_bw_workers_figure(struct farm_bw_workers *workers, struct farm_bw_clock *clock,
                                        enum farm_bandwidth_op op, enum farm_bandwidth_stores stores,
                                        enum farm_bandwidth_pattern pattern, uint64_t stride_bytes,
                                        struct farm_bw_figure *figure, struct farm_error *err) {
    double samples[FARM_BW_SAMPLES_MAX];
    int count = 0;
    enum farm_status status = farm_bw_workers_prepare(workers, op, stores, pattern, stride_bytes, err);
    if (status) return status;
    while (farm_bw_clock_more(clock, count)) samples[count++] = farm_bw_workers_sample(workers);
    status = farm_bw_workers_verify(workers, err);
    if (status) return status;
    *figure = farm_bw_figure_of(samples, count);
    farm_bw_mark_in_cache(figure, (uint64_t)farm_bandwidth_arrays(op) * workers->array_bytes, workers->cache_bytes,
                          clock->conditions);
    farm_bw_clock_took(clock);
    return FARM_OK;
}
