// See convolution.h.
//
// Algorithms come from cuDNN's heuristics, not from measuring: the same machine then computes the same bits in every
// run. Deterministic ones go before others, for the same reason.
#include "nn/cuda/convolution.h"

#include "kernels/cuda/kernels.h"

_Static_assert((int)CUDNN_CONVOLUTION_FWD_ALGO_COUNT <= FARM_CUDA_ALGORITHMS_MAX &&
                   (int)CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT <= FARM_CUDA_ALGORITHMS_MAX &&
                   (int)CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT <= FARM_CUDA_ALGORITHMS_MAX,
               "all answers fit");

enum direction { FORWARD, DATA, FILTER };

enum farm_status farm_cudnn_fail(const struct farm_cudnn *cudnn, struct farm_error *err, cudnnStatus_t status,
                                 const char *call) {
    char detail[200] = "";
    const int number = (int)status;
    cudnn->GetLastErrorString(detail, sizeof detail);
    detail[sizeof detail - 1] = '\0';
    return farm_fail(err, number >= 3000 && number < 4000 ? FARM_E_UNSUPPORTED : FARM_E_IO, "cudnn%s: %s (%d)%s%s",
                     call, cudnn->GetErrorString(status), number, detail[0] != '\0' ? ": " : "", detail);
}

// Calls a function of cuDNN; returns from the calling function where it fails.
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

static enum farm_status make_weight(struct farm_cuda_convolution *c, struct farm_error *err) {
    const struct farm_net_op *op = &c->config.op;
    const cudnnDataType_t type = c->config.bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    TRY(c->config.cudnn, CreateFilterDescriptor, &c->weight);
    TRY(c->config.cudnn, SetFilter4dDescriptor, c->weight, type, CUDNN_TENSOR_NHWC, op->out.channels, op->in.channels,
        op->kernel, op->kernel);
    return FARM_OK;
}

static enum farm_status make_activation(struct farm_cuda_convolution *c, struct farm_error *err) {
    const bool relu = c->config.op.activation == FARM_ACTIVATION_RELU;
    TRY(c->config.cudnn, CreateActivationDescriptor, &c->activation);
    TRY(c->config.cudnn, SetActivationDescriptor, c->activation,
        relu ? CUDNN_ACTIVATION_RELU : CUDNN_ACTIVATION_IDENTITY, CUDNN_NOT_PROPAGATE_NAN, 0.0);
    return FARM_OK;
}

// FMA: f32 products stay f32, where the default would let TF32 in.
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

struct candidate {
    int number;
    bool works, deterministic;
    cudnnMathType_t math;
};

#define TAKE(results)                                                                                                  \
    for (int i = 0; i < *count; i++) out[i] = (struct candidate) {                                                     \
            (int)results[i].algo, results[i].status == CUDNN_STATUS_SUCCESS,                                           \
                results[i].determinism == CUDNN_DETERMINISTIC, results[i].mathType                                     \
        }

// cuDNN's heuristics' answers, the fastest first.
static enum farm_status ask(const struct farm_cuda_convolution *c, enum direction direction,
                            cudnnConvolutionDescriptor_t convolution, struct candidate *out, int *count,
                            struct farm_error *err) {
    const struct farm_cudnn *cudnn = c->config.cudnn;
    const cudnnHandle_t handle = c->config.handle;
    if (direction == FORWARD) {
        cudnnConvolutionFwdAlgoPerf_t results[FARM_CUDA_ALGORITHMS_MAX];
        TRY(cudnn, GetConvolutionForwardAlgorithm_v7, handle, c->x, c->weight, convolution, c->y,
            CUDNN_CONVOLUTION_FWD_ALGO_COUNT, count, results);
        TAKE(results);
    } else if (direction == DATA) {
        cudnnConvolutionBwdDataAlgoPerf_t results[FARM_CUDA_ALGORITHMS_MAX];
        TRY(cudnn, GetConvolutionBackwardDataAlgorithm_v7, handle, c->weight, c->y, convolution, c->x,
            CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT, count, results);
        TAKE(results);
    } else {
        cudnnConvolutionBwdFilterAlgoPerf_t results[FARM_CUDA_ALGORITHMS_MAX];
        TRY(cudnn, GetConvolutionBackwardFilterAlgorithm_v7, handle, c->x, c->y, convolution, c->weight,
            CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT, count, results);
        TAKE(results);
    }
    return FARM_OK;
}

