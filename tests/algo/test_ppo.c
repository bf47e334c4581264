// GAE against RLax and n-step sums, PPO's loss and gradients against CleanRL's formula differentiated by JAX, on
// windows in which episodes end in every way; the identity with V-trace on policy; edges of the clips; through the
// learner.
#include "algo/ppo.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "../vectors/rl.h"
#include "algo/algo.h"
#include "algo/vtrace.h"

enum { ROWS_MAX = 512, OUTPUTS_MAX = 4096 };

static float scratch[FARM_PPO_SCRATCH * ROWS_MAX], dpolicy[OUTPUTS_MAX], dvalue[ROWS_MAX], reward[ROWS_MAX];

static void expect_near(const char *what, const char *name, const float *ours, const float *theirs, int count) {
    for (int i = 0; i < count; i++)
        cr_assert(fabsf(ours[i] - theirs[i]) <= 1e-5f * fmaxf(1, fabsf(theirs[i])), "%s: %s[%d] is %.9g, not %.9g",
                  name, what, i, ours[i], theirs[i]);
}

// The case's stored steps, from which targets come.
static struct farm_algo_rows stored(const struct rl_case *c) {
    const struct farm_algo_config clip = {.reward_clip = (double)c->reward_clip, .reward_scale = 1};
    cr_assert((c->steps + 1) * c->columns <= ROWS_MAX && (c->steps + 1) * c->columns * c->actions <= OUTPUTS_MAX);
    for (int i = 0; i < (c->steps + 1) * c->columns; i++) reward[i] = farm_algo_reward(&clip, c->reward[i]);
    return (struct farm_algo_rows){
        .head = farm_head_categorical(c->actions),
        .steps = c->steps,
        .columns = c->columns,
        .option = {[FARM_PPO_DISCOUNT] = c->gamma,
                   [FARM_PPO_LAMBDA] = c->ppo_lambda,
                   [FARM_PPO_CLIP] = c->clip,
                   [FARM_PPO_VALUE_CLIP] = c->value_clip,
                   [FARM_PPO_ENTROPY_COST] = c->ppo_entropy_cost,
                   [FARM_PPO_BASELINE_COST] = c->ppo_baseline_cost,
                   [FARM_PPO_NORMALISE] = c->normalise > 0 ? FARM_PPO_NORMALISE_ITERATION : FARM_PPO_NORMALISE_OFF},
        .value = c->value,
        .behaviour = c->behaviour_logits,
        .behaviour_value = c->value,
        .action = (const uint8_t *)c->action,
        .reward = reward,
        .flags = c->flags,
        .scratch = scratch,
        .dpolicy = dpolicy,
        .dvalue = dvalue};
}

static void reduce_all(const struct farm_algo_rows *rows, double *sums) {
    memset(sums, 0, FARM_ALGO_SUMS_MAX * sizeof *sums);
    for (int row = 0; row < farm_algo_row_count(rows); row++) farm_ppo_reduce(rows, row, sums);
}

Test(ppo, advantages_loss_and_gradients_agree_with_rlax_and_cleanrl) {
    for (const struct rl_case *c = rl_cases(), *end = c + RL_CASES; c < end; c++) {
        const int count = c->steps * c->columns;
        double sums[FARM_ALGO_SUMS_MAX], terms[FARM_ALGO_TERMS_MAX] = {0};
        struct farm_algo_rows rows = stored(c);
        farm_algo_targets(&farm_ppo, &rows);
        expect_near("gae", c->name, farm_algo_scratch(&rows, FARM_PPO_ADVANTAGE), c->gae, count);
        cr_assert_arr_eq(farm_algo_scratch(&rows, FARM_PPO_WEIGHT), c->weight, sizeof *reward * (size_t)count, "%s",
                         c->name);
        reduce_all(&rows, sums);
        memset(dvalue, 0x55, sizeof dvalue), memset(dpolicy, 0x55, sizeof dpolicy);
        rows.policy = c->logits, rows.value = c->new_value;
        rows.pass_sums = rows.iteration_sums = sums;
        farm_algo_gradients(&farm_ppo, &rows, terms);
        expect_near("dpolicy", c->name, dpolicy, c->ppo_dlogits, count * c->actions);
        expect_near("dvalue", c->name, dvalue, c->ppo_dvalue, count);
        const double loss = terms[FARM_PPO_POLICY] + (double)c->ppo_baseline_cost * terms[FARM_PPO_BASELINE] -
                            (double)c->ppo_entropy_cost * terms[FARM_PPO_ENTROPY];
        cr_assert_float_eq(loss, c->ppo_loss, 1e-5 * fabs(c->ppo_loss), "%s: loss %.9g, not %.9g", c->name, loss,
                           c->ppo_loss);
    }
}

