// The supervisor's callbacks during a run: a worker starts, writes a line, dies, ends, makes progress; a tick, at which
// the run may end. Owns the run's clock and its counts of restarts. Runs in the supervisor process.
#ifndef FARM_RUN_EVENTS_H
#define FARM_RUN_EVENTS_H

#include "run/evaluation.h"
#include "run/rejected.h"
#include "run/sessions.h"
#include "run/watch.h"

enum { FARM_RUN_CAUSES_MAX = 6 };

struct farm_run_cause {
    char text[FARM_DEATH_CAUSE_BYTES]; // the last one: "of other causes"
    uint64_t deaths;
};

struct farm_run_events {
    // farm_run_make
    struct farm_run_workers *workers;
    struct farm_run_watch *watch;
    struct farm_run_change *change;
    struct farm_run_sessions *sessions;
    struct farm_run_evaluation *evaluation;

    uint64_t start_ns;    // the tick before the first answered step, valid or not; 0: none yet
    uint64_t tick_ns;     // the previous tick; farm_run_execute sets the first
    uint64_t end_ns;      // when the run's end was decided; 0: not yet
    uint64_t moved_ns;    // when steps were last published; farm_run_execute sets the first
    uint64_t published;   // the sum of all lanes' `produced`, then
    char standstill[512]; // why a run that ends by its own limit has failed: it made no progress; "": it did
    struct farm_run_rejected rejected;
    uint64_t learner_restarts, actor_restarts;
    struct farm_run_cause causes[FARM_RUN_CAUSES_MAX]; // of the actors' deaths
    bool core_explained, judged;
    char learner_error[1024];              // the learner's last error; "": none
    int watched[1 + FARM_RUN_BRIDGES_MAX]; // by the supervisor: the admission socket, then the bridges; -1: none
};

// The functions to make the supervisor with. `events` is their context: it must not move.
struct farm_supervisor_config farm_run_events_config(struct farm_run_events *events, bool elastic);

// After the admission socket and the bridges: their messages wake the supervisor.
void farm_run_events_listen(struct farm_run_events *events);

// Before another farm_supervisor_run of the same run: the clock goes on.
void farm_run_events_again(struct farm_run_events *events);

// After farm_supervisor_run: stops the clock. `judge`: neither a signal nor a worker's end has ended it, so it has
// failed if it had no valid step or made no progress.
void farm_run_events_end(struct farm_run_events *events, bool judge);

// Seconds since the first answered step, up to the end of the run; 0 before. Of this session (--resume).
double farm_run_events_wall_s(const struct farm_run_events *events);

// "killed by signal 11 (Segmentation fault): 9; ended with exit status 3: 1", for reports. "": no actor has died.
void farm_run_events_causes(const struct farm_run_events *events, char *text, size_t bytes);

#endif
