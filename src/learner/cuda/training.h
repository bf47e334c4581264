// Updates on the GPU: forward, V-trace, loss, backward of a chunk of windows after another, then the optimiser. The
// host gathers what is small (rewards, flags, actions, the logits that acted, and where each frame lies) into pinned
// memory; frames come from the mirror. An update of the shard's share of the recipe's batch is two CUDA graphs,
// gradients and step, between which other shards' gradients are added. Belongs to the training thread, which has a
// stream of the lowest priority and naps until the update is done.
#ifndef FARM_LEARNER_CUDA_TRAINING_H
#define FARM_LEARNER_CUDA_TRAINING_H

#include "learner/cuda/context.h"

struct farm_cuda_training;

// Device memory that farm_cuda_training_make takes, with a mirror of that mode.
size_t farm_cuda_training_bytes(const struct farm_cuda_context *context, enum farm_mirror mode);

// The context is borrowed. Every size of a pass has run, and the update is captured, when it returns.
enum farm_status farm_cuda_training_make(struct farm_cuda_context *context, struct farm_cuda_training **out,
                                         struct farm_error *err);
void farm_cuda_training_free(struct farm_cuda_training *training); // NULL is allowed

struct CUstream_st *farm_cuda_training_stream(const struct farm_cuda_training *training);

// An update, in this order; the gradients of the next may be begun between its step and the wait for it, so that the
// GPU has work while the host sees to what it has done:
// - the gradients of these unrolls, which are all of this shard, into the stream. total: environments' windows of the
//   whole update, in all shards (each counts as one);
// - where there are other shards, the caller adds up parameters.gradients between them, in their streams;
// - the optimiser's step and the publication of what comes of it, into the stream;
// - looks whether that is done, until it is;
// - the new version is inference's, and *stats says what the shard's windows gave (grad_norm: of the sum).
enum farm_status farm_cuda_training_gradients(struct farm_cuda_training *training,
                                              const struct farm_train_unrolls *unrolls, uint32_t count, uint32_t total,
                                              double learning_rate, struct farm_error *err);
enum farm_status farm_cuda_training_step(struct farm_cuda_training *training, struct farm_error *err);
// Marks, without an update, where the stream is now: what `ended` looks for.
enum farm_status farm_cuda_training_mark(struct farm_cuda_training *training, struct farm_error *err);
enum farm_status farm_cuda_training_ended(struct farm_cuda_training *training, bool *ended, struct farm_error *err);
void farm_cuda_training_finish(struct farm_cuda_training *training, struct farm_train_stats *stats);

// Bytes of observations that crossed the bus for training.
uint64_t farm_cuda_training_crossed(const struct farm_cuda_training *training);

#endif
