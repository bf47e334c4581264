// What the GPU's executor gives beside the CPU's (executor.h), and what it does when the vendor's libraries lack or
// refuse something, over emulators of runtime, kernels and vendor (tests/support/cuda_emulator).
#include <stdbool.h>

#include "emulator.h"
#include "vendor_emulator.h"

static struct farm_cuda_vendor vendor;
static const bool on_gpu = false;

#include "executor.h"

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

TestSuite(nn_cuda, .init = setup, .fini = teardown);

// What cuDNN or cuBLASLt cannot do in one call is done in two, with the same result within roundings.
Test(nn_cuda, what_the_vendor_cannot_fuse_is_done_after_it) {
    with_problem *p = problem_of(&odd_net, &odd_io, 3);
    static const int statuses[] = {0, 0, 0, CUDNN_STATUS_BAD_PARAM, CUDNN_STATUS_NOT_SUPPORTED, 3001, 4001};
    for (int i = 0; i < (int)(sizeof statuses / sizeof *statuses); i++) {
        farm_emulator_vendor.fused_status = statuses[i];
        farm_emulator_vendor.no_epilogue = i == 1;
        farm_emulator_vendor.no_precomputed_gemm = i == 2;
        farm_emulator_vendor.fused = farm_emulator_vendor.plain = 0;
        expect_solved(ODD, p, FARM_PRECISION_F32);
        expect_solved(ODD, p, FARM_PRECISION_BF16);
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
            const struct bounds most = bounds_of(ODD, i % 2 ? FARM_PRECISION_BF16 : FARM_PRECISION_F32);
            expect_right(p, &a, &most);
        }
    }
}

Test(nn_cuda, uses_an_algorithm_that_is_not_deterministic_if_there_is_no_other) {
    with_problem *p = problem_of(&odd_net, &odd_io, 2);
    farm_emulator_vendor.only_random = true;
    expect_solved(ODD, p, FARM_PRECISION_F32);
}

Test(nn_cuda, the_device_layout_keeps_every_parameter_and_fills_gaps_with_zeros) {
    for (int i = ON_CUDA; i < CASES; i++) {
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
    with_problem *p = problem_at(ON_CUDA);
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
    cr_assert_eq(farm_net_make(net_spec("nature"), &atari, &net, &err), FARM_OK);
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
    with_problem *p = problem_at(ON_CUDA);
    farm_emulator_vendor.workspace_bytes = (size_t)1024 * 84 * 84 * 8 * sizeof(uint16_t);
    for (int training = 0; training < 2; training++) {
        with_executor *executor = executor_new(p, 1024, FARM_PRECISION_BF16, training);
        const with_answer a = answer_of(executor, p, p->batch, training);
    }
}

Test(nn_cuda, refuses_what_it_cannot_run) {
    static const struct farm_net_spec lopsided = {
        .text = "lopsided", .layer_count = 2, .layers = {CONV(CONV_SAME, 8, 3, 2, RELU), DENSE(8, RELU)}};
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
    static const struct farm_net_io small = {.frame_channels = 2, .height = 9, .width = 8, .stack = 3, .actions = 4};
    with_problem *p = problem_of(&odd_net, &small, FARM_CUDA_EXECUTOR_ROWS_MAX + 1);
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
    free(a.state);
    free(p->device);
    problem_free_host(p);
}
