// The GPU's executor beside the CPU's: the same networks, parameters and rows; forward and gradients, tensor by tensor,
// by the norm of the difference over the norm. test_executor.c runs these tests over emulators on the CPU, which shows
// that the right calls are made in the right order with the right shapes; tests/gpu/executor.c runs them on a GPU. They
// define before: `vendor`, a table that executors keep, and `on_gpu`.
#ifndef TESTS_NN_CUDA_EXECUTOR_H
#define TESTS_NN_CUDA_EXECUTOR_H

#include "nn/cuda/executor.h"

#include <cuda_runtime_api.h>
#include <farm/step.h>
#include <stdio.h>
#include <string.h>

#include "../cases.h"
#include "kernels/bf16.h"

static struct farm_error err;

#define CUDA(call) cr_assert_eq((call), cudaSuccess, "%s", #call)

// Device memory with a copy of `from`, or zeros.
static void *device_copy(const void *from, size_t bytes) {
    void *memory;
    CUDA(cudaMalloc(&memory, bytes + 1));
    CUDA(cudaMemsetAsync(memory, 0, bytes + 1, NULL));
    if (from != NULL) CUDA(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice));
    return memory;
}

static void copy_back(void *to, const void *from, size_t count) {
    CUDA(cudaMemcpy(to, from, count * sizeof(float), cudaMemcpyDeviceToHost));
}

// ---- problems: the right answer is the CPU executor's in f32; the inputs lie on the device ----

struct problem_device {
    size_t count; // parameters, gaps included
    void *frames;
    const void **pointers; // to them
    float *numbers, *dlogits, *dvalue;
    void *params[2]; // f32, bf16
    // A recurrent network's, on the host and on the device; else all rows.
    struct farm_sequence host, sequence;
};

// Some frames are given as NULL although their bytes are not zeros.
static bool is_null_frame(const struct problem *p, size_t frame) {
    return row_frames(&p->net.io) > 1 && frame % 7 == 2;
}

static void solve(struct problem *p) {
    const struct farm_arithmetic f32 = farm_arithmetic_uniform(&p->net, FARM_PRECISION_F32, (struct farm_form){0});
    const struct farm_executor_config config = {
        .net = &p->net, .batch_max = p->batch, .training = true, .arithmetic = &f32};
    struct farm_executor *cpu;
    cr_assert_eq(farm_executor_create(&config, &cpu, &err), FARM_OK, "%s", err.message);
    farm_executor_load(cpu, p->params);
    farm_executor_forward(cpu, p->rows, p->device->host, p->right.logits, p->right.value);
    farm_executor_backward(cpu, p->device->host, p->dlogits, p->dvalue, p->right.grads);
    farm_executor_destroy(cpu);
}

// A sequence of as few columns as rows permit, with FIRST in some, from a state that is not 0.
static void make_sequence(struct problem *p) {
    int columns = 2;
    while (p->batch % columns) columns++;
    const size_t rows = (size_t)p->batch, state = (size_t)columns * (size_t)p->net.state;
    struct problem_device *d = p->device = array(1, sizeof *d);
    d->host = d->sequence = farm_sequence_rows(p->batch);
    if (p->net.state == 0) return;
    uint8_t *flags = array(rows, 1);
    float *before = array(state, sizeof *before), *after = array(state, sizeof *after);
    for (size_t i = 0; i < rows; i++) flags[i] = i % 5 == 1 ? FARM_STEP_FIRST : 0;
    for (size_t i = 0; i < state; i++) before[i] = 2 * farm_random_uniform(3, 6, i) - 1;
    d->host = (struct farm_sequence){p->batch / columns, columns, flags, before, after};
    d->sequence =
        (struct farm_sequence){p->batch / columns, columns, device_copy(flags, rows),
                               device_copy(before, state * sizeof *before), device_copy(NULL, state * sizeof *after)};
}

static void drop_sequence(const struct problem_device *d) {
    const struct farm_sequence *const both[] = {&d->host, &d->sequence};
    for (int i = 0; i < 2; i++) {
        const void *const parts[] = {both[i]->flags, both[i]->state_in, both[i]->state_out};
        for (int k = 0; k < 3; k++)
            if (i == 0)
                free((void *)(uintptr_t)parts[k]);
            else
                CUDA(cudaFree((void *)(uintptr_t)parts[k]));
    }
}

