// Compares RMSProp and Adam with optax, and the vector loops with one parameter at a time; refusal of invalid
// gradients.
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "../support/optimiser_step.h"
#include "../vectors/optimisers.h"
#include "kernels/optimiser.h"
#include "kernels/random.h"

static void expect_optax(enum farm_optimiser_kind kind) {
    const struct opt_vectors *v = opt_vectors();
    const float(*expected)[OPT_COUNT] = kind == FARM_OPTIMISER_ADAM ? v->adam : v->rmsprop;
    float params[OPT_COUNT], first[OPT_COUNT], second[OPT_COUNT];
    const struct farm_optimiser_config config = farm_optimiser_default(kind);
    struct farm_optimiser_state state;
    farm_optimiser_init(&config, OPT_COUNT, kind == FARM_OPTIMISER_ADAM ? first : NULL, second, &state);
    memcpy(params, v->initial, sizeof params);
    for (int t = 0; t < OPT_STEPS; t++) {
        const float norm = optimiser_step(&config, &state, v->rates[t], params, v->grads[t]);
        cr_assert_float_eq(norm, v->norms[t], 1e-6 * v->norms[t]);
        for (int i = 0; i < OPT_COUNT; i++)
            cr_assert_float_eq(params[i], expected[t][i], 2e-6, "update %d, parameter %d: %.9g, optax %.9g", t, i,
                               params[i], expected[t][i]);
    }
    cr_assert_eq(state.step, OPT_STEPS);
}

Test(kernels, rmsprop_and_adam_agree_with_optax) {
    expect_optax(FARM_OPTIMISER_RMSPROP);
    expect_optax(FARM_OPTIMISER_ADAM);
}

enum { N = 4099 }; // no multiple of a vector's width

struct vectors {
    float params[N], grads[N], first[N], second[N];
};

static void fill(struct vectors *v, uint64_t seed) {
    for (uint64_t i = 0; i < N; i++) {
        v->params[i] = farm_random_uniform(seed, 0, i) - 0.5f;
        v->grads[i] = 4 * (farm_random_uniform(seed, 1, i) - 0.5f);
    }
}

Test(kernels, loops_of_this_machine_equal_one_parameter_at_a_time) {
    for (int kind = FARM_OPTIMISER_RMSPROP; kind <= FARM_OPTIMISER_ADAM; kind++) {
        static struct vectors fast, slow;
        const struct farm_optimiser_config config = farm_optimiser_default((enum farm_optimiser_kind)kind);
        struct farm_optimiser_state state, plain;
        farm_optimiser_init(&config, N, fast.first, fast.second, &state);
        farm_optimiser_init(&config, N, slow.first, slow.second, &plain);
        fill(&fast, 1);
        fill(&slow, 1);
        for (uint64_t t = 1; t <= 5; t++) {
            double squares = 0;
            for (size_t i = 0; i < N; i++) squares += (double)slow.grads[i] * (double)slow.grads[i];
            const struct farm_optimiser_factors factors = farm_optimiser_factors_make(&config, t, 0.01f, sqrt(squares));
            cr_assert_lt(factors.gradient_scale, 1.0f); // clipped
            for (size_t i = 0; i < N; i++) {
                if (kind == FARM_OPTIMISER_ADAM)
                    farm_adam_update(&factors, slow.grads[i], slow.first + i, slow.second + i, slow.params + i);
                else
                    farm_rmsprop_update(&factors, slow.grads[i], slow.second + i, slow.params + i);
            }
            optimiser_step(&config, &state, 0.01f, fast.params, fast.grads);
        }
        for (size_t i = 0; i < N; i++) {
            cr_assert_float_eq(fast.params[i], slow.params[i], 1e-6, "kind %d, parameter %zu", kind, i);
            cr_assert_float_eq(fast.second[i], slow.second[i], 1e-6 * fabsf(slow.second[i]), "kind %d, moment %zu",
                               kind, i);
        }
    }
}

