// See libraries.h.
#include "libraries.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulator.h"
#include "kernels/layers.h"

struct farm_emulator_libraries farm_emulator_libraries;
#define PRETEND farm_emulator_libraries

struct cudnnContext {
    cudaStream_t stream;
    void *memory; // of the device, which nobody uses
};
struct cudnnTensorStruct {
    cudnnTensorFormat_t format;
    cudnnDataType_t type;
    int n, c, h, w;
};
struct cudnnFilterStruct {
    cudnnTensorFormat_t format;
    cudnnDataType_t type;
    int k, c, h, w;
};
struct cudnnConvolutionStruct {
    int pad_h, pad_w, stride_h, stride_w;
    cudnnConvolutionMode_t mode;
    cudnnDataType_t compute;
    cudnnMathType_t math;
};
struct cudnnActivationStruct {
    cudnnActivationMode_t mode;
};

static void *descriptor(size_t bytes) {
    PRETEND.descriptors++;
    return calloc(1, bytes);
}
static void give_back(void *memory) {
    PRETEND.descriptors--;
    free(memory);
}
// A kind's descriptors: made of zeros, given back. 0 is success in both libraries.
#define CREATE(status, handle, kind)                                                                                   \
    static status create_##kind(handle *made) {                                                                        \
        *made = descriptor(sizeof **made);                                                                             \
        return (status)0;                                                                                              \
    }
#define DESTROY(status, handle, kind)                                                                                  \
    static status destroy_##kind(handle made) {                                                                        \
        give_back(made);                                                                                               \
        return (status)0;                                                                                              \
    }
// Whether the device has what a handle takes.
static bool take_memory(void **memory) {
    *memory = NULL;
    if (!PRETEND.handle_bytes || cudaMalloc(memory, PRETEND.handle_bytes) == cudaSuccess) return true;
    (void)cudaGetLastError(); // the libraries have a runtime of their own
    return false;
}
static bool known(cudnnDataType_t type) {
    return type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_BFLOAT16;
}
static size_t size_of(bool bf16) {
    return bf16 ? sizeof(uint16_t) : sizeof(float);
}
static bool aligned(const void *address, size_t to) {
    return address != NULL && (uintptr_t)address % to == 0;
}
static void put(void *array, bool bf16, size_t i, double number) {
    if (bf16)
        ((uint16_t *)array)[i] = farm_bf16((float)number);
    else
        ((float *)array)[i] = (float)number;
}
static double get(const void *array, bool bf16, size_t i) {
    return (double)farm_number_at(array, bf16, i);
}

// ---- cuDNN: handles and descriptors ----

static size_t cudnn_version(void) {
    return 91900;
}
static const char *cudnn_words(cudnnStatus_t status) {
    return status == CUDNN_STATUS_BAD_PARAM         ? "CUDNN_STATUS_BAD_PARAM"
           : status == CUDNN_STATUS_NOT_SUPPORTED   ? "CUDNN_STATUS_NOT_SUPPORTED"
           : status == CUDNN_STATUS_NOT_INITIALIZED ? "CUDNN_STATUS_NOT_INITIALIZED"
                                                    : "CUDNN_STATUS_EXECUTION_FAILED";
}
static _Thread_local const char *last_words = "";
static void cudnn_last_words(char *message, size_t size) {
    snprintf(message, size, "%s", last_words);
    last_words = "";
}
static cudnnStatus_t bad(const char *why) {
    last_words = why;
    return CUDNN_STATUS_BAD_PARAM;
}
static cudnnStatus_t unsupported(const char *why) {
    last_words = why;
    return CUDNN_STATUS_NOT_SUPPORTED;
}

