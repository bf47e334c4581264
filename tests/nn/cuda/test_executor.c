// The GPU's executor beside the CPU's: the same networks, parameters and rows; forward and gradients compared by the
// norm of the difference over the norm, tensor by tensor. Runtime, kernels and libraries are emulators on the CPU
// (tests/support/cuda_emulator), so this shows that the right things are asked for in the right order with the right
// shapes, and nothing about a device.
#include "nn/cuda/executor.h"

#include <criterion/criterion.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "../problem.h"
#include "emulator.h"
#include "kernels/bf16.h"
#include "vendor_emulator.h"

static struct farm_error err;

#define CUDA(call) cr_assert_eq((call), cudaSuccess, "%s", #call)

// Device memory with a copy of `from`, or zeros.
static void *on_device(const void *from, size_t bytes) {
    void *memory;
    CUDA(cudaMalloc(&memory, bytes + 1));
    CUDA(cudaMemsetAsync(memory, 0, bytes + 1, NULL));
    if (from != NULL) CUDA(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice));
    return memory;
}

// ---- problems: the right answer is what the CPU's executor gives in f32; on the device lies what enters ----

struct problem_device {
    size_t count; // of parameters, gaps included
    void *input;
    const void **pointers;
    float *dlogits, *dvalue;
    void *params[2]; // f32, bf16
};

// Some frames are told as NULL; their bytes are not zeros.
static bool told_as_null(const struct problem *p, size_t frame) {
    return p->net.io.stack > 1 && frame % 7 == 2;
}

static void solve(struct problem *p) {
    const struct farm_arithmetic f32 = farm_arithmetic_uniform(&p->net, FARM_PRECISION_F32, (struct farm_form){0});
    const struct farm_executor_config config = {
        .net = &p->net, .batch_max = p->batch, .training = true, .arithmetic = &f32};
    struct farm_executor *cpu;
    cr_assert_eq(farm_executor_create(&config, &cpu, &err), FARM_OK, "%s", err.message);
    farm_executor_load(cpu, p->params);
    farm_executor_forward(cpu, p->rows, farm_sequence_rows(p->batch), p->right.logits, p->right.value);
    farm_executor_backward(cpu, p->rows, farm_sequence_rows(p->batch), p->dlogits, p->dvalue, p->right.grads);
    farm_executor_destroy(cpu);
}

static void put_on_device(struct problem *p) {
    p->device = array(1, sizeof *p->device);
    const struct farm_net_io *io = &p->net.io;
    const size_t rows = (size_t)p->batch, frames = rows * (size_t)io->stack;
    const size_t input_bytes =
        io->flat > 0 ? rows * (size_t)io->flat * sizeof(float) : frames * frame_bytes(&p->net.io);
    p->device->input = on_device(p->input, input_bytes);
    const void **pointers = array(frames, sizeof *pointers);
    for (size_t f = 0; f < frames; f++)
        pointers[f] = told_as_null(p, f) ? NULL : (char *)p->device->input + f * frame_bytes(&p->net.io);
    p->device->pointers = on_device(pointers, frames * sizeof *pointers);
    p->device->dlogits = on_device(p->dlogits, rows * (size_t)io->actions * sizeof(float));
    p->device->dvalue = on_device(p->dvalue, rows * sizeof(float));
    p->device->count = farm_cuda_parameter_count(&p->net);
    float *params = array(p->device->count, sizeof *params);
    uint16_t *rounded = array(p->device->count, sizeof *rounded);
    farm_cuda_to_device_layout(&p->net, p->params, params);
    for (size_t i = 0; i < p->device->count; i++) rounded[i] = farm_bf16(params[i]);
    p->device->params[0] = on_device(params, p->device->count * sizeof *params);
    p->device->params[1] = on_device(rounded, p->device->count * sizeof *rounded);
    free(pointers);
    free(params);
    free(rounded);
}

