// Latency in `farm bw`: by working set (the cache ladder), and the TLB's reach (one line a page). See latency.h, job.h.
#include "bw/latency.h"

#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "bw/chase.h"
#include "bw/job.h"

enum { LINE = FARM_BANDWIDTH_LINE, RUNGS_MAX = 96, RUNG_BYTES_LEAST = 4096, TLB_PAGES_LEAST = 16 };
// The share of a ladder's time for making its memory present and its longest cycle. A single figure, which takes little
// time besides, has three times as much for it.
static const double OPENING = 0.25;

static int first_cpu(const struct farm_bw_setup *setup) {
    return farm_bitmap_next(&setup->machine->allowed, 0);
}

// ---- idle latency ----

enum farm_status farm_bw_idle_latency(const struct farm_bw_setup *setup, uint64_t bytes, enum farm_bw_pages pages,
                                      struct farm_bw_idle *result, struct farm_bw_conditions *conditions,
                                      struct farm_error *err) {
    const int cpu = first_cpu(setup);
    struct farm_bw_team *team;
    struct farm_bw_chase chase;
    *result = (struct farm_bw_idle){.ns = farm_bw_figure_of(NULL, 0), .bytes = bytes};
    struct farm_bw_clock clock = farm_bw_clock_start(setup, 2, 1, conditions);
    enum farm_status status = farm_bw_team_open(&cpu, 1, &team, conditions, err);
    if (status) return status;
    const struct farm_bw_chase_config config = {bytes, 3 * OPENING * farm_bw_clock_share(&clock, 1), LINE,
                                                farm_bw_node_of(setup->machine, cpu), pages};
    status = farm_bw_chase_open(setup, &config, &chase, conditions, err);
    if (!status) {
        result->bytes = chase.bytes;
        farm_bw_chase_make(&chase, (size_t)chase.bytes / LINE, LINE, false);
        if (farm_bw_clock_next(&clock, "idle latency")) {
            farm_bw_chase_figure(&chase, team, &clock, &result->ns);
            farm_bw_mark_in_cache(&result->ns, chase.bytes, setup->machine->l3_bytes, conditions);
            status = farm_bw_chase_check(&chase, err);
        }
        farm_bw_chase_close(&chase);
    }
    farm_bw_team_close(team);
    return status;
}

static enum farm_status report_idle(struct farm_bw_job *job, json_t *section, double share, struct farm_error *err) {
    const struct farm_bw_setup setup = farm_bw_setup_for(job, share);
    struct farm_bw_conditions conditions = farm_bw_conditions_start();
    struct farm_bw_idle idle;
    enum farm_status status =
        farm_bw_idle_latency(&setup, job->size_bytes, FARM_BW_PAGES_AUTO, &idle, &conditions, err);
    if (status) return status;
    json_t *object = farm_json_object(false);
    fprintf(job->out, "Idle latency of memory:");
    farm_bw_report(job, 0, object, "ns", &idle.ns, &farm_bw_ns, "latency.idle");
    fprintf(job->out, " ns (working set %s)\n", farm_format_bytes((double)idle.bytes).text);
    farm_json_set_int(object, "bytes", idle.bytes);
    farm_bw_report_conditions(job, object, &conditions);
    farm_json_set(section, "idle", object);
    return FARM_OK;
}

// ---- ladder and TLB ----

// A working set: in lines side by side; in the TLB's ladder also in one line of each of ever more pages.
struct rung {
    uint64_t bytes;
    struct farm_bw_figure sparse, dense;
};

struct ladder {
    struct farm_bw_job *job;
    struct farm_bw_setup setup;
    struct farm_bw_conditions conditions;
    struct farm_bw_team *team;
    int cpu, rungs;
    struct rung rung[RUNGS_MAX];
};

// Working sets from `least` to `most` bytes, multiples of `spacing`, per_doubling to a doubling.
static void plan_rungs(struct ladder *ladder, uint64_t least, uint64_t most, uint64_t spacing, int per_doubling) {
    uint64_t last = 0;
    for (uint64_t base = least; base <= most && base; base *= 2)
        for (int step = 0; step < per_doubling && ladder->rungs < RUNGS_MAX; step++) {
            const double bytes = (double)base * __builtin_exp2((double)step / per_doubling);
            const uint64_t whole = (uint64_t)(bytes / (double)spacing + 0.5) * spacing;
            if (whole <= last || whole > most) continue;
            const struct farm_bw_figure none = farm_bw_figure_of(NULL, 0);
            ladder->rung[ladder->rungs++] = (struct rung){.bytes = last = whole, .sparse = none, .dense = none};
        }
}

static enum farm_status open_ladder(struct ladder *ladder, const struct farm_bw_clock *clock, size_t spacing,
                                    enum farm_bw_pages pages, struct farm_bw_chase *chase, struct farm_error *err) {
    const int node = farm_bw_node_of(ladder->setup.machine, ladder->cpu);
    const struct farm_bw_chase_config config = {ladder->job->size_bytes, OPENING * farm_bw_clock_share(clock, 1),
                                                spacing, node, pages};
    return farm_bw_chase_open(&ladder->setup, &config, chase, &ladder->conditions, err);
}

static enum farm_status chase_once(struct farm_bw_chase *chase, size_t places, size_t spacing, bool jitter,
                                   struct ladder *ladder, struct farm_bw_clock *clock, struct farm_bw_figure *figure,
                                   struct farm_error *err) {
    farm_bw_chase_make(chase, places, spacing, jitter);
    farm_bw_chase_figure(chase, ladder->team, clock, figure);
    return farm_bw_chase_check(chase, err);
}

