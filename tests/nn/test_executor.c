// Compares the executor with PyTorch (tests/vectors/nn_*.bin, made by make_nn.py) and, at full size, with a plain f64
// network in this file, which is itself compared with the vectors. Errors are relative Euclidean norms, tensor by
// tensor. Run from the repository's root.
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "cases.h"

static void answer_free(const struct answer *a) {
    free(a->logits);
}

static void problem_free(struct problem **p) {
    problem_free_host(*p);
}

static void executor_free(struct farm_executor **executor) {
    farm_executor_destroy(*executor);
}

// Locals that are freed at the end of their scope.
#define with_answer   __attribute__((cleanup(answer_free))) struct answer
#define with_problem  __attribute__((cleanup(problem_free))) struct problem
#define with_executor __attribute__((cleanup(executor_free))) struct farm_executor

// ---- A plain network in f64 that can round where the executor rounds ----

// How an op computes. EXACT: f64 throughout. BF16: what the op reads and what it stores, forward and backward, is bf16,
// and so are its packed weights; a row between two ops is bf16 if either is BF16. I16: the first convolution, as
// kernels/conv_u8.h describes. Sums, biases, gradients of parameters and the heads' outputs are f64 in all.
enum arithmetic { EXACT, BF16, I16 };

// One pass over a problem. With dither > 0 a number may round to its other neighbour if it lies within dither / 2 units
// in the last place of the middle between both, as another order of summation may cause.
struct plain {
    const struct problem *p;
    const enum arithmetic *arithmetic; // each op's
    double dither;
    uint64_t seed, drawn;
    double *weights; // the parameters as packed
    double *grads;
    struct answer answer;
};

struct picture {
    int channels, height, width; // 1 x 1 for vectors
    size_t count;
    double *data; // [channels][height][width]
    double *diff; // the loss's gradient by data
};

static struct picture picture_new(struct farm_shape shape) {
    const bool flat = shape.height == 0;
    struct picture picture = {
        shape.channels, flat ? 1 : shape.height, flat ? 1 : shape.width, farm_shape_count(shape), NULL, NULL};
    picture.data = array(2 * picture.count, sizeof(double));
    picture.diff = picture.data + picture.count;
    return picture;
}

// The nearest multiple of step, ties to even.
static double nearest(double x, double step) {
    return step > 0 ? step * nearbyint(x / step) : x;
}

static double nearest_dithered(struct plain *n, double x, double step) {
    if (n->dither == 0) return nearest(x, step);
    return nearest(x + n->dither * step * ((double)farm_random_uniform(n->seed, 6, n->drawn++) - 0.5), step);
}

// A unit in the last place of x as bf16, which has 8 significant bits.
static double bf16_step(double x) {
    int exponent;
    frexp(x, &exponent);
    return ldexp(1, exponent - 8);
}

// Rounds numbers of the row that enters op `row`, or of its gradient, if that is bf16. Pixels are exact in bf16.
static void store(struct plain *n, int row, double *data, size_t count) {
    const bool read = row < n->p->net.op_count && n->arithmetic[row] == BF16;
    const bool bf16 = row == 0 ? read && n->p->net.io.flat > 0 : read || n->arithmetic[row - 1] == BF16;
    for (size_t i = 0; bf16 && i < count; i++) data[i] = nearest_dithered(n, data[i], bf16_step(data[i]));
}

// conv_u8.h: the largest of a channel becomes 8191, or less if 32-bit sums of `terms` products could overflow.
static double whole_step(const double *data, size_t count, size_t terms) {
    double largest = 0;
    for (size_t i = 0; i < count; i++) largest = fmax(largest, fabs(data[i]));
    return largest / fmin(8191, INT32_MAX / 255 / (double)terms);
}

// Weights of one output. Those of the heads are one matrix: value.weight follows policy.weight.
static size_t taps_of(const struct farm_net *net, const struct farm_net_op *op) {
    const struct farm_tensor *tensor = &net->tensors[op->weight];
    return tensor->count / (size_t)tensor->dims[0];
}

static void pack_weights(struct plain *n) {
    const struct farm_net *net = &n->p->net;
    for (size_t i = 0; i < net->parameter_count; i++) n->weights[i] = (double)n->p->params[i];
    for (int i = 0; i < net->op_count; i++) {
        const struct farm_net_op *op = &net->ops[i];
        if (op->weight < 0 || op->kind == FARM_NET_OP_NORM || n->arithmetic[i] == EXACT) continue;
        const float scale = i == 0 && net->io.flat == 0 ? 1.0f / 255 : 1; // the executor divides weights, not pixels
        const size_t first = net->tensors[op->weight].offset, taps = taps_of(net, op);
        for (size_t k = 0; k < (size_t)op->out.channels * taps; k += taps) {
            const double step = whole_step(n->weights + first + k, taps, taps);
            for (size_t j = first + k; j < first + k + taps; j++) {
                const double scaled = (double)(n->p->params[j] * scale);
                n->weights[j] = n->arithmetic[i] == I16 ? nearest_dithered(n, n->weights[j], step)
                                                        : nearest(scaled, bf16_step(scaled)) / (double)scale;
            }
        }
    }
}

static double slope_of(enum farm_activation activation, double result) {
    if (activation == FARM_ACTIVATION_RELU) return result > 0;
    return activation == FARM_ACTIVATION_TANH ? 1 - result * result : 1;
}

static double activate(enum farm_activation activation, double sum) {
    if (activation == FARM_ACTIVATION_RELU) return fmax(sum, 0);
    if (activation == FARM_ACTIVATION_ELU) return sum > 0 ? sum : expm1(sum);
    if (activation == FARM_ACTIVATION_SILU) return sum / (1 + exp(-sum));
    return activation == FARM_ACTIVATION_TANH ? tanh(sum) : sum;
}