static struct problem *problem_of(const struct farm_net_spec *spec, const struct farm_net_io *io, int rows) {
    struct problem *p = problem_new(spec, io, rows);
    for (size_t f = 0; f < (size_t)rows * (size_t)io->stack; f++)
        if (told_as_null(p, f)) p->rows[f] = NULL;
    problem_randomise(p, 3);
    solve(p);
    put_on_device(p);
    return p;
}

static void problem_free(struct problem **problem) {
    struct problem *p = *problem;
    void *const device[] = {p->device->input,  p->device->pointers,  p->device->dlogits,
                            p->device->dvalue, p->device->params[0], p->device->params[1]};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) CUDA(cudaFree(device[i]));
    free(p->device);
    problem_free_host(p);
}

// ---- answers ----

struct device_answer {
    float *logits, *value, *grads; // on the host, PyTorch's order
    float *device_logits, *device_value, *device_grads;
    float gap; // the largest gradient of what is no parameter
};

static struct device_answer device_answer_new(const struct problem *p) {
    const size_t rows = (size_t)p->batch, logits = rows * (size_t)p->net.io.actions;
    return (struct device_answer){
        .logits = array(logits, sizeof(float)),
        .value = array(rows, sizeof(float)),
        .grads = array(p->net.parameter_count, sizeof(float)),
        .device_logits = on_device(NULL, logits * sizeof(float)),
        .device_value = on_device(NULL, rows * sizeof(float)),
        .device_grads = on_device(NULL, p->device->count * sizeof(float)),
    };
}

