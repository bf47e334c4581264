// The learner's side of the bridge: accepts nodes, authenticates them, writes their steps into the rings that the
// supervisor made for them, as actors would, and sends the learner's answers and `consumed` back. Holds each ring's
// `up` writable and `down` read-only. One thread, in a worker process or a benchmark. May be killed at any moment: the
// supervisor owns the sessions, and the counters are in the rings.
#ifndef FARM_BRIDGE_HUB_H
#define FARM_BRIDGE_HUB_H

#include "bridge/hub_config.h"

struct farm_hub;

enum farm_status farm_hub_make(const struct farm_hub_config *config, struct farm_hub **out, struct farm_error *err);
void farm_hub_free(struct farm_hub *hub); // NULL is allowed; closes connections and rings

// One turn, without blocking. Returns whether there was work.
bool farm_hub_turn(struct farm_hub *hub, uint64_t now_ns);
// Waits for an event or timeout_ns. farm_hub_sleep sets `asleep` in the rings (ring/wait.h), so answers end it too.
void farm_hub_wait(struct farm_hub *hub, uint64_t timeout_ns);
void farm_hub_sleep(struct farm_hub *hub, uint64_t timeout_ns);

// The worker's body: turns and waits until SIGTERM or END. Returns the exit status; *err if it is not 0.
int farm_hub_run(const struct farm_hub_config *config, struct farm_error *err);

#endif
