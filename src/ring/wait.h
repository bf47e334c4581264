// Waiting (a bounded spin, then sleep) and waking a side that sleeps: the only system calls of src/ring. While both
// sides are busy there is no system call.
//
// An actor sleeps on one futex word (down.wake) for all its lanes, an inference thread on its eventfd for all its
// actors.
//   Publisher: store the counter, full fence, load the peer's `asleep`.   Sleeper: store `asleep`, full fence, load the
//   counter.  The fences forbid that both loads return old values (Dekker's pattern), so no wake-up is lost.
// A bridge sleeps in its engine, for many rings and its sockets: it announces its sleep on each ring, then looks once
// more. In place of an actor it is woken by an eventfd (farm_ring.wake_fd).
#ifndef FARM_RING_WAIT_H
#define FARM_RING_WAIT_H

#include "ring/ring.h"

enum farm_wait_mode { FARM_WAIT_ADAPTIVE, FARM_WAIT_SPIN, FARM_WAIT_SLEEP };

// How long to spin before sleeping: UINT64_MAX, 0, or (ADAPTIVE) about a wake-up's cost, 0 if threads outnumber cores.
uint64_t farm_wait_spin_ns(enum farm_wait_mode mode, bool oversubscribed);

// ---- actor ----

// Whether any lane can proceed: farm_actor_wait with lane NULL would return at once, unless down.stop is set.
bool farm_actor_ready(struct farm_ring *ring);

// Announces that this side sleeps, or no longer does. Before it sleeps, the caller looks once more.
void farm_actor_announce(struct farm_ring *ring, bool asleep);

// Waits until `lane` can proceed: its published steps are answered and the next slot is free. With lane NULL, waits for
// any lane and sets *ready (may be NULL) to its index, round robin from *ready + 1. Returns false if down.stop is set
// or timeout_ns has passed.
bool farm_actor_wait(struct farm_ring *ring, struct farm_lane *lane, uint64_t spin_ns, uint64_t timeout_ns,
                     uint32_t *ready);

// Called after publishing: writes the inference thread's eventfd if that thread sleeps.
void farm_actor_notify(struct farm_ring *ring, int learner_eventfd);

// ---- inference thread ----

// The rings of one inference thread, and the doorbells that it has seen.
struct farm_doorbells {
    struct farm_ring **rings; // borrowed
    uint64_t *seen;           // [count]
    uint32_t count;
    int eventfd;
    const uint64_t *release; // a word whose change ends a wait; its writer writes the eventfd too; NULL: none
    uint64_t release_seen;
    const uint64_t *call; // a word that ends a wait while it is not 0; NULL: none
};

enum farm_status farm_doorbells_make(struct farm_doorbells *bells, struct farm_ring **rings, uint32_t count,
                                     int eventfd, struct farm_error *err);
void farm_doorbells_free(struct farm_doorbells *bells);

// Writes the indexes of rings that rang since the last call into out[count]; returns how many. One acquire load a ring.
uint32_t farm_doorbells_poll(struct farm_doorbells *bells, uint32_t *out);

// Reads the eventfd empty and returns its count; 0: it was empty, or a signal came. Does not block, even if an actor
// has cleared O_NONBLOCK or has read the count first (before Linux 5.8 it may then).
uint64_t farm_bell_empty(int eventfd);

// Parts of farm_doorbells_wait: whether a bell has rung, `release` has changed or `call` is set; announcing sleep, or
// its end, to the actors (look once more before sleeping).
bool farm_doorbells_look(const struct farm_doorbells *bells);
void farm_doorbells_announce(const struct farm_doorbells *bells, bool asleep);

// Spins spin_ns, then sleeps, until farm_doorbells_look (true) or timeout_ns has passed (false). Consumes no bell.
bool farm_doorbells_wait(struct farm_doorbells *bells, uint64_t spin_ns, uint64_t timeout_ns);

// Called after answers or releases: wakes the ring's actor, or the bridge in its place, if it sleeps.
void farm_learner_notify(struct farm_ring *ring);

#endif
