// Compares the GPU's executor with the CPU's: the same networks, parameters and rows; forward and gradients, tensor by
// tensor, by the norm of the difference over the norm. Runtime, kernels and vendor are emulators on the CPU
// (tests/support/cuda_emulator): this shows that the right calls are made in the right order with the right shapes, and
// nothing about a device.
#include "nn/cuda/executor.h"

#include <criterion/criterion.h>
#include <cuda_runtime_api.h>
#include <farm/step.h>
#include <stdio.h>
#include <string.h>

#include "../problem.h"
#include "emulator.h"
#include "kernels/bf16.h"
#include "vendor_emulator.h"

static struct farm_error err;
static struct farm_cuda_vendor vendor; // the emulator's table; executors keep its address

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
    // Of a network with a state, on the host and on the device; else all rows.
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

static void copy_problem(struct problem *p) {
    const struct farm_net_io *io = &p->net.io;
    const size_t rows = (size_t)p->batch, frames = rows * row_frames(io);
    struct problem_device *d = p->device;
    d->count = farm_cuda_parameter_count(&p->net);
    d->frames = device_copy(p->frames, frames * frame_bytes(io));
    d->numbers = device_copy(p->numbers, rows * (size_t)io->flat * sizeof(float));
    const void **pointers = array(frames, sizeof *pointers);
    for (size_t f = 0; f < frames; f++)
        pointers[f] = is_null_frame(p, f) ? NULL : (char *)d->frames + f * frame_bytes(io);
    d->pointers = device_copy(pointers, frames * sizeof *pointers);
    d->dlogits = device_copy(p->dlogits, rows * (size_t)io->actions * sizeof(float));
    d->dvalue = device_copy(p->dvalue, rows * sizeof(float));
    float *params = array(d->count, sizeof *params);
    uint16_t *rounded = array(d->count, sizeof *rounded);
    farm_cuda_to_device_layout(&p->net, p->params, params);
    for (size_t i = 0; i < d->count; i++) rounded[i] = farm_bf16(params[i]);
    d->params[0] = device_copy(params, d->count * sizeof *params);
    d->params[1] = device_copy(rounded, d->count * sizeof *rounded);
    free(pointers);
    free(params);
    free(rounded);
}

static struct problem *problem_of(const struct farm_net_spec *spec, const struct farm_net_io *io, int rows) {
    struct problem *p = problem_new(spec, io, rows);
    const size_t frames = row_frames(&p->net.io), pointers = (size_t)farm_net_pointers(&p->net);
    for (size_t f = 0; f < (size_t)rows * frames; f++)
        if (is_null_frame(p, f)) p->rows[f / frames * pointers + f % frames] = NULL;
    problem_randomise(p, 3);
    make_sequence(p);
    solve(p);
    copy_problem(p);
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
    float *logits, *value, *grads; // on the device
    float gap;                     // the largest gradient in a gap between parameters
};

static struct device_answer device_answer_new(const struct problem *p) {
    const size_t rows = (size_t)p->batch;
    return (struct device_answer){.host = answer_new(&p->net, p->batch),
                                  .logits = device_copy(NULL, rows * (size_t)p->net.io.actions * sizeof(float)),
                                  .value = device_copy(NULL, rows * sizeof(float)),
                                  .grads = device_copy(NULL, p->device->count * sizeof(float))};
}

static void answer_fetch(const struct problem *p, int rows, struct device_answer *a) {
    float *grads = array(p->device->count, sizeof *grads), *again = array(p->device->count, sizeof *again);
    copy_back(a->host.logits, a->logits, (size_t)(rows * p->net.io.actions));
    copy_back(a->host.value, a->value, (size_t)rows);
    copy_back(grads, a->grads, p->device->count);
    farm_cuda_to_pytorch_layout(&p->net, grads, a->host.grads);
    farm_cuda_to_device_layout(&p->net, a->host.grads, again);
    a->gap = 0;
    for (size_t i = 0; i < p->device->count; i++) a->gap = fmaxf(a->gap, fabsf(grads[i] - again[i]));
    free(grads);
    free(again);
}

