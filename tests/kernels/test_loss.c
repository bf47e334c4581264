// The loss and its gradients against RLax's, against finite differences in double, and the places where no gradient may
// flow.
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <string.h>

#include "../vectors/rl.h"
#include "kernels/gather.h"
#include "kernels/loss.h"
#include "kernels/vtrace.h"

enum { ROWS_MAX = 512, LOGITS_MAX = 4096 };

static void expect_near(const char *what, const char *name, const float *ours, const float *theirs, int count) {
    for (int i = 0; i < count; i++)
        cr_assert(fabsf(ours[i] - theirs[i]) <= 1e-5f * fmaxf(1, fabsf(theirs[i])),
                  "%s: %s[%d] is %.9g, RLax says %.9g", name, what, i, ours[i], theirs[i]);
}

// The whole path as the learner takes it: log-probabilities, V-trace, loss.
Test(kernels, loss_and_gradients_agree_with_rlax_over_time) {
    const struct rl_case *cases = rl_cases();
    for (const struct rl_case *c = cases; c < cases + RL_CASES; c++) {
        const int rows = c->steps * c->columns;
        static float target[ROWS_MAX], behaviour[ROWS_MAX], vs[ROWS_MAX], advantage[ROWS_MAX], weight[ROWS_MAX];
        static float dlogits[LOGITS_MAX], dvalue[ROWS_MAX];
        cr_assert(rows <= ROWS_MAX && rows * c->actions <= LOGITS_MAX);
        farm_log_prob_rows(c->logits, c->action, rows, c->actions, target);
        farm_log_prob_rows(c->behaviour_logits, c->action, rows, c->actions, behaviour);
        const struct farm_vtrace_config trace = {c->gamma, c->lambda, c->rho_bar, 1, c->pg_rho_bar, c->reward_clip};
        const struct farm_vtrace_batch window = {c->steps, c->columns, target, behaviour, c->reward,
                                                 c->flags, c->value,   vs,     advantage, weight};
        farm_vtrace(&trace, &window);

        const struct farm_loss_config config = {c->baseline_cost, c->entropy_cost, c->rho_bar};
        const struct farm_loss_batch batch = {rows,      c->actions, c->logits, c->behaviour_logits,
                                              c->action, c->value,   vs,        advantage,
                                              weight,    dlogits,    dvalue};
        struct farm_loss_stats stats = {0};
        farm_loss(&config, &batch, &stats);
        expect_near("dlogits", c->name, dlogits, c->dlogits, rows * c->actions);
        expect_near("dvalue", c->name, dvalue, c->dvalue, rows);
        const double total = farm_loss_total(&config, &stats);
        cr_assert_float_eq(total, c->loss, 1e-5 * fabs(c->loss), "%s: loss %.9g, RLax says %.9g", c->name, total,
                           c->loss);
    }
}

// ---- one small problem, in double
// --------------------------------------------------------------------------------------

enum { R = 4, A = 5 };

static const struct farm_loss_config costs = {0.7f, 0.3f, 1};
static const float logits[R * A] = {0.1f, -2, 1.5f, 0.4f, 0, 3, 3.5f, -1, 0.2f, 0.9f,
                                    0,    0,  0,    0,    0, 7, -7,   -3, 2,    0.5f};
static const float behaviour_logits[R * A] = {0, -1, 1, 0.4f, 0, 2, 2, -1, 0, 0.9f, 1, 0, -1, 0, 0, 1, -1, -3, 2, 0.5f};
static const int32_t action[R] = {2, 0, 4, 3};
static const float value[R] = {0.5f, -1, 2, 0.1f}, vs[R] = {1, 1, -3, 0.1f}, advantage[R] = {1.5f, -2, 0.3f, 4};
static const float weight[R] = {1, 1, 0.25f, 1};

static struct farm_loss_batch batch_into(float *dlogits, float *dvalue) {
    return (struct farm_loss_batch){R,  A,         logits, behaviour_logits, action, value,
                                    vs, advantage, weight, dlogits,          dvalue};
}

static double log_softmax(const double *row, int a) {
    double sum = 0;
    for (int i = 0; i < A; i++) sum += exp(row[i]);
    return row[a] - log(sum);
}