// The derivative at `sum`.
static double slope_at(enum farm_activation activation, double sum) {
    const double sigmoid = 1 / (1 + exp(-sum));
    if (activation == FARM_ACTIVATION_ELU) return sum > 0 ? 1 : exp(sum);
    if (activation == FARM_ACTIVATION_SILU) return sigmoid * (1 + sum * (1 - sigmoid));
    return slope_of(activation, activate(activation, sum));
}

// Where the kernel's element (i, j) of output (y, x) lies in channel c of the input; -1: in the padding.
static long input_at(const struct farm_net_op *op, const struct picture *in, int c, int y, int x, int i, int j) {
    const int row = y * op->stride + i - op->pad_before[0], column = x * op->stride + j - op->pad_before[1];
    if (row < 0 || row >= in->height || column < 0 || column >= in->width) return -1;
    return ((long)c * in->height + row) * in->width + column;
}

// Output (y, x) of one channel, whose weights are given, before bias and activation. A dense layer's kernel is as large
// as its input. If grad_weight is not NULL, adds the gradients of weights and input for `diff` instead.
static double plain_sum(const struct farm_net_op *op, const struct picture *in, int y, int x, const double *weight,
                        double diff, double *grad_weight) {
    const bool dense = op->kind == FARM_NET_OP_DENSE;
    const int kh = dense ? in->height : op->kernel, kw = dense ? in->width : op->kernel;
    double sum = 0;
    for (int c = 0; c < in->channels; c++)
        for (int i = 0; i < kh; i++)
            for (int j = 0; j < kw; j++) {
                const size_t w = (size_t)((c * kh + i) * kw + j);
                const long from = input_at(op, in, c, y, x, i, j);
                if (from < 0) continue;
                sum += weight[w] * in->data[from];
                if (grad_weight == NULL) continue;
                grad_weight[w] += diff * in->data[from];
                in->diff[from] += diff * weight[w];
            }
    return sum;
}

// NORM and ACTIVATION, which round only what they read and store.
static void plain_norm(struct plain *n, int index, const struct picture *in, const struct picture *out, bool backward) {
    const struct farm_net_op *op = &n->p->net.ops[index];
    const bool norm = op->kind == FARM_NET_OP_NORM;
    const size_t channels = (size_t)in->channels, positions = in->count / channels;
    const size_t weight = norm ? n->p->net.tensors[op->weight].offset : 0, bias = weight + channels;
    for (size_t first = 0; first < positions; first++) {
        double mean = 0, square = 0, dn_mean = 0, product_mean = 0;
        for (size_t i = first; i < in->count && norm; i += positions) mean += in->data[i] / (double)channels;
        for (size_t i = first; i < in->count; i += positions) square += pow(in->data[i] - mean, 2) / (double)channels;
        const double inverse = norm ? 1 / sqrt(square + 1e-5) : 1;
        for (size_t i = first, c = 0; i < in->count; i += positions, c++) {
            const double number = (in->data[i] - mean) * inverse;
            const double z = norm ? n->weights[weight + c] * number + n->weights[bias + c] : number;
            if (!backward) {
                out->data[i] = activate(op->activation, z);
                continue;
            }
            out->diff[i] *= slope_at(op->activation, z);
            if (!norm) continue;
            n->grads[weight + c] += out->diff[i] * number;
            n->grads[bias + c] += out->diff[i];
            out->diff[i] *= n->weights[weight + c];
            dn_mean += out->diff[i] / (double)channels;
            product_mean += out->diff[i] * number / (double)channels;
        }
        for (size_t i = first; i < in->count && backward; i += positions)
            in->diff[i] += inverse * (out->diff[i] - dn_mean - (in->data[i] - mean) * inverse * product_mean);
    }
    store(n, backward ? index : index + 1, backward ? in->diff : out->data, in->count);
}

// Where output `at`, (y, x) of channel c, of a pool or a ReLU comes from: the first maximum under the kernel.
static long plain_source(const struct farm_net_op *op, const struct picture *in, int c, int y, int x, size_t at) {
    long most = op->kind == FARM_NET_OP_RELU ? (long)at : -1;
    for (int i = 0; i < op->kernel; i++)
        for (int j = 0; j < op->kernel; j++) {
            const long from = input_at(op, in, c, y, x, i, j);
            if (from >= 0 && (most < 0 || in->data[from] > in->data[most])) most = from;
        }
    return most;
}

// One op, forward; or backward, from out->diff to in->diff, skip->diff and grads.
static void plain_op(struct plain *n, int index, const struct picture *in, const struct picture *skip,
                     const struct picture *out, bool backward) {
    const struct farm_net *net = &n->p->net;
    const struct farm_net_op *op = &net->ops[index];
    const size_t positions = (size_t)out->height * (size_t)out->width;
    if (op->kind == FARM_NET_OP_NORM || op->kind == FARM_NET_OP_ACTIVATION) {
        plain_norm(n, index, in, out, backward);
        return;
    }
    for (size_t at = 0; at < out->count && backward; at++)
        out->diff[at] *= slope_of(op->activation, out->data[at]); // the gradient before the activation
    if (backward) store(n, index + 1, out->diff, out->count);
    for (int o = 0; o < out->channels; o++) {
        const size_t weight = op->weight < 0 ? 0 : net->tensors[op->weight].offset + (size_t)o * taps_of(net, op);
        const size_t bias = op->weight < 0 ? 0 : net->tensors[op->bias].offset + (size_t)o;
        const double step =
            backward && n->arithmetic[index] == I16 ? whole_step(out->diff + (size_t)o * positions, positions, 1) : 0;
        for (int y = 0; y < out->height; y++)
            for (int x = 0; x < out->width; x++) {
                const size_t at = (size_t)((o * out->height + y) * out->width + x);
                const double diff = out->diff[at], added = skip == NULL ? 0 : skip->data[at];
                const long from = op->weight < 0 ? plain_source(op, in, o, y, x, at) : -1;
                if (!backward) {
                    out->data[at] =
                        activate(op->activation, from >= 0 ? in->data[from]
                                                           : plain_sum(op, in, y, x, n->weights + weight, 0, NULL) +
                                                                 n->weights[bias] + added);
                } else if (from >= 0) {
                    in->diff[from] += diff;
                } else if (diff != 0) {
                    plain_sum(op, in, y, x, n->weights + weight, nearest_dithered(n, diff, step), n->grads + weight);
                    n->grads[bias] += diff;
                    if (skip != NULL) skip->diff[at] += diff;
                }
            }
    }
    if (backward)
        store(n, index, in->diff, in->count);
    else if (index < net->op_count - 1)
        store(n, index + 1, out->data, out->count);
}

