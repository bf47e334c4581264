// Inference on the GPU: pulls the rows' observations into the mirror, runs the network, samples, writes the answers
// into the lanes and then `acted`, and signals the host. One CUDA graph per batch size of a ladder and copy of the
// parameters; padding rows are zeros, their answers are discarded. Runs on the inference thread, in a stream of the
// highest priority. docs/CUDA.md has the memory order.
#ifndef FARM_LEARNER_CUDA_INFERENCE_H
#define FARM_LEARNER_CUDA_INFERENCE_H

#include "learner/cuda/context.h"

struct farm_cuda_inference;

// Device memory of farm_cuda_inference_make.
size_t farm_cuda_inference_bytes(const struct farm_cuda_context *context);

// Borrows the context. Runs and captures every size of the ladder.
enum farm_status farm_cuda_inference_make(struct farm_cuda_context *context, struct farm_cuda_inference **out,
                                          struct farm_error *err);
void farm_cuda_inference_free(struct farm_cuda_inference *inference); // NULL is allowed

// See backend.h. Stores `acted` after each complete answer: the GPU does, or the host if `down` is not registered.
enum farm_status farm_cuda_infer(struct farm_cuda_inference *inference, const struct farm_policy_rows *items,
                                 uint32_t count, struct farm_error *err);

// Observations answered, and their bytes that crossed the bus.
void farm_cuda_inference_account(const struct farm_cuda_inference *inference, uint64_t *rows, uint64_t *bytes);

#endif
