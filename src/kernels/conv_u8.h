// The first convolution of a network, straight from 8-bit frames where they lie (in the lane's ring): stack, divide by
// 255, convolve, add the bias, ReLU; and its weight gradient. Runs in the learner, or in an actor with local inference.
// The caller sees to it that the frames do not change meanwhile (it holds the lane's cursor); no memory order here.
// Deliberately has no padding, no dilation and no data gradient: nothing comes before the first layer.
//
// Precision I16: a pixel is exact in 16 bits; weights are rounded to 14 bits (sign and 13) of the largest weight of
// their output channel, output gradients likewise per observation and channel; products are summed in whole numbers
// without any further error. So a weight is off by at most 2^-14 of its channel's largest (bf16: 2^-9 of itself), and a
// channel's gradient of the output by at most 1.3e-3 in the Euclidean norm for 400 positions in the worst case, 2e-4
// in practice. All I16 paths, portable or not, give the same bits forward. Precision F32 is plain float arithmetic,
// slow.
#ifndef FARM_KERNELS_CONV_U8_H
#define FARM_KERNELS_CONV_U8_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum farm_conv_u8_precision { FARM_CONV_U8_F32, FARM_CONV_U8_I16 };

// NHWC: [batch][out_height][out_width][outputs]. nChw8c: [batch][outputs/8][out_height][out_width][8], what oneDNN's
// AVX2 convolutions want.
enum farm_conv_u8_layout { FARM_CONV_U8_NHWC, FARM_CONV_U8_NCHW8C };

struct farm_conv_u8_shape {
    int stack;         // S: frames under one output, oldest first, as in the weights
    int height, width; // of a frame: height x width bytes, row by row, no gaps
    int kernel;        // K: square
    int stride;        // in both directions
    int outputs;       // O: output channels; a multiple of 8
    enum farm_conv_u8_layout layout;
    enum farm_conv_u8_precision precision;
};

static inline int farm_conv_u8_out_height(const struct farm_conv_u8_shape *shape) {
    return (shape->height - shape->kernel) / shape->stride + 1;
}
static inline int farm_conv_u8_out_width(const struct farm_conv_u8_shape *shape) {
    return (shape->width - shape->kernel) / shape->stride + 1;
}

// FARM_E_INVALID for a shape that makes no sense; the other functions assert that this is FARM_OK.
enum farm_status farm_conv_u8_check(const struct farm_conv_u8_shape *shape, struct farm_error *err);

// Packs weights [O][S][K][K] (PyTorch's order) once per parameter version into packed, which has
// farm_conv_u8_packed_bytes bytes at a 64-byte boundary and is private to these functions. layout does not matter to
// it. A weight that is not finite makes its whole output channel NaN.
size_t farm_conv_u8_packed_bytes(const struct farm_conv_u8_shape *shape);
void farm_conv_u8_pack(const struct farm_conv_u8_shape *shape, const float *weights, void *packed);

// out = relu(conv(frames / 255) + bias). frames: [batch][S] pointers to frames, NULL stands for a frame of zeros
// (before the episode's start). bias: [O]. out: batch observations in shape->layout, 32-byte aligned. Thread-safe on
// disjoint outputs. Reads no byte outside the frames.
void farm_conv_u8_forward(const struct farm_conv_u8_shape *shape, const void *packed, const float *bias,
                          const uint8_t *const *frames, int batch, float *out);

// dweights[O][S][K][K] += gradient, dbias[O] += gradient. dout: gradient of the loss by the output before ReLU (so
// already zero where ReLU cut), in shape->layout, 32-byte aligned. scratch: farm_conv_u8_scratch_bytes bytes at a
// 64-byte boundary, contents irrelevant. A dout that is not finite makes its channel's gradients NaN.
size_t farm_conv_u8_scratch_bytes(const struct farm_conv_u8_shape *shape);
void farm_conv_u8_backward_weights(const struct farm_conv_u8_shape *shape, const uint8_t *const *frames, int batch,
                                   const float *dout, float *dweights, float *dbias, void *scratch);

// The same in plain C: the oracle for the fast path, and the path of other machines and shapes.
void farm_conv_u8_forward_portable(const struct farm_conv_u8_shape *shape, const void *packed, const float *bias,
                                   const uint8_t *const *frames, int batch, float *out);
void farm_conv_u8_backward_weights_portable(const struct farm_conv_u8_shape *shape, const uint8_t *const *frames,
                                            int batch, const float *dout, float *dweights, float *dbias, void *scratch);

#endif
