// Passes on the GPU: forward, the algorithm's gradient, backward of a chunk of windows after another, then the
// optimiser. The host gathers what is small (learner/gather.h, and where each frame lies) into pinned memory; frames
// come from the mirror. A pass over the shard's share of the recipe's batch is two CUDA graphs, gradients and step,
// between which other shards' gradients are added. Belongs to the training thread, which has a
// stream of the lowest priority and naps until the update is done.
#ifndef FARM_LEARNER_CUDA_TRAINING_H
#define FARM_LEARNER_CUDA_TRAINING_H

#include "learner/cuda/context.h"

struct farm_cuda_training;

// Device memory that farm_cuda_training_make takes, with a mirror of that mode.
size_t farm_cuda_training_bytes(const struct farm_cuda_context *context, enum farm_mirror mode);

// The context is borrowed. A pass over the whole share has run, and is captured, when it returns; others are
// launched kernel by kernel.
enum farm_status farm_cuda_training_make(struct farm_cuda_context *context, struct farm_cuda_training **out,
                                         struct farm_error *err);
void farm_cuda_training_free(struct farm_cuda_training *training); // NULL is allowed

struct CUstream_st *farm_cuda_training_stream(const struct farm_cuda_training *training);

// An iteration's windows, which are all of this shard, into a slot. In the synchronous regime their last steps, which
// no inference has brought into a full mirror yet, are put into the stream.
enum farm_status farm_cuda_training_list(struct farm_cuda_training *training, uint32_t slot,
                                         const struct farm_window *windows, uint32_t count, struct farm_error *err);
uint32_t farm_cuda_training_listed(const struct farm_cuda_training *training, uint32_t slot); // columns

// A pass, in this order; the gradients of the next slot may be begun between a step and the wait for it, so that the
// GPU has work while the host sees to what it has done:
// - gathers columns of the slot (order: [count] their numbers, NULL: all as listed) and puts their gradients into the
//   stream. total: columns of the pass in all shards (each counts as one). The slot's last gradients are done;
// - if there are other shards, the caller adds up parameters.gradients between them, in their streams;
// - puts the optimiser's step into the stream; and, when asked, the publication of the parameters that come of it;
// - looks whether that is done, until it is;
// - adds to *stats what the shard's columns gave (grad_norm: of the sum).
enum farm_status farm_cuda_training_gradients(struct farm_cuda_training *training, uint32_t slot, const uint32_t *order,
                                              uint32_t count, uint32_t total, struct farm_error *err);
enum farm_status farm_cuda_training_step(struct farm_cuda_training *training, double learning_rate,
                                         struct farm_error *err);
// Marks where the stream is now: what `ended` looks for.
enum farm_status farm_cuda_training_mark(struct farm_cuda_training *training, struct farm_error *err);
enum farm_status farm_cuda_training_ended(struct farm_cuda_training *training, bool *ended, struct farm_error *err);
void farm_cuda_training_harvest(struct farm_cuda_training *training, struct farm_pass_stats *stats);

// Bytes of observations that crossed the bus for training.
uint64_t farm_cuda_training_crossed(const struct farm_cuda_training *training);

#endif
