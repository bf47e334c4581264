// See latency.h.
#include "bw/latency.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/time.h"
#include "bw/workers.h"
#include "kernels/random.h"
#include "shm/limits.h"

enum {
    LINE = FARM_BANDWIDTH_LINE,
    LINKS_AT_ONCE = 1 << 14, // between looks at the clock
    RUNG_BYTES_LEAST = 4096,
    TLB_PAGES_LEAST = 16,
    STEPS_PER_DOUBLING = 2,
    STREAM_CHUNK_LINES = 1 << 13, // 512 KiB: between looks at the end, without delays
    DELAYED_LINES = 64,           // between two delays
    DELAY_LINES = 8,              // that a row's delay is for
    TRIAL = 4,                    // how much longer the next cycle is while its size is chosen
};
// OPENING: the part of a ladder's time for making its memory present and its longest cycle. A single figure, which is
// little work besides, has two or three times as much for it.
static const double OPENING = 0.25, SAMPLE_S = 0.01, WARM_UP_S = 0.02, RAMP_S = 1e-3, LOADED_SAMPLE_S = 0.02;
static const uint64_t BYTES_LEAST = 64u << 20, CACHE_UNKNOWN_BYTES = 32u << 20, FIT_BYTES_LEAST = 256u << 10;

const int farm_bw_mlc_delays[19] = {0,   2,    8,    15,   50,   100,  200,  300,  400,  500,
                                    700, 1000, 1300, 1700, 2500, 3500, 5000, 9000, 20000};

// ---- the chase ----

static void **place(void *start, size_t index, size_t spacing_bytes, bool jitter, uint64_t seed) {
    size_t at = index * spacing_bytes;
    if (jitter) at += farm_random_mix(seed + index) % (spacing_bytes / LINE) * LINE;
    return (void **)(void *)((char *)start + at);
}

void *farm_bw_chase_make(void *start, size_t count, size_t spacing_bytes, bool jitter, uint32_t *order, uint64_t seed) {
    assert(count > 0 && count <= UINT32_MAX && spacing_bytes >= sizeof(void *));
    assert(!jitter || (spacing_bytes >= LINE && (spacing_bytes & (spacing_bytes - 1)) == 0));
    farm_bandwidth_shuffle(order, count, seed);
    void **first = place(start, order[0], spacing_bytes, jitter, seed), **from = first;
    for (size_t i = 1; i < count; i++) {
        void **to = place(start, order[i], spacing_bytes, jitter, seed);
        *from = to;
        from = to;
    }
    *from = first;
    return first;
}

void *farm_bw_chase_run(void *from, uint64_t links) {
    void **at = from;
    for (; links >= 16; links -= 16) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) at = (void **)*at;
    }
    for (; links > 0; links--) at = (void **)*at;
    return at;
}

bool farm_bw_chase_is(void *start, size_t count, size_t spacing_bytes, bool jitter, const uint32_t *order,
                      uint64_t seed) {
    for (size_t i = 0; i < count; i++) {
        void *const *from = place(start, order[i], spacing_bytes, jitter, seed);
        if (*from != place(start, order[i + 1 < count ? i + 1 : 0], spacing_bytes, jitter, seed)) return false;
    }
    return true;
}

// ---- a chase on a buffer, from a pinned thread ----

struct chase {
    struct farm_bw_buffer buffer;
    uint64_t bytes; // of the buffer, to be used
    uint32_t *order;
    size_t count, spacing_bytes; // places of the cycle
    bool jitter;
    void *at;
    struct farm_bw_team *team; // whose member 0 chases
    uint64_t links, took_ns;
};

struct chase_config {
    uint64_t bytes; // 0: beyond caches, or as much less as memory and time suffice for
    double seconds; // with bytes 0: for making the memory present and making and checking a cycle through it
    size_t spacing_bytes;
    int node;
    enum farm_bw_pages pages;
};

