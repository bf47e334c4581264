// The Winograd convolution of conv_u8_packed.h: 84x84 planes, 8x8 kernels, stride 4, a multiple of 16 channels.
// Reads frames in place, no byte outside them. Included by conv_u8_fast.h.
#ifndef FARM_KERNELS_CPU_CONV_U8_WINOGRAD_H
#define FARM_KERNELS_CPU_CONV_U8_WINOGRAD_H

#include <string.h>

#include "kernels/cpu/conv_u8_vector.h"

enum {
    SIDE = FARM_CONV_U8_SIDE,
    TILES = FARM_CONV_U8_TILES, // 10 x 10 tiles of 2x2 outputs; a tile sees 3x3 blocks of 4x4 pixels
    PARTS = FARM_CONV_U8_PARTS,
    PAIRS = TILES * TILES / 2, // pairs of tiles side by side
    OUT = 2 * TILES,
    ROWS_MAX = 4 * FARM_CONV_U8_STACK_MAX,            // rows of 4 pixels (channels) in a block, all frames together
    WIDE = 80,                                        // pixels of a transformed row: 20 blocks
    VECTORS = 16 / LANES,                             // of 16 channels
    TILES_AT_ONCE = VECTORS == 1 ? TILES : TILES / 2, // multiplied at once in the forward pass
    PIXEL_ROWS_AT_ONCE = VECTORS == 1 ? 2 : 1         // and in the gradient
};

// Rows of one tile row, transformed vertically (plain) and also horizontally (difference to the pixel 4 to the right).
// Tile t's pixel c of part m1 is plain[8t+4+c]; of m0 and m2, difference[8t+c] and difference[8t+4+c].
struct strip {
    _Alignas(64) int16_t plain[ROWS_MAX][WIDE];
    _Alignas(64) int16_t difference[ROWS_MAX][WIDE];
};

static inline __m256i load16(const uint8_t *at) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)at));
}

// Vertical part v of blocks d0 d1 d2, whose rows are 4 apart: d0 - d1, d1, d1 - d2; 16 pixels from `x` on of the row
// whose first block begins at `first`. Behind the last block lie only 4 pixels of a plane.
static inline __m256i vertical_part(const uint8_t *first, int v, int x, int zero) {
    const uint8_t *middle = first + 4 * SIDE, *last = first + 8 * SIDE;
    const uint8_t *plus = v == 0 ? first : middle, *minus = v == 0 ? middle : last;
    if (x == WIDE) {
        const __m128i here = _mm_cvtepu8_epi16(_mm_loadu_si32(plus + x));
        return _mm256_castsi128_si256(
            _mm_sub_epi16(here, v == 1 ? _mm_set1_epi16((short)zero) : _mm_cvtepu8_epi16(_mm_loadu_si32(minus + x))));
    }
    return _mm256_sub_epi16(load16(plus + x), v == 1 ? _mm256_set1_epi16((short)zero) : load16(minus + x));
}

// here[i] - (the pixel 4 to the right), of which the last 4 are after[0] to after[3].
static inline __m256i minus_right(__m256i here, __m256i after) {
    return _mm256_sub_epi16(here, _mm256_permute4x64_epi64(_mm256_blend_epi32(here, after, 3), 0x39));
}

static inline void transform_row(const uint8_t *first, int v, int zero, int16_t *plain, int16_t *difference) {
    __m256i here = vertical_part(first, v, 0, zero);
#pragma GCC unroll 5
    for (int x = 0; x < WIDE; x += 16) {
        const __m256i after = vertical_part(first, v, x + 16, zero);
        _mm256_store_si256((__m256i *)(plain + x), here);
        _mm256_store_si256((__m256i *)(difference + x), minus_right(here, after));
        here = after;
    }
}

static void transform_rows(const struct farm_conv_u8_shape *shape, const uint8_t *const *planes, int tile_row, int v,
                           struct strip *strip) {
    for (int s = 0; s < farm_conv_u8_planes(shape); s++)
        for (int r = 0; r < 4; r++) {
            const int row = 4 * s + r;
            if (planes[s] == NULL) {
                memset(strip->plain[row], 0, sizeof strip->plain[row]);
                memset(strip->difference[row], 0, sizeof strip->difference[row]);
            } else {
                transform_row(planes[s] + (8 * tile_row + r) * SIDE, v, farm_conv_u8_zero(shape), strip->plain[row],
                              strip->difference[row]);
            }
        }
}