static void device_answer_free(const struct device_answer *a) {
    free(a->host.logits);
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

static void setup(void) {
    farm_emulator_reset();
    memset(&farm_emulator_vendor, 0, sizeof farm_emulator_vendor);
    farm_emulator_vendor.workspace_bytes = 1 << 20;
    vendor = farm_emulator_vendor_table();
}

// Neither device memory nor descriptors may be left.
static void teardown(void) {
    cr_expect_eq(farm_emulator_vendor.descriptors, 0, "%ld descriptors are left", farm_emulator_vendor.descriptors);
    cr_expect_eq(farm_emulator_account().allocations, 0);
}

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
    return p->net.state > 0 ? p->device->sequence : farm_sequence_rows(rows);
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
    cr_expect_arr_eq(a->host.logits, b->host.logits, logits, "%s", p->spec.name);
    cr_expect_arr_eq(a->host.value, b->host.value, (size_t)rows * sizeof(float), "%s", p->spec.name);
}

// How far an answer may be off: logits and values together, the gradient as a whole, that of one tensor.
struct bounds {
    double forward, gradient, tensor;
};
static const struct bounds f32_bounds = {1e-5, 1e-5, 1e-4};

static void expect_right(const struct problem *p, const struct device_answer *a, const struct bounds *most) {
    const size_t rows = (size_t)p->batch, outputs = rows * ((size_t)p->net.io.actions + 1); // values follow logits
    const double forward = distance(a->host.logits, p->right.logits, outputs),
                 gradient = distance(a->host.grads, p->right.grads, p->net.parameter_count);
    cr_expect(forward <= most->forward, "%s: logits and values are off by %g", p->spec.name, forward);
    cr_expect(gradient <= most->gradient, "%s: the gradient is off by %g", p->spec.name, gradient);
    const size_t states = p->net.state > 0 ? (size_t)(p->device->host.columns * p->net.state) : 0;
    float *state = array(states, sizeof *state);
    if (states) copy_back(state, p->device->sequence.state_out, states);
    const double after = distance(state, p->device->host.state_out, states);
    cr_expect(after <= most->forward, "%s: the state is off by %g", p->spec.name, after);
    free(state);
    cr_expect_eq(a->gap, 0, "%s: a gap's gradient is %g", p->spec.name, (double)a->gap);
    for (int t = 0; t < p->net.tensor_count; t++) {
        const struct farm_tensor *tensor = &p->net.tensors[t];
        const double off = distance(a->host.grads + tensor->offset, p->right.grads + tensor->offset, tensor->count);
        cr_expect(off <= most->tensor, "%s: the gradient of %s is off by %g", p->spec.name, tensor->name, off);
    }
}

static void expect_solved(const struct problem *p, enum farm_precision precision, const struct bounds *most) {
    with_executor *executor = executor_new(p, p->batch, precision, true);
    const with_answer a = answer_of(executor, p, p->batch, 1);
    expect_right(p, &a, most);
}

// ---- networks ----

static const struct net_case {
    const char *net;
    struct farm_net_io io;
    int rows;
    struct bounds bf16; // roundings move signs and maxima, whose gradients move as a whole
} cases[] = {
    {"shallow", {.frame_channels = 1, .height = 84, .width = 84, .stack = 4, .actions = 6}, 3, {1e-2, 4e-2, 0.2}},
    {"shallow", {.frame_channels = 3, .height = 37, .width = 50, .stack = 2, .actions = 15}, 2, {1e-2, 4e-2, 0.2}},
    {"nature", {.frame_channels = 1, .height = 84, .width = 84, .stack = 4, .actions = 18}, 2, {1e-2, 4e-2, 0.2}},
    {"mlp", {.flat = 17, .stack = 1, .actions = 7}, 5, {1e-2, 1e-2, 2e-2}},
    {"deep", {.frame_channels = 1, .height = 33, .width = 46, .stack = 2, .actions = 9}, 3, {1e-2, 0.12, 0.45}},
    {"deep", {.frame_channels = 3, .height = 24, .width = 31, .stack = 1, .actions = 3}, 2, {1e-2, 0.12, 0.45}},
    {"lite", // two stacks of colour images beside numbers
     {.frame_channels = 3,
      .height = 44,
      .width = 51,
      .interleaved = true,
      .stack = 2,
      .images = 2,
      .flat = 13,
      .actions = 5},
     3,
     {1e-2, 4e-2, 0.2}},
    {"separate", {.flat = 9, .stack = 1, .actions = 3, .free_outputs = 1}, 6, {1e-2, 1e-2, 2e-2}},
    {"mlp", {.flat = 17, .stack = 1, .lstm = 19, .lstm_layers = 1, .actions = 7}, 21, {1e-2, 1e-2, 5e-2}},
    {"mlp", {.flat = 3, .stack = 1, .lstm = 8, .lstm_layers = 2, .actions = 2}, 5, {1e-2, 1e-2, 2e-2}},
    {"shallow", // two layers behind frames and a flat input
     {.frame_channels = 1,
      .height = 44,
      .width = 40,
      .stack = 2,
      .flat = 7,
      .lstm = 24,
      .lstm_layers = 2,
      .actions = 5},
     12,
     {1e-2, 4e-2, 0.2}},
};
enum { CASES = sizeof cases / sizeof *cases };