// What the first of its algorithms computes with.
static enum farm_status set_math(const struct farm_cuda_convolution *c, const struct farm_cuda_algorithms *algorithms,
                                 struct farm_error *err) {
    if (c->config.bf16) TRY(c->config.cudnn, SetConvolutionMathType, algorithms->convolution, algorithms->math[0]);
    return FARM_OK;
}

// Whether it works in the workspace that there is.
static bool fits(const struct farm_cuda_convolution *c, enum direction direction,
                 cudnnConvolutionDescriptor_t convolution, int number) {
    const struct farm_cudnn *cudnn = c->config.cudnn;
    const cudnnHandle_t handle = c->config.handle;
    size_t bytes = 0;
    cudnnStatus_t status;
    if (direction == FORWARD)
        status = cudnn->GetConvolutionForwardWorkspaceSize(handle, c->x, c->weight, convolution, c->y,
                                                           (cudnnConvolutionFwdAlgo_t)number, &bytes);
    else if (direction == DATA)
        status = cudnn->GetConvolutionBackwardDataWorkspaceSize(handle, c->weight, c->y, convolution, c->x,
                                                                (cudnnConvolutionBwdDataAlgo_t)number, &bytes);
    else
        status = cudnn->GetConvolutionBackwardFilterWorkspaceSize(handle, c->x, c->y, convolution, c->weight,
                                                                  (cudnnConvolutionBwdFilterAlgo_t)number, &bytes);
    return status == CUDNN_STATUS_SUCCESS && bytes <= c->config.workspace_bytes;
}

// 0: the best; a convolution without activation wants the algorithm that cuDNN can fuse the bias with.
static int rank_of(const struct candidate *candidate, bool picky) {
    if (!candidate->deterministic) return 2;
    return picky && candidate->number != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM ? 1 : 0;
}

static enum farm_status choose(struct farm_cuda_convolution *c, enum direction direction,
                               struct farm_cuda_algorithms *out, struct farm_error *err) {
    static const char *const names[] = {"forward", "backward to the input", "backward to the weights"};
    const struct farm_net_op *op = &c->config.op;
    const bool picky = direction == FORWARD && op->activation == FARM_ACTIVATION_NONE;
    struct candidate candidates[FARM_CUDA_ALGORITHMS_MAX];
    int count = 0;
    enum farm_status status = make_convolution(&c->config, &out->convolution, err);
    if (status == FARM_OK) status = ask(c, direction, out->convolution, candidates, &count, err);
    if (status != FARM_OK) return status;
    for (int rank = 0; rank < 3; rank++)
        for (int i = 0; i < count; i++) {
            const struct candidate *candidate = &candidates[i];
            if (!candidate->works || rank_of(candidate, picky) != rank) continue;
            if (c->config.bf16) TRY(c->config.cudnn, SetConvolutionMathType, out->convolution, candidate->math);
            if (!fits(c, direction, out->convolution, candidate->number)) continue;
            out->number[out->count] = candidate->number;
            out->math[out->count++] = candidate->math;
        }
    if (direction == FORWARD && out->count > 0)
        c->fused = !picky || out->number[0] == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
    if (out->count > 0) return set_math(c, out, err);
    return farm_fail(err, FARM_E_UNSUPPORTED,
                     "cuDNN has no algorithm (of %d) for a convolution %s, %d rows of %dx%dx%d, kernel %d, stride %d, "
                     "%d outputs, %s, in %zu MB of workspace; take precision %s or --device cpu",
                     count, names[direction], c->config.rows, op->in.height, op->in.width, op->in.channels, op->kernel,
                     op->stride, op->out.channels, c->config.bf16 ? "bf16" : "f32", c->config.workspace_bytes >> 20,
                     c->config.bf16 ? "f32" : "bf16");
}