// One part's products of some tiles for 16 channels: products[tile][16] = sum over pixels. pixels: the first tile's
// first pixel in the first of `rows` rows. weights: [row][2 pairs][16][2].
static inline void multiply_tiles(const int16_t *pixels, const int16_t *weights, int rows, int32_t *products) {
    vector sum[TILES_AT_ONCE][VECTORS];
#pragma GCC unroll 10
    for (int t = 0; t < TILES_AT_ONCE; t++)
        for (int i = 0; i < VECTORS; i++) sum[t][i] = vector_all(0);
    for (int row = 0; row < rows; row++, pixels += WIDE) {
#pragma GCC unroll 2
        for (int pair = 0; pair < 2; pair++, weights += 32) {
            vector weight[VECTORS];
            for (int i = 0; i < VECTORS; i++) weight[i] = vector_load(weights + 2 * LANES * i);
#pragma GCC unroll 10
            for (int t = 0; t < TILES_AT_ONCE; t++) {
                const vector both = vector_broadcast(pixels + 8 * t + 2 * pair);
                for (int i = 0; i < VECTORS; i++) sum[t][i] = vector_add_pairs(sum[t][i], both, weight[i]);
            }
        }
    }
#pragma GCC unroll 10
    for (int t = 0; t < TILES_AT_ONCE; t++)
        for (int i = 0; i < VECTORS; i++) vector_store(products + 16 * t + LANES * i, sum[t][i]);
}

// A with y0 = m0 + m1, y1 = m1 - m2, in both directions: 9 products → 2x2 sums.
static inline void sums_of_products(const int32_t *product, size_t part_stride, vector sum[2][2]) {
    vector half[3][2];
#pragma GCC unroll 3
    for (int v = 0; v < 3; v++) {
        const int32_t *at = product + 3 * (size_t)v * part_stride;
        const vector m0 = vector_load(at), m1 = vector_load(at + part_stride), m2 = vector_load(at + 2 * part_stride);
        half[v][0] = vector_add(m0, m1);
        half[v][1] = vector_subtract(m1, m2);
    }
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        sum[0][h] = vector_add(half[0][h], half[1][h]);
        sum[1][h] = vector_subtract(half[1][h], half[2][h]);
    }
}

// One tile row of LANES channels, from its products [9 parts][10 tiles][16]. at: of the row's first output.
static void finish_tile_row(const struct farm_conv_u8_shape *shape, const int32_t *products, const float *scale,
                            const float *bias, void *out, struct place at) {
    const floats s = floats_load(scale), b = floats_load(bias);
    for (size_t t = 0; t < TILES; t++) {
        vector sum[2][2];
        sums_of_products(products + 16 * t, TILES * 16, sum);
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            const floats value = floats_of(sum[i / 2][i % 2]) * s + b;
            store_out(out, moved(shape, at, i / 2 * OUT + 2 * t + i % 2), shape->bf16,
                      shape->relu ? floats_relu(value) : value);
        }
    }
}

// One tile row of one observation, whose first output is element `first`.
static void forward_tile_row(const struct farm_conv_u8_shape *shape, const struct farm_conv_u8_packed *view,
                             const float *bias, const uint8_t *const *planes, int tile_row, void *out, size_t first) {
    enum { BLOCKS_AT_ONCE = 2 };
    const int rows = 4 * farm_conv_u8_planes(shape), part_weights = rows * 64;
    for (int from = 0; from < shape->outputs / 16; from += BLOCKS_AT_ONCE) {
        const int end = from + BLOCKS_AT_ONCE < shape->outputs / 16 ? from + BLOCKS_AT_ONCE : shape->outputs / 16;
        _Alignas(64) int32_t products[BLOCKS_AT_ONCE][PARTS][TILES][16];
        for (int v = 0; v < 3; v++) {
            struct strip strip;
            transform_rows(shape, planes, tile_row, v, &strip);
            const int16_t *pixels[3] = {strip.difference[0], strip.plain[0] + 4, strip.difference[0] + 4};
            for (int block = from; block < end; block++)
                for (int h = 0; h < 3; h++) {
                    const int part = 3 * v + h;
                    const int16_t *weights = view->winograd + (block * PARTS + part) * part_weights;
                    for (int t = 0; t < TILES; t += TILES_AT_ONCE)
                        multiply_tiles(pixels[h] + 8 * t, weights, rows, products[block - from][part][t]);
                }
        }
        for (int channel = 16 * from; channel < 16 * end; channel += LANES)
            finish_tile_row(shape, &products[channel / 16 - from][0][0][channel % 16], view->scale + channel,
                            bias + channel, out,
                            moved(shape, place_of(shape, first, channel), (size_t)(2 * tile_row * OUT)));
    }
}

static void winograd_forward(const struct farm_conv_u8_shape *shape, const struct farm_conv_u8_packed *view,
                             const float *bias, const uint8_t *const *planes, const struct farm_conv_u8_work *work,
                             void *out, size_t first) {
    (void)work;
    for (int tile_row = 0; tile_row < TILES; tile_row++)
        forward_tile_row(shape, view, bias, planes, tile_row, out, first);
}

