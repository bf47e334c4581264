// A player: the process that answers actors without training them, in the learner's place. `farm eval` plays a
// checkpoint until a number of games has ended; `farm fps` measures inference. It has the learner's lanes and loops
// (learner/inference.h), whose steps go back to the actors at once; on the CPU one policy for each shard answers.
#ifndef FARM_RUN_PLAYER_H
#define FARM_RUN_PLAYER_H

#include "learner/config.h"

struct farm_run_play {
    uint64_t games; // spread over the environments, so that short games do not crowd out long ones
    bool greedy;    // takes the most probable action
    bool samples;   // a measurement, with the plan, rings and inference of a training (rate.h)
};

// The body of the process. config: as the learner's; checkpoints.load NULL: the parameters that its seed gives. Ends on
// SIGTERM, when the games have ended (stats.done = 1), or on an error. Returns the exit status; not 0: *err holds the
// reason.
int farm_run_player(const struct farm_learner_config *config, const struct farm_run_play *play, struct farm_error *err);

#endif
