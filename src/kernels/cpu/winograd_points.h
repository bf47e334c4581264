// Winograd's minimal filtering in one dimension, and the transpose of each step, over vectors of channels. 4 outputs of
// 3 taps come from six inputs and the products at the points 0, 1, -1, 1/2, -1/2 and infinity; 3 outputs of 2 taps from
// four inputs and the points 0, 1, -1 and infinity. `taps` is a constant. Included by winograd_loops.h.
#ifndef FARM_KERNELS_CPU_WINOGRAD_POINTS_H
#define FARM_KERNELS_CPU_WINOGRAD_POINTS_H

#include "kernels/cpu/vectors.h"

enum { TAPS = 3, TILE = TAPS + 1, SIDE = 2 * TAPS }; // the most taps; outputs and inputs of a tile, as points

// What the inputs are at the points: the transpose of interpolation (times what points_of_kernel divides by).
static inline void points_of_input(int taps, const floats d[SIDE], floats p[SIDE]) {
    if (taps == 2) {
        p[0] = d[0] - d[2]; // divided by -1 here
        p[1] = d[2] + d[1];
        p[2] = d[2] - d[1];
        p[3] = d[3] - d[1];
        return;
    }
    const floats even = d[4] - 0.25f * d[2], odd = d[3] - 0.25f * d[1];
    const floats even_half = d[4] - d[2], odd_half = d[3] - d[1];
    p[0] = even_half + 0.25f * (d[0] - d[2]);
    p[1] = even + odd;
    p[2] = even - odd;
    p[3] = even_half + 0.5f * odd_half;
    p[4] = even_half - 0.5f * odd_half;
    p[5] = d[5] - d[3] - 0.25f * odd_half;
}

// The transpose of it: what gradients at the points mean for the inputs.
static inline void inputs_of_points(int taps, const floats p[SIDE], floats d[SIDE]) {
    const floats even = p[1] + p[2], odd = p[1] - p[2];
    if (taps == 2) {
        d[0] = p[0];
        d[1] = odd - p[3];
        d[2] = even - p[0];
        d[3] = p[3];
        return;
    }
    const floats even_half = p[0] + (p[3] + p[4]), odd_half = 0.5f * (p[3] - p[4]) - 0.25f * p[5];
    d[0] = 0.25f * p[0];
    d[1] = -0.25f * odd - odd_half;
    d[2] = -0.25f * (p[0] + even) - even_half;
    d[3] = odd + odd_half - p[5];
    d[4] = even + even_half;
    d[5] = p[5];
}

// Outputs from the products at the points.
static inline void outputs_of_points(int taps, const floats p[SIDE], floats y[TILE]) {
    const floats even = p[1] + p[2], odd = p[1] - p[2];
    if (taps == 2) {
        y[0] = p[0] + even;
        y[1] = odd;
        y[2] = even + p[3];
        return;
    }
    const floats even_half = p[3] + p[4], odd_half = p[3] - p[4];
    y[0] = p[0] + (even + even_half);
    y[1] = odd + 0.5f * odd_half;
    y[2] = even + 0.25f * even_half;
    y[3] = odd + 0.125f * odd_half + p[5];
}

// The transpose of it: what gradients of outputs mean at the points.
static inline void points_of_gradient(int taps, const floats y[TILE], floats p[SIDE]) {
    const floats even = y[0] + y[2], odd = taps == 2 ? y[1] : y[1] + y[3];
    p[0] = y[0];
    p[1] = even + odd;
    p[2] = even - odd;
    if (taps == 3) {
        const floats even_half = y[0] + 0.25f * y[2], odd_half = y[1] + 0.25f * y[3];
        p[3] = even_half + 0.5f * odd_half;
        p[4] = even_half - 0.5f * odd_half;
    }
    p[2 * taps - 1] = y[taps];
}

// A kernel's taps at the points. Lagrange's interpolation divides by the product of a point's distances to the others.
static inline void points_of_kernel(int taps, const floats g[TAPS], floats p[SIDE]) {
    const floats even = taps == 2 ? g[0] : g[0] + g[2];
    const float one = taps == 2 ? 1 / 2.f : 2 / 3.f, half = -8 / 3.f; // 1 over that at 1 and -1, at 1/2 and -1/2
    p[0] = taps == 2 ? g[0] : 4 * g[0];
    p[1] = (even + g[1]) * one;
    p[2] = (even - g[1]) * one;
    if (taps == 3) {
        const floats even_half = g[0] + 0.25f * g[2];
        p[3] = (even_half + 0.5f * g[1]) * half;
        p[4] = (even_half - 0.5f * g[1]) * half;
    }
    p[2 * taps - 1] = g[taps - 1];
}

// The transpose of it.
static inline void kernel_of_points(int taps, const floats p[SIDE], floats g[TAPS]) {
    const float one = taps == 2 ? 1 / 2.f : 2 / 3.f, half = -8 / 3.f;
    const floats even = (p[1] + p[2]) * one, odd = (p[1] - p[2]) * one;
    if (taps == 2) {
        g[0] = p[0] + even;
        g[1] = odd + p[3];
        return;
    }
    const floats even_half = (p[3] + p[4]) * half, odd_half = (p[3] - p[4]) * half;
    g[0] = 4 * p[0] + (even + even_half);
    g[1] = odd + 0.5f * odd_half;
    g[2] = even + p[5] + 0.25f * even_half;
}

#endif