// On policy with rho, c unclipped, V-trace's target is the lambda return: vs - V = A.
Test(ppo, advantages_are_vtraces_on_policy) {
    const struct rl_case *c = rl_cases();
    static float vtrace_scratch[FARM_VTRACE_SCRATCH * ROWS_MAX];
    struct farm_algo_rows rows = stored(c), other = rows;
    other.policy = (float *)other.behaviour;
    other.scratch = vtrace_scratch;
    const float option[] = {c->gamma, 0, 0, 1, 1, 1, c->ppo_lambda};
    memcpy(other.option, option, sizeof option);
    farm_algo_targets(&farm_ppo, &rows);
    farm_algo_targets(&farm_vtrace, &other);
    expect_near("return", "vtrace", farm_algo_scratch(&rows, FARM_PPO_RETURN),
                farm_algo_scratch(&other, FARM_VTRACE_VS), c->steps * c->columns);
}

// A_t = (1 - lambda) sum over n of lambda^(n-1) (n-step return - V_t), the rest of the weight on the longest: GAE's
// equations 11 to 16 within one episode.
Test(ppo, advantages_are_the_weighted_sum_of_n_step_returns) {
    enum { T = 6 };
    const double gamma = 0.9, lambda = 0.7;
    float value[T + 1], r[T + 1];
    static const uint8_t flags[T + 1];
    for (int t = 0; t <= T; t++) value[t] = (float)((t * 7) % 5) - 1.5f, r[t] = 0.3f * (float)t - 1;
    const struct farm_algo_rows rows = {
        .steps = T,
        .columns = 1,
        .option = {[FARM_PPO_DISCOUNT] = (float)gamma, [FARM_PPO_LAMBDA] = (float)lambda},
        .value = value,
        .reward = r,
        .flags = flags,
        .scratch = scratch};
    farm_ppo_column(&rows, 0);
    for (int t = 0; t < T; t++) {
        double sum = 0, rewards = 0;
        for (int n = 1; t + n <= T; n++) {
            rewards += pow(gamma, n - 1) * (double)r[t + n];
            const double advantage = rewards + pow(gamma, n) * (double)value[t + n] - (double)value[t];
            sum += (t + n < T ? (1 - lambda) : 1) * pow(lambda, n - 1) * advantage;
        }
        cr_assert_float_eq(farm_algo_scratch(&rows, FARM_PPO_ADVANTAGE)[t], sum, 1e-5, "step %d", t);
    }
}

