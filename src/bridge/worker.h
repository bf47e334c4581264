// Shared by the loops of both bridge workers (farm_hub_run, farm_node_run): their confinement,
// their end, and the time to sleep.
#ifndef FARM_BRIDGE_WORKER_H
#define FARM_BRIDGE_WORKER_H

#include <stdbool.h>
#include <stdint.h>

// Once all is open: base/confine.h, or a warning of what this kernel lacks. Sanitizers need files, so their builds do
// not.
void farm_worker_confine(bool dials);

// Ends the process by SIGTERM as if uncaught, so that a supervisor that did not send it starts another worker.
void farm_worker_die_of_sigterm(void);

// After a turn: whether to announce a sleep, spin_ns after the last busy turn; else turn again. *idle_ns: 0 at first.
bool farm_worker_may_sleep(uint64_t *idle_ns, bool busy, uint64_t now_ns, uint64_t spin_ns);

#endif