static void answer_fetch(const struct problem *p, int rows, struct device_answer *a) {
    float *grads = array(p->device->count, sizeof *grads), *again = array(p->device->count, sizeof *again);
    const size_t n = (size_t)rows;
    CUDA(
        cudaMemcpy(a->logits, a->device_logits, n * (size_t)p->net.io.actions * sizeof(float), cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(a->value, a->device_value, n * sizeof(float), cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(grads, a->device_grads, p->device->count * sizeof(float), cudaMemcpyDeviceToHost));
    farm_cuda_to_pytorch_layout(&p->net, grads, a->grads);
    farm_cuda_to_device_layout(&p->net, a->grads, again);
    a->gap = 0;
    for (size_t i = 0; i < p->device->count; i++) a->gap = fmaxf(a->gap, fabsf(grads[i] - again[i]));
    free(grads);
    free(again);
}

static void device_answer_free_host(const struct device_answer *a) {
    free(a->logits);
    free(a->value);
    free(a->grads);
}

static void device_answer_free(const struct device_answer *a) {
    device_answer_free_host(a);
    CUDA(cudaFree(a->device_logits));
    CUDA(cudaFree(a->device_value));
    CUDA(cudaFree(a->device_grads));
}

static void executor_free(struct farm_cuda_executor **executor) {
    farm_cuda_executor_destroy(*executor);
}

// Locals that are freed where their scope ends.
#define with_answer   __attribute__((cleanup(device_answer_free))) struct device_answer
#define with_problem  __attribute__((cleanup(problem_free))) struct problem
#define with_executor __attribute__((cleanup(executor_free))) struct farm_cuda_executor

static struct farm_cuda_vendor vendor; // the emulators' table; executors keep its address

static void setup(void) {
    farm_emulator_reset();
    memset(&farm_emulator_vendor, 0, sizeof farm_emulator_vendor);
    farm_emulator_vendor.workspace_bytes = 1 << 20;
    vendor = farm_emulator_vendor_table();
}

// Nothing of the device and none of the libraries' descriptors may be left.
static void teardown(void) {
    cr_expect_eq(farm_emulator_vendor.descriptors, 0, "%ld descriptors are left", farm_emulator_vendor.descriptors);
    cr_expect_eq(farm_emulator_account().allocations, 0);
}

static struct farm_cuda_executor_config config_of(const struct problem *p, int batch_max,
                                                  enum farm_precision precision) {
    return (struct farm_cuda_executor_config){
        .net = &p->net, .batch_max = batch_max, .training = true, .precision = precision, .vendor = &vendor};
}

static struct farm_cuda_executor *executor_new(const struct farm_cuda_executor_config *config) {
    struct farm_cuda_executor *executor;
    cr_assert_eq(farm_cuda_executor_create(config, &executor, &err), FARM_OK, "%s", err.message);
    return executor;
}

static const void *params_of(const struct problem *p, const struct farm_cuda_executor *executor) {
    return p->device->params[farm_cuda_executor_precision(executor) == FARM_PRECISION_BF16];
}

static void run_forward(struct farm_cuda_executor *executor, cudaStream_t stream, const struct problem *p, int rows,
                        const struct device_answer *a) {
    const bool flat = p->net.io.flat > 0;
    const struct farm_cuda_input input = {.frames = flat ? NULL : p->device->pointers,
                                          .flat = flat ? p->device->input : NULL};
    cr_assert_eq(farm_cuda_executor_forward(executor, stream, params_of(p, executor), &input, farm_sequence_rows(rows),
                                            a->device_logits, a->device_value, &err),
                 FARM_OK, "%s", err.message);
}

static void run_backward(struct farm_cuda_executor *executor, cudaStream_t stream, const struct problem *p, int rows,
                         const struct device_answer *a) {
    cr_assert_eq(farm_cuda_executor_backward(executor, stream, params_of(p, executor), p->device->dlogits,
                                             p->device->dvalue, farm_sequence_rows(rows), a->device_grads, &err),
                 FARM_OK, "%s", err.message);
}

static struct device_answer answer_of(struct farm_cuda_executor *executor, const struct problem *p, int rows) {
    struct device_answer a = device_answer_new(p);
    run_forward(executor, NULL, p, rows, &a);
    run_backward(executor, NULL, p, rows, &a);
    answer_fetch(p, rows, &a);
    return a;
}

// How far an answer may be off: logits and values together, the gradient as a whole, that of one tensor.
struct bounds {
    double forward, gradient, tensor;
};
static const struct bounds f32_bounds = {1e-5, 1e-5, 1e-4};

static void expect_right(const struct problem *p, const struct device_answer *a, const struct bounds *most) {
    const size_t rows = (size_t)p->batch, actions = (size_t)p->net.io.actions, all = rows * (actions + 1);
    float *got = array(all, sizeof *got), *right = array(all, sizeof *right);
    memcpy(got, a->logits, rows * actions * sizeof *got);
    memcpy(got + rows * actions, a->value, rows * sizeof *got);
    memcpy(right, p->right.logits, rows * actions * sizeof *right);
    memcpy(right + rows * actions, p->right.value, rows * sizeof *right);
    const double forward = distance(got, right, all),
                 gradient = distance(a->grads, p->right.grads, p->net.parameter_count);
    cr_expect(forward <= most->forward, "%s: logits and values are off by %g", p->spec.name, forward);
    cr_expect(gradient <= most->gradient, "%s: the gradient is off by %g", p->spec.name, gradient);
    cr_expect_eq(a->gap, 0, "%s: a gap's gradient is %g", p->spec.name, (double)a->gap);
    for (int t = 0; t < p->net.tensor_count; t++) {
        const struct farm_tensor *tensor = &p->net.tensors[t];
        const double off = distance(a->grads + tensor->offset, p->right.grads + tensor->offset, tensor->count);
        cr_expect(off <= most->tensor, "%s: the gradient of %s is off by %g", p->spec.name, tensor->name, off);
    }
    free(got);
    free(right);
}

static void expect_solved(const struct problem *p, enum farm_precision precision, const struct bounds *most) {
    const struct farm_cuda_executor_config config = config_of(p, p->batch, precision);
    with_executor *executor = executor_new(&config);
    const with_answer a = answer_of(executor, p, p->batch);
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
};
enum { CASES = sizeof cases / sizeof *cases };

static struct problem *problem_at(int i) {
    return problem_of(farm_net_find(cases[i].net, NULL), &cases[i].io, cases[i].rows);
}

// What no known network has: channels of no round number, ReLU and nothing behind dense layers, a dense layer that
// reads a pool, ReLU in the middle of residual blocks.
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
    for (int i = 0; i < CASES; i++) {
        with_problem *p = problem_at(i);
        expect_solved(p, FARM_PRECISION_F32, &f32_bounds);
    }
}

Test(nn_cuda, f32_agrees_with_the_cpu_on_a_network_of_odd_sizes) {
    with_problem *p = problem_of(&odd_net, &odd_io, 5);
    expect_solved(p, FARM_PRECISION_F32, &f32_bounds);
}

Test(nn_cuda, auto_is_bf16_and_agrees_with_the_cpu_within_its_bounds) {
    for (int i = 0; i < CASES; i++) {
        with_problem *p = problem_at(i);
        expect_solved(p, FARM_PRECISION_AUTO, &cases[i].bf16);
        const struct farm_cuda_executor_config config = config_of(p, 1, FARM_PRECISION_AUTO);
        with_executor *executor = executor_new(&config);
        cr_expect_eq(farm_cuda_executor_precision(executor), FARM_PRECISION_BF16);
    }
}

// Fewer rows than fit, odd ones too, in any order: each row's answer stays what it was, to the bit.
Test(nn_cuda, every_number_of_rows_gives_each_row_the_same_answer) {
    with_problem *p = problem_of(&odd_net, &odd_io, 7);
    const struct farm_cuda_executor_config config = config_of(p, 9, FARM_PRECISION_BF16);
    with_executor *executor = executor_new(&config);
    const with_answer whole = answer_of(executor, p, 7);
    static const int rows[] = {1, 6, 3, 7, 2, 1};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const with_answer a = answer_of(executor, p, rows[i]);
        cr_expect_arr_eq(a.logits, whole.logits, (size_t)(rows[i] * p->net.io.actions) * sizeof(float));
        cr_expect_arr_eq(a.value, whole.value, (size_t)rows[i] * sizeof(float));
    }
}

