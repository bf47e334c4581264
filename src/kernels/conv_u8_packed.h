// Private to conv_u8.c and cpu/conv_u8_avx2.c: what packed weights consist of, and the fast path's entries. Runs where
// those run; no memory order.
//
// The fast path is an integer Winograd convolution, F(2x2,2x2). An 8x8 kernel with stride 4 is a 2x2 kernel with stride
// 1 over blocks of 4x4 pixels, whose pixels are the channels (16 of each frame). In one dimension, with three blocks
// d0 d1 d2 and weights g0 g1:   y0 = d0·g0 + d1·g1 = m0 + m1   m0 = (d0 - d1)·g0   m1 = d1·(g0 + g1)
//                               y1 = d1·g0 + d2·g1 = m1 - m2   m2 = (d1 - d2)·g1
// three products instead of four; in two dimensions 9 instead of 16. The weight gradient with output gradients e0 e1
// has the same form (g0 ↔ y0, e ↔ g). Sums of four 14-bit weights fit 16 bits, differences of pixels 10; 32-bit sums
// may wrap in between, but the results fit, so nothing is lost: the answer is the direct convolution's, bit for bit.
#ifndef FARM_KERNELS_CONV_U8_PACKED_H
#define FARM_KERNELS_CONV_U8_PACKED_H

#include "kernels/conv_u8.h"

enum {
    FARM_CONV_U8_SIDE = 84,    // the fast path's frame, kernel and stride: all Atari networks'
    FARM_CONV_U8_KERNEL = 8,   //
    FARM_CONV_U8_STRIDE = 4,   //
    FARM_CONV_U8_TILES = 10,   // of 2x2 outputs, in a row and in a column
    FARM_CONV_U8_PARTS = 9,    // products m in two dimensions: 3 · (vertical) + (horizontal)
    FARM_CONV_U8_STACK_MAX = 4 // frames
};

// A channel's largest value becomes this: sums of four fit 16 bits. Fewer where 32-bit sums of `terms` could overflow.
static inline int farm_conv_u8_whole_max(int terms) {
    const int fits = INT32_MAX / (255 * terms);
    return fits < 8191 ? fits : 8191;
}

// Does the fast path serve this shape?
static inline int farm_conv_u8_is_fast(const struct farm_conv_u8_shape *shape) {
    return shape->precision == FARM_CONV_U8_I16 && shape->height == FARM_CONV_U8_SIDE &&
           shape->width == FARM_CONV_U8_SIDE && shape->kernel == FARM_CONV_U8_KERNEL &&
           shape->stride == FARM_CONV_U8_STRIDE && shape->stack <= FARM_CONV_U8_STACK_MAX && shape->outputs % 16 == 0;
}

// Views of the packed block; a pointer that the precision has no use for is NULL.
struct farm_conv_u8_packed {
    float *scale;      // I16: [O]: value of 1 in a sum
    float *plain_f32;  // F32: [S·K·K][O], divided by 255
    int16_t *plain;    // I16: [S·K·K][O]
    int16_t *winograd; // I16, fast shapes: [O/16][9 parts][pixel pair: S·4 rows of 4, two by two][16][2]
};
struct farm_conv_u8_packed farm_conv_u8_view(const struct farm_conv_u8_shape *shape, const void *packed);

// How values of at most a magnitude (given as a float's bits without sign) become whole numbers up to whole_max:
// quantised = round(value · inverse), and *step is the value of 1. Not finite: NaN and 0. Too small to matter: 0 and 0.
void farm_conv_u8_quantise_channel(uint32_t largest_bits, int whole_max, float *step, float *inverse);

#if defined(__x86_64__)
void farm_conv_u8_forward_avx2(const struct farm_conv_u8_shape *shape, const void *packed, const float *bias,
                               const uint8_t *const *frames, int batch, float *out);
void farm_conv_u8_backward_weights_avx2(const struct farm_conv_u8_shape *shape, const uint8_t *const *frames, int batch,
                                        const float *dout, float *dweights, float *dbias, void *scratch);
size_t farm_conv_u8_scratch_bytes_avx2(const struct farm_conv_u8_shape *shape);
#endif

#endif
