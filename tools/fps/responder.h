// The stand-in learner of `farm fps`: answers every step through the lanes with random actions, releases steps as
// training would, and measures the farm by turns with the bare simulator. Runs in the learner's process: one thread an
// actor, on the actor's own CPU, answers; the main thread directs the turns; the bare loops are children of it, one for
// each actor's CPU. Memory order: ring/lane.h. It trains nothing and infers nothing.
#ifndef FARM_TOOLS_FPS_RESPONDER_H
#define FARM_TOOLS_FPS_RESPONDER_H

#include "run/workers.h"

enum { FARM_FPS_ROUNDS_MAX = 64 };

// What is to be measured: so many rounds, each a turn of the farm and, where bare_s is not 0, one of one bare loop and
// one of all of them at once.
struct farm_fps_turns {
    uint32_t rounds;
    double farm_s, bare_s, warm_s; // warm_s: before a turn of the farm, not measured
    bool talks;                    // a line a round on stderr
};

// What was measured, agent steps/s a round; in memory that the learner shares with the supervisor. Filled as the turns
// end, so that an interrupted measurement has what there was until then.
struct farm_fps_samples {
    uint32_t farm_count, one_count, all_count;
    double farm[FARM_FPS_ROUNDS_MAX], one[FARM_FPS_ROUNDS_MAX], all[FARM_FPS_ROUNDS_MAX];
    // CPU time of a step in the same turns, which other programs on the machine disturb less: of one bare loop, and in
    // the farm of actors and stand-in together.
    double one_cpu_ns[FARM_FPS_ROUNDS_MAX], farm_cpu_ns[FARM_FPS_ROUNDS_MAX];
    uint64_t agent_steps;               // of the farm's turns
    double farm_s;                      // that they took
    uint32_t bare_loops;                // of one turn of all
    pid_t actors[FARM_PLAN_ACTORS_MAX]; // written by the supervisor, before the first turn and where one is replaced
};

struct farm_fps_responder {
    struct farm_fps_turns turns;
    struct farm_fps_samples *samples; // shared
};

// farm_run_responder.body; context: struct farm_fps_responder. Ends when all is measured (stats.done), on SIGTERM, or
// where a bare loop fails (its own sentence is on stderr).
int farm_fps_responder_run(void *context, const struct farm_run_workers *workers, struct farm_stats *stats,
                           struct farm_error *err);

#endif
