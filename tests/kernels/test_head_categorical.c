// Sampled actions of one categorical distribution, and logits at the edge of what a float holds. test_heads.c has their
// frequencies and log-probabilities.
#include <criterion/criterion.h>
#include <math.h>

#include "kernels/head.h"

enum { A = 6 };

static int choose(const struct farm_sampler *sampler, uint64_t stream, uint64_t n, const float *logits, int outputs) {
    const struct farm_head head = farm_head_categorical(outputs);
    int32_t action;
    cr_assert_eq(head.action_bytes, sizeof action);
    farm_head_choose(&head, sampler, stream, n, logits, &action, NULL);
    return action;
}

Test(kernels, sampling_is_a_function_of_seed_stream_and_step) {
    static const float logits[A] = {0};
    const struct farm_sampler one = {.seed = 1}, two = {.seed = 2};
    int by_seed = 0, by_stream = 0, by_step = 0;
    for (uint64_t n = 0; n < 1000; n++) {
        const int action = choose(&one, farm_random_stream(0, 0), n, logits, A);
        cr_assert_eq(action, choose(&one, farm_random_stream(0, 0), n, logits, A));
        by_seed += action != choose(&two, farm_random_stream(0, 0), n, logits, A);
        by_stream += action != choose(&one, farm_random_stream(0, 1), n, logits, A);
        by_step += action != choose(&one, farm_random_stream(0, 0), n + 1, logits, A);
    }
    // Independent draws differ in 5 of 6 cases: 833 +- 12.
    cr_assert(by_seed > 780 && by_seed < 890, "%d", by_seed);
    cr_assert(by_stream > 780 && by_stream < 890, "%d", by_stream);
    cr_assert(by_step > 780 && by_step < 890, "%d", by_step);
}

Test(kernels, cumulative_shares_decide_the_action) {
    const float logits[3] = {logf(0.5f), logf(0.3f), logf(0.2f)};
    cr_assert_eq(farm_categorical_sample(logits, 3, 0.49f), 0);
    cr_assert_eq(farm_categorical_sample(logits, 3, 0.51f), 1);
    cr_assert_eq(farm_categorical_sample(logits, 3, 0.79f), 1);
    cr_assert_eq(farm_categorical_sample(logits, 3, 0.81f), 2);
    cr_assert_eq(farm_categorical_sample(logits, 3, farm_random_unit(0)), 0);
    cr_assert_eq(farm_categorical_sample(logits, 3, farm_random_unit(0xffffffff)), 2);
}

Test(kernels, forbidden_actions_are_never_sampled) {
    const float logits[A] = {-INFINITY, 0, -INFINITY, 0, -1e30f, -INFINITY};
    for (int i = 0; i <= 1000; i++) {
        const float u = i == 0 ? farm_random_unit(0) : i == 1000 ? farm_random_unit(0xffffffff) : (float)i / 1000;
        const int action = farm_categorical_sample(logits, A, u);
        cr_assert(action == 1 || action == 3, "action %d at u = %g", action, u);
    }
    cr_assert_float_eq(farm_categorical_log_prob(logits, A, 1), logf(0.5f), 1e-6);
    cr_assert_eq(farm_categorical_log_prob(logits, A, 0), -INFINITY);
}

Test(kernels, huge_logits_neither_overflow_nor_lose_the_difference) {
    const float high[3] = {1e4f, 1e4f + 1, -1e4f}, low[3] = {-3e38f, -3e38f, -3e38f};
    const double share = exp(1) / (1 + exp(1));
    cr_assert_float_eq(farm_categorical_log_prob(high, 3, 1), log(share), 1e-3);
    cr_assert_float_eq(farm_categorical_log_prob(high, 3, 2), -20001 + log(share), 1e-2);
    cr_assert_float_eq(farm_categorical_log_prob(low, 3, 0), -log(3), 1e-5);
    cr_assert_eq(farm_categorical_sample(high, 3, 0.99f), 1);
    cr_assert_eq(farm_categorical_sample(low, 3, 0.5f), 1);
}

Test(kernels, an_action_stays_in_range_whatever_the_logits_hold) {
    const float bad[] = {NAN, INFINITY, -INFINITY, 0};
    for (int code = 0; code < 64; code++) {
        const float logits[3] = {bad[code & 3], bad[code >> 2 & 3], bad[code >> 4]};
        for (int i = 1; i < 10; i++) {
            const int action = farm_categorical_sample(logits, 3, (float)i / 10);
            cr_assert(action >= 0 && action < 3, "logits %g %g %g", logits[0], logits[1], logits[2]);
        }
        cr_assert_leq(farm_categorical_greedy(logits, 3), 2);
    }
}

Test(kernels, greedy_takes_the_first_largest) {
    const float logits[4] = {NAN, 1, 3, 3};
    const struct farm_sampler sampler = {.seed = 5, .greedy = 1};
    for (uint64_t n = 0; n < 20; n++) cr_assert_eq(choose(&sampler, 9, n, logits, 4), 2);
    cr_assert_eq(farm_categorical_greedy(logits, 1), 0);
}