// A square beyond f32 would leave a second moment that is infinite for ever.
Test(kernels, a_gradient_that_is_not_finite_or_too_large_changes_nothing) {
    static const struct {
        float gradient;
        bool clipped, applied;
    } cases[] = {{NAN, true, false}, {INFINITY, true, false}, {1e25f, false, false}, {1e25f, true, true}};
    for (int kind = FARM_OPTIMISER_RMSPROP; kind <= FARM_OPTIMISER_ADAM; kind++)
        for (int c = 0; c < 4; c++) {
            static struct vectors v, before;
            struct farm_optimiser_config config = farm_optimiser_default((enum farm_optimiser_kind)kind);
            struct farm_optimiser_state state;
            if (!cases[c].clipped) config.clip_norm = 0;
            fill(&v, 2);
            farm_optimiser_init(&config, N, v.first, v.second, &state);
            optimiser_step(&config, &state, 0.01f, v.params, v.grads);
            v.grads[c ? N - 1 : 5] = cases[c].gradient;
            memcpy(&before, &v, sizeof v);
            const float norm = optimiser_step(&config, &state, 0.01f, v.params, v.grads);
            cr_assert_eq(isfinite(norm) != 0, cases[c].applied);
            cr_assert_eq(state.step, 1 + (uint64_t)cases[c].applied);
            if (!cases[c].applied) cr_assert_arr_eq(&v, &before, sizeof v);
            for (int i = 0; i < N; i++) cr_assert(isfinite(v.params[i]) && isfinite(v.second[i]));
        }
}

// Adam's state is its two vectors and its step count.
Test(kernels, a_copied_state_continues_bit_for_bit) {
    static struct vectors v, copy;
    const struct farm_optimiser_config config = farm_optimiser_default(FARM_OPTIMISER_ADAM);
    struct farm_optimiser_state state;
    fill(&v, 3);
    farm_optimiser_init(&config, N, v.first, v.second, &state);
    for (int t = 0; t < 3; t++) optimiser_step(&config, &state, 0.01f, v.params, v.grads);
    memcpy(&copy, &v, sizeof v);
    struct farm_optimiser_state again = {.count = N, .step = state.step, .first = copy.first, .second = copy.second};
    optimiser_step(&config, &state, 0.01f, v.params, v.grads);
    optimiser_step(&config, &again, 0.01f, copy.params, copy.grads);
    cr_assert_arr_eq(&v, &copy, sizeof v);
}

Test(kernels, clipping_can_be_switched_off) {
    struct farm_optimiser_config config = farm_optimiser_default(FARM_OPTIMISER_RMSPROP);
    cr_assert_float_eq(farm_optimiser_factors_make(&config, 1, 1, 80).gradient_scale, 0.5f, 1e-7);
    cr_assert_eq(farm_optimiser_factors_make(&config, 1, 1, 39).gradient_scale, 1.0f);
    config.clip_norm = 0;
    cr_assert_eq(farm_optimiser_factors_make(&config, 1, 1, 80).gradient_scale, 1.0f);
}

Test(kernels, the_learning_rate_falls_linearly_and_stays) {
    cr_assert_eq(farm_learning_rate_linear(6e-4, 0, 0, 0), 6e-4);
    cr_assert_float_eq(farm_learning_rate_linear(1, 0.5, 0, 0.25), 0.875, 1e-15);
    cr_assert_eq(farm_learning_rate_linear(0.3, 0.1, 0.5, 1), 0.1);
    cr_assert_eq(farm_learning_rate_linear(1, 0, 0.5, 0.5), 1);
    cr_assert_float_eq(farm_learning_rate_linear(1, 0, 0.5, 0.625), 0.75, 1e-15);
}

Test(kernels, a_run_is_as_far_as_the_nearer_of_its_ends) {
    static const struct {
        uint64_t frames, frames_total;
        double seconds, seconds_total, share;
    } cases[] = {
        {0, 1000, 0, 0, 0},         {250, 1000, 0, 0, 0.25},     {5000, 1000, 0, 0, 1}, {5000, 0, 99, 0, 0},
        {5000, 0, 30, 120, 0.25},   {5000, 0, 130, 120, 1},      {0, 0, -1, 120, 0},    {250, 1000, 60, 120, 0.5},
        {750, 1000, 60, 120, 0.75}, {1000, 2000, 90, 120, 0.75},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_assert_eq(
            farm_schedule_share(cases[i].frames, cases[i].frames_total, cases[i].seconds, cases[i].seconds_total),
            cases[i].share, "case %zu", i);
}
