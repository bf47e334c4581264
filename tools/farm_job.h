// From a settled recipe to running processes: plans, makes the shared memory, describes the workers to the supervisor,
// and reads the learner's stats while they run. `farm train` and `farm eval` run one job, `farm fps` one a measurement,
// with a stand-in for the learner or with a network. Runs in the supervisor process; the learner's process, a copy of
// it, has the job too. The files behind it: farm_job_parts.h.
#ifndef FARM_TOOLS_JOB_H
#define FARM_TOOLS_JOB_H

#include "actor/actor.h"
#include "learner/learner.h"
#include "report/metrics.h"
#include "report/recipe.h"
#include "report/run_dir.h"
#include "ring/ring.h"
#include "run/env.h"
#include "supervisor/supervisor.h"
#include "supervisor/watchdog.h"
#include "topo/claim.h"
#include "topo/machine.h"
#include "topo/plan.h"

// One actor's worker: everything its process needs, kept where the supervisor can point to.
struct farm_job_actor {
    struct farm_actor_config config; // environments in C
    struct farm_env_program program; // Python's
    struct farm_bitmap cpus;
    int keep[3];                 // up, down, the learner's bell
    uint64_t heartbeat_at_start; // of its present life
    uint64_t generation;         // processes that its place has had before
    struct farm_bitmap claimed;  // of the farm's claim, what is this actor's alone
    bool there;                  // the learner has its rings
    bool lost;                   // it cannot be kept alive, and shall go
};

// An actor that is coming or going, one at a time.
struct farm_job_change {
    enum { FARM_JOB_SETTLED, FARM_JOB_COMES, FARM_JOB_GOES, FARM_JOB_ENDS } state; // ENDS: the learner has let go of it
    uint32_t actor;
    struct farm_worker_spec spec; // of one that comes
    int wanted;                   // more (or, below 0, fewer) than that
};

// What the sampler saw last, to tell rates.
struct farm_job_sampler {
    uint64_t time_ns, frames, agent_steps, windows, infer_calls, infer_rows, lag_sum, train_wait_ns, actor_wait_ns;
};

struct farm_job;

// Who answers in place of the learner (farm fps). The body is its process: it opens the rings of job->ring_fds and
// counts into `stats`. Then no network is looked for, all cores are the actors', and each actor a rings a bell of its
// own, job->bells[a].
struct farm_job_standin {
    int (*body)(void *context, const struct farm_job *job, struct farm_stats *stats, struct farm_error *err);
    void *context;
};

// Written by the function named above the fields, read by all after it, unless they say otherwise.
struct farm_job {
    // farm_job_begin. The plan changes the recipe: net and counts are what it chose.
    bool elastic;              // SIGUSR1 brings one more actor, SIGUSR2 takes one away
    struct farm_recipe recipe; // settled
    struct farm_machine *machine;
    struct farm_plan *plan;
    struct farm_supervisor *supervisor;

    // the caller, between begin and plan
    struct farm_job_standin standin; // body NULL: the learner

    // farm_job_plan; `learner` is completed by the caller, and by farm_job_build
    struct farm_env env;
    struct farm_claim claim;
    uint32_t actors, lanes, width, steps; // actors: that are there; changes as they come and go
    uint32_t places;                      // for actors
    struct farm_ring_spec ring_spec;
    struct farm_ring_layout layout;
    struct farm_learner_config learner;
    char cuda_library[FARM_RUN_PATH_MAX]; // the CUDA backend's file; "": none
    const char *cpu_because;              // why `device auto` became the CPU; NULL: it did not
    bool quiet;                           // no plan on stderr

    // the caller, between plan and run
    const char *run_path; // where a learner that died finds its checkpoints; NULL: it starts as it did first
    char checkpoint[FARM_RUN_PATH_MAX + 64]; // what the learner starts from; "": fresh parameters. Then each new life's
    void *caller;                            // for the callbacks, which may be NULL
    void (*clear_line)(void *caller);        // before anything is written to stderr
    enum farm_supervisor_turn (*on_tick)(void *caller, uint64_t now_ns);

    // farm_job_build
    struct farm_ring *rings; // [places]; lanes NULL: not made
    struct farm_segment stats_segment;
    struct farm_stats *stats;
    int *bells; // [bell_count]: of each actor with a stand-in, else of each shard
    uint32_t bell_count;
    struct farm_job_actor *actor_jobs; // [places]
    struct farm_bitmap learner_cpus;
    int (*ring_fds)[2];         // [places], as the learner gets them; -1: nobody is there
    uint32_t *ring_shard;       // [places]
    int *up_writable;           // [places], likewise; NULL: the learner is on the CPU
    int *learner_keep;          // [3 * places + bell_count + 2]
    int gate;                   // to the learner, where the job is elastic; 0: it is not
    size_t learner_worker;      // number at the supervisor; actors are 0..places-1
    struct farm_watch *watches; // [places]
    struct farm_watchdog watchdog;

    // farm_job_run, as it goes
    uint64_t start_ns; // when the first answered step was seen, less one tick; 0: not yet
    uint64_t tick_ns;  // of the tick before
    uint64_t end_ns;   // when the run's end was decided; 0: not yet
    struct farm_job_change change;
    uint64_t learner_restarts, actor_restarts;
    uint64_t actors_hung;     // hangs named so far
    uint64_t bad_values;      // counted by actors that are gone
    bool cannot_go_on;        // learner_error says why
    char learner_error[1024]; // the sentence with which the learner, or the run, ended; "": none

    struct farm_job_sampler sampler; // farm_job_sample's
};

// Makes the supervisor (signals wait from here on). *job is overwritten and to be freed in any case; zeroed, it may be
// freed without. elastic: actors may come and go while it runs.
enum farm_status farm_job_begin(struct farm_job *job, const struct farm_recipe *recipe, bool elastic,
                                struct farm_error *err);

// Finds the environment, chooses network and counts, plans, checks limits. Says the plan on stderr unless quiet.
// Evaluation passes how many games it wants (0: training).
enum farm_status farm_job_plan(struct farm_job *job, uint64_t episodes, bool quiet, struct farm_error *err);

// Bytes of shared memory of one actor's rings, and of all actors' as planned.
static inline uint64_t farm_job_actor_bytes(const struct farm_job *job) {
    return job->layout.up_bytes + job->layout.down_bytes;
}
static inline uint64_t farm_job_ring_bytes(const struct farm_job *job) {
    return (uint64_t)job->actors * farm_job_actor_bytes(job);
}

// Makes the shared memory and the workers. The caller has filled in what else it wants in job->learner before.
enum farm_status farm_job_build(struct farm_job *job, struct farm_error *err);

// Runs until the end. *interrupted: by a signal.
enum farm_status farm_job_run(struct farm_job *job, bool *interrupted, struct farm_error *err);

void farm_job_free(struct farm_job *job);

// Seconds since the first answered step, up to the end of the run; 0 before.
double farm_job_wall_s(const struct farm_job *job);

// Figures now; rates and shares since the sample before.
void farm_job_sample(struct farm_job *job, uint64_t now_ns, struct farm_sample *sample);

// The newest checkpoint of a run that serves, into path; those passed over are named on stderr with the reason. Serves:
// a planned job can load it (its network's tensors, its optimiser's, all finite); with job NULL, length and header are
// right. False: none.
bool farm_job_find_checkpoint(const struct farm_job *job, const char *run_path, char *path, size_t path_bytes);

#endif
