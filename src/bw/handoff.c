// The hand-off of a cache line in `farm bw`: half a round trip between two pinned threads, each with a word in a
// separate pair of lines (prefetchers fetch lines in pairs). Ping and pong are numbers that only grow; each side spins
// on a load (acquire) until it sees the other's latest, and answers with a store (release). See job.h.
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/atomics.h"
#include "base/json.h"
#include "base/time.h"
#include "bw/buffer.h"
#include "bw/clock.h"
#include "bw/heatmap.h"
#include "bw/job.h"
#include "bw/nearness.h"
#include "bw/team.h"

enum { TRIPS_LEAST = 200, SPINS_BEFORE_YIELD = 1 << 14, LINE_PAIR = 128 };
static const double SAMPLE_S = 2e-4;
static const int CPUS_MOST[FARM_BW_DEPTHS] = {8, 32, 128};

// ---- a pair ----

struct pair {
    _Alignas(LINE_PAIR) _Atomic uint64_t ping;
    _Alignas(LINE_PAIR) _Atomic uint64_t pong;
    _Alignas(LINE_PAIR) struct farm_bw_team *team;
    uint64_t first, trips; // in the round
    uint64_t took_ns;
};

static void wait_for(const _Atomic uint64_t *word, uint64_t number) {
    for (int spins = 0; atomic_load_explicit(word, memory_order_acquire) != number; spins++) {
        if (spins < SPINS_BEFORE_YIELD)
            farm_cpu_relax();
        else
            sched_yield(); // both threads on one CPU
    }
}

static void exchange_member(void *context, int member) {
    struct pair *pair = context;
    farm_bw_team_meet(pair->team);
    const uint64_t start = farm_now_ns(), end = pair->first + pair->trips;
    for (uint64_t n = pair->first; n < end; n++) {
        if (member == 0) {
            atomic_store_explicit(&pair->ping, n, memory_order_release);
            wait_for(&pair->pong, n);
        } else {
            wait_for(&pair->ping, n);
            atomic_store_explicit(&pair->pong, n, memory_order_release);
        }
    }
    if (member == 0) pair->took_ns = farm_now_ns() - start;
}

// Nanoseconds of half a round trip.
static double time_trips(struct pair *pair, uint64_t count) {
    pair->trips = count;
    farm_bw_team_run(pair->team, exchange_member, pair);
    pair->first += count;
    return (double)pair->took_ns / (double)count / 2;
}

static enum farm_status measure_pair(const int cpus[2], struct farm_bw_clock *clock, double *ns,
                                     struct farm_error *err) {
    struct pair pair = {.first = 1};
    enum farm_status status = farm_bw_team_open(cpus, 2, &pair.team, clock->conditions, err);
    if (status) return status;
    double samples[FARM_BW_SAMPLES_MAX];
    int taken = 0;
    const double sample_s = clock->setup->sample_s > 0 ? clock->setup->sample_s : SAMPLE_S;
    const uint64_t wanted = (uint64_t)(sample_s * 1e9 / (2 * time_trips(&pair, TRIPS_LEAST)));
    while (farm_bw_clock_more(clock, taken))
        samples[taken++] = time_trips(&pair, wanted > TRIPS_LEAST ? wanted : TRIPS_LEAST);
    *ns = farm_bw_figure_of(samples, taken).median;
    farm_bw_clock_took(clock);
    farm_bw_team_close(pair.team);
    return FARM_OK;
}

// ---- all pairs ----

struct table {
    int cpus;
    int *cpu;   // [cpus] one a core, evenly spread over the machine
    double *ns; // [cpus][cpus] symmetric; NAN on the diagonal and where not measured
    struct farm_bw_conditions conditions;
};

static enum farm_status open_table(const struct farm_bw_job *job, struct table *table, struct farm_error *err) {
    int all[FARM_CPUS_MAX];
    const int cores = farm_bw_cpus(job->setup.machine, -1, all, FARM_CPUS_MAX), most = CPUS_MOST[job->depth];
    *table = (struct table){.cpus = cores < most ? cores : most, .conditions = farm_bw_conditions_start()};
    const size_t cpus = (size_t)table->cpus;
    table->cpu = malloc((cpus + 1) * sizeof *table->cpu);
    table->ns = malloc((cpus * cpus + 1) * sizeof *table->ns);
    if (!table->cpu || !table->ns) return farm_fail(err, FARM_E_LIMIT, "no memory for %zu x %zu figures", cpus, cpus);
    for (int i = 0; i < table->cpus; i++) table->cpu[i] = all[(int64_t)i * cores / table->cpus];
    for (size_t i = 0; i < cpus * cpus; i++) table->ns[i] = NAN;
    return FARM_OK;
}

