// The inference loop of one shard: looks at the doorbells of its rings, takes in what its actors have published, has it
// answered in batches, first come first served, and hands finished windows to training. Runs in the learner process, a
// thread a shard; shards share nothing but the stats, the trainer's queues and the word that says stop.
#ifndef FARM_LEARNER_INFERENCE_H
#define FARM_LEARNER_INFERENCE_H

#include "learner/backend.h"
#include "learner/lanes.h"
#include "learner/trainer.h"

struct farm_inference;

struct farm_inference_config {
    const struct farm_learner_config *learner; // these all outlive the loop
    struct farm_lanes *lanes;
    const struct farm_window_shape *shape;
    const struct farm_backend_ops *ops;
    struct farm_backend *backend;
    const struct farm_window_source *source; // NULL in evaluation
    bool sync;                               // windows are complete when their last step is published
    uint32_t shard;
    uint64_t *stop; // all shards' word: not 0 ends every loop; a loop that ends sets it
};

// FARM_E_INVALID: the shard has no ring, and none can come.
enum farm_status farm_inference_make(const struct farm_inference_config *config, struct farm_inference **out,
                                     struct farm_error *err);
void farm_inference_free(struct farm_inference *inference); // NULL is allowed

// Answers until *stop, the run's target, the end of training or an error (which ends all shards). trainer: NULL in
// evaluation.
enum farm_status farm_inference_run(struct farm_inference *inference, struct farm_trainer *trainer,
                                    struct farm_error *err);

// Another thread, while the loop runs or before: has it take a ring of its shard into its turns, or out of them (what
// is published there and not answered stays so), at once if it sleeps. Returns when that is done. FARM_E_LIMIT, or
// FARM_E_DEAD where the loop has ended: nothing has changed.
enum farm_status farm_inference_change(struct farm_inference *inference, uint32_t ring, bool join,
                                       struct farm_error *err);
// When the loop does not run any more, or will not: lets those go who wait for it.
void farm_inference_over(struct farm_inference *inference);

#endif
