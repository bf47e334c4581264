// Runs a network forward and backward on the GPU that is current in the calling thread. cuDNN computes convolutions,
// cuBLASLt products, src/kernels/cuda the rest. One thread at a time uses an executor, with one stream at a time;
// several executors share nothing. Calls only put work into a stream, so that a CUDA graph can capture them. Does not
// know lanes, losses or optimisers. Plain C17 over CUDA's runtime and the tables of vendor.h, so that tests run it on
// the CPU.
#ifndef FARM_NN_CUDA_EXECUTOR_H
#define FARM_NN_CUDA_EXECUTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nn/cuda/parameter_layout.h"
#include "nn/cuda/vendor.h"
#include "nn/executor.h"
#include "nn/net.h"

struct CUstream_st; // what cudaStream_t points to
struct farm_cuda_executor;

struct farm_cuda_executor_config {
    const struct farm_net *net;    // copied
    int batch_max;                 // most rows of one call
    bool training;                 // keeps what backward needs
    enum farm_precision precision; // AUTO and BF16: bf16 activations and weights, f32 sums; F32: f32 without TF32
    const struct farm_cuda_vendor *vendor; // must outlive the executor
};

// Device memory that create allocates, in bytes. cuDNN and cuBLASLt allocate tens of MB of code themselves.
size_t farm_cuda_executor_bytes(const struct farm_cuda_executor_config *config);

// Allocates everything that the executor will need on the current device. FARM_E_INVALID, FARM_E_UNSUPPORTED for
// networks that it cannot run (a convolution padded on one side alone), FARM_E_LIMIT for memory, else FARM_E_IO.
enum farm_status farm_cuda_executor_create(const struct farm_cuda_executor_config *config,
                                           struct farm_cuda_executor **out, struct farm_error *err);

// Does not wait: the work must be done. NULL is allowed.
void farm_cuda_executor_destroy(struct farm_cuda_executor *executor);

// F32 or BF16, what AUTO became: the type of `params` below.
enum farm_precision farm_cuda_executor_precision(const struct farm_cuda_executor *executor);

// What the network takes; NULL for what it does not. Device memory.
struct farm_cuda_input {
    const void *const *frames; // [rows][images * stack] device-readable addresses of u8 frames as net->io describes
                               // them, NULL: zeros; 0 = oldest
    const float *flat;         // [rows][io.flat] (nn/inputs.h), 16-byte aligned; must stay until backward
    const int16_t *scale;      // farm_inputs_scale_pixels's, of a network that normalises frames
};

// params: device layout, bf16 bits (uint16_t) or f32 as the precision says. logits f32 [rows][actions], value f32
// [rows], and the sequence's arrays: all device memory; nothing is allocated, nothing waits. rows 1 to batch_max, fixed
// at capture. state_out may be NULL, or state_in.
//
// The first call with a number of rows (with a state: of steps and columns) chooses algorithms (milliseconds of host
// time) and loads their kernels: make it, and backward's, once outside a capture. An executor keeps the choices for
// FARM_CUDA_EXECUTOR_ROWS_MAX different ones, the last that it made.
enum { FARM_CUDA_EXECUTOR_ROWS_MAX = 64 };
enum farm_status farm_cuda_executor_forward(struct farm_cuda_executor *executor, struct CUstream_st *stream,
                                            const void *params, const struct farm_cuda_input *input,
                                            struct farm_sequence sequence, float *logits, float *value,
                                            struct farm_error *err);

// Gradient of the sum over rows of (dlogits . logits + dvalue * value) by the parameters, ADDED to gradients (f32,
// device layout, 256-byte aligned). Belongs to the last forward in the same stream, with the same params and sequence.
// Its frames may have changed since.
enum farm_status farm_cuda_executor_backward(struct farm_cuda_executor *executor, struct CUstream_st *stream,
                                             const void *params, const float *dlogits, const float *dvalue,
                                             struct farm_sequence sequence, float *gradients, struct farm_error *err);

#endif
