// Vectors of channels for loops that are compiled for several instruction sets: eight floats with AVX2, else four.
#ifndef FARM_KERNELS_CPU_VECTORS_H
#define FARM_KERNELS_CPU_VECTORS_H

#include <stdint.h>
#include <string.h>

#include "kernels/bf16.h"

#ifdef __AVX2__
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
typedef float floats __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef int32_t wholes __attribute__((vector_size(4 * LANES)));

static inline floats floats_load(const float *from) {
    floats x;
    memcpy(&x, from, sizeof x);
    return x;
}
static inline void floats_store(float *to, floats x) {
    memcpy(to, &x, sizeof x);
}

// Numbers from `at` on of an array of bf16 or f32.
static inline __attribute__((always_inline)) floats load(const void *from, bool bf16, size_t at) {
    floats x;
    if (bf16) {
        halves half;
        memcpy(&half, (const uint16_t *)from + at, sizeof half);
        return (floats)(__builtin_convertvector(half, wholes) << 16);
    }
    memcpy(&x, (const float *)from + at, sizeof x);
    return x;
}

static inline __attribute__((always_inline)) void store(void *to, bool bf16, size_t at, floats x) {
    if (!bf16) {
        memcpy((float *)to + at, &x, sizeof x);
        return;
    }
    const wholes bits = (wholes)x, nan = x != x; // farm_bf16 of each
    const wholes rounded = (nan & (bits | 0x400000)) | (~nan & (bits + 0x7fff + (bits >> 16 & 1)));
    const halves half = __builtin_convertvector(rounded >> 16, halves);
    memcpy((uint16_t *)to + at, &half, sizeof half);
}

static inline int least(int a, int b) {
    return a < b ? a : b;
}
static inline int most(int a, int b) {
    return a > b ? a : b;
}

#endif
