// How a worker process is described to the supervisor (supervisor.h). Plain data.
#ifndef FARM_SUPERVISOR_WORKER_H
#define FARM_SUPERVISOR_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bitmap.h"
#include "base/status.h"

enum { FARM_WORKER_NAME_MAX = 32, FARM_WORKER_LINE_MAX = 1024, FARM_WORKER_KEPT = 3, FARM_WORKER_KEPT_MAX = 7 };

// Pointers are borrowed and must outlive the supervisor.
struct farm_worker_spec {
    char name[FARM_WORKER_NAME_MAX]; // "actor 3"
    // Either the body, run in the forked child: returns the exit status; *err is logged if that is not 0 ...
    int (*body)(void *context, struct farm_error *err);
    void *context;
    // ... or a program: argv[0] is its path, NULL-terminated; environment NULL: the supervisor's.
    char *const *argv;
    char *const *environment;

    const int *keep; // descriptors that the worker inherits, beside 0, 1 and 2, under the same numbers
    size_t keep_count;
    // A worker that needs nothing of this process's memory as it is now: the forker forks it (forker.h), if there is
    // one. It gets a copy of context and, under the number FARM_WORKER_KEPT + i, keep[i]: at most FARM_WORKER_KEPT_MAX.
    bool apart;
    size_t context_bytes;
    const struct farm_bitmap *cpus; // NULL: not pinned
    int memory_node;                // node that its heap prefers; -1: none
    bool takes_turns;               // more of its kind than CPUs: SCHED_BATCH, so that waking it interrupts no other
    bool confined;                  // by farm_confine_environment, or it does not start
    bool may_end;                   // exit status 0 is an end, not a death (a learner that reached its target)
    bool errors_are_final;          // an exit status other than 0 ends the run: only a killed worker is started again
    // A body's return value that also ends the run; 0: no such value. A program kills itself with SIGRTMAX instead:
    // code that the worker runs cannot end so by exit() or a crash, whatever status it chooses.
    int final_status;
    uint64_t restarts_max; // more end the run too; 0: no limit
    // An error that would end the run ends this worker alone: on_loss. A refused start is tried short_lives_max times.
    bool expendable;
    // Enlisted for one life, which the run does not wait for: exit status 0 ends it (on_end), all else is an error.
    bool once;
    bool deaths_are_final; // every death ends the run, and no worker is started again
    int stop_phase;        // phases are stopped one after another, 0 first
};

#endif