static struct picture plain_input(const struct problem *p, int b) {
    const struct farm_net_io *io = &p->net.io;
    struct picture in = picture_new(p->net.ops[0].in);
    for (int i = 0; i < io->flat; i++) in.data[i] = (double)((const float *)p->rows[b])[i];
    for (int s = 0; io->flat == 0 && s < io->stack; s++) {
        const uint8_t *frame = p->rows[b * io->stack + s];
        for (size_t i = 0; frame != NULL && i < frame_bytes(io); i++)
            in.data[(size_t)s * frame_bytes(io) + i] = frame[i] / 255.0;
    }
    return in;
}

// Forward and backward of one row; adds to grads.
static void plain_row(struct plain *n, int b) {
    const struct problem *p = n->p;
    struct picture rows[FARM_NET_OPS_MAX + 1]; // rows[i] enters op i
    const int count = p->net.op_count, actions = p->net.io.actions;
    const double dither = n->dither;
    rows[0] = plain_input(p, b);
    for (int i = 0; i < count; i++) rows[i + 1] = picture_new(p->net.ops[i].out);
    n->dither = 0; // the input and the output's gradient are given
    store(n, 0, rows[0].data, rows[0].count);
    for (int a = 0; a <= actions; a++)
        rows[count].diff[a] = (double)(a < actions ? p->dlogits[b * actions + a] : p->dvalue[b]);
    store(n, count, rows[count].diff, rows[count].count);
    n->dither = dither;
    for (int k = 0; k < 2 * count; k++) {
        const int i = k < count ? k : 2 * count - 1 - k, skip = p->net.ops[i].skip;
        plain_op(n, i, &rows[i], skip < 0 ? NULL : &rows[skip + 1], &rows[i + 1], k >= count);
    }
    for (int a = 0; a < actions; a++) n->answer.logits[b * actions + a] = (float)rows[count].data[a];
    n->answer.value[b] = (float)rows[count].data[actions];
    for (int i = 0; i <= count; i++) free(rows[i].data);
}

// The answer of the ops' arithmetic. dither and seed: struct plain.
static struct answer plain_answer(const struct problem *p, const enum arithmetic arithmetic[FARM_NET_OPS_MAX],
                                  double dither, uint64_t seed) {
    const size_t count = p->net.parameter_count;
    struct plain n = {.p = p, .arithmetic = arithmetic, .dither = dither, .seed = seed};
    n.weights = array(count, sizeof(double));
    n.grads = array(count, sizeof(double));
    n.answer = answer_new(&p->net, p->batch);
    pack_weights(&n);
    for (int b = 0; b < p->batch; b++) plain_row(&n, b);
    for (size_t i = 0; i < count; i++) n.answer.grads[i] = (float)n.grads[i];
    free(n.weights);
    free(n.grads);
    return n.answer;
}

static const enum arithmetic all_exact[FARM_NET_OPS_MAX];

// ---- Problems ----

#define SAME(out_)                  CONV(CONV_SAME, out_, 3, 1, NONE)
#define POOLED                      CONV(POOL, 0, 3, 2, NONE)
#define RESIDUAL(out_, activation_) CONV(RESIDUAL, out_, 3, 0, activation_)

// The tables of make_nn.py.
static const struct vector_case {
    const char *path;
    struct farm_net_spec spec;
    struct farm_net_io io;
    int batch;
} vector_cases[] = {
    {"tests/vectors/nn_grey.bin",
     {.text = "grey",
      .layer_count = 3,
      .layers = {CONV(CONV, 8, 4, 2, RELU), CONV(CONV, 16, 3, 1, RELU), DENSE(8, RELU)}},
     {.frame_channels = 1, .height = 20, .width = 18, .stack = 3, .actions = 5},
     5},
    {"tests/vectors/nn_rgb.bin",
     {.text = "rgb", .layer_count = 2, .layers = {CONV(CONV, 8, 4, 2, RELU), DENSE(16, RELU)}},
     {.frame_channels = 3, .height = 14, .width = 16, .stack = 2, .actions = 3},
     3},
    {"tests/vectors/nn_flat.bin",
     {.text = "flat", .layer_count = 2, .layers = {DENSE(32, TANH), DENSE(24, TANH)}},
     {.flat = 7, .stack = 1, .actions = 4},
     6},
    {"tests/vectors/nn_deep.bin",
     {.text = "small deep",
      .layer_count = 11,
      .layers = {SAME(8), POOLED, RESIDUAL(8, NONE), RESIDUAL(8, NONE), SAME(16), POOLED, RESIDUAL(16, NONE), SAME(8),
                 POOLED, RESIDUAL(8, RELU), DENSE(24, RELU)}},
     {.frame_channels = 1, .height = 21, .width = 14, .stack = 3, .actions = 5},
     4},
    {"tests/vectors/nn_norm.bin",
     {.text = "norm",
      .layer_count = 10,
      .layers = {CONV(CONV, 16, 3, 2, NONE), NORM(NONE), RESIDUAL(16, SILU), CONV(CONV, 16, 2, 1, ELU),
                 CONV(CONV, 16, 3, 2, TANH), NORM(RELU), DENSE(24, ELU), NORM(TANH), DENSE(19, NONE), NORM(SILU)}},
     {.frame_channels = 1, .height = 27, .width = 13, .stack = 2, .actions = 5},
     4},
};
enum { GREY, RGB, FLAT, DEEP, NORMALISED, VECTOR_CASES };

