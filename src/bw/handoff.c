// See handoff.h. Ping and pong are numbers that only grow; each side spins on a load (acquire) until it sees the
// other's latest, and answers with a store (release).
#include "bw/handoff.h"

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/atomics.h"
#include "base/time.h"
#include "bw/memory.h"
#include "bw/team.h"
#include "bw/workers.h"

enum { CPUS_MOST = 64, TRIPS_LEAST = 200, SPINS_BEFORE_YIELD = 1 << 14, LINE_PAIR = 128, CHOSEN = FARM_BW_SAMPLES_MAX };
static const double SAMPLE_S = 2e-4;

const char *farm_bw_nearness_name(enum farm_bw_nearness nearness) {
    static const char *const names[FARM_BW_NEARNESSES] = {"same core", "same last-level cache", "same node",
                                                          "same socket", "other socket"};
    return names[nearness];
}

enum farm_bw_nearness farm_bw_nearness_of(const struct farm_machine *machine, int cpu_a, int cpu_b) {
    const struct farm_cpu *a = farm_machine_cpu(machine, cpu_a), *b = farm_machine_cpu(machine, cpu_b);
    if (!a || !b || a->socket != b->socket) return FARM_BW_OTHER_SOCKET;
    if (a->core == b->core) return FARM_BW_SAME_CORE;
    if (a->l3 >= 0 && a->l3 == b->l3) return FARM_BW_SAME_CACHE;
    return a->node == b->node ? FARM_BW_SAME_NODE : FARM_BW_SAME_SOCKET;
}

// ---- a pair ----

struct pair {
    _Alignas(LINE_PAIR) _Atomic uint64_t ping;
    _Alignas(LINE_PAIR) _Atomic uint64_t pong;
    _Alignas(LINE_PAIR) struct farm_bw_team *team;
    uint64_t first, trips; // of the round
    uint64_t took_ns;
};

static void await(const _Atomic uint64_t *word, uint64_t number) {
    for (int spins = 0; atomic_load_explicit(word, memory_order_acquire) != number; spins++) {
        if (spins < SPINS_BEFORE_YIELD)
            farm_cpu_relax();
        else
            sched_yield(); // both on one CPU
    }
}

static void trips_member(void *context, int member) {
    struct pair *pair = context;
    farm_bw_team_meet(pair->team);
    const uint64_t start = farm_now_ns(), end = pair->first + pair->trips;
    for (uint64_t n = pair->first; n < end; n++) {
        if (member == 0) {
            atomic_store_explicit(&pair->ping, n, memory_order_release);
            await(&pair->pong, n);
        } else {
            await(&pair->ping, n);
            atomic_store_explicit(&pair->pong, n, memory_order_release);
        }
    }
    if (member == 0) pair->took_ns = farm_now_ns() - start;
}

// Nanoseconds of half a round trip.
static double trips(struct pair *pair, uint64_t count) {
    pair->trips = count;
    farm_bw_team_run(pair->team, trips_member, pair);
    pair->first += count;
    return (double)pair->took_ns / (double)count / 2;
}

static enum farm_status measure_pair(const int *cpus, struct farm_bw_clock *clock, struct farm_bw_figure *figure,
                                     struct farm_error *err) {
    struct pair pair = {.first = 1};
    enum farm_status status = farm_bw_workers_team(clock->setup, cpus, 2, &pair.team, clock->conditions, err);
    if (status) return status;
    double samples[FARM_BW_SAMPLES_MAX];
    int taken = 0;
    const double sample_s = clock->setup->sample_s > 0 ? clock->setup->sample_s : SAMPLE_S;
    const double warm_ns = trips(&pair, TRIPS_LEAST);
    const uint64_t wanted = (uint64_t)(sample_s * 1e9 / (2 * warm_ns)),
                   count = wanted > TRIPS_LEAST ? wanted : TRIPS_LEAST;
    while (farm_bw_clock_more(clock, taken)) samples[taken++] = trips(&pair, count);
    *figure = farm_bw_figure_of(samples, taken);
    farm_bw_clock_took(clock);
    farm_bw_team_close(pair.team);
    return FARM_OK;
}

// ---- the matrix ----