enum farm_status farm_cuda_convolution_make(const struct farm_cuda_convolution_config *config,
                                            struct farm_cuda_convolution *out, struct farm_error *err) {
    out->config = *config;
    const struct farm_shape bias = {.channels = config->op.out.channels, .height = 1, .width = 1};
    enum farm_status status = make_picture(config, config->op.in, config->rows, &out->x, err);
    if (status == FARM_OK) status = make_picture(config, config->op.out, config->rows, &out->y, err);
    if (status == FARM_OK) status = make_picture(config, bias, 1, &out->bias, err);
    if (status == FARM_OK) status = make_weight(out, err);
    if (status == FARM_OK) status = make_activation(out, err);
    if (status == FARM_OK) status = choose(out, FORWARD, &out->forward, err);
    if (status == FARM_OK && config->training) status = choose(out, FILTER, &out->filter, err);
    if (status == FARM_OK && config->training && config->data_gradient) status = choose(out, DATA, &out->data, err);
    return status;
}

void farm_cuda_convolution_drop(struct farm_cuda_convolution *c) {
    const struct farm_cudnn *cudnn = c->config.cudnn;
    if (c->x != NULL) cudnn->DestroyTensorDescriptor(c->x);
    if (c->y != NULL) cudnn->DestroyTensorDescriptor(c->y);
    if (c->bias != NULL) cudnn->DestroyTensorDescriptor(c->bias);
    if (c->weight != NULL) cudnn->DestroyFilterDescriptor(c->weight);
    if (c->activation != NULL) cudnn->DestroyActivationDescriptor(c->activation);
    const cudnnConvolutionDescriptor_t all[] = {c->forward.convolution, c->data.convolution, c->filter.convolution};
    for (int i = 0; i < 3; i++)
        if (all[i] != NULL) cudnn->DestroyConvolutionDescriptor(all[i]);
    *c = (struct farm_cuda_convolution){0};
}

// ---- calls ----

// What may be asked for in another way: the call was refused, nothing failed that ran. cuDNN 9 says "bad parameter"
// (2000) too where the plan behind a call wants more workspace than it told.
static bool refused(cudnnStatus_t status) {
    return status != CUDNN_STATUS_SUCCESS && status < CUDNN_STATUS_EXECUTION_FAILED;
}

// After a call by the first algorithm: whether it shall be made again, by the next one; else *result is what to return.
static bool again(const struct farm_cuda_convolution *c, struct farm_cuda_algorithms *algorithms, cudnnStatus_t status,
                  const char *call, enum farm_status *result, struct farm_error *err) {
    const bool next = refused(status) && !algorithms->ran && algorithms->count > 1;
    algorithms->ran |= status == CUDNN_STATUS_SUCCESS;
    *result = status == CUDNN_STATUS_SUCCESS ? FARM_OK : farm_cudnn_fail(c->config.cudnn, err, status, call);
    if (!next) return false;
    algorithms->count--;
    for (int i = 0; i < algorithms->count; i++) {
        algorithms->number[i] = algorithms->number[i + 1];
        algorithms->math[i] = algorithms->math[i + 1];
    }
    *result = set_math(c, algorithms, err);
    return *result == FARM_OK;
}

