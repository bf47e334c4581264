// Pixels with mean 0 and deviation 1 (normalise_observations): each by its own mean and deviation over the steps so
// far, clipped to +-5. The result is a byte, 25.4 steps of which are 1 and 128 of which is 0, so that the first
// convolution reads it as it reads pixels; in whole numbers, so that all backends compute the same bits. Pure
// arithmetic, for every process that infers or trains. The statistics are in learner/statistics.h.
#ifndef FARM_KERNELS_PIXELS_H
#define FARM_KERNELS_PIXELS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/device.h"

// The byte of 0, and the bytes between 0 and 1: (byte - zero) / one.
enum { FARM_PIXEL_ZERO = 128 };
#define FARM_PIXEL_ONE 25.4f // 127 / 5

// A pixel's mean in 64ths and 512 * FARM_PIXEL_ONE / deviation, so that (64 x - mean) * gain / 2^15 are whole steps.
struct farm_pixel_scale {
    int16_t mean, gain;
};

// The variance is raised by 0.65 = 255^2 * 1e-5, so that the gain fits.
struct farm_pixel_scale farm_pixel_scale_of(float mean, float variance);

static inline FARM_HD uint8_t farm_pixel_normalised(uint8_t pixel, int16_t mean, int16_t gain) {
    const int steps = ((pixel * 64 - mean) * gain + (1 << 14)) >> 15;
    return (uint8_t)(FARM_PIXEL_ZERO + (steps < -128 ? -128 : steps > 127 ? 127 : steps));
}

static inline FARM_HD float farm_pixel_number(uint8_t normalised) {
    return (float)(normalised - FARM_PIXEL_ZERO) / FARM_PIXEL_ONE;
}

// out[i] = farm_pixel_normalised(pixels[i], mean[i], gain[i]); out may be pixels.
void farm_pixels_normalise(const uint8_t *pixels, const int16_t *mean, const int16_t *gain, size_t count, uint8_t *out);

// sum[i] += pixels[i], squares[i] += its square. At most 66,051 frames fit.
enum { FARM_PIXELS_SUM_MAX = 66051 };
void farm_pixels_add(const uint8_t *pixels, size_t count, uint32_t *sum, uint32_t *squares);

// Private to cpu/pixels*.c.
struct farm_pixels_loops {
    void (*normalise)(const uint8_t *pixels, const int16_t *mean, const int16_t *gain, size_t count, uint8_t *out);
    void (*add)(const uint8_t *pixels, size_t count, uint32_t *sum, uint32_t *squares);
};
extern const struct farm_pixels_loops farm_pixels_avx2;

#endif
