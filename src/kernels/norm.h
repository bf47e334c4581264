// Layer normalisation (Ba, Kiros and Hinton 2016, "Layer normalization") with an activation after it, or an activation
// alone. A row is x: a vector, or a pixel's channels:
//
//   n = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon),   z = weight n + bias,   y = f(z)
//   dz = dy f'(z),   dweight += dz n,   dbias += dz
//   dn = weight dz,   dx = (dn - mean(dn) - n mean(dn n)) / sqrt(...)
//
// The loops run on the CPU, in an executor's thread, in vectors of channels; cuda/layers.cu computes the same. Sums are
// f32, in an order that depends on the sizes and the CPU's instructions alone.
#ifndef FARM_KERNELS_NORM_H
#define FARM_KERNELS_NORM_H

#include "kernels/layers.h"

#define FARM_NORM_EPSILON 1e-5f

struct farm_norm {
    enum farm_activation activation;
    bool bf16;            // pictures and their gradients, else f32
    int channels, padded; // padded: up to a whole vector of any CPU
    int positions, block; // a picture is [channels / block][positions][block], a vector has one position
    float *weight, *bias; // [padded], zeros beyond `channels`; NULL: the activation alone
};

struct farm_norm_pictures {
    const void *x, *dy;     // dy: the gradient by y; NULL: forward
    void *y, *dx;           // out: forward y; backward dx, if it is not NULL
    float *dweight, *dbias; // [channels], ADDED to; not read without weights
};

struct farm_norm_loops {
    // scratch: [FARM_NORM_SCRATCH][padded].
    void (*run)(const struct farm_norm *norm, const struct farm_norm_pictures *pictures, int batch, float *scratch);
    // out = dy f'(z) for RELU or TANH whose result is y; ADDED if out is not dy. All are whole vectors.
    void (*slope)(enum farm_activation kind, bool bf16, const void *y, const void *dy, void *out, size_t count);
};
enum { FARM_NORM_SCRATCH = 5, FARM_NORM_VECTOR = 8 };

// Of this CPU.
const struct farm_norm_loops *farm_norm_loops(void);

extern const struct farm_norm_loops farm_norm_portable, farm_norm_avx2;

#endif
