// When and what a run writes as checkpoints: a file every checkpoint_every_s and at the end, the newest three kept.
// Belongs to the training thread. A state of a lost device is written under the moment it was copied at.
#ifndef FARM_LEARNER_CHECKPOINT_WRITER_H
#define FARM_LEARNER_CHECKPOINT_WRITER_H

#include "learner/backend.h"

// Where training stood when the backend had a state.
struct farm_checkpoint_moment {
    uint64_t version, frames, agent_steps, updates, episodes;
    double return_mean;
};

struct farm_checkpoint_writer {
    const struct farm_learner_config *learner; // these outlive the writer
    const struct farm_backend_ops *ops;
    struct farm_backend *backend;
    const struct farm_net *net;
    uint64_t version;                     // newest published; the trainer keeps it up to date
    uint64_t due_ns;                      // of the next file
    struct farm_checkpoint_moment copied; // of the state that a lost device leaves
    uint64_t saved_version;               // of the newest file, or what training began with
    bool saved;                           // this training has written one
};

// `version`: what training begins with. Removes files that a killed learner left half written.
void farm_checkpoint_writer_start(struct farm_checkpoint_writer *writer, const struct farm_learner_config *learner,
                                  const struct farm_backend_ops *ops, struct farm_backend *backend,
                                  const struct farm_net *net, uint64_t version);

// The backend has copied its state now: what it leaves if its device is lost.
void farm_checkpoint_writer_copied(struct farm_checkpoint_writer *writer);

// Writes if it is time; a failure is logged and tried again later.
void farm_checkpoint_writer_turn(struct farm_checkpoint_writer *writer);

// Writes. FARM_E_INVALID: parameters are not finite (earlier checkpoints are intact); what farm_checkpoint_save
// returns.
enum farm_status farm_checkpoint_writer_save(struct farm_checkpoint_writer *writer, struct farm_error *err);

#endif