static struct problem *problem_at(int i) {
    return problem_of(farm_net_find(cases[i].net, NULL), &cases[i].io, cases[i].rows);
}

// What no known network has: odd numbers of channels, dense layers with ReLU and without activation, a dense layer that
// reads a pool, a ReLU between residual blocks.
static const struct farm_net_spec odd_net = {
    .name = "odd",
    .layer_count = 7,
    .layers = {CONV(CONV, 5, 3, 2, NONE), CONV(RESIDUAL, 5, 3, 0, NONE), CONV(RESIDUAL, 5, 3, 0, RELU),
               CONV(CONV_SAME, 7, 3, 1, NONE), CONV(POOL, 0, 2, 2, NONE), DENSE(11, NONE), DENSE(9, RELU)},
};
static const struct bounds odd_bf16 = {1e-2, 2e-2, 0.4};
static const struct farm_net_io odd_io = {.frame_channels = 2, .height = 19, .width = 22, .stack = 3, .actions = 4};

// ---- tests ----

TestSuite(nn_cuda, .init = setup, .fini = teardown);

Test(nn_cuda, f32_agrees_with_the_cpu) {
    for (int i = 0; i <= CASES; i++) {
        with_problem *p = i < CASES ? problem_at(i) : problem_of(&odd_net, &odd_io, 5);
        expect_solved(p, FARM_PRECISION_F32, &f32_bounds);
    }
}

Test(nn_cuda, auto_is_bf16_and_agrees_with_the_cpu_within_its_bounds) {
    for (int i = 0; i < CASES; i++) {
        with_problem *p = problem_at(i);
        expect_solved(p, FARM_PRECISION_AUTO, &cases[i].bf16);
        with_executor *executor = executor_new(p, 1, FARM_PRECISION_AUTO, true);
        cr_expect_eq(farm_cuda_executor_precision(executor), FARM_PRECISION_BF16);
    }
}

// Fewer rows than fit, odd numbers too, in any order: each row's answer stays the same to the bit.
Test(nn_cuda, every_number_of_rows_gives_each_row_the_same_answer) {
    with_problem *p = problem_of(&odd_net, &odd_io, 7);
    with_executor *executor = executor_new(p, 9, FARM_PRECISION_BF16, true);
    const with_answer whole = answer_of(executor, p, 7, 1);
    static const int rows[] = {1, 6, 3, 7, 2, 1};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const with_answer a = answer_of(executor, p, rows[i], 1);
        expect_same_bits(p, rows[i], &a, &whole);
    }
}

Test(nn_cuda, inference_gives_what_training_gives_in_less_memory) {
    for (int i = 0; i < CASES; i++) {
        with_problem *p = problem_at(i);
        const uint64_t before = farm_emulator_account().device_bytes;
        with_executor *inference = executor_new(p, p->batch, FARM_PRECISION_BF16, false);
        const uint64_t between = farm_emulator_account().device_bytes;
        with_executor *training = executor_new(p, p->batch, FARM_PRECISION_BF16, true);
        cr_expect_lt(between - before, farm_emulator_account().device_bytes - between);
        const with_answer a = answer_of(training, p, p->batch, 0), b = answer_of(inference, p, p->batch, 0);
        expect_same_bits(p, p->batch, &a, &b);
    }
}