// Copies another problem's parameters, inputs and gradients, of the same shapes.
static void refill(const struct problem *p, const struct problem *from) {
    const struct farm_net_io *io = &p->net.io;
    const struct problem_device *d = p->device;
    const size_t rows = (size_t)p->batch, logits = rows * (size_t)io->actions;
    float *params = array(d->count, sizeof *params);
    uint16_t *rounded = array(d->count, sizeof *rounded);
    farm_cuda_to_device_layout(&p->net, from->params, params);
    for (size_t i = 0; i < d->count; i++) rounded[i] = farm_bf16(params[i]);
    const struct {
        void *to;
        const void *from;
        size_t bytes;
    } parts[] = {{d->params[0], params, d->count * sizeof *params},
                 {d->params[1], rounded, d->count * sizeof *rounded},
                 {d->frames, from->frames, rows * row_frames(io) * frame_bytes(io)},
                 {d->numbers, from->numbers, rows * (size_t)io->flat * sizeof(float)},
                 {d->dlogits, from->dlogits, logits * sizeof(float)},
                 {d->dvalue, from->dvalue, rows * sizeof(float)}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        CUDA(cudaMemcpy(parts[i].to, parts[i].from, parts[i].bytes, cudaMemcpyHostToDevice));
    free(params);
    free(rounded);
}

static void copy_problem(struct problem *p) {
    const struct farm_net_io *io = &p->net.io;
    const size_t rows = (size_t)p->batch, frames = rows * row_frames(io);
    struct problem_device *d = p->device;
    d->count = farm_cuda_parameter_count(&p->net);
    d->frames = device_copy(NULL, frames * frame_bytes(io));
    d->numbers = device_copy(NULL, rows * (size_t)io->flat * sizeof(float));
    d->dlogits = device_copy(NULL, rows * (size_t)io->actions * sizeof(float));
    d->dvalue = device_copy(NULL, rows * sizeof(float));
    for (int i = 0; i < 2; i++) d->params[i] = device_copy(NULL, d->count * (i ? sizeof(uint16_t) : sizeof(float)));
    const void **pointers = array(frames, sizeof *pointers);
    for (size_t f = 0; f < frames; f++)
        pointers[f] = is_null_frame(p, f) ? NULL : (char *)d->frames + f * frame_bytes(io);
    d->pointers = device_copy(pointers, frames * sizeof *pointers);
    free(pointers);
    refill(p, p);
}

static struct problem *problem_unsolved(const struct farm_net_spec *spec, const struct farm_net_io *io, int rows) {
    struct problem *p = problem_new(spec, io, rows);
    const size_t frames = row_frames(&p->net.io), pointers = (size_t)farm_net_pointers(&p->net);
    for (size_t f = 0; f < (size_t)rows * frames; f++)
        if (is_null_frame(p, f)) p->rows[f / frames * pointers + f % frames] = NULL;
    problem_randomise(p, 3);
    make_sequence(p);
    copy_problem(p);
    return p;
}

static struct problem *problem_of(const struct farm_net_spec *spec, const struct farm_net_io *io, int rows) {
    struct problem *p = problem_unsolved(spec, io, rows);
    solve(p);
    return p;
}

static void problem_free(struct problem **problem) {
    struct problem *p = *problem;
    void *const device[] = {p->device->frames, p->device->pointers,  p->device->numbers,  p->device->dlogits,
                            p->device->dvalue, p->device->params[0], p->device->params[1]};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) CUDA(cudaFree(device[i]));
    drop_sequence(p->device);
    free(p->device);
    problem_free_host(p);
}

// ---- answers ----

struct device_answer {
    struct answer host;            // PyTorch's layout
    float *state;                  // after the last step
    float *logits, *value, *grads; // on the device
    float gap;                     // the largest gradient in a gap between parameters
};

static size_t state_count(const struct problem *p) {
    return (size_t)p->device->host.columns * (size_t)p->net.state;
}

