// Maxima of pictures under a square kernel, and their gradient. f32 or bf16, blocks of channels. Padding is never the
// maximum; of equal numbers the first one, row by row, is; NaN exceeds all. Runs in an executor's thread; pure.
#ifndef FARM_KERNELS_MAXPOOL_H
#define FARM_KERNELS_MAXPOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FARM_MAXPOOL_KERNEL_MAX = 15, FARM_MAXPOOL_WIDTH_MAX = 1024 };

struct farm_maxpool_shape {
    int kernel, stride; // 1 <= stride <= kernel
    int pad[2];         // rows above, columns left, less than the kernel
    int channels;       // a multiple of 8
    int height, width;
    int out_height, out_width; // each kernel holds at least one pixel
    int block;                 // adjacent channels: 8, 16, or all
    bool bf16;                 // else f32
};

static inline size_t farm_maxpool_outputs(const struct farm_maxpool_shape *shape) {
    return (size_t)shape->channels * (size_t)shape->out_height * (size_t)shape->out_width;
}

// taps: [batch][outputs], receives which place of the kernel holds each maximum; NULL: not needed.
void farm_maxpool_forward(const struct farm_maxpool_shape *shape, const void *in, int batch, void *out, uint8_t *taps);

// din = the gradient by the input; sums are f32.
void farm_maxpool_backward(const struct farm_maxpool_shape *shape, const void *dout, const uint8_t *taps, int batch,
                           void *din);

// The above, compiled for other instructions.
struct farm_maxpool_loops {
    void (*forward)(const struct farm_maxpool_shape *, const void *, int, void *, uint8_t *);
    void (*backward)(const struct farm_maxpool_shape *, const void *, const uint8_t *, int, void *);
};
extern const struct farm_maxpool_loops farm_maxpool_avx2;

#endif
