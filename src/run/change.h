// Actors that come and go while a run goes on: SIGUSR1 adds one, SIGUSR2 removes one; one change at a time. An actor
// that comes gets a place, CPUs and rings; the learner lets its rings in (learner/admission.h); then it is started. Of
// an actor that goes the learner lets go first; then it is ended, and its memory and CPUs are freed. A change that is
// impossible is reported and has no effect; an actor that came and cannot be kept alive leaves again. Runs in the
// supervisor process.
#ifndef FARM_RUN_CHANGE_H
#define FARM_RUN_CHANGE_H

#include "run/workers.h"

struct farm_run_change {
    struct farm_run_workers *workers; // farm_run_make
    int admission; // socket to the learner, whose end is learner.admission; 0: actors do not join or leave
    enum {
        FARM_RUN_CHANGE_IDLE,
        FARM_RUN_CHANGE_JOINING,
        FARM_RUN_CHANGE_LEAVING,
        FARM_RUN_CHANGE_ENDING
    } state; // ENDS: the learner has let go of it
    uint32_t actor;
    struct farm_worker_spec spec; // of one that comes
    int wanted;                   // more (or, below 0, fewer) than that
    struct farm_bitmap claimed;   // CPUs of this farm
    uint64_t bad_values;          // counted by actors that are gone
    char failure[1024];           // why the run cannot go on; "": it can
    // Rings of remote actors (sessions.h). `next` begins the next change of theirs, if one is due, by bring or take.
    // What comes of it is said by came (why NULL: the learner has it; else the place is vacant again) and went (why
    // not NULL: it has not; it stays).
    struct farm_run_change_remote {
        void *context;
        bool (*next)(void *context); // NULL: there are none
        void (*joined)(void *context, uint32_t a, const struct farm_error *why);
        void (*left)(void *context, uint32_t a, const struct farm_error *why);
    } remote;
};

// Makes the admission sockets, if the plan is elastic. Before the workers are described.
enum farm_status farm_run_change_make(struct farm_run_change *change, struct farm_error *err);
void farm_run_change_free(struct farm_run_change *change); // safe on a zeroed one

// From the supervisor's callbacks: a signal; a tick, or the learner has answered; a dismissed actor has ended; an
// expendable one cannot be kept alive; the learner is about to start again.
void farm_run_change_signal(struct farm_run_change *change, int number);
void farm_run_change_advance(struct farm_run_change *change);
void farm_run_change_worker_ended(struct farm_run_change *change, size_t worker);
void farm_run_change_actor_lost(struct farm_run_change *change, size_t worker, const char *why);
void farm_run_change_before_learner(struct farm_run_change *change);

// From `next`: place a, which is marked as remote, gets rings and the learner lets them in; or lets them go.
void farm_run_change_add_remote(struct farm_run_change *change, uint32_t a);
void farm_run_change_remove_remote(struct farm_run_change *change, uint32_t a);

#endif
