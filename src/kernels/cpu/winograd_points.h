// Winograd's minimal filtering in one dimension, six inputs at a time: 4 outputs of 3 taps or 5 of 2 from the products
// at six points, and the transpose of each step. Over vectors of channels. Included by winograd_loops.h.
#ifndef FARM_KERNELS_CPU_WINOGRAD_POINTS_H
#define FARM_KERNELS_CPU_WINOGRAD_POINTS_H

#include "kernels/cpu/vectors.h"

enum { SIDE = 6 };

// The points are 0, 1, -1, B, -B and infinity.
#define B  0.5f
#define B2 (B * B)

// What six inputs are at the points: the transpose of interpolation (times what points_of_kernel divides by).
static inline void points_of_input(const floats d[SIDE], floats p[SIDE]) {
    const floats even = d[4] - B2 * d[2], odd = d[3] - B2 * d[1];
    const floats even_b = d[4] - d[2], odd_b = d[3] - d[1];
    p[0] = even_b + B2 * (d[0] - d[2]);
    p[1] = even + odd;
    p[2] = even - odd;
    p[3] = even_b + B * odd_b;
    p[4] = even_b - B * odd_b;
    p[5] = d[5] - d[3] - B2 * odd_b;
}

// The transpose of it: what gradients at the points mean for the inputs.
static inline void inputs_of_points(const floats p[SIDE], floats d[SIDE]) {
    const floats even = p[1] + p[2], odd = p[1] - p[2];
    const floats even_b = p[0] + (p[3] + p[4]), odd_b = B * (p[3] - p[4]) - B2 * p[5];
    d[0] = B2 * p[0];
    d[1] = -B2 * odd - odd_b;
    d[2] = -B2 * (p[0] + even) - even_b;
    d[3] = odd + odd_b - p[5];
    d[4] = even + even_b;
    d[5] = p[5];
}

// `count` outputs (4 or 5) from the products at the points.
static inline void outputs_of_points(int count, const floats p[SIDE], floats y[5]) {
    const floats even = p[1] + p[2], odd = p[1] - p[2], even_b = p[3] + p[4], odd_b = p[3] - p[4];
    y[0] = p[0] + (even + even_b);
    y[1] = odd + B * odd_b;
    y[2] = even + B2 * even_b;
    y[3] = odd + B2 * B * odd_b;
    if (count == 4)
        y[3] += p[5];
    else
        y[4] = even + p[5] + B2 * B2 * even_b;
}

// The transpose of it: what `count` gradients of outputs mean at the points.
static inline void points_of_gradient(int count, const floats y[5], floats p[SIDE]) {
    floats even = y[2], even_b = y[2];
    if (count == 5) {
        even += y[4];
        even_b += B2 * y[4];
    }
    even += y[0];
    even_b = y[0] + B2 * even_b;
    const floats odd = y[1] + y[3], odd_b = y[1] + B2 * y[3];
    p[0] = y[0];
    p[1] = even + odd;
    p[2] = even - odd;
    p[3] = even_b + B * odd_b;
    p[4] = even_b - B * odd_b;
    p[5] = y[count - 1];
}

// Lagrange's interpolation divides by AT_0 at 0, by AT_1 at 1 and -1, by AT_B at B and -B.
#define AT_0 B2
#define AT_1 (2 * (1 - B2))
#define AT_B (2 * B2 * (B2 - 1))

// The points of a kernel of `count` numbers (3 or 2).
static inline void points_of_kernel(int count, const floats g[3], floats p[SIDE]) {
    floats even = g[0], even_b = g[0];
    if (count == 3) {
        even += g[2];
        even_b += B2 * g[2];
    }
    p[0] = g[0] * (1 / AT_0);
    p[1] = (even + g[1]) * (1 / AT_1);
    p[2] = (even - g[1]) * (1 / AT_1);
    p[3] = (even_b + B * g[1]) * (1 / AT_B);
    p[4] = (even_b - B * g[1]) * (1 / AT_B);
    p[5] = g[count - 1];
}

// The transpose of it.
static inline void kernel_of_points(int count, const floats p[SIDE], floats g[3]) {
    const floats even = (p[1] + p[2]) * (1 / AT_1), odd = (p[1] - p[2]) * (1 / AT_1);
    const floats even_b = (p[3] + p[4]) * (1 / AT_B), odd_b = (p[3] - p[4]) * (1 / AT_B);
    g[0] = p[0] * (1 / AT_0) + (even + even_b);
    g[1] = odd + B * odd_b;
    if (count == 2)
        g[1] += p[5];
    else
        g[2] = even + p[5] + B2 * even_b;
}

#endif
