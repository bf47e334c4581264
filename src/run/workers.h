// The workers of a run: a table of their kinds, and the specs of the actors (program or body, CPUs, memory node and
// descriptors of each process). A kind registers its workers, and what the run does at their events. Runs in the
// supervisor process. supervisor.h starts, watches and ends the workers.
#ifndef FARM_RUN_WORKERS_H
#define FARM_RUN_WORKERS_H

#include "actor/actor.h"
#include "envs/python.h"
#include "run/caller.h"
#include "run/rings.h"

// Order of stopping: the learner writes its last checkpoint while the actors still run.
enum { FARM_RUN_PHASE_LEARNER, FARM_RUN_PHASE_ACTORS };

// What the run does when something happens to a worker, in the file that owns its kind. owner: as registered; i: which
// of the kind's workers. Functions may be NULL.
struct farm_run_worker_ops {
    const char *name;  // "actor"
    bool numbered;     // reports call it "actor 0" even if it is the only one
    const char *waits; // what waits for it while it is stopped, as watch.h reports; NULL: not reported
    void (*before_start)(void *owner, uint32_t i, uint64_t starts);
    bool (*line)(void *owner, uint32_t i, const char *line);                // true: not for stderr
    bool (*death)(void *owner, uint32_t i, const struct farm_death *death); // true: no report of it
    void (*end)(void *owner, uint32_t i);
    void (*loss)(void *owner, uint32_t i, const char *why);
    uint64_t (*progress)(void *owner, uint32_t i); // NULL: it makes none
    void (*readable)(void *owner, uint32_t i);     // its descriptor can be read
};

struct farm_run_worker {
    const struct farm_run_worker_ops *ops;
    void *owner;
    uint32_t i;
    bool numbered;
    int fd; // wakes the supervisor until the run stops; -1: none
    struct farm_run_stop {
        uint64_t since_ns; // when it was found stopped; 0: it runs
        bool reported;
    } stop;
};

// One actor's worker, at an address that the supervisor keeps.
struct farm_run_actor {
    struct farm_actor_config config; // environments in C
    struct farm_env_program program; // Python's
    struct farm_bitmap cpus;         // where it runs
    struct farm_bitmap claimed;      // the part of the farm's claim that only this actor uses
    int memory_node;
    int keep[4 + FARM_RUN_PASSED_MAX]; // up, down, bell; board, film, or those of a consumer; the opponent's board
    uint64_t heartbeat_at_start;       // at the start of its present life
    uint64_t calls_most;               // most calls of environments in one life
    uint64_t generation;               // number of earlier processes in its place
    bool remote;   // its place belongs to a remote node (sessions.h): it has rings, but no process here
    int wake;      // remote: eventfd of its bridge
    bool attached; // the learner has attached its rings
    bool lost;     // it cannot be kept alive and must leave
};

struct farm_run_workers {
    // farm_run_make
    const struct farm_run_plan *plan;
    struct farm_run_rings *rings;
    const struct farm_run_caller *caller;
    struct farm_supervisor *supervisor;
    size_t learner_number;              // its worker's
    struct farm_learner_config learner; // completed by the command before farm_run_build

    // the command, before farm_run_build
    const char *run_path;                    // where a restarted learner finds checkpoints; NULL: it starts as at first
    int video;                               // pipe that actor 0 films to (actor/film.h); -1: none
    char checkpoint[FARM_RUN_PATH_MAX + 64]; // that the learner loads; "": learner.checkpoints.load

    struct farm_board *opponent;    // farm_run_build; NULL: none
    struct farm_run_worker *worker; // [worker_count] by the supervisor's number; the actors' are 0..places-1
    uint32_t worker_count;

    // farm_run_workers_make
    struct farm_run_actor *actors; // [places]
    uint32_t count, *in_shard;     // attached actors; [shards] of each
    int (*ring_fds)[2];            // [places], as the learner inherits them; -1: a vacant place
    uint32_t *ring_shard;          // [places]
    int *up_writable;              // [places]; NULL: the learner is on the CPU
    int *wake_fds;                 // [places]; -1: a local actor

    uint64_t start_frames; // the run's when these processes started
};

// Registers `count` workers of one kind: their numbers, from *first on, are for farm_supervisor_enlist.
enum farm_status farm_run_workers_reserve(struct farm_run_workers *workers, const struct farm_run_worker_ops *ops,
                                          void *owner, uint32_t count, size_t *first, struct farm_error *err);

// The seed of actors and learner: the recipe's, changed if the run has frames already.
uint64_t farm_run_workers_seed(const struct farm_run_workers *workers);

// The learner has attached the rings of actor a, or detached them.
void farm_run_workers_attach(struct farm_run_workers *workers, uint32_t a, bool attached);

// Memory of the process of worker `number` alone, bytes. 0: there is none, or it cannot be read.
uint64_t farm_run_workers_bytes(const struct farm_run_workers *workers, size_t number);

// Whether the process that answers the actors shares their CPUs.
bool farm_run_shares_cpus(const struct farm_run_plan *plan);

// Makes the lists by place. Called after rings, bells and stats, before a kind is registered.
enum farm_status farm_run_workers_make(struct farm_run_workers *workers, struct farm_error *err);
// Describes the plan's actors to the supervisor; again after all workers have ended, with new rings.
enum farm_status farm_run_workers_enlist(struct farm_run_workers *workers, struct farm_error *err);
void farm_run_workers_free(struct farm_run_workers *workers); // safe on a zeroed one

// Fills the spec of an actor whose ring, CPUs, memory node and shard are set.
enum farm_status farm_run_workers_describe(struct farm_run_workers *workers, uint32_t a, struct farm_worker_spec *spec,
                                           struct farm_error *err);

#endif
