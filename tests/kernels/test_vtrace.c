// V-trace against RLax on unrolls with episodes that end in every way, and against the paper's sum written out.
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <string.h>

#include "../vectors/rl.h"
#include "kernels/loss.h"
#include "kernels/vtrace.h"

enum { ROWS_MAX = 512 };

static void expect_near(const char *what, const char *name, const float *ours, const float *theirs, int count) {
    for (int i = 0; i < count; i++)
        cr_assert(fabsf(ours[i] - theirs[i]) <= 1e-5f * fmaxf(1, fabsf(theirs[i])),
                  "%s: %s[%d] is %.9g, RLax says %.9g", name, what, i, ours[i], theirs[i]);
}

Test(kernels, vtrace_agrees_with_rlax_over_time) {
    const struct rl_case *cases = rl_cases();
    for (const struct rl_case *c = cases; c < cases + RL_CASES; c++) {
        const int rows = c->steps * c->columns;
        float target[ROWS_MAX], behaviour[ROWS_MAX], vs[ROWS_MAX], advantage[ROWS_MAX], weight[ROWS_MAX];
        cr_assert_leq(rows, ROWS_MAX);
        farm_log_prob_rows(c->logits, c->action, rows, c->actions, target);
        farm_log_prob_rows(c->behaviour_logits, c->action, rows, c->actions, behaviour);
        const struct farm_vtrace_config config = {c->gamma, c->lambda, c->rho_bar, 1, c->pg_rho_bar, c->reward_clip};
        const struct farm_vtrace_batch batch = {c->steps, c->columns, target, behaviour, c->reward,
                                                c->flags, c->value,   vs,     advantage, weight};
        farm_vtrace(&config, &batch);
        expect_near("vs", c->name, vs, c->vs, rows);
        expect_near("advantage", c->name, advantage, c->advantage, rows);
        cr_assert_arr_eq(weight, c->weight, sizeof *weight * (size_t)rows, "%s: weights", c->name);
    }
}

// ---- the literal formula
// -----------------------------------------------------------------------------------------------

enum { T = 5, B = 10 };

struct problem {
    float target[T * B], behaviour[T * B], reward[(T + 1) * B], value[(T + 1) * B];
    uint8_t flags[(T + 1) * B];
    float vs[T * B], advantage[T * B], weight[T * B];
};

// Log ratios in equal steps over [-2.5, 2.5]: ratios from .08 to 12.2. No episode ends.
static void fill(struct problem *p) {
    memset(p, 0, sizeof *p);
    for (int i = 0; i < T * B; i++) {
        p->behaviour[i] = -1.5f + 0.01f * (float)(i % 7);
        p->target[i] = p->behaviour[i] + 5 * ((float)i / (T * B - 1) - 0.5f);
    }
    for (int i = 0; i < (T + 1) * B; i++) {
        p->reward[i] = (float)(i - B) * 0.3f;
        p->value[i] = (float)((i * 7) % 11) / B - 0.4f;
    }
}

// One column of a problem as a batch of its own.
static struct farm_vtrace_batch column_of(struct problem *column, const struct problem *from, int b) {
    for (int t = 0; t <= T; t++) {
        column->reward[t] = from->reward[t * B + b];
        column->value[t] = from->value[t * B + b];
        column->flags[t] = from->flags[t * B + b];
        if (t == T) break;
        column->target[t] = from->target[t * B + b];
        column->behaviour[t] = from->behaviour[t * B + b];
    }
    return (struct farm_vtrace_batch){T,
                                      1,
                                      column->target,
                                      column->behaviour,
                                      column->reward,
                                      column->flags,
                                      column->value,
                                      column->vs,
                                      column->advantage,
                                      column->weight};
}

// v_s = V_s + sum_{t>=s} (prod_{i=s}^{t-1} gamma c_i) rho_t (r_t + gamma V_{t+1} - V_t): IMPALA equation 1.
static double literal(const struct problem *p, int b, int s, double gamma, double rho_bar, double c_bar) {
    double v = p->value[s * B + b];
    if (s == T) return v;
    for (int t = s; t < T; t++) {
        double product = 1;
        for (int i = s; i < t; i++) product *= gamma * fmin(c_bar, exp(p->target[i * B + b] - p->behaviour[i * B + b]));
        const double rho = fmin(rho_bar, exp(p->target[t * B + b] - p->behaviour[t * B + b]));
        v += product * rho * (p->reward[(t + 1) * B + b] + gamma * p->value[(t + 1) * B + b] - p->value[t * B + b]);
    }
    return v;
}

