// See convolution.h. cuDNN's heuristics choose algorithms, not measurements, so that every run on a machine computes
// the same bits. Deterministic algorithms are preferred for the same reason.
#include "nn/cuda/convolution.h"

#include <string.h>

_Static_assert((int)CUDNN_CONVOLUTION_FWD_ALGO_COUNT <= FARM_CUDA_ALGORITHMS_MAX &&
                   (int)CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT <= FARM_CUDA_ALGORITHMS_MAX &&
                   (int)CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT <= FARM_CUDA_ALGORITHMS_MAX,
               "all of cuDNN's answers fit");

enum farm_status farm_cudnn_fail(const struct farm_cudnn *cudnn, struct farm_error *err, cudnnStatus_t status,
                                 const char *call) {
    char detail[200] = "";
    const int number = (int)status;
    cudnn->GetLastErrorString(detail, sizeof detail);
    detail[sizeof detail - 1] = '\0';
    return farm_fail(err, number >= 3000 && number < 4000 ? FARM_E_UNSUPPORTED : FARM_E_IO, "cudnn%s: %s (%d)%s%s",
                     call, cudnn->GetErrorString(status), number, detail[0] != '\0' ? ": " : "", detail);
}

// Calls a function of cuDNN; returns from the calling function if it fails.
#define TRY(cudnn, function, ...)                                                                                      \
    do {                                                                                                               \
        const cudnnStatus_t farm_code = (cudnn)->function(__VA_ARGS__);                                                \
        if (farm_code != CUDNN_STATUS_SUCCESS) return farm_cudnn_fail(cudnn, err, farm_code, #function);               \
    } while (0)

// ---- descriptors ----

static enum farm_status make_picture(const struct farm_cuda_convolution_config *config, struct farm_shape shape,
                                     int rows, cudnnTensorDescriptor_t *out, struct farm_error *err) {
    const cudnnDataType_t type = config->bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    TRY(config->cudnn, CreateTensorDescriptor, out);
    TRY(config->cudnn, SetTensor4dDescriptor, *out, CUDNN_TENSOR_NHWC, type, rows, shape.channels, shape.height,
        shape.width);
    return FARM_OK;
}

static enum farm_status make_weight_and_activation(struct farm_cuda_convolution *c, struct farm_error *err) {
    const struct farm_net_op *op = &c->config.op;
    TRY(c->config.cudnn, CreateFilterDescriptor, &c->weight);
    TRY(c->config.cudnn, SetFilter4dDescriptor, c->weight, c->config.bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT,
        CUDNN_TENSOR_NHWC, op->out.channels, op->in.channels, op->kernel, op->kernel);
    TRY(c->config.cudnn, CreateActivationDescriptor, &c->activation);
    TRY(c->config.cudnn, SetActivationDescriptor, c->activation,
        op->activation == FARM_ACTIVATION_RELU ? CUDNN_ACTIVATION_RELU : CUDNN_ACTIVATION_IDENTITY,
        CUDNN_NOT_PROPAGATE_NAN, 0.0);
    return FARM_OK;
}

// FMA keeps f32 products f32; the default would allow TF32.
static enum farm_status make_convolution(const struct farm_cuda_convolution_config *config,
                                         cudnnConvolutionDescriptor_t *out, struct farm_error *err) {
    const struct farm_net_op *op = &config->op;
    TRY(config->cudnn, CreateConvolutionDescriptor, out);
    TRY(config->cudnn, SetConvolution2dDescriptor, *out, op->pad_before[0], op->pad_before[1], op->stride, op->stride,
        1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
    TRY(config->cudnn, SetConvolutionMathType, *out, config->bf16 ? CUDNN_TENSOR_OP_MATH : CUDNN_FMA_MATH);
    return FARM_OK;
}

// ---- algorithms ----

// The answer of cuDNN's heuristics, the fastest algorithm first.
static enum farm_status query_heuristics(const struct farm_cuda_convolution *c, enum farm_cuda_conv_part direction,
                                         cudnnConvolutionFwdAlgoPerf_t *answers, int *count, struct farm_error *err) {
    const struct farm_cudnn *cudnn = c->config.cudnn;
    const cudnnHandle_t handle = c->config.handle;
    const cudnnConvolutionDescriptor_t convolution = c->algorithms[direction].convolution;
    if (direction == FARM_CUDA_CONV_FORWARD)
        TRY(cudnn, GetConvolutionForwardAlgorithm_v7, handle, c->x, c->weight, convolution, c->y,
            CUDNN_CONVOLUTION_FWD_ALGO_COUNT, count, answers);
    else if (direction == FARM_CUDA_CONV_DATA)
        TRY(cudnn, GetConvolutionBackwardDataAlgorithm_v7, handle, c->weight, c->y, convolution, c->x,
            CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT, count, answers);
    else
        TRY(cudnn, GetConvolutionBackwardFilterAlgorithm_v7, handle, c->x, c->y, convolution, c->weight,
            CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT, count, answers);
    return FARM_OK;
}

static bool fits_workspace(const struct farm_cuda_convolution *c, enum farm_cuda_conv_part direction, int algorithm) {
    const struct farm_cudnn *cudnn = c->config.cudnn;
    const cudnnHandle_t handle = c->config.handle;
    const cudnnConvolutionDescriptor_t convolution = c->algorithms[direction].convolution;
    size_t bytes = 0;
    cudnnStatus_t status;
    if (direction == FARM_CUDA_CONV_FORWARD)
        status =
            cudnn->GetConvolutionForwardWorkspaceSize(handle, c->x, c->weight, convolution, c->y, algorithm, &bytes);
    else if (direction == FARM_CUDA_CONV_DATA)
        status = cudnn->GetConvolutionBackwardDataWorkspaceSize(handle, c->weight, c->y, convolution, c->x, algorithm,
                                                                &bytes);
    else
        status = cudnn->GetConvolutionBackwardFilterWorkspaceSize(handle, c->x, c->y, convolution, c->weight, algorithm,
                                                                  &bytes);
    return status == CUDNN_STATUS_SUCCESS && bytes <= c->config.workspace_bytes;
}

// f32 always computes with FMA.
static enum farm_status set_math(const struct farm_cuda_convolution *c, enum farm_cuda_conv_part direction,
                                 cudnnMathType_t math, struct farm_error *err) {
    if (c->config.bf16) TRY(c->config.cudnn, SetConvolutionMathType, c->algorithms[direction].convolution, math);
    return FARM_OK;
}

// 0 is best. A forward convolution without activation prefers the algorithm that cuDNN can fuse the bias with.
static int rank_of(const cudnnConvolutionFwdAlgoPerf_t *answer, bool prefers_gemm) {
    if (answer->determinism != CUDNN_DETERMINISTIC) return 2;
    return prefers_gemm && answer->algo != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM ? 1 : 0;
}

static enum farm_status choose_algorithms(struct farm_cuda_convolution *c, enum farm_cuda_conv_part direction,
                                          struct farm_error *err) {
    static const char *const names[] = {"forward", "backward to the input", "backward to the weights"};
    const struct farm_net_op *op = &c->config.op;
    const bool prefers_gemm = direction == FARM_CUDA_CONV_FORWARD && op->activation == FARM_ACTIVATION_NONE;
    struct farm_cuda_algorithms *out = &c->algorithms[direction];
    cudnnConvolutionFwdAlgoPerf_t answers[FARM_CUDA_ALGORITHMS_MAX];
    int count = 0;
    enum farm_status status = make_convolution(&c->config, &out->convolution, err);
    if (status == FARM_OK) status = query_heuristics(c, direction, answers, &count, err);
    for (int rank = 0; rank < 3 && status == FARM_OK; rank++)
        for (int i = 0; i < count; i++) {
            if (answers[i].status != CUDNN_STATUS_SUCCESS || rank_of(&answers[i], prefers_gemm) != rank) continue;
            status = set_math(c, direction, answers[i].mathType, err);
            if (status != FARM_OK) break;
            if (!fits_workspace(c, direction, answers[i].algo)) continue;
            out->number[out->count] = answers[i].algo;
            out->math[out->count++] = answers[i].mathType;
        }
    if (status != FARM_OK) return status;
    if (out->count == 0)
        return farm_fail(
            err, FARM_E_UNSUPPORTED,
            "cuDNN has no algorithm (of %d) for a convolution %s, %d rows of %dx%dx%d, kernel %d, stride %d, "
            "%d outputs, %s, in %zu MB of workspace; use precision %s or --device cpu",
            count, names[direction], c->config.rows, op->in.height, op->in.width, op->in.channels, op->kernel,
            op->stride, op->out.channels, c->config.bf16 ? "bf16" : "f32", c->config.workspace_bytes >> 20,
            c->config.bf16 ? "f32" : "bf16");
    if (direction == FARM_CUDA_CONV_FORWARD)
        c->fused = !prefers_gemm || out->number[0] == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
    return set_math(c, direction, out->math[0], err);
}

static struct farm_cuda_conv own_of(const struct farm_cuda_convolution_config *config) {
    const struct farm_net_op *op = &config->op;
    return (struct farm_cuda_conv){.rows = config->rows,
                                   .height = op->in.height,
                                   .width = op->in.width,
                                   .channels = op->in.channels,
                                   .out_height = op->out.height,
                                   .out_width = op->out.width,
                                   .out_channels = op->out.channels,
                                   .kernel = op->kernel,
                                   .stride = op->stride,
                                   .top = op->pad_before[0],
                                   .left = op->pad_before[1]};
}

enum farm_status farm_cuda_convolution_make(const struct farm_cuda_convolution_config *config,
                                            struct farm_cuda_convolution *out, struct farm_error *err) {
    out->config = *config;
    out->own = own_of(config);
    const struct farm_shape bias = {.channels = config->op.out.channels, .height = 1, .width = 1};
    const bool wanted[FARM_CUDA_CONV_PARTS] = {true, config->training && config->data_gradient, config->training};
    enum farm_status status = make_picture(config, config->op.in, config->rows, &out->x, err);
    if (status == FARM_OK) status = make_picture(config, config->op.out, config->rows, &out->y, err);
    if (status == FARM_OK) status = make_picture(config, bias, 1, &out->bias, err);
    if (status == FARM_OK) status = make_weight_and_activation(out, err);
    for (int d = 0; d < FARM_CUDA_CONV_PARTS; d++)
        out->is_own[d] =
            config->bf16 && farm_cuda_conv_has(&out->own, (enum farm_cuda_conv_part)d) &&
            (d != FARM_CUDA_CONV_WEIGHT || farm_cuda_conv_scratch_bytes(&out->own) <= config->workspace_bytes);
    for (int d = 0; d < FARM_CUDA_CONV_PARTS && status == FARM_OK; d++)
        if (wanted[d] && !out->is_own[d]) status = choose_algorithms(out, (enum farm_cuda_conv_part)d, err);
    return status;
}

void farm_cuda_convolution_drop(struct farm_cuda_convolution *c) {
    const struct farm_cudnn *cudnn = c->config.cudnn;
    if (c->x != NULL) cudnn->DestroyTensorDescriptor(c->x);
    if (c->y != NULL) cudnn->DestroyTensorDescriptor(c->y);
    if (c->bias != NULL) cudnn->DestroyTensorDescriptor(c->bias);
    if (c->weight != NULL) cudnn->DestroyFilterDescriptor(c->weight);
    if (c->activation != NULL) cudnn->DestroyActivationDescriptor(c->activation);
    for (int d = 0; d < FARM_CUDA_CONV_PARTS; d++)
        if (c->algorithms[d].convolution != NULL) cudnn->DestroyConvolutionDescriptor(c->algorithms[d].convolution);
    *c = (struct farm_cuda_convolution){0};
}

// ---- calls ----

// The call was refused before anything ran, so another way may be tried. cuDNN 9 returns "bad parameter" (2000) as well
// if the plan behind a call needs more workspace than cuDNN reported.
static bool is_refusal(cudnnStatus_t status) {
    return status != CUDNN_STATUS_SUCCESS && status < CUDNN_STATUS_EXECUTION_FAILED;
}

static cudnnStatus_t call_direction(const struct farm_cuda_convolution *c, enum farm_cuda_conv_part direction,
                                    const void *left, const void *right, const float *factor, void *result,
                                    void *workspace) {
    const struct farm_cudnn *cudnn = c->config.cudnn;
    const struct farm_cuda_algorithms *algorithms = &c->algorithms[direction];
    const cudnnHandle_t handle = c->config.handle;
    const size_t bytes = c->config.workspace_bytes;
    const float one = 1;
    switch (direction) {
    case FARM_CUDA_CONV_FORWARD:
        return cudnn->ConvolutionForward(handle, &one, c->x, left, c->weight, right, algorithms->convolution,
                                         algorithms->number[0], workspace, bytes, factor, c->y, result);
    case FARM_CUDA_CONV_DATA:
        return cudnn->ConvolutionBackwardData(handle, &one, c->weight, left, c->y, right, algorithms->convolution,
                                              algorithms->number[0], workspace, bytes, factor, c->x, result);
    default:
        return cudnn->ConvolutionBackwardFilter(handle, &one, c->x, left, c->y, right, algorithms->convolution,
                                                algorithms->number[0], workspace, bytes, factor, c->weight, result);
    }
}

// Runs the first algorithm that cuDNN does not refuse, and forgets those before it.
static enum farm_status run_direction(struct farm_cuda_convolution *c, enum farm_cuda_conv_part direction,
                                      const void *left, const void *right, bool add, void *result, void *workspace,
                                      struct farm_error *err) {
    static const char *const names[] = {"ConvolutionForward", "ConvolutionBackwardData", "ConvolutionBackwardFilter"};
    struct farm_cuda_algorithms *a = &c->algorithms[direction];
    const float factor = add ? 1 : 0;
    for (;;) {
        const cudnnStatus_t called = call_direction(c, direction, left, right, &factor, result, workspace);
        if (called == CUDNN_STATUS_SUCCESS) {
            a->ran = true;
            return FARM_OK;
        }
        const enum farm_status failed = farm_cudnn_fail(c->config.cudnn, err, called, names[direction]);
        if (!is_refusal(called) || a->ran || a->count == 1) return failed;
        a->count--;
        memmove(a->number, a->number + 1, (size_t)a->count * sizeof *a->number);
        memmove(a->math, a->math + 1, (size_t)a->count * sizeof *a->math);
        const enum farm_status set = set_math(c, direction, a->math[0], err);
        if (set != FARM_OK) return set;
    }
}

// cuDNN always reads an addend: y, times 0 if nothing is to be added.
static cudnnStatus_t forward_fused(const struct farm_cuda_convolution *c, const void *x, const void *weight,
                                   const void *bias, bool add, void *y, void *workspace) {
    const float one = 1, factor = add ? 1 : 0;
    const struct farm_cuda_algorithms *forward = &c->algorithms[FARM_CUDA_CONV_FORWARD];
    return c->config.cudnn->ConvolutionBiasActivationForward(
        c->config.handle, &one, c->x, x, c->weight, weight, forward->convolution, forward->number[0], workspace,
        c->config.workspace_bytes, &factor, c->y, y, c->bias, bias, c->activation, c->y, y);
}

enum farm_status farm_cuda_convolution_forward(struct farm_cuda_convolution *c, cudaStream_t stream, const void *x,
                                               const void *weight, const void *bias, bool add, void *y, void *workspace,
                                               struct farm_error *err) {
    struct farm_cuda_algorithms *forward = &c->algorithms[FARM_CUDA_CONV_FORWARD];
    const struct farm_net_op *op = &c->config.op;
    const bool relu = op->activation == FARM_ACTIVATION_RELU;
    if (c->is_own[FARM_CUDA_CONV_FORWARD])
        return farm_cuda_conv_forward(stream, &c->own, x, weight, bias, add, relu, y, err);
    if (c->fused) {
        const cudnnStatus_t called = forward_fused(c, x, weight, bias, add, y, workspace);
        forward->ran |= called == CUDNN_STATUS_SUCCESS;
        if (called == CUDNN_STATUS_SUCCESS) return FARM_OK;
        if (!is_refusal(called) || forward->ran)
            return farm_cudnn_fail(c->config.cudnn, err, called, "ConvolutionBiasActivationForward");
        c->fused = false;
    }
    const enum farm_status status = run_direction(c, FARM_CUDA_CONV_FORWARD, x, weight, add, y, workspace, err);
    if (status != FARM_OK) return status;
    return farm_cuda_bias_activate(
        stream, relu ? FARM_ACTIVATION_RELU : FARM_ACTIVATION_NONE, c->config.bf16 ? FARM_CUDA_BF16 : FARM_CUDA_F32,
        bias, y, (size_t)c->config.rows * (size_t)op->out.height * (size_t)op->out.width, op->out.channels, err);
}

enum farm_status farm_cuda_convolution_data_gradient(struct farm_cuda_convolution *c, cudaStream_t stream,
                                                     const void *weight, const void *dy, void *dx, void *workspace,
                                                     struct farm_error *err) {
    if (c->is_own[FARM_CUDA_CONV_DATA]) return farm_cuda_conv_data_gradient(stream, &c->own, weight, dy, dx, err);
    return run_direction(c, FARM_CUDA_CONV_DATA, weight, dy, false, dx, workspace, err);
}

enum farm_status farm_cuda_convolution_weight_gradient(struct farm_cuda_convolution *c, cudaStream_t stream,
                                                       const void *x, const void *dy, float *gradient, void *rounded,
                                                       void *workspace, struct farm_error *err) {
    if (c->is_own[FARM_CUDA_CONV_WEIGHT])
        return farm_cuda_conv_weight_gradient(stream, &c->own, x, dy, gradient, workspace, err);
    if (!c->config.bf16) return run_direction(c, FARM_CUDA_CONV_WEIGHT, x, dy, true, gradient, workspace, err);
    const enum farm_status status = run_direction(c, FARM_CUDA_CONV_WEIGHT, x, dy, false, rounded, workspace, err);
    const size_t count = (size_t)(c->own.out_channels * c->own.kernel * c->own.kernel * c->own.channels);
    return status ? status : farm_cuda_add_bf16(stream, rounded, gradient, count, err);
}
