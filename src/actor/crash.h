// What an environment was doing when its actor is killed by a signal: the actor notes which environment it calls, and a
// signal handler writes that down before the signal takes its course, so that the last words of an actor that died of
// an environment name it. Runs in an actor process, one thread. Does not rescue anybody: the process still dies.
#ifndef FARM_ACTOR_CRASH_H
#define FARM_ACTOR_CRASH_H

#include <stdint.h>

enum farm_env_call { FARM_CALL_NONE, FARM_CALL_LOAD, FARM_CALL_CREATE, FARM_CALL_RESET, FARM_CALL_STEP };

// Written by the actor as it goes along; the handler reads it. `name` is the environment's.
struct farm_call {
    const char *volatile name;
    volatile uint32_t actor, lane, env, call; // call: enum farm_env_call
};

// Catches SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT, on a stack of its own, where nobody (a sanitizer) has caught
// them yet. The one object of this kind in the process; never NULL.
struct farm_call *farm_crash_watch(void);

#endif
