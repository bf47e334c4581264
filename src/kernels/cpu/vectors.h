// Vectors of channels for loops that are compiled for several instruction sets: eight floats with AVX2, else four.
#ifndef FARM_KERNELS_CPU_VECTORS_H
#define FARM_KERNELS_CPU_VECTORS_H

#include <stdint.h>
#include <string.h>

#ifdef __AVX2__
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int32_t wholes __attribute__((vector_size(4 * LANES)));

static inline floats floats_load(const float *from) {
    floats x;
    memcpy(&x, from, sizeof x);
    return x;
}
static inline void floats_store(float *to, floats x) {
    memcpy(to, &x, sizeof x);
}

static inline int least(int a, int b) {
    return a < b ? a : b;
}
static inline int most(int a, int b) {
    return a > b ? a : b;
}

#endif
