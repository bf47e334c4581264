// One actor's two segments, `up` and `down`, with all their lanes. The supervisor creates them and keeps the
// descriptors; actor and learner open views, in which the other side's segment is read-only.
#ifndef FARM_RING_RING_H
#define FARM_RING_RING_H

#include "ring/lane.h"

struct farm_ring {
    struct farm_ring_spec spec;
    struct farm_ring_layout layout;
    struct farm_segment up, down;
    struct farm_up_control *up_control;
    struct farm_down_control *down_control;
    struct farm_lane *lanes;        // [spec.lanes], heap
    uint8_t placed[FARM_LANES_MAX]; // creator: parts of each lane's arrays (farm_ring_place_next)
    // Learner's side, remote actor: the eventfd that wakes its bridge; owned by the process that opened the ring. -1: a
    // local actor, which sleeps on down.wake.
    int wake_fd;
};

enum farm_ring_side {
    FARM_RING_ACTOR,    // up writable, down read-only
    FARM_RING_LEARNER,  // up read-only, down writable
    FARM_RING_OBSERVER, // both read-only
};

// Supervisor: creates both segments on `node` (-1: anywhere), and a view of them.
enum farm_status farm_ring_create(const struct farm_ring_spec *spec, uint32_t actor, int node, bool huge,
                                  struct farm_ring *ring, struct farm_error *err);

// A ring in memory of the calling process, which is both sides; without descriptors. Close *ring in any case.
enum farm_status farm_ring_create_private(const struct farm_ring_spec *spec, uint32_t actor, struct farm_ring *ring,
                                          struct farm_error *err);

// Supervisor, now and then: places a part of a long ring (segment.h: `later`) that an actor will write next, 1/128 of a
// lane, so that two parts ahead of `produced` are placed. False: no part is due, or *err has the reason.
bool farm_ring_place_next(struct farm_ring *ring, struct farm_error *err);

// Other processes: opens a view from the two descriptors, which the ring owns after success. The learner uses only the
// sealed size of `up` and takes the shape from `down`, which no actor can write: an actor that overwrites its header
// cannot stop a learner from restarting. Fills the page tables, except an actor's, which first takes over its lanes.
enum farm_status farm_ring_open(int up_fd, int down_fd, enum farm_ring_side side, struct farm_ring *ring,
                                struct farm_error *err);
// Opens another view of a ring that this process created, by duplicates of its descriptors.
enum farm_status farm_ring_view(const struct farm_ring *made, enum farm_ring_side side, struct farm_ring *view,
                                struct farm_error *err);
// Fills the page tables, so that steps cause no page faults; of long segments the first pass over them does.
void farm_ring_populate(const struct farm_ring *ring);
void farm_ring_close(struct farm_ring *ring);

// Whether every lane is farm_lane_sound. If not, *lane (may be NULL) is the first that is not.
bool farm_ring_counters_sound(const struct farm_ring *ring, uint32_t *lane);

// Supervisor, between an actor's death and its successor's start: repairs what the dead one may have overwritten, the
// header and each `produced` (farm_lane_restore), and takes back its announcement `using`. Returns whether anything was
// wrong.
bool farm_ring_restore(struct farm_ring *ring);

#endif
