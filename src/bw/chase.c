// See chase.h.
#include "bw/chase.h"

#include <assert.h>
#include <stdlib.h>

#include "base/time.h"
#include "kernels/random.h"
#include "shm/limits.h"

enum {
    LINE = FARM_BANDWIDTH_LINE,
    LINKS_AT_ONCE = 1 << 14, // between two readings of the clock
    TRIAL = 4,               // how much longer the next cycle is while farm_bw_chase_open chooses the size
};
static const double SAMPLE_S = 0.01, WARM_UP_S = 0.02;
static const uint64_t BYTES_LEAST = 64u << 20, CACHE_UNKNOWN_BYTES = 32u << 20, SHORTEST_BYTES = 256u << 10;

// ---- a cycle ----

static void **place_of(const struct farm_bw_chase *chase, size_t i) {
    const size_t index = chase->order[i < chase->count ? i : 0];
    size_t at = index * chase->spacing_bytes;
    if (chase->jitter) at += farm_random_mix(chase->count + index) % (chase->spacing_bytes / LINE) * LINE;
    return (void **)(void *)((char *)chase->buffer.start + at);
}

void farm_bw_chase_make(struct farm_bw_chase *chase, size_t count, size_t spacing_bytes, bool jitter) {
    assert(count > 0 && count <= UINT32_MAX && spacing_bytes >= sizeof(void *));
    assert(!jitter || (spacing_bytes >= LINE && (spacing_bytes & (spacing_bytes - 1)) == 0));
    chase->count = count, chase->spacing_bytes = spacing_bytes, chase->jitter = jitter;
    farm_bandwidth_shuffle(chase->order, count, count);
    chase->at = place_of(chase, 0);
    for (size_t i = 0; i < count; i++) *place_of(chase, i) = place_of(chase, i + 1);
}

enum farm_status farm_bw_chase_check(const struct farm_bw_chase *chase, struct farm_error *err) {
    for (size_t i = 0; i < chase->count; i++)
        if (*place_of(chase, i) != place_of(chase, i + 1))
            return farm_fail(err, FARM_E_IO,
                             "the chase through %zu lines left its cycle: memory of this machine is broken",
                             chase->count);
    return FARM_OK;
}

void farm_bw_chase_follow(struct farm_bw_chase *chase, uint64_t links) {
    void **at = chase->at;
    for (; links >= 16; links -= 16) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) at = (void **)*at;
    }
    for (; links > 0; links--) at = (void **)*at;
    chase->at = at;
}

// ---- its memory ----

// No more than a quarter of the memory that this process may take.
static uint64_t bytes_beyond_caches(const struct farm_bw_setup *setup) {
    const uint64_t cache = setup->machine->l3_bytes ? setup->machine->l3_bytes : CACHE_UNKNOWN_BYTES;
    uint64_t bytes = FARM_BW_CACHES * cache > BYTES_LEAST ? FARM_BW_CACHES * cache : BYTES_LEAST;
    const uint64_t room = farm_limits_memory_available_bytes(setup->root) / 4;
    return (bytes < room ? bytes : room) / LINE * LINE;
}

// Makes cycles through more and more of the memory, and uses as much of it as can be made and checked until end_ns; the
// third of three times is a reserve, because longer cycles are slower.
static void shorten_to_time(struct farm_bw_chase *chase, size_t spacing_bytes, uint64_t end_ns) {
    uint64_t possible = chase->bytes, next = SHORTEST_BYTES;
    for (uint64_t piece = 0; piece < next && next < possible; next = piece * TRIAL) {
        piece = next;
        const uint64_t start_ns = farm_now_ns();
        farm_bw_chase_make(chase, (size_t)piece / spacing_bytes, spacing_bytes, false);
        const uint64_t now_ns = farm_now_ns();
        possible = farm_bw_bytes_in_time(chase->bytes, piece, (double)(now_ns - start_ns) * 1e-9, 3,
                                         now_ns < end_ns ? (double)(end_ns - now_ns) * 1e-9 : 0);
    }
    chase->bytes = possible > SHORTEST_BYTES || possible == chase->bytes ? possible : SHORTEST_BYTES;
}

