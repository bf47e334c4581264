// Passes on the GPU: forward, the algorithm's gradient and backward of each chunk of units, then the optimiser. The
// host gathers small arrays (learner/iteration.h) and the frames' addresses into pinned memory; frames come from the
// mirror. A pass over the shard's share of the recipe's batch is two CUDA graphs, gradients and step; between them the
// shards' gradients are summed. Runs on the training thread, in a stream of the lowest priority.
#ifndef FARM_LEARNER_CUDA_TRAINING_H
#define FARM_LEARNER_CUDA_TRAINING_H

#include "learner/cuda/context.h"
#include "learner/iteration.h"

struct farm_cuda_training;

// Device memory of farm_cuda_training_make with a mirror of that mode.
size_t farm_cuda_training_bytes(const struct farm_cuda_context *context, enum farm_mirror mode);

// Borrows the context. Runs and captures a pass over the whole share; other passes are launched kernel by kernel.
enum farm_status farm_cuda_training_make(struct farm_cuda_context *context, struct farm_cuda_training **out,
                                         struct farm_error *err);
void farm_cuda_training_free(struct farm_cuda_training *training); // NULL is allowed

struct CUstream_st *farm_cuda_training_stream(const struct farm_cuda_training *training);

// In the synchronous regime: enqueues copies of the last steps of windows, all of this shard, into a full mirror,
// because inference has not brought them yet.
enum farm_status farm_cuda_training_bring(struct farm_cuda_training *training, const struct farm_window *windows,
                                          uint32_t count, struct farm_error *err);

// Targets once: enqueues the forward pass of the last observations of columns [first, first + count) of an iteration,
// at most values_most, with the parameters in training, and marks the stream; after `ended`, take_values gives
// [values_most] values and [values_most][outputs] of the policy. The slot's previous gradients must be done.
uint32_t farm_cuda_training_values_most(const struct farm_cuda_training *training);
enum farm_status farm_cuda_training_values(struct farm_cuda_training *training, uint32_t slot,
                                           const struct farm_iteration *iteration, uint32_t first, uint32_t count,
                                           struct farm_error *err);
float *farm_cuda_training_take_values(const struct farm_cuda_training *training);

// A shard's part of a pass over units of an iteration that all shards share.
struct farm_cuda_pass {
    const struct farm_iteration *iteration;
    const uint32_t *order; // [count] units of this shard; NULL: [first, first + count)
    uint32_t first, count;
    uint32_t total; // units of the pass in all shards
    bool bootstrap; // internal: last observations of columns
};

// A pass, in this order. The gradients of the next slot may begin between a step and the wait for it.
// - gradients: gathers the units and enqueues their gradients. The slot's previous gradients must be done;
// - the caller sums parameters.gradients of all shards, in their streams;
// - step: enqueues the optimiser's step, and marks; the caller may then publish the parameters, and mark;
// - ended until it returns true;
// - harvest: adds the results of the shard's units to *stats (grad_norm: of the sum).
enum farm_status farm_cuda_training_gradients(struct farm_cuda_training *training, uint32_t slot,
                                              const struct farm_cuda_pass *pass, struct farm_error *err);
enum farm_status farm_cuda_training_step(struct farm_cuda_training *training, double learning_rate,
                                         struct farm_error *err);
enum farm_status farm_cuda_training_mark(struct farm_cuda_training *training, struct farm_error *err);
enum farm_status farm_cuda_training_ended(struct farm_cuda_training *training, bool *ended, struct farm_error *err);
void farm_cuda_training_harvest(struct farm_cuda_training *training, struct farm_pass_stats *stats);

// Of the stream, by its events, from the first gradients to the end of the last step harvested: seconds in which it
// computed gradients or a step, and in all. Adds them, and the bytes of observations that crossed the bus for training.
void farm_cuda_training_account(const struct farm_cuda_training *training, double *busy_s, double *all_s,
                                uint64_t *bus_bytes);

#endif
