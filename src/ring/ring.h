// One actor's rings: its `up` and `down` segments with all their lanes. The supervisor creates them and holds the
// descriptors; actor and learner open views, each with the other's segment read-only.
#ifndef FARM_RING_RING_H
#define FARM_RING_RING_H

#include "ring/lane.h"

struct farm_ring {
    struct farm_ring_spec spec;
    struct farm_ring_layout layout;
    struct farm_segment up, down;
    struct farm_up_control *up_control;
    struct farm_down_control *down_control;
    struct farm_lane *lanes; // [spec.lanes], heap
    // On the learner's side, of a remote actor: the eventfd that wakes its bridge, set by the process that opened the
    // ring and closed by it too. -1: an actor of this machine, which sleeps on down.wake.
    int wake_fd;
};

enum farm_ring_side {
    FARM_RING_ACTOR,    // up writable, down read-only
    FARM_RING_LEARNER,  // up read-only, down writable
    FARM_RING_OBSERVER, // both read-only
};

// Supervisor: makes both segments on `node` (-1: anywhere) and a view that may write `down` (generation, stop) only.
enum farm_status farm_ring_create(const struct farm_ring_spec *spec, uint32_t actor, int node, bool huge,
                                  struct farm_ring *ring, struct farm_error *err);

// Any other process: from the two descriptors, which it owns after success. The learner believes nothing of `up` but
// its size, which is sealed: the shape is that of `down`, which no actor can write, so an actor that has scribbled over
// its header cannot keep a learner from coming back. Page tables are filled, but for an actor's: it takes its lanes
// over first and fills them then.
enum farm_status farm_ring_open(int up_fd, int down_fd, enum farm_ring_side side, struct farm_ring *ring,
                                struct farm_error *err);
// So that the busy path takes no faults.
void farm_ring_populate(const struct farm_ring *ring);
void farm_ring_close(struct farm_ring *ring);

// Whether every lane is farm_lane_sound. Where not, *lane (may be NULL) is the first that lies.
bool farm_ring_counters_sound(const struct farm_ring *ring, uint32_t *lane);

// Supervisor, between the death of an actor and the start of the next: puts right what the dead one may have scribbled
// over and the next one relies on, the header and each `produced` (farm_lane_restore). Returns whether anything was
// wrong.
bool farm_ring_restore(struct farm_ring *ring);

// What a ring looks like after a crash. Reads without the peers' consent, so a living ring may look one step off; a
// stopped one may not. Returns the number of findings that break a rule (0: sound) and writes one sentence a finding,
// with lane and step, into text.
int farm_ring_verify(const struct farm_ring *ring, char *text, size_t text_bytes);

#endif
