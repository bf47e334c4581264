// The command (or test) that runs a farm: how to clear its progress line before stderr is written, and its function for
// every tick. Runs in the supervisor process.
#ifndef FARM_RUN_CALLER_H
#define FARM_RUN_CALLER_H

#include "supervisor/supervisor.h"

// All functions may be NULL.
struct farm_run_caller {
    void *context;
    void (*clear_line)(void *context);
    enum farm_supervisor_turn (*on_tick)(void *context, uint64_t now_ns);
    void (*on_update)(void *context); // a deterministic run stands still after an update whose metrics are due
};

// Clears the progress line and logs a warning or a note. caller may be NULL.
void farm_run_warn(const struct farm_run_caller *caller, const char *format, ...) __attribute__((format(printf, 2, 3)));
void farm_run_note(const struct farm_run_caller *caller, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
