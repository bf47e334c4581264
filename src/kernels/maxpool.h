// Pools of whole batches on the CPU, several channels at a time: farm_pool_maximum and farm_pool_gradient (layers.h) of
// f32 or bf16 pictures in blocks of channels; the sums of gradients are f32. Runs in an executor's thread; pure.
#ifndef FARM_KERNELS_MAXPOOL_H
#define FARM_KERNELS_MAXPOOL_H

#include "kernels/layers.h"

enum { FARM_MAXPOOL_WIDTH_MAX = 1024 };

// block: adjacent channels, 8, 16 or all. The extern loops take multiples of 8 channels and widths up to the bound.
struct farm_maxpool_loops {
    // taps: a byte for each output, receives which place of the kernel holds the maximum; NULL: not needed.
    void (*forward)(const struct farm_pool *pool, int block, bool bf16, const void *in, int batch, void *out,
                    uint8_t *taps);
    // din = the gradient by the input.
    void (*backward)(const struct farm_pool *pool, int block, bool bf16, const void *dout, const uint8_t *taps,
                     int batch, void *din);
};

// For this CPU and pool: plain ones, over all channels in one block, if others do not take it.
const struct farm_maxpool_loops *farm_maxpool_loops(const struct farm_pool *pool);

extern const struct farm_maxpool_loops farm_maxpool_portable, farm_maxpool_avx2;

#endif