static void expect_literal(const struct problem *p, int b, int s, double vs, double advantage, double gamma,
                           double c_bar) {
    const double ratio = exp(p->target[s * B + b] - p->behaviour[s * B + b]);
    const double v = literal(p, b, s, gamma, 3.7, c_bar);
    const double pg = fmin(2.2, ratio) * (p->reward[(s + 1) * B + b] + gamma * literal(p, b, s + 1, gamma, 3.7, c_bar) -
                                          p->value[s * B + b]);
    cr_assert_float_eq(vs, v, 1e-5 * fmax(1, fabs(v)), "vs(%d, %d) %.9g, literally %.9g", s, b, vs, v);
    cr_assert_float_eq(advantage, pg, 1e-5 * fmax(1, fabs(pg)), "advantage(%d, %d) %.9g, literally %.9g", s, b,
                       advantage, pg);
}

Test(kernels, vtrace_is_the_papers_sum_one_column_at_a_time) {
    static struct problem p, column;
    fill(&p);
    for (int b = 0; b < B; b++) {
        const float gamma = 0.9f / (float)(b + 1);
        for (int wide = 0; wide < 2; wide++) {
            const float c_bar = wide ? 2.5f : 1;
            const struct farm_vtrace_config config = {gamma, 1, 3.7f, c_bar, 2.2f, 0};
            const struct farm_vtrace_batch batch = column_of(&column, &p, b);
            farm_vtrace(&config, &batch);
            for (int t = 0; t < T; t++)
                expect_literal(&p, b, t, column.vs[t], column.advantage[t], (double)gamma, (double)c_bar);
        }
    }
}

Test(kernels, vtrace_is_the_papers_sum_for_a_whole_batch) {
    static struct problem p;
    fill(&p);
    const struct farm_vtrace_config config = {0.9f, 1, 3.7f, 1, 2.2f, 0};
    const struct farm_vtrace_batch batch = {T,       B,       p.target, p.behaviour, p.reward,
                                            p.flags, p.value, p.vs,     p.advantage, p.weight};
    farm_vtrace(&config, &batch);
    for (int t = 0; t < T; t++)
        for (int b = 0; b < B; b++) expect_literal(&p, b, t, p.vs[t * B + b], p.advantage[t * B + b], (double)0.9f, 1);
}

// ---- what a step means
// -------------------------------------------------------------------------------------------------

static const struct farm_vtrace_config on_policy = {0.5f, 1, 1, 1, 1, 1};

Test(kernels, each_kind_of_end_has_its_transition) {
    const unsigned last = FARM_STEP_LAST;
    const struct {
        unsigned flags, next;
        bool exists;
        float discount;
    } table[] = {
        {0, 0, true, 0.5f},
        {FARM_STEP_FIRST, 0, true, 0.5f},
        {0, last | FARM_STEP_TERMINATED, true, 0},
        {0, last | FARM_STEP_TERMINATED | FARM_STEP_GAME_END, true, 0},
        {0, last | FARM_STEP_TRUNCATED, true, 0.5f},
        {last | FARM_STEP_TERMINATED, FARM_STEP_FIRST, false, 0},
        {last | FARM_STEP_TRUNCATED, FARM_STEP_FIRST, false, 0},
        {0, FARM_STEP_FIRST, false, 0},               // abandoned
        {FARM_STEP_FIRST, FARM_STEP_FIRST, false, 0}, // abandoned at once
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const struct farm_transition step = farm_transition_between(table[i].flags, table[i].next, -3, &on_policy);
        cr_assert_eq(step.exists, table[i].exists, "line %zu", i);
        cr_assert_eq(step.discount, table[i].discount, "line %zu", i);
        cr_assert_eq(step.reward, table[i].exists ? -1.0f : 0.0f, "line %zu", i);
    }
}

// Three steps; by hand: gamma .5, ratio 1.
static void three_steps(unsigned middle, unsigned last, const float *value, float *vs, float *advantage,
                        float *weight) {
    const float log_prob[2] = {-1, -1}, reward[3] = {100, 0.25f, 0.5f};
    const uint8_t flags[3] = {0, (uint8_t)middle, (uint8_t)last};
    const struct farm_vtrace_batch batch = {2, 1, log_prob, log_prob, reward, flags, value, vs, advantage, weight};
    farm_vtrace(&on_policy, &batch);
}

