// Heads against PyTorch's distributions (make_heads.py), frequencies of Gaussian, squashed and several discrete
// actions, action masks; action-values, their gradients, and exploration.
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "../vectors/vectors.h"
#include "kernels/head.h"

enum { CASES = 9, ROWS = 16, HEADS_BYTES = 17000 };
static const float advantage = 1.7f, entropy_cost = 0.03f, weight = 0.6f;

// Dimension i of continuous actions has the bounds [-1 - i, 2 + 3 i], as in make_heads.py.
static struct farm_head head_of(struct farm_action_spec action, bool squash, bool scale) {
    struct farm_env_spec env = {.action = action};
    struct farm_head head;
    for (uint32_t i = 0; i < action.dims; i++) env.action.low[i] = -1 - (float)i, env.action.high[i] = 2 + 3 * (float)i;
    cr_assert_eq(farm_head_make(&env, (struct farm_head_options){.squash = squash, .scale = scale}, &head, NULL),
                 FARM_OK);
    cr_assert_eq(head.samples, squash);
    return head;
}

static const void *next(const uint8_t **at, size_t bytes) {
    const void *array = *at;
    *at += bytes;
    return array;
}

static void expect(const char *what, int c, int row, double ours, double theirs) {
    cr_assert_float_eq(ours, theirs, 2e-5 * fmax(1, fabs(theirs)), "case %d row %d: %s %.9g, PyTorch's is %.9g", c, row,
                       what, ours, theirs);
}

Test(kernels, heads_agree_with_pytorchs_distributions) {
    static _Alignas(8) uint8_t file[HEADS_BYTES];
    const uint8_t *at = file;
    vectors_read("tests/vectors/heads.bin", file, sizeof file);
    for (int c = 0; c < CASES; c++) {
        const int32_t *kind = next(&at, sizeof *kind), *shape = next(&at, 9 * sizeof *shape);
        struct farm_action_spec spec = {.kind = FARM_ACTION_CONTINUOUS, .dims = (uint32_t)shape[0]};
        for (int d = 0; d < 8 && shape[1 + d]; d++, spec.dims++) {
            spec.kind = spec.dims ? FARM_ACTION_MULTI_DISCRETE : FARM_ACTION_DISCRETE;
            spec.sizes[d] = (uint32_t)shape[1 + d];
        }
        const struct farm_head head = head_of(spec, *kind == 1, *kind == 2);
        const size_t outputs = (size_t)head.outputs, row_bytes = ROWS * sizeof(float);
        const uint8_t *action = next(&at, ROWS * (size_t)head.action_bytes);
        const float *policy = next(&at, outputs * row_bytes), *behaviour = next(&at, outputs * row_bytes);
        const float *log_prob = next(&at, row_bytes), *entropy = next(&at, row_bytes), *kl = next(&at, row_bytes);
        const float *gradient = next(&at, outputs * row_bytes);
        for (size_t row = 0; row < ROWS; row++) {
            const uint8_t *own = action + row * (size_t)head.action_bytes;
            float pi[FARM_ACTION_DIMS_MAX], dpolicy[FARM_ACTION_DIMS_MAX];
            memcpy(pi, policy + row * outputs, outputs * sizeof *pi);
            farm_head_mask_as(&head, behaviour + row * outputs, pi);
            const struct farm_head_terms terms =
                farm_head_gradient(&head, pi, behaviour + row * outputs, own, advantage, entropy_cost, weight, dpolicy);
            expect("log-probability", c, (int)row, (double)farm_head_log_prob(&head, pi, own), (double)log_prob[row]);
            expect("log-probability", c, (int)row, (double)terms.log_prob, (double)log_prob[row]);
            expect("entropy", c, (int)row, (double)terms.entropy, (double)entropy[row]);
            expect("KL", c, (int)row, (double)terms.kl, (double)kl[row]);
            for (size_t k = 0; k < outputs; k++)
                expect("gradient", c, (int)row, (double)dpolicy[k], (double)gradient[row * outputs + k]);
        }
    }
    cr_assert_eq(at, file + sizeof file);
}

