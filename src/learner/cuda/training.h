// Updates on the GPU: forward, V-trace, loss, backward of a chunk of windows after another, then the optimiser. The
// host gathers what is small (rewards, flags, actions, the logits that acted, and where each frame lies) into pinned
// memory; frames come from the mirror. A whole update of the recipe's batch is one CUDA graph. Belongs to the training
// thread, which has a stream of the lowest priority and sleeps until the update is done.
#ifndef FARM_LEARNER_CUDA_TRAINING_H
#define FARM_LEARNER_CUDA_TRAINING_H

#include "learner/cuda/context.h"

struct farm_cuda_training;

// Windows of one forward and backward pass: micro_batch, or what keeps the GPU busy.
uint32_t farm_cuda_training_chunk(const struct farm_learner_config *learner, const struct farm_net *net);

// Device memory that farm_cuda_training_make takes, with a mirror of that mode.
size_t farm_cuda_training_bytes(const struct farm_cuda_context *context, enum farm_mirror mode);

// The context is borrowed. Every size of a pass has run, and the update is captured, when it returns.
enum farm_status farm_cuda_training_make(struct farm_cuda_context *context, struct farm_cuda_training **out,
                                         struct farm_error *err);
void farm_cuda_training_free(struct farm_cuda_training *training); // NULL is allowed

struct CUstream_st *farm_cuda_training_stream(const struct farm_cuda_training *training);

// See backend.h.
enum farm_status farm_cuda_train(struct farm_cuda_training *training, const struct farm_train_unrolls *unrolls,
                                 uint32_t count, double learning_rate, struct farm_train_stats *stats,
                                 struct farm_error *err);

// Bytes of observations that crossed the bus for training.
uint64_t farm_cuda_training_crossed(const struct farm_cuda_training *training);

#endif
