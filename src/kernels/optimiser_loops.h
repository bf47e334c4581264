// The AVX2 versions of optimiser.c's loops. For optimiser.c only.
#ifndef FARM_KERNELS_OPTIMISER_LOOPS_H
#define FARM_KERNELS_OPTIMISER_LOOPS_H

#include "kernels/optimiser.h"

// Sum of x[i]^2 in double precision.
double farm_sum_squares_avx2(const float *x, size_t count);

// farm_rmsprop_update and farm_adam_update over `count` parameters. The vectors must not overlap.
void farm_rmsprop_loop_avx2(const struct farm_optimiser_factors *factors, const float *grads, float *second,
                            float *params, size_t count);
void farm_adam_loop_avx2(const struct farm_optimiser_factors *factors, const float *grads, float *first, float *second,
                         float *params, size_t count);

#endif