// Outputs are NaN until they are written.
static struct device_answer device_answer_new(const struct problem *p) {
    const size_t value = (size_t)p->batch * sizeof(float), logits = value * (size_t)p->net.io.actions;
    const struct device_answer a = {.host = answer_new(&p->net, p->batch),
                                    .state = array(state_count(p), sizeof(float)),
                                    .logits = device_copy(NULL, logits),
                                    .value = device_copy(NULL, value),
                                    .grads = device_copy(NULL, p->device->count * sizeof(float))};
    CUDA(cudaMemset(a.logits, 0xff, logits));
    CUDA(cudaMemset(a.value, 0xff, value));
    return a;
}

static void answer_fetch(const struct problem *p, int rows, struct device_answer *a) {
    float *grads = array(p->device->count, sizeof *grads), *again = array(p->device->count, sizeof *again);
    copy_back(a->host.logits, a->logits, (size_t)(rows * p->net.io.actions));
    copy_back(a->host.value, a->value, (size_t)rows);
    copy_back(grads, a->grads, p->device->count);
    if (p->net.state > 0) copy_back(a->state, p->device->sequence.state_out, state_count(p));
    farm_cuda_to_pytorch_layout(&p->net, grads, a->host.grads);
    farm_cuda_to_device_layout(&p->net, a->host.grads, again);
    a->gap = 0;
    for (size_t i = 0; i < p->device->count; i++) a->gap = fmaxf(a->gap, fabsf(grads[i] - again[i]));
    free(grads);
    free(again);
}

static void device_answer_free(const struct device_answer *a) {
    free(a->host.logits);
    free(a->state);
    CUDA(cudaFree(a->logits));
    CUDA(cudaFree(a->value));
    CUDA(cudaFree(a->grads));
}

static void executor_free(struct farm_cuda_executor **executor) {
    farm_cuda_executor_destroy(*executor);
}

// Locals that are freed at the end of their scope.
#define with_answer   __attribute__((cleanup(device_answer_free))) struct device_answer
#define with_problem  __attribute__((cleanup(problem_free))) struct problem
#define with_executor __attribute__((cleanup(executor_free))) struct farm_cuda_executor

static struct farm_cuda_executor *executor_of(const struct farm_cuda_executor_config *config) {
    struct farm_cuda_executor *executor;
    cr_assert_eq(farm_cuda_executor_create(config, &executor, &err), FARM_OK, "%s", err.message);
    return executor;
}

static struct farm_cuda_executor *executor_new(const struct problem *p, int batch_max, enum farm_precision precision,
                                               bool training) {
    const struct farm_cuda_executor_config config = {
        .net = &p->net, .batch_max = batch_max, .training = training, .precision = precision, .vendor = &vendor};
    return executor_of(&config);
}

static const void *params_of(const struct problem *p, const struct farm_cuda_executor *executor) {
    return p->device->params[farm_cuda_executor_precision(executor) == FARM_PRECISION_BF16];
}

static struct farm_sequence sequence_of(const struct problem *p, int rows) {
    struct farm_sequence sequence = p->device->sequence;
    sequence.steps = rows / sequence.columns;
    return p->net.state > 0 ? sequence : farm_sequence_rows(rows);
}

static enum farm_status forward_status(struct farm_cuda_executor *executor, cudaStream_t stream,
                                       const struct problem *p, int rows, const struct device_answer *a) {
    const struct farm_net_io *io = &p->net.io;
    const struct farm_cuda_input input = {.frames = row_frames(io) ? p->device->pointers : NULL,
                                          .flat = io->flat ? p->device->numbers : NULL};
    return farm_cuda_executor_forward(executor, stream, params_of(p, executor), &input, sequence_of(p, rows), a->logits,
                                      a->value, &err);
}

static void run_forward(struct farm_cuda_executor *executor, cudaStream_t stream, const struct problem *p, int rows,
                        const struct device_answer *a) {
    cr_assert_eq(forward_status(executor, stream, p, rows, a), FARM_OK, "%s", err.message);
}

static void run_backward(struct farm_cuda_executor *executor, cudaStream_t stream, const struct problem *p, int rows,
                         const struct device_answer *a) {
    cr_assert_eq(farm_cuda_executor_backward(executor, stream, params_of(p, executor), p->device->dlogits,
                                             p->device->dvalue, sequence_of(p, rows), a->grads, &err),
                 FARM_OK, "%s", err.message);
}

