// Reports which environment an actor was calling when a signal kills it or exit() ends it: the actor records each call,
// and a signal handler prints the record and the stack's frames to stderr before the process dies. Runs in an actor
// process, one thread.
#ifndef FARM_ACTOR_CRASH_H
#define FARM_ACTOR_CRASH_H

#include <stdint.h>

enum farm_env_call {
    FARM_CALL_NONE,
    FARM_CALL_LOAD,
    FARM_CALL_CREATE,
    FARM_CALL_RESET,
    FARM_CALL_STEP,
    FARM_CALL_RENDER
};

// The present call. The actor writes it, the handler reads it. name: of the environment.
struct farm_call {
    const char *volatile name;
    volatile uint32_t actor, lane, env, call; // call: enum farm_env_call
};

// Catches SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT on an alternate stack, except signals that are caught already (by
// a sanitizer), and exit(). Returns the process's one record; never NULL.
struct farm_call *farm_crash_watch(void);

#endif
