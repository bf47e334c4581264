// V-trace, its loss and its gradients against RLax on windows in which episodes end in every way, the targets against
// the paper's sum, and what must not be read.
#include "algo/vtrace.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <string.h>

#include "../vectors/rl.h"
#include "algo/algo.h"

enum { ROWS_MAX = 512, OUTPUTS_MAX = 4096 };

static float scratch[FARM_VTRACE_SCRATCH * ROWS_MAX], dpolicy[OUTPUTS_MAX], dvalue[ROWS_MAX];

// What the functions of rows write.
#define OUTPUTS .scratch = scratch, .dpolicy = dpolicy, .dvalue = dvalue

static double loss_of(const struct farm_algo_rows *rows, const double *terms) {
    return terms[FARM_VTRACE_POLICY] + (double)rows->option[FARM_VTRACE_BASELINE_COST] * terms[FARM_VTRACE_BASELINE] -
           (double)rows->option[FARM_VTRACE_ENTROPY_COST] * terms[FARM_VTRACE_ENTROPY];
}

static void expect_near(const char *what, const char *name, const float *ours, const float *theirs, int count) {
    for (int i = 0; i < count; i++)
        cr_assert(fabsf(ours[i] - theirs[i]) <= 1e-5f * fmaxf(1, fabsf(theirs[i])), "%s: %s[%d] is %.9g, RLax has %.9g",
                  name, what, i, ours[i], theirs[i]);
}

// The case as rows; `reward`: [ROWS_MAX], clipped.
static struct farm_algo_rows rows_of(const struct rl_case *c, float *reward) {
    const int all = (c->steps + 1) * c->columns;
    const struct farm_algo_config clip = {.reward_clip = (double)c->reward_clip, .reward_scale = 1};
    cr_assert(all <= ROWS_MAX && all * c->actions <= OUTPUTS_MAX);
    for (int i = 0; i < all; i++) reward[i] = farm_algo_reward(&clip, c->reward[i]);
    return (struct farm_algo_rows){
        .head = farm_head_categorical(c->actions),
        .steps = c->steps,
        .columns = c->columns,
        .option = {c->gamma, c->entropy_cost, c->baseline_cost, c->rho_bar, 1, c->pg_rho_bar, c->lambda},
        .policy = c->logits,
        .value = c->value,
        .behaviour = c->behaviour_logits,
        .action = (const uint8_t *)c->action,
        .reward = reward,
        .flags = c->flags,
        OUTPUTS};
}

Test(algo, vtrace_and_its_gradients_agree_with_rlax_over_time) {
    const struct rl_case *cases = rl_cases();
    for (const struct rl_case *c = cases; c < cases + RL_CASES; c++) {
        const int count = c->steps * c->columns, all = count + c->columns;
        float reward[ROWS_MAX];
        double terms[FARM_ALGO_TERMS_MAX] = {0};
        const struct farm_algo_rows rows = rows_of(c, reward);
        memset(dvalue, 0x55, sizeof dvalue), memset(dpolicy, 0x55, sizeof dpolicy);
        farm_algo_differentiate(&farm_vtrace, &rows, terms);
        expect_near("vs", c->name, farm_algo_scratch(&rows, FARM_VTRACE_VS), c->vs, count);
        expect_near("advantage", c->name, farm_algo_scratch(&rows, FARM_VTRACE_ADVANTAGE), c->advantage, count);
        cr_assert_arr_eq(farm_algo_scratch(&rows, FARM_VTRACE_WEIGHT), c->weight, sizeof *reward * (size_t)count,
                         "%s: weights", c->name);
        expect_near("dpolicy", c->name, dpolicy, c->dlogits, count * c->actions);
        expect_near("dvalue", c->name, dvalue, c->dvalue, count);
        for (int i = count; i < all; i++) cr_assert_eq(dvalue[i], 0.0f, "%s: bootstrap row %d", c->name, i);
        for (int i = count * c->actions; i < all * c->actions; i++) cr_assert_eq(dpolicy[i], 0.0f, "%s", c->name);
        const double total = loss_of(&rows, terms);
        cr_assert_float_eq(total, c->loss, 1e-5 * fabs(c->loss), "%s: loss %.9g, RLax's is %.9g", c->name, total,
                           c->loss);
    }
}