// The loss as the paper writes it; its targets and advantages are numbers, so that its slope is the gradient that shall
// flow.
static double loss_in_double(const double *z, const double *v) {
    double total = 0;
    for (int r = 0; r < R; r++) {
        double entropy = 0;
        for (int a = 0; a < A; a++) entropy -= exp(log_softmax(z + r * A, a)) * log_softmax(z + r * A, a);
        const double error = (double)vs[r] - v[r];
        total += (double)weight[r] *
                 (-(double)advantage[r] * log_softmax(z + r * A, action[r]) +
                  (double)costs.baseline_cost * 0.5 * error * error - (double)costs.entropy_cost * entropy);
    }
    return total;
}

Test(kernels, gradients_are_the_slope_of_the_loss) {
    float dlogits[R * A], dvalue[R];
    double z[R * A], v[R];
    struct farm_loss_stats stats = {0};
    const struct farm_loss_batch batch = batch_into(dlogits, dvalue);
    farm_loss(&costs, &batch, &stats);
    for (int i = 0; i < R * A; i++) z[i] = logits[i];
    for (int r = 0; r < R; r++) v[r] = value[r];
    cr_assert_float_eq(farm_loss_total(&costs, &stats), loss_in_double(z, v), 1e-5);

    const double h = 1e-5;
    for (int i = 0; i < R * A + R; i++) {
        double *x = i < R * A ? z + i : v + (i - R * A);
        const double middle = *x, ours = i < R * A ? dlogits[i] : dvalue[i - R * A];
        *x = middle + h;
        const double above = loss_in_double(z, v);
        *x = middle - h;
        const double below = loss_in_double(z, v);
        *x = middle;
        cr_assert_float_eq(ours, (above - below) / (2 * h), 2e-6, "gradient %d is %.9g, slope %.9g", i, ours,
                           (above - below) / (2 * h));
    }
}

// The value gradient of a row depends on that row's V alone: had gradient flowed into vs or advantage, V of the next
// row would act.
Test(kernels, no_gradient_flows_into_targets_and_advantages) {
    const float log_prob[2] = {-0.5f, -0.7f}, v[3] = {1, 2, 4}, reward[3] = {0, 0.25f, 0.5f}, flat[2 * 2] = {0};
    const uint8_t flags[3] = {0};
    const int32_t taken[2] = {0, 1};
    float target[2], adv[2], w[2], dlogits[4], dvalue[2];
    const struct farm_vtrace_config trace = farm_vtrace_default();
    const struct farm_vtrace_batch window = {2, 1, log_prob, log_prob, reward, flags, v, target, adv, w};
    farm_vtrace(&trace, &window);
    struct farm_loss_stats stats = {0};
    const struct farm_loss_batch batch = {2, 2, flat, flat, taken, v, target, adv, w, dlogits, dvalue};
    farm_loss(&costs, &batch, &stats);
    for (int r = 0; r < 2; r++) {
        cr_assert_neq(target[r], v[r]);
        cr_assert_float_eq(dvalue[r], costs.baseline_cost * (v[r] - target[r]), 1e-6);
        cr_assert_float_eq(dlogits[2 * r + 1 - taken[r]], 0.5f * adv[r], 1e-6); // pi = 1/2, the entropy is at its top
        cr_assert_float_eq(dlogits[2 * r + taken[r]], -0.5f * adv[r], 1e-6);
    }
}

