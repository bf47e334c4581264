// What the loops of both bridge workers (farm_hub_run, farm_node_run) share: SIGTERM, and when to sleep. One a process.
#ifndef FARM_BRIDGE_WORKER_H
#define FARM_BRIDGE_WORKER_H

#include <stdbool.h>
#include <stdint.h>

// From here on SIGTERM is noted; SIGINT and SIGPIPE are ignored.
void farm_worker_catch_sigterm(void);
bool farm_worker_terminated(void);
// Ends the process by SIGTERM as if it had not been caught: the supervisor, if it did not send it, starts another
// worker.
void farm_worker_die_of_sigterm(void);

// After a turn: whether the worker may announce its sleep. Else it turns again, for spin_ns after the last busy turn.
// *idle_ns is 0 at first.
bool farm_worker_may_sleep(uint64_t *idle_ns, bool busy, uint64_t now_ns, uint64_t spin_ns);

#endif
