// The kernels of `farm bw` (kernels/bandwidth.h), on one core and on all, and its chase of pointers against plain
// loops, on arrays beyond the caches. Samples of ours and of the reference alternate on the same memory from the same
// pinned thread; data are verified. bench/peers/memory.py runs this in turns with other projects' programs.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "bw/latency.h"
#include "bw/workers.h"
#include "common.h"

enum { SAMPLES = 15, SAMPLES_LEAST = 3, CHASES = 5, LINKS = 1 << 16 };
static const double SAMPLE_S = 0.04, LEAST = 0.97; // LEAST: of the reference's rate

// ---- references: plain loops, each one pass over the arrays of the first worker ----

struct plain {
    struct farm_bw_workers *workers;
    uint64_t passes, took_ns;
    volatile uint64_t sink;
};

static uint64_t plain_read(const double *a, size_t count) {
    const uint64_t *words = (const uint64_t *)(const void *)a;
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) sum += words[i];
    return sum;
}
static void plain_triad(double *d, const double *a, const double *b, double s, size_t count) {
    for (size_t i = 0; i < count; i++) d[i] = a[i] + s * b[i];
}

static void plain_member(void *context, int member) {
    struct plain *plain = context;
    const struct farm_bandwidth_work *work = &plain->workers->worker[member].work;
    const size_t count = work->lines * FARM_BANDWIDTH_LINE / sizeof(double);
    const uint64_t start = farm_now_ns();
    for (uint64_t pass = 0; pass < plain->passes; pass++) {
        if (work->op == FARM_BANDWIDTH_READ)
            plain->sink = plain_read(work->a, count);
        else if (work->op == FARM_BANDWIDTH_COPY)
            memcpy(work->d, work->a, count * sizeof(double));
        else // our next sample overwrites its results
            plain_triad(work->d, work->a, work->b, farm_bandwidth_scalar(plain->workers->passes_done), count);
        __asm__ volatile("" ::: "memory");
    }
    plain->took_ns = farm_now_ns() - start;
}

static double plain_sample(struct farm_bw_workers *workers) {
    struct plain plain = {.workers = workers, .passes = workers->passes};
    farm_bw_team_run(workers->team, plain_member, &plain);
    const struct farm_bandwidth_work *work = &workers->worker[0].work;
    return (double)work->lines * farm_bandwidth_program_bytes(work->op) * (double)plain.passes /
           ((double)plain.took_ns * 1e-9);
}

// ---- bandwidth ----

struct row {
    const char *name;
    enum farm_bandwidth_op op;
    enum farm_bandwidth_stores stores;
    const char *reference; // on one core; NULL: another row has it
};

static const struct row rows[] = {
    {"read", FARM_BANDWIDTH_READ, FARM_BANDWIDTH_TEMPORAL, "a plain sum"},
    {"copy", FARM_BANDWIDTH_COPY, FARM_BANDWIDTH_TEMPORAL, "memcpy"},
    {"copy_nontemporal", FARM_BANDWIDTH_COPY, FARM_BANDWIDTH_NONTEMPORAL, "memcpy"},
    {"triad", FARM_BANDWIDTH_TRIAD, FARM_BANDWIDTH_TEMPORAL, "a plain loop"},
    {"triad_nontemporal", FARM_BANDWIDTH_TRIAD, FARM_BANDWIDTH_NONTEMPORAL, "a plain loop"},
};
enum { ROWS = sizeof rows / sizeof *rows };
static char names[2 * ROWS][32];

// The command line.
struct request {
    const char *only; // one result by its name; NULL: all
    int samples;
    double row_s; // a result's share of the time
};

// Whether to take another sample of a result that started at `start_ns`.
static bool is_another(const struct request *request, uint64_t start_ns, int taken, int most) {
    if (taken < SAMPLES_LEAST) return true;
    return taken < most && (double)(farm_now_ns() - start_ns) * 1e-9 < request->row_s;
}

static bool is_requested(const struct request *request, const char *name) {
    return !request->only || strcmp(request->only, name) == 0;
}

// The best sample and the variation, if only one result is requested.
static void add_single(struct farm_bench *bench, const struct farm_bw_figure *figure) {
    double best = figure->most, cv = figure->cv;
    farm_bench_add(bench, "best", "GB/s", "higher", &best, 1, NULL, NULL, 0, NAN);
    farm_bench_add(bench, "cv", "1", "lower", &cv, 1, NULL, NULL, 0, NAN);
}

