// The training thread: takes an iteration's windows from their source, drives the backend through the algorithm's
// passes, publishes the new parameters and gives the windows back. A checkpoint writer writes between iterations. Knows
// neither the algorithm nor the kind of source.
#ifndef FARM_LEARNER_TRAINER_H
#define FARM_LEARNER_TRAINER_H

#include "learner/parts.h"

struct farm_trainer;

// Starts the thread. If the rings cannot hold an iteration's windows: FARM_E_INVALID with the keys to change, or a
// warning and a wait if rings can still join.
enum farm_status farm_trainer_start(struct farm_learner_parts *parts, struct farm_trainer **out,
                                    struct farm_error *err);

// Its shard's inference thread: a window of all environments of this lane is complete. Never blocks on training.
// Returns the ticket: the lane is answered again after its release (farm_window_source_released).
uint64_t farm_trainer_push(struct farm_trainer *trainer, struct farm_intake_lane *lane, uint64_t start);

// The admitter: a ring has joined. Before any window of its lanes is pushed.
void farm_trainer_admit(struct farm_trainer *trainer, uint32_t ring);
// The admitter, when no window of this ring is pushed any more: drops its waiting windows and returns when none is in
// training. If the remaining rings cannot hold an update's windows, training warns and waits for others.
void farm_trainer_forget(struct farm_trainer *trainer, uint32_t ring);

// Whether training has ended with an error, which farm_trainer_stop returns.
bool farm_trainer_failed(struct farm_trainer *trainer);

// Ends the thread after its present iteration and writes the last checkpoint. Returns the first error.
enum farm_status farm_trainer_stop(struct farm_trainer *trainer, struct farm_error *err);

#endif