// cuDNN reads an addend times 0 if there is none. What a forward leaves there must be finite: f32 numbers, half of
// which look like NaN if read as bf16, are kept out of it.
Test(nn_cuda, what_a_forward_leaves_behind_does_not_matter_to_the_next) {
    static const struct farm_net_spec turns = {
        .name = "turns",
        .layer_count = 3,
        .layers = {CONV(CONV, 5, 3, 2, RELU), CONV(CONV, 7, 3, 2, RELU), DENSE(11, RELU)}};
    with_problem *p = problem_of(&turns, &odd_io, 200);
    with_executor *executor = executor_new(p, p->batch, FARM_PRECISION_BF16, false);
    const with_answer first = answer_of(executor, p, p->batch, 0), second = answer_of(executor, p, p->batch, 0);
    expect_same_bits(p, p->batch, &second, &first);
}

Test(nn_cuda, gradients_are_added_to_what_is_there) {
    static const enum farm_precision precisions[] = {FARM_PRECISION_F32, FARM_PRECISION_BF16};
    with_problem *p = problem_of(&odd_net, &odd_io, 4);
    for (int i = 0; i < 2; i++) {
        with_executor *executor = executor_new(p, 4, precisions[i], true);
        const with_answer once = answer_of(executor, p, 4, 1), twice = answer_of(executor, p, 4, 2);
        for (size_t k = 0; k < p->net.parameter_count; k++) twice.host.grads[k] /= 2;
        cr_expect_lt(distance(twice.host.grads, once.host.grads, p->net.parameter_count), 1e-6);
    }
}

// What cuDNN or cuBLASLt cannot do in one call is done in two, with the same result within roundings.
Test(nn_cuda, what_the_vendor_cannot_fuse_is_done_after_it) {
    with_problem *p = problem_of(&odd_net, &odd_io, 3);
    static const int statuses[] = {0, 0, 0, CUDNN_STATUS_BAD_PARAM, CUDNN_STATUS_NOT_SUPPORTED, 3001, 4001};
    for (int i = 0; i < (int)(sizeof statuses / sizeof *statuses); i++) {
        farm_emulator_vendor.fused_status = statuses[i];
        farm_emulator_vendor.no_epilogue = i == 1;
        farm_emulator_vendor.no_precomputed_gemm = i == 2;
        farm_emulator_vendor.fused = farm_emulator_vendor.plain = 0;
        expect_solved(p, FARM_PRECISION_F32, &f32_bounds);
        expect_solved(p, FARM_PRECISION_BF16, &odd_bf16);
        const long fused = farm_emulator_vendor.fused, plain = farm_emulator_vendor.plain;
        cr_expect(statuses[i] ? fused == 0 : fused > 0, "case %d: %ld fused", i, fused);
        cr_expect(statuses[i] || i == 2 ? plain > 0 : plain == 0, "case %d: %ld plain", i, plain);
    }
}

// If cuDNN refuses a call that it offered, the next algorithm does it, from then on.
Test(nn_cuda, an_algorithm_whose_call_is_refused_gives_way_to_the_next) {
    with_problem *p = problem_of(&odd_net, &odd_io, 3);
    for (int i = 0; i < 8; i++) {
        const int direction = i / 2; // 0: forward, 1: to the input, 2: to the weights, 3: all
        for (int d = 0; d < 3; d++) farm_emulator_vendor.refused[d] = direction == d || direction == 3 ? 2 : 0;
        with_executor *executor = executor_new(p, 3, i % 2 ? FARM_PRECISION_BF16 : FARM_PRECISION_F32, true);
        for (int call = 0; call < 2; call++) {
            const with_answer a = answer_of(executor, p, 3, 1);
            expect_right(p, &a, i % 2 ? &odd_bf16 : &f32_bounds);
        }
    }
}

Test(nn_cuda, uses_an_algorithm_that_is_not_deterministic_if_there_is_no_other) {
    with_problem *p = problem_of(&odd_net, &odd_io, 2);
    farm_emulator_vendor.only_random = true;
    expect_solved(p, FARM_PRECISION_F32, &f32_bounds);
}