enum farm_status farm_bw_chase_open(const struct farm_bw_setup *setup, const struct farm_bw_chase_config *config,
                                    struct farm_bw_chase *chase, struct farm_bw_conditions *conditions,
                                    struct farm_error *err) {
    const uint64_t start_ns = farm_now_ns(), half_ns = (uint64_t)(config->seconds * 0.5e9);
    const bool chosen = config->bytes == 0;
    uint64_t bytes = chosen ? bytes_beyond_caches(setup) : config->bytes;
    *chase = (struct farm_bw_chase){0};
    if (bytes / LINE > UINT32_MAX)
        return farm_fail(err, FARM_E_LIMIT, "a chase through %llu bytes: 256 GiB at most", (unsigned long long)bytes);
    enum farm_status status;
    do { // a node may have less room than the machine
        status = farm_bw_buffer_open(setup->root, (size_t)bytes, config->node, config->pages,
                                     chosen ? start_ns + half_ns : 0, &chase->buffer, err);
    } while (status == FARM_E_LIMIT && chosen && (bytes /= 2) > SHORTEST_BYTES);
    if (status) return status;
    farm_bw_buffer_add_conditions(&chase->buffer, conditions);
    chase->bytes = chase->buffer.bytes < bytes ? chase->buffer.bytes : bytes;
    chase->order = malloc((size_t)chase->bytes / config->spacing_bytes * sizeof *chase->order);
    if (!chase->order) {
        farm_bw_buffer_close(&chase->buffer);
        return farm_fail(err, FARM_E_LIMIT, "no memory for the order of %llu lines", (unsigned long long)bytes / LINE);
    }
    if (chosen) shorten_to_time(chase, config->spacing_bytes, start_ns + 2 * half_ns);
    if (chosen && chase->bytes < FARM_BW_CACHES * setup->machine->l3_bytes)
        farm_bw_conditions_note(conditions,
                                "Time or memory is short: the chase covers less than %d x the last-level "
                                "cache.",
                                FARM_BW_CACHES);
    return FARM_OK;
}

void farm_bw_chase_close(struct farm_bw_chase *chase) {
    farm_bw_buffer_close(&chase->buffer);
    free(chase->order);
    chase->order = NULL;
}

// ---- figures ----

double farm_bw_chase_time(struct farm_bw_chase *chase, double seconds) {
    const uint64_t start = farm_now_ns(), end = start + (uint64_t)(seconds * 1e9);
    uint64_t now = start, links = 0;
    for (; now < end; now = farm_now_ns(), links += LINKS_AT_ONCE) farm_bw_chase_follow(chase, LINKS_AT_ONCE);
    return (double)(now - start) / (double)links;
}

struct chasing {
    struct farm_bw_chase *chase;
    struct farm_bw_clock *clock;
    struct farm_bw_figure *figure;
};

static void chase_member(void *context, int member) {
    const struct chasing *chasing = context;
    struct farm_bw_clock *clock = chasing->clock;
    const double sample_s = clock->setup->sample_s > 0 ? clock->setup->sample_s : SAMPLE_S;
    const uint64_t warm_ns = farm_now_ns() + (uint64_t)(WARM_UP_S * 1e9);
    double samples[FARM_BW_SAMPLES_MAX];
    int count = 0;
    for (size_t links = 0; links < chasing->chase->count && farm_now_ns() < warm_ns; links += LINKS_AT_ONCE)
        farm_bw_chase_follow(chasing->chase, LINKS_AT_ONCE);
    while (farm_bw_clock_more(clock, count)) samples[count++] = farm_bw_chase_time(chasing->chase, sample_s);
    *chasing->figure = farm_bw_figure_of(samples, count);
}

void farm_bw_chase_figure(struct farm_bw_chase *chase, struct farm_bw_team *team, struct farm_bw_clock *clock,
                          struct farm_bw_figure *figure) {
    farm_bw_team_run(team, chase_member, &(struct chasing){chase, clock, figure});
    farm_bw_clock_took(clock);
}
