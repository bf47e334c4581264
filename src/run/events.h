// The supervisor's callbacks during a run: a worker's event, which its kind handles (workers.h); a tick, at which the
// run may end. Owns the run's clock. Runs in the supervisor process.
#ifndef FARM_RUN_EVENTS_H
#define FARM_RUN_EVENTS_H

#include "run/evaluation.h"
#include "run/rejected.h"
#include "run/requests.h"
#include "run/sessions.h"
#include "run/watch.h"

enum { FARM_RUN_WATCHED_MAX = 16 };

struct farm_run_events {
    // farm_run_make
    struct farm_run_workers *workers;
    struct farm_run_watch *watch;
    struct farm_run_change *change;
    struct farm_run_sessions *sessions;
    struct farm_run_requests *requests;
    struct farm_run_evaluation *evaluation;

    uint64_t start_ns;    // the tick before the first answered step, valid or not; 0: none yet
    uint64_t tick_ns;     // the previous tick; farm_run_execute sets the first
    uint64_t end_ns;      // when the run's end was decided; 0: not yet
    uint64_t moved_ns;    // when steps were last published; farm_run_execute sets the first
    uint64_t steps;       // that the learner had taken in, at the last tick
    uint64_t published;   // the sum of all lanes' `produced`, when it had taken in none since the tick before
    char standstill[512]; // why a run that ends by its own limit has failed: it made no progress; "": it did
    struct farm_run_rejected rejected;
    bool core_explained, judged;
    int watched[FARM_RUN_WATCHED_MAX]; // descriptors of workers; -1: none
    const struct farm_run_worker *watcher[FARM_RUN_WATCHED_MAX];
};

// The functions to make the supervisor with. `events` is their context: it must not move.
struct farm_supervisor_config farm_run_events_config(struct farm_run_events *events);

// After all kinds are registered: their descriptors wake the supervisor.
void farm_run_events_listen(struct farm_run_events *events);

// Before another farm_supervisor_run of the same run: the clock goes on.
void farm_run_events_again(struct farm_run_events *events);

// After farm_supervisor_run: stops the clock. `judge`: neither a signal nor a worker's end has ended it, so it has
// failed if it had no valid step or made no progress.
void farm_run_events_end(struct farm_run_events *events, bool judge);

// Seconds since the first answered step, up to the end of the run; 0 before. Of this session (--resume).
double farm_run_events_wall_s(const struct farm_run_events *events);

#endif
