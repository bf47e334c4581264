// The shared memory of a run: rings, bells, and the learner's stats. The supervisor process makes all of it and holds
// every descriptor, so that it outlives each worker. Actors and the learner map it from inherited descriptors.
#ifndef FARM_RUN_RINGS_H
#define FARM_RUN_RINGS_H

#include "board/board.h"
#include "intake/stats.h"
#include "ring/ring.h"
#include "run/plan.h"

struct farm_run_rings {
    uint32_t places;
    struct farm_ring *ring; // [places]; lanes NULL: vacant
    int *bells;             // eventfd of each actor (farm fps), or of each shard
    uint32_t bell_count;
    uint32_t turn;                             // farm_run_rings_tick begins behind it
    struct farm_board *boards[FARM_NODES_MAX]; // if actors infer
    uint32_t board_count;
    struct farm_segment stats_segment;
    struct farm_stats *stats;
};

// Bells, stats, and the rings of the plan's actors. *rings must be zeroed before, and freed in any case.
enum farm_status farm_run_rings_make(struct farm_run_rings *rings, const struct farm_run_plan *plan,
                                     struct farm_error *err);
// The ring of actor a, on this NUMA node (-1: any).
enum farm_status farm_run_rings_add(struct farm_run_rings *rings, const struct farm_run_plan *plan, uint32_t a,
                                    int node, struct farm_error *err);
// The boards of actors that infer; again: empty ones in their place.
enum farm_status farm_run_rings_make_boards(struct farm_run_rings *rings, const struct farm_run_plan *plan,
                                            struct farm_error *err);
// At every tick: places parts of long rings ahead of their actors, for a few milliseconds.
void farm_run_rings_tick(struct farm_run_rings *rings);
void farm_run_rings_free(struct farm_run_rings *rings);

// Maps the stats, writable, in the calling process. NULL: *err has the reason.
struct farm_stats *farm_run_rings_open_stats(const struct farm_run_rings *rings, struct farm_error *err);

#endif
