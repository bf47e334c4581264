// The responder of `farm fps`, in the learner's place: answers every step with random actions, releases steps as
// training would, and measures turns of the farm and of the bare simulator. Runs in the learner's process: one thread
// per actor, on the actor's CPU, answers; the main thread directs the turns; the bare loops are its children. Memory
// order: ring/lane.h. It neither trains nor infers.
#ifndef FARM_TOOLS_FPS_RESPONDER_H
#define FARM_TOOLS_FPS_RESPONDER_H

#include "run/workers.h"

enum { FARM_FPS_ROUNDS_MAX = 64 };

// The measurement: rounds of a turn of the farm and, if bare_s is not 0, a turn of one bare loop and one of all loops.
struct farm_fps_turns {
    uint32_t rounds;
    double farm_s, bare_s, warm_s; // warm_s: before a turn of the farm, not measured
    bool prints;                   // a line per round on stderr
};

// The results, in agent steps/s of each round, in shared memory. Filled as turns end, so finished ones remain.
struct farm_fps_samples {
    uint32_t farm_count, one_count, all_count;
    double farm[FARM_FPS_ROUNDS_MAX], one[FARM_FPS_ROUNDS_MAX], all[FARM_FPS_ROUNDS_MAX];
    // CPU time of a step in the same turns: of one bare loop, and of actors and responder; less disturbed by others.
    double one_cpu_ns[FARM_FPS_ROUNDS_MAX], farm_cpu_ns[FARM_FPS_ROUNDS_MAX];
    uint64_t agent_steps;               // in the farm's turns
    double farm_s;                      // their duration
    uint32_t bare_loops;                // in one turn of all
    pid_t actors[FARM_PLAN_ACTORS_MAX]; // written by the supervisor, at the start and when an actor is replaced
};

struct farm_fps_responder {
    struct farm_fps_turns turns;
    struct farm_fps_samples *samples; // shared
};

// farm_run_responder.body; context: struct farm_fps_responder. Ends after the last turn (stats.done), on SIGTERM, or if
// a bare loop fails (its message is on stderr).
int farm_fps_responder_run(void *context, const struct farm_run_workers *workers, struct farm_stats *stats,
                           struct farm_error *err);

#endif
