// The inference loop of one shard: polls the doorbells of its rings, takes in published steps, has the backend or the
// shard's policy answer them in batches, first come first served, and pushes complete windows to training. One thread a
// shard, in the learner or a player; shards share the stats, the trainer and the stop word only.
#ifndef FARM_LEARNER_INFERENCE_H
#define FARM_LEARNER_INFERENCE_H

#include "learner/parts.h"
#include "learner/trainer.h"

struct farm_inference;

// Makes parts->loops, which must be freed even after an error. FARM_E_INVALID: a shard has no ring, and none can join.
enum farm_status farm_inference_make(struct farm_learner_parts *parts, struct farm_error *err);
void farm_inference_free(struct farm_learner_parts *parts);

// Answers, each loop in a thread, until *stop, the run's target (a quota's games), the end of training or an error,
// each of which ends all shards. Returns the first error.
enum farm_status farm_inference_run(struct farm_learner_parts *parts, struct farm_error *err);

// Another thread: the loop takes up a ring of its shard, or stops using it (its unanswered steps stay unanswered), and
// wakes for that. Returns when it is done. FARM_E_LIMIT, or FARM_E_DEAD if the loop has ended: nothing has changed.
enum farm_status farm_inference_change(struct farm_inference *inference, uint32_t ring, bool join,
                                       struct farm_error *err);
// The loop has ended or will not start: ends waits in farm_inference_change.
void farm_inference_over(struct farm_inference *inference);

#endif