static struct problem *problem_read(const struct vector_case *vectors) {
    struct problem *p = problem_new(&vectors->spec, &vectors->io, vectors->batch);
    const struct farm_net_io *io = &p->net.io;
    const size_t rows = (size_t)p->batch, logits = rows * (size_t)io->actions, n = p->net.parameter_count;
    const struct {
        void *to;
        size_t bytes;
    } parts[] = {{p->params, n * sizeof(float)},
                 {p->frames, rows * row_frames(io) * frame_bytes(io)},
                 {p->numbers, rows * (size_t)io->flat * sizeof(float)},
                 {p->dlogits, logits * sizeof(float)},
                 {p->dvalue, rows * sizeof(float)},
                 {p->right.logits, (logits + rows + n) * sizeof(float)}, // values and gradients follow
                 {p->bf16_errors, (2 + (size_t)p->net.tensor_count) * sizeof(float)}};
    FILE *file = fopen(vectors->path, "rb");
    cr_assert_not_null(file, "%s is missing; run from the repository's root", vectors->path);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        cr_assert_eq(fread(parts[i].to, 1, parts[i].bytes, file), parts[i].bytes, "%s is too short", vectors->path);
    cr_assert_eq(fgetc(file), EOF, "%s is too long", vectors->path);
    fclose(file);
    if (io->flat == 0) p->rows[0] = p->rows[io->stack] = p->rows[io->stack + 1] = NULL; // zeros in the file
    return p;
}

static struct problem *problem_random(const struct farm_net_spec *spec, const struct farm_net_io *io, int batch) {
    struct problem *p = problem_new(spec, io, batch);
    problem_randomise(p, 9);
    return p;
}

// ---- Checks ----

static struct farm_arithmetic f32_of(const struct farm_net *net) {
    return farm_arithmetic_uniform(net, FARM_PRECISION_F32, (struct farm_form){0});
}

// The n-th arithmetic that this CPU has for a network: each form of AUTO or BF16 for all ops, then (over frames) forms
// that change wherever they may. False beyond the last.
static bool nth_arithmetic(const struct farm_net *net, int n, struct farm_arithmetic *out) {
    struct farm_form forms[2 * FARM_FORMS_MAX];
    int count = farm_arithmetic_forms(net, FARM_PRECISION_AUTO, forms);
    if (net->io.flat > 0) count += farm_arithmetic_forms(net, FARM_PRECISION_BF16, forms + count);
    *out = farm_arithmetic_uniform(net, FARM_PRECISION_AUTO, forms[n < count ? n : 0]);
    if (n < count || n >= count + 2 || count == 1 || net->io.flat > 0) return n < count;
    for (int i = 1; i < net->op_count; i++) { // if the check refuses a change, the form stays
        const struct farm_arithmetic before = *out;
        for (int k = i; k < net->op_count; k++) out->forms[k] = forms[(n + i) % count];
        if (i == 1) out->forms[0] = out->forms[1];
        if (farm_arithmetic_check(net, out, NULL) != FARM_OK) *out = before;
    }
    return true;
}

static struct farm_executor *executor_make(const struct problem *p, struct farm_executor_config config) {
    config.net = &p->net;
    struct farm_executor *executor;
    struct farm_error err = {.message = ""};
    cr_assert_eq(farm_executor_create(&config, &executor, &err), FARM_OK, "%s", err.message);
    farm_executor_load(executor, p->params);
    return executor;
}

static struct farm_executor *executor_new(const struct problem *p, int batch_max, bool training,
                                          const struct farm_arithmetic *arithmetic) {
    return executor_make(
        p, (struct farm_executor_config){.batch_max = batch_max, .training = training, .arithmetic = arithmetic});
}

static struct answer answer_of(struct farm_executor *executor, const struct problem *p, int batch) {
    struct answer a = answer_new(&p->net, batch);
    a.padded = farm_executor_forward(executor, p->rows, farm_sequence_rows(batch), a.logits, a.value);
    farm_executor_backward(executor, farm_sequence_rows(batch), p->dlogits, p->dvalue, a.grads);
    return a;
}

static struct farm_arithmetic last_arithmetic(const struct farm_net *net) {
    struct farm_arithmetic arithmetic;
    for (int n = 0; nth_arithmetic(net, n, &arithmetic); n++) continue;
    return arithmetic;
}

static int part_count(const struct problem *p) {
    return 2 + p->net.tensor_count;
}

static const char *part_name(const struct problem *p, int k) {
    return k == 0 ? "logits" : k == 1 ? "values" : p->net.tensors[k - 2].name;
}

static double part_distance(const struct problem *p, struct answer a, struct answer b, int k) {
    const size_t rows = (size_t)p->batch;
    if (k == 0) return distance(a.logits, b.logits, rows * (size_t)p->net.io.actions);
    if (k == 1) return distance(a.value, b.value, rows);
    const struct farm_tensor *tensor = &p->net.tensors[k - 2];
    return distance(a.grads + tensor->offset, b.grads + tensor->offset, tensor->count);
}

static void expect_answer(const struct problem *p, struct answer a, double most) {
    for (int k = 0; k < part_count(p); k++) {
        const double off = part_distance(p, a, p->right, k);
        cr_expect(off <= most, "%s: %s: off by %g", p->spec.text, part_name(p, k), off);
    }
}

static void expect_solved(const struct problem *p, double most) {
    const struct farm_arithmetic f32 = f32_of(&p->net);
    with_executor *executor = executor_new(p, p->batch, true, &f32);
    const with_answer a = answer_of(executor, p, p->batch);
    expect_answer(p, a, most);
}