static enum farm_status climb_caches(struct ladder *ladder, struct farm_error *err) {
    struct farm_bw_clock clock = farm_bw_clock_start(&ladder->setup, 3, 1, &ladder->conditions);
    const uint64_t cache_bytes = ladder->setup.machine->l3_bytes;
    struct farm_bw_chase chase;
    enum farm_status status = open_ladder(ladder, &clock, LINE, FARM_BW_PAGES_AUTO, &chase, err);
    if (status) return status;
    plan_rungs(ladder, RUNG_BYTES_LEAST, chase.bytes, LINE, ladder->job->depth == FARM_BW_FULL ? 2 : 1);
    clock.figures = ladder->rungs;
    for (int i = 0; i < ladder->rungs && !status && farm_bw_clock_next(&clock, "latency by working set"); i++)
        status = chase_once(&chase, (size_t)ladder->rung[i].bytes / LINE, LINE, false, ladder, &clock,
                            &ladder->rung[i].sparse, err);
    if (!ladder->job->size_bytes && chase.bytes <= cache_bytes)
        farm_bw_conditions_note(&ladder->conditions,
                                "Time or memory is short: the ladder ends within the last-level cache (%.0f MiB).",
                                (double)cache_bytes / (1 << 20));
    farm_bw_chase_close(&chase);
    return status;
}

// One line in each of ever more small pages, then as many lines in huge pages: the cost of caches without the TLB's.
static enum farm_status climb_pages(struct ladder *ladder, struct farm_error *err) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct farm_bw_clock clock = farm_bw_clock_start(&ladder->setup, 5, 1, &ladder->conditions);
    struct farm_bw_conditions unused = farm_bw_conditions_start();
    struct farm_bw_chase sparse, dense;
    enum farm_status status = open_ladder(ladder, &clock, page, FARM_BW_PAGES_SMALL, &sparse, err);
    if (status) return status;
    plan_rungs(ladder, TLB_PAGES_LEAST * page, sparse.bytes, page, 1);
    clock.figures = 2 * ladder->rungs;
    const struct farm_bw_chase_config config = {
        .bytes = sparse.bytes / page * LINE, .spacing_bytes = LINE, .node = sparse.buffer.node};
    status = farm_bw_chase_open(&ladder->setup, &config, &dense, &unused, err);
    for (int i = 0; i < ladder->rungs && !status && farm_bw_clock_next(&clock, "reach of the TLB"); i++) {
        struct rung *rung = &ladder->rung[i];
        const size_t places = (size_t)rung->bytes / page;
        status = chase_once(&sparse, places, page, true, ladder, &clock, &rung->sparse, err);
        if (status || !farm_bw_clock_next(&clock, "reach of the TLB")) break;
        status = chase_once(&dense, places, LINE, false, ladder, &clock, &rung->dense, err);
    }
    farm_bw_chase_close(&dense);
    farm_bw_chase_close(&sparse);
    return status;
}

// "latency.48KiB", and a row of the table.
static json_t *report_rung(struct farm_bw_job *job, const struct rung *rung, bool tlb) {
    json_t *object = farm_json_object(false);
    struct farm_number_text size = farm_format_bytes((double)rung->bytes);
    farm_json_set_int(object, "bytes", rung->bytes);
    fprintf(job->out, "  %12s", size.text);
    char *blank = strchr(size.text, ' ');
    farm_bw_report(job, 10, object, "ns", &rung->sparse, &farm_bw_ns, "%s.%.*s%s", tlb ? "tlb" : "latency",
                   (int)(blank - size.text), size.text, blank + 1);
    if (tlb) {
        fprintf(job->out, " %10s", farm_bw_figure_text(&rung->dense, 1).text);
        farm_json_set(object, "dense_ns", farm_bw_figure_json(&rung->dense));
    }
    fprintf(job->out, "\n");
    return object;
}

static enum farm_status run_ladder(struct farm_bw_job *job, json_t *section, bool tlb, double share,
                                   struct farm_error *err) {
    struct ladder ladder = {job, farm_bw_setup_for(job, share), farm_bw_conditions_start(), NULL,
                            .cpu = first_cpu(&job->setup)};
    enum farm_status status = farm_bw_team_open(&ladder.cpu, 1, &ladder.team, &ladder.conditions, err);
    if (status) return status;
    status = tlb ? climb_pages(&ladder, err) : climb_caches(&ladder, err);
    farm_bw_team_close(ladder.team);
    if (status) return status;
    json_t *rungs = json_array();
    if (tlb)
        fprintf(job->out, "Reach of the TLB: ns of a load, one line a page, and as many lines side by side\n");
    else
        fprintf(job->out, "The cache ladder: ns of a load, CPU %d\n", ladder.cpu);
    for (int i = 0; i < ladder.rungs; i++) farm_json_append(rungs, report_rung(job, &ladder.rung[i], tlb));
    farm_json_set_int(section, "cpu", (uint64_t)ladder.cpu);
    farm_json_set(section, "ladder", rungs);
    farm_bw_report_conditions(job, section, &ladder.conditions);
    return FARM_OK;
}

enum farm_status farm_bw_part_latency(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    const bool quick = job->depth == FARM_BW_QUICK;
    enum farm_status status = report_idle(job, section, quick ? 1 : 0.25, err);
    return status || quick || farm_bw_is_stopped(&job->setup) ? status : run_ladder(job, section, false, 0.75, err);
}

enum farm_status farm_bw_part_tlb(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    return run_ladder(job, section, true, 1, err);
}
