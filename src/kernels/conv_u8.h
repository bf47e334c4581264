// The first convolution of a network, from 8-bit frames in place (in the lane's ring): stack, divide by 255 (or 25.4,
// normalised), convolve, add the bias, activate; and its weight gradient. Runs in the learner, or in an actor with
// local inference. The caller holds the lane's cursor, so the frames do not change. No dilation, no data gradient.
//
// Precision I16: pixels are exact in 16 bits; weights are rounded to 14 bits (sign and 13) of the largest weight of
// their output channel, output gradients to 14 bits of the largest one per observation and channel; products are
// summed in whole numbers without further error. A weight is off by at most 2^-14 of its channel's largest (bf16: 2^-9
// of itself), a channel's output gradient by at most 1.3e-3 in the Euclidean norm for 400 positions, 2e-4 in practice.
// All I16 paths compute the same bits forward. Precision F32 is float arithmetic.
#ifndef FARM_KERNELS_CONV_U8_H
#define FARM_KERNELS_CONV_U8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum farm_conv_u8_precision { FARM_CONV_U8_F32, FARM_CONV_U8_I16 };

// Instruction sets. PORTABLE is plain C: the others' reference, and other machines' path. AVX512 needs VNNI.
enum farm_conv_u8_path { FARM_CONV_U8_PORTABLE, FARM_CONV_U8_AVX2, FARM_CONV_U8_AVX512, FARM_CONV_U8_PATHS };

struct farm_conv_u8_shape {
    int stack;         // S: frames under one output, oldest first, as in the weights
    int channels;      // C: planes of a frame, one after another
    int height, width; // a plane's: height x width bytes, row by row, no gaps
    int kernel;        // K: square
    int stride;        // in both directions
    int pad_before[2]; // rows above and columns left of a plane, zeros
    int pad_after[2];  // rows below, columns right
    int outputs;       // O: output channels. AVX2 takes multiples of 8, AVX512 of 16
    // Adjacent channels. Output [O / block][out_height][out_width][block]: NHWC if block = O, nChw8c or
    // nChw16c if it is 8 or 16.
    int block;
    bool relu; // false: no activation
    bool bf16; // outputs and their gradients are bf16; else f32
    enum farm_conv_u8_precision precision;
    enum farm_conv_u8_path path;
    bool normalised; // frames hold bytes of kernels/pixels.h, (byte - 128) / 25.4; else byte / 255
};

static inline int farm_conv_u8_out_height(const struct farm_conv_u8_shape *shape) {
    return (shape->pad_before[0] + shape->height + shape->pad_after[0] - shape->kernel) / shape->stride + 1;
}
static inline int farm_conv_u8_out_width(const struct farm_conv_u8_shape *shape) {
    return (shape->pad_before[1] + shape->width + shape->pad_after[1] - shape->kernel) / shape->stride + 1;
}

// FARM_E_INVALID for an invalid shape; the other functions assert FARM_OK. Ignores the path.
enum farm_status farm_conv_u8_check(const struct farm_conv_u8_shape *shape, struct farm_error *err);

// Can this CPU compute the shape on its path?
bool farm_conv_u8_runs(const struct farm_conv_u8_shape *shape);

const char *farm_conv_u8_path_name(enum farm_conv_u8_path path); // "portable", "avx2", "avx512"

// Packs weights [O][S*C][K][K] (PyTorch's order), once per parameter version, into farm_conv_u8_packed_bytes bytes at a
// 64-byte boundary, private to these functions; every path, block and bf16 can use them. A weight that is not finite
// makes its whole output channel NaN.
size_t farm_conv_u8_packed_bytes(const struct farm_conv_u8_shape *shape);
void farm_conv_u8_pack(const struct farm_conv_u8_shape *shape, const float *weights, void *packed);

// Size of the next two functions' scratch, which starts at a 64-byte boundary; its contents do not matter.
size_t farm_conv_u8_scratch_bytes(const struct farm_conv_u8_shape *shape);

// out = activation(conv(frames) + bias). frames: [batch][S] pointers to frames, NULL is a frame of zeros
// (before the episode's start). bias: [O]. out: batch observations, f32 or bf16, 16-byte aligned. Thread-safe on
// disjoint outputs and scratch. Reads no byte outside the frames.
void farm_conv_u8_forward(const struct farm_conv_u8_shape *shape, const void *packed, const float *bias,
                          const uint8_t *const *frames, int batch, void *out, void *scratch);

// dweights[O][S*C][K][K] += gradient, dbias[O] += gradient. dout: gradient of the loss by the output before the
// activation, laid out as out. A dout that is not finite makes its channel's gradients
// NaN.
void farm_conv_u8_backward_weights(const struct farm_conv_u8_shape *shape, const uint8_t *const *frames, int batch,
                                   const void *dout, float *dweights, float *dbias, void *scratch);

#endif
