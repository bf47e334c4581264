// Q-learning's targets, losses, gradients and priorities against RLax on windows in which episodes end in every way,
// what must not be read, and the plans of dqn, r2d2 and pqn.
#include "algo/pqn.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "../vectors/rl.h"
#include "algo/algo.h"

enum { ROWS_MAX = 512, OUTPUTS_MAX = 4096 };

static float scratch[FARM_PPO_SCRATCH * ROWS_MAX], dpolicy[OUTPUTS_MAX], dvalue[ROWS_MAX], priority[ROWS_MAX];

static void expect_near(const char *what, const struct q_case *c, const float *ours, const float *theirs, int count) {
    for (int i = 0; i < count; i++)
        cr_assert(fabsf(ours[i] - theirs[i]) <= 2e-5f * fmaxf(1, fabsf(theirs[i])),
                  "n %d: %s[%d] is %.9g, RLax has %.9g", c->n, what, i, (double)ours[i], (double)theirs[i]);
}

static double sum_of_sizes(const float *numbers, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++) sum += fabs((double)numbers[i]);
    return sum;
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

// Makes NaN what no target may read: action-values of TERMINATED steps, and rewards that no transition brings.
static void poison(const struct q_case *c) {
    for (int i = 0, a = c->actions; i < (c->steps + c->n) * c->columns; i++) {
        const unsigned earlier = i < c->columns ? FARM_STEP_LAST : c->flags[i - c->columns];
        if (!farm_step_leads(earlier, c->flags[i])) c->reward[i] = NAN;
        for (int k = 0; k < a && c->flags[i] & FARM_STEP_TERMINATED; k++)
            c->policy[i * a + k] = c->target_policy[i * a + k] = NAN;
    }
}

Test(r2d2, targets_gradients_and_priorities_agree_with_rlax_over_time) {
    for (const struct q_case *c = q_cases(NULL), *end = c + Q_CASES; c < end; c++) {
        const int count = c->steps * c->columns, all = count + c->n * c->columns;
        double terms[FARM_ALGO_TERMS_MAX] = {0};
        const struct farm_algo_rows rows = rows_of(c);
        poison(c);
        farm_algo_differentiate(&farm_r2d2, &rows, terms);
        expect_near("target", c, farm_algo_scratch(&rows, FARM_R2D2_TARGET), c->target, count);
        cr_assert_float_eq(terms[FARM_R2D2_ERROR_TERM], sum_of_sizes(c->delta, count), 1e-4 * count);
        cr_assert_arr_eq(farm_algo_scratch(&rows, FARM_R2D2_EXISTS), c->exists, sizeof(float) * (size_t)count);
        expect_near("priority", c, priority, c->priority, c->columns);
        expect_near("dpolicy", c, dpolicy, c->dpolicy, count * c->actions);
        expect_near("dvalue", c, dvalue, c->dvalue, count);
        for (int i = count; i < all; i++) cr_assert_eq(dvalue[i], 0.0f, "bootstrap row %d", i);
        for (int i = count * c->actions; i < all * c->actions; i++) cr_assert_eq(dpolicy[i], 0.0f);
        cr_assert_float_eq(terms[FARM_R2D2_LOSS_TERM], c->loss, 1e-5 * c->loss);
    }
}

// The case's policy and values as the head finishes them when acting.
static void finish(const struct q_case *c, struct farm_algo_rows *rows) {
    for (int row = 0; row < (c->steps + c->n) * c->columns; row++) {
        farm_head_mask_as(&rows->head, c->behaviour + row * c->actions, c->policy + row * c->actions);
        farm_head_finish(&rows->head, c->policy + row * c->actions, &c->value[row]);
    }
    rows->head.duelling = 0;
    rows->target_policy = NULL;
}

