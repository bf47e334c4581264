// Compares Philox with the results that Random123 publishes; streams, seeds and uniform numbers built on it.
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/random.h"

// Random123's kat_vectors, the lines "philox4x32 10": counter, key, result.
Test(kernels, philox_gives_the_published_results) {
    static const struct {
        uint32_t counter[4], key[2], result[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct farm_philox_block counter;
        for (int w = 0; w < 4; w++) counter.word[w] = known[i].counter[w];
        const struct farm_philox_block result = farm_philox(counter, known[i].key[0], known[i].key[1]);
        for (int w = 0; w < 4; w++) cr_assert_eq(result.word[w], known[i].result[w], "vector %zu word %d", i, w);
    }
}

// The same third vector through the arguments that the project uses: pins which word each argument becomes.
Test(kernels, seed_stream_and_counter_keep_their_places) {
    const uint64_t seed = 0x299f31d0a4093822u, counter = 0x85a308d3243f6a88u;
    const struct farm_philox_block block = farm_random_block(seed, farm_random_stream(0x03707344, 0x13198a2e), counter);
    cr_assert_eq(block.word[0], 0xd16cfe09);
    cr_assert_eq(block.word[3], 0x24126ea1);
    cr_assert_float_eq(farm_random_uniform(seed, farm_random_stream(0x03707344, 0x13198a2e), counter),
                       (double)0xd16cfe09 / 4294967296.0, 1e-6);
}

Test(kernels, uniform_numbers_never_touch_0_or_1) {
    cr_assert_gt(farm_random_unit(0), 0.0f);
    cr_assert_lt(farm_random_unit(0xffffffff), 1.0f);
    cr_assert_float_eq((double)farm_random_unit(0) + (double)farm_random_unit(0xffffffff), 1.0, 1e-9, "not symmetric");
    cr_assert(isfinite(logf(farm_random_unit(0))) && isfinite(logf(1 - farm_random_unit(0xffffffff))));
}

// 64 bins; 63 degrees of freedom, 99.9 % quantile 103.4. Along the steps, and across environments at one step.
Test(kernels, uniform_numbers_are_spread_evenly) {
    enum { BINS = 64, DRAWS = 64000 };
    for (int across = 0; across < 2; across++) {
        int count[BINS] = {0};
        for (uint32_t i = 0; i < DRAWS; i++) {
            const float u = across ? farm_random_uniform(7, farm_random_stream(i >> 8, i & 255), 5)
                                   : farm_random_uniform(7, farm_random_stream(1, 2), i);
            count[(int)(u * BINS)]++;
        }
        double chi2 = 0;
        for (int c = 0; c < BINS; c++) chi2 += pow(count[c] - DRAWS / BINS, 2) / (DRAWS / BINS);
        cr_assert_lt(chi2, 103.4, "chi2 %g (across %d)", chi2, across);
        cr_assert_gt(chi2, 30.0, "too even: chi2 %g (across %d)", chi2, across);
    }
}

static int by_value(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

Test(kernels, derived_seeds_differ_in_every_argument) {
    enum { N = 2 * 8 * 32 * 8 };
    static uint64_t seeds[N];
    size_t n = 0;
    for (uint64_t seed = 0; seed < 2; seed++)
        for (uint32_t lane = 0; lane < 8; lane++)
            for (uint32_t env = 0; env < 32; env++)
                for (uint64_t generation = 0; generation < 8; generation++)
                    seeds[n++] = farm_seed_derive(seed, lane, env, generation);
    qsort(seeds, N, sizeof *seeds, by_value);
    for (size_t i = 1; i < N; i++) cr_assert_neq(seeds[i], seeds[i - 1]);
    cr_assert_eq(farm_seed_derive(3, 1, 2, 0), farm_seed_derive(3, 1, 2, 0));
}

// splitmix64 with state 0: its first outputs are mix(0) and mix(golden gamma), published with the algorithm.
Test(kernels, mix_is_splitmix64) {
    cr_assert_eq(farm_random_mix(0), 0xe220a8397b1dcdafu);
    cr_assert_eq(farm_random_mix(0x9e3779b97f4a7c15u), 0x6e789e6aa1b965f4u);
}
