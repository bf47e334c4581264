// The learner's process: its spec, its entry, its restarts, and the sockets by which it talks to the supervisor. A
// player (player.h), a responder or a node's bridge (plan.h) takes its place. One such process is started, but only
// this file knows that. Runs in the supervisor process.
#ifndef FARM_RUN_LEARNERS_H
#define FARM_RUN_LEARNERS_H

#include "run/change.h"

struct farm_run_learners {
    struct farm_run_workers *workers; // farm_run_make
    struct farm_run_change *change;   // farm_run_make
    size_t first;                     // number of the first one
    uint32_t count;
    uint64_t restarts;
    char error[1024]; // the last error of any; "": none

    // The rest is private.
    struct farm_run_worker_ops ops;
    struct farm_bitmap cpus;
    int *keep;     // descriptors
    size_t lent;   // place in `keep` of what a responder lends
    int sample[2]; // a deterministic run's socket between supervisor and learner (learner/config.h); -1: none
};

// Registers the learner and adds it to the supervisor. Called after rings, bells, stats, the actors and the admission
// socket.
enum farm_status farm_run_learners_make(struct farm_run_learners *learners, struct farm_error *err);
void farm_run_learners_free(struct farm_run_learners *learners);

// Once more, after all workers have ended and with new rings.
enum farm_status farm_run_learners_enlist(struct farm_run_learners *learners, struct farm_error *err);

// Fills in what the next learner inherits; returns the number of descriptors in `keep`.
size_t farm_run_learners_fill(struct farm_run_learners *learners);

#endif
