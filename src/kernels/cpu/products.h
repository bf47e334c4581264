// A tile of a product of matrices whose sums stay in registers; for loops that are compiled several times (vectors.h),
// with sums of products fused where the CPU can.
#ifndef FARM_KERNELS_CPU_PRODUCTS_H
#define FARM_KERNELS_CPU_PRODUCTS_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/cpu/vectors.h"

enum { ROWS = 6, PANEL = 2 * LANES }; // the most rows and columns of a tile

// to[r][n] = sum over k < depth of a[r a_row + k a_step] b[k b_step + n]; r < rows <= ROWS, n < vectors * LANES.
// add_to: += instead.
static inline __attribute__((always_inline)) void multiply(int rows, int vectors, const float *a, size_t a_row,
                                                           size_t a_step, const float *b, size_t b_step, int depth,
                                                           float *to, size_t to_row, bool add_to) {
    floats sum[ROWS][2];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            sum[r][v] = add_to ? floats_load(to + (size_t)r * to_row + v * LANES) : (floats){0};
    for (int k = 0; k < depth; k++, a += a_step, b += b_step) {
        floats right[2];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) right[v] = floats_load(b + v * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            const float left = a[(size_t)r * a_row];
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) sum[r][v] += left * right[v];
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) floats_store(to + (size_t)r * to_row + v * LANES, sum[r][v]);
}

#endif
