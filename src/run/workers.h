// The processes of a run, as the supervisor gets them described: which body or program each runs, with which CPUs,
// memory node and descriptors; and the learner's first steps in its own process. Runs in the supervisor process.
// Starting, watching and ending them is supervisor.h's.
#ifndef FARM_RUN_WORKERS_H
#define FARM_RUN_WORKERS_H

#include "actor/actor.h"
#include "run/caller.h"
#include "run/rings.h"

// Order in which the workers are stopped: the learner writes its last checkpoint while actors still answer.
enum { FARM_RUN_PHASE_LEARNER, FARM_RUN_PHASE_ACTORS };

// What one actor's process needs, at addresses that the supervisor may keep.
struct farm_run_actor {
    struct farm_actor_config config; // environments in C
    struct farm_env_program program; // Python's
    struct farm_bitmap cpus;         // where it runs
    struct farm_bitmap claimed;      // of the farm's claim, those that are this actor's alone
    int memory_node;
    int keep[3];                 // up, down, bell
    uint64_t heartbeat_at_start; // of its present life
    uint64_t generation;         // processes that its place has had before
    bool remote;                 // its place is a remote node's (sessions.h): it has rings, but no process here
    int wake;                    // remote: eventfd of its bridge
    bool attached;               // the learner has its rings
    bool lost;                   // it cannot be kept alive and must leave
};

struct farm_run_workers {
    // farm_run_make
    const struct farm_run_plan *plan;
    struct farm_run_rings *rings;
    const struct farm_run_caller *caller;
    struct farm_supervisor *supervisor; // actors are workers 0..places-1, the learner is worker `places`
    struct farm_learner_config learner; // the command completes it before farm_run_build

    // the command, before farm_run_build
    const char *run_path; // where a learner that died finds its checkpoints; NULL: it starts as it did first
    char checkpoint[FARM_RUN_PATH_MAX + 64]; // that the learner loads; "": learner.checkpoint_load says

    // farm_run_workers_add
    struct farm_run_actor *actors; // [places]
    uint32_t count;                // actors that are there
    struct farm_bitmap learner_cpus;
    int (*ring_fds)[2];   // [places], as the learner gets them; -1: a vacant place
    uint32_t *ring_shard; // [places]
    int *up_writable;     // [places]; NULL: the learner is on the CPU
    int *wake_fds;        // [places]; -1: a local actor
    int *keep;            // the learner's descriptors
};

// The seed that actors and learner get: the recipe's, but for a resumed run.
uint64_t farm_run_workers_seed(const struct farm_run_workers *workers);

// How many actors the shard serves.
uint32_t farm_run_workers_in_shard(const struct farm_run_workers *workers, uint32_t shard);

// Whether what answers the actors runs on their CPUs.
bool farm_run_shares_cpus(const struct farm_run_plan *plan);

// Describes all actors, then the learner, to the supervisor. Rings, bells, stats and the admission socket exist.
enum farm_status farm_run_workers_add(struct farm_run_workers *workers, struct farm_error *err);
void farm_run_workers_free(struct farm_run_workers *workers); // safe on a zeroed one

// Describes an actor whose ring, CPUs, memory node and shard are set.
enum farm_status farm_run_workers_describe(struct farm_run_workers *workers, uint32_t a, struct farm_worker_spec *spec,
                                           struct farm_error *err);

// Writes down what the next learner is given; returns the number of descriptors in `keep`.
size_t farm_run_workers_fill_learner(struct farm_run_workers *workers);

#endif