// The executor's answer must equal the emulated one; its error against the exact answer is then the emulation's, which
// is itself compared with JAX and PyTorch. Both round the same numbers, but the executor's sums are f32: n products of
// either sign are off by about sqrt(n) * 2^-24 of their sum, that is sqrt(n) * 2^-16 units in the last place of bf16
// and at most 2^-10 for n <= 4096. So a stored number may round to its other neighbour, by a whole unit, and may then
// move later sums, ReLU masks and maxima: how far depends on the network. Emulations that round at random within 1/64
// of a unit, 16 times as much, sample it. The bound is three times their root-mean-square distance from the undisturbed
// emulation, and 1e-5 for f32 itself. Weights, inputs and output gradients are given, not summed: all round them alike.
struct emulation {
    enum arithmetic ops[FARM_NET_OPS_MAX];
    struct answer answer;
    double spread[PARTS_MAX]; // root mean square
};

// What the plain network computes for an arithmetic.
static void emulation_of(const struct farm_net *net, const struct farm_arithmetic *arithmetic,
                         enum arithmetic ops[FARM_NET_OPS_MAX]) {
    for (int i = 0; i < FARM_NET_OPS_MAX; i++) ops[i] = arithmetic->forms[i].bf16 ? BF16 : EXACT;
    if (net->io.flat == 0) ops[0] = arithmetic->first == FARM_CONV_U8_I16 ? I16 : EXACT;
}

static void emulate(const struct problem *p, int emulations, struct emulation *e) {
    e->answer = plain_answer(p, e->ops, 0, 0);
    memset(e->spread, 0, sizeof e->spread);
    for (int i = 0; i < emulations; i++) {
        const with_answer other = plain_answer(p, e->ops, 1.0 / 64, (uint64_t)i);
        for (int k = 0; k < part_count(p); k++)
            e->spread[k] += pow(part_distance(p, other, e->answer, k), 2) / emulations;
    }
    for (int k = 0; k < part_count(p); k++) e->spread[k] = sqrt(e->spread[k]);
}

static void expect_emulated(const struct problem *p, int n, const struct farm_arithmetic *arithmetic,
                            const struct emulation *e) {
    with_executor *executor = executor_new(p, p->batch, true, arithmetic);
    const with_answer a = answer_of(executor, p, p->batch);
    for (int k = 0; k < part_count(p); k++) {
        const double off = part_distance(p, a, e->answer, k), most = 1e-5 + 3 * e->spread[k];
        cr_expect(off <= most, "%s, arithmetic %d: %s: off by %g, more than %g", p->spec.text, n, part_name(p, k), off,
                  most);
    }
}

// Layouts share an emulation.
static void expect_each_emulated(const struct problem *p, int emulations) {
    enum { EMULATIONS_MAX = 2 * FARM_FORMS_MAX + 2 };
    struct emulation known[EMULATIONS_MAX];
    struct farm_arithmetic arithmetic;
    int count = 0;
    for (int n = 0; nth_arithmetic(&p->net, n, &arithmetic); n++) {
        int k = 0;
        emulation_of(&p->net, &arithmetic, known[count].ops);
        while (memcmp(known[k].ops, known[count].ops, sizeof known[k].ops) != 0) k++;
        if (k == count) emulate(p, emulations, &known[count++]);
        expect_emulated(p, n, &arithmetic, &known[k]);
    }
    for (int k = 0; k < count; k++) answer_free(&known[k].answer);
}

// ---- Tests ----

Test(nn, the_plain_network_and_f32_agree_with_pytorch) {
    for (int i = 0; i < VECTOR_CASES; i++) {
        with_problem *p = problem_read(&vector_cases[i]);
        const with_answer a = plain_answer(p, all_exact, 0, 0);
        expect_answer(p, a, 1e-6);
        expect_solved(p, i == NORMALISED ? 1e-5 : 2e-6); // its features are alike in all rows: gradients cancel
    }
}

// PyTorch rounds where the executor does, so the errors themselves agree; of a deep network within a tenth.
Test(nn, the_emulated_bf16_is_off_as_much_as_that_of_pytorch) {
    for (int i = 0; i < VECTOR_CASES; i++) {
        with_problem *p = problem_read(&vector_cases[i]);
        enum arithmetic ops[FARM_NET_OPS_MAX];
        for (int k = 0; k < FARM_NET_OPS_MAX; k++) ops[k] = BF16;
        const with_answer a = plain_answer(p, ops, 0, 0);
        for (int k = 0; k < part_count(p); k++) {
            const double off = part_distance(p, a, p->right, k), theirs = (double)p->bf16_errors[k];
            cr_expect(fabs(off - theirs) <= (i == DEEP ? 0.1 * theirs : 1e-6), "%s: %s: off by %g, not %g",
                      p->spec.text, part_name(p, k), off, theirs);
        }
    }
}

Test(nn, each_arithmetic_computes_small_networks_as_emulated) {
    for (int i = 0; i < VECTOR_CASES; i++) {
        with_problem *p = problem_read(&vector_cases[i]);
        expect_each_emulated(p, 16);
    }
}

// Emulations cover blocks of channels too, for which the vectors' networks are too small.
Test(nn, known_networks_agree_with_the_plain_network) {
    for (int i = 0; i < CASES; i++) {
        const struct farm_net_io *io = i == ODD ? &odd_io : &cases[i].io;
        if (io->lstm > 0 || (io->flat > 0 && io->frame_channels > 0)) continue; // not of the plain network
        with_problem *p =
            i == ODD ? problem_random(&odd_net, io, 3) : problem_random(net_spec(cases[i].net), io, cases[i].rows);
        answer_free(&p->right);
        p->right = plain_answer(p, all_exact, 0, 0);
        expect_solved(p, 1e-5);
        if (i < ODD && cases[i].emulations > 0) expect_each_emulated(p, cases[i].emulations);
    }
}

