// See pixels.h.
#include "kernels/pixels.h"

#include <math.h>

struct farm_pixel_scale farm_pixel_scale_of(float mean, float variance) {
    return (struct farm_pixel_scale){.mean = (int16_t)lrintf(64 * mean),
                                     .gain = (int16_t)lrintf(512 * FARM_PIXEL_ONE / sqrtf(variance + 0.65f))};
}

static void normalise_loop(const uint8_t *pixels, const int16_t *mean, const int16_t *gain, size_t count,
                           uint8_t *out) {
    for (size_t i = 0; i < count; i++) out[i] = farm_pixel_normalised(pixels[i], mean[i], gain[i]);
}

static void add_loop(const uint8_t *pixels, size_t count, uint32_t *sum, uint32_t *squares) {
    for (size_t i = 0; i < count; i++) {
        sum[i] += pixels[i];
        squares[i] += (uint32_t)pixels[i] * pixels[i];
    }
}

static const struct farm_pixels_loops *loops_of_this_cpu(void) {
    static const struct farm_pixels_loops portable = {normalise_loop, add_loop};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return &farm_pixels_avx2;
#endif
    return &portable;
}

void farm_pixels_normalise(const uint8_t *pixels, const int16_t *mean, const int16_t *gain, size_t count,
                           uint8_t *out) {
    loops_of_this_cpu()->normalise(pixels, mean, gain, count, out);
}

void farm_pixels_add(const uint8_t *pixels, size_t count, uint32_t *sum, uint32_t *squares) {
    loops_of_this_cpu()->add(pixels, count, sum, squares);
}