Test(nn_cuda, inference_gives_what_training_gives) {
    for (int i = 0; i < CASES; i++) {
        with_problem *p = problem_at(i);
        struct farm_cuda_executor_config config = config_of(p, p->batch, FARM_PRECISION_BF16);
        with_executor *training = executor_new(&config);
        const size_t training_bytes = farm_cuda_executor_bytes(&config);
        config.training = false;
        with_executor *inference = executor_new(&config);
        cr_expect_lt(farm_cuda_executor_bytes(&config), training_bytes);
        with_answer a = device_answer_new(p), b = device_answer_new(p);
        run_forward(training, NULL, p, p->batch, &a);
        run_forward(inference, NULL, p, p->batch, &b);
        answer_fetch(p, p->batch, &a);
        answer_fetch(p, p->batch, &b);
        cr_expect_arr_eq(a.logits, b.logits, (size_t)(p->batch * p->net.io.actions) * sizeof(float), "%s",
                         p->spec.name);
        cr_expect_arr_eq(a.value, b.value, (size_t)p->batch * sizeof(float), "%s", p->spec.name);
    }
}

// cuDNN is given an addend times 0 where there is none. What a forward leaves there is finite: f32 numbers, of which so
// many hold a NaN in half of their bits, are kept away from it.
Test(nn_cuda, what_a_forward_leaves_behind_does_not_matter_to_the_next) {
    static const struct farm_net_spec turns = {
        .name = "turns",
        .layer_count = 3,
        .layers = {CONV(CONV, 5, 3, 2, RELU), CONV(CONV, 7, 3, 2, RELU), DENSE(11, RELU)}};
    with_problem *p = problem_of(&turns, &odd_io, 200);
    struct farm_cuda_executor_config config = config_of(p, p->batch, FARM_PRECISION_BF16);
    config.training = false;
    with_executor *executor = executor_new(&config);
    with_answer first = device_answer_new(p), second = device_answer_new(p);
    run_forward(executor, NULL, p, p->batch, &first);
    run_forward(executor, NULL, p, p->batch, &second);
    answer_fetch(p, p->batch, &first);
    answer_fetch(p, p->batch, &second);
    cr_expect_arr_eq(second.logits, first.logits, (size_t)(p->batch * p->net.io.actions) * sizeof(float));
    cr_expect_arr_eq(second.value, first.value, (size_t)p->batch * sizeof(float));
}