Test(nn_cuda, a_captured_graph_computes_anew_in_every_replay) {
    with_problem *p = problem_of(&odd_net, &odd_io, 3), *other = problem_of(&odd_net, &odd_io, 3);
    with_executor *executor = executor_new(p, 3, FARM_PRECISION_F32, true);
    with_answer a = answer_of(executor, p, 3, 1);
    problem_randomise(other, 8);
    memset(other->right.grads, 0, other->net.parameter_count * sizeof(float));
    solve(other);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CUDA(cudaMemsetAsync(a.grads, 0, p->device->count * sizeof(float), stream));
    run_forward(executor, stream, p, 3, &a);
    run_backward(executor, stream, p, 3, &a);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int replay = 0; replay < 3; replay++) { // parameters, input and gradients change
        const struct problem *now = replay == 1 ? other : p;
        const size_t logits = 3 * (size_t)p->net.io.actions * sizeof(float);
        float *params = array(p->device->count, sizeof *params);
        farm_cuda_to_device_layout(&p->net, now->params, params);
        CUDA(cudaMemcpy(p->device->params[0], params, p->device->count * sizeof *params, cudaMemcpyHostToDevice));
        CUDA(cudaMemcpy(p->device->frames, now->frames, 9 * frame_bytes(&p->net.io), cudaMemcpyHostToDevice));
        CUDA(cudaMemcpy(p->device->dlogits, now->dlogits, logits, cudaMemcpyHostToDevice));
        CUDA(cudaMemcpy(p->device->dvalue, now->dvalue, 3 * sizeof(float), cudaMemcpyHostToDevice));
        CUDA(cudaGraphLaunch(exec, stream));
        CUDA(cudaStreamSynchronize(stream));
        answer_fetch(p, 3, &a);
        expect_right(now, &a, &f32_bounds);
        free(params);
    }
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(stream));
}

// As in inference: each step's state goes into the next one, in place.
Test(nn_cuda, steps_one_by_one_give_what_one_sequence_gives) {
    with_problem *p = problem_at(CASES - 3); // a case of numbers
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
    float *state = array(states, sizeof *state);
    copy_back(state, whole.state_out, states);
    answer_fetch(p, p->batch, (struct device_answer *)(uintptr_t)&a);
    cr_expect_lt(distance(state, p->device->host.state_out, states), 1e-5);
    cr_expect_lt(distance(a.host.logits, p->right.logits, (size_t)(p->batch * p->net.io.actions)), 1e-5);
    free(state);
}

Test(nn_cuda, the_device_layout_keeps_every_parameter_and_fills_gaps_with_zeros) {
    for (int i = 0; i < CASES; i++) {
        with_problem *p = problem_at(i);
        const size_t count = p->net.parameter_count, device_count = p->device->count;
        float *device = array(device_count, sizeof *device), *back = array(count, sizeof *back);
        for (size_t k = 0; k < device_count; k++) device[k] = NAN;
        for (size_t k = 0; k < count; k++) p->params[k] = (float)(k + 1);
        farm_cuda_to_device_layout(&p->net, p->params, device);
        farm_cuda_to_pytorch_layout(&p->net, device, back);
        cr_expect_arr_eq(back, p->params, count * sizeof *back);
        cr_expect_eq(device_count % FARM_CUDA_TENSOR_ALIGNMENT, 0);
        size_t parameters = 0, zeros = 0;
        for (size_t k = 0; k < device_count; k++) {
            parameters += device[k] > 0;
            zeros += device[k] == 0;
        }
        cr_expect(parameters == count && zeros == device_count - count);
        free(device);
        free(back);
    }
}

