// The training thread: takes windows from queues that the inference threads fill, makes updates of `batch` unrolls,
// releases the steps to the actors, writes checkpoints in between. First come, first trained, whichever lane of its
// shard a window is from; each shard has its share of every update, which waits for the slowest.
#ifndef FARM_LEARNER_TRAINER_H
#define FARM_LEARNER_TRAINER_H

#include "learner/backend.h"
#include "learner/lanes.h"

struct farm_trainer;

struct farm_trainer_config {
    const struct farm_learner_config *learner; // these all outlive the trainer
    const struct farm_backend_ops *ops;
    struct farm_backend *backend;
    const struct farm_net *net;
    struct farm_lanes *lanes;
    uint32_t shards; // >= 1
    struct farm_window_shape shape;
};

// Starts the thread. FARM_E_INVALID where the rings cannot hold the windows of one update (says which keys to change).
enum farm_status farm_trainer_start(const struct farm_trainer_config *config, struct farm_trainer **out,
                                    struct farm_error *err);

// Its shard's inference thread: a window of all environments of this lane is complete. Never blocks on training.
void farm_trainer_push(struct farm_trainer *trainer, struct farm_learner_lane *lane, uint64_t start);

// The thread that changes the table of lanes: whether the other rings of this ring's shard can hold the windows of an
// update. FARM_E_LIMIT: they cannot, with the keys that would help.
enum farm_status farm_trainer_can_spare(const struct farm_trainer *trainer, uint32_t ring, struct farm_error *err);
// The same thread, when no window of this ring is pushed any more: drops those that wait and returns when none is being
// trained on.
void farm_trainer_forget(struct farm_trainer *trainer, uint32_t ring);

// Whether training has given up (diverged, or what computes has failed); the reason is what stop will return.
bool farm_trainer_failed(struct farm_trainer *trainer);

// Ends the thread after the update it is at and writes the last checkpoint. Returns what went wrong, if anything did.
enum farm_status farm_trainer_stop(struct farm_trainer *trainer, struct farm_error *err);

#endif