Test(kernels, rows_of_weight_0_contribute_exactly_nothing) {
    float bad_logits[R * A], bad_value[R], bad_advantage[R], masked[R], dlogits[R * A], dvalue[R],
        expected_dlogits[R * A], expected_dvalue[R];
    int32_t bad_action[R];
    memcpy(bad_logits, logits, sizeof logits);
    memcpy(bad_value, value, sizeof value);
    memcpy(bad_advantage, advantage, sizeof advantage);
    memcpy(bad_action, action, sizeof action);
    memcpy(masked, weight, sizeof weight);
    masked[1] = 0;
    struct farm_loss_batch batch = batch_into(expected_dlogits, expected_dvalue);
    batch.weight = masked;
    struct farm_loss_stats expected = {0}, stats = {0};
    farm_loss(&costs, &batch, &expected);

    for (int a = 0; a < A; a++) bad_logits[A + a] = NAN;
    bad_value[1] = INFINITY, bad_advantage[1] = NAN, bad_action[1] = 1000000;
    batch.logits = bad_logits, batch.behaviour_logits = bad_logits, batch.value = bad_value;
    batch.advantage = bad_advantage, batch.action = bad_action, batch.dlogits = dlogits, batch.dvalue = dvalue;
    farm_loss(&costs, &batch, &stats);
    cr_assert_arr_eq(dlogits, expected_dlogits, sizeof dlogits);
    cr_assert_arr_eq(dvalue, expected_dvalue, sizeof dvalue);
    for (int a = 0; a < A; a++) cr_assert_eq(dlogits[A + a], 0.0f);
    cr_assert_eq(dvalue[1], 0.0f);
    cr_assert_eq(farm_loss_total(&costs, &stats), farm_loss_total(&costs, &expected));
    cr_assert_eq(stats.weight, 2.25);
}

Test(kernels, statistics_mean_what_they_say) {
    const float even[2] = {0, 0}, tilted[2] = {logf(0.9f), logf(0.1f)};
    const int32_t taken[1] = {0};
    const float zero[1] = {0}, two[1] = {2}, one[1] = {1};
    float dlogits[2], dvalue[1];
    struct farm_loss_stats stats = {0};
    // pi even, mu tilted: KL(mu || pi) = ln 2 - H(mu); ratio .5/.9, not clipped.
    const struct farm_loss_batch batch = {1, 2, even, tilted, taken, zero, two, one, one, dlogits, dvalue};
    farm_loss(&costs, &batch, &stats);
    cr_assert_float_eq(stats.entropy, log(2), 1e-6);
    cr_assert_float_eq(stats.kl, log(2) + 0.9 * log(0.9) + 0.1 * log(0.1), 1e-6);
    cr_assert_float_eq(stats.policy, log(2), 1e-6);
    cr_assert_float_eq(stats.baseline, 2, 1e-6);
    cr_assert_eq(stats.clipped, 0);
    // The other way round the ratio is .9/.5 and clipped; sums go on.
    const struct farm_loss_batch back = {1, 2, tilted, even, taken, zero, two, one, one, dlogits, dvalue};
    farm_loss(&costs, &back, &stats);
    cr_assert_eq(stats.clipped, 1);
    cr_assert_eq(stats.weight, 2);
    cr_assert_float_eq(stats.entropy, log(2) - 0.9 * log(0.9) - 0.1 * log(0.1), 1e-6);
}

Test(kernels, forbidden_actions_get_no_gradient) {
    const float row[3] = {0.5f, -INFINITY, 0.5f};
    const int32_t taken[1] = {0};
    const float zero[1] = {0}, one[1] = {1};
    float dlogits[3], dvalue[1];
    struct farm_loss_stats stats = {0};
    const struct farm_loss_batch batch = {1, 3, row, row, taken, zero, zero, one, one, dlogits, dvalue};
    farm_loss(&costs, &batch, &stats);
    cr_assert_eq(dlogits[1], 0.0f);
    cr_assert_float_eq(dlogits[0], -0.5f, 1e-6);
    cr_assert_float_eq(dlogits[2], 0.5f, 1e-6);
    cr_assert_float_eq(stats.entropy, log(2), 1e-6);
    cr_assert_float_eq(stats.kl, 0, 1e-6);
}

Test(kernels, an_action_out_of_range_is_a_broken_invariant, .signal = SIGABRT) {
    const int32_t taken[R] = {0, A, 0, 0};
    float dlogits[R * A], dvalue[R];
    struct farm_loss_stats stats = {0};
    struct farm_loss_batch batch = batch_into(dlogits, dvalue);
    batch.action = taken;
    farm_loss(&costs, &batch, &stats);
}

Test(kernels, pixels_become_units) {
    for (int i = 0; i < 256; i++) cr_assert_eq(farm_pixel_unit((uint8_t)i), (float)(i / 255.0));
}
