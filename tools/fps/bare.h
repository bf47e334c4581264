// The bare loops of `farm fps`: processes that step an environment with nothing of the farm around them when they are
// told to, and say how far they came. Children of the stand-in learner, each on one actor's CPUs: C environments by
// src/actor/bare.h, Python ones by python/actorfarm/bare.py, which speaks the same protocol: for each 8 bytes (f64
// seconds) that come in, 24 go out (u64 transitions, u64 nanoseconds, u64 nanoseconds of CPU time); 24 bytes of zeros
// say at the start that the environments are made. A closed pipe ends the process.
#ifndef FARM_TOOLS_FPS_BARE_H
#define FARM_TOOLS_FPS_BARE_H

#include <signal.h>

#include "run/workers.h"

struct farm_fps_bare {
    pid_t pid;
    int command, answer; // descriptors; -1: none
};

// Starts the loop that runs where actor number `actor` of the run does, with as many environments as a lane of it has.
// Before the caller has threads.
enum farm_status farm_fps_bare_start(const struct farm_run_workers *workers, uint32_t actor, struct farm_fps_bare *bare,
                                     struct farm_error *err);

// Awaits that its environments are made. FARM_E_DEAD where it ends instead (it said why on stderr), or *stop was set.
enum farm_status farm_fps_bare_await(const struct farm_fps_bare *bare, const volatile sig_atomic_t *stop,
                                     struct farm_error *err);

// What loops did in a turn.
struct farm_fps_bare_rate {
    double per_s;  // transitions, of all together
    double cpu_ns; // a transition
};

// Lets the loops bares[0..count) run at once, for so long. Errors as above.
enum farm_status farm_fps_bare_turn(const struct farm_fps_bare *bares, uint32_t count, double seconds,
                                    const volatile sig_atomic_t *stop, struct farm_fps_bare_rate *rate,
                                    struct farm_error *err);

void farm_fps_bare_end(struct farm_fps_bare *bare); // safe on one that was not started, all zeros

#endif