static void set_cycle(struct chase *chase, size_t count, size_t spacing_bytes, bool jitter) {
    chase->count = count, chase->spacing_bytes = spacing_bytes, chase->jitter = jitter;
    chase->at = farm_bw_chase_make(chase->buffer.start, count, spacing_bytes, jitter, chase->order, count);
}

// FARM_BW_CACHES x the last-level cache, and no more than a quarter of what may be taken.
static uint64_t beyond_caches(const struct farm_bw_setup *setup) {
    const uint64_t cache = setup->machine->l3_bytes ? setup->machine->l3_bytes : CACHE_UNKNOWN_BYTES;
    uint64_t bytes = FARM_BW_CACHES * cache > BYTES_LEAST ? FARM_BW_CACHES * cache : BYTES_LEAST;
    const uint64_t room = farm_limits_memory_available_bytes(setup->root) / 4;
    if (bytes > room) bytes = room;
    return bytes / LINE * LINE;
}

// Makes cycles through ever more of the memory, and uses as much of it as can be made and checked until end_ns: a third
// time for what becomes slower with size.
static void fit_chase(struct chase *chase, size_t spacing_bytes, uint64_t end_ns) {
    uint64_t fit = chase->bytes, next = FIT_BYTES_LEAST;
    for (uint64_t piece = 0; piece < next && next < fit; next = piece * TRIAL) {
        piece = next;
        const uint64_t start_ns = farm_now_ns();
        set_cycle(chase, (size_t)piece / spacing_bytes, spacing_bytes, false);
        const uint64_t now_ns = farm_now_ns();
        fit = farm_bw_bytes_in_time(chase->bytes, piece, (double)(now_ns - start_ns) * 1e-9, 3,
                                    now_ns < end_ns ? (double)(end_ns - now_ns) * 1e-9 : 0);
    }
    chase->bytes = fit > FIT_BYTES_LEAST || fit == chase->bytes ? fit : FIT_BYTES_LEAST;
}

static enum farm_status open_chase(const struct farm_bw_setup *setup, const struct chase_config *config,
                                   struct chase *chase, struct farm_bw_conditions *conditions, struct farm_error *err) {
    const uint64_t start_ns = farm_now_ns(), half_ns = (uint64_t)(config->seconds * 0.5e9);
    const bool chosen = config->bytes == 0;
    uint64_t bytes = chosen ? beyond_caches(setup) : config->bytes;
    *chase = (struct chase){0};
    if (bytes / LINE > UINT32_MAX)
        return farm_fail(err, FARM_E_LIMIT, "a chase through %llu bytes: 256 GiB at most", (unsigned long long)bytes);
    enum farm_status status;
    do { // a node may have less room than the machine
        status = farm_bw_buffer_open(setup->root, (size_t)bytes, config->node, config->pages,
                                     chosen ? start_ns + half_ns : 0, &chase->buffer, err);
    } while (status == FARM_E_LIMIT && chosen && (bytes /= 2) > FIT_BYTES_LEAST);
    if (status) return status;
    farm_bw_conditions_add_buffer(conditions, &chase->buffer);
    chase->bytes = chase->buffer.bytes < bytes ? chase->buffer.bytes : bytes;
    chase->order = malloc((size_t)chase->bytes / config->spacing_bytes * sizeof *chase->order);
    if (!chase->order) {
        farm_bw_buffer_close(&chase->buffer);
        return farm_fail(err, FARM_E_LIMIT, "no memory for the order of %llu lines", (unsigned long long)bytes / LINE);
    }
    if (chosen) fit_chase(chase, config->spacing_bytes, start_ns + 2 * half_ns);
    if (chosen && chase->bytes < FARM_BW_CACHES * setup->machine->l3_bytes)
        farm_bw_conditions_note(conditions,
                                "Time or memory is short: less than %d x the last-level cache is chased through.",
                                FARM_BW_CACHES);
    return FARM_OK;
}

static void close_chase(struct chase *chase) {
    farm_bw_buffer_close(&chase->buffer);
    free(chase->order);
    chase->order = NULL;
}