// Equal shares of the normal distribution: quantiles of 1/8 ... 7/8. A squashed action is within its bounds and has the
// same quantiles through tanh; its sample is the Gaussian's draw.
static void expect_gaussian_draws(bool squash) {
    static const double quantile[] = {-1.15034938, -0.67448975, -0.31863936, 0, 0.31863936, 0.67448975, 1.15034938};
    enum { DRAWS = 100000, SHARES = 8 };
    const struct farm_action_spec spec = {.kind = FARM_ACTION_CONTINUOUS, .dims = 3};
    const struct farm_sampler sampler = {.seed = 5}, greedy = {.seed = 5, .greedy = 1};
    const float policy[] = {0.5f, -2, 0, logf(0.5f), 0, logf(3)};
    const struct farm_head head = head_of(spec, squash, squash), gaussian = head_of(spec, false, false);
    int count[3][SHARES] = {0};
    double products[3] = {0};
    for (uint64_t n = 0; n < DRAWS; n++) {
        float action[3], sample[3], draw[3];
        double z[3];
        farm_head_choose(&gaussian, &sampler, farm_random_stream(1, (uint32_t)(n % 4)), n / 4, policy, draw, NULL);
        farm_head_choose(&head, &sampler, farm_random_stream(1, (uint32_t)(n % 4)), n / 4, policy, action, sample);
        cr_assert_arr_eq(squash ? sample : action, draw, sizeof draw);
        for (int d = 0; d < 3; d++) {
            int share = 0;
            if (squash) {
                const double low = -1 - d, high = 2 + 3 * d;
                cr_assert((double)action[d] >= low && (double)action[d] <= high);
                action[d] = (float)atanh(2 * ((double)action[d] - low) / (high - low) - 1);
            }
            z[d] = ((double)action[d] - (double)policy[d]) * exp(-(double)policy[3 + d]);
            while (share < SHARES - 1 && z[d] > quantile[share]) share++;
            count[d][share]++;
        }
        for (int d = 0; d < 3 && !squash; d++) products[d] += z[d] * z[(d + 1) % 3]; // tanh's inverse may be infinite
    }
    for (int d = 0; d < 3; d++) {
        double chi2 = 0;
        for (int s = 0; s < SHARES; s++) chi2 += pow(count[d][s] - DRAWS / SHARES, 2) / (DRAWS / SHARES);
        cr_assert_lt(chi2, 24.3, "dimension %d: chi2 %g, 7 degrees of freedom, 99.9 %% quantile 24.3", d, chi2);
        cr_assert_lt(fabs(products[d]) / sqrt(DRAWS), 3.5, "dimensions %d and %d are correlated", d, (d + 1) % 3);
    }
    float mean[3], sample[3];
    farm_head_choose(&head, &greedy, 1, 1, policy, mean, sample);
    cr_assert_arr_eq(squash ? sample : mean, policy, sizeof mean);
    if (squash) cr_assert_float_eq(mean[1], -2 + 7 * (tanh(-2) + 1) / 2, 1e-6);
}

Test(kernels, gaussian_and_squashed_draws_follow_the_policy_and_dimensions_are_independent) {
    expect_gaussian_draws(false);
    expect_gaussian_draws(true);
}

// Bounds within +-1e30 become [-1, 1], each dimension by itself: 3 draws beyond the middle are 3 half widths beyond it.
// Those of +-1 and the others leave every bit of the draw.
Test(kernels, finite_bounds_scale_a_gaussian_and_others_leave_its_units) {
    static const struct {
        float low, high, offset, scale;
    } bounds[] = {{0, 1000, 500, 500},       {-1, 1, 0, 1},       {-2, 2, 0, 2},
                  {-1e30f, 1e30f, 0, 1e30f}, {0, INFINITY, 0, 1}, {-INFINITY, 3, 0, 1},
                  {-FLT_MAX, FLT_MAX, 0, 1}, {5, 5, 0, 1},        {NAN, 1, 0, 1},
                  {-1e38f, 1e38f, 0, 1},     {0, 1e-38f, 0, 1}};
    enum { DIMS = sizeof bounds / sizeof *bounds };
    struct farm_env_spec env = {.action = {.kind = FARM_ACTION_CONTINUOUS, .dims = DIMS}};
    const struct farm_sampler sampler = {.seed = 5};
    struct farm_head head, raw;
    float policy[2 * DIMS], action[DIMS], draw[DIMS];
    for (int d = 0; d < DIMS; d++) {
        env.action.low[d] = bounds[d].low, env.action.high[d] = bounds[d].high;
        policy[d] = 0.3f * (float)d - 1, policy[DIMS + d] = 0.1f * (float)d;
    }
    cr_assert_eq(farm_head_make(&env, (struct farm_head_options){0}, &raw, NULL), FARM_OK);
    cr_assert_eq(farm_head_make(&env, (struct farm_head_options){.scale = true}, &head, NULL), FARM_OK);
    farm_head_choose(&raw, &sampler, 3, 4, policy, draw, NULL);
    farm_head_choose(&head, &sampler, 3, 4, policy, action, NULL);
    for (int d = 0; d < DIMS; d++) {
        cr_expect(head.offset[d] == bounds[d].offset && head.scale[d] == bounds[d].scale, "dimension %d", d);
        cr_expect_eq(action[d], bounds[d].offset + bounds[d].scale * draw[d], "dimension %d", d);
        if (bounds[d].scale == 1) cr_expect_arr_eq(&action[d], &draw[d], sizeof *draw);
    }
    expect("log-probability", 0, 0, (double)farm_head_log_prob(&head, policy, action),
           (double)farm_head_log_prob(&raw, policy, draw));
    cr_assert_eq(farm_head_log_prob(&raw, policy, draw), farm_gaussian_log_prob(policy, DIMS, draw));
}

