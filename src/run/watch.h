// Misbehaving actors: an actor that hangs or is stopped is reported once; an actor that publishes impossible counters
// is killed. supervisor/watchdog.h judges what this file reads. Runs in the supervisor process.
#ifndef FARM_RUN_WATCH_H
#define FARM_RUN_WATCH_H

#include "run/workers.h"
#include "supervisor/watchdog.h"

struct farm_run_watch {
    const struct farm_run_workers *workers; // farm_run_make
    struct farm_watchdog watchdog;
    struct farm_watch *actors; // [places]
    uint64_t hung;             // hangs reported so far
};

enum farm_status farm_run_watch_make(struct farm_run_watch *watch, struct farm_error *err);
void farm_run_watch_free(struct farm_run_watch *watch); // safe on a zeroed one

void farm_run_watch_tick(struct farm_run_watch *watch, uint64_t now_ns); // at every tick

#endif