Test(nn_cuda, gradients_are_added_to_what_is_there) {
    static const enum farm_precision precisions[] = {FARM_PRECISION_F32, FARM_PRECISION_BF16};
    with_problem *p = problem_of(&odd_net, &odd_io, 4);
    for (int i = 0; i < 2; i++) {
        const struct farm_cuda_executor_config config = config_of(p, 4, precisions[i]);
        with_executor *executor = executor_new(&config);
        with_answer once = answer_of(executor, p, 4), twice = device_answer_new(p);
        for (int k = 0; k < 2; k++) {
            run_forward(executor, NULL, p, 4, &twice);
            run_backward(executor, NULL, p, 4, &twice);
        }
        answer_fetch(p, 4, &twice);
        for (size_t k = 0; k < p->net.parameter_count; k++) twice.grads[k] /= 2;
        cr_expect_lt(distance(twice.grads, once.grads, p->net.parameter_count), 1e-6);
    }
}

// What cuDNN or cuBLASLt cannot do in one call is done in two, with the same result within roundings.
Test(nn_cuda, what_the_libraries_cannot_fuse_is_done_after_them) {
    with_problem *p = problem_of(&odd_net, &odd_io, 3);
    static const int says[] = {0, 0, 0, CUDNN_STATUS_BAD_PARAM, CUDNN_STATUS_NOT_SUPPORTED, 3001, 4001};
    for (int i = 0; i < (int)(sizeof says / sizeof *says); i++) {
        farm_emulator_vendor.fused_says = says[i];
        farm_emulator_vendor.no_epilogue = i == 1;
        farm_emulator_vendor.no_precomputed_gemm = i == 2;
        farm_emulator_vendor.fused = farm_emulator_vendor.plain = 0;
        expect_solved(p, FARM_PRECISION_F32, &f32_bounds);
        expect_solved(p, FARM_PRECISION_BF16, &odd_bf16);
        const long fused = farm_emulator_vendor.fused, plain = farm_emulator_vendor.plain;
        cr_expect(says[i] ? fused == 0 : fused > 0, "case %d: %ld fused", i, fused);
        cr_expect(says[i] || i == 2 ? plain > 0 : plain == 0, "case %d: %ld plain", i, plain);
    }
}

// What cuDNN said would work, and refuses when it is called, is done by the next algorithm, from then on.
Test(nn_cuda, an_algorithm_whose_call_is_refused_gives_way_to_the_next) {
    with_problem *p = problem_of(&odd_net, &odd_io, 3);
    static const enum farm_precision precisions[] = {FARM_PRECISION_F32, FARM_PRECISION_BF16};
    for (int i = 0; i < 8; i++) {
        const int direction = i / 2 % 4; // 0: forward, 1: to the input, 2: to the weights, 3: all
        for (int d = 0; d < 3; d++) farm_emulator_vendor.refused[d] = direction == d || direction == 3 ? 2 : 0;
        const struct farm_cuda_executor_config config = config_of(p, 3, precisions[i % 2]);
        with_executor *executor = executor_new(&config);
        for (int call = 0; call < 2; call++) {
            const with_answer a = answer_of(executor, p, 3);
            expect_right(p, &a, i % 2 ? &odd_bf16 : &f32_bounds);
        }
    }
}

