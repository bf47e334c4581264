// The emulator of cuDNN. See vendor_emulator.h.
#include <stdio.h>

#include "vendor_arrays.h"

struct farm_emulator_vendor farm_emulator_vendor;

struct cudnnContext {
    cudaStream_t stream;
    void *memory; // on the device, unused
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

static bool is_known_type(cudnnDataType_t type) {
    return type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_BFLOAT16;
}

// ---- handles and descriptors ----

static size_t cudnn_version(void) {
    return 91900;
}
static const char *cudnn_status_name(cudnnStatus_t status) {
    return status == CUDNN_STATUS_BAD_PARAM         ? "CUDNN_STATUS_BAD_PARAM"
           : status == CUDNN_STATUS_NOT_SUPPORTED   ? "CUDNN_STATUS_NOT_SUPPORTED"
           : status == CUDNN_STATUS_NOT_INITIALIZED ? "CUDNN_STATUS_NOT_INITIALIZED"
                                                    : "CUDNN_STATUS_EXECUTION_FAILED";
}
static _Thread_local const char *last_message = "";
static void cudnn_last_message(char *message, size_t size) {
    snprintf(message, size, "%s", last_message);
    last_message = "";
}
static cudnnStatus_t refuse_parameter(const char *why) {
    last_message = why;
    return CUDNN_STATUS_BAD_PARAM;
}
static cudnnStatus_t refuse_unsupported(const char *why) {
    last_message = why;
    return CUDNN_STATUS_NOT_SUPPORTED;
}

static cudnnStatus_t cudnn_create(cudnnHandle_t *handle) {
    void *memory;
    if (!allocate_handle(&memory)) return CUDNN_STATUS_NOT_INITIALIZED;
    *handle = make_descriptor(sizeof **handle);
    (*handle)->memory = memory;
    return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t cudnn_destroy(cudnnHandle_t handle) {
    (void)cudaFree(handle->memory);
    destroy_descriptor(handle);
    return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}
CREATE_AND_DESTROY(cudnnStatus_t, cudnnTensorDescriptor_t, tensor)
CREATE_AND_DESTROY(cudnnStatus_t, cudnnFilterDescriptor_t, filter)
CREATE_AND_DESTROY(cudnnStatus_t, cudnnConvolutionDescriptor_t, convolution)
CREATE_AND_DESTROY(cudnnStatus_t, cudnnActivationDescriptor_t, activation)
static cudnnStatus_t set_tensor(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format, cudnnDataType_t type, int n,
                                int c, int h, int w) {
    if (!is_known_type(type) || n < 1 || c < 1 || h < 1 || w < 1)
        return refuse_parameter("a tensor of size 0 or of an unknown type");
    *tensor = (struct cudnnTensorStruct){format, type, n, c, h, w};
    return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t set_filter(cudnnFilterDescriptor_t filter, cudnnDataType_t type, cudnnTensorFormat_t format, int k,
                                int c, int h, int w) {
    if (!is_known_type(type) || k < 1 || c < 1 || h < 1 || w < 1)
        return refuse_parameter("a filter of size 0 or of an unknown type");
    *filter = (struct cudnnFilterStruct){format, type, k, c, h, w};
    return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t set_convolution(cudnnConvolutionDescriptor_t convolution, int pad_h, int pad_w, int stride_h,
                                     int stride_w, int dilation_h, int dilation_w, cudnnConvolutionMode_t mode,
                                     cudnnDataType_t compute) {
    if (pad_h < 0 || pad_w < 0 || stride_h < 1 || stride_w < 1 || dilation_h != 1 || dilation_w != 1)
        return refuse_parameter("padding, stride or dilation");
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

// ---- checks, algorithms ----

enum { ALGO_OTHER = 0, ALGO_PRECOMPUTED = 1, ALGO_OF_BACKWARD = 1, ALGO_RANDOM = 0 };

static cudnnStatus_t check_shapes(cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                                  cudnnConvolutionDescriptor_t conv, cudnnTensorDescriptor_t y) {
    if (x->type != w->type || x->type != y->type) return refuse_unsupported("tensors of different types");
    if (x->format != CUDNN_TENSOR_NHWC || w->format != CUDNN_TENSOR_NHWC || y->format != CUDNN_TENSOR_NHWC)
        return refuse_unsupported("layouts other than NHWC (in this emulator)");
    if (conv->compute != CUDNN_DATA_FLOAT || conv->mode != CUDNN_CROSS_CORRELATION)
        return refuse_unsupported("compute type or mode");
    if (x->type == CUDNN_DATA_FLOAT && conv->math != CUDNN_FMA_MATH) return refuse_unsupported("f32 would become TF32");
    if (x->n != y->n || x->c != w->c || y->c != w->k) return refuse_parameter("rows or channels do not match");
    if (y->h != (x->h + 2 * conv->pad_h - w->h) / conv->stride_h + 1 ||
        y->w != (x->w + 2 * conv->pad_w - w->w) / conv->stride_w + 1)
        return refuse_parameter("the output's size does not follow from the convolution");
    return CUDNN_STATUS_SUCCESS;
}

enum direction { FORWARD, DATA, FILTER };

static bool has_algorithm(int algo, enum direction direction) {
    if (farm_emulator_vendor.no_algorithm) return false;
    if (farm_emulator_vendor.only_random) return algo == ALGO_RANDOM;
    if (direction == FORWARD && farm_emulator_vendor.no_precomputed_gemm) return algo == ALGO_OTHER;
    return algo == ALGO_PRECOMPUTED ||
           ((direction == FORWARD || farm_emulator_vendor.refused[direction]) && algo == ALGO_OTHER);
}

// Three algorithms, unless the check failed. The last one never works.
static cudnnStatus_t list_algorithms(cudnnStatus_t checked, enum direction direction, cudnnConvolutionDescriptor_t conv,
                                     int requested, int *returned, cudnnConvolutionFwdAlgoPerf_t *results) {
    if (checked != CUDNN_STATUS_SUCCESS) return checked;
    *returned = requested < 3 ? requested : 3;
    for (int i = 0; i < *returned; i++) {
        results[i].algo = i == 2 ? 5 : i;
        results[i].status = has_algorithm(i, direction) && i < 2 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
        results[i].determinism =
            i == ALGO_RANDOM && direction != FORWARD ? CUDNN_NON_DETERMINISTIC : CUDNN_DETERMINISTIC;
        results[i].mathType = conv->math;
        results[i].memory = farm_emulator_vendor.workspace_bytes;
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t get_workspace(cudnnStatus_t checked, enum direction direction, int algo, size_t *bytes) {
    *bytes = farm_emulator_vendor.workspace_bytes;
    return has_algorithm(algo, direction) ? checked : refuse_unsupported("this algorithm");
}

// ---- convolutions ----

struct convolution {
    enum direction direction;
    struct cudnnTensorStruct x, y;
    struct cudnnFilterStruct w;
    struct cudnnConvolutionStruct conv;
    void *arrays[3]; // x, w, y
    const void *bias, *addend;
    float beta, addend_factor;
    bool relu;
    void *workspace;
    size_t workspace_bytes;
};

static struct convolution describe_convolution(cudnnTensorDescriptor_t x_desc, cudnnFilterDescriptor_t w_desc,
                                               cudnnTensorDescriptor_t y_desc, cudnnConvolutionDescriptor_t conv,
                                               const void *x, const void *w, const void *y, void *workspace,
                                               size_t workspace_bytes) {
    return (struct convolution){.x = *x_desc,
                                .y = *y_desc,
                                .w = *w_desc,
                                .conv = *conv,
                                .arrays = {(void *)x, (void *)w, (void *)y},
                                .workspace = workspace,
                                .workspace_bytes = workspace_bytes};
}

// The input of a kernel's (i, j) for output (y, x): its first channel's index; -1 in the padding.
static long input_at(const struct convolution *c, int n, int y, int x, int i, int j) {
    const int row = y * c->conv.stride_h - c->conv.pad_h + i, column = x * c->conv.stride_w - c->conv.pad_w + j;
    if (row < 0 || row >= c->x.h || column < 0 || column >= c->x.w) return -1;
    return (((long)n * c->x.h + row) * c->x.w + column) * c->x.c;
}

// The loop over all products: forward adds x * w into y, data adds dy * w into x, filter adds x * dy into w.
static void add_products(const struct convolution *c, enum direction direction, float *x, float *w, float *y) {
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

static void run_convolution(const void *arguments) {
    const struct convolution *c = arguments;
    const enum direction direction = c->direction;
    const bool bf16 = c->x.type == CUDNN_DATA_BFLOAT16;
    const size_t each = size_of(bf16), counts[3] = {(size_t)c->x.n * (size_t)c->x.h * (size_t)c->x.w * (size_t)c->x.c,
                                                    (size_t)c->w.k * (size_t)c->w.h * (size_t)c->w.w * (size_t)c->w.c,
                                                    (size_t)c->y.n * (size_t)c->y.h * (size_t)c->y.w * (size_t)c->y.c};
    const int result = direction == FORWARD ? 2 : direction == DATA ? 0 : 1;
    void *const out = c->arrays[result];
    float *numbers[3];
    for (int a = 0; a < 3; a++) {
        farm_emulator_need(c->arrays[a], counts[a] * each, a == result,
                           a == result ? "a convolution's result" : "a convolution's operand");
        numbers[a] = a == result ? calloc(counts[a], sizeof(float)) : numbers_of(c->arrays[a], bf16, counts[a]);
    }
    if (c->bias) farm_emulator_need(c->bias, (size_t)c->y.c * each, false, "a convolution's bias");
    overwrite_workspace(c->workspace, c->workspace_bytes);
    add_products(c, direction, numbers[0], numbers[1], numbers[2]);
    for (size_t i = 0; i < counts[result]; i++) {
        double sum = (double)numbers[result][i];
        if (c->beta != 0) sum += (double)c->beta * read_number(out, bf16, i);
        if (c->addend) sum += (double)c->addend_factor * read_number(c->addend, bf16, i); // times 0 too: NaN stays NaN
        if (c->bias) sum += read_number(c->bias, bf16, i % (size_t)c->y.c);
        write_number(out, bf16, i, c->relu && sum < 0 ? 0 : sum);
    }
    for (int a = 0; a < 3; a++) free(numbers[a]);
}
// Checks the algorithm, alpha and the arrays, and enqueues the convolution.
static cudnnStatus_t enqueue_convolution(cudnnHandle_t handle, enum direction direction, const char *name, int algo,
                                         const void *alpha, struct convolution *c) {
    const size_t workspace_bytes = farm_emulator_vendor.workspace_bytes;
    if (!has_algorithm(algo, direction)) return refuse_unsupported("this algorithm");
    if (farm_emulator_vendor.refused[direction] == 1 + algo) return refuse_parameter("this algorithm, when it runs");
    if (*(const float *)alpha != 1) return refuse_unsupported("alpha (in this emulator)");
    const cudnnStatus_t status = check_shapes(&c->x, &c->w, &c->conv, &c->y);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    for (int i = 0; i < 3; i++)
        if (!is_aligned(c->arrays[i], 16)) return refuse_parameter("a pointer is NULL or no multiple of 16");
    if (c->addend && !is_aligned(c->addend, 16)) return refuse_parameter("z is no multiple of 16");
    if (c->workspace_bytes < workspace_bytes || (workspace_bytes > 0 && !is_aligned(c->workspace, 16)))
        return refuse_parameter("the workspace is too small or missing");
    c->direction = direction;
    c->workspace_bytes = workspace_bytes;
    if (direction == FORWARD) ++*(c->bias ? &farm_emulator_vendor.fused : &farm_emulator_vendor.plain);
    return farm_emulator_launch(handle->stream, name, run_convolution, c, sizeof *c) == cudaSuccess
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_EXECUTION_FAILED;
}

static cudnnStatus_t convolution_fused(cudnnHandle_t handle, const void *alpha1, cudnnTensorDescriptor_t x_desc,
                                       const void *x, cudnnFilterDescriptor_t w_desc, const void *w,
                                       cudnnConvolutionDescriptor_t conv, cudnnConvolutionFwdAlgo_t algo,
                                       void *workspace, size_t workspace_bytes, const void *alpha2,
                                       cudnnTensorDescriptor_t z_desc, const void *z, cudnnTensorDescriptor_t bias_desc,
                                       const void *bias, cudnnActivationDescriptor_t activation,
                                       cudnnTensorDescriptor_t y_desc, void *y) {
    last_message = "bias and activation with a convolution";
    if (farm_emulator_vendor.fused_status) return (cudnnStatus_t)farm_emulator_vendor.fused_status;
    if (activation->mode == CUDNN_ACTIVATION_IDENTITY && algo != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM)
        return refuse_unsupported("IDENTITY requires IMPLICIT_PRECOMP_GEMM");
    if (activation->mode != CUDNN_ACTIVATION_IDENTITY && activation->mode != CUDNN_ACTIVATION_RELU)
        return refuse_unsupported("activations other than IDENTITY and RELU");
    if (z == NULL || memcmp(z_desc, y_desc, sizeof *z_desc) != 0) return refuse_parameter("z must be like y");
    if (bias_desc->n != 1 || bias_desc->c != y_desc->c || bias_desc->h != 1 || bias_desc->w != 1 ||
        bias_desc->type != y_desc->type)
        return refuse_parameter("the bias must be 1 x channels x 1 x 1 of y's type");
    if (!is_aligned(bias, 2)) return refuse_parameter("no bias");
    struct convolution c = describe_convolution(x_desc, w_desc, y_desc, conv, x, w, y, workspace, workspace_bytes);
    c.bias = bias;
    c.addend = z;
    c.addend_factor = *(const float *)alpha2;
    c.relu = activation->mode == CUDNN_ACTIVATION_RELU;
    return enqueue_convolution(handle, FORWARD, "cudnnConvolutionBiasActivationForward", (int)algo, alpha1, &c);
}

// The functions of a direction, which take operands a and b and a result r in cuDNN's order; x, w, y: which of them is
// the input, the filter, the output.
#define DIRECTION(name, WAY, kind, a_type, b_type, r_type, x, w, y)                                                    \
    static cudnnStatus_t name##_algorithms(cudnnHandle_t handle, a_type a_desc, b_type b_desc,                         \
                                           cudnnConvolutionDescriptor_t conv, r_type r_desc, int requested,            \
                                           int *returned, cudnnConvolution##kind##AlgoPerf_t *results) {               \
        return list_algorithms(check_shapes(x##_desc, w##_desc, conv, y##_desc), WAY, conv, requested, returned,       \
                               results);                                                                               \
    }                                                                                                                  \
    static cudnnStatus_t name##_workspace(cudnnHandle_t handle, a_type a_desc, b_type b_desc,                          \
                                          cudnnConvolutionDescriptor_t conv, r_type r_desc,                            \
                                          cudnnConvolution##kind##Algo_t algo, size_t *bytes) {                        \
        return get_workspace(check_shapes(x##_desc, w##_desc, conv, y##_desc), WAY, (int)algo, bytes);                 \
    }                                                                                                                  \
    static cudnnStatus_t convolution_##name(cudnnHandle_t handle, const void *alpha, a_type a_desc, const void *a,     \
                                            b_type b_desc, const void *b, cudnnConvolutionDescriptor_t conv,           \
                                            cudnnConvolution##kind##Algo_t algo, void *workspace,                      \
                                            size_t workspace_bytes, const void *beta, r_type r_desc, void *r) {        \
        struct convolution c =                                                                                         \
            describe_convolution(x##_desc, w##_desc, y##_desc, conv, x, w, y, workspace, workspace_bytes);             \
        c.beta = *(const float *)beta;                                                                                 \
        return enqueue_convolution(handle, WAY, "cudnnConvolution, " #name, (int)algo, alpha, &c);                     \
    }
DIRECTION(forward, FORWARD, Fwd, cudnnTensorDescriptor_t, cudnnFilterDescriptor_t, cudnnTensorDescriptor_t, a, b, r)
DIRECTION(data, DATA, BwdData, cudnnFilterDescriptor_t, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t, r, a, b)
DIRECTION(filter, FILTER, BwdFilter, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t, cudnnFilterDescriptor_t, a, r, b)

struct farm_cuda_vendor farm_emulator_vendor_table(void) {
    return (struct farm_cuda_vendor){
        .cudnn = {cudnn_version,       cudnn_status_name, cudnn_last_message, cudnn_create,       cudnn_destroy,
                  set_stream,          create_tensor,     set_tensor,         destroy_tensor,     create_filter,
                  set_filter,          destroy_filter,    create_convolution, set_convolution,    set_math,
                  destroy_convolution, create_activation, set_activation,     destroy_activation, forward_algorithms,
                  data_algorithms,     filter_algorithms, forward_workspace,  data_workspace,     filter_workspace,
                  convolution_forward, convolution_fused, convolution_data,   convolution_filter},
        .cublaslt = farm_emulator_cublaslt_table()};
}