static cudnnStatus_t cudnn_create(cudnnHandle_t *handle) {
    void *memory;
    if (!take_memory(&memory)) return CUDNN_STATUS_NOT_INITIALIZED;
    *handle = descriptor(sizeof **handle);
    (*handle)->memory = memory;
    return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t cudnn_destroy(cudnnHandle_t handle) {
    (void)cudaFree(handle->memory);
    give_back(handle);
    return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}
CREATE(cudnnStatus_t, cudnnTensorDescriptor_t, tensor)
DESTROY(cudnnStatus_t, cudnnTensorDescriptor_t, tensor)
CREATE(cudnnStatus_t, cudnnFilterDescriptor_t, filter)
DESTROY(cudnnStatus_t, cudnnFilterDescriptor_t, filter)
CREATE(cudnnStatus_t, cudnnConvolutionDescriptor_t, convolution)
DESTROY(cudnnStatus_t, cudnnConvolutionDescriptor_t, convolution)
CREATE(cudnnStatus_t, cudnnActivationDescriptor_t, activation)
DESTROY(cudnnStatus_t, cudnnActivationDescriptor_t, activation)
static cudnnStatus_t set_tensor(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format, cudnnDataType_t type, int n,
                                int c, int h, int w) {
    if (!known(type) || n < 1 || c < 1 || h < 1 || w < 1) return bad("a tensor of no size or of an unknown type");
    *tensor = (struct cudnnTensorStruct){format, type, n, c, h, w};
    return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t set_filter(cudnnFilterDescriptor_t filter, cudnnDataType_t type, cudnnTensorFormat_t format, int k,
                                int c, int h, int w) {
    if (!known(type) || k < 1 || c < 1 || h < 1 || w < 1) return bad("a filter of no size or of an unknown type");
    *filter = (struct cudnnFilterStruct){format, type, k, c, h, w};
    return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t set_convolution(cudnnConvolutionDescriptor_t convolution, int pad_h, int pad_w, int stride_h,
                                     int stride_w, int dilation_h, int dilation_w, cudnnConvolutionMode_t mode,
                                     cudnnDataType_t compute) {
    if (pad_h < 0 || pad_w < 0 || stride_h < 1 || stride_w < 1 || dilation_h != 1 || dilation_w != 1)
        return bad("padding, stride or dilation");
    *convolution = (struct cudnnConvolutionStruct){pad_h, pad_w, stride_h, stride_w, mode, compute, CUDNN_DEFAULT_MATH};
    return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t set_math(cudnnConvolutionDescriptor_t convolution, cudnnMathType_t math) {
    convolution->math = math;
    return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t set_activation(cudnnActivationDescriptor_t activation, cudnnActivationMode_t mode,
                                    cudnnNanPropagation_t nan, double coefficient) {
    activation->mode = mode;
    return CUDNN_STATUS_SUCCESS;
}

// ---- cuDNN: what goes together ----

enum { ALGO_OTHER = 0, ALGO_PRECOMPUTED = 1, ALGO_OF_BACKWARD = 1, ALGO_RANDOM = 0 };

static cudnnStatus_t check(cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t conv,
                           cudnnTensorDescriptor_t y) {
    if (x->type != w->type || x->type != y->type) return unsupported("tensors of different types");
    if (x->format != CUDNN_TENSOR_NHWC || w->format != CUDNN_TENSOR_NHWC || y->format != CUDNN_TENSOR_NHWC)
        return unsupported("layouts other than NHWC (of this emulator)");
    if (conv->compute != CUDNN_DATA_FLOAT || conv->mode != CUDNN_CROSS_CORRELATION)
        return unsupported("compute type or mode");
    if (x->type == CUDNN_DATA_FLOAT && conv->math != CUDNN_FMA_MATH) return unsupported("f32 would become TF32");
    if (x->n != y->n || x->c != w->c || y->c != w->k) return bad("rows or channels do not match");
    if (y->h != (x->h + 2 * conv->pad_h - w->h) / conv->stride_h + 1 ||
        y->w != (x->w + 2 * conv->pad_w - w->w) / conv->stride_w + 1)
        return bad("the output's size is not what the convolution gives");
    return CUDNN_STATUS_SUCCESS;
}

enum direction { FORWARD, DATA, FILTER };

static bool offers(int algo, enum direction direction) {
    if (PRETEND.no_algorithm) return false;
    if (PRETEND.only_random) return algo == ALGO_RANDOM;
    if (direction == FORWARD && PRETEND.no_precomputed_gemm) return algo == ALGO_OTHER;
    return algo == ALGO_PRECOMPUTED || ((direction == FORWARD || PRETEND.refused[direction]) && algo == ALGO_OTHER);
}

static bool refuses(int algo, enum direction direction) {
    return PRETEND.refused[direction] == 1 + algo;
}

// Of three algorithms one never works, and the first is the slower of those that IDENTITY can be fused with.
#define ANSWER(type, results, direction)                                                                               \
    do {                                                                                                               \
        *returned = requested < 3 ? requested : 3;                                                                     \
        for (int i = 0; i < *returned; i++) {                                                                          \
            (results)[i].algo = (type)(i == 2 ? 5 : i);                                                                \
            (results)[i].status = offers(i, direction) && i < 2 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;   \
            (results)[i].determinism =                                                                                 \
                i == ALGO_RANDOM && (direction) != FORWARD ? CUDNN_NON_DETERMINISTIC : CUDNN_DETERMINISTIC;            \
            (results)[i].mathType = conv->math;                                                                        \
            (results)[i].memory = PRETEND.workspace_bytes;                                                             \
        }                                                                                                              \
    } while (0)

static cudnnStatus_t forward_algorithms(cudnnHandle_t handle, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                                        cudnnConvolutionDescriptor_t conv, cudnnTensorDescriptor_t y, int requested,
                                        int *returned, cudnnConvolutionFwdAlgoPerf_t *results) {
    const cudnnStatus_t status = check(x, w, conv, y);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    ANSWER(cudnnConvolutionFwdAlgo_t, results, FORWARD);
    return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t data_algorithms(cudnnHandle_t handle, cudnnFilterDescriptor_t w, cudnnTensorDescriptor_t dy,
                                     cudnnConvolutionDescriptor_t conv, cudnnTensorDescriptor_t dx, int requested,
                                     int *returned, cudnnConvolutionBwdDataAlgoPerf_t *results) {
    const cudnnStatus_t status = check(dx, w, conv, dy);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    ANSWER(cudnnConvolutionBwdDataAlgo_t, results, DATA);
    return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t filter_algorithms(cudnnHandle_t handle, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t dy,
                                       cudnnConvolutionDescriptor_t conv, cudnnFilterDescriptor_t dw, int requested,
                                       int *returned, cudnnConvolutionBwdFilterAlgoPerf_t *results) {
    const cudnnStatus_t status = check(x, dw, conv, dy);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    ANSWER(cudnnConvolutionBwdFilterAlgo_t, results, FILTER);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t forward_workspace(cudnnHandle_t handle, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                                       cudnnConvolutionDescriptor_t conv, cudnnTensorDescriptor_t y,
                                       cudnnConvolutionFwdAlgo_t algo, size_t *bytes) {
    *bytes = PRETEND.workspace_bytes;
    return offers((int)algo, FORWARD) ? check(x, w, conv, y) : unsupported("this algorithm");
}
static cudnnStatus_t data_workspace(cudnnHandle_t handle, cudnnFilterDescriptor_t w, cudnnTensorDescriptor_t dy,
                                    cudnnConvolutionDescriptor_t conv, cudnnTensorDescriptor_t dx,
                                    cudnnConvolutionBwdDataAlgo_t algo, size_t *bytes) {
    *bytes = PRETEND.workspace_bytes;
    return offers((int)algo, DATA) ? check(dx, w, conv, dy) : unsupported("this algorithm");
}
static cudnnStatus_t filter_workspace(cudnnHandle_t handle, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t dy,
                                      cudnnConvolutionDescriptor_t conv, cudnnFilterDescriptor_t dw,
                                      cudnnConvolutionBwdFilterAlgo_t algo, size_t *bytes) {
    *bytes = PRETEND.workspace_bytes;
    return offers((int)algo, FILTER) ? check(x, dw, conv, dy) : unsupported("this algorithm");
}

// ---- cuDNN: convolutions ----

struct convolution {
    struct cudnnTensorStruct x, y;
    struct cudnnFilterStruct w;
    struct cudnnConvolutionStruct conv;
    const void *in, *weight, *dy, *bias, *addend; // what a direction reads
    void *out;
    float beta, addend_factor;
    bool relu;
    void *workspace;
    size_t workspace_bytes;
};

static size_t x_count(const struct convolution *c) {
    return (size_t)c->x.n * (size_t)c->x.h * (size_t)c->x.w * (size_t)c->x.c;
}
static size_t y_count(const struct convolution *c) {
    return (size_t)c->y.n * (size_t)c->y.h * (size_t)c->y.w * (size_t)c->y.c;
}
static size_t w_count(const struct convolution *c) {
    return (size_t)c->w.k * (size_t)c->w.h * (size_t)c->w.w * (size_t)c->w.c;
}

// Inputs of products of channels: where a kernel's (i, j) over output (y, x) starts in the input; -1: in the padding.
static long input_at(const struct convolution *c, int n, int y, int x, int i, int j) {
    const int row = y * c->conv.stride_h - c->conv.pad_h + i, column = x * c->conv.stride_w - c->conv.pad_w + j;
    if (row < 0 || row >= c->x.h || column < 0 || column >= c->x.w) return -1;
    return (((long)n * c->x.h + row) * c->x.w + column) * c->x.c;
}

static float *numbers_of(const void *array, bool bf16, size_t count) {
    float *numbers = malloc((count + 1) * sizeof *numbers);
    for (size_t i = 0; i < count; i++) numbers[i] = farm_number_at(array, bf16, i);
    return numbers;
}

static void scribble(void *workspace, size_t bytes) {
    farm_emulator_need(workspace, bytes, true, "a library's workspace");
    memset(workspace, 0xA5, bytes < 4096 ? bytes : 4096);
}

// The one loop over all products: forward adds x * w into y, data adds dy * w into x, filter adds x * dy into w.
static void multiply(const struct convolution *c, enum direction direction, float *x, float *w, float *y) {
    const size_t channels = (size_t)c->w.c;
    for (int n = 0; n < c->y.n; n++)
        for (int oy = 0; oy < c->y.h; oy++)
            for (int ox = 0; ox < c->y.w; ox++)
                for (int i = 0; i < c->w.h; i++)
                    for (int j = 0; j < c->w.w; j++) {
                        const long from = input_at(c, n, oy, ox, i, j);
                        if (from < 0) continue;
                        float *const in = x + from;
                        for (int k = 0; k < c->w.k; k++) {
                            float *const weight = w + ((size_t)((k * c->w.h + i) * c->w.w + j)) * channels;
                            float *const out = y + ((size_t)((n * c->y.h + oy) * c->y.w + ox)) * (size_t)c->w.k + k;
                            if (direction == FORWARD)
                                for (size_t s = 0; s < channels; s++) *out += in[s] * weight[s];
                            else if (direction == DATA)
                                for (size_t s = 0; s < channels; s++) in[s] += *out * weight[s];
                            else
                                for (size_t s = 0; s < channels; s++) weight[s] += *out * in[s];
                        }
                    }
}

static void run(const struct convolution *c, enum direction direction) {
    const bool bf16 = c->x.type == CUDNN_DATA_BFLOAT16;
    const size_t counts[3] = {x_count(c), w_count(c), y_count(c)}, each = size_of(bf16);
    const int result = direction == FORWARD ? 2 : direction == DATA ? 0 : 1;
    const void *const arrays[3] = {c->in, c->weight, c->dy};
    float *numbers[3];
    for (int a = 0; a < 3; a++) {
        if (a == result)
            farm_emulator_need(c->out, counts[a] * each, true, "a convolution's result");
        else
            farm_emulator_need(arrays[a], counts[a] * each, false, "a convolution's operand");
        numbers[a] = a == result ? calloc(counts[a], sizeof(float)) : numbers_of(arrays[a], bf16, counts[a]);
    }
    if (c->bias) farm_emulator_need(c->bias, (size_t)c->y.c * each, false, "a convolution's bias");
    scribble(c->workspace, c->workspace_bytes);
    multiply(c, direction, numbers[0], numbers[1], numbers[2]);
    for (size_t i = 0; i < counts[result]; i++) {
        double sum = (double)numbers[result][i];
        if (c->beta != 0) sum += (double)c->beta * get(c->out, bf16, i);
        if (c->addend) sum += (double)c->addend_factor * get(c->addend, bf16, i); // times 0 too: NaN stays NaN
        if (c->bias) sum += get(c->bias, bf16, i % (size_t)c->y.c);
        put(c->out, bf16, i, c->relu && sum < 0 ? 0 : sum);
    }
    for (int a = 0; a < 3; a++) free(numbers[a]);
}
static void run_forward(const void *arguments) {
    run(arguments, FORWARD);
}
static void run_data(const void *arguments) {
    run(arguments, DATA);
}
static void run_filter(const void *arguments) {
    run(arguments, FILTER);
}

static cudnnStatus_t start(cudnnHandle_t handle, const char *name, void (*work)(const void *), struct convolution *c,
                           const struct cudnnConvolutionStruct *conv, void *workspace, size_t workspace_bytes,
                           const void *const *pointers, int count) {
    const cudnnStatus_t status = check(&c->x, &c->w, &c->conv, &c->y);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    for (int i = 0; i < count; i++)
        if (!aligned(pointers[i], 16)) return bad("a pointer that is NULL or no multiple of 16");
    if (workspace_bytes < PRETEND.workspace_bytes || (PRETEND.workspace_bytes > 0 && !aligned(workspace, 16)))
        return bad("the workspace is too small or nowhere");
    c->conv = *conv;
    c->workspace = workspace;
    c->workspace_bytes = PRETEND.workspace_bytes;
    return farm_emulator_launch(handle->stream, name, work, c, sizeof *c) == cudaSuccess
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_EXECUTION_FAILED;
}

// Whether this algorithm can be asked for in that direction; this emulator scales nothing.
static cudnnStatus_t permitted(int algo, enum direction direction, const void *alpha) {
    if (!offers(algo, direction)) return unsupported("this algorithm");
    if (refuses(algo, direction)) return bad("this algorithm, after all");
    return *(const float *)alpha == 1 ? CUDNN_STATUS_SUCCESS : unsupported("alpha (of this emulator)");
}

static cudnnStatus_t convolution_forward(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x_desc,
                                         const void *x, cudnnFilterDescriptor_t w_desc, const void *w,
                                         cudnnConvolutionDescriptor_t conv, cudnnConvolutionFwdAlgo_t algo,
                                         void *workspace, size_t workspace_bytes, const void *beta,
                                         cudnnTensorDescriptor_t y_desc, void *y) {
    const cudnnStatus_t status = permitted((int)algo, FORWARD, alpha);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    struct convolution c = {.x = *x_desc, .y = *y_desc, .w = *w_desc, .conv = *conv};
    c.in = x, c.weight = w, c.out = y, c.beta = *(const float *)beta;
    PRETEND.plain++;
    return start(handle, "cudnnConvolutionForward", run_forward, &c, conv, workspace, workspace_bytes,
                 (const void *const[]){x, w, y}, 3);
}

static cudnnStatus_t convolution_fused(cudnnHandle_t handle, const void *alpha1, cudnnTensorDescriptor_t x_desc,
                                       const void *x, cudnnFilterDescriptor_t w_desc, const void *w,
                                       cudnnConvolutionDescriptor_t conv, cudnnConvolutionFwdAlgo_t algo,
                                       void *workspace, size_t workspace_bytes, const void *alpha2,
                                       cudnnTensorDescriptor_t z_desc, const void *z, cudnnTensorDescriptor_t bias_desc,
                                       const void *bias, cudnnActivationDescriptor_t activation,
                                       cudnnTensorDescriptor_t y_desc, void *y) {
    last_words = "bias and activation with a convolution";
    if (PRETEND.fused_says) return (cudnnStatus_t)PRETEND.fused_says;
    if (!offers((int)algo, FORWARD)) return unsupported("this algorithm");
    if (refuses((int)algo, FORWARD)) return bad("this algorithm, after all");
    if (activation->mode == CUDNN_ACTIVATION_IDENTITY && algo != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM)
        return unsupported("IDENTITY goes with IMPLICIT_PRECOMP_GEMM alone");
    if (activation->mode != CUDNN_ACTIVATION_IDENTITY && activation->mode != CUDNN_ACTIVATION_RELU)
        return unsupported("activations other than IDENTITY and RELU");
    if (*(const float *)alpha1 != 1) return unsupported("alpha (of this emulator)");
    if (z == NULL || memcmp(z_desc, y_desc, sizeof *z_desc) != 0) return bad("z has to be like y");
    if (bias_desc->n != 1 || bias_desc->c != y_desc->c || bias_desc->h != 1 || bias_desc->w != 1 ||
        bias_desc->type != y_desc->type)
        return bad("the bias has to be 1 x channels x 1 x 1 of y's type");
    if (!aligned(bias, 2)) return bad("no bias");
    struct convolution c = {.x = *x_desc, .y = *y_desc, .w = *w_desc, .conv = *conv};
    c.in = x, c.weight = w, c.bias = bias, c.addend = z, c.addend_factor = *(const float *)alpha2,
    c.relu = activation->mode == CUDNN_ACTIVATION_RELU, c.out = y;
    PRETEND.fused++;
    return start(handle, "cudnnConvolutionBiasActivationForward", run_forward, &c, conv, workspace, workspace_bytes,
                 (const void *const[]){x, w, y, z}, 4);
}

static cudnnStatus_t convolution_data(cudnnHandle_t handle, const void *alpha, cudnnFilterDescriptor_t w_desc,
                                      const void *w, cudnnTensorDescriptor_t dy_desc, const void *dy,
                                      cudnnConvolutionDescriptor_t conv, cudnnConvolutionBwdDataAlgo_t algo,
                                      void *workspace, size_t workspace_bytes, const void *beta,
                                      cudnnTensorDescriptor_t dx_desc, void *dx) {
    const cudnnStatus_t status = permitted((int)algo, DATA, alpha);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    struct convolution c = {.x = *dx_desc, .y = *dy_desc, .w = *w_desc, .conv = *conv};
    c.weight = w, c.dy = dy, c.out = dx, c.beta = *(const float *)beta;
    return start(handle, "cudnnConvolutionBackwardData", run_data, &c, conv, workspace, workspace_bytes,
                 (const void *const[]){w, dy, dx}, 3);
}

static cudnnStatus_t convolution_filter(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x_desc,
                                        const void *x, cudnnTensorDescriptor_t dy_desc, const void *dy,
                                        cudnnConvolutionDescriptor_t conv, cudnnConvolutionBwdFilterAlgo_t algo,
                                        void *workspace, size_t workspace_bytes, const void *beta,
                                        cudnnFilterDescriptor_t dw_desc, void *dw) {
    const cudnnStatus_t status = permitted((int)algo, FILTER, alpha);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    struct convolution c = {.x = *x_desc, .y = *dy_desc, .w = *dw_desc, .conv = *conv};
    c.in = x, c.dy = dy, c.out = dw, c.beta = *(const float *)beta;
    return start(handle, "cudnnConvolutionBackwardFilter", run_filter, &c, conv, workspace, workspace_bytes,
                 (const void *const[]){x, dy, dw}, 3);
}

// ---- cuBLASLt ----

struct cublasLtContext {
    void *memory; // of the device, which nobody uses
};
struct farm_cublaslt_matmul {
    int32_t transpose[2]; // a, b
    uint32_t epilogue;
    const void *bias;
};
struct farm_cublaslt_layout {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t leading;
};
struct farm_cublaslt_preference {
    size_t workspace_bytes;
};

static size_t cublaslt_version(void) {
    return 130100;
}
static const char *cublaslt_words(cublasStatus_t status) {
    return status == CUBLAS_STATUS_NOT_SUPPORTED  ? "CUBLAS_STATUS_NOT_SUPPORTED"
           : status == CUBLAS_STATUS_ALLOC_FAILED ? "CUBLAS_STATUS_ALLOC_FAILED"
                                                  : "CUBLAS_STATUS_INVALID_VALUE";
}
static cublasStatus_t cublaslt_create(cublasLtHandle_t *handle) {
    void *memory;
    if (!take_memory(&memory)) return CUBLAS_STATUS_ALLOC_FAILED;
    *handle = descriptor(sizeof **handle);
    (*handle)->memory = memory;
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t cublaslt_destroy(cublasLtHandle_t handle) {
    (void)cudaFree(handle->memory);
    give_back(handle);
    return CUBLAS_STATUS_SUCCESS;
}
DESTROY(cublasStatus_t, cublasLtMatmulDesc_t, matmul)
DESTROY(cublasStatus_t, cublasLtMatrixLayout_t, layout)
CREATE(cublasStatus_t, cublasLtMatmulPreference_t, preference)
DESTROY(cublasStatus_t, cublasLtMatmulPreference_t, preference)
static cublasStatus_t create_matmul(cublasLtMatmulDesc_t *matmul, cublasComputeType_t compute, cudaDataType_t scale) {
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
    *matmul = descriptor(sizeof **matmul);
    (*matmul)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t set_matmul(cublasLtMatmulDesc_t matmul, cublasLtMatmulDescAttributes_t attribute,
                                 const void *value, size_t bytes) {
    void *const fields[] = {&matmul->transpose[0], &matmul->transpose[1], &matmul->epilogue, &matmul->bias};
    static const cublasLtMatmulDescAttributes_t attributes[] = {
        CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB, CUBLASLT_MATMUL_DESC_EPILOGUE,
        CUBLASLT_MATMUL_DESC_BIAS_POINTER};
    static const size_t sizes[] = {4, 4, 4, 8};
    for (int i = 0; i < 4; i++)
        if (attribute == attributes[i] && bytes == sizes[i]) {
            memcpy(fields[i], value, bytes);
            return CUBLAS_STATUS_SUCCESS;
        }
    return CUBLAS_STATUS_INVALID_VALUE;
}
static cublasStatus_t create_layout(cublasLtMatrixLayout_t *layout, cudaDataType_t type, uint64_t rows,
                                    uint64_t columns, int64_t leading) {
    if (leading < (int64_t)rows) return CUBLAS_STATUS_INVALID_VALUE;
    *layout = descriptor(sizeof **layout);
    **layout = (struct farm_cublaslt_layout){type, rows, columns, leading};
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t set_preference(cublasLtMatmulPreference_t preference,
                                     cublasLtMatmulPreferenceAttributes_t attribute, const void *value, size_t bytes) {
    if (attribute != CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES || bytes != sizeof preference->workspace_bytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&preference->workspace_bytes, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

struct product {
    struct farm_cublaslt_matmul matmul;
    struct farm_cublaslt_layout a, b, d;
    uint64_t m, n, k;
    const void *left, *right;
    void *out;
    float beta;
    void *workspace;
    size_t workspace_bytes;
};

static cublasStatus_t check_product(struct product *p, const struct farm_cublaslt_layout *c) {
    const bool a_t = p->matmul.transpose[0] == CUBLAS_OP_T, b_t = p->matmul.transpose[1] == CUBLAS_OP_T;
    p->m = a_t ? p->a.columns : p->a.rows;
    p->k = a_t ? p->a.rows : p->a.columns;
    p->n = b_t ? p->b.rows : p->b.columns;
    if ((b_t ? p->b.columns : p->b.rows) != p->k || p->d.rows != p->m || p->d.columns != p->n ||
        memcmp(c, &p->d, sizeof *c) != 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (p->a.type != p->b.type || (p->d.type != p->a.type && p->d.type != CUDA_R_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (p->matmul.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
    // The bias has the result's type, which then has to be the operands'.
    if (PRETEND.no_epilogue || p->d.type != p->a.type) return CUBLAS_STATUS_NOT_SUPPORTED;
    const bool known_epilogue =
        p->matmul.epilogue == CUBLASLT_EPILOGUE_BIAS || p->matmul.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
    return known_epilogue && aligned(p->matmul.bias, 16) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

// An algorithm names what it was chosen for, so that another product cannot run it.
static cublasLtMatmulAlgo_t algorithm_of(const struct product *p) {
    return (cublasLtMatmulAlgo_t){{p->m, p->n, p->k, p->matmul.epilogue, (uint64_t)p->a.type, (uint64_t)p->d.type,
                                   (uint64_t)p->matmul.transpose[0], (uint64_t)p->matmul.transpose[1]}};
}

static cublasStatus_t heuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, cublasLtMatrixLayout_t a,
                                cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                cublasLtMatmulPreference_t preference, int requested,
                                cublasLtMatmulHeuristicResult_t *results, int *returned) {
    struct product p = {.matmul = *matmul, .a = *a, .b = *b, .d = *d};
    const cublasStatus_t status = check_product(&p, c);
    *returned = 0;
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (requested < 1 || PRETEND.workspace_bytes > preference->workspace_bytes) return CUBLAS_STATUS_NOT_SUPPORTED;
    *returned = 1;
    results[0] = (cublasLtMatmulHeuristicResult_t){.algo = algorithm_of(&p), .workspaceSize = PRETEND.workspace_bytes};
    return CUBLAS_STATUS_SUCCESS;
}

static void run_product(const void *arguments) {
    const struct product *p = arguments;
    const bool bf16 = p->a.type == CUDA_R_16BF, result_bf16 = p->d.type == CUDA_R_16BF;
    const bool a_t = p->matmul.transpose[0] == CUBLAS_OP_T, b_t = p->matmul.transpose[1] == CUBLAS_OP_T;
    const size_t a_ld = (size_t)p->a.leading, b_ld = (size_t)p->b.leading, d_ld = (size_t)p->d.leading;
    farm_emulator_need(p->left, a_ld * p->a.columns * size_of(bf16), false, "a product's left side");
    farm_emulator_need(p->right, b_ld * p->b.columns * size_of(bf16), false, "a product's right side");
    farm_emulator_need(p->out, d_ld * p->d.columns * size_of(result_bf16), true, "a product's result");
    const void *bias = p->matmul.epilogue == CUBLASLT_EPILOGUE_DEFAULT ? NULL : p->matmul.bias;
    if (bias) farm_emulator_need(bias, p->m * size_of(result_bf16), false, "a product's bias");
    scribble(p->workspace, p->workspace_bytes);
    float *left = numbers_of(p->left, bf16, a_ld * p->a.columns),
          *right = numbers_of(p->right, bf16, b_ld * p->b.columns);
    const size_t a_i = a_t ? a_ld : 1, a_k = a_t ? 1 : a_ld, b_j = b_t ? 1 : b_ld, b_k = b_t ? b_ld : 1;
    for (size_t j = 0; j < p->n; j++)
        for (size_t i = 0; i < p->m; i++) {
            double sum = 0;
            for (size_t k = 0; k < p->k; k++) sum += (double)(left[i * a_i + k * a_k] * right[j * b_j + k * b_k]);
            if (p->beta != 0) sum += (double)p->beta * get(p->out, result_bf16, j * d_ld + i);
            if (bias) sum += get(bias, result_bf16, i);
            if (p->matmul.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS && !(sum > 0)) sum = 0; // NaN too, as cuBLASLt does
            put(p->out, result_bf16, j * d_ld + i, sum);
        }
    free(left);
    free(right);
}

static cublasStatus_t matmul_run(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, const void *alpha, const void *a,
                                 cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                                 const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                                 cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    struct product p = {.matmul = *matmul,
                        .a = *a_layout,
                        .b = *b_layout,
                        .d = *d_layout,
                        .left = a,
                        .right = b,
                        .out = d,
                        .beta = *(const float *)beta,
                        .workspace = workspace,
                        .workspace_bytes = PRETEND.workspace_bytes};
    const cublasStatus_t status = check_product(&p, c_layout);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const cublasLtMatmulAlgo_t expected = algorithm_of(&p);
    // 256: what the preference's default says of the matrices' alignment.
    if (*(const float *)alpha != 1 || memcmp(algo, &expected, sizeof expected) != 0 || c != d || !aligned(a, 256) ||
        !aligned(b, 256) || !aligned(d, 256) || workspace_bytes < PRETEND.workspace_bytes || !aligned(workspace, 256))
        return CUBLAS_STATUS_INVALID_VALUE;
    return farm_emulator_launch(stream, "cublasLtMatmul", run_product, &p, sizeof p) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_NOT_INITIALIZED;
}

struct farm_cuda_vendor farm_emulator_libraries_table(void) {
    return (struct farm_cuda_vendor){
        .cudnn = {cudnn_version,       cudnn_words,       cudnn_last_words,   cudnn_create,       cudnn_destroy,
                  set_stream,          create_tensor,     set_tensor,         destroy_tensor,     create_filter,
                  set_filter,          destroy_filter,    create_convolution, set_convolution,    set_math,
                  destroy_convolution, create_activation, set_activation,     destroy_activation, forward_algorithms,
                  data_algorithms,     filter_algorithms, forward_workspace,  data_workspace,     filter_workspace,
                  convolution_forward, convolution_fused, convolution_data,   convolution_filter},
        .cublaslt = {cublaslt_version, cublaslt_words, cublaslt_create, cublaslt_destroy, create_matmul, destroy_matmul,
                     set_matmul, create_layout, destroy_layout, create_preference, destroy_preference, set_preference,
                     heuristic, matmul_run}};
}
