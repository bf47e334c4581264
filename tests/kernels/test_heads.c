// Heads against PyTorch's distributions (make_heads.py), and frequencies of Gaussian and several discrete actions.
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../vectors/vectors.h"
#include "kernels/head.h"

enum { CASES = 4, ROWS = 16, HEADS_BYTES = 8144 };
static const float advantage = 1.7f, entropy_cost = 0.03f, weight = 0.6f;

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
        const int32_t *shape = next(&at, 9 * sizeof *shape);
        struct farm_action_spec spec = {.kind = FARM_ACTION_CONTINUOUS, .dims = (uint32_t)shape[0]};
        for (int d = 0; d < 8 && shape[1 + d]; d++, spec.dims++) {
            spec.kind = spec.dims ? FARM_ACTION_MULTI_DISCRETE : FARM_ACTION_DISCRETE;
            spec.sizes[d] = (uint32_t)shape[1 + d];
        }
        struct farm_head head;
        cr_assert_eq(farm_head_make(&spec, &head, NULL), FARM_OK);
        const size_t outputs = (size_t)head.outputs, row_bytes = ROWS * sizeof(float);
        const uint8_t *action = next(&at, ROWS * (size_t)head.action_bytes);
        const float *policy = next(&at, outputs * row_bytes), *behaviour = next(&at, outputs * row_bytes);
        const float *log_prob = next(&at, row_bytes), *entropy = next(&at, row_bytes), *kl = next(&at, row_bytes);
        const float *gradient = next(&at, outputs * row_bytes);
        for (size_t row = 0; row < ROWS; row++) {
            const uint8_t *own = action + row * (size_t)head.action_bytes;
            const float *pi = policy + row * outputs;
            float dpolicy[FARM_ACTION_DIMS_MAX];
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

// Equal shares of the normal distribution: quantiles of 1/8 ... 7/8.
Test(kernels, gaussian_draws_follow_the_policy_and_dimensions_are_independent) {
    static const double quantile[] = {-1.15034938, -0.67448975, -0.31863936, 0, 0.31863936, 0.67448975, 1.15034938};
    enum { DRAWS = 100000, SHARES = 8 };
    const struct farm_action_spec spec = {.kind = FARM_ACTION_CONTINUOUS, .dims = 3};
    const struct farm_sampler sampler = {.seed = 5}, greedy = {.seed = 5, .greedy = 1};
    const float policy[] = {0.5f, -2, 0, logf(0.5f), 0, logf(3)};
    struct farm_head head;
    cr_assert_eq(farm_head_make(&spec, &head, NULL), FARM_OK);
    int count[3][SHARES] = {0};
    double products[3] = {0};
    for (uint64_t n = 0; n < DRAWS; n++) {
        float action[3];
        double z[3];
        farm_head_choose(&head, &sampler, farm_random_stream(1, (uint32_t)(n % 4)), n / 4, policy, action);
        for (int d = 0; d < 3; d++) {
            int share = 0;
            z[d] = ((double)action[d] - (double)policy[d]) * exp(-(double)policy[3 + d]);
            while (share < SHARES - 1 && z[d] > quantile[share]) share++;
            count[d][share]++;
        }
        for (int d = 0; d < 3; d++) products[d] += z[d] * z[(d + 1) % 3];
    }
    for (int d = 0; d < 3; d++) {
        double chi2 = 0;
        for (int s = 0; s < SHARES; s++) chi2 += pow(count[d][s] - DRAWS / SHARES, 2) / (DRAWS / SHARES);
        cr_assert_lt(chi2, 24.3, "dimension %d: chi2 %g, 7 degrees of freedom, 99.9 %% quantile 24.3", d, chi2);
        cr_assert_lt(fabs(products[d]) / sqrt(DRAWS), 3.5, "dimensions %d and %d are correlated", d, (d + 1) % 3);
    }
    float mean[3];
    farm_head_choose(&head, &greedy, 1, 1, policy, mean);
    cr_assert_arr_eq(mean, policy, sizeof mean);
}

// Pairs of two actions of 3 and 4 choices, all equally likely: 12 cells.
Test(kernels, several_discrete_actions_are_drawn_independently) {
    enum { DRAWS = 60000, CELLS = 12 };
    const struct farm_action_spec spec = {.kind = FARM_ACTION_MULTI_DISCRETE, .dims = 2, .sizes = {3, 4}};
    const struct farm_sampler sampler = {.seed = 5};
    static const float policy[7];
    struct farm_head head;
    cr_assert_eq(farm_head_make(&spec, &head, NULL), FARM_OK);
    int count[CELLS] = {0};
    double chi2 = 0;
    for (uint64_t n = 0; n < DRAWS; n++) {
        int32_t action[2];
        farm_head_choose(&head, &sampler, 9, n, policy, action);
        count[action[0] * 4 + action[1]]++;
    }
    for (int c = 0; c < CELLS; c++) chi2 += pow(count[c] - DRAWS / CELLS, 2) / (DRAWS / CELLS);
    cr_assert_lt(chi2, 31.3, "chi2 %g, 11 degrees of freedom, 99.9 %% quantile 31.3", chi2);
}

Test(kernels, a_standard_deviation_beyond_its_range_has_no_gradient) {
    const float policy[] = {0, 2.5f}, action = 1;
    float dpolicy[2];
    farm_gaussian_gradient(policy, 1, &action, 1, 0.1f, 1, dpolicy);
    cr_assert_eq(dpolicy[1], 0);
    cr_assert_float_eq(dpolicy[0], -exp(-4), 1e-6);
    cr_assert(isnan(farm_gaussian_log_prob((const float[]){0, NAN}, 1, &action)), "a diverged network is noticed");
}
