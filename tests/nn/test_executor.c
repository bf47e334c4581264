// The executor against JAX and PyTorch (tests/vectors/nn_*.bin, made by make_nn.py and make_deep.py) and, at full size,
// against a plain f64 network that stands here and is itself held against them. Errors are relative Euclidean norms,
// tensor by tensor. Run from the repository's root.
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/random.h"
#include "nn/executor.h"

// A network with parameters, input rows, gradients of its outputs, and what should come out.
struct problem {
    struct farm_net_spec spec;
    struct farm_net net;
    int batch;
    float *params;
    void *input; // u8 frames or f32 rows, one after another
    const void **rows;
    float *dlogits, *dvalue;
    float *logits, *value, *grads;
};

static void *array(size_t count, size_t size) {
    void *memory = calloc(count, size);
    cr_assert_not_null(memory);
    return memory;
}

static size_t frame_bytes(const struct farm_net_io *io) {
    return (size_t)(io->frame_channels * io->height * io->width);
}

static struct problem *problem_new(const struct farm_net_spec *spec, const struct farm_net_io *io, int batch) {
    struct problem *p = array(1, sizeof *p);
    struct farm_error err = {.message = ""};
    p->spec = *spec;
    p->batch = batch;
    cr_assert_eq(farm_net_make(&p->spec, io, &p->net, &err), FARM_OK, "%s", err.message);
    const size_t rows = (size_t)batch, pointers = rows * (size_t)io->stack;
    p->params = array(p->net.parameter_count, sizeof(float));
    p->grads = array(p->net.parameter_count, sizeof(float));
    p->input = io->flat > 0 ? array(rows * (size_t)io->flat, sizeof(float)) : array(pointers, frame_bytes(io));
    p->rows = array(pointers, sizeof *p->rows);
    for (size_t i = 0; i < pointers; i++)
        p->rows[i] = (char *)p->input + i * (io->flat > 0 ? (size_t)io->flat * sizeof(float) : frame_bytes(io));
    p->dlogits = array(rows * (size_t)io->actions, sizeof(float));
    p->logits = array(rows * (size_t)io->actions, sizeof(float));
    p->dvalue = array(rows, sizeof(float));
    p->value = array(rows, sizeof(float));
    return p;
}

static void problem_free(struct problem *p) {
    void *const parts[] = {p->params, p->grads, p->input, p->rows, p->dlogits, p->logits, p->dvalue, p->value};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) free(parts[i]);
    free(p);
}

// --- A plain network in f64
// ---------------------------------------------------------------------------------------------------

struct picture {
    int channels, height, width; // 1 x 1 for vectors
    double *data;                // [channels][height][width]
    double *diff;                // the loss's gradient by data
};

static struct picture picture_new(int channels, int height, int width) {
    const size_t count = (size_t)channels * (size_t)height * (size_t)width;
    return (struct picture){channels, height, width, array(count, sizeof(double)), array(count, sizeof(double))};
}

static double slope_of(enum farm_activation activation, double result) {
    if (activation == FARM_ACTIVATION_RELU) return result > 0;
    return activation == FARM_ACTIVATION_TANH ? 1 - result * result : 1;
}

static double activate(enum farm_activation activation, double sum) {
    if (activation == FARM_ACTIVATION_RELU) return fmax(sum, 0);
    return activation == FARM_ACTIVATION_TANH ? tanh(sum) : sum;
}

// Where the kernel's element (i, j) of output (y, x) stands in channel c of the input; -1: in the padding.
static long input_at(const struct farm_net_op *op, const struct picture *in, int c, int y, int x, int i, int j) {
    const int row = y * op->stride + i - op->pad_before[0], column = x * op->stride + j - op->pad_before[1];
    if (row < 0 || row >= in->height || column < 0 || column >= in->width) return -1;
    return ((long)c * in->height + row) * in->width + column;
}

