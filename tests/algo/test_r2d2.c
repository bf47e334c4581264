// Q-learning's targets, losses, gradients and priorities against RLax on windows in which episodes end in every way,
// what must not be read, and the plans of dqn and r2d2.
#include "algo/r2d2.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "../vectors/rl.h"
#include "algo/algo.h"

enum { ROWS_MAX = 512, OUTPUTS_MAX = 4096 };

static float scratch[FARM_R2D2_SCRATCH * ROWS_MAX], dpolicy[OUTPUTS_MAX], dvalue[ROWS_MAX], priority[ROWS_MAX];

static void expect_near(const char *what, const struct q_case *c, const float *ours, const float *theirs, int count) {
    for (int i = 0; i < count; i++)
        cr_assert(fabsf(ours[i] - theirs[i]) <= 2e-5f * fmaxf(1, fabsf(theirs[i])),
                  "n %d: %s[%d] is %.9g, RLax has %.9g", c->n, what, i, (double)ours[i], (double)theirs[i]);
}

static struct farm_algo_rows rows_of(const struct q_case *c) {
    struct farm_algo_rows rows = {.head = farm_head_categorical(c->actions),
                                  .steps = c->steps,
                                  .columns = c->columns,
                                  .tail = c->n,
                                  .policy = c->policy,
                                  .value = c->value,
                                  .target_policy = c->target_policy,
                                  .target_value = c->target_value,
                                  .behaviour = c->behaviour,
                                  .action = (const uint8_t *)c->action,
                                  .reward = c->reward,
                                  .flags = c->flags,
                                  .weight = c->weight,
                                  .priority = priority,
                                  .scratch = scratch,
                                  .dpolicy = dpolicy,
                                  .dvalue = dvalue};
    const float option[] = {c->gamma,          (float)c->n,      1,     (float)c->double_q, (float)c->duelling,
                            (float)c->rescale, (float)!c->huber, c->eta};
    rows.head.kind = FARM_HEAD_GREEDY_Q;
    rows.head.duelling = c->duelling;
    memcpy(rows.option, option, sizeof option);
    memset(dvalue, 0x55, sizeof dvalue), memset(dpolicy, 0x55, sizeof dpolicy), memset(priority, 0x55, sizeof priority);
    return rows;
}

Test(r2d2, h_and_its_inverse_are_rlaxs) {
    const float *x;
    q_cases(&x);
    for (int i = 0; i < Q_RESCALED; i++) {
        const float h = x[Q_RESCALED + i], inverse = x[2 * Q_RESCALED + i];
        cr_assert_float_eq(farm_r2d2_h(x[i]), h, 1e-6f * fabsf(h), "h(%g) = %.9g", (double)x[i], (double)h);
        cr_assert_float_eq(farm_r2d2_h_inverse(x[i]), inverse, 1e-6f * fabsf(inverse), "%g", (double)x[i]);
    }
    cr_assert(fabsf(farm_r2d2_h(3) - 1.003f) < 1e-6f && fabsf(farm_r2d2_h(-3) + 1.003f) < 1e-6f);
    cr_assert(isnan(farm_r2d2_h(NAN)) && isnan(farm_r2d2_h_inverse(NAN)));
}

Test(r2d2, targets_gradients_and_priorities_agree_with_rlax_over_time) {
    const float *ignored;
    const struct q_case *cases = q_cases(&ignored);
    for (const struct q_case *c = cases; c < cases + Q_CASES; c++) {
        const int count = c->steps * c->columns, all = count + c->n * c->columns;
        double terms[FARM_ALGO_TERMS_MAX] = {0};
        const struct farm_algo_rows rows = rows_of(c);
        farm_algo_differentiate(&farm_r2d2, &rows, terms);
        expect_near("target", c, farm_algo_scratch(&rows, FARM_R2D2_TARGET), c->target, count);
        expect_near("delta", c, farm_algo_scratch(&rows, FARM_R2D2_DELTA), c->delta, count);
        cr_assert_arr_eq(farm_algo_scratch(&rows, FARM_R2D2_EXISTS), c->exists, sizeof(float) * (size_t)count);
        expect_near("priority", c, priority, c->priority, c->columns);
        expect_near("dpolicy", c, dpolicy, c->dpolicy, count * c->actions);
        expect_near("dvalue", c, dvalue, c->dvalue, count);
        for (int i = count; i < all; i++) cr_assert_eq(dvalue[i], 0.0f, "bootstrap row %d", i);
        for (int i = count * c->actions; i < all * c->actions; i++) cr_assert_eq(dpolicy[i], 0.0f);
        cr_assert_float_eq(terms[FARM_R2D2_LOSS_TERM], c->loss, 1e-5 * c->loss);
    }
}
