// The watchdog judges whether an actor with work makes progress. It reads three things of an actor: its
// heartbeat (environments made, reset and stepped so far), which of its lanes could go on, and whether the system has
// stopped its process. An environment that never returns keeps the heartbeat still while a lane could go on; an actor
// that waits for answers or for room has no such lane and is not reported. Runs in the supervisor. A judgement is
// arithmetic on observations: farm_watch_lanes (acquire loads of the counters, no stores) and farm_watch_stopped (one
// file of /proc). It kills no process; the caller decides.
#ifndef FARM_SUPERVISOR_WATCHDOG_H
#define FARM_SUPERVISOR_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ring/ring.h"

// When to look, and how much time a look covers.
struct farm_watchdog {
    uint64_t limit_ns;  // without progress; 0: the watchdog is off
    uint64_t period_ns; // between looks
    uint64_t looked_ns; // 0: not yet
};

// limit_s <= 0: off. The period is a sixteenth of the limit, between 10 ms and 1 s.
struct farm_watchdog farm_watchdog_make(double limit_s);

// Nanoseconds that the look now due covers; 0: no look is due. Never more than two periods: a supervisor that was
// itself stopped for a while has not seen what the actors did meanwhile.
uint64_t farm_watchdog_due(struct farm_watchdog *watchdog, uint64_t now_ns);

enum farm_watch_state {
    FARM_WATCH_WELL,
    FARM_WATCH_STOPPED, // its process has been stopped (SIGSTOP, a debugger) for limit_ns with work waiting
    FARM_WATCH_HUNG,    // it ran for limit_ns with work waiting and finished no step
};

// Observations of one life of one actor; zero at its start.
struct farm_watch {
    enum farm_watch_state state;
    bool seen, stepped; // looked at before; a lane's step was published in this life
    uint64_t published, heartbeat, lanes;
    uint64_t quiet_ns, stopped_ns; // since the heartbeat moved: time it ran, and time it stood stopped, with work
};

struct farm_watch_look {
    uint64_t passed_ns; // farm_watchdog_due
    uint64_t published; // steps of all lanes together
    uint64_t heartbeat;
    uint64_t lanes; // farm_watch_lanes
    bool stopped;   // not needed if farm_watch_still is false
};

// Bit l: lane l could go on, i.e. everything published is answered and there is room for the next step. The lane whose
// step is being computed is among them. L <= FARM_LANES_MAX = 64.
uint64_t farm_watch_lanes(const struct farm_ring *ring);

// Whether nothing has moved since the look before although there is work, so that it matters whether it is stopped.
bool farm_watch_still(const struct farm_watch *watch, uint64_t heartbeat, uint64_t lanes);

// Takes one look into account; limit_ns may depend on watch->stepped; returns the state: HUNG once, until the heartbeat
// moves again or the work is gone.
enum farm_watch_state farm_watch_judge(struct farm_watch *watch, const struct farm_watch_look *look, uint64_t limit_ns);

// Whether the process is stopped by a signal or a debugger. False if /proc does not answer.
bool farm_watch_stopped(pid_t pid);

#endif