Test(nn_cuda, takes_an_algorithm_that_is_not_deterministic_where_there_is_no_other) {
    with_problem *p = problem_of(&odd_net, &odd_io, 2);
    farm_emulator_vendor.only_random = true;
    expect_solved(p, FARM_PRECISION_F32, &f32_bounds);
}

// A graph that was captured once reads parameters, input and gradients anew in each replay.
Test(nn_cuda, a_captured_graph_computes_anew_in_every_replay) {
    with_problem *p = problem_of(&odd_net, &odd_io, 3), *other = problem_of(&odd_net, &odd_io, 3);
    const struct farm_cuda_executor_config config = config_of(p, 3, FARM_PRECISION_F32);
    with_executor *executor = executor_new(&config);
    with_answer a = answer_of(executor, p, 3);
    problem_randomise(other, 8);
    memset(other->right.grads, 0, other->net.parameter_count * sizeof(float));
    solve(other);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CUDA(cudaMemsetAsync(a.device_grads, 0, p->device->count * sizeof(float), stream));
    run_forward(executor, stream, p, 3, &a);
    run_backward(executor, stream, p, 3, &a);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int replay = 0; replay < 3; replay++) {
        const struct problem *now = replay == 1 ? other : p;
        const size_t logits = 3 * (size_t)p->net.io.actions * sizeof(float);
        float *params = array(p->device->count, sizeof *params);
        farm_cuda_to_device_layout(&p->net, now->params, params);
        CUDA(cudaMemcpy(p->device->params[0], params, p->device->count * sizeof *params, cudaMemcpyHostToDevice));
        CUDA(cudaMemcpy(p->device->input, now->input, 9 * frame_bytes(&p->net.io), cudaMemcpyHostToDevice));
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

Test(nn_cuda, device_order_keeps_every_parameter_and_fills_gaps_with_zeros) {
    for (int i = 0; i < CASES; i++) {
        with_problem *p = problem_at(i);
        const size_t count = p->net.parameter_count, device_count = farm_cuda_parameter_count(&p->net);
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
        cr_expect_eq(parameters, count);
        cr_expect_eq(zeros, device_count - count);
        free(device);
        free(back);
    }
}

// Places worked out by hand: shallow on 84x84x4 has [16][4][8][8], 16, [32][16][4][4], 32, [256][32*9*9], 256, heads.
Test(nn_cuda, device_order_is_the_one_that_the_header_tells) {
    with_problem *p = problem_at(0);
    const size_t device_count = farm_cuda_parameter_count(&p->net);
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
    cr_expect_eq(cudaPeekAtLastError(), cudaSuccess);
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
    struct farm_cuda_executor_config config = config_of(p, 1024, FARM_PRECISION_BF16);
    farm_emulator_vendor.workspace_bytes = (size_t)1024 * 84 * 84 * 8 * sizeof(uint16_t);
    for (int training = 0; training < 2; training++) {
        config.training = training;
        with_executor *executor = executor_new(&config);
        const with_answer a = device_answer_new(p);
        run_forward(executor, NULL, p, p->batch, &a);
        if (training) run_backward(executor, NULL, p, p->batch, &a);
        CUDA(cudaDeviceSynchronize());
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

static enum farm_status forward_status(struct farm_cuda_executor *executor, const struct problem *p, int rows,
                                       const struct device_answer *a) {
    const struct farm_cuda_input input = {.frames = p->device->pointers};
    return farm_cuda_executor_forward(executor, NULL, params_of(p, executor), &input, farm_sequence_rows(rows),
                                      a->device_logits, a->device_value, &err);
}

Test(nn_cuda, says_what_no_algorithm_was_found_for) {
    with_problem *p = problem_of(&odd_net, &odd_io, 2);
    const struct farm_cuda_executor_config config = config_of(p, 2, FARM_PRECISION_BF16);
    with_executor *executor = executor_new(&config);
    const with_answer a = device_answer_new(p);
    farm_emulator_vendor.no_algorithm = true;
    cr_expect_eq(forward_status(executor, p, 2, &a), FARM_E_UNSUPPORTED);
    cr_expect(strstr(err.message, "convolution forward, 2 rows of 19x22x6") != NULL, "%s", err.message);
    farm_emulator_vendor.no_algorithm = false;
    farm_emulator_vendor.workspace_bytes = (size_t)1 << 40; // more than the executor has
    cr_expect_eq(forward_status(executor, p, 2, &a), FARM_E_UNSUPPORTED);
    farm_emulator_vendor.workspace_bytes = 0;
    cr_expect_eq(forward_status(executor, p, 2, &a), FARM_OK, "%s",
                 err.message); // nothing is left of the failure
    CUDA(cudaDeviceSynchronize());
}

// What failed while it ran is no refusal: nothing else is tried, and neither is it once an algorithm has run.
Test(nn_cuda, a_convolution_that_fails_is_an_error) {
    with_problem *p = problem_of(&odd_net, &odd_io, 2);
    const struct farm_cuda_executor_config config = config_of(p, 2, FARM_PRECISION_BF16);
    with_executor *executor = executor_new(&config);
    const with_answer a = device_answer_new(p);
    farm_emulator_vendor.fused_says = CUDNN_STATUS_EXECUTION_FAILED;
    cr_expect_eq(forward_status(executor, p, 2, &a), FARM_E_IO);
    cr_expect(strstr(err.message, "cudnnConvolutionBiasActivationForward") != NULL, "%s", err.message);
    farm_emulator_vendor.fused_says = 0;
    cr_expect_eq(forward_status(executor, p, 2, &a), FARM_OK, "%s", err.message);
    farm_emulator_vendor.fused_says = CUDNN_STATUS_BAD_PARAM;
    cr_expect_eq(forward_status(executor, p, 2, &a), FARM_E_IO);
    cr_expect_eq(farm_emulator_vendor.plain, 0);
    CUDA(cudaDeviceSynchronize());
}

Test(nn_cuda, takes_so_many_numbers_of_rows_and_no_more) {
    with_problem *p = problem_of(&odd_net, &odd_io, FARM_CUDA_EXECUTOR_ROWS_MAX + 1);
    const struct farm_cuda_executor_config config = config_of(p, p->batch, FARM_PRECISION_BF16);
    with_executor *executor = executor_new(&config);
    const with_answer a = device_answer_new(p);
    for (int rows = 1; rows <= p->batch; rows++) {
        const enum farm_status expected = rows <= FARM_CUDA_EXECUTOR_ROWS_MAX ? FARM_OK : FARM_E_LIMIT;
        cr_expect_eq(forward_status(executor, p, rows, &a), expected, "%d rows", rows);
    }
    cr_expect_eq(forward_status(executor, p, 5, &a), FARM_OK);
    CUDA(cudaDeviceSynchronize());
}

Test(nn_cuda, a_device_that_falls_off_is_an_error_and_nothing_worse) {
    struct problem *p = problem_of(&odd_net, &odd_io, 2);
    const struct farm_cuda_executor_config config = config_of(p, 2, FARM_PRECISION_BF16);
    struct farm_cuda_executor *executor = executor_new(&config);
    const struct device_answer a = device_answer_new(p);
    farm_emulator.eager = 1;
    farm_emulator.fall_off_after = (int64_t)farm_emulator_account().works + 6;
    cr_expect_neq(forward_status(executor, p, 2, &a), FARM_OK);
    cr_expect(strlen(err.message) > 0);
    farm_cuda_executor_destroy(executor);
    farm_emulator_reset(); // the device takes its memory with it
    device_answer_free_host(&a);
    problem_free_host(p);
}