// Chases for about this time, by whoever calls; returns nanoseconds a link.
static double chase_for(struct chase *chase, double seconds) {
    const uint64_t start = farm_now_ns(), end = start + (uint64_t)(seconds * 1e9);
    uint64_t now = start, links = 0;
    while (now < end) {
        chase->at = farm_bw_chase_run(chase->at, LINKS_AT_ONCE);
        links += LINKS_AT_ONCE;
        now = farm_now_ns();
    }
    return (double)(now - start) / (double)links;
}

// Every place once, or as many as the time for warming up allows.
static void warm_up(struct chase *chase) {
    const uint64_t end = farm_now_ns() + (uint64_t)(WARM_UP_S * 1e9);
    for (size_t links = 0; links < chase->count && farm_now_ns() < end; links += LINKS_AT_ONCE)
        chase->at = farm_bw_chase_run(chase->at, LINKS_AT_ONCE);
}

struct chasing {
    struct chase *chase;
    struct farm_bw_clock *clock;
    double sample_s;
    struct farm_bw_figure *figure;
};

static void chase_member(void *context, int member) {
    const struct chasing *chasing = context;
    warm_up(chasing->chase);
    double samples[FARM_BW_SAMPLES_MAX];
    int count = 0;
    while (farm_bw_clock_more(chasing->clock, count)) samples[count++] = chase_for(chasing->chase, chasing->sample_s);
    *chasing->figure = farm_bw_figure_of(samples, count);
}

// A figure of the cycle that is set.
static void chase_figure(struct chase *chase, struct farm_bw_team *team, struct farm_bw_clock *clock,
                         struct farm_bw_figure *figure) {
    const double sample_s = clock->setup->sample_s > 0 ? clock->setup->sample_s : SAMPLE_S;
    struct chasing chasing = {chase, clock, sample_s, figure};
    farm_bw_team_run(team, chase_member, &chasing);
    farm_bw_clock_took(clock);
}

// After the last figure of a cycle. FARM_E_IO if it is broken.
static enum farm_status check_cycle(const struct chase *chase, struct farm_error *err) {
    if (farm_bw_chase_is(chase->buffer.start, chase->count, chase->spacing_bytes, chase->jitter, chase->order,
                         chase->count))
        return FARM_OK;
    return farm_fail(err, FARM_E_IO,
                     "the chase through %zu lines has come off its way: memory of this machine is broken",
                     chase->count);
}

// ---- where and how much ----

static int first_cpu(const struct farm_bw_setup *setup) {
    return farm_bitmap_next(&setup->machine->allowed, 0);
}

static int node_of(const struct farm_bw_setup *setup, int cpu) {
    const struct farm_cpu *entry = farm_machine_cpu(setup->machine, cpu);
    return entry ? farm_machine_memory_node(setup->machine, entry->node) : -1;
}

// ---- ladder and TLB ----

// Working sets in places of `spacing` bytes, `steps` to a doubling; returns their number.
static int plan_rungs(const struct farm_bw_ladder_config *config, uint64_t least, uint64_t most, uint64_t spacing,
                      struct farm_bw_rung *rungs) {
    const int steps = config->steps_per_doubling > 0 ? config->steps_per_doubling : STEPS_PER_DOUBLING;
    int count = 0;
    uint64_t last = 0;
    for (uint64_t base = least; base <= most && count < FARM_BW_RUNGS_MAX; base *= 2)
        for (int step = 0; step < steps && count < FARM_BW_RUNGS_MAX; step++) {
            double bytes = (double)base;
            for (int i = 0; i < step; i++) bytes *= __builtin_exp2(1.0 / steps);
            const uint64_t whole = (uint64_t)(bytes / (double)spacing + 0.5) * spacing;
            if (whole <= last || whole > most) continue;
            rungs[count++] = (struct farm_bw_rung){
                .bytes = last = whole, .ns = farm_bw_figure_of(NULL, 0), .dense_ns = farm_bw_figure_of(NULL, 0)};
        }
    return count;
}

