// The remote nodes of a run: their places and rings, and how long they have been away. Exchanges messages with the
// bridges (bridge/control.h): admits nodes (change.h attaches their rings one after another), writes the generations of
// their actors, and removes the rings of a node that leaves, has been away for node_grace_s, or was restarted. A
// bridge that restarts receives all of it again. Messages wait while a socket is full: each object records whether its
// bridge has received it. Runs in the supervisor process.
#ifndef FARM_RUN_SESSIONS_H
#define FARM_RUN_SESSIONS_H

#include "run/session.h"

// After bridges, workers and the admission socket: registers with change.h, adds the bridges to the supervisor and
// writes RUN/bridge.addr. No effect if the run does not listen.
enum farm_status farm_run_sessions_make(struct farm_run_sessions *sessions, struct farm_error *err);
void farm_run_sessions_free(struct farm_run_sessions *sessions); // safe on a zeroed one; removes the files

// The events of bridge b. When it cannot be kept alive, the rings of its nodes leave; if then no actor is left and none
// can join, the run ends.
extern const struct farm_run_worker_ops farm_run_sessions_ops;

// From the supervisor's callbacks: a tick; all bridges are about to be stopped.
void farm_run_sessions_tick(struct farm_run_sessions *sessions, uint64_t now_ns);
void farm_run_sessions_end(struct farm_run_sessions *sessions);

#endif
