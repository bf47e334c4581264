// Passes on the GPU: forward, the algorithm's gradient and backward of each chunk of windows, then the optimiser. The
// host gathers small arrays (learner/gather.h) and the frames' addresses into pinned memory; frames come from the
// mirror. A pass over the shard's share of the recipe's batch is two CUDA graphs, gradients and step; between them the
// shards' gradients are summed. Runs on the training thread, in a stream of the lowest priority.
#ifndef FARM_LEARNER_CUDA_TRAINING_H
#define FARM_LEARNER_CUDA_TRAINING_H

#include "learner/cuda/context.h"

struct farm_cuda_training;

// Device memory of farm_cuda_training_make with a mirror of that mode.
size_t farm_cuda_training_bytes(const struct farm_cuda_context *context, enum farm_mirror mode);

// Borrows the context. Runs and captures a pass over the whole share; other passes are launched kernel by kernel.
enum farm_status farm_cuda_training_make(struct farm_cuda_context *context, struct farm_cuda_training **out,
                                         struct farm_error *err);
void farm_cuda_training_free(struct farm_cuda_training *training); // NULL is allowed

struct CUstream_st *farm_cuda_training_stream(const struct farm_cuda_training *training);

// Lists an iteration's windows, all of this shard, in a slot. In the synchronous regime also enqueues copies of their
// last steps into a full mirror, because inference has not brought them yet.
enum farm_status farm_cuda_training_list(struct farm_cuda_training *training, uint32_t slot,
                                         const struct farm_window *windows, uint32_t count, struct farm_error *err);
uint32_t farm_cuda_training_listed(const struct farm_cuda_training *training, uint32_t slot); // columns

// A pass, in this order. The gradients of the next slot may begin between a step and the wait for it.
// - gradients: gathers columns of the slot (order: [count] their numbers, NULL: all as listed) and enqueues their
//   gradients. total: columns of the pass in all shards. The slot's previous gradients must be done;
// - the caller sums parameters.gradients of all shards, in their streams;
// - step: enqueues the optimiser's step; the caller may then publish the parameters;
// - mark, and ended until it returns true;
// - harvest: adds the results of the shard's columns to *stats (grad_norm: of the sum).
enum farm_status farm_cuda_training_gradients(struct farm_cuda_training *training, uint32_t slot, const uint32_t *order,
                                              uint32_t count, uint32_t total, struct farm_error *err);
enum farm_status farm_cuda_training_step(struct farm_cuda_training *training, double learning_rate,
                                         struct farm_error *err);
enum farm_status farm_cuda_training_mark(struct farm_cuda_training *training, struct farm_error *err);
enum farm_status farm_cuda_training_ended(struct farm_cuda_training *training, bool *ended, struct farm_error *err);
void farm_cuda_training_harvest(struct farm_cuda_training *training, struct farm_pass_stats *stats);

// Bytes of observations that crossed the bus for training.
uint64_t farm_cuda_training_bus_bytes(const struct farm_cuda_training *training);

#endif
