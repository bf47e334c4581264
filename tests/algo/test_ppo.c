// GAE against RLax and n-step sums, PPO's loss and gradients against CleanRL's formula differentiated by JAX, on
// windows in which episodes end in every way; the identity with V-trace on policy; edges of the clips; the first pass
// of each iteration in the learner.
#include "algo/ppo.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "../support/test_farm.h"
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
// equations 11 to 16 within one episode. lambda 0: the one-step return; 1: the longest alone.
Test(ppo, advantages_are_the_weighted_sum_of_n_step_returns) {
    enum { T = 6 };
    static const double lambdas[] = {0, 0.7, 1};
    const double gamma = 0.9;
    float value[T + 1], r[T + 1];
    static const uint8_t flags[T + 1];
    for (int t = 0; t <= T; t++) value[t] = (float)((t * 7) % 5) - 1.5f, r[t] = 0.3f * (float)t - 1;
    for (size_t i = 0; i < sizeof lambdas / sizeof *lambdas; i++) {
        const double lambda = lambdas[i];
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
            cr_assert_float_eq(farm_algo_scratch(&rows, FARM_PPO_ADVANTAGE)[t], sum, 1e-5, "lambda %g, step %d", lambda,
                               t);
        }
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
        float terms[FARM_ALGO_TERMS_MAX] = {0};
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
        {0.031, 0.02, 0, false, 0.5, 1, false},
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

Test(ppo, passes_fit_the_memory_for_any_number_of_columns) {
    for (uint32_t minibatch = 0; minibatch < 40; minibatch++)
        for (uint32_t columns = 1, most = 0; columns < 40; columns++) {
            const struct farm_algo_plan plan = {
                .shape = {.stride = 3, .length = 4}, .minibatch = minibatch, .targets_once = true, .bootstrap = 1};
            const uint32_t passes = farm_algo_passes(&plan, columns), units = 3 * columns;
            const uint32_t largest = (units + passes - 1) / passes, smallest = units / passes;
            cr_assert(smallest > 0 && (minibatch == 0 ? passes == 1 : largest <= minibatch));
            cr_assert(minibatch == 0 || passes == (units + minibatch - 1) / minibatch);
            most = largest > most ? largest : most; // an iteration may lack columns
            cr_assert(most <= farm_algo_pass_units(&plan, columns) && most <= units);
        }
}

// ---- through the learner ----

// What the wrapped backend saw of the first pass over each iteration, before any step of the optimiser.
static struct {
    uint64_t iterations, stale; // stale: steps answered by another version than the published one
    double rows, kl, beyond;    // sums over rows: KL(mu || pi), ratios off by more than the clip
    double beyond_later;        // the same in the passes after that
    bool spoils;                // in: all gradients are reported as not finite
} seen;

enum { UNITS_MAX = 1024 };
static const double LR = 0.01;
static struct {
    uint32_t units, count, epochs; // units of the iteration, of those in the present epoch's passes
    uint32_t order[2][UNITS_MAX];  // in the present and in the last epoch
    uint32_t wrong, repeated;      // units missing or trained on twice; epochs in the order of the one before
    double schedule, off;          // the last pass's; most that a learning rate differed from its share of the first
} shuffled;

static enum farm_status create(const struct farm_backend_config *config, struct farm_backend **out,
                               struct farm_error *err) {
    const enum farm_status status = farm_backend_cpu.create(config, out, err);
    if (status) return status;
    const struct farm_backend_state state = farm_backend_cpu.state(*out); // policies far from uniform
    const struct farm_tensor *policy = &config->net->tensors[config->net->ops[config->net->op_count - 1].weight];
    for (size_t i = 0; i < policy->count; i++) farm_backend_vector(&state, "")[policy->offset + i] *= 100;
    return farm_backend_cpu.state_changed(*out, 0, 0, err);
}

static enum farm_status begin(struct farm_backend *backend, uint32_t slot, const struct farm_window *windows,
                              uint32_t count, struct farm_error *err) {
    const uint64_t version = farm_backend_cpu.state(backend).version;
    const struct farm_pass all = {.learning_rate = 0}; // a step of length 0
    struct farm_pass_stats stats;
    for (uint32_t i = 0; i < count; i++)
        for (uint64_t n = windows[i].start; n < windows[i].start + UNROLL; n++)
            seen.stale += *farm_lane_version(windows[i].lane, n) != version;
    shuffled.units = 0;
    for (uint32_t i = 0; i < count; i++) shuffled.units += windows[i].env_count * UNROLL;
    enum farm_status status = farm_backend_cpu.begin(backend, slot, windows, count, err);
    if (!status) status = farm_backend_cpu.pass(backend, slot, &all, err);
    if (!status) status = farm_backend_cpu.finish(backend, &stats, err);
    seen.iterations++;
    seen.rows += stats.terms[FARM_PPO_ROWS];
    seen.kl += stats.terms[FARM_PPO_KL];
    seen.beyond += stats.terms[FARM_PPO_CLIPPED];
    return status;
}

static enum farm_status pass(struct farm_backend *backend, uint32_t slot, const struct farm_pass *pass,
                             struct farm_error *err) {
    uint32_t *order = shuffled.order[shuffled.epochs % 2];
    for (uint32_t i = 0; i < pass->count && shuffled.count < UNITS_MAX; i++) order[shuffled.count++] = pass->indices[i];
    shuffled.schedule = pass->schedule;
    shuffled.off = fmax(shuffled.off, fabs(LR * pass->schedule - pass->learning_rate));
    return farm_backend_cpu.pass(backend, slot, pass, err);
}

static void check_epoch(void) {
    bool done[UNITS_MAX] = {false};
    const uint32_t *order = shuffled.order[shuffled.epochs % 2], count = shuffled.count;
    for (uint32_t i = 0; i < count; i++) {
        shuffled.wrong += order[i] >= shuffled.units || done[order[i]];
        done[order[i] % UNITS_MAX] = true;
    }
    shuffled.wrong += count != shuffled.units;
    shuffled.repeated += memcmp(shuffled.order[0], shuffled.order[1], count * sizeof *order) == 0;
    shuffled.epochs++;
    shuffled.count = 0;
}

static enum farm_status finish(struct farm_backend *backend, struct farm_pass_stats *stats, struct farm_error *err) {
    const enum farm_status status = farm_backend_cpu.finish(backend, stats, err);
    if (shuffled.count) check_epoch();
    seen.beyond_later += stats->terms[FARM_PPO_CLIPPED];
    if (seen.spoils) stats->grad_norm = INFINITY;
    return status;
}

// Returns the learner's exit status.
static int run_ppo(double clip, struct farm_error *err) {
    struct test_farm farm;
    struct farm_backend_ops ops = farm_backend_cpu;
    const float option[] = {0.95f, 0.9f, (float)clip, 0, 0.01f, 0.5f, 2, 16, FARM_PPO_NORMALISE_MINIBATCH};
    ops.create = create, ops.begin = begin, ops.pass = pass, ops.finish = finish;
    test_farm_open(&farm, 1, FARM_ANSWERS_CENTRAL);
    const pid_t actor = test_actor_fork(&farm, 0, farm.bell);
    test_farm_lend(&farm);
    farm.config.device.backend = &ops;
    farm.config.training.threads = 2;
    farm.config.algo.algo = &farm_ppo;
    memcpy(farm.config.algo.option, option, sizeof option);
    farm.config.algo.lr = LR, farm.config.algo.lr_end = LR / 2;
    farm.config.target.frames = 600;
    const int status = farm_learner_run(&farm.config, err);
    test_actor_stop(&farm, 0, actor);
    test_farm_close(&farm);
    return status;
}

// The clip is the bound of |pi/mu - 1| that updates_expect_on_policy explains, d = 6e-5: 4 + 64 + 64 products of a
// logit, whose sizes add up to 8 (|w| = 1, 64 features of at most 1).
Test(ppo, the_first_pass_is_on_policy) {
    const double bound = 1.3e-4;
    struct farm_error err = {0};
    cr_assert_eq(run_ppo(bound, &err), 0, "%s", err.message);
    cr_assert_geq(seen.iterations, 9);
    cr_assert_eq(seen.stale, 0);
    cr_assert(shuffled.epochs >= 18 && shuffled.wrong == 0 && shuffled.repeated == 0,
              "%u epochs, %u units wrong, %u orders repeated", shuffled.epochs, shuffled.wrong, shuffled.repeated);
    cr_assert(shuffled.schedule >= 0.5 && shuffled.schedule < 0.6 && shuffled.off < 1e-12, "%g, off by %g",
              shuffled.schedule, shuffled.off);
    cr_assert_eq(seen.beyond, 0, "%g of %g rows", seen.beyond, seen.rows);
    cr_assert_leq(fabs(seen.kl / seen.rows), bound * bound / 8 + 1e-6, "%g nats", seen.kl / seen.rows);
    cr_assert_gt(seen.beyond_later, seen.rows / 10, "the bound would not show that the policy has moved");
}

Test(ppo, no_epoch_follows_a_gradient_that_is_not_finite) {
    struct farm_error err = {0};
    seen.spoils = true;
    cr_assert_eq(run_ppo(0.2, &err), 1);
    cr_assert(strstr(err.message, "training has diverged"), "%s", err.message);
    cr_assert_eq(shuffled.epochs, 1, "the parameters that are saved are those before it");
}