// cuDNN wants an addend in any case: y, times 0 where there is none.
static cudnnStatus_t forward_fused(const struct farm_cuda_convolution *c, const void *x, const void *weight,
                                   const void *bias, bool add, void *y, void *workspace) {
    const float one = 1, factor = add ? 1 : 0;
    return c->config.cudnn->ConvolutionBiasActivationForward(
        c->config.handle, &one, c->x, x, c->weight, weight, c->forward.convolution,
        (cudnnConvolutionFwdAlgo_t)c->forward.number[0], workspace, c->config.workspace_bytes, &factor, c->y, y,
        c->bias, bias, c->activation, c->y, y);
}

static enum farm_status forward_plain(struct farm_cuda_convolution *c, cudaStream_t stream, const void *x,
                                      const void *weight, const void *bias, bool add, void *y, void *workspace,
                                      struct farm_error *err) {
    const struct farm_net_op *op = &c->config.op;
    const float one = 1, factor = add ? 1 : 0;
    enum farm_status result;
    cudnnStatus_t status;
    do {
        status = c->config.cudnn->ConvolutionForward(
            c->config.handle, &one, c->x, x, c->weight, weight, c->forward.convolution,
            (cudnnConvolutionFwdAlgo_t)c->forward.number[0], workspace, c->config.workspace_bytes, &factor, c->y, y);
    } while (again(c, &c->forward, status, "ConvolutionForward", &result, err));
    if (result != FARM_OK) return result;
    return farm_cuda_bias_activate(stream, op->activation == FARM_ACTIVATION_RELU ? FARM_SLOPE_RELU : FARM_SLOPE_ONE,
                                   c->config.bf16 ? FARM_CUDA_BF16 : FARM_CUDA_F32, bias, y,
                                   (size_t)c->config.rows * (size_t)op->out.height * (size_t)op->out.width,
                                   op->out.channels, err);
}

enum farm_status farm_cuda_convolution_forward(struct farm_cuda_convolution *c, cudaStream_t stream, const void *x,
                                               const void *weight, const void *bias, bool add, void *y, void *workspace,
                                               struct farm_error *err) {
    if (!c->fused) return forward_plain(c, stream, x, weight, bias, add, y, workspace, err);
    const cudnnStatus_t status = forward_fused(c, x, weight, bias, add, y, workspace);
    if (refused(status) && !c->forward.ran) {
        c->fused = false;
        return forward_plain(c, stream, x, weight, bias, add, y, workspace, err);
    }
    if (status != CUDNN_STATUS_SUCCESS)
        return farm_cudnn_fail(c->config.cudnn, err, status, "ConvolutionBiasActivationForward");
    c->forward.ran = true;
    return FARM_OK;
}

enum farm_status farm_cuda_convolution_backward_data(struct farm_cuda_convolution *c, const void *weight,
                                                     const void *dy, void *dx, void *workspace,
                                                     struct farm_error *err) {
    const float one = 1, zero = 0;
    enum farm_status result;
    cudnnStatus_t status;
    do {
        status = c->config.cudnn->ConvolutionBackwardData(
            c->config.handle, &one, c->weight, weight, c->y, dy, c->data.convolution,
            (cudnnConvolutionBwdDataAlgo_t)c->data.number[0], workspace, c->config.workspace_bytes, &zero, c->x, dx);
    } while (again(c, &c->data, status, "ConvolutionBackwardData", &result, err));
    return result;
}

enum farm_status farm_cuda_convolution_backward_filter(struct farm_cuda_convolution *c, const void *x, const void *dy,
                                                       bool add, void *dweight, void *workspace,
                                                       struct farm_error *err) {
    const float one = 1, factor = add ? 1 : 0;
    enum farm_status result;
    cudnnStatus_t status;
    do {
        status =
            c->config.cudnn->ConvolutionBackwardFilter(c->config.handle, &one, c->x, x, c->y, dy, c->filter.convolution,
                                                       (cudnnConvolutionBwdFilterAlgo_t)c->filter.number[0], workspace,
                                                       c->config.workspace_bytes, &factor, c->weight, dweight);
    } while (again(c, &c->filter, status, "ConvolutionBackwardFilter", &result, err));
    return result;
}
