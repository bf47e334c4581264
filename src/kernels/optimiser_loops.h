// The loops that optimiser.c chooses at run time. For optimiser.c only.
#ifndef FARM_KERNELS_OPTIMISER_LOOPS_H
#define FARM_KERNELS_OPTIMISER_LOOPS_H

#include "kernels/optimiser.h"

// Vectors of `count` floats, which must not overlap.
struct farm_optimiser_loops {
    void (*add)(float *sum, const float *more, size_t count);
    double (*sum_squares)(const float *x, size_t count); // in double precision
    void (*rmsprop)(const struct farm_optimiser_factors *factors, const float *grads, float *second, float *params,
                    size_t count);
    void (*adam)(const struct farm_optimiser_factors *factors, const float *grads, float *first, float *second,
                 float *params, size_t count);
};
extern const struct farm_optimiser_loops farm_optimiser_avx2;

#endif
