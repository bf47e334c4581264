// The run's checkpoints: one every checkpoint_every_s and one at the end, the newest three kept. Belongs to the
// training thread. The state that a lost device leaves is written with the figures of its copy's moment.
#ifndef FARM_LEARNER_CHECKPOINT_WRITER_H
#define FARM_LEARNER_CHECKPOINT_WRITER_H

#include "learner/parts.h"

enum { FARM_CHECKPOINTS_KEPT = 3 };

// The run's figures when the backend had a state.
struct farm_checkpoint_moment {
    uint64_t version, frames, agent_steps, updates, episodes;
    double return_mean;
};

struct farm_checkpoint_writer {
    const struct farm_learner_parts *parts;
    uint64_t version;                     // newest published; set by the trainer
    uint64_t due_ns;                      // of the next file
    struct farm_checkpoint_moment copied; // of the state that a lost device leaves
    uint64_t saved_version;               // of the newest file, or of the first parameters
    bool saved;                           // this learner has written a file
};

// Removes files that a killed learner left half written.
void farm_checkpoint_writer_start(struct farm_checkpoint_writer *writer, const struct farm_learner_parts *parts);

// The backend has copied its state now.
void farm_checkpoint_writer_copied(struct farm_checkpoint_writer *writer);

// Writes a due checkpoint. Logs a failure and tries again later.
void farm_checkpoint_writer_turn(struct farm_checkpoint_writer *writer);

// Writes a checkpoint. FARM_E_INVALID: parameters are not finite; errors of farm_checkpoint_save.
enum farm_status farm_checkpoint_writer_save(struct farm_checkpoint_writer *writer, struct farm_error *err);

#endif
