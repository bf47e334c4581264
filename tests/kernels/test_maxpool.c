// Pools against their definition, in f32 and bf16, for all layouts and edges.
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/bf16.h"
#include "kernels/maxpool.h"
#include "kernels/random.h"

enum { BATCH = 2 };

static const struct farm_maxpool_shape shapes[] = {
    {.kernel = 3,
     .stride = 2,
     .channels = 16,
     .height = 9,
     .width = 12,
     .out_height = 5,
     .out_width = 6,
     .block = 8,
     .pad = {1, 0}},
    {.kernel = 3,
     .stride = 2,
     .channels = 32,
     .height = 4,
     .width = 1,
     .out_height = 2,
     .out_width = 1,
     .block = 16,
     .pad = {0, 1}},
    {.kernel = 3,
     .stride = 2,
     .channels = 24,
     .height = 1,
     .width = 7,
     .out_height = 1,
     .out_width = 4,
     .block = 24,
     .pad = {1, 1}},
    {.kernel = 4,
     .stride = 1,
     .channels = 8,
     .height = 6,
     .width = 5,
     .out_height = 6,
     .out_width = 5,
     .block = 8,
     .pad = {1, 2}},
};

// Where channel c of a position lies in an observation.
static size_t at(const struct farm_maxpool_shape *s, int c, int height, int width, int y, int x) {
    return (size_t)(((c / s->block * height + y) * width + x) * s->block + c % s->block);
}

// The definition: the first maximum of output (y, x) of channel c; returns where it lies.
static size_t source(const struct farm_maxpool_shape *s, const float *in, int c, int y, int x, int *tap) {
    size_t best = SIZE_MAX;
    for (int i = 0; i < s->kernel; i++)
        for (int j = 0; j < s->kernel; j++) {
            const int row = y * s->stride + i - s->pad[0], column = x * s->stride + j - s->pad[1];
            if (row < 0 || column < 0 || row >= s->height || column >= s->width) continue;
            const size_t here = at(s, c, s->height, s->width, row, column);
            if (best != SIZE_MAX && in[here] <= in[best]) continue;
            best = here;
            *tap = i * s->kernel + j;
        }
    return best;
}

static void check(struct farm_maxpool_shape s, bool bf16) {
    const size_t inputs = (size_t)(s.channels * s.height * s.width), outputs = farm_maxpool_outputs(&s);
    float in[BATCH * 4096], dout[BATCH * 4096], numbers[BATCH * 4096], sums[BATCH * 4096] = {0};
    _Alignas(64) char typed[BATCH * 4096 * sizeof(float)], out[sizeof typed];
    uint8_t taps[BATCH * 4096];
    cr_assert(inputs <= 4096 && outputs <= 4096);
    s.bf16 = bf16;
    for (size_t i = 0; i < BATCH * inputs; i++) {
        in[i] = floorf(8 * farm_random_uniform(1, 1, i)) - 5; // many equal ones; whole numbers are exact in bf16
        farm_number_put(typed, bf16, i, in[i]);
    }
    farm_maxpool_forward(&s, typed, BATCH, out, taps);
    for (size_t b = 0; b < BATCH; b++)
        for (int c = 0; c < s.channels; c++)
            for (int y = 0; y < s.out_height; y++)
                for (int x = 0; x < s.out_width; x++) {
                    const size_t to = b * outputs + at(&s, c, s.out_height, s.out_width, y, x);
                    int tap = -1;
                    const size_t from = b * inputs + source(&s, in + b * inputs, c, y, x, &tap);
                    cr_assert_eq(farm_number_at(out, bf16, to), in[from]);
                    cr_assert_eq(taps[to], tap);
                    dout[to] = farm_bf16_value(farm_bf16(farm_random_uniform(1, 2, to) - 0.5f));
                    sums[from] += dout[to];
                }
    memset(taps + BATCH * outputs, 0xee, sizeof taps - BATCH * outputs);
    for (size_t i = 0; i < BATCH * outputs; i++) farm_number_put(out, bf16, i, dout[i]);
    memset(typed, 0xff, sizeof typed); // NaN
    farm_maxpool_backward(&s, out, taps, BATCH, typed);
    for (size_t i = 0; i < BATCH * inputs; i++) {
        numbers[i] = farm_number_at(typed, bf16, i);
        const float most = bf16 ? fabsf(sums[i]) / 256 : 1e-6f;
        cr_assert(fabsf(numbers[i] - sums[i]) <= most, "%g, not %g", (double)numbers[i], (double)sums[i]);
    }
    farm_number_put(typed, bf16, 3, NAN);
    farm_maxpool_forward(&s, typed, BATCH, out, NULL);
    cr_assert(isnan(farm_number_at(out, bf16, 3))); // channel 3 of the first output
}

Test(kernels_maxpool, agrees_with_its_definition) {
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int bf16 = 0; bf16 < 2; bf16++) check(shapes[i], bf16);
}