static enum farm_status check_rungs(uint64_t least, uint64_t most, uint64_t spacing, struct farm_error *err) {
    if (least < spacing || most < least || most > UINT64_MAX / 4)
        return farm_fail(err, FARM_E_INVALID, "working sets from %llu to %llu bytes: at least %llu, and ascending",
                         (unsigned long long)least, (unsigned long long)most, (unsigned long long)spacing);
    return FARM_OK;
}

static enum farm_status start_ladder(const struct farm_bw_setup *setup, const struct farm_bw_ladder_config *config,
                                     uint64_t least, uint64_t spacing, struct farm_bw_ladder_result *result,
                                     struct farm_bw_team **team, struct farm_error *err) {
    *result = (struct farm_bw_ladder_result){.cpu = first_cpu(setup), .conditions = farm_bw_conditions_start()};
    result->node = node_of(setup, result->cpu);
    enum farm_status status =
        check_rungs(least, config->bytes_most ? config->bytes_most : beyond_caches(setup), spacing, err);
    return status ? status : farm_bw_workers_team(setup, &result->cpu, 1, team, &result->conditions, err);
}

enum farm_status farm_bw_ladder(const struct farm_bw_setup *setup, const struct farm_bw_ladder_config *config,
                                struct farm_bw_ladder_result *result, struct farm_error *err) {
    struct farm_bw_team *team;
    struct chase chase;
    const uint64_t least = RUNG_BYTES_LEAST;
    enum farm_status status = start_ladder(setup, config, least, LINE, result, &team, err);
    if (status) return status;
    struct farm_bw_clock clock = farm_bw_clock_start(setup, 3, 1, &result->conditions);
    const struct chase_config chase_config = {.bytes = config->bytes_most,
                                              .seconds = OPENING * farm_bw_clock_share(&clock, 1),
                                              .spacing_bytes = LINE,
                                              .node = result->node};
    status = open_chase(setup, &chase_config, &chase, &result->conditions, err);
    if (!status) {
        clock.figures = result->rungs = plan_rungs(config, least, chase.bytes, LINE, result->rung);
        for (int i = 0; !status && i < result->rungs; i++) {
            struct farm_bw_rung *rung = &result->rung[i];
            if (!farm_bw_clock_next(&clock, "latency by working set")) break;
            set_cycle(&chase, (size_t)rung->bytes / LINE, LINE, false);
            chase_figure(&chase, team, &clock, &rung->ns);
            status = check_cycle(&chase, err);
        }
        if (config->bytes_most == 0 && chase.bytes <= setup->machine->l3_bytes)
            farm_bw_conditions_note(&result->conditions,
                                    "Time or memory is short: the ladder ends within the last-level cache (%.0f MiB).",
                                    (double)setup->machine->l3_bytes / (1 << 20));
        close_chase(&chase);
    }
    farm_bw_team_close(team);
    return status;
}

// One rung of the TLB's: a line in each page, then as many lines side by side.
static enum farm_status tlb_rung(struct chase *sparse, struct chase *dense, size_t page, struct farm_bw_team *team,
                                 struct farm_bw_clock *clock, struct farm_bw_rung *rung, struct farm_error *err) {
    const size_t places = (size_t)rung->bytes / page;
    set_cycle(sparse, places, page, true);
    chase_figure(sparse, team, clock, &rung->ns);
    enum farm_status status = check_cycle(sparse, err);
    if (status || !farm_bw_clock_next(clock, "reach of the TLB")) return status;
    set_cycle(dense, places, LINE, false);
    chase_figure(dense, team, clock, &rung->dense_ns);
    return check_cycle(dense, err);
}

