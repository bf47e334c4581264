// Actors during a run. The events of each; and those that join and leave, one change at a time, as users request
// (requests.h). A joining actor gets a place, CPUs and rings; the learner attaches the rings
// (intake/admission.h); then the actor is started. A leaving actor's rings are detached first; then it is ended, and
// its memory and CPUs are freed. An impossible change is reported and has no effect. An actor that joined later and
// cannot be kept alive leaves again. Runs in the supervisor process.
#ifndef FARM_RUN_CHANGE_H
#define FARM_RUN_CHANGE_H

#include "intake/admission.h"
#include "run/workers.h"

enum { FARM_RUN_CAUSES_MAX = 6 };

struct farm_run_cause {
    char text[FARM_DEATH_CAUSE_BYTES]; // the last one: "of other causes"
    uint64_t deaths;
};

struct farm_run_change {
    struct farm_run_workers *workers;                  // farm_run_make
    uint64_t restarts;                                 // counts actors
    struct farm_run_cause causes[FARM_RUN_CAUSES_MAX]; // why they died
    int admission; // socket to the learner, whose end is learner.rings.admission, or to a consumer; -1: none
    enum {
        FARM_RUN_CHANGE_IDLE,
        FARM_RUN_CHANGE_JOINING,
        FARM_RUN_CHANGE_LEAVING,
        FARM_RUN_CHANGE_ENDING
    } state;                      // ENDING: its rings are detached
    uint32_t actor, lost;         // lost: actors that cannot be kept alive
    struct farm_worker_spec spec; // for a joining actor
    int wanted;                   // actors still to add; below 0: to remove
    struct farm_bitmap claimed;   // CPUs of this farm
    uint64_t abandoned;           // episodes, by actors that have left (up_control.abandoned)
    uint64_t answered;            // steps of environments, of actors that have left
    char failure[1024];           // why the run must end; "": it goes on
    // Rings of remote actors (sessions.h). `next` begins their next change, if one is due, by add_remote or
    // remove_remote. `joined` reports the result of the former (why NULL: attached; else the place is vacant again),
    // `left` of the latter (why not NULL: the ring stays).
    struct farm_run_change_remote {
        void *context;
        bool (*next)(void *context); // NULL: no remote actors
        void (*joined)(void *context, uint32_t a, const struct farm_error *why);
        void (*left)(void *context, uint32_t a, const struct farm_error *why);
    } remote;
};

// Registers the actors, and makes the admission sockets if the plan is elastic. Called before the workers are
// described.
enum farm_status farm_run_change_make(struct farm_run_change *change, struct farm_error *err);
void farm_run_change_free(struct farm_run_change *change); // safe on a zeroed one

// Requests more actors, or (below 0) fewer, besides those already requested.
void farm_run_change_request(struct farm_run_change *change, int add);
// The request by which the rings of actor a join. The descriptors stay the run's.
struct farm_admission_request farm_run_change_join(const struct farm_run_change *change, uint32_t a);

// From the supervisor's callbacks: a tick, or a reply of the learner; the learner is about to restart.
void farm_run_change_advance(struct farm_run_change *change);
void farm_run_change_before_learner(struct farm_run_change *change);

// "killed by signal 11 (Segmentation fault): 9; ended with exit status 3: 1", for reports. "": no actor has died.
void farm_run_change_causes(const struct farm_run_change *change, char *text, size_t bytes);

// Answered steps of all environments of a ring; 0: a vacant place.
uint64_t farm_run_change_answered(const struct farm_ring *ring);

// From `next`: makes rings for place a, which is marked as remote, and attaches them; or detaches them.
void farm_run_change_add_remote(struct farm_run_change *change, uint32_t a);
void farm_run_change_remove_remote(struct farm_run_change *change, uint32_t a);

#endif