static void measure_row(struct farm_bench *bench, struct farm_bw_workers *workers, const struct row *row,
                        const char *name, bool plain, const struct request *request) {
    struct farm_error err;
    double ours[FARM_BW_SAMPLES_MAX], theirs[FARM_BW_SAMPLES_MAX];
    must(farm_bw_workers_prepare(workers, &(struct farm_bw_kernel){.op = row->op, .stores = row->stores}, &err), &err);
    const uint64_t start_ns = farm_now_ns();
    int taken = 0;
    for (; is_another(request, start_ns, taken, request->samples); taken++) {
        theirs[taken] = plain ? plain_sample(workers) * 1e-9 : NAN;
        ours[taken] = farm_bw_workers_sample(workers) * 1e-9;
    }
    must(farm_bw_workers_verify(workers, &err), &err);
    const struct farm_bw_figure figure = farm_bw_figure_of(ours, taken), reference = farm_bw_figure_of(theirs, taken);
    double cv = figure.cv, reference_cv = reference.cv;
    farm_bench_add(bench, name, "GB/s", "higher", ours, (size_t)taken, plain ? row->reference : NULL,
                   plain ? theirs : NULL, (size_t)taken, plain ? LEAST : NAN);
    if (request->only)
        add_single(bench, &figure);
    else if (plain && row->op == FARM_BANDWIDTH_READ)
        farm_bench_add(bench, "read_cv", "1", "lower", &cv, 1, "a plain sum", &reference_cv, 1, NAN);
}

// The requested rows on these CPUs; `one`: of a single core, against the references, which are loops of one thread.
static void measure_rows(struct farm_bench *bench, const struct farm_bw_setup *setup, const int *cpus, int count,
                         uint64_t array_bytes, bool one, const struct request *request) {
    struct farm_error err;
    struct farm_bw_conditions conditions = farm_bw_conditions_start();
    const struct farm_bw_workers_config config = {
        .cpus = cpus, .cpu_count = count, .node = -1, .arrays = 3, .array_bytes = array_bytes};
    struct farm_bw_workers workers = {0};
    for (int i = 0; i < ROWS; i++) {
        char *name = names[i + (one ? 0 : ROWS)];
        snprintf(name, sizeof *names, "%s%s", rows[i].name, one ? "" : "_all");
        if (!is_requested(request, name)) continue;
        if (!workers.team) must(farm_bw_workers_open(setup, &config, &workers, &conditions, &err), &err);
        measure_row(bench, &workers, &rows[i], name, one && !request->only, request);
    }
    farm_bw_workers_close(&workers);
}

// ---- latency ----

// The reference: the same lines in the C library's random order, one load after the other, on memory without any
// advice.
static void **plain_cycle(size_t count) {
    char *memory = aligned_alloc(4096, (count * FARM_BANDWIDTH_LINE + 4095) / 4096 * 4096);
    size_t *order = malloc(count * sizeof *order);
    must_hold(memory && order, "no memory");
    memset(memory, 1, count * FARM_BANDWIDTH_LINE); // first touched in order, as ours: neighbours stay neighbours
    srandom(1);
    for (size_t i = 0; i < count; i++) order[i] = i;
    for (size_t i = count - 1; i > 0; i--) {
        const size_t j = (size_t)random() % i, held = order[i];
        order[i] = order[j], order[j] = held;
    }
    for (size_t i = 0; i < count; i++)
        *(void **)(void *)(memory + order[i] * FARM_BANDWIDTH_LINE) =
            memory + order[(i + 1) % count] * FARM_BANDWIDTH_LINE;
    free(order);
    return (void **)(void *)memory;
}

struct plain_chase {
    void **at;
    double ns;
};

// In a team's thread, which is pinned.
static void plain_chase(void *context, int member) {
    struct plain_chase *chase = context;
    const uint64_t start = farm_now_ns();
    for (int i = 0; i < LINKS; i++) chase->at = *chase->at;
    chase->ns = (double)(farm_now_ns() - start) / LINKS;
}

