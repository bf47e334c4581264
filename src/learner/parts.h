// What the threads of a process that answers actors share: the learner, or a player (run/player.h), which does not
// train. Made before they start, destroyed after they have ended. Each part says which thread may use it.
#ifndef FARM_LEARNER_PARTS_H
#define FARM_LEARNER_PARTS_H

#include "intake/lanes.h"
#include "learner/backend.h"
#include "learner/checkpoint.h"
#include "learner/iteration.h"
#include "replay/source.h"
#include "replay/store.h"

struct farm_boards;
struct farm_inference;
struct farm_trainer;

struct farm_learner_parts {
    const struct farm_learner_config *config;
    struct farm_algo_plan plan; // a player's: windows of one step
    struct farm_net net;
    struct farm_head head;
    struct farm_lanes lanes;
    const struct farm_backend_ops *ops;
    struct farm_backend *backend;                          // NULL: policies
    struct farm_policy *policies[FARM_LEARNER_SHARDS_MAX]; // a player's, on the CPU
    struct farm_first first;             // what the source gives new windows, if they are not the highest so far
    struct farm_window_source *source;   // NULL in a player; under the trainer's lock while the trainer lives
    struct farm_replay_store *store;     // NULL: the replay is not saved
    char replay[FARM_REPLAY_NAME_BYTES]; // manifest of the checkpoint that was loaded; "": none
    struct farm_inference *loops[FARM_LEARNER_SHARDS_MAX]; // inference.h
    struct farm_boards *boards;                            // boards.h; NULL: no actor infers
    struct farm_trainer *trainer;                          // NULL: steps go back to the actors at once
    uint32_t shards;                                       // >= 1
    uint64_t version;                                      // the first parameters', published
    uint64_t passes;                                       // in the run so far; the training thread's
    double rate_factor; // factor of the learning rate (algo.h, adapt); the training thread's
    uint64_t *stop;     // not 0 ends every inference loop; a loop that ends sets it
};

// From here on SIGTERM and SIGINT set the word, for parts.stop.
uint64_t *farm_parts_catch_signals(void);

// After config and plan: checks them, and makes network, head, lanes and shards. FARM_E_INVALID: they do not fit one
// another.
enum farm_status farm_parts_open(struct farm_learner_parts *parts, struct farm_error *err);

// Has `make` make what computes, with parts->ops: the config's backend, or the one that its device names (AUTO: CUDA if
// it opens, else the CPU, with a warning).
typedef enum farm_status farm_parts_make(struct farm_learner_parts *parts, struct farm_error *err);
enum farm_status farm_parts_choose_backend(struct farm_learner_parts *parts, farm_parts_make *make,
                                           struct farm_error *err);

// For `make`: ops->create. columns_max: most columns of an iteration; 0 in a player.
enum farm_status farm_parts_make_backend(struct farm_learner_parts *parts, uint32_t columns_max, bool greedy,
                                         struct farm_error *err);

// One arithmetic for inference and training on the CPU, so that the policy that acted is the one that is trained; logs
// it. train_rows: of a training thread's pass; 0: no training. version_rows: trained on between two versions.
enum farm_status farm_parts_choose_arithmetic(const struct farm_learner_config *learner, const struct farm_net *net,
                                              uint32_t train_rows, uint32_t version_rows, struct farm_arithmetic *out,
                                              struct farm_error *err);

// Loads the config's checkpoint (farm_checkpoint_load), which must be of a policy that chooses this environment's
// actions.
enum farm_status farm_parts_load(const struct farm_learner_parts *parts, struct farm_backend_state *state,
                                 bool *has_optimiser, struct farm_checkpoint_metadata *metadata,
                                 struct farm_error *err);

// Makes parts->version the first version of this process. Versions never fall, neither from one process to the next nor
// after a checkpoint (loaded: its version, or 0).
void farm_parts_begin_version(struct farm_learner_parts *parts, uint64_t loaded);

// Frees the rest, after trainer and loops; safe after any error.
void farm_parts_close(struct farm_learner_parts *parts);

#endif