// The gradient's sums run over tiles, so both factors hold two tiles side by side in each element.
static struct farm_conv_u8_work winograd_place(const struct farm_conv_u8_shape *shape, void *scratch, size_t *bytes) {
    const size_t rows = 4 * (size_t)farm_conv_u8_planes(shape), outputs = (size_t)shape->outputs;
    const size_t sizes[] = {3 * rows * PAIRS * 4, outputs * PARTS * PAIRS, outputs * PARTS * rows * 4,
                            outputs * 4 * rows * 4};
    return farm_conv_u8_place(shape, scratch, sizes, bytes);
}

// LANES channels of one tile: 2x2 output gradients → 9 parts: e0, e0 + e1, e1 in both directions.
static inline void gradient_parts(const struct farm_conv_u8_shape *shape, const void *dout, struct place at,
                                  floats inverse, vector part[PARTS]) {
    vector e[2][2];
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        const floats d = load_out(dout, moved(shape, at, i / 2 * OUT + i % 2), shape->bf16);
        e[i / 2][i % 2] = vector_round(d * inverse);
    }
    const vector column[3][2] = {
        {e[0][0], e[0][1]}, {vector_add(e[0][0], e[1][0]), vector_add(e[0][1], e[1][1])}, {e[1][0], e[1][1]}};
#pragma GCC unroll 3
    for (int v = 0; v < 3; v++) {
        part[3 * v] = column[v][0];
        part[3 * v + 1] = vector_add(column[v][0], column[v][1]);
        part[3 * v + 2] = column[v][1];
    }
}

// LANES channels: quantises and transforms all tiles. gradients: [9][50][16][2] from those channels on.
static void transform_gradients(const struct farm_conv_u8_shape *shape, const void *dout, struct place first,
                                const float *inverse, int16_t *gradients) {
    const floats inv = floats_load(inverse);
    for (int pair = 0; pair < PAIRS; pair++) {
        const int tile_row = pair / (TILES / 2), tile = pair % (TILES / 2) * 2;
        const struct place at = moved(shape, first, (size_t)(2 * tile_row * OUT + 2 * tile));
        vector left[PARTS], right[PARTS];
        gradient_parts(shape, dout, at, inv, left);
        gradient_parts(shape, dout, moved(shape, at, 2), inv, right);
#pragma GCC unroll 9
        for (int part = 0; part < PARTS; part++)
            vector_store(gradients + (part * PAIRS + pair) * 32, vector_pair(left[part], right[part]));
    }
}

// Two tiles side by side, the halves of 16 pixels, in pairs: pixels 0-3 of both, then 4-7.
static inline __m256i paired(__m256i pixels) {
    const __m256i order = _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15, 0, 1, 8, 9, 2, 3, 10,
                                           11, 4, 5, 12, 13, 6, 7, 14, 15);
    return _mm256_shuffle_epi8(_mm256_permute4x64_epi64(pixels, 0xd8), order);
}

// A row's vertical part v, of 5 tile pairs: differences [5][8][2] of parts m0 and m2, plain pixels [5][4][2] of m1.
static inline void pair_row(const uint8_t *first, int v, int zero, int16_t *difference, int16_t *plain) {
    __m256i here = vertical_part(first, v, 0, zero);
#pragma GCC unroll 5
    for (int x = 0; x < WIDE; x += 16) {
        const __m256i after = vertical_part(first, v, x + 16, zero);
        _mm256_storeu_si256((__m256i *)(difference + x), paired(minus_right(here, after)));
        _mm_storeu_si128((__m128i *)(plain + x / 2), _mm256_extracti128_si256(paired(here), 1));
        here = after;
    }
}

// Vertical part v of one observation's pixels: differences [rows][50][8][2], then plain pixels [rows][50][4][2].
static void transform_pixels(const struct farm_conv_u8_shape *shape, const uint8_t *const *planes, int v,
                             int16_t *pixels) {
    enum { HALF = TILES / 2 };
    const int rows = 4 * farm_conv_u8_planes(shape);
    int16_t *plain = pixels + rows * PAIRS * 16;
    for (int row = 0; row < rows; row++, pixels += PAIRS * 16, plain += PAIRS * 8) {
        const uint8_t *plane = planes[row / 4];
        if (plane == NULL) {
            memset(pixels, 0, PAIRS * 16 * sizeof *pixels);
            memset(plain, 0, PAIRS * 8 * sizeof *plain);
        }
        for (int tile_row = 0; tile_row < TILES && plane != NULL; tile_row++)
            pair_row(plane + (8 * tile_row + row % 4) * SIDE, v, farm_conv_u8_zero(shape),
                     pixels + tile_row * HALF * 16, plain + tile_row * HALF * 8);
    }
}

