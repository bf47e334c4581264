// The bare loops of `farm fps`: child processes of the responder, each on one actor's CPUs, that step environments with
// no farm around them. src/actor/bare.h steps environments in C, python/actorfarm/bare.py those in Python. Protocol
// over two pipes: for each f64 (seconds) the loop runs that long and writes 24 bytes: u64 transitions, u64 nanoseconds,
// u64 nanoseconds of CPU time. 24 bytes of zeros: the environments are made. A closed pipe ends the process.
#ifndef FARM_TOOLS_FPS_BARE_H
#define FARM_TOOLS_FPS_BARE_H

#include <signal.h>

#include "run/workers.h"
#include "supervisor/death.h"

struct farm_fps_bare {
    pid_t pid;
    int command, answer;            // descriptors; -1: none
    double share;                   // the part of its steps by agents that learn
    double start_s;                 // limit of making its environments and of their first resets
    double hang_s;                  // a turn that takes so much longer than told has failed; 0: no limit
    struct farm_death_watch deaths; // since its start
};

// Starts the loop beside actor number `actor`, with a lane's environments, before the caller has threads.
enum farm_status farm_fps_bare_start(const struct farm_run_workers *workers, uint32_t actor, struct farm_fps_bare *bare,
                                     struct farm_error *err);

// Waits until its environments are made. FARM_E_DEAD: it ended (*err says how), or *stop was set.
enum farm_status farm_fps_bare_await(const struct farm_fps_bare *bare, const volatile sig_atomic_t *stop,
                                     struct farm_error *err);

struct farm_fps_bare_rate {
    double per_s;  // transitions of all loops
    double cpu_ns; // a transition's
};

// Runs the loops bares[0..count) at once for `seconds`. Errors as above.
enum farm_status farm_fps_bare_turn(const struct farm_fps_bare *bares, uint32_t count, double seconds,
                                    const volatile sig_atomic_t *stop, struct farm_fps_bare_rate *rate,
                                    struct farm_error *err);

void farm_fps_bare_end(struct farm_fps_bare *bare); // safe on a zeroed one

#endif
