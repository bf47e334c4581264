// The remote nodes of a run: their places and rings, and how long they have been away. Exchanges messages with the
// bridges (bridge/control.h): admits nodes (change.h attaches their rings one after another), writes the generations of
// their actors, and removes the rings of a node that leaves, has been away for node_grace_s, or was restarted. A
// bridge that restarts receives all of it again. Messages wait while a socket is full: each object records whether its
// bridge has received it. Runs in the supervisor process.
#ifndef FARM_RUN_SESSIONS_H
#define FARM_RUN_SESSIONS_H

#include "run/session.h"

// After bridges, workers and the admission socket: registers with change.h and writes RUN/bridge.addr. No effect if the
// run does not listen.
enum farm_status farm_run_sessions_make(struct farm_run_sessions *sessions, struct farm_error *err);
void farm_run_sessions_free(struct farm_run_sessions *sessions); // safe on a zeroed one; removes the files

// From the supervisor's callbacks: bridge b has sent messages; a tick; bridge b is about to start or restart; all
// bridges are about to be stopped.
void farm_run_sessions_receive(struct farm_run_sessions *sessions, uint32_t b);
void farm_run_sessions_tick(struct farm_run_sessions *sessions, uint64_t now_ns);
void farm_run_sessions_before_bridge(struct farm_run_sessions *sessions, uint32_t b);
void farm_run_sessions_end(struct farm_run_sessions *sessions);
// Bridge b cannot be kept alive: the rings of its nodes leave. False: no actor is left, and none can join.
bool farm_run_sessions_lose_bridge(struct farm_run_sessions *sessions, uint32_t b, const char *why);

// Grows while bridge b moves steps or accepts connections.
uint64_t farm_run_sessions_progress(const struct farm_run_sessions *sessions, uint32_t b);

#endif