// Four pixels (of some rows each) times 16 channels, in all tiles. pixels: [row][50 pairs][stride], the first [4][2].
static inline __attribute__((always_inline)) void multiply_pixels(const int16_t *pixels, int stride,
                                                                  const int16_t *gradients, int32_t *products) {
    enum { PIXELS = 4 * PIXEL_ROWS_AT_ONCE };
    const int row = PAIRS * stride;
    vector sum[PIXELS][VECTORS];
#pragma GCC unroll 8
    for (int c = 0; c < PIXELS; c++)
        for (int i = 0; i < VECTORS; i++) sum[c][i] = vector_all(0);
    for (int pair = 0; pair < PAIRS; pair++, pixels += stride, gradients += 32) {
        vector gradient[VECTORS];
        for (int i = 0; i < VECTORS; i++) gradient[i] = vector_load(gradients + 2 * LANES * i);
#pragma GCC unroll 8
        for (int c = 0; c < PIXELS; c++) {
            const vector both = vector_broadcast(pixels + c / 4 * row + c % 4 * 2);
            for (int i = 0; i < VECTORS; i++) sum[c][i] = vector_add_pairs(sum[c][i], both, gradient[i]);
        }
    }
#pragma GCC unroll 8
    for (int c = 0; c < PIXELS; c++)
        for (int i = 0; i < VECTORS; i++) vector_store(products + 16 * c + LANES * i, sum[c][i]);
}

// Adds one observation's gradient of 16 channels to the total.
static void add_products(const int32_t *products, int pixels, const float *step, float *total) {
    for (int o = 0; o < 16; o += LANES) {
        const floats scale = floats_load(step + o);
        for (int pixel = 0; pixel < pixels; pixel++) {
            vector sum[2][2];
            sums_of_products(products + 16 * pixel + o, 16 * (size_t)pixels, sum);
#pragma GCC unroll 4
            for (int block = 0; block < 4; block++) {
                float *at = total + (block * pixels + pixel) * 16 + o;
                floats_store(at, floats_load(at) + floats_of(sum[block / 2][block % 2]) * scale);
            }
        }
    }
}

// Adds one observation's share of the gradient.
static void winograd_backward(const struct farm_conv_u8_shape *shape, const uint8_t *const *planes, const void *dout,
                              size_t first, const struct farm_conv_u8_work *work) {
    const int rows = 4 * farm_conv_u8_planes(shape), blocks = shape->outputs / 16;
    int16_t *pixels = (int16_t *)(void *)work->pixels, *gradients = (int16_t *)(void *)work->gradients;
    for (int o = 0; o < shape->outputs; o += LANES) {
        measure_gradients(shape, dout, first, o, work);
        transform_gradients(shape, dout, place_of(shape, first, o), work->inverse + o,
                            gradients + o / 16 * PARTS * PAIRS * 32 + o % 16 * 2);
    }
    for (int v = 0; v < 3; v++) {
        transform_pixels(shape, planes, v, pixels);
        for (int block = 0; block < blocks; block++)
            for (int h = 0; h < 3; h++) {
                const int part = block * PARTS + 3 * v + h;
                const int16_t *of_part = gradients + part * PAIRS * 32;
                for (int row = 0; row < rows; row += PIXEL_ROWS_AT_ONCE) {
                    int32_t *sums = work->sums + (part * rows + row) * 64;
                    if (h == 1)
                        multiply_pixels(pixels + (2 * rows + row) * PAIRS * 8, 8, of_part, sums);
                    else
                        multiply_pixels(pixels + row * PAIRS * 16 + 4 * h, 16, of_part, sums);
                }
            }
    }
    for (int block = 0; block < blocks; block++)
        add_products(work->sums + block * PARTS * rows * 64, 4 * rows, work->step + 16 * block,
                     work->total + block * 4 * rows * 64);
}

static void winograd_add_total(const struct farm_conv_u8_shape *shape, const struct farm_conv_u8_work *work,
                               float *dweights) {
    enum { K = FARM_CONV_U8_KERNEL };
    const int rows = 4 * farm_conv_u8_planes(shape), taps = farm_conv_u8_rows(shape) * K;
    for (int o = 0; o < shape->outputs; o++)
        for (int t = 0; t < taps; t++) {
            const int plane = t / (K * K), ky = t / K % K, kx = t % K;
            const int block = o / 16 * 4 + ky / 4 * 2 + kx / 4, pixel = (4 * plane + ky % 4) * 4 + kx % 4;
            dweights[o * taps + t] += work->total[(block * rows * 4 + pixel) * 16 + o % 16] / farm_conv_u8_one(shape);
        }
}

#endif
