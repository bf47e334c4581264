// Private to conv_u8.c and cpu/conv_u8_*: packed weights, rows of pixels, and the fast paths' entries.
//
// A convolution sees S·C planes, and of each K rows: S·C·K rows of pixels in all. In I16 two rows
// share 32-bit elements, as do their weights (an odd last row with zeros): one instruction multiplies both and adds.
//
// For the Atari networks' shape the fast paths compute an integer Winograd convolution, F(2x2,2x2). An 8x8 kernel
// with stride 4 is a 2x2 kernel with stride 1 over blocks of 4x4 pixels, whose pixels are the channels (16 of each
// plane). In one dimension, with three blocks d0 d1 d2 and weights g0 g1:
//     y0 = d0·g0 + d1·g1 = m0 + m1   m0 = (d0 - d1)·g0   m1 = d1·(g0 + g1)
//     y1 = d1·g0 + d2·g1 = m1 - m2   m2 = (d1 - d2)·g1
// three products instead of four; in two dimensions 9 instead of 16. The weight gradient with output gradients e0 e1
// has the same form (g0 ↔ y0, e ↔ g). Sums of four 14-bit weights fit 16 bits, differences of pixels 10; 32-bit sums
// may wrap in between, but the results fit, so the result is the direct convolution's, bit for bit.
#ifndef FARM_KERNELS_CONV_U8_PACKED_H
#define FARM_KERNELS_CONV_U8_PACKED_H

#include "kernels/conv_u8.h"
#include "kernels/pixels.h"

enum {
    FARM_CONV_U8_SIDE = 84,     // the Winograd shape's plane, kernel and stride: all Atari networks'
    FARM_CONV_U8_KERNEL = 8,    //
    FARM_CONV_U8_STRIDE = 4,    //
    FARM_CONV_U8_TILES = 10,    // of 2x2 outputs, in a row and in a column
    FARM_CONV_U8_PARTS = 9,     // products m in two dimensions: 3 · (vertical) + (horizontal)
    FARM_CONV_U8_STACK_MAX = 4, // planes
    FARM_CONV_U8_PLANES_MAX = 64,
    FARM_CONV_U8_WHOLE_MAX = 8191,                                   // 14 bits: sums of four fit 16
    FARM_CONV_U8_TERMS = INT32_MAX / (255 * FARM_CONV_U8_WHOLE_MAX), // that a 32-bit sum holds without overflow
};

// What a channel's largest value becomes; less if a 32-bit sum of `terms` could overflow.
static inline int farm_conv_u8_whole_max(int terms) {
    const int fits = INT32_MAX / (255 * terms);
    return fits < FARM_CONV_U8_WHOLE_MAX ? fits : FARM_CONV_U8_WHOLE_MAX;
}

// A pixel is a byte less `zero`, `one` of which are 1. Padding and frames of zeros are 0 in both.
static inline int farm_conv_u8_zero(const struct farm_conv_u8_shape *shape) {
    return shape->normalised ? FARM_PIXEL_ZERO : 0;
}
static inline float farm_conv_u8_one(const struct farm_conv_u8_shape *shape) {
    return shape->normalised ? FARM_PIXEL_ONE : 255.0f;
}

// Rows of outputs whose gradients are summed in 32 bits, an even number, before the sum is added to the f32 total.
static inline int farm_conv_u8_rows_at_once(const struct farm_conv_u8_shape *shape) {
    const int rows = FARM_CONV_U8_TERMS / farm_conv_u8_out_width(shape);
    return rows < 2 ? 2 : rows / 2 * 2;
}

static inline int farm_conv_u8_planes(const struct farm_conv_u8_shape *shape) {
    return shape->stack * shape->channels;
}
static inline int farm_conv_u8_rows(const struct farm_conv_u8_shape *shape) {
    return farm_conv_u8_planes(shape) * shape->kernel;
}

// The planes under one observation's outputs; NULL: zeros.
static inline void farm_conv_u8_find_planes(const struct farm_conv_u8_shape *shape, const uint8_t *const *frames,
                                            const uint8_t *planes[FARM_CONV_U8_PLANES_MAX]) {
    for (int i = 0; i < farm_conv_u8_planes(shape); i++) {
        const uint8_t *frame = frames[i / shape->channels];
        planes[i] = frame == NULL ? NULL : frame + i % shape->channels * shape->height * shape->width;
    }
}

// Row `row` (of farm_conv_u8_rows) under outputs of row y; NULL: zeros.
static inline const uint8_t *farm_conv_u8_row(const struct farm_conv_u8_shape *shape, const uint8_t *const *planes,
                                              int row, int y) {
    const uint8_t *plane = planes[row / shape->kernel];
    const int at = y * shape->stride + row % shape->kernel - shape->pad_before[0];
    return plane == NULL || at < 0 || at >= shape->height ? NULL : plane + at * shape->width;
}

// Elements of one observation's output, and where 8 channels from `channel` on (a multiple of 8) lie at a position.
static inline size_t farm_conv_u8_positions(const struct farm_conv_u8_shape *shape) {
    return (size_t)farm_conv_u8_out_height(shape) * (size_t)farm_conv_u8_out_width(shape);
}
static inline size_t farm_conv_u8_out_count(const struct farm_conv_u8_shape *shape) {
    return farm_conv_u8_positions(shape) * (size_t)shape->outputs;
}
static inline size_t farm_conv_u8_out_at(const struct farm_conv_u8_shape *shape, size_t position, int channel) {
    const size_t block = (size_t)shape->block, at = (size_t)channel;
    return at / block * block * farm_conv_u8_positions(shape) + position * block + at % block;
}