Test(kernels, returns_stop_where_episodes_stop) {
    const float value[3] = {1, 2, 4};
    float vs[2], advantage[2], weight[2];

    three_steps(0, 0, value, vs, advantage, weight); // 0.25 + 0.5 (0.5 + 0.5 * 4)
    cr_assert_float_eq(vs[0], 1.5f, 1e-6);
    cr_assert_float_eq(vs[1], 2.5f, 1e-6);
    cr_assert_float_eq(advantage[0], 0.5f, 1e-6);

    three_steps(0, FARM_STEP_LAST | FARM_STEP_TERMINATED, value, vs, advantage,
                weight); // V of the last step does not count
    cr_assert_float_eq(vs[1], 0.5f, 1e-6);
    cr_assert_float_eq(vs[0], 0.5f, 1e-6);

    three_steps(FARM_STEP_LAST | FARM_STEP_TRUNCATED, FARM_STEP_FIRST, value, vs, advantage, weight); // 0.25 + 0.5 * 2
    cr_assert_float_eq(vs[0], 1.25f, 1e-6);
    cr_assert(vs[1] == 2 && advantage[1] == 0 && weight[1] == 0 && weight[0] == 1);

    three_steps(0, FARM_STEP_FIRST, value, vs, advantage, weight); // abandoned: step 1 is the bootstrap
    cr_assert_float_eq(vs[0], 1.25f, 1e-6);
    cr_assert(vs[1] == 2 && advantage[1] == 0 && weight[1] == 0);
}

Test(kernels, nothing_crosses_from_one_episode_into_another) {
    const float value[3] = {1, 2, 4}, other[3] = {1, 2, 1e30f};
    float vs[2], advantage[2], weight[2], vs2[2], advantage2[2], weight2[2];
    three_steps(0, FARM_STEP_FIRST, value, vs, advantage, weight);
    three_steps(0, FARM_STEP_FIRST, other, vs2, advantage2, weight2);
    cr_assert_arr_eq(vs, vs2, sizeof vs);
    cr_assert_arr_eq(advantage, advantage2, sizeof advantage);
}

Test(kernels, what_an_ignored_action_left_behind_is_not_read) {
    const float log_prob[2] = {-1, NAN}, value[3] = {1, 2, 4}, reward[3] = {NAN, 0.25f, NAN};
    const uint8_t flags[3] = {FARM_STEP_FIRST, FARM_STEP_LAST | FARM_STEP_TRUNCATED, FARM_STEP_FIRST};
    float vs[2], advantage[2], weight[2];
    const struct farm_vtrace_batch batch = {2, 1, log_prob, log_prob, reward, flags, value, vs, advantage, weight};
    farm_vtrace(&on_policy, &batch);
    cr_assert_float_eq(vs[0], 1.25f, 1e-6);
    cr_assert(vs[1] == 2 && advantage[1] == 0 && weight[1] == 0);
}

Test(kernels, a_diverged_network_is_not_hidden_by_a_clip) {
    const float log_prob[1] = {NAN}, zero[1] = {0}, value[2] = {1, 2}, reward[2] = {0, 1};
    const uint8_t flags[2] = {0, 0};
    float vs[1], advantage[1], weight[1];
    const struct farm_vtrace_batch batch = {1, 1, log_prob, zero, reward, flags, value, vs, advantage, weight};
    farm_vtrace(&on_policy, &batch);
    cr_assert(isnan(vs[0]) && isnan(advantage[0]));
    cr_assert(isnan(farm_reward_clip(NAN, 1)));
}

Test(kernels, vtrace_refuses_an_empty_window, .signal = SIGABRT) {
    const struct farm_vtrace_batch batch = {.steps = 0, .columns = 1};
    farm_vtrace(&on_policy, &batch);
}

Test(kernels, rewards_are_clipped_only_where_asked) {
    cr_assert_eq(farm_reward_clip(5, 1), 1.0f);
    cr_assert_eq(farm_reward_clip(-5, 1), -1.0f);
    cr_assert_eq(farm_reward_clip(0.5f, 1), 0.5f);
    cr_assert_eq(farm_reward_clip(-5, 0), -5.0f);
}
