// Runs a network on the CPU: forward, backward, parameters packed for the machine. One thread at a time uses an
// executor; several executors share nothing. oneDNN computes products and convolutions, kernels/conv_u8.h a first layer
// over u8 frames, other kernels of ours what layer.h lists. Memory lies on the NUMA node of the creating thread, packed
// weights on that of the first load. Sets the calling thread's number of OpenMP threads to one. Does not know lanes,
// losses or optimisers, and does not choose arithmetic.
#ifndef FARM_NN_EXECUTOR_H
#define FARM_NN_EXECUTOR_H

#include <stdbool.h>

#include "nn/arithmetic.h"

struct farm_executor;

struct farm_executor_config {
    const struct farm_net *net;               // copied
    int batch_max;                            // most rows of one call
    bool training;                            // keeps what backward needs
    const struct farm_arithmetic *arithmetic; // copied; the same for all executors of a network
    bool one_size;                            // every call has batch_max columns of one step: faster to create
    double *op_seconds; // NULL, or [net->op_count]: receives the calling thread's CPU time in each op, added
};

// FARM_E_INVALID for invalid batches or arithmetic, FARM_E_UNSUPPORTED for an op that this CPU cannot compute in its
// form.
enum farm_status farm_executor_create(const struct farm_executor_config *config, struct farm_executor **out,
                                      struct farm_error *err);
void farm_executor_destroy(struct farm_executor *executor);

// Packs the flat f32 parameters [net->parameter_count] for this executor. Call before the first pass, and after every
// new version. Inference does not keep the vector; training's passes read products' weights in it, so it must stay as
// it is as long as passes follow.
void farm_executor_load(struct farm_executor *executor, const float *params);

// Packed parameters in a block outside of the executor, which several executors, also of several processes, read in
// place. Only for inference. packed_bytes: of a block, a multiple of 64. packed_layout: equal in two executors if and
// only if each can read what the other has packed; takes as long as a load the first time, and is never 0. pack: writes
// all that farm_executor_load computes into a block, at a 64-byte boundary. bind: the following passes read a block,
// which must not change meanwhile; the cost is small beside a pass. NULL: the executor's own memory, as last loaded; a
// load does the same.
size_t farm_executor_packed_bytes(const struct farm_executor *executor);
uint64_t farm_executor_packed_layout(struct farm_executor *executor);
void farm_executor_pack(struct farm_executor *executor, const float *params, void *packed);
void farm_executor_bind(struct farm_executor *executor, const void *packed);

// The sequence has steps x columns rows, at most batch_max.
//
// rows: batch x farm_net_pointers. First a row's frames, images x stack (0 = oldest), u8
// [frame_channels][height][width], or [height][width][frame_channels] if interleaved; NULL = a frame of zeros; pixels
// enter the network as x/255. Then the parts of its flat input (inputs.h). Planes are read in place, so frames must
// stay until backward. logits f32 [batch][actions], value f32 [batch]. Returns the batch size that was computed, with
// padding, for statistics.
int farm_executor_forward(struct farm_executor *executor, const void *const *rows, struct farm_sequence sequence,
                          float *logits, float *value);

// Of a network with a state, columns are padded too: their numbers should be 1, 2, 4, ..., or a multiple of eight.
// state_out may be NULL, and may be state_in. One step at a time gives what one call with all steps gives, within f32's
// rounding.

// Begins a sum: grads [net->parameter_count] become zeros, except those that the next farm_executor_backward, which
// must be given the same grads, then writes without reading them.
void farm_executor_clear(struct farm_executor *executor, float *grads);

// Adds to grads [net->parameter_count] the gradient of the sum over rows of (dlogits . logits + dvalue * value) by the
// parameters. Must follow a forward of the same rows.
void farm_executor_backward(struct farm_executor *executor, struct farm_sequence sequence, const float *dlogits,
                            const float *dvalue, float *grads);

#endif
