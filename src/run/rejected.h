// Steps with invalid values, which the learner rejects (intake/validator.h) or an actor replaces (bad_values "reset"):
// their count, one warning at the first, and the end of a run that has no other steps. Runs in the supervisor process.
#ifndef FARM_RUN_REJECTED_H
#define FARM_RUN_REJECTED_H

#include "run/change.h"

struct farm_run_rejected {
    bool reported;                   // the first invalid value; set by a command: an earlier run of it has done so
    uint64_t since_ns, valid, steps; // a step was last found valid at since_ns, when there were so many of both
};

// Episodes that actors have abandoned because of invalid values (up_control.abandoned).
uint64_t farm_run_abandoned(const struct farm_run_change *change);

// Rejected steps so far, each of one environment. Steps that actors replaced are among them.
uint64_t farm_run_rejected_steps(const struct farm_run_change *change);

// Whether at least 1,000 steps were rejected during 10 s or more, and none was valid. At each call `valid` and `steps`
// are the counts until now. Pure: remembers in *rejected only.
bool farm_run_rejected_all(struct farm_run_rejected *rejected, uint64_t now_ns, uint64_t valid, uint64_t steps);

// At every tick: warns of the first invalid value. If all steps are rejected, change->failure receives the reason.
void farm_run_rejected_tick(struct farm_run_rejected *rejected, struct farm_run_change *change, uint64_t now_ns);

// At the end of a run that no signal ended: the same after any number of rejected steps, if no step was valid.
void farm_run_rejected_end(struct farm_run_rejected *rejected, struct farm_run_change *change);

#endif
