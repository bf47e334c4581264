// See rings.h.
#include "run/rings.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "base/time.h"

enum { MAKERS_MAX = 16 };     // threads a node that make rings: about what clears memory at a node's full bandwidth
enum { PLACE_NS = 10000000 }; // a fifth of a tick
// Another thread pays for each 16 MiB or 64 rings. Few small rings use none, because jemalloc crashes in a thread if an
// address space limit refuses the thread's arena.
enum { MAKER_BYTES_LOG2 = 24, MAKER_RINGS = 64 };

static struct farm_stats *stats_of(const struct farm_segment *segment) {
    return (struct farm_stats *)((char *)segment->header + FARM_SEGMENT_HEADER_BYTES);
}

static enum farm_status make_bells(struct farm_run_rings *rings, uint32_t count, struct farm_error *err) {
    rings->bells = calloc(count, sizeof *rings->bells);
    for (; rings->bells && rings->bell_count < count; rings->bell_count++)
        if ((rings->bells[rings->bell_count] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) break;
    return rings->bell_count == count ? FARM_OK : farm_fail_errno(err, FARM_E_LIMIT, "%u bells", count);
}

static enum farm_status make_stats(struct farm_run_rings *rings, struct farm_error *err) {
    const struct farm_segment_request request = {.kind = FARM_SEGMENT_STATS,
                                                 .bytes = FARM_SEGMENT_HEADER_BYTES + sizeof(struct farm_stats),
                                                 .node = -1,
                                                 .layout_hash = sizeof(struct farm_stats)};
    enum farm_status status = farm_segment_create(&request, &rings->stats_segment, err);
    if (!status) rings->stats = stats_of(&rings->stats_segment);
    return status;
}

struct farm_stats *farm_run_rings_open_stats(const struct farm_run_rings *rings, struct farm_error *err) {
    struct farm_segment segment;
    return farm_segment_open(rings->stats_segment.fd, true, FARM_SEGMENT_STATS, sizeof(struct farm_stats), &segment,
                             err)
               ? NULL
               : stats_of(&segment);
}

enum farm_status farm_run_rings_make_boards(struct farm_run_rings *rings, const struct farm_run_plan *plan,
                                            struct farm_error *err) {
    int node[FARM_NODES_MAX];
    const uint32_t count = farm_run_board_nodes(plan, node);
    enum farm_status status = FARM_OK;
    while (rings->board_count) farm_board_free(rings->boards[--rings->board_count]);
    for (uint32_t b = 0; b < count && !status; b++, rings->board_count += !status) {
        const struct farm_board_request request = farm_run_board_request(plan, node[b]);
        status = farm_board_create(&request, &rings->boards[b], err);
    }
    return status;
}

enum farm_status farm_run_rings_add(struct farm_run_rings *rings, const struct farm_run_plan *plan, uint32_t a,
                                    int node, struct farm_error *err) {
    return farm_ring_create(&plan->ring_spec, a, node, plan->recipe.huge_pages, &rings->ring[a], err);
}

void farm_run_rings_tick(struct farm_run_rings *rings) {
    struct farm_error err;
    const uint64_t until_ns = farm_now_ns() + PLACE_NS;
    for (uint32_t i = 0; i < rings->places && farm_now_ns() < until_ns; i++) {
        struct farm_ring *ring = &rings->ring[rings->turn = (rings->turn + 1) % rings->places];
        while (ring->lanes && farm_ring_place_next(ring, &err) && farm_now_ns() < until_ns) {
        }
        if (ring->lanes && err.status) farm_log_warn("%s", err.message);
    }
}

// A thread that makes the rings of actors first..end-1, those on a node from their actors' CPUs. Neighbours in the plan
// share a node, so all nodes' rings are made at once.
struct maker {
    struct farm_run_rings *rings;
    const struct farm_run_plan *plan;
    uint32_t first, end;
    bool pins, *failed; // failed: any maker
    pthread_t thread;
    struct farm_error err;
};

static void *make_some(void *context) {
    struct maker *maker = context;
    const struct farm_plan *placement = maker->plan->placement;
    for (uint32_t a = maker->first; a < maker->end && !__atomic_load_n(maker->failed, __ATOMIC_RELAXED); a++) {
        const int node = placement->actor[a].memory_node;
        struct farm_bitmap cpus;
        farm_plan_actor_cpus(maker->plan->machine, placement, (int)a, &cpus);
        if (maker->pins && node >= 0) farm_bitmap_pin(&cpus, NULL);
        if (farm_run_rings_add(maker->rings, maker->plan, a, node, &maker->err))
            __atomic_store_n(maker->failed, true, __ATOMIC_RELAXED);
    }
    return NULL;
}

// No thread outlives this function: processes are forked next. *err: the first actor's whose ring failed.
static enum farm_status make_all(struct farm_run_rings *rings, const struct farm_run_plan *plan,
                                 struct farm_error *err) {
    const uint32_t cpus = (uint32_t)farm_bitmap_count(&plan->placement->actor_cpus),
                   most = MAKERS_MAX * (uint32_t)plan->machine->node_count, count = cpus < most ? cpus : most,
                   pay = 1 + (uint32_t)(farm_run_ring_bytes(plan) >> MAKER_BYTES_LOG2) + plan->actors / MAKER_RINGS,
                   some = count < plan->actors ? count : plan->actors, makers = some < pay ? some : pay;
    struct maker *maker = calloc(makers, sizeof *maker);
    bool failed = false;
    if (!maker) return farm_fail_errno(err, FARM_E_LIMIT, "no memory for %u threads", makers);
    for (uint32_t m = 0; m < makers; m++) {
        maker[m] = (struct maker){.rings = rings, .plan = plan, .pins = makers > 1, .failed = &failed};
        maker[m].first = (uint32_t)((uint64_t)plan->actors * m / makers);
        maker[m].end = (uint32_t)((uint64_t)plan->actors * (m + 1) / makers);
        if (makers > 1 && !farm_thread_start(&maker[m].thread, "rings", m, make_some, &maker[m])) continue;
        maker[m].pins = false; // the calling thread does its work
        make_some(&maker[m]);
    }
    enum farm_status status = FARM_OK;
    for (uint32_t m = 0; m < makers; m++) {
        if (maker[m].pins) pthread_join(maker[m].thread, NULL);
        if (!status && (status = maker[m].err.status)) *err = maker[m].err;
    }
    free(maker);
    return status;
}

static void warn_of_pages(const struct farm_run_rings *rings, uint32_t actors) {
    char text[768];
    const struct farm_segment **all = calloc(2 * (size_t)actors, sizeof *all);
    for (uint32_t a = 0; all && a < actors; a++) {
        all[2 * a] = &rings->ring[a].up;
        all[2 * a + 1] = &rings->ring[a].down;
    }
    if (all && farm_segment_pages_cost(all, 2 * (size_t)actors, text, sizeof text)) farm_log_warn("%s", text);
    free(all);
}

enum farm_status farm_run_rings_make(struct farm_run_rings *rings, const struct farm_run_plan *plan,
                                     struct farm_error *err) {
    rings->places = plan->places;
    rings->ring = calloc(plan->places, sizeof *rings->ring);
    if (!rings->ring) return farm_fail_errno(err, FARM_E_LIMIT, "no memory for %u actors", plan->places);
    const bool each = plan->responder.body && !plan->responder.remote;
    enum farm_status status = make_bells(rings, each ? plan->actors : plan->shards, err);
    if (!status) status = make_stats(rings, err);
    if (!status) status = farm_run_rings_make_boards(rings, plan, err);
    if (!status && plan->actors) status = make_all(rings, plan, err);
    if (status || plan->quiet || !plan->actors) return status;
    char text[768];
    farm_segment_describe(&rings->ring[0].up, text, sizeof text);
    farm_log_info("shared memory: %s", text);
    warn_of_pages(rings, plan->actors);
    return FARM_OK;
}

void farm_run_rings_free(struct farm_run_rings *rings) {
    for (uint32_t a = 0; rings->ring && a < rings->places; a++)
        if (rings->ring[a].lanes) farm_ring_close(&rings->ring[a]);
    while (rings->board_count) farm_board_free(rings->boards[--rings->board_count]);
    if (rings->stats_segment.header) farm_segment_close(&rings->stats_segment);
    for (uint32_t b = 0; b < rings->bell_count; b++) close(rings->bells[b]);
    free(rings->bells);
    free(rings->ring);
}
