// The command (or test) that runs a farm, as the run's parts see it: a progress line that must be cleared before
// anything is written to stderr, and a function that is called at every tick. Runs in the supervisor process.
#ifndef FARM_RUN_CALLER_H
#define FARM_RUN_CALLER_H

#include "supervisor/supervisor.h"

// Both functions may be NULL.
struct farm_run_caller {
    void *context;
    void (*clear_line)(void *context);
    enum farm_supervisor_turn (*on_tick)(void *context, uint64_t now_ns);
};

// A warning, or a fact, in place of the progress line. caller may be NULL.
void farm_run_warn(const struct farm_run_caller *caller, const char *format, ...) __attribute__((format(printf, 2, 3)));
void farm_run_note(const struct farm_run_caller *caller, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