enum farm_status farm_bw_tlb(const struct farm_bw_setup *setup, const struct farm_bw_ladder_config *config,
                             struct farm_bw_ladder_result *result, struct farm_error *err) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct farm_bw_team *team;
    struct chase sparse, dense;
    const uint64_t least = TLB_PAGES_LEAST * page;
    enum farm_status status = start_ladder(setup, config, least, page, result, &team, err);
    if (status) return status;
    struct farm_bw_conditions dense_conditions = farm_bw_conditions_start();
    struct farm_bw_clock clock = farm_bw_clock_start(setup, 5, 1, &result->conditions);
    struct chase_config chase_config = {.bytes = config->bytes_most,
                                        .seconds = OPENING * farm_bw_clock_share(&clock, 1),
                                        .spacing_bytes = page,
                                        .node = result->node,
                                        .pages = FARM_BW_PAGES_SMALL};
    status = open_chase(setup, &chase_config, &sparse, &result->conditions, err);
    if (!status) {
        result->rungs = plan_rungs(config, least, sparse.bytes, page, result->rung);
        clock.figures = 2 * result->rungs;
        chase_config.bytes = sparse.bytes / page * LINE;
        chase_config.spacing_bytes = LINE;
        chase_config.pages = FARM_BW_PAGES_AUTO;
        status = open_chase(setup, &chase_config, &dense, &dense_conditions, err);
        if (!status) {
            for (int i = 0; !status && i < result->rungs; i++) {
                if (!farm_bw_clock_next(&clock, "reach of the TLB")) break;
                status = tlb_rung(&sparse, &dense, page, team, &clock, &result->rung[i], err);
            }
            close_chase(&dense);
        }
        close_chase(&sparse);
    }
    farm_bw_team_close(team);
    return status;
}

// ---- idle latency ----

enum farm_status farm_bw_idle(const struct farm_bw_setup *setup, const struct farm_bw_idle_config *config,
                              struct farm_bw_idle_result *result, struct farm_error *err) {
    const int cpu = first_cpu(setup);
    *result = (struct farm_bw_idle_result){
        .ns = farm_bw_figure_of(NULL, 0), .bytes = config->bytes, .conditions = farm_bw_conditions_start()};
    if (config->bytes && config->bytes < LINE)
        return farm_fail(err, FARM_E_INVALID, "a chase through less than a line");
    struct farm_bw_team *team;
    struct chase chase;
    struct farm_bw_clock clock = farm_bw_clock_start(setup, 2, 1, &result->conditions);
    enum farm_status status = farm_bw_workers_team(setup, &cpu, 1, &team, &result->conditions, err);
    if (status) return status;
    const struct chase_config chase_config = {.bytes = config->bytes,
                                              .seconds = 3 * OPENING * farm_bw_clock_share(&clock, 1),
                                              .spacing_bytes = LINE,
                                              .node = node_of(setup, cpu),
                                              .pages = config->pages};
    status = open_chase(setup, &chase_config, &chase, &result->conditions, err);
    if (!status) {
        result->bytes = chase.bytes;
        set_cycle(&chase, (size_t)chase.bytes / LINE, LINE, false);
        if (farm_bw_clock_next(&clock, "idle latency")) {
            chase_figure(&chase, team, &clock, &result->ns);
            farm_bw_mark_in_cache(&result->ns, chase.bytes, setup->machine->l3_bytes, &result->conditions);
            status = check_cycle(&chase, err);
        }
        close_chase(&chase);
    }
    farm_bw_team_close(team);
    return status;
}

// ---- node x node ----