// Rows without a transition may hold anything in reward, policy and action: no bit of the result changes.
Test(algo, nothing_is_read_where_there_is_no_transition) {
    const struct rl_case *cases = rl_cases();
    for (const struct rl_case *c = cases; c < cases + RL_CASES; c++) {
        const int count = c->steps * c->columns, outputs = count * c->actions;
        static float policy[OUTPUTS_MAX], behaviour[OUTPUTS_MAX], before[OUTPUTS_MAX + ROWS_MAX];
        float reward[ROWS_MAX];
        double terms[FARM_ALGO_TERMS_MAX] = {0}, terms_before[FARM_ALGO_TERMS_MAX] = {0};
        struct farm_algo_rows rows = rows_of(c, reward);
        farm_algo_differentiate(&farm_vtrace, &rows, terms_before);
        memcpy(before, dpolicy, sizeof *before * (size_t)outputs);
        memcpy(before + outputs, dvalue, sizeof *before * (size_t)count);
        memcpy(policy, c->logits, sizeof *policy * (size_t)(outputs + c->columns * c->actions));
        memcpy(behaviour, c->behaviour_logits, sizeof *policy * (size_t)(outputs + c->columns * c->actions));
        for (int i = 0; i < c->columns; i++) reward[i] = NAN; // the windows before are over
        for (int i = 0; i < count; i++) {
            if (c->weight[i] > 0) continue;
            reward[i + c->columns] = NAN;
            for (int k = 0; k < c->actions; k++) policy[i * c->actions + k] = behaviour[i * c->actions + k] = NAN;
        }
        rows.policy = policy;
        rows.behaviour = behaviour;
        farm_algo_differentiate(&farm_vtrace, &rows, terms);
        cr_assert_arr_eq(dpolicy, before, sizeof *before * (size_t)outputs, "%s", c->name);
        cr_assert_arr_eq(dvalue, before + outputs, sizeof *before * (size_t)count, "%s", c->name);
        cr_assert_arr_eq(terms, terms_before, sizeof terms, "%s", c->name);
    }
}

// ---- the literal formula ----

enum { T = 5, B = 10 };

// v_s = V_s + sum_{t>=s} (prod_{i=s}^{t-1} gamma c_i) rho_t (r_t + gamma V_{t+1} - V_t): IMPALA equation 1.
static double literal_target(const struct farm_algo_rows *rows, int b, int s) {
    const float *option = rows->option, *log_ratio = farm_algo_scratch(rows, FARM_VTRACE_LOG_RATIO) + b;
    const float *value = rows->value + b, *reward = rows->reward + b;
    const double gamma = (double)option[FARM_VTRACE_DISCOUNT];
    double v = (double)value[s * B], product = 1;
    for (int t = s; t < T; t++) {
        const double ratio = exp((double)log_ratio[t * B]), rho = fmin((double)option[FARM_VTRACE_RHO_CLIP], ratio);
        v += product * rho * ((double)reward[(t + 1) * B] + gamma * (double)value[(t + 1) * B] - (double)value[t * B]);
        product *= gamma * fmin((double)option[FARM_VTRACE_C_CLIP], ratio);
    }
    return v;
}

