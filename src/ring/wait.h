// Waiting: a bounded spin, then sleep; and waking whoever said that it sleeps. The only system calls of src/ring, and
// none of them is made while both sides are busy.
//
//   An actor sleeps on one futex word (down.wake) for all its lanes; an inference thread sleeps on its eventfd for all
//   its actors. Publisher: store the counter, full fence, load the peer's `asleep`.   Sleeper: store `asleep`, full
//   fence, load the counter. The two fences forbid that both loads see the old values (store buffering, Dekker's
//   pattern), so no wake-up is lost.
//   A bridge sleeps for many rings at once, and on its sockets too: it announces its sleep for each of them, looks once
//   more, and sleeps in its engine. In place of an actor it is woken by an eventfd (farm_ring.wake_fd).
#ifndef FARM_RING_WAIT_H
#define FARM_RING_WAIT_H

#include "ring/ring.h"

enum farm_wait_mode { FARM_WAIT_ADAPTIVE, FARM_WAIT_SPIN, FARM_WAIT_SLEEP };

// How long to spin before sleeping: forever, not at all, or the time that fits the plan (about nothing where runnable
// threads exceed cores).
uint64_t farm_wait_spin_ns(enum farm_wait_mode mode, bool oversubscribed);

// ---- actor ----

// Whether any lane of the ring can go on: farm_actor_wait with lane NULL would return at once, unless down.stop is set.
bool farm_actor_ready(struct farm_ring *ring);

// Says to the learner that this side of the ring sleeps from here on, or no longer. Between announcing sleep and
// sleeping the caller looks once more.
void farm_actor_announce(struct farm_ring *ring, bool asleep);

// Waits until `lane` can go on: every published step answered and slot `next` writable. With lane NULL: until any lane
// of the ring can go on; *ready (may be NULL) is its index. Order of service among several: round robin from *ready
// + 1. Returns false when down.stop is set or timeout_ns has passed.
bool farm_actor_wait(struct farm_ring *ring, struct farm_lane *lane, uint64_t spin_ns, uint64_t timeout_ns,
                     uint32_t *ready);

// After one or more publishes: wakes the inference thread where it says it sleeps (a write to its eventfd).
void farm_actor_notify(struct farm_ring *ring, int learner_eventfd);

// ---- inference thread ----

// The actors of one inference thread, and what it has seen of their doorbells.
struct farm_doorbells {
    struct farm_ring **rings; // borrowed
    uint64_t *seen;           // [count]
    uint32_t count;
    int eventfd;
    const uint64_t *release; // one more word whose change ends a wait: its writer writes to the eventfd too; NULL: none
    uint64_t release_seen;
    const uint64_t *call; // likewise a word that ends a wait as long as it is not 0; NULL: none
};

enum farm_status farm_doorbells_make(struct farm_doorbells *bells, struct farm_ring **rings, uint32_t count,
                                     int eventfd, struct farm_error *err);
void farm_doorbells_free(struct farm_doorbells *bells);

// Writes the indexes of rings whose bell has rung since the last call into out[count]; returns how many. One acquire
// load a ring.
uint32_t farm_doorbells_poll(struct farm_doorbells *bells, uint32_t *out);

// The parts of farm_doorbells_wait. Whether a bell has rung, `release` has changed or `call` is set; says to the actors
// that this thread sleeps from here on, or no longer (it looks once more before it sleeps); sleeps until the eventfd is
// written to, and reads it empty.
bool farm_doorbells_look(const struct farm_doorbells *bells);
void farm_doorbells_announce(const struct farm_doorbells *bells, bool asleep);
void farm_doorbells_sleep(const struct farm_doorbells *bells, uint64_t timeout_ns);

// Waits until farm_doorbells_look (true), or timeout_ns has passed (false); spins spin_ns first. Does not consume the
// ring: poll does.
bool farm_doorbells_wait(struct farm_doorbells *bells, uint64_t spin_ns, uint64_t timeout_ns);

// After one or more answers or releases on lanes of this ring: wakes its actor, or the bridge in its place, where it
// says that it sleeps.
void farm_learner_notify(struct farm_ring *ring);

#endif
