// The learner's side of the bridge: accepts nodes, authenticates them, and writes their steps into the rings that the
// supervisor made for them, as their actors would; sends back the learner's answers and how far it has consumed. Holds
// each ring's `up` writable and `down` read-only. One thread; a process of its own, or a benchmark's. It can be killed
// at any moment: sessions are the supervisor's, and counters are in the rings.
#ifndef FARM_BRIDGE_HUB_H
#define FARM_BRIDGE_HUB_H

#include "bridge/engine.h"
#include "bridge/key.h"
#include "bridge/stats.h"
#include "bridge/wire.h"

struct farm_hub;

struct farm_hub_config {
    int listener;     // a listening socket, non-blocking; the caller's. -1: none (memory engine)
    int control;      // to the supervisor (control.h)
    int wake;         // eventfd, non-blocking: the learner writes to it what farm_learner_notify says
    const int *bells; // [bell_count] the shards' eventfds
    uint32_t bell_count;
    const struct farm_key *key;          // NULL: in the clear
    const struct farm_wire_offer *offer; // borrowed
    struct farm_bridge_stats *stats;     // may be NULL
    const char *engine;                  // uring, poll, auto
    const struct farm_engine_ops *ops;   // instead of `engine`: the memory engine
    void *ops_context;
    uint64_t spin_ns; // before sleeping
};

enum farm_status farm_hub_make(const struct farm_hub_config *config, struct farm_hub **out, struct farm_error *err);
void farm_hub_free(struct farm_hub *hub); // NULL is allowed; closes connections and rings

// One turn: never blocks. Returns whether there was anything to do.
bool farm_hub_turn(struct farm_hub *hub, uint64_t now_ns);
// ring/wait.h's three parts: says to the learner that this thread (does not) sleep; looks whether a lane can go on or
// anything has arrived; sleeps until an event, at most timeout_ns.
void farm_hub_announce(struct farm_hub *hub, bool asleep);
bool farm_hub_look(const struct farm_hub *hub);
void farm_hub_wait(struct farm_hub *hub, uint64_t timeout_ns);

// Turns and waits until SIGTERM or END; the worker's body. Returns the exit status; *err says why where it is not 0.
int farm_hub_run(const struct farm_hub_config *config, struct farm_error *err);

#endif
