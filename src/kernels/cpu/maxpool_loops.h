// The loops of kernels/maxpool.h over vectors of channels, compiled by each including file for its instructions.
#ifndef FARM_KERNELS_CPU_MAXPOOL_LOOPS_H
#define FARM_KERNELS_CPU_MAXPOOL_LOOPS_H

#include "kernels/cpu/vectors.h"
#include "kernels/maxpool.h"

typedef uint8_t bytes __attribute__((vector_size(LANES)));

static inline size_t outputs_of(const struct farm_pool *p) {
    return (size_t)p->channels * (size_t)(p->out_height * p->out_width);
}

// Where a vector of channels begins, in an observation's picture of `positions` positions.
static inline size_t plane_of(int block, int channel, int positions) {
    return (size_t)(channel / block * block) * (size_t)positions + (size_t)(channel % block);
}

struct maximum {
    floats value;
    bytes tap;
};

// Of places [i, i_end) x [j, j_end), all in the picture, of a kernel whose place (0, 0) is or would be element `first`.
static inline __attribute__((always_inline)) struct maximum maximum_of(int kernel, bool bf16, const void *in,
                                                                       ptrdiff_t first, ptrdiff_t row, ptrdiff_t column,
                                                                       int i, int i_end, int j, int j_end) {
    const wholes zero = {0};
    wholes which = zero + (i * kernel + j), best = (wholes)load(in, bf16, (size_t)(first + i * row + j * column));
    for (; i < i_end; i++)
        for (int x = j; x < j_end; x++) {
            const wholes index = zero + (i * kernel + x);
            const floats value = load(in, bf16, (size_t)(first + i * row + x * column));
            const wholes more = (value > (floats)best) | ((value != value) & ((floats)best == (floats)best));
            best = (more & (wholes)value) | (~more & best);
            which = (more & index) | (~more & which);
        }
    return (struct maximum){(floats)best, __builtin_convertvector(which, bytes)};
}

// One row of outputs of a vector of channels.
static inline __attribute__((always_inline)) void forward_row(const struct farm_pool *p, int block, bool bf16, int y,
                                                              const void *in, size_t in_plane, void *out,
                                                              size_t out_plane, uint8_t *taps) {
    const ptrdiff_t column = block, row = p->width * column;
    const int top = y * p->stride - p->pad_top, i = most(0, -top), i_end = least(p->kernel, p->height - top);
    for (int x = 0; x < p->out_width; x++) {
        const int left = x * p->stride - p->pad_left, j = most(0, -left), j_end = least(p->kernel, p->width - left);
        const ptrdiff_t first = (ptrdiff_t)in_plane + top * row + left * column;
        const size_t to = out_plane + (size_t)((y * p->out_width + x) * block);
        const bool usual = p->kernel == 3 && i_end - i == 3 && j_end - j == 3;
        const struct maximum m = usual ? maximum_of(3, bf16, in, first, row, column, 0, 3, 0, 3)
                                       : maximum_of(p->kernel, bf16, in, first, row, column, i, i_end, j, j_end);
        store(out, bf16, to, m.value);
        if (taps) memcpy(taps + to, &m.tap, sizeof m.tap);
    }
}

static inline __attribute__((always_inline)) void forward_as(const struct farm_pool *p, int block, bool bf16,
                                                             const void *in, int batch, void *out, uint8_t *taps) {
    const size_t in_row = (size_t)p->channels * (size_t)(p->height * p->width);
    for (size_t b = 0; b < (size_t)batch; b++)
        for (int c = 0; c < p->channels; c += LANES)
            for (int y = 0; y < p->out_height; y++)
                forward_row(p, block, bf16, y, in, b * in_row + plane_of(block, c, p->height * p->width), out,
                            b * outputs_of(p) + plane_of(block, c, p->out_height * p->out_width), taps);
}

// Adds to one row's sums, [pad + width + kernel], what output row `y` gives through row i of its kernels.
static inline __attribute__((always_inline)) void add_row(const struct farm_pool *p, int block, int kernel, bool bf16,
                                                          int y, int i, const void *dout, size_t plane,
                                                          const uint8_t *taps, floats *sums) {
    for (int x = 0; x < p->out_width; x++, sums += p->stride) {
        const size_t from = plane + (size_t)((y * p->out_width + x) * block);
        const wholes gradient = (wholes)load(dout, bf16, from);
        bytes tap;
        memcpy(&tap, taps + from, sizeof tap);
        const wholes which = __builtin_convertvector(tap, wholes) - i * kernel;
#pragma GCC unroll 3
        for (int j = 0; j < kernel; j++) sums[j] += (floats)((which == j) & gradient);
    }
}

static inline __attribute__((always_inline)) void backward_as(const struct farm_pool *p, int block, bool bf16,
                                                              const void *dout, const uint8_t *taps, int batch,
                                                              void *din) {
    const size_t in_row = (size_t)p->channels * (size_t)(p->height * p->width);
    floats sums[FARM_MAXPOOL_WIDTH_MAX + 2 * FARM_POOL_KERNEL_MAX];
    for (size_t b = 0; b < (size_t)batch; b++)
        for (int c = 0; c < p->channels; c += LANES) {
            const size_t to = b * in_row + plane_of(block, c, p->height * p->width);
            const size_t from = b * outputs_of(p) + plane_of(block, c, p->out_height * p->out_width);
            for (int y = 0; y < p->height; y++) {
                const int row = y + p->pad_top, last = least(p->out_height - 1, row / p->stride);
                memset(sums, 0, (size_t)(p->pad_left + p->width + p->kernel) * sizeof *sums);
                for (int o = last; o >= 0 && row - o * p->stride < p->kernel; o--)
                    if (p->kernel == 3)
                        add_row(p, block, 3, bf16, o, row - o * p->stride, dout, from, taps, sums);
                    else
                        add_row(p, block, p->kernel, bf16, o, row - o * p->stride, dout, from, taps, sums);
                for (int x = 0; x < p->width; x++)
                    store(din, bf16, to + (size_t)((y * p->width + x) * block), sums[p->pad_left + x]);
            }
        }
}

static void forward(const struct farm_pool *p, int block, bool bf16, const void *in, int batch, void *out,
                    uint8_t *taps) {
    if (bf16)
        forward_as(p, block, true, in, batch, out, taps);
    else
        forward_as(p, block, false, in, batch, out, taps);
}

static void backward(const struct farm_pool *p, int block, bool bf16, const void *dout, const uint8_t *taps, int batch,
                     void *din) {
    if (bf16)
        backward_as(p, block, true, dout, taps, batch, din);
    else
        backward_as(p, block, false, dout, taps, batch, din);
}

#endif