// Places counted by hand: shallow on 84x84x4 has [16][4][8][8], 16, [32][16][4][4], 32, [256][32*9*9], 256, heads.
Test(nn_cuda, the_device_layout_is_the_one_in_the_header) {
    with_problem *p = problem_at(0);
    const size_t device_count = p->device->count;
    float *device = array(device_count, sizeof *device);
    for (size_t k = 0; k < p->net.parameter_count; k++) p->params[k] = (float)k;
    farm_cuda_to_device_layout(&p->net, p->params, device);
    const struct farm_tensor *t = p->net.tensors;
    const size_t conv1 = 4096 + 128, dense = conv1 + 8192 + 128, heads = dense + 256 * 2592 + 256;
    cr_expect_eq(device[((5 * 8 + 2) * 8 + 7) * 4 + 3], (float)(t[0].offset + ((5 * 4 + 3) * 8 + 2) * 8 + 7));
    cr_expect_eq(device[4096 + 15], (float)(t[1].offset + 15));
    cr_expect_eq(device[conv1 + ((31 * 4 + 3) * 4 + 1) * 16 + 9],
                 (float)(t[2].offset + ((31 * 16 + 9) * 4 + 3) * 4 + 1));
    cr_expect_eq(device[dense + 200 * 2592 + (8 * 9 + 1) * 32 + 30],
                 (float)(t[4].offset + 200 * 2592 + (30 * 9 + 8) * 9 + 1));
    cr_expect_eq(device[heads + 5 * 256 + 11], (float)(t[6].offset + 5 * 256 + 11));
    cr_expect_eq(device[heads + 6 * 256 + 11], (float)(t[7].offset + 11)); // the value's weights
    cr_expect_eq(device[heads + 8 * 256 + 6], (float)t[9].offset);         // its bias
    cr_expect_eq(device_count, heads + 8 * 256 + 128);
    free(device);
}

Test(nn_cuda, says_how_much_memory_is_missing) {
    struct farm_net net;
    struct farm_cuda_executor *executor;
    cr_assert_eq(farm_net_make(farm_net_find("nature", NULL), &atari, &net, &err), FARM_OK);
    const struct farm_cuda_executor_config config = {
        .net = &net, .batch_max = 4096, .training = true, .vendor = &vendor};
    const size_t bytes = farm_cuda_executor_bytes(&config);
    farm_emulator.memory = (int64_t)bytes - 1;
    cr_expect_eq(farm_cuda_executor_create(&config, &executor, &err), FARM_E_LIMIT);
    char expected[64];
    snprintf(expected, sizeof expected, "4096 rows in training needs %zu MB", (bytes >> 20) + 1);
    cr_expect(strstr(err.message, expected) != NULL, "%s", err.message);
    cr_expect_eq(cudaGetLastError(), cudaSuccess);
    farm_emulator.memory = (int64_t)bytes;
    cr_expect_eq(farm_cuda_executor_create(&config, &executor, &err), FARM_OK, "%s", err.message);
    cr_expect_eq(farm_emulator_account().device_bytes, bytes);
    farm_cuda_executor_destroy(executor);
    farm_emulator.memory = (int64_t)bytes + 4096;
    farm_emulator_vendor.handle_bytes = 4096; // cuDNN's handle has room, cuBLASLt's has none
    cr_expect_eq(farm_cuda_executor_create(&config, &executor, &err), FARM_E_LIMIT, "%s", err.message);
    cr_expect(strstr(err.message, "cublasLtCreate") != NULL, "%s", err.message);
}

// An engine that computes in blocks of eight channels copies the four of 84x84x4 into eight.
Test(nn_cuda, has_a_workspace_for_padded_pictures_of_the_largest_batch) {
    with_problem *p = problem_at(0);
    farm_emulator_vendor.workspace_bytes = (size_t)1024 * 84 * 84 * 8 * sizeof(uint16_t);
    for (int training = 0; training < 2; training++) {
        with_executor *executor = executor_new(p, 1024, FARM_PRECISION_BF16, training);
        const with_answer a = answer_of(executor, p, p->batch, training);
    }
}

Test(nn_cuda, refuses_what_it_cannot_run) {
    static const struct farm_net_spec lopsided = {
        .name = "lopsided", .layer_count = 2, .layers = {CONV(CONV_SAME, 8, 3, 2, RELU), DENSE(8, RELU)}};
    struct farm_net net;
    with_executor *executor = NULL;
    cr_assert_eq(farm_net_make(&lopsided, &atari, &net, &err), FARM_OK);
    struct farm_cuda_executor_config config = {.net = &net, .batch_max = 1, .vendor = &vendor};
    cr_expect_eq(farm_cuda_executor_create(&config, &executor, &err), FARM_E_UNSUPPORTED);
    cr_expect(strstr(err.message, "padded on one side alone") != NULL, "%s", err.message);
    config.batch_max = 0;
    cr_expect_eq(farm_cuda_executor_create(&config, &executor, &err), FARM_E_INVALID);
    cr_expect_null(executor);
}