// times: gradients are added up so often; 0: forward alone.
static struct device_answer answer_of(struct farm_cuda_executor *executor, const struct problem *p, int rows,
                                      int times) {
    struct device_answer a = device_answer_new(p);
    for (int i = 0; i < times || i == 0; i++) {
        run_forward(executor, NULL, p, rows, &a);
        if (times > 0) run_backward(executor, NULL, p, rows, &a);
    }
    answer_fetch(p, rows, &a);
    return a;
}

static void expect_same_bits(const struct problem *p, int rows, const struct device_answer *a,
                             const struct device_answer *b) {
    const size_t logits = (size_t)(rows * p->net.io.actions) * sizeof(float);
    cr_expect_arr_eq(a->host.logits, b->host.logits, logits, "%s", p->spec.text);
    cr_expect_arr_eq(a->host.value, b->host.value, (size_t)rows * sizeof(float), "%s", p->spec.text);
    cr_expect_arr_eq(a->host.grads, b->host.grads, p->net.parameter_count * sizeof(float), "%s", p->spec.text);
}

// The vendor chooses algorithms by the number of rows; the emulators compute each row alike.
static void expect_same_rows(const struct problem *p, int rows, const struct device_answer *a,
                             const struct device_answer *b, enum farm_precision precision) {
    const double most = !on_gpu ? 0 : precision == FARM_PRECISION_F32 ? 1e-5 : 1e-2;
    const double logits = distance(a->host.logits, b->host.logits, (size_t)(rows * p->net.io.actions)),
                 value = distance(a->host.value, b->host.value, (size_t)rows);
    cr_expect(logits <= most && value <= most, "%s, %d rows: off by %g, %g", p->spec.text, rows, logits, value);
}

// ---- networks ----

static struct problem *problem_at(int i) {
    return i == ODD ? problem_of(&odd_net, &odd_io, 7)
                    : problem_of(net_spec(cases[i].net), &cases[i].io, cases[i].rows);
}

// cuDNN rounds more than its emulator.
static struct bounds bounds_of(int i, enum farm_precision precision) {
    static const struct bounds odd = {3e-2, 8e-2, 0.6};
    const bool f32 = precision == FARM_PRECISION_F32;
    struct bounds most = f32 ? (struct bounds){1e-5, 1e-5, 1e-4} : i == ODD ? odd : cases[i].bf16;
    if (!on_gpu) return most;
    most.gradient = f32 ? 1e-4 : fmax(8e-2, most.gradient * 5 / 3);
    most.tensor = INFINITY;
    return most;
}

static void expect_right(const struct problem *p, const struct device_answer *a, const struct bounds *most) {
    const size_t rows = (size_t)p->batch, outputs = rows * ((size_t)p->net.io.actions + 1); // values follow logits
    const double forward = distance(a->host.logits, p->right.logits, outputs),
                 gradient = distance(a->host.grads, p->right.grads, p->net.parameter_count);
    cr_expect(forward <= most->forward, "%s: logits and values are off by %g", p->spec.text, forward);
    cr_expect(gradient <= most->gradient, "%s: the gradient is off by %g", p->spec.text, gradient);
    const double after = distance(a->state, p->device->host.state_out, state_count(p));
    cr_expect(after <= most->forward, "%s: the state is off by %g", p->spec.text, after);
    cr_expect_eq(a->gap, 0, "%s: a gap's gradient is %g", p->spec.text, (double)a->gap);
    for (int t = 0; t < p->net.tensor_count; t++) {
        const struct farm_tensor *tensor = &p->net.tensors[t];
        const double off = distance(a->host.grads + tensor->offset, p->right.grads + tensor->offset, tensor->count);
        cr_expect(off <= most->tensor, "%s: the gradient of %s is off by %g", p->spec.text, tensor->name, off);
    }
}

static void expect_solved(int i, const struct problem *p, enum farm_precision precision) {
    const struct bounds most = bounds_of(i, precision);
    with_executor *executor = executor_new(p, p->batch, precision, true);
    const with_answer a = answer_of(executor, p, p->batch, 1);
    expect_right(p, &a, &most);
}