Test(nn, refuses_batches_and_arithmetic_that_this_cpu_or_network_cannot_have) {
    with_problem *p = problem_random(net_spec("deep"), &atari, 1);
    struct farm_executor *executor;
    struct farm_error err;
    struct farm_arithmetic a;
    struct farm_executor_config config = {.net = &p->net, .batch_max = 1, .arithmetic = &a};
    struct farm_form forms[FARM_FORMS_MAX];
    if (farm_arithmetic_forms(&p->net, FARM_PRECISION_BF16, forms) == 0) {
        a = farm_arithmetic_uniform(&p->net, FARM_PRECISION_BF16, (struct farm_form){.bf16 = true});
        cr_expect_eq(farm_executor_create(&config, &executor, &err), FARM_E_UNSUPPORTED);
        cr_expect_not_null(strstr(err.message, "precision"));
    }
    for (int i = 0; i < 6; i++) { // an invalid block, one in a residual block, another first layer, type, path, batch
        a = f32_of(&p->net);
        if (i < 2) a.forms[i == 0 ? 0 : 5].block = i == 0 ? 7 : 8;
        if (i == 2) a.forms[0].block = 8;
        if (i == 3) a.forms[0] = a.forms[1] = (struct farm_form){.bf16 = true, .winograd = true};
        if (i == 4) a.path = FARM_CONV_U8_PATHS;
        if (i == 5) config.batch_max = 0;
        cr_expect_eq(farm_executor_create(&config, &executor, &err), FARM_E_INVALID, "case %d", i);
        cr_expect_null(executor);
    }
}

// A batch that is padded to a larger size gives what the exact size gives, although the rows beyond held NaN before.
// oneDNN's products may sum in another order; Winograd's transforms enlarge that rounding.
Test(nn, padding_changes_nothing) {
    for (int i = 0; i < VECTOR_CASES; i++) {
        with_problem *p = problem_random(&vector_cases[i].spec, &vector_cases[i].io, 8);
        with_problem *poison = problem_random(&vector_cases[i].spec, &vector_cases[i].io, 8);
        for (size_t k = 0; k < p->net.parameter_count; k++) poison->params[k] = NAN;
        for (int k = 0; k < 8 * poison->net.io.flat; k++) poison->numbers[k] = NAN;
        struct farm_arithmetic arithmetic;
        for (int n = 0; nth_arithmetic(&p->net, n, &arithmetic); n++) {
            with_executor *small = executor_new(p, 3, true, &arithmetic);
            with_executor *large = executor_new(poison, 8, true, &arithmetic);
            const with_answer expected = answer_of(small, p, 3), of_poison = answer_of(large, poison, 8);
            farm_executor_load(large, p->params);
            const with_answer a = answer_of(large, p, 3);
            cr_expect(expected.padded == 3 && of_poison.padded == 8 && a.padded == 4);
            cr_expect(distance(a.logits, expected.logits, (size_t)(3 * p->net.io.actions)) < 1e-6);
            cr_expect(distance(a.value, expected.value, 3) < 1e-6);
            bool winograd = false;
            for (int k = 0; k < p->net.op_count; k++) winograd |= arithmetic.forms[k].winograd;
            cr_expect(distance(a.grads, expected.grads, p->net.parameter_count) < (winograd ? 3e-6 : 1e-6));
        }
    }
}

static void read_all(FILE *file, void *to, size_t bytes) {
    cr_assert_eq(fread(to, 1, bytes, file), bytes, "a vectors file is too short");
}

// Two interleaved colour images beside numbers, choices and bytes: PyTorch's answer, in f32 and within bf16's error.
Test(nn, frames_beside_a_flat_input_agree_with_pytorch) {
    enum { BATCH = 4, FRAME = 14 * 16 * 3, ACTIONS = 3, FLAT_WIDTH = 14, POINTERS = 6 };
    static const struct farm_net_spec spec = {
        .text = "joined", .layer_count = 2, .layers = {CONV(CONV, 8, 4, 2, RELU), DENSE(16, RELU)}};
    static const struct farm_net_io io = {.frame_channels = 3,
                                          .height = 14,
                                          .width = 16,
                                          .interleaved = true,
                                          .stack = 1,
                                          .images = 2,
                                          .flat = FLAT_WIDTH,
                                          .input_count = 4,
                                          .inputs = {{FARM_INPUT_NUMBERS, 3, 0, true, 0},
                                                     {FARM_INPUT_SIGN, 1, 0, false, 0},
                                                     {FARM_INPUT_ONE_HOT, 2, 4, false, 0},
                                                     {FARM_INPUT_BYTES, 2, 2, false, 0}},
                                          .actions = ACTIONS};
    struct farm_net net;
    cr_assert_eq(farm_net_make(&spec, &io, &net, NULL), FARM_OK);
    cr_assert_eq(farm_net_pointers(&net), POINTERS);
    const size_t weights = net.parameter_count - 2 * FLAT_WIDTH - 1;
    float *params = array(net.parameter_count, sizeof *params), *grads = array(net.parameter_count, sizeof *grads);
    float *right = array(net.parameter_count, sizeof *right);
    static uint8_t frames[BATCH][2][FRAME], binary[BATCH][2];
    static int32_t choices[BATCH][2];
    static float numbers[BATCH][4], dlogits[BATCH][ACTIONS], dvalue[BATCH], logits[BATCH][ACTIONS], value[BATCH],
        right_logits[BATCH][ACTIONS], right_value[BATCH];
    FILE *file = fopen("tests/vectors/nn_joined.bin", "rb");
    cr_assert_not_null(file);
    read_all(file, params, (weights + 2 * FLAT_WIDTH) * sizeof *params);
    read_all(file, frames, sizeof frames);
    read_all(file, numbers, sizeof numbers);
    read_all(file, choices, sizeof choices);
    read_all(file, binary, sizeof binary);
    read_all(file, dlogits, sizeof dlogits);
    read_all(file, dvalue, sizeof dvalue);
    read_all(file, right_logits, sizeof right_logits);
    read_all(file, right_value, sizeof right_value);
    read_all(file, right, weights * sizeof *right);
    fclose(file);
    const void *rows[BATCH][POINTERS];
    for (int b = 0; b < BATCH; b++) {
        const void *row[] = {frames[b][0], frames[b][1], numbers[b], &numbers[b][3], choices[b], binary[b]};
        memcpy(rows[b], row, sizeof row);
    }
    struct farm_arithmetic arithmetic;
    for (int n = 0; nth_arithmetic(&net, n, &arithmetic); n++) {
        const bool f32 = !arithmetic.forms[0].bf16 && !arithmetic.forms[net.op_count - 1].bf16 && n < 1;
        if (f32) arithmetic = f32_of(&net);
        const double most = f32 ? 2e-6 : 3e-2;
        const struct farm_executor_config config = {
            .net = &net, .batch_max = 6, .training = true, .arithmetic = &arithmetic};
        struct farm_executor *executor;
        cr_assert_eq(farm_executor_create(&config, &executor, NULL), FARM_OK);
        farm_executor_load(executor, params);
        memset(grads, 0, net.parameter_count * sizeof *grads);
        farm_executor_forward(executor, &rows[0][0], farm_sequence_rows(BATCH), &logits[0][0], value);
        farm_executor_backward(executor, farm_sequence_rows(BATCH), &dlogits[0][0], dvalue, grads);
        cr_expect(distance(&logits[0][0], &right_logits[0][0], BATCH * ACTIONS) < most, "arithmetic %d", n);
        cr_expect(distance(value, right_value, BATCH) < most, "arithmetic %d", n);
        for (int t = 0; net.tensors[t].offset < weights; t++) {
            const struct farm_tensor *tensor = &net.tensors[t];
            const double off = distance(grads + tensor->offset, right + tensor->offset, tensor->count);
            cr_expect(off < most, "arithmetic %d: %s is off by %g", n, tensor->name, off);
        }
        farm_executor_destroy(executor);
    }
    free(params);
    free(grads);
    free(right);
}