Test(nn_cuda, names_the_convolution_without_an_algorithm) {
    with_problem *p = problem_of(&odd_net, &odd_io, 2);
    with_executor *executor = executor_new(p, 2, FARM_PRECISION_BF16, true);
    const with_answer a = device_answer_new(p);
    farm_emulator_vendor.no_algorithm = true;
    cr_expect_eq(forward_status(executor, NULL, p, 2, &a), FARM_E_UNSUPPORTED);
    cr_expect(strstr(err.message, "convolution forward, 2 rows of 19x22x6") != NULL, "%s", err.message);
    farm_emulator_vendor.no_algorithm = false;
    farm_emulator_vendor.workspace_bytes = (size_t)1 << 40; // more than the executor has
    cr_expect_eq(forward_status(executor, NULL, p, 2, &a), FARM_E_UNSUPPORTED);
    farm_emulator_vendor.workspace_bytes = 0;
    cr_expect_eq(forward_status(executor, NULL, p, 2, &a), FARM_OK, "%s", err.message); // the failures left nothing
    CUDA(cudaDeviceSynchronize());
}

// An error while a convolution runs is no refusal, and no algorithm is replaced once it has run.
Test(nn_cuda, a_convolution_that_fails_is_an_error) {
    with_problem *p = problem_of(&odd_net, &odd_io, 2);
    with_executor *executor = executor_new(p, 2, FARM_PRECISION_BF16, true);
    const with_answer a = device_answer_new(p);
    static const int statuses[] = {CUDNN_STATUS_EXECUTION_FAILED, 0, CUDNN_STATUS_BAD_PARAM};
    for (int i = 0; i < 3; i++) {
        farm_emulator_vendor.fused_status = statuses[i];
        cr_expect_eq(forward_status(executor, NULL, p, 2, &a), statuses[i] ? FARM_E_IO : FARM_OK, "call %d", i);
        if (statuses[i])
            cr_expect(strstr(err.message, "cudnnConvolutionBiasActivationForward") != NULL, "%s", err.message);
    }
    cr_expect_eq(farm_emulator_vendor.plain, 0);
    CUDA(cudaDeviceSynchronize());
}

Test(nn_cuda, keeps_the_choices_for_so_many_numbers_of_rows_and_no_more) {
    with_problem *p = problem_of(&odd_net, &odd_io, FARM_CUDA_EXECUTOR_ROWS_MAX + 1);
    with_executor *executor = executor_new(p, p->batch, FARM_PRECISION_BF16, true);
    const long handles = farm_emulator_vendor.descriptors;
    const with_answer first = answer_of(executor, p, 1, 1);
    const long each = farm_emulator_vendor.descriptors - handles;
    for (int rows = 2; rows <= p->batch; rows++) run_forward(executor, NULL, p, rows, &first);
    CUDA(cudaDeviceSynchronize());
    cr_expect_eq(farm_emulator_vendor.descriptors, handles + each * FARM_CUDA_EXECUTOR_ROWS_MAX);
    const with_answer again = answer_of(executor, p, 1, 1);
    expect_same_bits(p, 1, &again, &first);
}

Test(nn_cuda, a_lost_device_is_an_error_and_nothing_worse) {
    struct problem *p = problem_of(&odd_net, &odd_io, 2);
    struct farm_cuda_executor *executor = executor_new(p, 2, FARM_PRECISION_BF16, true);
    const struct device_answer a = device_answer_new(p);
    farm_emulator.eager = 1;
    farm_emulator.fall_off_after = (int64_t)farm_emulator_account().works + 6;
    cr_expect_neq(forward_status(executor, NULL, p, 2, &a), FARM_OK);
    cr_expect(strlen(err.message) > 0);
    farm_cuda_executor_destroy(executor);
    farm_emulator_reset(); // the device takes its memory with it
    free(a.host.logits);
    free(p->device);
    problem_free_host(p);
}