// ---- graphs ----

struct captured {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
};

// One pass, of a forward alone or of both. It must have run once outside a capture.
static struct captured capture(struct farm_cuda_executor *executor, const struct problem *p, int rows,
                               const struct device_answer *a, bool training) {
    struct captured c;
    CUDA(cudaStreamCreateWithFlags(&c.stream, cudaStreamNonBlocking));
    CUDA(cudaStreamBeginCapture(c.stream, cudaStreamCaptureModeThreadLocal));
    if (training) CUDA(cudaMemsetAsync(a->grads, 0, p->device->count * sizeof(float), c.stream));
    run_forward(executor, c.stream, p, rows, a);
    if (training) run_backward(executor, c.stream, p, rows, a);
    CUDA(cudaStreamEndCapture(c.stream, &c.graph));
    CUDA(cudaGraphInstantiate(&c.exec, c.graph, 0));
    return c;
}

static void captured_free(const struct captured *c) {
    CUDA(cudaGraphExecDestroy(c->exec));
    CUDA(cudaGraphDestroy(c->graph));
    CUDA(cudaStreamDestroy(c->stream));
}

// ---- tests ----

static const enum farm_precision precisions[] = {FARM_PRECISION_BF16, FARM_PRECISION_F32};

Test(nn_cuda, f32_agrees_with_the_cpu) {
    for (int i = ON_CUDA; i < CASES; i++) {
        with_problem *p = problem_at(i);
        expect_solved(i, p, FARM_PRECISION_F32);
    }
}

Test(nn_cuda, auto_is_bf16_and_agrees_with_the_cpu_within_its_bounds) {
    for (int i = ON_CUDA; i < CASES; i++) {
        with_problem *p = problem_at(i);
        expect_solved(i, p, FARM_PRECISION_AUTO);
        with_executor *executor = executor_new(p, 1, FARM_PRECISION_AUTO, true);
        cr_expect_eq(farm_cuda_executor_precision(executor), FARM_PRECISION_BF16);
    }
}

// Fewer rows than fit, odd numbers too, in any order: each row's answer stays the same.
Test(nn_cuda, every_number_of_rows_gives_each_row_the_same_answer) {
    for (int i = on_gpu ? 2 * ON_CUDA : 2 * ODD; i < 2 * CASES; i++) {
        with_problem *p = problem_at(i / 2);
        const int columns = p->net.state > 0 ? p->device->host.columns : 1, steps = p->batch / columns;
        with_executor *executor = executor_new(p, p->batch + 2, precisions[i % 2], true);
        const with_answer whole = answer_of(executor, p, p->batch, 1);
        const int some[] = {1, steps - 1, steps / 2, steps, 2, 1};
        for (size_t k = 0; k < sizeof some / sizeof *some; k++) {
            if (some[k] < 1 || some[k] > steps) continue;
            const with_answer a = answer_of(executor, p, some[k] * columns, 1);
            expect_same_rows(p, some[k] * columns, &a, &whole, precisions[i % 2]);
        }
    }
}

Test(nn_cuda, inference_gives_what_training_gives_in_less_memory) {
    for (int i = ON_CUDA; i < CASES; i++) {
        with_problem *p = problem_at(i);
        struct farm_cuda_executor_config config = {
            .net = &p->net, .batch_max = p->batch, .precision = FARM_PRECISION_BF16, .vendor = &vendor};
        const size_t bytes = farm_cuda_executor_bytes(&config);
        with_executor *inference = executor_of(&config);
        config.training = true;
        cr_expect_lt(bytes, farm_cuda_executor_bytes(&config));
        with_executor *training = executor_of(&config);
        const with_answer a = answer_of(training, p, p->batch, 0), b = answer_of(inference, p, p->batch, 0);
        expect_same_rows(p, p->batch, &a, &b, FARM_PRECISION_BF16);
    }
}

