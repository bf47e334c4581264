// From a settled recipe to running processes: plans, makes the shared memory, adds the workers to the supervisor, and
// reads the learner's stats during the run. `farm train` and `farm eval` have one run, `farm fps` one for each
// measurement, with a responder or with a network. Runs in the supervisor process. Commands read the parts directly.
#ifndef FARM_RUN_RUN_H
#define FARM_RUN_RUN_H

#include "run/sample.h"

// Parts point to one another: do not move or copy it after farm_run_make.
struct farm_run {
    struct farm_run_caller caller; // the command's, before farm_run_execute
    struct farm_run_plan plan;
    struct farm_run_rings rings;
    struct farm_run_workers workers;
    struct farm_run_watch watch;
    struct farm_run_change change;
    struct farm_run_learners learners;
    struct farm_run_bridges bridges;
    struct farm_run_sessions sessions;
    struct farm_run_requests requests;
    struct farm_run_evaluation evaluation;
    struct farm_run_events events;
    struct farm_run_sampler sampler;
};

// Makes the supervisor (signals are blocked from here on) and the plan. *run is overwritten, and must be freed in any
// case; a zeroed one may be freed too. The command then completes run->workers.learner.
enum farm_status farm_run_make(struct farm_run *run, const struct farm_run_request *request, struct farm_error *err);

// Makes the shared memory and the workers.
enum farm_status farm_run_build(struct farm_run *run, struct farm_error *err);

// Runs until the end. *interrupted: by a signal. FARM_E_DEAD: the run failed, for whatever reason.
enum farm_status farm_run_execute(struct farm_run *run, bool *interrupted, struct farm_error *err);

void farm_run_free(struct farm_run *run); // safe on a zeroed one

#endif