// The quadrature against a sum of 2,401 terms, within the bounds that head_tanh_gaussian.h gives.
Test(kernels, the_entropy_of_squashed_actions_is_as_exact_as_documented) {
    static const double cases[][2] = {{0.01, 1e-6}, {0.5, 1e-6}, {1, 1e-6}, {1.5, 2e-5}, {2, 3e-4}, {7.389, 0.1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (double mean = -4; mean <= 4; mean += 0.5) {
            const double sigma = (double)(float)cases[i][0], step = 1e-2;
            double value = 0, by_mean = 0, by_log_sigma = 0;
            for (int k = -1200; k <= 1200; k++) {
                const double z = k * step, x = mean + sigma * z, share = exp(-z * z / 2) / 2.5066282746310002 * step;
                value += share * 2 * (log(2) - fabs(x) - log1p(exp(-2 * fabs(x))));
                by_mean -= share * 2 * tanh(x);
                by_log_sigma -= share * 2 * tanh(x) * sigma * z;
            }
            const struct farm_tanh_spread got = farm_tanh_spread_of((float)mean, (float)sigma);
            const double bound = cases[i][1] + 2e-6; // and f32's rounding
            cr_expect_float_eq(got.value, value, bound, "%g +- %g: %g", mean, sigma, (double)got.value - value);
            cr_expect_float_eq(got.by_mean, by_mean, 10 * bound, "%g +- %g", mean, sigma);
            cr_expect_float_eq(got.by_log_sigma, by_log_sigma, 10 * bound, "%g +- %g", mean, sigma);
        }
}

Test(kernels, squashed_actions_far_from_the_middle_have_finite_log_probabilities) {
    const struct farm_action_spec spec = {.kind = FARM_ACTION_CONTINUOUS, .dims = 1};
    const struct farm_head head = head_of(spec, true, true);
    const float policy[] = {100, 0}, sample = 101;
    float dpolicy[2];
    const struct farm_head_terms terms = farm_head_gradient(&head, policy, policy, &sample, 1, 0.1f, 1, dpolicy);
    // log N(101; 100, 1) - 2 (log 2 - 101) - log 1.5; H(N) + 2 (log 2 - 100) + log 1.5
    cr_assert_float_eq(terms.log_prob, -0.5 - 0.918938533 - 2 * (log(2) - 101) - log(1.5), 1e-4);
    cr_assert_float_eq(terms.entropy, 1.418938533 + 2 * (log(2) - 100) + log(1.5), 1e-4);
    cr_assert_float_eq(dpolicy[0], -1 + 0.1 * 2, 1e-6);
    cr_assert_float_eq(dpolicy[1], 0 - 0.1, 1e-5);
}

// Pairs of two actions of 3 and 4 choices, whose weights multiply: 12 cells, without a mask and with masks of 6, 3 and
// 1 of them. Actions of which a mask permits nothing are chosen as without it.
Test(kernels, several_discrete_actions_are_drawn_independently_and_within_masks) {
    enum { DRAWS = 60000 };
    static const double weight_of[7] = {1, 2, 1, 3, 1, 1, 2};
    static const struct {
        uint8_t mask[7];
        double cells, quantile; // 99.9 % of chi squared with cells - 1 degrees of freedom
    } cases[] = {{{1, 1, 1, 1, 1, 1, 1}, 12, 31.3},
                 {{0, 1, 9, 1, 0, 1, 1}, 6, 20.5},
                 {{1, 1, 1, 0, 255, 0, 0}, 3, 13.8},
                 {{0, 0, 1, 1, 0, 0, 0}, 1, 1e-9},
                 {{0, 0, 0, 0, 0, 0, 0}, 12, 31.3}};
    const struct farm_action_spec spec = {.kind = FARM_ACTION_MULTI_DISCRETE, .dims = 2, .sizes = {3, 4}};
    const struct farm_sampler sampler = {.seed = 6}, greedy = {.greedy = 1};
    const struct farm_head head = head_of(spec, false, false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint8_t *mask = cases[i].mask;
        const bool none = farm_head_mask_blocked(&spec, mask) == 0;
        float policy[7];
        double share[7], sums[2] = {0}, chi2 = 0, cells = 0;
        int count[3][4] = {{0}};
        int32_t action[2];
        for (int k = 0; k < 7; k++) {
            policy[k] = logf((float)weight_of[k]);
            sums[k >= 3] += share[k] = mask[k] || none ? weight_of[k] : 0;
        }
        farm_head_mask(&head, mask, policy);
        for (uint64_t n = 0; n < DRAWS; n++) {
            farm_head_choose(&head, &sampler, 9, n, policy, action, NULL);
            count[action[0]][action[1]]++;
        }
        for (int k = 0; k < 12; k++) {
            const double expected = DRAWS * share[k / 4] * share[3 + k % 4] / sums[0] / sums[1];
            const int seen = count[k / 4][k % 4];
            cells += expected > 0;
            if (expected > 0) chi2 += pow(seen - expected, 2) / expected;
            cr_assert(expected > 0 || !seen, "mask %zu permits neither pair %d", i, k);
        }
        cr_assert_eq(cells, cases[i].cells);
        cr_assert_lt(chi2, cases[i].quantile, "mask %zu: chi2 %g, %g cells", i, chi2, cells);
        farm_head_choose(&head, &greedy, 9, 0, policy, action, NULL);
        cr_assert(share[action[0]] > 0 && share[3 + action[1]] > 0, "greedy, mask %zu", i);
    }
}

Test(kernels, the_longest_description_is_complete) {
    struct farm_action_spec most = {.kind = FARM_ACTION_MULTI_DISCRETE, .dims = FARM_ACTION_DIMS_MAX};
    for (int d = 0; d < FARM_ACTION_DIMS_MAX; d++) most.sizes[d] = 1 << 20;
    const struct farm_head head = head_of(most, false, false);
    char text[FARM_HEAD_TEXT_BYTES];
    farm_head_describe(&head, text);
    cr_assert_eq(strlen(text), strlen("categorical ") + 8 * FARM_ACTION_DIMS_MAX - 1);
}

Test(kernels, a_mask_that_does_not_fit_the_actions_is_refused) {
    static const struct {
        struct farm_field_spec field;
        uint32_t kind;
        const char *word; // NULL: it is a mask, or none
    } cases[] = {{{"action_mask", FARM_U8, 1, {7}, 0}, FARM_ACTION_MULTI_DISCRETE, NULL},
                 {{"action_mask", FARM_U8, 2, {1, 7}, 0}, FARM_ACTION_MULTI_DISCRETE, NULL},
                 {{"action_masks", FARM_F32, 1, {2}, 0}, FARM_ACTION_CONTINUOUS, NULL},
                 {{"action_mask", FARM_U8, 1, {6}, 0}, FARM_ACTION_MULTI_DISCRETE, "6 values of u8"},
                 {{"action_mask", FARM_I32, 1, {7}, 0}, FARM_ACTION_MULTI_DISCRETE, "i32"},
                 {{"action_mask", FARM_U8, 1, {2}, 0}, FARM_ACTION_CONTINUOUS, "continuous actions"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct farm_env_spec env = {.obs_count = 2,
                                          .obs = {{"obs", FARM_F32, 1, {3}, 0}, cases[i].field},
                                          .action = {.kind = cases[i].kind, .dims = 2, .sizes = {3, 4}}};
        struct farm_head head;
        struct farm_error err = {0};
        cr_assert_eq(farm_head_make(&env, (struct farm_head_options){0}, &head, &err),
                     cases[i].word ? FARM_E_UNSUPPORTED : FARM_OK, "%zu", i);
        if (cases[i].word)
            cr_assert(strstr(err.message, cases[i].word) != NULL, "%s", err.message);
        else
            cr_assert_eq(head.mask_field, i < 2 ? 2 : 0);
    }
}

Test(kernels, a_standard_deviation_beyond_its_range_has_no_gradient) {
    const float policy[] = {0, 2.5f}, action = 1;
    float dpolicy[2];
    farm_gaussian_gradient(policy, 1, &action, 1, 0.1f, 1, dpolicy);
    cr_assert_eq(dpolicy[1], 0);
    cr_assert_float_eq(dpolicy[0], -exp(-4), 1e-6);
    cr_assert(isnan(farm_gaussian_log_prob((const float[]){0, NAN}, 1, &action)), "a diverged network is noticed");
}

Test(kernels, the_options_and_the_actions_choose_the_head) {
    static const struct {
        struct farm_head_options options;
        uint32_t kind;
        float high;
        const char *word; // in the refusal; else the head's text
        int free_outputs, samples;
    } cases[] = {{{0}, FARM_ACTION_CONTINUOUS, INFINITY, "gaussian 2", 2, 0},
                 {{.state_sigma = true}, FARM_ACTION_CONTINUOUS, INFINITY, "gaussian 2", 0, 0},
                 {{.state_sigma = true, .squash = true}, FARM_ACTION_CONTINUOUS, 3, "tanh_gaussian 2", 0, 1},
                 {{.squash = true}, FARM_ACTION_CONTINUOUS, 3, "tanh_gaussian 2", 2, 1},
                 {{.scale = true}, FARM_ACTION_CONTINUOUS, 3, "scaled_gaussian 2", 2, 0},
                 {{.scale = true}, FARM_ACTION_CONTINUOUS, INFINITY, "gaussian 2", 2, 0},
                 {{.squash = true, .scale = true}, FARM_ACTION_CONTINUOUS, 3, "tanh_gaussian 2", 2, 1},
                 {{.squash = true}, FARM_ACTION_CONTINUOUS, INFINITY, "action 1 has bounds [1, inf]", 0, 0},
                 {{.squash = true}, FARM_ACTION_CONTINUOUS, 1, "action 1 has bounds [1, 1]", 0, 0},
                 {{.state_sigma = true, .squash = true}, FARM_ACTION_MULTI_DISCRETE, 0, "categorical 2x3", 0, 0},
                 {{.q = true}, FARM_ACTION_DISCRETE, 0, "greedy_q 2", 0, 0},
                 {{.q = true, .duelling = true, .squash = true}, FARM_ACTION_DISCRETE, 0, "duelling_q 2", 0, 0},
                 {{.q = true}, FARM_ACTION_MULTI_DISCRETE, 0, "2 discrete ones (--algo ppo or vtrace)", 0, 0},
                 {{.q = true, .squash = true}, FARM_ACTION_CONTINUOUS, 3, "2 continuous (--algo ppo or vtrace)", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint32_t kind = cases[i].kind, dims = kind == FARM_ACTION_DISCRETE ? 1 : 2;
        const struct farm_env_spec env = {
            .action = {.kind = kind, .dims = dims, .sizes = {2, 3}, .low = {-1, 1}, .high = {1, cases[i].high}}};
        struct farm_head head;
        struct farm_error err = {0};
        char text[FARM_HEAD_TEXT_BYTES];
        if (farm_head_make(&env, cases[i].options, &head, &err)) {
            cr_assert_eq(err.status, kind == FARM_ACTION_MULTI_DISCRETE ? FARM_E_UNSUPPORTED : FARM_E_USAGE);
            cr_assert(strstr(err.message, cases[i].word), "case %zu: %s", i, err.message);
            cr_assert(strstr(err.message, cases[i].options.q ? "--algo" : "--squash false"));
            continue;
        }
        farm_head_describe(&head, text);
        cr_assert_str_eq(text, cases[i].word);
        cr_assert(head.free_outputs == cases[i].free_outputs && head.samples == cases[i].samples, "case %zu", i);
    }
}

// V is 10. q is linear: its gradients are its differences.
Test(kernels, outputs_become_action_values_and_forbidden_ones_take_no_part) {
    static const struct {
        int duelling;
        uint8_t mask[4];
        float q[4]; // outputs: 1, 2, 6, 3
    } cases[] = {{0, {1, 1, 1, 1}, {1, 2, 6, 3}},
                 {0, {1, 1, 0, 1}, {1, 2, -INFINITY, 3}},
                 {1, {1, 1, 1, 1}, {8, 9, 13, 10}},
                 {1, {1, 0, 0, 9}, {9, -INFINITY, -INFINITY, 11}},
                 {1, {0, 1, 1, 0}, {-INFINITY, 8, 12, -INFINITY}},
                 {1, {0, 0, 0, 0}, {8, 9, 13, 10}}};
    struct farm_head head = farm_head_categorical(4);
    head.kind = FARM_HEAD_GREEDY_Q;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float raw[4] = {1, 2, 6, 3}, q[4], again[4] = {1, 2, 6, 3}, value = 10, by_value, by_output[4];
        head.duelling = cases[i].duelling;
        farm_head_mask(&head, cases[i].mask, raw);
        memcpy(q, raw, sizeof q);
        farm_head_finish(&head, q, &value);
        farm_head_mask_as(&head, q, again);
        cr_expect_arr_eq(q, cases[i].q, sizeof q, "case %zu", i);
        cr_expect_eq(value, q[farm_categorical_greedy(raw, 4)], "case %zu", i);
        cr_expect_arr_eq(again, raw, sizeof raw, "case %zu: an answer forbids what its mask forbade", i);
        farm_head_mask_as(&head, (float[]){-INFINITY, -INFINITY, -INFINITY, -INFINITY}, again);
        cr_expect_arr_eq(again, raw, sizeof raw, "case %zu: one that permits nothing forbids nothing", i);
        for (int a = 0; a < 4; a++) {
            cr_expect_eq(farm_greedy_q_of(&head, raw, 10, a), q[a], "case %zu", i);
            if (q[a] == -INFINITY) continue;
            farm_greedy_q_gradient(&head, raw, a, 3, by_output, &by_value);
            cr_expect_eq(by_value, 3 * (farm_greedy_q_of(&head, raw, 11, a) - q[a]), "case %zu", i);
            for (int k = 0; k < 4; again[k] = raw[k], k++) {
                again[k] = raw[k] + 1;
                cr_expect_float_eq(by_output[k], 3 * (farm_greedy_q_of(&head, again, 10, a) - q[a]), 1e-5, "%zu", i);
            }
        }
    }
}

// Action 2 is greedy; each of three permitted ones has a third of epsilon.
Test(kernels, exploration_is_uniform_over_permitted_actions) {
    enum { DRAWS = 100000 };
    struct farm_head head = farm_head_categorical(4);
    struct farm_sampler sampler = {.seed = 5, .epsilon_start = 1, .epsilon_end = 0.3f, .epsilon_versions = 10};
    const float q[] = {-1, -INFINITY, 7, 5};
    for (head.kind = FARM_HEAD_GREEDY_Q; sampler.version <= 10; sampler.version += 5) {
        const double each = DRAWS * (1 - 0.07 * (double)sampler.version) / 3, best = DRAWS - 2 * each;
        double count[4] = {0};
        for (uint64_t n = 0; n < DRAWS; n++) {
            int32_t action;
            farm_head_choose(&head, &sampler, farm_random_stream(1, n % 4), n / 4, q, &action, NULL);
            count[action]++;
        }
        const double chi2 = (pow(count[0] - each, 2) + pow(count[3] - each, 2)) / each + pow(count[2] - best, 2) / best;
        cr_assert_eq(count[1], 0);
        cr_assert_lt(chi2, 13.8, "each %g: chi2 %g, 2 degrees of freedom, 99.9 %% quantile 13.8", each, chi2);
    }
}

Test(kernels, epsilon_is_a_ladder_over_environments_and_falls_with_versions) {
    const struct farm_sampler ladder = {.epsilon_end = 0.4f, .ladder = 7, .environments = 24, .width = 8};
    struct farm_sampler falls = {.epsilon_start = 1, .epsilon_end = 0.02f, .epsilon_versions = 98};
    for (uint32_t i = 0; i < 30; i++) // 24 and more joined later
        cr_assert_float_eq(farm_sampler_epsilon(&ladder, farm_random_stream(i / 8, i % 8)),
                           pow(0.4, 1 + 7 * fmin(1, i / 23.)), 1e-7);
    for (; falls.version < 100; falls.version++)
        cr_assert_float_eq(farm_sampler_epsilon(&falls, 9), fmax(1 - 0.01 * (double)falls.version, 0.02), 1e-6);
}