// All rows of a column: one piece of memory, chased through from each node in turn.
static enum farm_status latency_column(const struct farm_bw_setup *setup, const struct farm_bw_matrix_config *config,
                                       struct farm_bw_matrix *matrix, int column, struct farm_bw_clock *clock,
                                       struct farm_error *err) {
    const struct chase_config chase_config = {.bytes = config->array_bytes,
                                              .seconds = 2 * OPENING * farm_bw_clock_share(clock, matrix->rows),
                                              .spacing_bytes = LINE,
                                              .node = matrix->column_node[column]};
    struct chase chase;
    enum farm_status status = open_chase(setup, &chase_config, &chase, clock->conditions, err);
    if (status) return status;
    set_cycle(&chase, (size_t)chase.bytes / LINE, LINE, false);
    for (int row = 0; !status && row < matrix->rows; row++) {
        char what[64];
        int cpu;
        struct farm_bw_team *team;
        snprintf(what, sizeof what, "latency, node %d to %d", matrix->row_node[row], matrix->column_node[column]);
        if (!farm_bw_clock_next(clock, what)) break;
        farm_bw_cpus(setup->machine, matrix->row_node[row], false, &cpu, 1);
        status = farm_bw_workers_team(setup, &cpu, 1, &team, clock->conditions, err);
        if (status) break;
        const int cell = row * matrix->columns + column;
        chase_figure(&chase, team, clock, &matrix->cell[cell]);
        farm_bw_mark_in_cache(&matrix->cell[cell], chase.bytes, setup->machine->l3_bytes, clock->conditions);
        matrix->placed[cell] = chase.buffer.placed;
        farm_bw_team_close(team);
    }
    if (!status) status = check_cycle(&chase, err);
    close_chase(&chase);
    return status;
}

enum farm_status farm_bw_matrix_latency(const struct farm_bw_setup *setup, const struct farm_bw_matrix_config *config,
                                        struct farm_bw_matrix *matrix, struct farm_error *err) {
    enum farm_status status = farm_bw_matrix_shape(setup->machine, matrix, err);
    if (status) return status;
    const int cells = matrix->rows * matrix->columns;
    struct farm_bw_clock clock = farm_bw_clock_start(setup, 1 + 0.3 * cells, cells, &matrix->conditions);
    struct farm_error why = {0};
    int measured = 0;
    for (int column = 0; !status && column < matrix->columns && !farm_bw_clock_over(&clock); column++) {
        status = latency_column(setup, config, matrix, column, &clock, &why);
        measured += !status;
        status = farm_bw_leave_out(status, &why, &matrix->conditions, err);
    }
    if (!status && measured == 0) status = farm_bw_all_left_out(&why, err);
    for (int row = 0; row < matrix->rows; row++) matrix->threads[row] = 1;
    if (status) farm_bw_matrix_free(matrix);
    return status;
}

// ---- loaded latency ----

// Member 0 of the team chases, the others stream over the arrays of the workers's actors until it is done.
struct loading {
    struct farm_bw_workers *workers;
    struct farm_bw_team *team;
    struct chase *chase;
    int delay;
    double sample_s, ns; // ns: of the last sample
    struct stream {
        uint64_t pass; // whole ones done since the arrays were filled
        uint64_t lines, took_ns;
        char apart[104]; // from the next thread's
    } * stream;
    _Alignas(128) _Atomic bool done;
};

static void wait_turns(int turns) {
    for (int i = 0; i < turns; i++) __asm__ volatile("" ::: "memory");
}

// Some lines of the thread's arrays: as work of its own.
static struct farm_bandwidth_work part_of(const struct farm_bandwidth_work *work, size_t line, size_t lines) {
    struct farm_bandwidth_work part = *work;
    const size_t at = line * (LINE / sizeof(double));
    part.lines = lines;
    if (part.a) part.a += at;
    if (part.b) part.b += at;
    if (part.d) part.d += at;
    return part;
}

// Passes until told; the last one is finished, so that every line has been passed over as often, but not counted.
static void stream_until_done(struct loading *loading, int index) {
    struct farm_bw_actor *actor = &loading->workers->actor[index];
    struct stream *stream = &loading->stream[index];
    const size_t chunk = loading->delay > 0 ? DELAYED_LINES : STREAM_CHUNK_LINES;
    const uint64_t start = farm_now_ns();
    size_t line = 0;
    stream->lines = 0;
    while (!atomic_load_explicit(&loading->done, memory_order_relaxed)) {
        const size_t lines = actor->lines - line < chunk ? actor->lines - line : chunk;
        const struct farm_bandwidth_work part = part_of(&actor->work, line, lines);
        actor->sum += farm_bandwidth_run(&part, loading->workers->variant, stream->pass, 1);
        stream->lines += lines;
        line += lines;
        if (line == actor->lines) line = 0, stream->pass++;
        wait_turns(loading->delay * (DELAYED_LINES / DELAY_LINES));
    }
    stream->took_ns = farm_now_ns() - start;
    if (line == 0) return;
    const struct farm_bandwidth_work rest = part_of(&actor->work, line, actor->lines - line);
    actor->sum += farm_bandwidth_run(&rest, loading->workers->variant, stream->pass++, 1);
}

