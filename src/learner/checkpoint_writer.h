// The run's checkpoints: one every checkpoint_every_s, one every checkpoint_every_frames, and one at the end, of which
// the newest checkpoints.keep stay, and a copy of the best one. Belongs to the training thread. The state that a lost
// device leaves is written with the figures of its copy's moment.
//
// Best: the highest mean return over the last FARM_STATS_RETURNS games at the time of a checkpoint, once so many games
// have ended in this run. A resumed run and a restarted learner continue from the best one in the folder.
//
// If the replay is saved (replay/store.h), each is one of a pair: training waits for copies of parameters, counters and
// leaves only, the store's thread writes both files, and a later turn reports.
#ifndef FARM_LEARNER_CHECKPOINT_WRITER_H
#define FARM_LEARNER_CHECKPOINT_WRITER_H

#include <pthread.h>

#include "learner/parts.h"

// The run's figures when the backend had a state.
struct farm_checkpoint_moment {
    uint64_t version;
    struct farm_totals totals; // over all sessions
    double return_mean;
    uint64_t games; // behind it, or more
};

struct farm_checkpoint_writer {
    const struct farm_learner_parts *parts;
    uint64_t version;                     // newest published; set by the trainer
    uint64_t due_ns, due_frames;          // when the next file is due, whichever comes first; 0: never
    struct farm_checkpoint_moment copied; // the state that a lost device leaves
    uint64_t saved_version;               // the newest file's, or the first parameters'
    bool saved;                           // this learner has written a file
    uint64_t wanted;                      // requests that the turn's file answers
    pthread_mutex_t *lock;                // guards the replay's leaves; NULL: nothing changes them
    struct farm_checkpoint_job *job;      // heap; the store's thread works on it
    bool posted;                          // the job is not reported yet
    char said[256];                       // the last attempt's error; "": none
    double best_return;                   // the best file's; -INFINITY: none
};

// Removes files that a killed learner left half written; reads the return of the best one.
void farm_checkpoint_writer_start(struct farm_checkpoint_writer *writer, const struct farm_learner_parts *parts);

// The backend has copied its state now.
void farm_checkpoint_writer_copied(struct farm_checkpoint_writer *writer);

// Whether a user has requested a checkpoint that is not written yet.
bool farm_checkpoint_writer_requested(const struct farm_checkpoint_writer *writer);
// Writes a checkpoint that is due or requested. Logs a failure and tries again later.
void farm_checkpoint_writer_turn(struct farm_checkpoint_writer *writer);

// Writes a checkpoint. FARM_E_INVALID: parameters are not finite; errors of farm_checkpoint_save.
enum farm_status farm_checkpoint_writer_save(struct farm_checkpoint_writer *writer, struct farm_error *err);

// The last checkpoint. If the run's folder refuses it, it goes into a new folder in $TMPDIR, else in /tmp; the error,
// still the first one, says where it is.
enum farm_status farm_checkpoint_writer_end(struct farm_checkpoint_writer *writer, struct farm_error *err);

#endif