// At most `most` of the cores, evenly spread; returns their number.
static int choose_cpus(const struct farm_machine *machine, int most, int *cpus) {
    int all[FARM_CPUS_MAX];
    const int cores = farm_bw_cpus(machine, -1, false, all, FARM_CPUS_MAX), count = cores < most ? cores : most;
    for (int i = 0; i < count; i++) cpus[i] = all[(int64_t)i * cores / count];
    return count;
}

static enum farm_status make_room(const struct farm_bw_setup *setup, const struct farm_bw_handoff_config *config,
                                  struct farm_bw_handoff_result *result, struct farm_error *err) {
    *result = (struct farm_bw_handoff_result){.conditions = farm_bw_conditions_start()};
    for (int i = 0; i < FARM_BW_NEARNESSES; i++) result->by_nearness[i] = farm_bw_figure_of(NULL, 0);
    const int most = config->cpus_most > 0 ? config->cpus_most : CPUS_MOST;
    const size_t cells = (size_t)most * (size_t)most;
    result->cpu = calloc((size_t)most, sizeof *result->cpu);
    result->ns = malloc(cells * sizeof *result->ns);
    result->spread = malloc(cells * sizeof *result->spread);
    if (!result->cpu || !result->ns || !result->spread) {
        farm_bw_handoff_free(result);
        return farm_fail(err, FARM_E_LIMIT, "no memory for %d x %d figures", most, most);
    }
    for (size_t i = 0; i < cells; i++) result->ns[i] = result->spread[i] = NAN;
    result->cpus = choose_cpus(setup->machine, most, result->cpu);
    return FARM_OK;
}

// The pairs of one nearness, of many an even choice.
static struct farm_bw_figure of_nearness(const struct farm_machine *machine,
                                         const struct farm_bw_handoff_result *result, enum farm_bw_nearness nearness) {
    double chosen[CHOSEN];
    int pairs = 0, taken = 0;
    for (int round = 0; round < 2; round++) { // count, then choose
        int seen = 0;
        for (int a = 0; a < result->cpus; a++)
            for (int b = a + 1; b < result->cpus; b++) {
                const float ns = result->ns[a * result->cpus + b];
                if (isnan(ns) || farm_bw_nearness_of(machine, result->cpu[a], result->cpu[b]) != nearness) continue;
                const int wanted = pairs < CHOSEN ? pairs : CHOSEN;
                if (round == 1 && taken < wanted && seen >= (int64_t)taken * pairs / wanted) chosen[taken++] = ns;
                seen++;
            }
        pairs = seen;
    }
    return farm_bw_figure_of(chosen, taken);
}

enum farm_status farm_bw_handoff(const struct farm_bw_setup *setup, const struct farm_bw_handoff_config *config,
                                 struct farm_bw_handoff_result *result, struct farm_error *err) {
    enum farm_status status = make_room(setup, config, result, err);
    if (status) return status;
    const int n = result->cpus, pairs = n * (n - 1) / 2;
    if (pairs == 0)
        farm_bw_conditions_note(&result->conditions, "A line is handed over between two CPUs: there is one.");
    struct farm_bw_clock clock = farm_bw_clock_start(setup, 0.2 + 0.005 * pairs, pairs, &result->conditions);
    bool on = true;
    for (int a = 0; on && !status && a < n; a++)
        for (int b = a + 1; on && !status && b < n; b++) {
            char what[64];
            struct farm_bw_figure figure;
            snprintf(what, sizeof what, "cache line, CPU %d to %d", result->cpu[a], result->cpu[b]);
            on = farm_bw_clock_next(&clock, what);
            if (!on) break;
            status = measure_pair((const int[]){result->cpu[a], result->cpu[b]}, &clock, &figure, err);
            if (status) break;
            result->ns[a * n + b] = result->ns[b * n + a] = (float)figure.median;
            result->spread[a * n + b] = result->spread[b * n + a] = (float)figure.spread;
        }
    for (int i = 0; !status && i < FARM_BW_NEARNESSES; i++)
        result->by_nearness[i] = of_nearness(setup->machine, result, (enum farm_bw_nearness)i);
    if (status) farm_bw_handoff_free(result);
    return status;
}

void farm_bw_handoff_free(struct farm_bw_handoff_result *result) {
    free(result->cpu), free(result->ns), free(result->spread);
    result->cpu = NULL, result->ns = result->spread = NULL;
    result->cpus = 0;
}