// Output `at` of a convolution, (y, x) in channel o, without activation. A dense layer is one whose kernel is as large
// as its input. Where grad_weight is not NULL, adds the gradients of weights and input for `diff` instead.
static double plain_sum(const struct farm_net_op *op, const struct picture *in, int o, int y, int x,
                        const float *weight, double diff, double *grad_weight) {
    const bool dense = op->kind == FARM_NET_OP_DENSE;
    const int kh = dense ? in->height : op->kernel, kw = dense ? in->width : op->kernel;
    double sum = 0;
    for (int c = 0; c < in->channels; c++)
        for (int i = 0; i < kh; i++)
            for (int j = 0; j < kw; j++) {
                const size_t w = (size_t)(((o * in->channels + c) * kh + i) * kw + j);
                const long from = input_at(op, in, c, y, x, i, j);
                if (from < 0) continue;
                sum += (double)weight[w] * in->data[from];
                if (grad_weight == NULL) continue;
                grad_weight[w] += diff * in->data[from];
                in->diff[from] += diff * (double)weight[w];
            }
    return sum;
}

// Where the first maximum under the kernel stands.
static long plain_maximum(const struct farm_net_op *op, const struct picture *in, int c, int y, int x) {
    long most = -1;
    for (int i = 0; i < op->kernel; i++)
        for (int j = 0; j < op->kernel; j++) {
            const long from = input_at(op, in, c, y, x, i, j);
            if (from >= 0 && (most < 0 || in->data[from] > in->data[most])) most = from;
        }
    return most;
}

// One op, forward where grads is NULL; else backward, taking out->diff to in->diff, skip->diff and grads.
static void plain_op(const struct problem *p, const struct farm_net_op *op, const struct picture *in,
                     const struct picture *skip, const struct picture *out, double *grads) {
    const bool heads = op == &p->net.ops[p->net.op_count - 1];
    const int actions = p->net.io.actions;
    for (int o = 0; o < out->channels; o++) {
        const bool value = heads && o == actions;
        const struct farm_tensor *weight = op->weight < 0 ? NULL : &p->net.tensors[op->weight + value];
        const struct farm_tensor *bias = op->weight < 0 ? NULL : &p->net.tensors[op->bias + value];
        for (int y = 0; y < out->height; y++)
            for (int x = 0; x < out->width; x++) {
                const size_t at = (size_t)((o * out->height + y) * out->width + x);
                const double diff = out->diff[at] * slope_of(op->activation, out->data[at]);
                if (op->kind == FARM_NET_OP_RELU || op->kind == FARM_NET_OP_POOL) {
                    const long from = op->kind == FARM_NET_OP_RELU ? (long)at : plain_maximum(op, in, o, y, x);
                    out->data[at] = activate(op->activation, in->data[from]);
                    if (grads != NULL) in->diff[from] += diff;
                    continue;
                }
                const int row = value ? 0 : o;
                if (grads == NULL) {
                    const double sum = plain_sum(op, in, row, y, x, p->params + weight->offset, 0, NULL);
                    out->data[at] = activate(op->activation, sum + (double)p->params[bias->offset + (size_t)row] +
                                                                 (skip == NULL ? 0 : skip->data[at]));
                } else if (diff != 0) {
                    plain_sum(op, in, row, y, x, p->params + weight->offset, diff, grads + weight->offset);
                    grads[bias->offset + (size_t)row] += diff;
                    if (skip != NULL) skip->diff[at] += diff;
                }
            }
    }
}

static struct picture plain_input(const struct problem *p, int b) {
    const struct farm_net_io *io = &p->net.io;
    if (io->flat > 0) {
        struct picture in = picture_new(io->flat, 1, 1);
        for (int i = 0; i < io->flat; i++) in.data[i] = (double)((const float *)p->rows[b])[i];
        return in;
    }
    struct picture in = picture_new(io->stack * io->frame_channels, io->height, io->width);
    for (int s = 0; s < io->stack; s++) {
        const uint8_t *frame = p->rows[b * io->stack + s];
        for (size_t i = 0; frame != NULL && i < frame_bytes(io); i++)
            in.data[(size_t)s * frame_bytes(io) + i] = frame[i] / 255.0;
    }
    return in;
}