Test(nn, every_batch_up_to_the_largest_gives_each_row_the_same_answer) {
    with_problem *p = problem_random(&vector_cases[GREY].spec, &vector_cases[GREY].io, 37);
    const struct farm_arithmetic f32 = f32_of(&p->net);
    with_executor *executor = executor_new(p, 37, true, &f32);
    const size_t actions = (size_t)p->net.io.actions;
    farm_executor_forward(executor, p->rows, farm_sequence_rows(37), p->right.logits, p->right.value);
    float logits[37 * 5], value[37];
    for (int batch = 1; batch <= 37; batch++) {
        const int padded = farm_executor_forward(executor, p->rows, farm_sequence_rows(batch), logits, value);
        cr_expect(padded >= batch && padded <= 37 && 3 * padded <= 4 * batch);
        cr_expect(distance(logits, p->right.logits, (size_t)batch * actions) < 1e-6, "batch %d", batch);
        cr_expect(distance(value, p->right.value, (size_t)batch) < 1e-6, "batch %d", batch);
    }
}

Test(nn, gradients_are_added_to_what_is_there_or_begun) {
    for (int i = 0; i < VECTOR_CASES; i++) {
        with_problem *p = problem_read(&vector_cases[i]);
        const struct farm_arithmetic arithmetic = last_arithmetic(&p->net);
        with_executor *executor = executor_new(p, p->batch, true, &arithmetic);
        const with_answer once = answer_of(executor, p, p->batch), twice = answer_of(executor, p, p->batch);
        farm_executor_backward(executor, farm_sequence_rows(p->batch), p->dlogits, p->dvalue, twice.grads);
        for (size_t k = 0; k < p->net.parameter_count; k++) twice.grads[k] /= 2;
        cr_expect(distance(twice.grads, once.grads, p->net.parameter_count) < 1e-6);

        memset(twice.grads, 0xff, p->net.parameter_count * sizeof *twice.grads); // NaN
        farm_executor_clear(executor, twice.grads);
        farm_executor_backward(executor, farm_sequence_rows(p->batch), p->dlogits, p->dvalue, twice.grads);
        cr_expect(distance(twice.grads, once.grads, p->net.parameter_count) < 1e-6);
    }
}

// Training keeps what inference overwrites.
Test(nn, inference_gives_what_training_gives) {
    static const char *const names[] = {"shallow", "deep"};
    for (int i = 0; i < 2; i++) {
        with_problem *p = problem_random(net_spec(names[i]), &atari, 4);
        const struct farm_arithmetic arithmetic = last_arithmetic(&p->net);
        with_executor *training = executor_new(p, 4, true, &arithmetic);
        with_executor *inference = executor_new(p, 4, false, &arithmetic);
        float logits[4 * 6], value[4];
        farm_executor_forward(training, p->rows, farm_sequence_rows(4), p->right.logits, p->right.value);
        farm_executor_forward(inference, p->rows, farm_sequence_rows(4), logits, value);
        cr_expect(distance(logits, p->right.logits, 24) < 1e-6, "%s", names[i]);
        cr_expect(distance(value, p->right.value, 4) < 1e-6, "%s", names[i]);
    }
}

// ---- packed weights outside of the executor ----

// One step of every row, from states that differ.
static void infer(struct farm_executor *executor, const struct problem *p, struct answer *a) {
    const size_t numbers = (size_t)p->batch * (size_t)p->net.state;
    float *state = array(2 * numbers, sizeof *state);
    uint8_t *flags = array((size_t)p->batch, 1);
    for (size_t i = 0; i < numbers; i++) state[i] = farm_random_uniform(11, 0, i) - 0.5f;
    struct farm_sequence sequence = farm_sequence_rows(p->batch);
    sequence.flags = flags;
    sequence.state_in = state;
    sequence.state_out = state + numbers;
    farm_executor_forward(executor, p->rows, sequence, a->logits, a->value);
    free(state);
    free(flags);
}

// Must `executor` give the bits of `right`, which are finite numbers?
static void expect_bits(struct farm_executor *executor, const struct problem *p, const struct answer *right,
                        const char *when, int n) {
    with_answer a = answer_new(&p->net, p->batch);
    infer(executor, p, &a);
    const size_t numbers = (size_t)p->batch * (size_t)(p->net.io.actions + 1);
    for (size_t i = 0; i < numbers; i++) cr_assert(isfinite(a.logits[i]));
    cr_assert_arr_eq(a.logits, right->logits, numbers * sizeof(float), "%s, arithmetic %d: %s", p->spec.text, n, when);
}