static void loading_member(void *context, int member) {
    struct loading *loading = context;
    farm_bw_team_meet(loading->team);
    if (member > 0) {
        stream_until_done(loading, member - 1);
        return;
    }
    chase_for(loading->chase, RAMP_S);
    loading->ns = chase_for(loading->chase, loading->sample_s);
    atomic_store_explicit(&loading->done, true, memory_order_relaxed);
}

// Bytes per second of all streams in the last sample.
static double streamed(const struct loading *loading) {
    double bytes_per_s = 0;
    for (int i = 0; i < loading->workers->threads; i++) {
        const struct stream *stream = &loading->stream[i];
        if (stream->took_ns == 0) continue;
        const double bytes = (double)stream->lines * farm_bandwidth_program_bytes(loading->workers->actor[i].work.op);
        bytes_per_s += bytes / ((double)stream->took_ns * 1e-9);
    }
    return bytes_per_s;
}

static void verify_member(void *context, int member) {
    struct loading *loading = context;
    if (member == 0) return;
    struct farm_bw_actor *actor = &loading->workers->actor[member - 1];
    const uint64_t passes = loading->stream[member - 1].pass;
    actor->good =
        farm_bandwidth_verify(&actor->work, passes, NULL) &&
        (actor->work.op != FARM_BANDWIDTH_READ || actor->sum == farm_bandwidth_expected_sum(&actor->work, passes));
}

static enum farm_status loaded_rows(struct loading *loading, struct farm_bw_clock *clock,
                                    struct farm_bw_loaded_result *result, struct farm_error *err) {
    for (int i = 0; i < result->rows; i++) {
        struct farm_bw_loaded_row *row = &result->row[i];
        double ns[FARM_BW_SAMPLES_MAX], bytes_per_s[FARM_BW_SAMPLES_MAX];
        int count = 0;
        char what[64];
        snprintf(what, sizeof what, "loaded latency, delay %d", row->delay);
        if (!farm_bw_clock_next(clock, what)) break;
        loading->delay = row->delay;
        for (; farm_bw_clock_more(clock, count); count++) {
            atomic_store_explicit(&loading->done, false, memory_order_relaxed);
            farm_bw_team_run(loading->team, loading_member, loading);
            ns[count] = loading->ns;
            bytes_per_s[count] = streamed(loading);
        }
        row->ns = farm_bw_figure_of(ns, count);
        row->bytes_per_s = farm_bw_figure_of(bytes_per_s, count);
        const struct farm_bw_workers *workers = loading->workers;
        farm_bw_mark_in_cache(&row->ns, loading->chase->bytes, workers->setup->machine->l3_bytes, clock->conditions);
        farm_bw_mark_in_cache(&row->bytes_per_s, (uint64_t)workers->arrays * workers->array_bytes, workers->cache_bytes,
                              clock->conditions);
        farm_bw_clock_took(clock);
    }
    farm_bw_team_run(loading->team, verify_member, loading);
    for (int i = 0; i < loading->workers->threads; i++)
        if (!loading->workers->actor[i].good)
            return farm_fail(err, FARM_E_IO,
                             "loaded latency: a stream's data are wrong: memory of this machine is broken");
    return FARM_OK;
}