// Forward and backward of one row; grads f64 are added to.
static void plain_row(struct problem *p, int b, double *grads) {
    struct picture rows[FARM_NET_OPS_MAX + 1]; // rows[i] enters op i
    const int count = p->net.op_count, actions = p->net.io.actions;
    rows[0] = plain_input(p, b);
    for (int i = 0; i < count; i++) {
        const struct farm_net_op *op = &p->net.ops[i];
        const bool flat = op->out.height == 0;
        rows[i + 1] = picture_new(op->out.channels, flat ? 1 : op->out.height, flat ? 1 : op->out.width);
    }
    for (int pass = 0; pass < 2; pass++)
        for (int k = 0; k < count; k++) {
            const int i = pass == 0 ? k : count - 1 - k;
            const struct farm_net_op *op = &p->net.ops[i];
            plain_op(p, op, &rows[i], op->skip < 0 ? NULL : &rows[op->skip + 1], &rows[i + 1],
                     pass == 0 ? NULL : grads);
            if (i < count - 1 || pass == 1) continue;
            for (int a = 0; a < actions; a++) {
                p->logits[b * actions + a] = (float)rows[count].data[a];
                rows[count].diff[a] = (double)p->dlogits[b * actions + a];
            }
            p->value[b] = (float)rows[count].data[actions];
            rows[count].diff[actions] = (double)p->dvalue[b];
        }
    for (int i = 0; i <= count; i++) {
        free(rows[i].data);
        free(rows[i].diff);
    }
}

// Fills logits, value and grads.
static void plain_solve(struct problem *p) {
    double *grads = array(p->net.parameter_count, sizeof *grads);
    for (int b = 0; b < p->batch; b++) plain_row(p, b, grads);
    for (size_t i = 0; i < p->net.parameter_count; i++) p->grads[i] = (float)grads[i];
    free(grads);
}

// --- Problems
// -----------------------------------------------------------------------------------------------------------------

#define CONV(out_, kernel_, stride_)                                                                                   \
    { .kind = FARM_LAYER_CONV, .out = out_, .kernel = kernel_, .stride = stride_ }
