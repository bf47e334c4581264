// Inference on the GPU: pull the rows' observations into the mirror, forward, sample, write the answers into the lanes
// and `acted` behind them, tell the host. One CUDA graph a batch size of a ladder and copy of the parameters; rows that
// are missing to the next size are computed from zeros and answered nowhere. Belongs to the inference thread, which has
// a stream of the highest priority. See docs/CUDA.md for the order of it all.
#ifndef FARM_LEARNER_CUDA_INFERENCE_H
#define FARM_LEARNER_CUDA_INFERENCE_H

#include "learner/cuda/context.h"

struct farm_cuda_inference;

// Device memory that farm_cuda_inference_make takes.
size_t farm_cuda_inference_bytes(const struct farm_cuda_context *context);

// The context is borrowed. Every size of the ladder has run and is captured when it returns.
enum farm_status farm_cuda_inference_make(struct farm_cuda_context *context, struct farm_cuda_inference **out,
                                          struct farm_error *err);
void farm_cuda_inference_free(struct farm_cuda_inference *inference); // NULL is allowed

// See backend.h. `acted` is stored behind each whole answer: by the GPU, or, where nothing is registered, by the host.
enum farm_status farm_cuda_infer(struct farm_cuda_inference *inference, const struct farm_infer_rows *items,
                                 uint32_t count, struct farm_error *err);

// Observations answered, and their bytes that crossed the bus.
void farm_cuda_inference_account(const struct farm_cuda_inference *inference, uint64_t *rows, uint64_t *bytes);

#endif