// cuDNN reads an addend times 0 if there is none. What a forward leaves there must be finite: f32 numbers, half of
// which look like NaN if read as bf16, are kept out of it.
Test(nn_cuda, what_a_forward_leaves_behind_does_not_matter_to_the_next) {
    static const struct farm_net_spec turns = {
        .text = "turns",
        .layer_count = 3,
        .layers = {CONV(CONV, 5, 3, 2, RELU), CONV(CONV, 7, 3, 2, RELU), DENSE(11, RELU)}};
    with_problem *p = problem_of(&turns, &odd_io, 200);
    with_executor *executor = executor_new(p, p->batch, FARM_PRECISION_BF16, false);
    const with_answer first = answer_of(executor, p, p->batch, 0), second = answer_of(executor, p, p->batch, 0);
    expect_same_bits(p, p->batch, &second, &first);
}

Test(nn_cuda, gradients_are_added_to_what_is_there) {
    with_problem *p = problem_of(&odd_net, &odd_io, 4);
    for (int i = 0; i < 2; i++) {
        with_executor *executor = executor_new(p, 4, precisions[i], true);
        const with_answer once = answer_of(executor, p, 4, 1), twice = answer_of(executor, p, 4, 2);
        for (size_t k = 0; k < p->net.parameter_count; k++) twice.host.grads[k] /= 2;
        cr_expect_lt(distance(twice.host.grads, once.host.grads, p->net.parameter_count), 1e-6);
    }
}

Test(nn_cuda, a_captured_graph_computes_anew_in_every_replay) {
    for (int i = on_gpu ? 2 * ON_CUDA : 2 * ODD; i < 2 * CASES; i++) {
        with_problem *p = problem_at(i / 2), *other = problem_at(i / 2);
        with_executor *executor = executor_new(p, p->batch, precisions[i % 2], true);
        const with_answer direct = answer_of(executor, p, p->batch, 1);
        with_answer a = device_answer_new(p);
        const struct bounds most = bounds_of(i / 2, precisions[i % 2]);
        problem_randomise(other, 8);
        memset(other->right.grads, 0, other->net.parameter_count * sizeof(float));
        solve(other);
        const struct captured c = capture(executor, p, p->batch, &a, true);
        for (int replay = 0; replay < 3; replay++) { // parameters, input and gradients change
            refill(p, replay == 1 ? other : p);
            CUDA(cudaGraphLaunch(c.exec, c.stream));
            CUDA(cudaStreamSynchronize(c.stream));
            answer_fetch(p, p->batch, &a);
            expect_right(replay == 1 ? other : p, &a, &most);
            if (replay != 1) expect_same_bits(p, p->batch, &a, &direct);
        }
        captured_free(&c);
    }
}

// As in inference: each step's state goes into the next one, in place.
Test(nn_cuda, steps_one_by_one_give_what_one_sequence_gives) {
    with_problem *p = problem_at(ODD - 3); // a case of numbers
    with_executor *executor = executor_new(p, p->batch, FARM_PRECISION_F32, false);
    const with_answer a = device_answer_new(p);
    const struct farm_sequence whole = p->device->sequence;
    const size_t rows = (size_t)whole.columns, states = rows * (size_t)p->net.state;
    CUDA(cudaMemcpy(whole.state_out, whole.state_in, states * sizeof(float), cudaMemcpyDeviceToDevice));
    for (size_t t = 0; t < (size_t)whole.steps; t++) {
        const struct farm_cuda_input input = {.flat = device_copy(p->numbers + t * rows * (size_t)p->net.io.flat,
                                                                  rows * (size_t)p->net.io.flat * sizeof(float))};
        const struct farm_sequence step = {1, whole.columns, whole.flags + t * rows, whole.state_out, whole.state_out};
        cr_assert_eq(farm_cuda_executor_forward(executor, NULL, p->device->params[0], &input, step,
                                                a.logits + t * rows * (size_t)p->net.io.actions, a.value + t * rows,
                                                &err),
                     FARM_OK, "%s", err.message);
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaFree((void *)(uintptr_t)input.flat));
    }
    answer_fetch(p, p->batch, (struct device_answer *)(uintptr_t)&a);
    cr_expect_lt(distance(a.state, p->device->host.state_out, states), 1e-5);
    cr_expect_lt(distance(a.host.logits, p->right.logits, (size_t)(p->batch * p->net.io.actions)), 1e-5);
}

#endif
