// Pools of whole batches, with all instructions, against the definition in kernels/layers.h: f32 and bf16, all layouts,
// edges, equal numbers, NaN and infinity.
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "kernels/maxpool.h"
#include "kernels/random.h"

enum { BATCH = 2, MOST = BATCH * 4096 };

static const struct {
    struct farm_pool pool;
    int block;
} cases[] = {
    {{9, 12, 16, 5, 6, 3, 2, 1, 0}, 8}, {{4, 1, 32, 2, 1, 3, 2, 0, 1}, 16}, {{1, 7, 24, 1, 4, 3, 2, 1, 1}, 24},
    {{6, 5, 8, 6, 5, 4, 1, 1, 2}, 8},   {{9, 6, 7, 4, 3, 2, 2, 0, 0}, 7}, // the last row and column are unused
};

// Where number i of an NHWC picture of `positions` positions lies in blocks.
static size_t in_blocks(size_t i, size_t positions, size_t channels, size_t block) {
    const size_t picture = i / (positions * channels), at = i / channels % positions, c = i % channels;
    return (picture * channels + c / block * block) * positions + at * block + c % block;
}

static void check(const struct farm_maxpool_loops *loops, const struct farm_pool *pool, size_t block, bool bf16) {
    const size_t channels = (size_t)pool->channels, ins = (size_t)(pool->height * pool->width);
    const size_t outs = (size_t)(pool->out_height * pool->out_width), inputs = BATCH * ins * channels;
    const size_t outputs = BATCH * outs * channels, bytes = bf16 ? 2 : 4;
    static char plain[4 * MOST], plain_out[4 * MOST], blocked[4 * MOST],
        out[4 * MOST]; // NHWC, and as the loops have it
    static uint8_t places[MOST], taps[MOST];
    cr_assert(inputs <= MOST && outputs <= MOST);
    for (size_t i = 0; i < inputs; i++) { // many equal ones; whole numbers are exact in bf16
        const float x = farm_random_uniform(1, 1, i);
        const float number = x < 0.05f ? NAN : x < 0.3f ? -INFINITY : floorf(8 * x) - 5;
        farm_number_put(plain, bf16, i, number);
        farm_number_put(blocked, bf16, in_blocks(i, ins, channels, block), number);
    }
    memset(taps, 0xee, sizeof taps);
    loops->forward(pool, (int)block, bf16, blocked, BATCH, out, taps);
    for (size_t i = 0; i < outputs; i++) {
        const size_t at = i / channels, to = in_blocks(i, outs, channels, block);
        const char *picture = plain + at / outs * ins * channels * bytes;
        const float right = farm_pool_maximum(pool, picture, bf16, (int)(at % outs) / pool->out_width,
                                              (int)(at % outs) % pool->out_width, (int)(i % channels), &places[i]);
        const float got = farm_number_at(out, bf16, to);
        cr_assert(memcmp(&got, &right, sizeof got) == 0 || (isnan(got) && isnan(right)));
        cr_assert_eq(taps[to], places[i]);
        farm_number_put(plain_out, bf16, i, farm_random_uniform(1, 2, i) - 0.5f);
    }
    for (size_t i = 0; i < outputs; i++)
        farm_number_put(out, bf16, in_blocks(i, outs, channels, block), farm_number_at(plain_out, bf16, i));
    memset(blocked, 0xff, sizeof blocked); // NaN
    loops->backward(pool, (int)block, bf16, out, taps, BATCH, blocked);
    for (size_t i = 0; i < inputs; i++) {
        const size_t at = i / channels, first = at / ins * outs * channels;
        const float right =
            farm_pool_gradient(pool, plain_out + first * bytes, places + first, bf16, (int)(at % ins) / pool->width,
                               (int)(at % ins) % pool->width, (int)(i % channels));
        const float got = farm_number_at(blocked, bf16, in_blocks(i, ins, channels, block));
        cr_assert(fabsf(got - right) <= (bf16 ? fabsf(right) / 256 : 1e-6f), "%g, not %g", (double)got, (double)right);
    }
    loops->forward(pool, (int)block, bf16, blocked, BATCH, out, NULL);
}

Test(kernels_maxpool, all_loops_agree_with_the_definition) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            const struct farm_pool *pool = &cases[i].pool;
            check(farm_maxpool_loops(pool), pool, (size_t)cases[i].block, bf16);
            if (pool->channels % 8 == 0) check(&farm_maxpool_portable, pool, (size_t)cases[i].block, bf16);
        }
}