// Two executors read one block, which either has packed over old bytes; two versions of the parameters.
static void expect_exchangeable(const struct problem *p, int n, const struct farm_arithmetic *arithmetic) {
    const struct farm_executor_config config = {.batch_max = p->batch, .arithmetic = arithmetic, .one_size = true};
    with_executor *first = executor_make(p, config), *second = executor_make(p, config);
    with_answer old = answer_new(&p->net, p->batch), new = answer_new(&p->net, p->batch);
    const size_t bytes = farm_executor_packed_bytes(first);
    uint8_t *blocks = aligned_alloc(64, 2 * bytes);
    float *newer = array(p->net.parameter_count, sizeof *newer);
    for (size_t i = 0; i < p->net.parameter_count; i++) newer[i] = 0.75f * p->params[i];
    cr_assert(blocks && bytes % 64 == 0 && bytes == farm_executor_packed_bytes(second));
    cr_expect_eq(farm_executor_packed_layout(first), farm_executor_packed_layout(second));
    memset(blocks, 0xff, 2 * bytes); // NaN
    infer(first, p, &old);
    farm_executor_load(second, newer);
    infer(second, p, &new);

    farm_executor_pack(second, p->params, blocks);
    expect_bits(second, p, &new, "a pack elsewhere changes nothing", n);
    farm_executor_bind(second, blocks);
    farm_executor_pack(second, newer, blocks + bytes);
    expect_bits(second, p, &old, "bound; a pack elsewhere changes nothing", n);
    farm_executor_bind(first, blocks);
    expect_bits(first, p, &old, "bound to the same block", n);
    farm_executor_bind(first, blocks + bytes);
    expect_bits(first, p, &new, "bound to another version", n);
    farm_executor_pack(second, newer, blocks);
    expect_bits(second, p, &new, "packed where it is bound", n);
    memset(blocks, 0xff, 2 * bytes);
    farm_executor_bind(first, NULL);
    expect_bits(first, p, &old, "its own memory again", n);
    farm_executor_load(second, newer);
    expect_bits(second, p, &new, "loaded after it was bound", n);
    free(blocks);
    free(newer);
}

static void expect_each_exchangeable(const struct problem *p) {
    struct farm_arithmetic arithmetic;
    for (int n = 0; nth_arithmetic(&p->net, n, &arithmetic); n++) expect_exchangeable(p, n, &arithmetic);
    arithmetic = f32_of(&p->net);
    expect_exchangeable(p, -1, &arithmetic);
}

Test(nn, packed_weights_in_another_place_give_the_same_bits) {
    for (int i = 0; i < CASES; i++) {
        with_problem *p = i == ODD ? problem_random(&odd_net, &odd_io, 3)
                                   : problem_random(net_spec(cases[i].net), &cases[i].io, cases[i].rows);
        expect_each_exchangeable(p);
    }
}

// Means and variances lie in the block too.
Test(nn, packed_statistics_in_another_place_give_the_same_bits) {
    static const struct farm_net_io io = {.frame_channels = 1,
                                          .height = 44,
                                          .width = 40,
                                          .stack = 2,
                                          .normalise_frames = true,
                                          .flat = 7,
                                          .input_count = 1,
                                          .inputs = {{FARM_INPUT_NUMBERS, 7, 0, true, 0}},
                                          .actions = 5};
    with_problem *p = problem_random(net_spec("lite"), &io, 3);
    const size_t statistics = p->net.tensors[p->net.normalise].offset;
    for (size_t i = statistics; i < p->net.parameter_count; i++)
        p->params[i] = 0.2f + farm_random_uniform(12, 0, i) * 0.3f;
    expect_each_exchangeable(p);
}

// Another form packs other bytes, except a form of another layout that changes no weight.
Test(nn, layouts_of_packed_weights_differ_between_forms) {
    with_problem *p = problem_random(net_spec("shallow"), &atari, 2);
    struct farm_arithmetic arithmetic = f32_of(&p->net);
    with_executor *plain = executor_new(p, 2, false, &arithmetic);
    const uint64_t layout = farm_executor_packed_layout(plain);
    cr_expect_neq(layout, 0);
    for (int n = 0; nth_arithmetic(&p->net, n, &arithmetic); n++) {
        if (arithmetic.first == FARM_CONV_U8_F32) continue;
        with_executor *other = executor_new(p, 2, false, &arithmetic);
        cr_expect_neq(farm_executor_packed_layout(other), layout, "arithmetic %d", n);
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
        if (i > 0) answer_free(&job->answer);
        job->answer = answer_of(job->executor, job->p, job->p->batch);
    }
    return NULL;
}

// The executors are made here and run elsewhere: oneDNN must not keep anything in the thread that made them.
Test(nn, executors_side_by_side_give_the_same_bits) {
    with_problem *p = problem_random(net_spec("shallow"), &atari, 5);
    struct job jobs[3];
    pthread_t threads[2];
    struct farm_arithmetic arithmetic;
    nth_arithmetic(&p->net, 0, &arithmetic);
    for (int i = 0; i < 3; i++) jobs[i] = (struct job){.p = p, .executor = executor_new(p, 16, true, &arithmetic)};
    for (int i = 0; i < 2; i++) cr_assert_eq(pthread_create(&threads[i], NULL, run_job, &jobs[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    run_job(&jobs[2]);
    const size_t bytes = (5 * 6 + 5 + p->net.parameter_count) * sizeof(float); // logits, values, gradients
    for (int i = 0; i < 2; i++) cr_expect_arr_eq(jobs[i].answer.logits, jobs[2].answer.logits, bytes);
    for (int i = 0; i < 3; i++) {
        answer_free(&jobs[i].answer);
        farm_executor_destroy(jobs[i].executor);
    }
}
