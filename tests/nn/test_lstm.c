// LSTM layers of the executor against torch.nn.LSTM in f64 (make_lstm.py), and the functions of kernels/lstm.h against
// libm's.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../support/nets.h"
#include "../vectors/vectors.h"
#include "farm/step.h"
#include "kernels/lstm.h"
#include "nn/executor.h"

enum { STEPS = 9, COLUMNS = 3, FLAT = 5, UNITS = 7, LAYERS = 2, ACTIONS = 4, STATE = 2 * LAYERS * UNITS };
enum { ROWS = STEPS * COLUMNS, PARAMETERS = 7076 };

// The file.
static struct vectors {
    float params[PARAMETERS], x[ROWS][FLAT], first[ROWS], before[COLUMNS][STATE], dlogits[ROWS][ACTIONS], dvalue[ROWS];
    float logits[ROWS][ACTIONS], value[ROWS], after[COLUMNS][STATE], grads[PARAMETERS];
} vectors;

struct results {
    float logits[ROWS][ACTIONS], value[ROWS], after[COLUMNS][STATE], grads[PARAMETERS];
    uint8_t flags[ROWS];
    const void *rows[ROWS];
};

static struct farm_executor *open_executor(bool bf16, int rows_max) {
    const struct farm_net_io io = {.flat = FLAT, .stack = 1, .actions = ACTIONS, .lstm = UNITS, .lstm_layers = LAYERS};
    struct farm_executor *executor;
    struct farm_error err = {0};
    struct farm_net net;
    cr_assert_eq(farm_net_make(net_spec("mlp"), &io, &net, &err), FARM_OK, "%s", err.message);
    cr_assert(net.parameter_count == PARAMETERS && net.state == STATE);
    const struct farm_arithmetic arithmetic =
        farm_arithmetic_uniform(&net, FARM_PRECISION_AUTO, (struct farm_form){.bf16 = bf16});
    if (bf16 && farm_arithmetic_check(&net, &arithmetic, &err) == FARM_E_UNSUPPORTED)
        cr_skip_test("this CPU, or ONEDNN_MAX_CPU_ISA, leaves no bf16 arithmetic");
    const struct farm_executor_config config = {
        .net = &net, .batch_max = rows_max, .training = true, .arithmetic = &arithmetic};
    cr_assert_eq(farm_executor_create(&config, &executor, &err), FARM_OK, "%s", err.message);
    farm_executor_load(executor, vectors.params);
    return executor;
}

static struct farm_sequence sequence_of(struct results *r, int from, int steps, const float *before) {
    return (struct farm_sequence){.steps = steps,
                                  .columns = COLUMNS,
                                  .flags = r->flags + (ptrdiff_t)from * COLUMNS,
                                  .state_in = before,
                                  .state_out = r->after[0]};
}

// Steps [from, from + steps).
static struct farm_sequence forward(struct farm_executor *executor, struct results *r, int from, int steps,
                                    const float *before) {
    const struct farm_sequence sequence = sequence_of(r, from, steps, before);
    const ptrdiff_t row = (ptrdiff_t)from * COLUMNS;
    farm_executor_forward(executor, r->rows + row, sequence, r->logits[row], r->value + row);
    return sequence;
}

static void read_vectors(struct results *r) {
    vectors_read("tests/vectors/lstm.bin", &vectors, sizeof vectors);
    *r = (struct results){0};
    for (int i = 0; i < ROWS; i++) {
        r->rows[i] = vectors.x[i];
        r->flags[i] = vectors.first[i] > 0 ? FARM_STEP_FIRST : 0;
    }
}

// Over the largest of theirs.
static void expect(const char *what, const float *ours, const float *theirs, size_t count, double most) {
    double size = 0, off = 0;
    for (size_t i = 0; i < count; i++) {
        size = fmax(size, fabs((double)theirs[i]));
        off = fmax(off, fabs((double)ours[i] - (double)theirs[i]));
    }
    cr_assert_leq(off, most * size, "%s: off by %.2g of the largest", what, off / size);
}

static void expect_pytorchs(bool bf16, double most) {
    static struct results r;
    read_vectors(&r);
    struct farm_executor *executor = open_executor(bf16, ROWS + 4);
    const struct farm_sequence sequence = forward(executor, &r, 0, STEPS, vectors.before[0]);
    farm_executor_backward(executor, sequence, vectors.dlogits[0], vectors.dvalue, r.grads);
    farm_executor_destroy(executor);
    expect("logits", r.logits[0], vectors.logits[0], ROWS * ACTIONS, most);
    expect("values", r.value, vectors.value, ROWS, most);
    expect("the state after", r.after[0], vectors.after[0], COLUMNS * STATE, most);
    expect("gradients", r.grads, vectors.grads, PARAMETERS, most);
}

Test(lstm, is_pytorchs_forward_and_through_time) {
    expect_pytorchs(false, 1e-5);
}

Test(lstm, is_pytorchs_in_bf16_too) {
    expect_pytorchs(true, 0.05);
}

// As a burn-in and a window, or acting and training, compute the same.
Test(lstm, a_sequence_cut_in_two_gives_the_same) {
    static struct results whole, cut;
    for (int at = 1; at < STEPS; at++) {
        float between[COLUMNS][STATE];
        read_vectors(&whole);
        read_vectors(&cut);
        struct farm_executor *executor = open_executor(false, ROWS);
        forward(executor, &whole, 0, STEPS, vectors.before[0]);
        forward(executor, &cut, 0, at, vectors.before[0]);
        memcpy(between, cut.after, sizeof between);
        forward(executor, &cut, at, STEPS - at, between[0]);
        farm_executor_destroy(executor);
        expect("logits", cut.logits[0], whole.logits[0], ROWS * ACTIONS, 1e-6);
        expect("the state after", cut.after[0], whole.after[0], COLUMNS * STATE, 1e-6);
    }
}

// Of themselves, everywhere that f32 is finite.
Test(lstm, sigmoid_and_tanh_are_exact_to_a_few_units_in_the_last_place) {
    for (double x = -100; x <= 100; x += 1.0 / 512) {
        const double tanh_off = (double)farm_lstm_tanh((float)x) - tanh(x), sigmoid = 1 / (1 + exp(-x));
        cr_assert_leq(fabs(tanh_off), 4e-7 * fabs(tanh(x)), "tanh(%g) is off by %g", x, tanh_off);
        const double sigmoid_off = (double)farm_lstm_sigmoid((float)x) - sigmoid;
        cr_assert_leq(fabs(sigmoid_off), 4e-7 * sigmoid + 2e-35, "sigmoid(%g) is off by %g", x, sigmoid_off);
        const double elu = x > 0 ? x : expm1(x), of_elu = (double)farm_slope_apply(FARM_ACTIVATION_ELU, (float)x),
                     of_silu = (double)farm_slope_apply(FARM_ACTIVATION_SILU, (float)x);
        cr_assert_leq(fabs(of_elu - elu), 1e-6 * fabs(elu), "ELU(%g) is off by %g", x, of_elu - elu);
        cr_assert_leq(fabs(of_silu - x * sigmoid), 1e-6 * fabs(x * sigmoid) + 2e-33, "SiLU(%g) is off", x);
    }
    cr_assert(isnan(farm_lstm_tanh(NAN)) && isnan(farm_lstm_sigmoid(NAN)));
}