// Do the fast paths use the Winograd convolution for this shape?
static inline bool farm_conv_u8_is_winograd(const struct farm_conv_u8_shape *shape) {
    return shape->precision == FARM_CONV_U8_I16 && shape->height == FARM_CONV_U8_SIDE &&
           shape->width == FARM_CONV_U8_SIDE && shape->kernel == FARM_CONV_U8_KERNEL &&
           shape->stride == FARM_CONV_U8_STRIDE && farm_conv_u8_out_height(shape) == 2 * FARM_CONV_U8_TILES &&
           farm_conv_u8_out_width(shape) == 2 * FARM_CONV_U8_TILES &&
           shape->pad_before[0] + shape->pad_before[1] == 0 && farm_conv_u8_planes(shape) <= FARM_CONV_U8_STACK_MAX &&
           shape->outputs % 16 == 0;
}

// Views of the packed block; pointers that the precision does not use are NULL.
struct farm_conv_u8_packed {
    float *scale;      // I16: [O]: value of 1 in a sum
    float *plain_f32;  // F32: [rows][K][O], divided by `one`
    int16_t *plain;    // I16: [ceil(planes / 2)][K][K][O][2]
    int16_t *winograd; // I16, Winograd shapes: [O/16][9 parts][pixel pair: planes·4 rows of 4, two by two][16][2]
};
struct farm_conv_u8_packed farm_conv_u8_view(const struct farm_conv_u8_shape *shape, const void *packed);

// How values up to a magnitude (a float's bits without sign) become whole numbers up to whole_max: quantised =
// round(value · inverse), and *step is the value of 1. Not finite: NaN and 0. Too small to matter: 0 and 0.
void farm_conv_u8_quantise_channel(uint32_t largest_bits, int whole_max, float *step, float *inverse);

// Scratch; `rows` of pixels are those of farm_conv_u8_rows (portable, direct) or of 4x4 blocks (Winograd).
struct farm_conv_u8_work {
    size_t width;    // direct: elements of a line: pixels with padding, and what a last vector reads beyond
    int32_t *pixels; // direct: lines [rows][width]; Winograd: as transform_pixels writes
    int32_t
        *gradients; // direct: [out_width][O], of one row of outputs or of two; Winograd: [O/16][9 parts][50][16] pairs
    int32_t
        *sums; // sums of some rows of one observation, in steps: [rows][K][O]; Winograd: [O/16][9 parts][rows·4][16]
    float *total; // over the batch, times `one`: [rows][K][O]; Winograd: [O/16][2x2 blocks][rows·4][16]
    float *step, *inverse, *dbias; // [O]
};

// Places arrays of these sizes (in elements of 4 bytes; the other three have O) in scratch; *bytes is the size of all.
// scratch NULL: measures only.
static inline struct farm_conv_u8_work farm_conv_u8_place(const struct farm_conv_u8_shape *shape, void *scratch,
                                                          const size_t sizes[4], size_t *bytes) {
    const size_t outputs = (size_t)shape->outputs;
    struct farm_conv_u8_work work = {.width = 0};
    *bytes = 4 * (sizes[0] + sizes[1] + sizes[2] + sizes[3] + 3 * outputs);
    if (scratch == NULL) return work;
    work.pixels = scratch;
    work.gradients = work.pixels + sizes[0];
    work.sums = work.gradients + sizes[1];
    work.total = (float *)(void *)(work.sums + sizes[2]);
    work.step = work.total + sizes[3];
    work.inverse = work.step + outputs;
    work.dbias = work.inverse + outputs;
    return work;
}

// A way to compute one observation, whose first output is element `first`.
struct farm_conv_u8_method {
    struct farm_conv_u8_work (*place)(const struct farm_conv_u8_shape *shape, void *scratch, size_t *bytes);
    void (*forward)(const struct farm_conv_u8_shape *shape, const struct farm_conv_u8_packed *view, const float *bias,
                    const uint8_t *const *planes, const struct farm_conv_u8_work *work, void *out, size_t first);
    // Adds to work->total and work->dbias, which are zeros at first.
    void (*backward)(const struct farm_conv_u8_shape *shape, const uint8_t *const *planes, const void *dout,
                     size_t first, const struct farm_conv_u8_work *work);
    void (*add_total)(const struct farm_conv_u8_shape *shape, const struct farm_conv_u8_work *work, float *dweights);
};
extern const struct farm_conv_u8_method farm_conv_u8_avx2, farm_conv_u8_avx2_winograd;
extern const struct farm_conv_u8_method farm_conv_u8_avx512, farm_conv_u8_avx512_winograd;

// add_total of a total [rows][K][O].
static inline void farm_conv_u8_add_total(const struct farm_conv_u8_shape *shape, const struct farm_conv_u8_work *work,
                                          float *dweights) {
    const int taps = farm_conv_u8_rows(shape) * shape->kernel;
    for (int o = 0; o < shape->outputs; o++)
        for (int t = 0; t < taps; t++)
            dweights[o * taps + t] += work->total[t * shape->outputs + o] / farm_conv_u8_one(shape);
}

#endif