// Without a target the values themselves stand in for it.
Test(r2d2, first_priorities_are_of_stored_action_values) {
    const struct q_case *c = q_cases(NULL);
    double terms[FARM_ALGO_TERMS_MAX] = {0};
    float theirs[ROWS_MAX];
    struct farm_algo_rows rows = rows_of(c);
    rows.target_policy = rows.policy, rows.target_value = rows.value;
    farm_algo_differentiate(&farm_r2d2, &rows, terms);
    memcpy(theirs, priority, sizeof theirs);
    finish(c, &rows);
    for (int column = 0; column < c->columns; column++) {
        farm_r2d2_column(&rows, column);
        cr_assert_float_eq(priority[column], theirs[column], 1e-5 * fabsf(theirs[column]));
    }
}

Test(r2d2, windows_with_a_transition_have_a_priority_and_a_diverged_network_none) {
    static float numbers[OUTPUTS_MAX]; // 0
    const struct q_case *c = q_cases(NULL);
    struct farm_algo_rows rows = rows_of(c);
    rows.policy = rows.target_policy = numbers, rows.reward = rows.value = rows.target_value = numbers;
    for (int b = 0; b < c->columns; b++) {
        farm_r2d2_column(&rows, b);
        cr_assert_eq(priority[b], c->priority[b] > 0 ? 1e-6f : 0);
    }
    for (int i = 0; i < OUTPUTS_MAX; i++) numbers[i] = NAN;
    for (int b = 0; b < c->columns; b++) {
        farm_r2d2_column(&rows, b);
        cr_assert(c->priority[b] > 0 ? isnan(priority[b]) : priority[b] == 0);
    }
}

Test(pqn, returns_and_gradients_are_of_q_lambda) {
    for (const struct q_case *c = q_cases(NULL), *end = c + Q_CASES; c < end; c++) {
        const int steps = c->steps + c->n - 1, count = steps * c->columns;
        double terms[FARM_ALGO_TERMS_MAX] = {0};
        struct farm_algo_rows rows = rows_of(c);
        finish(c, &rows);
        rows.steps = steps, rows.tail = 1, rows.option[FARM_PQN_LAMBDA] = 0.65f;
        farm_algo_differentiate(&farm_pqn, &rows, terms);
        const float *exists = farm_algo_scratch(&rows, FARM_PPO_WEIGHT),
                    *back = farm_algo_scratch(&rows, FARM_PPO_RETURN);
        for (int i = 0; i < count; i++) {
            const int at = i * c->actions + (exists[i] > 0 ? c->action[i] : 0);
            if (exists[i] > 0) expect_near("return", c, back + i, c->returns + i, 1);
            cr_assert_float_eq(dpolicy[at], exists[i] > 0 ? c->policy[at] - back[i] : 0, 1e-5);
        }
    }
}

// ---- plans ----

static enum farm_status plan_of(const struct farm_algo *algo, float n, struct farm_algo_config config,
                                struct farm_algo_plan *plan) {
    struct farm_error err;
    config.algo = algo;
    config.option[FARM_R2D2_N_STEP] = n;
    config.option[FARM_R2D2_TARGET_EVERY] = 7;
    return farm_algo_plan_make(&config, plan, &err);
}

Test(r2d2, windows_end_n_steps_behind_their_transitions) {
    const struct farm_algo_config memory = {.unroll = 40, .stack = 1, .recurrent = true, .burn_in = 40},
                                  frames = {.unroll = 40, .stack = 4};
    struct farm_algo_plan plan;
    cr_assert_eq(plan_of(&farm_r2d2, 5, memory, &plan), FARM_OK);
    cr_assert(plan.shape.length == 85 && plan.shape.stride == 40 && plan.bootstrap == 5 && !plan.sparse && plan.replay);
    cr_assert(strcmp(plan.sets[0].name, "target") == 0 && plan.sets[0].every == 7);
    cr_assert_eq(plan_of(&farm_dqn, 3, frames, &plan), FARM_OK);
    cr_assert(plan.shape.length == 4 && plan.shape.stride == 1 && plan.shape.stack == 4 && plan.sparse);
    cr_assert_eq(farm_algo_transitions(&plan), 1);
    cr_assert_eq(plan_of(&farm_r2d2, 40, memory, &plan), FARM_E_USAGE);
    cr_assert_eq(plan_of(&farm_dqn, 3, memory, &plan), FARM_E_USAGE);
}