#define DENSE(out_, activation_)                                                                                       \
    { .kind = FARM_LAYER_DENSE, .out = out_, .activation = FARM_ACTIVATION_##activation_ }

#define CONV_SAME(out_)                                                                                                \
    { .kind = FARM_LAYER_CONV_SAME, .out = out_, .kernel = 3, .stride = 1, .activation = FARM_ACTIVATION_NONE }
#define POOL                                                                                                           \
    { .kind = FARM_LAYER_POOL, .kernel = 3, .stride = 2, .activation = FARM_ACTIVATION_NONE }
#define RESIDUAL(out_, activation_)                                                                                    \
    { .kind = FARM_LAYER_RESIDUAL, .out = out_, .kernel = 3, .activation = FARM_ACTIVATION_##activation_ }

// The tables of make_nn.py and make_deep.py.
static const struct vector_case {
    const char *path;
    struct farm_net_spec spec;
    struct farm_net_io io;
    int batch;
    double bf16_gradient; // how far bf16's gradients may be off
} vector_cases[] = {
    {"tests/vectors/nn_grey.bin",
     {.name = "grey", .layer_count = 3, .layers = {CONV(8, 4, 2), CONV(16, 3, 1), DENSE(8, RELU)}},
     {.frame_channels = 1, .height = 20, .width = 18, .stack = 3, .actions = 5},
     5,
     4e-2},
    {"tests/vectors/nn_rgb.bin",
     {.name = "rgb", .layer_count = 2, .layers = {CONV(8, 4, 2), DENSE(16, RELU)}},
     {.frame_channels = 3, .height = 14, .width = 16, .stack = 2, .actions = 3},
     3,
     4e-2},
    {"tests/vectors/nn_flat.bin",
     {.name = "flat", .layer_count = 2, .layers = {DENSE(32, TANH), DENSE(24, TANH)}},
     {.flat = 7, .stack = 1, .actions = 4},
     6,
     4e-2},
    {"tests/vectors/nn_deep.bin",
     {.name = "small deep",
      .layer_count = 11,
      .layers = {CONV_SAME(8), POOL, RESIDUAL(8, NONE), RESIDUAL(8, NONE), CONV_SAME(16), POOL, RESIDUAL(16, NONE),
                 CONV_SAME(8), POOL, RESIDUAL(8, RELU), DENSE(24, RELU)}},
     {.frame_channels = 1, .height = 21, .width = 14, .stack = 3, .actions = 5},
     4,
     0.6}, // rounding moves maxima, whose gradient moves as a whole: PyTorch's bf16 is off by up to 0.42
};
enum { GREY, RGB, FLAT, DEEP, VECTOR_CASES };

static struct problem *problem_read(const struct vector_case *vectors) {
    struct problem *p = problem_new(&vectors->spec, &vectors->io, vectors->batch);
    const struct farm_net_io *io = &p->net.io;
    FILE *file = fopen(vectors->path, "rb");
    cr_assert_not_null(file, "%s is missing; run from the repository's root", vectors->path);
    const size_t rows = (size_t)p->batch, logits = rows * (size_t)io->actions, n = p->net.parameter_count;
    const size_t input_bytes =
        rows * (io->flat > 0 ? (size_t)io->flat * sizeof(float) : (size_t)io->stack * frame_bytes(io));
    cr_assert(fread(p->params, sizeof(float), n, file) == n && fread(p->input, 1, input_bytes, file) == input_bytes &&
              fread(p->dlogits, sizeof(float), logits, file) == logits &&
              fread(p->dvalue, sizeof(float), rows, file) == rows &&
              fread(p->logits, sizeof(float), logits, file) == logits &&
              fread(p->value, sizeof(float), rows, file) == rows && fread(p->grads, sizeof(float), n, file) == n &&
              fgetc(file) == EOF);
    fclose(file);
    if (io->flat == 0) { // those frames are zeros in the file: the executor is told so by NULL
        p->rows[0] = NULL;
        p->rows[io->stack] = p->rows[io->stack + 1] = NULL;
    }
    return p;
}

// Random parameters, biases too, and pictures that are partly smooth, as games' are.
static struct problem *problem_random(const struct farm_net_spec *spec, const struct farm_net_io *io, int batch) {
    struct problem *p = problem_new(spec, io, batch);
    farm_net_init(&p->net, 3, p->params);
    for (size_t i = 0; i < p->net.parameter_count; i++)
        if (p->params[i] == 0) p->params[i] = 0.1f * (farm_random_uniform(9, 1, i) - 0.5f);
    const size_t rows = (size_t)batch;
    for (size_t i = 0; i < rows * (size_t)io->actions; i++) p->dlogits[i] = farm_random_uniform(9, 2, i) - 0.5f;
    for (size_t i = 0; i < rows; i++) p->dvalue[i] = farm_random_uniform(9, 3, i) - 0.5f;
    if (io->flat > 0) {
        for (size_t i = 0; i < rows * (size_t)io->flat; i++)
            ((float *)p->input)[i] = 2 * farm_random_uniform(9, 4, i) - 1;
        return p;
    }
    for (size_t i = 0; i < rows * (size_t)io->stack * frame_bytes(io); i++) {
        const bool noise = i / 64 % 3 == 0;
        ((uint8_t *)p->input)[i] = (uint8_t)(255 * farm_random_uniform(9, 5, noise ? i : i / 64));
    }
    return p;
}

static const struct farm_net_io atari = {.frame_channels = 1, .height = 84, .width = 84, .stack = 4, .actions = 6};

// --- Checks
// -------------------------------------------------------------------------------------------------------------------

static double distance(const float *a, const float *b, size_t count) {
    double off = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        off += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(off / norm); // NaN where anything is
}

static struct farm_executor *executor_new(const struct problem *p, int batch_max, enum farm_precision precision) {
    const struct farm_executor_config config = {
        .net = &p->net, .batch_max = batch_max, .training = true, .precision = precision};
    struct farm_executor *executor;
    struct farm_error err = {.message = ""};
    cr_assert_eq(farm_executor_create(&config, &executor, &err), FARM_OK, "%s", err.message);
    farm_executor_load(executor, p->params);
    return executor;
}

struct answer {
    float *logits, *value, *grads;
    int padded;
};

static struct answer answer_of(struct farm_executor *executor, const struct problem *p, int batch) {
    struct answer a = {.logits = array((size_t)(batch * p->net.io.actions), sizeof(float)),
                       .value = array((size_t)batch, sizeof(float)),
                       .grads = array(p->net.parameter_count, sizeof(float))};
    a.padded = farm_executor_forward(executor, p->rows, batch, a.logits, a.value);
    farm_executor_backward(executor, p->rows, batch, p->dlogits, p->dvalue, a.grads);
    return a;
}

static void answer_free(struct answer a) {
    free(a.logits);
    free(a.value);
    free(a.grads);
}

static void expect_answer(const struct problem *p, struct answer a, double forward_max, double gradient_max) {
    const size_t rows = (size_t)p->batch;
    const double logits = distance(a.logits, p->logits, rows * (size_t)p->net.io.actions);
    const double value = distance(a.value, p->value, rows);
    cr_expect(logits <= forward_max, "%s: logits are off by %g", p->spec.name, logits);
    cr_expect(value <= forward_max, "%s: values are off by %g", p->spec.name, value);
    for (int t = 0; t < p->net.tensor_count; t++) {
        const struct farm_tensor *tensor = &p->net.tensors[t];
        const double off = distance(a.grads + tensor->offset, p->grads + tensor->offset, tensor->count);
        cr_expect(off <= gradient_max, "%s: the gradient of %s is off by %g", p->spec.name, tensor->name, off);
    }
}

static void expect_solved(const struct problem *p, enum farm_precision precision, double forward_max,
                          double gradient_max) {
    struct farm_executor *executor = executor_new(p, p->batch, precision);
    const struct answer a = answer_of(executor, p, p->batch);
    expect_answer(p, a, forward_max, gradient_max);
    answer_free(a);
    farm_executor_destroy(executor);
}

static bool bf16_here(void) {
    struct problem *p = problem_new(&vector_cases[FLAT].spec, &vector_cases[FLAT].io, 1);
    const struct farm_executor_config config = {.net = &p->net, .batch_max = 1, .precision = FARM_PRECISION_BF16};
    struct farm_executor *executor = NULL;
    struct farm_error err;
    const enum farm_status status = farm_executor_create(&config, &executor, &err);
    cr_assert(status == FARM_OK ||
              (status == FARM_E_UNSUPPORTED && executor == NULL && strstr(err.message, "precision") != NULL));
    farm_executor_destroy(executor);
    problem_free(p);
    return status == FARM_OK;
}

// --- Tests
// --------------------------------------------------------------------------------------------------------------------

Test(nn, the_plain_network_of_this_test_agrees_with_jax_and_pytorch) {
    for (int i = 0; i < VECTOR_CASES; i++) {
        struct problem *expected = problem_read(&vector_cases[i]), *p = problem_read(&vector_cases[i]);
        plain_solve(p);
        expect_answer(expected, (struct answer){p->logits, p->value, p->grads, 0}, 1e-6, 1e-6);
        problem_free(expected);
        problem_free(p);
    }
}

Test(nn, f32_agrees_with_jax_and_pytorch) {
    for (int i = 0; i < VECTOR_CASES; i++) {
        struct problem *p = problem_read(&vector_cases[i]);
        expect_solved(p, FARM_PRECISION_F32, 2e-6, 2e-6);
        problem_free(p);
    }
}

Test(nn, auto_agrees_with_jax_and_pytorch) {
    const bool bf16 = bf16_here();
    for (int i = 0; i < VECTOR_CASES; i++) {
        struct problem *p = problem_read(&vector_cases[i]);
        expect_solved(p, FARM_PRECISION_AUTO, bf16 ? 2e-2 : 2e-4, bf16 ? vector_cases[i].bf16_gradient : 5e-3);
        problem_free(p);
    }
}

Test(nn, shallow_and_nature_agree_with_the_plain_network) {
    static const char *const names[] = {"shallow", "nature"};
    const double loose = bf16_here() ? 20 : 1;
    for (int i = 0; i < 2; i++) {
        struct problem *p = problem_random(farm_net_find(names[i], NULL), &atari, 3);
        plain_solve(p);
        expect_solved(p, FARM_PRECISION_F32, 1e-5, 1e-5);
        expect_solved(p, FARM_PRECISION_AUTO, 2e-4 * loose, 5e-3 * loose);
        problem_free(p);
    }
}

// Even and odd sizes at every pool, the smallest picture, and the least that is stacked.
Test(nn, deep_agrees_with_the_plain_network) {
    static const struct {
        struct farm_net_io io;
        int batch;
    } cases[] = {
        {{.frame_channels = 1, .height = 84, .width = 84, .stack = 4, .actions = 6}, 1},
        {{.frame_channels = 1, .height = 33, .width = 46, .stack = 2, .actions = 18}, 3},
        {{.frame_channels = 3, .height = 24, .width = 31, .stack = 1, .actions = 3}, 2},
        {{.frame_channels = 1, .height = 10, .width = 5, .stack = 1, .actions = 3}, 5},
        {{.frame_channels = 1, .height = 1, .width = 1, .stack = 2, .actions = 2}, 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct problem *p = problem_random(farm_net_find("deep", NULL), &cases[i].io, cases[i].batch);
        plain_solve(p);
        expect_solved(p, FARM_PRECISION_F32, 1e-5, 1e-5);
        problem_free(p);
    }
}

Test(nn, bf16_agrees_with_jax_and_pytorch_within_its_bounds) {
    if (!bf16_here()) cr_skip_test("this CPU has no bf16 arithmetic (AVX512_BF16 or AMX)");
    for (int i = 0; i < VECTOR_CASES; i++) {
        struct problem *p = problem_read(&vector_cases[i]);
        struct farm_executor *executor = executor_new(p, p->batch, FARM_PRECISION_AUTO);
        cr_assert_eq(farm_executor_precision(executor), FARM_PRECISION_BF16);
        farm_executor_destroy(executor);
        expect_solved(p, FARM_PRECISION_BF16, 2e-2, vector_cases[i].bf16_gradient);
        problem_free(p);
    }
}

Test(nn, refuses_bf16_where_the_cpu_has_none) {
    if (bf16_here()) cr_skip_test("this CPU has bf16 arithmetic");
    struct problem *p = problem_read(&vector_cases[FLAT]);
    struct farm_executor *executor = executor_new(p, 1, FARM_PRECISION_AUTO);
    cr_expect_eq(farm_executor_precision(executor), FARM_PRECISION_F32);
    farm_executor_destroy(executor);
    problem_free(p);
}

// A partly filled rung gives what the exact size gives, whatever was computed before in the rows beyond: here NaN.
Test(nn, padding_changes_nothing) {
    for (int i = 0; i < VECTOR_CASES; i++)
        for (int exact = 0; exact < 2; exact++) {
            const enum farm_precision precision = exact ? FARM_PRECISION_F32 : FARM_PRECISION_AUTO;
            struct problem *p = problem_random(&vector_cases[i].spec, &vector_cases[i].io, 8);
            struct farm_executor *small = executor_new(p, 3, precision), *large = executor_new(p, 8, precision);
            const struct answer expected = answer_of(small, p, 3);
            cr_assert_eq(expected.padded, 3);
            struct problem *poison = problem_random(&vector_cases[i].spec, &vector_cases[i].io, 8);
            for (size_t k = 0; k < p->net.parameter_count; k++) poison->params[k] = NAN;
            farm_executor_load(large, poison->params);
            if (i == FLAT)
                for (int k = 0; k < 8 * poison->net.io.flat; k++) ((float *)poison->input)[k] = NAN;
            answer_free(answer_of(large, poison, 8));
            farm_executor_load(large, p->params);
            const struct answer a = answer_of(large, p, 3);
            cr_expect_eq(a.padded, 4);
            cr_expect(distance(a.logits, expected.logits, (size_t)(3 * p->net.io.actions)) < 1e-6);
            cr_expect(distance(a.value, expected.value, 3) < 1e-6);
            cr_expect(distance(a.grads, expected.grads, p->net.parameter_count) < 1e-6);
            answer_free(expected);
            answer_free(a);
            farm_executor_destroy(small);
            farm_executor_destroy(large);
            problem_free(poison);
            problem_free(p);
        }
}

Test(nn, every_batch_up_to_the_largest_gives_each_row_the_same_answer) {
    struct problem *p = problem_random(&vector_cases[GREY].spec, &vector_cases[GREY].io, 37);
    struct farm_executor *executor = executor_new(p, 37, FARM_PRECISION_F32);
    const size_t actions = (size_t)p->net.io.actions;
    farm_executor_forward(executor, p->rows, 37, p->logits, p->value);
    float logits[37 * 5], value[37];
    for (int batch = 1; batch <= 37; batch++) {
        const int padded = farm_executor_forward(executor, p->rows, batch, logits, value);
        cr_expect(padded >= batch && padded <= 37 && padded < 2 * batch);
        cr_expect(distance(logits, p->logits, (size_t)batch * actions) < 1e-6, "batch %d", batch);
        cr_expect(distance(value, p->value, (size_t)batch) < 1e-6, "batch %d", batch);
    }
    farm_executor_destroy(executor);
    problem_free(p);
}

Test(nn, gradients_are_added_to_what_is_there) {
    for (int i = 0; i < VECTOR_CASES; i++) {
        struct problem *p = problem_read(&vector_cases[i]);
        struct farm_executor *executor = executor_new(p, p->batch, FARM_PRECISION_AUTO);
        const struct answer once = answer_of(executor, p, p->batch);
        float *twice = array(p->net.parameter_count, sizeof *twice);
        memcpy(twice, once.grads, p->net.parameter_count * sizeof *twice);
        farm_executor_backward(executor, p->rows, p->batch, p->dlogits, p->dvalue, twice);
        for (size_t k = 0; k < p->net.parameter_count; k++) twice[k] /= 2;
        cr_expect(distance(twice, once.grads, p->net.parameter_count) < 1e-6);
        free(twice);
        answer_free(once);
        farm_executor_destroy(executor);
        problem_free(p);
    }
}

// Training keeps what inference writes over.
Test(nn, inference_gives_what_training_gives) {
    static const char *const names[] = {"shallow", "deep"};
    for (int i = 0; i < 2; i++) {
        struct problem *p = problem_random(farm_net_find(names[i], NULL), &atari, 4);
        struct farm_executor *training = executor_new(p, 4, FARM_PRECISION_AUTO), *inference;
        const struct farm_executor_config config = {.net = &p->net, .batch_max = 4};
        cr_assert_eq(farm_executor_create(&config, &inference, NULL), FARM_OK);
        farm_executor_load(inference, p->params);
        float logits[4 * 6], value[4];
        farm_executor_forward(training, p->rows, 4, p->logits, p->value);
        farm_executor_forward(inference, p->rows, 4, logits, value);
        cr_expect(distance(logits, p->logits, 24) < 1e-6, "%s", names[i]);
        cr_expect(distance(value, p->value, 4) < 1e-6, "%s", names[i]);
        farm_executor_destroy(training);
        farm_executor_destroy(inference);
        problem_free(p);
    }
}

struct job {
    struct problem *p;
    struct farm_executor *executor;
    struct answer answer;
};

static void *run_job(void *context) {
    struct job *job = context;
    for (int i = 0; i < 8; i++) {
        if (i > 0) answer_free(job->answer);
        job->answer = answer_of(job->executor, job->p, job->p->batch);
    }
    return NULL;
}

// The executors are made here and run elsewhere: oneDNN must not keep anything with the thread that made them.
Test(nn, executors_side_by_side_give_the_same_bits) {
    struct problem *p = problem_random(farm_net_find("shallow", NULL), &atari, 5);
    struct job jobs[3];
    pthread_t threads[2];
    for (int i = 0; i < 3; i++) jobs[i] = (struct job){.p = p, .executor = executor_new(p, 16, FARM_PRECISION_AUTO)};
    for (int i = 0; i < 2; i++) cr_assert_eq(pthread_create(&threads[i], NULL, run_job, &jobs[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    run_job(&jobs[2]);
    for (int i = 0; i < 2; i++) {
        cr_expect_arr_eq(jobs[i].answer.logits, jobs[2].answer.logits, 5 * 6 * sizeof(float));
        cr_expect_arr_eq(jobs[i].answer.value, jobs[2].answer.value, 5 * sizeof(float));
        cr_expect_arr_eq(jobs[i].answer.grads, jobs[2].answer.grads, p->net.parameter_count * sizeof(float));
    }
    for (int i = 0; i < 3; i++) {
        answer_free(jobs[i].answer);
        farm_executor_destroy(jobs[i].executor);
    }
    problem_free(p);
}

Test(nn, refuses_a_batch_of_none) {
    struct problem *p = problem_read(&vector_cases[FLAT]);
    const struct farm_executor_config config = {.net = &p->net, .batch_max = 0};
    struct farm_executor *executor;
    cr_expect_eq(farm_executor_create(&config, &executor, NULL), FARM_E_INVALID);
    cr_expect_null(executor);
    problem_free(p);
}