// Log ratios in equal steps over [-2.5, 2.5]: ratios from .08 to 12.2. No episode ends.
Test(algo, vtrace_is_the_papers_sum) {
    static float reward[(T + 1) * B], value[(T + 1) * B];
    static const uint8_t flags[(T + 1) * B];
    struct farm_algo_rows rows = {.steps = T, .columns = B, .reward = reward, .value = value, .flags = flags, OUTPUTS};
    const float *vs = farm_algo_scratch(&rows, FARM_VTRACE_VS);
    const float *advantage = farm_algo_scratch(&rows, FARM_VTRACE_ADVANTAGE);
    float *log_ratio = farm_algo_scratch(&rows, FARM_VTRACE_LOG_RATIO);
    for (int i = 0; i < T * B; i++) log_ratio[i] = 5 * ((float)i / (T * B - 1) - 0.5f);
    for (int i = 0; i < (T + 1) * B; i++)
        reward[i] = (float)(i - B) * 0.3f, value[i] = (float)((i * 7) % 11) / B - 0.4f;
    for (int run = 0; run < 2 * B; run++) {
        const int b = run / 2;
        const float option[] = {0.9f / (float)(b + 1), 0, 0, 3.7f, run % 2 ? 2.5f : 1, 2.2f, 1};
        memcpy(rows.option, option, sizeof option);
        farm_vtrace_column(&rows, b);
        for (int t = 0; t < T; t++) {
            const int at = t * B + b;
            const double v = literal_target(&rows, b, t), ratio = exp((double)log_ratio[at]);
            const double pg =
                fmin(2.2, ratio) *
                ((double)reward[at + B] + (double)option[0] * literal_target(&rows, b, t + 1) - (double)value[at]);
            cr_assert_float_eq(vs[at], v, 1e-5 * fmax(1, fabs(v)), "vs(%d, %d) %.9g, literally %.9g", t, b, vs[at], v);
            cr_assert_float_eq(advantage[at], pg, 1e-5 * fmax(1, fabs(pg)), "advantage(%d, %d) %.9g, literally %.9g", t,
                               b, advantage[at], pg);
        }
    }
}

// ---- edges ----

Test(algo, a_diverged_network_is_not_hidden_by_a_clip) {
    float arrays[FARM_VTRACE_SCRATCH] = {[FARM_VTRACE_LOG_RATIO] = NAN};
    const float numbers[2] = {1, 2};
    const uint8_t flags[2] = {0};
    const struct farm_algo_rows rows = {.steps = 1,
                                        .columns = 1,
                                        .option = {0.5f, 0, 0, 1, 1, 1, 1},
                                        .value = numbers,
                                        .reward = numbers,
                                        .flags = flags,
                                        .scratch = arrays};
    farm_vtrace_column(&rows, 0);
    cr_assert(isnan(arrays[FARM_VTRACE_VS]) && isnan(arrays[FARM_VTRACE_ADVANTAGE]));
    cr_assert(isnan(farm_algo_reward(&(struct farm_algo_config){.reward_clip = 1, .reward_scale = 1}, NAN)));
}

Test(algo, an_empty_window_is_a_broken_invariant, .signal = SIGABRT) {
    const struct farm_algo_rows rows = {.head = farm_head_categorical(1), .steps = 0, .columns = 1};
    farm_algo_differentiate(&farm_vtrace, &rows, NULL);
}

Test(algo, rewards_are_clipped_if_the_recipe_says_so_then_scaled) {
    struct farm_algo_config config = {.reward_clip = 1, .reward_scale = 2};
    cr_assert(farm_algo_reward(&config, 5) == 2 && farm_algo_reward(&config, -5) == -2);
    cr_assert_eq(farm_algo_reward(&config, 0.5f), 1.0f);
    config.reward_clip = 0;
    cr_assert_eq(farm_algo_reward(&config, -5), -10.0f);
}

// ---- rows with given targets ----

enum { R = 2, A = 3 };

struct problem {
    float policy[R * A], behaviour[R * A], value[R], arrays[FARM_VTRACE_SCRATCH][R];
    int32_t action[R];
    float dpolicy[R * A], dvalue[R];
};

static struct farm_algo_rows rows_of_problem(struct problem *p, int actions) {
    return (struct farm_algo_rows){
        .head = farm_head_categorical(actions),
        .steps = R,
        .columns = 1,
        .option = {[FARM_VTRACE_ENTROPY_COST] = 0.3f, [FARM_VTRACE_BASELINE_COST] = 0.7f, [FARM_VTRACE_RHO_CLIP] = 1},
        .policy = p->policy,
        .behaviour = p->behaviour,
        .value = p->value,
        .action = (const uint8_t *)p->action,
        .scratch = p->arrays[0],
        .dpolicy = p->dpolicy,
        .dvalue = p->dvalue};
}

