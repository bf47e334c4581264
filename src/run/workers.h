// Worker specs of a run: body or program, CPUs, memory node and descriptors of each process; and the entry of the
// learner's process. Runs in the supervisor process. supervisor.h starts, watches and ends the workers.
#ifndef FARM_RUN_WORKERS_H
#define FARM_RUN_WORKERS_H

#include "actor/actor.h"
#include "run/caller.h"
#include "run/rings.h"

// Order of stopping: the learner writes its last checkpoint while the actors still run.
enum { FARM_RUN_PHASE_LEARNER, FARM_RUN_PHASE_ACTORS };

// One actor's worker, at an address that the supervisor keeps.
struct farm_run_actor {
    struct farm_actor_config config; // environments in C
    struct farm_env_program program; // Python's
    struct farm_bitmap cpus;         // where it runs
    struct farm_bitmap claimed;      // the part of the farm's claim that only this actor uses
    int memory_node;
    int keep[4];                 // up, down, bell, film
    uint64_t heartbeat_at_start; // of its present life
    uint64_t generation;         // number of earlier processes in its place
    bool remote;                 // its place belongs to a remote node (sessions.h): it has rings, but no process here
    int wake;                    // remote: eventfd of its bridge
    bool attached;               // the learner has attached its rings
    bool lost;                   // it cannot be kept alive and must leave
};

struct farm_run_workers {
    // farm_run_make
    const struct farm_run_plan *plan;
    struct farm_run_rings *rings;
    const struct farm_run_caller *caller;
    struct farm_supervisor *supervisor; // actors are workers 0..places-1, the learner is worker `places`
    struct farm_learner_config learner; // completed by the command before farm_run_build

    // the command, before farm_run_build
    const char *run_path;                    // where a restarted learner finds checkpoints; NULL: it starts as at first
    int video;                               // pipe that actor 0 films to (actor/film.h); 0: none
    char checkpoint[FARM_RUN_PATH_MAX + 64]; // that the learner loads; "": learner.checkpoint_load

    // farm_run_workers_add
    struct farm_run_actor *actors; // [places]
    uint32_t count;                // attached actors
    struct farm_bitmap learner_cpus;
    int (*ring_fds)[2];   // [places], as the learner inherits them; -1: a vacant place
    uint32_t *ring_shard; // [places]
    int *up_writable;     // [places]; NULL: the learner is on the CPU
    int *wake_fds;        // [places]; -1: a local actor
    int *keep;            // the learner's descriptors

    int sample[2];         // a deterministic run's socket between supervisor and learner (learner/config.h); 0: none
    uint64_t start_frames; // of the run when these processes started
};

// The seed of actors and learner: the recipe's, changed if the run has frames already.
uint64_t farm_run_workers_seed(const struct farm_run_workers *workers);

// Number of attached actors in the shard.
uint32_t farm_run_workers_in_shard(const struct farm_run_workers *workers, uint32_t shard);

// Whether the process that answers the actors shares their CPUs.
bool farm_run_shares_cpus(const struct farm_run_plan *plan);

// Adds all actors, then the learner, to the supervisor. Called after rings, bells, stats and the admission socket.
enum farm_status farm_run_workers_add(struct farm_run_workers *workers, struct farm_error *err);
// The same workers once more, after all have ended and with new rings.
enum farm_status farm_run_workers_enlist(struct farm_run_workers *workers, struct farm_error *err);
void farm_run_workers_free(struct farm_run_workers *workers); // safe on a zeroed one

// Fills the spec of an actor whose ring, CPUs, memory node and shard are set.
enum farm_status farm_run_workers_describe(struct farm_run_workers *workers, uint32_t a, struct farm_worker_spec *spec,
                                           struct farm_error *err);

// Fills in what the next learner inherits; returns the number of descriptors in `keep`.
size_t farm_run_workers_fill_learner(struct farm_run_workers *workers);

#endif
