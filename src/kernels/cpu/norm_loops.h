// The loops of kernels/norm.h over vectors of channels, compiled by each including file for its instructions. A row is
// gathered into f32 numbers side by side, with zeros up to a whole vector, which stay in the first-level cache.
#ifndef FARM_KERNELS_CPU_NORM_LOOPS_H
#define FARM_KERNELS_CPU_NORM_LOOPS_H

#include "kernels/cpu/vectors.h"
#include "kernels/norm.h"

enum { ROWS_SUMMED = 64 };
#define INLINE static inline __attribute__((always_inline))

static float mean_of(floats sums, int channels) {
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++) sums[l] += sums[l + half];
    return sums[0] / (float)channels;
}

// Copies a row from pictures, or, with `put`, to those instead: position `row` % positions of one. Blocks are whole
// vectors, but for one of all channels. n: channels up to a whole vector.
INLINE void copy(const struct farm_norm *norm, const void *from, size_t row, size_t n, float *x, void *put) {
    const size_t channels = (size_t)norm->channels, positions = (size_t)norm->positions, block = (size_t)norm->block;
    size_t at = row / positions * positions * channels + row % positions * block, i;
    for (size_t c = 0; c < channels; c += block, at += positions * block) {
        for (i = 0; i + LANES <= block; i += LANES)
            if (put)
                store(put, norm->bf16, at + i, floats_load(x + c + i));
            else
                floats_store(x + c + i, load(from, norm->bf16, at + i));
        for (; i < block; i++)
            if (put)
                farm_number_put(put, norm->bf16, at + i, x[c + i]);
            else
                x[c + i] = farm_number_at(from, norm->bf16, at + i);
    }
    for (i = channels; i < n && !put; i++) x[i] = 0;
}

// x becomes n, and z weight n + bias. Returns the inverse of the root.
INLINE float normalise(const struct farm_norm *norm, size_t n, float *x, float *z) {
    floats sum = {0}, squares = {0};
    for (size_t i = 0; i < n; i += LANES) sum += floats_load(x + i);
    const float mean = mean_of(sum, norm->channels);
    for (size_t i = 0; i < n; i += LANES) floats_store(x + i, floats_load(x + i) - mean);
    for (size_t i = (size_t)norm->channels; i < n; i++) x[i] = 0;
    for (size_t i = 0; i < n; i += LANES) squares += floats_load(x + i) * floats_load(x + i);
    const float inverse = 1 / sqrtf(mean_of(squares, norm->channels) + FARM_NORM_EPSILON);
    for (size_t i = 0; i < n; i += LANES) {
        const floats number = floats_load(x + i) * inverse;
        floats_store(x + i, number);
        floats_store(z + i, floats_load(norm->weight + i) * number + floats_load(norm->bias + i));
    }
    return inverse;
}

// z becomes f(z), or, with d, d becomes d f'(z).
INLINE void activate_as(enum farm_activation kind, size_t n, float *restrict z, float *restrict d) {
    if (d)
        for (size_t i = 0; i < n; i++) d[i] *= farm_slope_at(kind, z[i]);
    else
        for (size_t i = 0; i < n; i++) z[i] = farm_slope_apply(kind, z[i]);
}

static void activate(enum farm_activation kind, size_t n, float *z, float *d) {
    if (kind == FARM_ACTIVATION_RELU) activate_as(FARM_ACTIVATION_RELU, n, z, d);
    if (kind == FARM_ACTIVATION_TANH) activate_as(FARM_ACTIVATION_TANH, n, z, d);
    if (kind == FARM_ACTIVATION_ELU) activate_as(FARM_ACTIVATION_ELU, n, z, d);
    if (kind == FARM_ACTIVATION_SILU) activate_as(FARM_ACTIVATION_SILU, n, z, d);
}

// d, which is dz, becomes dx; sums of dweight and dbias grow.
INLINE void differentiate(const struct farm_norm *norm, size_t n, float inverse, const float *x, float *d,
                          float *sums) {
    floats sum = {0}, products = {0};
    for (size_t i = 0; i < n; i += LANES) {
        const floats dz = floats_load(d + i), number = floats_load(x + i), dn = dz * floats_load(norm->weight + i);
        floats_store(sums + i, floats_load(sums + i) + dz * number);
        floats_store(sums + n + i, floats_load(sums + n + i) + dz);
        floats_store(d + i, dn);
        sum += dn;
        products += dn * number;
    }
    const float mean = mean_of(sum, norm->channels), product = mean_of(products, norm->channels);
    for (size_t i = 0; i < n; i += LANES)
        floats_store(d + i, inverse * (floats_load(d + i) - mean - floats_load(x + i) * product));
}

// Gradients of weights are summed over some rows before they are added: they lose less than in one long sum.
static void run(const struct farm_norm *norm, const struct farm_norm_pictures *p, int batch, float *scratch) {
    const size_t n = (size_t)norm->padded, rows = (size_t)batch * (size_t)norm->positions;
    float *x = scratch, *d = p->dy ? x + n : NULL, *z = norm->weight ? x + 2 * n : x, *sums = x + 3 * n;
    for (size_t i = 0; i < 2 * n && d && norm->weight; i++) sums[i] = 0;
    for (size_t r = 0; r < rows; r++) {
        copy(norm, p->x, r, n, x, NULL);
        const float inverse = norm->weight ? normalise(norm, n, x, z) : 0;
        if (d) copy(norm, p->dy, r, n, d, NULL);
        activate(norm->activation, n, z, d);
        if (d && norm->weight) differentiate(norm, n, inverse, x, d, sums);
        if (p->y || p->dx) copy(norm, p->x, r, n, d ? d : z, d ? p->dx : p->y);
        if (!d || !norm->weight || (r + 1 < rows && (r + 1) % ROWS_SUMMED)) continue;
        for (size_t i = 0; i < (size_t)norm->channels; i++) {
            p->dweight[i] += sums[i];
            p->dbias[i] += sums[n + i];
            sums[i] = sums[n + i] = 0;
        }
    }
}

static void slope(enum farm_activation kind, bool bf16, const void *y, const void *dy, void *out, size_t count) {
    for (size_t i = 0; i < count; i += LANES) {
        const floats result = load(y, bf16, i), d = load(dy, bf16, i);
        const floats by = kind == FARM_ACTIVATION_RELU ? (floats)((wholes)d & (result > 0)) : d * (1 - result * result);
        store(out, bf16, i, out == dy ? by : by + load(out, bf16, i));
    }
}

#endif