static void differentiate_rows(struct problem *p, int actions, int count, double *terms) {
    const struct farm_algo_rows rows = rows_of_problem(p, actions);
    for (int row = 0; row < count; row++) {
        float term[FARM_VTRACE_TERMS] = {0};
        farm_vtrace_prepare(&rows, row);
        farm_vtrace_row(&rows, row, term);
        for (int k = 0; k < FARM_VTRACE_TERMS; k++) terms[k] += (double)term[k];
    }
}

Test(algo, statistics_are_those_of_their_names) {
    // pi even, mu tilted: KL(mu || pi) = ln 2 - H(mu); ratio .5/.9, not clipped. In the second row the other way round:
    // the ratio is .9/.5 and clipped.
    const float tilt[2] = {logf(0.9f), logf(0.1f)};
    const double tilted = -0.9 * log(0.9) - 0.1 * log(0.1);
    struct problem p = {
        .policy = {0, 0, tilt[0], tilt[1]},
        .behaviour = {tilt[0], tilt[1]},
        .arrays = {[FARM_VTRACE_VS] = {2}, [FARM_VTRACE_ADVANTAGE] = {1}, [FARM_VTRACE_WEIGHT] = {1, 1}}};
    double terms[FARM_VTRACE_TERMS] = {0};
    differentiate_rows(&p, 2, 1, terms);
    cr_assert_float_eq(terms[FARM_VTRACE_ENTROPY], log(2), 1e-6);
    cr_assert_float_eq(terms[FARM_VTRACE_KL], log(2) - tilted, 1e-6);
    cr_assert_float_eq(terms[FARM_VTRACE_POLICY], log(2), 1e-6);
    cr_assert_float_eq(terms[FARM_VTRACE_BASELINE], 2, 1e-6);
    cr_assert_eq(terms[FARM_VTRACE_CLIPPED], 0);
    memset(terms, 0, sizeof terms);
    differentiate_rows(&p, 2, 2, terms);
    cr_assert_eq(terms[FARM_VTRACE_CLIPPED], 1);
    cr_assert_eq(terms[FARM_VTRACE_ROWS], 2);
    cr_assert_float_eq(terms[FARM_VTRACE_ENTROPY], log(2) + tilted, 1e-6);
    // Targets 2 and 0, variance 1; errors 2 and 0, mean square 2.
    cr_assert_float_eq(farm_vtrace.statistic(terms, FARM_VTRACE_TARGET - 1), -1, 1e-6);
    cr_assert_float_eq(farm_vtrace.statistic(terms, FARM_VTRACE_ENTROPY - 1), (log(2) + tilted) / 2, 1e-6);
}

Test(algo, what_the_behaviour_policy_could_not_choose_gets_no_gradient) {
    struct problem p = {.policy = {0.5f, 0.7f, 0.5f},
                        .behaviour = {0.5f, -INFINITY, 0.5f},
                        .arrays = {[FARM_VTRACE_ADVANTAGE] = {1}, [FARM_VTRACE_WEIGHT] = {1}}};
    double terms[FARM_ALGO_TERMS_MAX] = {0};
    const struct farm_algo_rows rows = rows_of_problem(&p, 3);
    farm_algo_gradients(&farm_vtrace, &rows, terms);
    cr_assert_eq(p.dpolicy[1], 0.0f);
    cr_assert_float_eq(p.dpolicy[0], -0.5f, 1e-6);
    cr_assert_float_eq(p.dpolicy[2], 0.5f, 1e-6);
    cr_assert_float_eq(terms[FARM_VTRACE_ENTROPY], log(2), 1e-6);
    cr_assert_float_eq(terms[FARM_VTRACE_KL], 0, 1e-6);
}

Test(algo, an_action_out_of_range_is_a_broken_invariant, .signal = SIGABRT) {
    struct problem p = {.action = {0, A}, .arrays = {[FARM_VTRACE_WEIGHT] = {1, 1}}};
    double terms[FARM_VTRACE_TERMS] = {0};
    differentiate_rows(&p, A, R, terms);
}