static void measure_latency(struct farm_bench *bench, const struct farm_bw_setup *setup, uint64_t bytes,
                            const struct request *request) {
    static const struct {
        const char *name;
        enum farm_bw_pages pages;
    } kinds[] = {{"latency", FARM_BW_PAGES_AUTO}, {"latency_small_pages", FARM_BW_PAGES_SMALL}};
    struct farm_error err;
    void **first = plain_cycle(bytes / FARM_BANDWIDTH_LINE);
    struct plain_chase plain = {.at = first};
    struct farm_bw_conditions conditions = farm_bw_conditions_start();
    struct farm_bw_team *team;
    const int cpu = farm_bitmap_next(&setup->machine->allowed, 0);
    must(farm_bw_team_open(&cpu, 1, &team, &conditions, &err), &err);
    struct farm_bw_setup one = *setup;
    one.samples = 3; // the references are taken between ours
    for (int k = 0; k < 2; k++) {
        double ours[CHASES], theirs[CHASES];
        if (!is_requested(request, kinds[k].name)) continue;
        const uint64_t start_ns = farm_now_ns();
        size_t taken = 0;
        for (; is_another(request, start_ns, (int)taken, CHASES); taken++) {
            struct farm_bw_idle idle;
            farm_bw_team_run(team, plain_chase, &plain);
            theirs[taken] = plain.ns;
            must(farm_bw_idle_latency(&one, bytes, kinds[k].pages, &idle, &conditions, &err), &err);
            ours[taken] = idle.ns.median;
        }
        const bool alike = kinds[k].pages == FARM_BW_PAGES_SMALL;
        farm_bench_add(bench, kinds[k].name, "ns", "lower", ours, taken,
                       alike ? "a plain chase on malloc's memory" : NULL, alike ? theirs : NULL, taken, NAN);
    }
    farm_bw_team_close(team);
    free(first);
}

// For comparisons with other programs; not in the table.
static void add_sizes(struct farm_bench *bench, uint64_t array_bytes, uint64_t chase_bytes, int count) {
    double array = (double)array_bytes, chase = (double)chase_bytes, threads = count;
    farm_bench_add(bench, "array_bytes", "B", "higher", &array, 1, NULL, NULL, 0, NAN);
    farm_bench_add(bench, "chase_bytes", "B", "higher", &chase, 1, NULL, NULL, 0, NAN);
    farm_bench_add(bench, "all_threads", "1", "higher", &threads, 1, NULL, NULL, 0, NAN);
}

int main(int argc, char **argv) {
    static struct farm_machine machine;
    static int cpus[FARM_CPUS_MAX];
    struct request request = {0};
    int64_t samples = SAMPLES;
    double sample_s = SAMPLE_S;
    const struct farm_cli_flag flags[] = {
        {"only", FARM_CLI_STRING, &request.only, "NAME", "one result: read, copy_nontemporal_all, latency, ..."},
        {"samples", FARM_CLI_INT, &samples, "N", "of each rate, 3 to 32"},
        {"sample-seconds", FARM_CLI_DOUBLE, &sample_s, "S", "how long one takes at least (default 0.04)"},
    };
    struct farm_bench bench = {.name = "bandwidth",
                               .about = "Memory kernels and the pointer chase of farm bw against plain loops.",
                               .flags = flags,
                               .flag_count = sizeof flags / sizeof *flags};
    struct farm_error err;
    farm_bench_start(&bench, argc, argv, 30);
    must_hold(sample_s > 0 && sample_s <= 10, "--sample-seconds: above 0, at most 10");
    request.row_s = bench.seconds / (2 * ROWS + 2);
    request.samples = samples < SAMPLES_LEAST         ? SAMPLES_LEAST
                      : samples > FARM_BW_SAMPLES_MAX ? FARM_BW_SAMPLES_MAX
                                                      : (int)samples;
    const struct farm_machine_source source = {0};
    must(farm_machine_read(&machine, &source, &err), &err);
    const struct farm_bw_setup setup = {.machine = &machine, .seconds = bench.seconds, .sample_s = sample_s};
    const int count = farm_bw_cpus(&machine, -1, cpus, FARM_CPUS_MAX);
    const uint64_t array_bytes = farm_bw_array_bytes(&setup, cpus, count);
    const uint64_t chase_bytes = farm_bw_array_bytes(&setup, cpus, 1);
    measure_rows(&bench, &setup, cpus, 1, array_bytes, true, &request);
    measure_rows(&bench, &setup, cpus, count, array_bytes, false, &request);
    if (!request.only || strncmp(request.only, "latency", 7) == 0)
        measure_latency(&bench, &setup, chase_bytes, &request);
    must_hold(bench.count > 0, "--only: no result of that name");
    if (bench.json) add_sizes(&bench, array_bytes, chase_bytes, count);
    return farm_bench_finish(&bench);
}
