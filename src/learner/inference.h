// The inference loop of one shard: polls the doorbells of its rings, takes in published steps, has the backend answer
// them in batches, first come first served, and pushes complete windows to training. One thread a shard in the learner
// process; shards share the stats, the trainer and the stop word only.
#ifndef FARM_LEARNER_INFERENCE_H
#define FARM_LEARNER_INFERENCE_H

#include "learner/parts.h"
#include "learner/trainer.h"

struct farm_inference;

// FARM_E_INVALID: the shard has no ring, and none can join.
enum farm_status farm_inference_make(struct farm_learner_parts *parts, uint32_t shard, struct farm_inference **out,
                                     struct farm_error *err);
void farm_inference_free(struct farm_inference *inference); // NULL is allowed

// Answers until *stop, the run's target, the end of training or an error (which ends all shards). trainer: NULL in
// evaluation.
enum farm_status farm_inference_run(struct farm_inference *inference, struct farm_trainer *trainer,
                                    struct farm_error *err);

// Another thread: the loop takes up a ring of its shard, or stops using it (its unanswered steps stay unanswered), and
// wakes for that. Returns when it is done. FARM_E_LIMIT, or FARM_E_DEAD if the loop has ended: nothing has changed.
enum farm_status farm_inference_change(struct farm_inference *inference, uint32_t ring, bool join,
                                       struct farm_error *err);
// The loop has ended or will not start: ends waits in farm_inference_change.
void farm_inference_over(struct farm_inference *inference);

#endif