static enum farm_status measure_pairs(const struct farm_bw_setup *setup, struct table *table, struct farm_error *err) {
    const int n = table->cpus, pairs = n * (n - 1) / 2;
    struct farm_bw_clock clock = farm_bw_clock_start(setup, 0.2 + 0.005 * pairs, pairs, &table->conditions);
    for (int a = 0; a < n; a++)
        for (int b = a + 1; b < n; b++) {
            const int cpus[2] = {table->cpu[a], table->cpu[b]};
            if (!farm_bw_clock_next(&clock, "cache line, CPU %d to %d", cpus[0], cpus[1])) return FARM_OK;
            enum farm_status status = measure_pair(cpus, &clock, &table->ns[a * n + b], err);
            if (status) return status;
            table->ns[b * n + a] = table->ns[a * n + b];
        }
    return FARM_OK;
}

// A figure of the pairs of one nearness; an even choice if they are many.
static struct farm_bw_figure figure_of_nearness(const struct farm_machine *machine, const struct table *table,
                                                enum farm_bw_nearness nearness) {
    double chosen[FARM_BW_SAMPLES_MAX];
    int pairs = 0, taken = 0;
    for (int choosing = 0; choosing < 2; choosing++) {
        const int wanted = pairs < FARM_BW_SAMPLES_MAX ? pairs : FARM_BW_SAMPLES_MAX;
        int seen = 0;
        for (int a = 0; a < table->cpus; a++)
            for (int b = a + 1; b < table->cpus; b++) {
                const double ns = table->ns[a * table->cpus + b];
                if (isnan(ns) || farm_bw_nearness_of(machine, table->cpu[a], table->cpu[b]) != nearness) continue;
                if (choosing && taken < wanted && seen >= (int64_t)taken * pairs / wanted) chosen[taken++] = ns;
                seen++;
            }
        pairs = seen;
    }
    return farm_bw_figure_of(chosen, taken);
}

// ---- the report ----

static json_t *matrix_json(const struct table *table) {
    json_t *rows = json_array();
    for (int a = 0; a < table->cpus; a++) {
        json_t *row = json_array();
        for (int b = 0; b < table->cpus; b++) {
            const double ns = table->ns[a * table->cpus + b];
            farm_json_append(row, isfinite(ns) ? json_real(ns) : json_null());
        }
        farm_json_append(rows, row);
    }
    return rows;
}

static json_t *report_nearnesses(struct farm_bw_job *job, const struct table *table) {
    json_t *object = farm_json_object(false);
    for (int i = 0; i < FARM_BW_NEARNESSES; i++) {
        const char *name = farm_bw_nearness_name((enum farm_bw_nearness)i);
        const struct farm_bw_figure figure = figure_of_nearness(job->setup.machine, table, (enum farm_bw_nearness)i);
        char key[48];
        if (!farm_bw_figure_is(&figure)) continue;
        farm_bw_key(name, key, sizeof key);
        fprintf(job->out, "  %-24s", name);
        farm_bw_report(job, 0, object, key, &figure, &farm_bw_ns, "handoff.%s", key);
        fprintf(job->out, " ns\n");
    }
    return object;
}

static void report_table(struct farm_bw_job *job, json_t *section, const struct table *table) {
    json_t *cpus = json_array();
    const struct farm_heatmap map = {.title = "Hand-off of a cache line",
                                     .unit = "ns",
                                     .row_axis = "CPU",
                                     .column_axis = "CPU",
                                     .rows = table->cpus,
                                     .columns = table->cpus,
                                     .row_numbers = table->cpu,
                                     .column_numbers = table->cpu,
                                     .values = table->ns};
    if (table->cpus > 1)
        farm_heatmap_draw(job->out, &map, job->colour, job->columns);
    else
        fprintf(job->out, "Hand-off of a cache line: not measured\n");
    for (int i = 0; i < table->cpus; i++) farm_json_append(cpus, json_integer(table->cpu[i]));
    farm_json_set(section, "cpus", cpus);
    farm_json_set(section, "ns", matrix_json(table));
    farm_json_set(section, "by_nearness_ns", report_nearnesses(job, table));
    farm_bw_report_conditions(job, section, &table->conditions);
}

enum farm_status farm_bw_part_handoff(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    struct table table;
    enum farm_status status = open_table(job, &table, err);
    if (!status && table.cpus < 2)
        farm_bw_conditions_note(&table.conditions, "A line is handed over between two CPUs: there is one.");
    if (!status) status = measure_pairs(&job->setup, &table, err);
    if (!status) report_table(job, section, &table);
    free(table.cpu);
    free(table.ns);
    return status;
}
