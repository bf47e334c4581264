// The optimiser's loops with AVX2 and FMA: eight parameters at a time, the rest by the functions of optimiser.h. Equal
// to them within the rounding that fused multiply-add saves. optimiser.c chooses them at run time.
#include "kernels/optimiser_loops.h"

#include <immintrin.h>

static void add_loop(float *sum, const float *more, size_t count) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(sum + i, _mm256_add_ps(_mm256_loadu_ps(sum + i), _mm256_loadu_ps(more + i)));
    for (; i < count; i++) sum[i] += more[i];
}

static double sum_squares(const float *x, size_t count) {
    __m256d even = _mm256_setzero_pd(), odd = _mm256_setzero_pd();
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const __m256d a = _mm256_cvtps_pd(_mm_loadu_ps(x + i)), b = _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4));
        even = _mm256_fmadd_pd(a, a, even);
        odd = _mm256_fmadd_pd(b, b, odd);
    }
    double lanes[4];
    _mm256_storeu_pd(lanes, _mm256_add_pd(even, odd));
    double sum = lanes[0] + lanes[1] + lanes[2] + lanes[3];
    for (; i < count; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

static void rmsprop_loop(const struct farm_optimiser_factors *factors, const float *grads, float *second, float *params,
                         size_t count) {
    const __m256 scale = _mm256_set1_ps(factors->gradient_scale), rate = _mm256_set1_ps(factors->rate);
    const __m256 decay = _mm256_set1_ps(factors->second_decay), fresh = _mm256_set1_ps(1 - factors->second_decay);
    const __m256 epsilon = _mm256_set1_ps(factors->epsilon);
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const __m256 g = _mm256_mul_ps(_mm256_loadu_ps(grads + i), scale);
        const __m256 square = _mm256_mul_ps(_mm256_mul_ps(fresh, g), g);
        const __m256 s = _mm256_fmadd_ps(decay, _mm256_loadu_ps(second + i), square);
        const __m256 change = _mm256_div_ps(_mm256_mul_ps(rate, g), _mm256_sqrt_ps(_mm256_add_ps(s, epsilon)));
        _mm256_storeu_ps(second + i, s);
        _mm256_storeu_ps(params + i, _mm256_sub_ps(_mm256_loadu_ps(params + i), change));
    }
    for (; i < count; i++) farm_rmsprop_update(factors, grads[i], second + i, params + i);
}

static void adam_loop(const struct farm_optimiser_factors *factors, const float *grads, float *first, float *second,
                      float *params, size_t count) {
    const __m256 scale = _mm256_set1_ps(factors->gradient_scale), rate = _mm256_set1_ps(factors->rate);
    const __m256 decay1 = _mm256_set1_ps(factors->first_decay), fresh1 = _mm256_set1_ps(1 - factors->first_decay);
    const __m256 decay2 = _mm256_set1_ps(factors->second_decay), fresh2 = _mm256_set1_ps(1 - factors->second_decay);
    const __m256 epsilon = _mm256_set1_ps(factors->epsilon), root_scale = _mm256_set1_ps(factors->second_scale);
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const __m256 g = _mm256_mul_ps(_mm256_loadu_ps(grads + i), scale);
        const __m256 m = _mm256_fmadd_ps(decay1, _mm256_loadu_ps(first + i), _mm256_mul_ps(fresh1, g));
        const __m256 square = _mm256_mul_ps(_mm256_mul_ps(fresh2, g), g);
        const __m256 v = _mm256_fmadd_ps(decay2, _mm256_loadu_ps(second + i), square);
        const __m256 divisor = _mm256_fmadd_ps(_mm256_sqrt_ps(v), root_scale, epsilon);
        const __m256 change = _mm256_div_ps(_mm256_mul_ps(rate, m), divisor);
        _mm256_storeu_ps(first + i, m);
        _mm256_storeu_ps(second + i, v);
        _mm256_storeu_ps(params + i, _mm256_sub_ps(_mm256_loadu_ps(params + i), change));
    }
    for (; i < count; i++) farm_adam_update(factors, grads[i], first + i, second + i, params + i);
}

const struct farm_optimiser_loops farm_optimiser_avx2 = {add_loop, sum_squares, rmsprop_loop, adam_loop};
