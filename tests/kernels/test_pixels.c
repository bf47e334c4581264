// Normalised pixels against floating point; all loops of this CPU against the definition; sums.
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "kernels/pixels.h"
#include "kernels/random.h"

enum { COUNT = 1000 };

static uint8_t pixels[COUNT];
static int16_t mean[COUNT], gain[COUNT];
static float means[COUNT], variances[COUNT];

// Every kind of pixel: constant, seldom different, at either end.
static void draw(uint64_t seed) {
    for (uint64_t i = 0; i < COUNT; i++) {
        pixels[i] = (uint8_t)(256 * farm_random_uniform(seed, 1, i));
        means[i] = i % 5 == 0 ? 0 : i % 5 == 1 ? 255 : 255 * farm_random_uniform(seed, 2, i);
        variances[i] = means[i] * (255 - means[i]) * powf(farm_random_uniform(seed, 3, i), 8);
        const struct farm_pixel_scale scale = farm_pixel_scale_of(means[i], variances[i]);
        mean[i] = scale.mean, gain[i] = scale.gain;
    }
}

Test(kernels_pixels, are_within_half_a_step_of_the_formula) {
    draw(1);
    for (int i = 0; i < COUNT; i++)
        for (int x = 0; x < 256; x++) {
            const double exact = (x - (double)means[i]) / sqrt((double)variances[i] + 0.65);
            const double clipped = fmax(-128 / 25.4, fmin(5, exact));
            const double got = (double)farm_pixel_number(farm_pixel_normalised((uint8_t)x, mean[i], gain[i]));
            // half a step, the mean's half 64th, and the gain's half unit of at least 180
            const double bound = (0.5 + 1e-3) / 25.4 + 0.5 / 64 / sqrt((double)variances[i] + 0.65) + 5.0 / 360;
            cr_assert_leq(fabs(got - clipped), bound, "%d of mean %g, variance %g: %g, not %g", x, (double)means[i],
                          (double)variances[i], got, clipped);
        }
}

Test(kernels_pixels, the_mean_is_zero_and_no_gain_is_too) {
    const struct farm_pixel_scale scale = farm_pixel_scale_of(87, 4);
    cr_assert_eq(farm_pixel_normalised(87, scale.mean, scale.gain), FARM_PIXEL_ZERO);
    cr_assert_eq(farm_pixel_number(FARM_PIXEL_ZERO), 0);
    for (int x = 0; x < 256; x++) cr_assert_eq(farm_pixel_normalised((uint8_t)x, 0, 0), FARM_PIXEL_ZERO);
}

Test(kernels_pixels, all_loops_write_the_same_bytes_and_no_others) {
    for (uint64_t seed = 0; seed < 50; seed++) {
        uint8_t out[COUNT];
        const size_t count = (size_t)(seed * 13 % 200), from = (size_t)(seed * 7 % 64);
        draw(seed);
        memset(out, 77, sizeof out);
        farm_pixels_normalise(pixels + from, mean + from, gain + from, count, out);
        for (size_t i = 0; i < COUNT; i++)
            cr_assert_eq(out[i],
                         i < count ? farm_pixel_normalised(pixels[from + i], mean[from + i], gain[from + i]) : 77);
        farm_pixels_normalise(pixels, mean, gain, count, pixels);
        for (size_t i = 0; i + from < count; i++) cr_assert_eq(pixels[from + i], out[i], "in place");
    }
}

Test(kernels_pixels, sums_and_squares_fit_the_most_frames) {
    static uint32_t sum[COUNT], squares[COUNT], right[COUNT], right_squares[COUNT];
    for (uint64_t seed = 0; seed < 20; seed++) {
        draw(seed);
        farm_pixels_add(pixels, COUNT - seed, sum, squares);
        for (size_t i = 0; i < COUNT - seed; i++) {
            right[i] += pixels[i];
            right_squares[i] += (uint32_t)pixels[i] * pixels[i];
        }
    }
    cr_assert_arr_eq(sum, right, sizeof sum);
    cr_assert_arr_eq(squares, right_squares, sizeof squares);
    cr_assert_leq((uint64_t)FARM_PIXELS_SUM_MAX * 255 * 255, UINT32_MAX);
}