// One row of two actions with the ratio pi/mu, A = advantage: the policy gradient stops where the objective is flat.
Test(ppo, the_gradient_stops_where_the_clip_binds) {
    static const struct {
        float ratio, advantage;
        bool flows;
    } cases[] = {{1.19f, 1, true},  {1.21f, 1, false}, {0.5f, 1, true}, {0.79f, -1, false},
                 {0.81f, -1, true}, {1.5f, -1, true},  {1, 1, true},    {1, -1, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const float p = 0.5f * cases[i].ratio, behaviour[] = {0, 0}, value = 0;
        float policy[] = {logf(p), logf(1 - p)};
        const int32_t action = 0;
        const double sums[FARM_ALGO_SUMS_MAX] = {0};
        float arrays[FARM_PPO_SCRATCH] = {
            [FARM_PPO_LOG_MU] = logf(0.5f), [FARM_PPO_ADVANTAGE] = cases[i].advantage, [FARM_PPO_WEIGHT] = 1};
        float terms[FARM_ALGO_TERMS_MAX];
        const struct farm_algo_rows rows = {.head = farm_head_categorical(2),
                                            .steps = 1,
                                            .columns = 1,
                                            .option = {[FARM_PPO_CLIP] = 0.2f},
                                            .policy = policy,
                                            .value = &value,
                                            .behaviour = behaviour,
                                            .behaviour_value = &value,
                                            .action = (const uint8_t *)&action,
                                            .scratch = arrays,
                                            .pass_sums = sums,
                                            .iteration_sums = sums,
                                            .dpolicy = dpolicy,
                                            .dvalue = dvalue};
        farm_ppo_row(&rows, 0, terms);
        const float expected = cases[i].flows ? -cases[i].ratio * cases[i].advantage * (1 - p) : 0;
        cr_assert_float_eq(dpolicy[0], expected, 1e-6, "case %zu: %g, not %g", i, (double)dpolicy[0], (double)expected);
        cr_assert_eq(terms[FARM_PPO_CLIPPED], fabsf(cases[i].ratio - 1) > 0.2f, "case %zu", i);
    }
}

// Within the clip both losses are the same number, whatever rounding says.
Test(ppo, the_value_clip_acts_outside_of_its_range_only) {
    float arrays[FARM_PPO_SCRATCH] = {0}, loss;
    for (int i = -300; i <= 300; i++) {
        const float value = 0.731f + 0.01f * (float)i, old = 0.731f, target = 3.3f;
        arrays[FARM_PPO_RETURN] = target;
        const struct farm_algo_rows rows = {.steps = 1,
                                            .columns = 1,
                                            .option = {[FARM_PPO_VALUE_CLIP] = 1.005f},
                                            .value = &value,
                                            .behaviour_value = &old,
                                            .scratch = arrays};
        const float slope = farm_ppo_value(&rows, 0, &loss);
        cr_assert_eq(slope, i > 100 ? 0 : value - target, "%d: %g", i, (double)slope);
        cr_assert_float_eq(loss, i > 100 ? 0.5 * 1.564 * 1.564 : 0.5 * pow((double)(value - target), 2), 1e-5, "%d", i);
    }
}

// kl_stop 0.02 and kl_target 0.01, or without one of them, after an epoch of 10 rows.
Test(ppo, the_learning_rate_follows_the_last_epochs_kl) {
    static const struct {
        double kl, stop, target;
        bool last;
        double factor, becomes;
        bool more;
    } cases[] = {
        {0.021, 0.02, 0.01, true, 1, 1 / 1.5, false},
        {0.019, 0.02, 0.01, true, 1, 1, false},
        {0.004, 0.02, 0.01, true, 1, 1.5, false},
        {0.006, 0.02, 0.01, true, 1, 1, false},
        {0.004, 0.02, 0.01, false, 1, 1, true},
        {0.029, 0.02, 0.01, false, 1, 1, true},
        {0.031, 0.02, 0.01, false, 1, 1 / 1.5, false},
        {0.031, 0.02, 0, false, 1, 1, false},
        {0.9, 0, 0, false, 1, 1, true},
        {0.9, 0, 0.01, true, 0.002, 1.0 / 300, false},
        {0, 0, 0.01, true, 25, 30, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct farm_algo_config config = {
            .option = {[FARM_PPO_KL_STOP] = (float)cases[i].stop, [FARM_PPO_KL_TARGET] = (float)cases[i].target}};
        const double terms[FARM_ALGO_TERMS_MAX] = {[FARM_PPO_ROWS] = 10, [FARM_PPO_KL] = 10 * cases[i].kl};
        double factor = cases[i].factor;
        cr_assert_eq(farm_ppo.adapt(&config, terms, cases[i].last, &factor), cases[i].more, "case %zu", i);
        cr_assert_float_eq(factor, cases[i].becomes, 1e-12, "case %zu: %g", i, factor);
    }
}