// The streams' arrays are there: the chase beside them.
static enum farm_status load(struct farm_bw_workers *workers, const struct farm_bw_loaded_config *config,
                             const int *cpus, struct farm_bw_clock *clock, struct farm_bw_loaded_result *result,
                             struct farm_error *err) {
    const struct farm_bw_setup *setup = workers->setup;
    struct chase chase;
    struct stream *streams = calloc((size_t)workers->threads, sizeof *streams);
    struct loading loading = {.workers = workers, .chase = &chase, .stream = streams};
    loading.sample_s = setup->sample_s > 0 ? setup->sample_s : LOADED_SAMPLE_S;
    if (!streams) return farm_fail(err, FARM_E_LIMIT, "no memory for %d threads", workers->threads);
    enum farm_status status =
        farm_bw_workers_prepare(workers, config->op, FARM_BANDWIDTH_TEMPORAL, FARM_BANDWIDTH_SEQUENTIAL, 0, err);
    for (int i = 0; i < workers->threads; i++) streams[i].pass = workers->passes_done;
    if (!status)
        status = farm_bw_workers_team(setup, cpus, workers->threads + 1, &loading.team, &result->conditions, err);
    if (!status) {
        const struct chase_config chase_config = {.bytes = config->chase_bytes,
                                                  .seconds = OPENING * farm_bw_clock_share(clock, clock->figures),
                                                  .spacing_bytes = LINE,
                                                  .node = node_of(setup, cpus[0])};
        status = open_chase(setup, &chase_config, &chase, &result->conditions, err);
        if (!status) {
            set_cycle(&chase, (size_t)chase.bytes / LINE, LINE, false);
            status = loaded_rows(&loading, clock, result, err);
            close_chase(&chase);
        }
        farm_bw_team_close(loading.team);
    }
    free(streams);
    return status;
}

// All cores of the first allowed CPU's node.
static int cores_of_first(const struct farm_bw_setup *setup, int *cpus) {
    const struct farm_cpu *first = farm_machine_cpu(setup->machine, farm_bitmap_next(&setup->machine->allowed, 0));
    return farm_bw_cpus(setup->machine, first ? first->node : -1, false, cpus, FARM_CPUS_MAX);
}

enum farm_status farm_bw_loaded(const struct farm_bw_setup *setup, const struct farm_bw_loaded_config *config,
                                struct farm_bw_loaded_result *result, struct farm_error *err) {
    int cpus[FARM_CPUS_MAX]; // the first chases, the others stream
    const int count = cores_of_first(setup, cpus);
    const int *delays = config->delay_count > 0 ? config->delays : farm_bw_mlc_delays;
    const int rows = config->delay_count > 0 ? config->delay_count : (int)(sizeof farm_bw_mlc_delays / sizeof(int));
    *result = (struct farm_bw_loaded_result){.streams = count - 1, .conditions = farm_bw_conditions_start()};
    if (rows > FARM_BW_DELAYS_MAX)
        return farm_fail(err, FARM_E_INVALID, "%d delays: at most %d", rows, FARM_BW_DELAYS_MAX);
    for (; result->rows < rows; result->rows++)
        result->row[result->rows] = (struct farm_bw_loaded_row){
            .delay = delays[result->rows], .ns = farm_bw_figure_of(NULL, 0), .bytes_per_s = farm_bw_figure_of(NULL, 0)};
    if (count < 2) {
        result->streams = 0;
        farm_bw_conditions_note(&result->conditions, "Loaded latency wants two cores: one chases, one streams.");
        return FARM_OK;
    }
    struct farm_bw_clock clock = farm_bw_clock_start(setup, 1 + 0.15 * rows, rows, &result->conditions);
    struct farm_bw_workers_config workers_config =
        farm_bw_workers_for(&clock, rows, cpus + 1, count - 1, farm_bandwidth_arrays(config->op), config->array_bytes);
    workers_config.seconds *= OPENING;
    workers_config.figures = 1;
    struct farm_bw_workers workers;
    enum farm_status status = farm_bw_workers_open(setup, &workers_config, &workers, &result->conditions, err);
    if (status) return status;
    status = load(&workers, config, cpus, &clock, result, err);
    farm_bw_workers_close(&workers);
    return status;
}
