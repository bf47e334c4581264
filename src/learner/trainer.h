// The training thread: takes an iteration's windows from their source, drives the backend through the algorithm's
// passes over them, publishes what comes of it, and gives the windows back. Knows neither the algorithm nor what kind
// of source it is; a checkpoint writer writes between iterations.
#ifndef FARM_LEARNER_TRAINER_H
#define FARM_LEARNER_TRAINER_H

#include "learner/backend.h"
#include "learner/lanes.h"
#include "replay/source.h"

struct farm_trainer;

struct farm_trainer_config {
    const struct farm_learner_config *learner; // these all outlive the trainer
    const struct farm_algo_plan *plan;
    const struct farm_backend_ops *ops;
    struct farm_backend *backend;
    const struct farm_net *net;
    struct farm_lanes *lanes;
    struct farm_window_source *source; // under the trainer's lock from here on
    uint32_t shards;                   // >= 1
    uint64_t version;                  // of the parameters that training begins with, published
};

// Starts the thread. Rings that cannot hold the windows of an iteration: FARM_E_INVALID if no more can come (says
// which keys to change), else it waits for them, and logs that.
enum farm_status farm_trainer_start(const struct farm_trainer_config *config, struct farm_trainer **out,
                                    struct farm_error *err);

// Its shard's inference thread: a window of all environments of this lane is complete. Never blocks on training.
// Returns the ticket that farm_window_source_released must let pass before the lane is answered again.
uint64_t farm_trainer_push(struct farm_trainer *trainer, struct farm_learner_lane *lane, uint64_t start);

// The thread that changes the table of lanes: a ring's lanes have come (before any window of them is pushed).
void farm_trainer_admit(struct farm_trainer *trainer, uint32_t ring);
// The same thread, when no window of this ring is pushed any more: drops those that wait and returns when none is being
// trained on. If the remaining rings cannot hold an update's windows, training waits for others, and logs that.
void farm_trainer_forget(struct farm_trainer *trainer, uint32_t ring);

// Whether training has given up (diverged, or the backend has failed); farm_trainer_stop returns the reason.
bool farm_trainer_failed(struct farm_trainer *trainer);

// Ends the thread after the iteration it is at and writes the last checkpoint. Returns what went wrong, if anything
// did.
enum farm_status farm_trainer_stop(struct farm_trainer *trainer, struct farm_error *err);

#endif
