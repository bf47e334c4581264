// See executor.h. One allocation holds everything; `plan` lays it out from the config alone, so that its size is known
// without a device. What depends on the number of rows (descriptors, algorithms) is made on the first call with that
// number and kept.
#include "nn/cuda/executor.h"

#include <assert.h>
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/check.h"
#include "kernels/cuda/kernels.h"
#include "nn/cuda/convolution.h"
#include "nn/cuda/parameter_layout.h"
#include "nn/cuda/product.h"

enum {
    OPS_MAX = FARM_NET_OPS_MAX,
    ALIGNMENT = 256,
    INFERENCE_WORKSPACE = 32 << 20, // the least: what cuBLASLt needs on Hopper
    TRAINING_WORKSPACE = 256 << 20, // the least
    CHANNELS_PADDED = 8,            // engines that compute in blocks pad to a multiple of this
    HEADS_PLACE = 3,                // in inference, of the heads' f32 output: cuDNN reads what the other outputs hold
    GATES_PLACE = 4,                // the same for an LSTM's sums
};

// A piece of the allocation, for batch_max rows; row_bytes 0: none.
struct piece {
    size_t row_bytes, offset;
};

struct plan {
    struct farm_cuda_parameter_layout layout;
    struct farm_net_places places;
    struct piece input;
    struct piece outs[OPS_MAX], diffs[OPS_MAX];   // by place
    struct piece maxima[OPS_MAX];                 // by op: pools in training
    struct piece before[OPS_MAX], cells[OPS_MAX]; // by op: h before each step of an LSTM; f32 c before and after each
    struct piece back[2];                         // LSTMs in training, f32: gradients by h, by c before a step
    size_t dweight, scratch, workspace;           // offsets
    size_t workspace_bytes, bytes;
};

// What one op needs for one number of rows.
struct step {
    struct farm_cuda_convolution convolution;
    struct farm_cuda_product forward, data, weight;
    bool fused; // dense: cuBLASLt adds the bias and does the ReLU
};

struct rung {
    int rows, columns; // columns: of a network with a state
    struct step steps[OPS_MAX];
};

struct farm_cuda_executor {
    struct farm_net net;
    struct farm_cuda_executor_config config;
    bool bf16;
    struct plan plan;
    char *memory;
    cudnnHandle_t cudnn;
    cublasLtHandle_t cublaslt;
    int rung_count;
    struct rung *rungs[FARM_CUDA_EXECUTOR_ROWS_MAX];
    const float *flat;          // the last forward's
    const struct rung *forward; // the last forward's
};

// ---- the plan ----

static size_t size_of(bool bf16) {
    return bf16 ? sizeof(uint16_t) : sizeof(float);
}

// Rows of channels in a batch of `rows`: pixels are rows.
static size_t pixels_of(struct farm_shape shape, size_t rows) {
    return rows * farm_shape_count(shape) / (size_t)shape.channels;
}

// Whether op i computes what its input adds to the sums of an LSTM: without bias, in f32.
static bool is_gates(const struct farm_net *net, int i) {
    return i + 1 < net->op_count && net->ops[i + 1].kind == FARM_NET_OP_LSTM;
}

static void raise_to(size_t *bytes, size_t wanted) {
    if (wanted > *bytes) *bytes = wanted;
}

// Appends `bytes` to the allocation; returns their offset.
static size_t append_bytes(struct plan *plan, size_t bytes) {
    const size_t offset = plan->bytes;
    plan->bytes += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return offset;
}

static void append_pieces(struct plan *plan, struct piece *pieces, int count, size_t rows) {
    for (int i = 0; i < count; i++)
        if (pieces[i].row_bytes > 0) pieces[i].offset = append_bytes(plan, rows * pieces[i].row_bytes);
}

// The picture as an engine lays it out.
static size_t padded_bytes(struct farm_shape shape, size_t each) {
    const size_t channels = ((size_t)shape.channels + CHANNELS_PADDED - 1) / CHANNELS_PADDED * CHANNELS_PADDED;
    return (size_t)shape.height * (size_t)shape.width * channels * each;
}

// An algorithm may copy what a convolution reads and writes.
static size_t workspace_bytes(const struct farm_net *net, bool training, size_t rows, size_t each) {
    size_t bytes = training ? TRAINING_WORKSPACE : INFERENCE_WORKSPACE;
    for (int i = 0; i < net->op_count; i++) {
        const struct farm_net_op *op = &net->ops[i];
        if (op->kind == FARM_NET_OP_CONV)
            raise_to(&bytes, INFERENCE_WORKSPACE + rows * (padded_bytes(op->in, each) + padded_bytes(op->out, each)));
    }
    return bytes;
}

static struct plan plan_of(const struct farm_cuda_executor_config *config) {
    const struct farm_net *net = config->net;
    const size_t rows = (size_t)config->batch_max, each = size_of(config->precision != FARM_PRECISION_F32);
    const int last = net->op_count - 1;
    struct plan plan = {.layout = farm_cuda_parameter_layout_of(net)};
    size_t dweight = 0, scratch = 0;
    farm_net_plan_places(net, config->training, &plan.places);
    if (!config->training) plan.places.out[last] = HEADS_PLACE;
    plan.input.row_bytes = farm_shape_count(net->ops[0].in) * each;
    for (int i = 0; i <= last; i++) {
        const struct farm_net_op *op = &net->ops[i];
        const size_t out = farm_shape_count(op->out);
        const bool lstm = op->kind == FARM_NET_OP_LSTM, gates = is_gates(net, i);
        if (gates && !config->training) plan.places.out[i] = GATES_PLACE;
        plan.before[i].row_bytes = lstm ? out * each : 0;
        plan.cells[i].row_bytes = lstm ? 2 * out * sizeof(float) : 0;
        for (int k = 0; k < 2 && lstm && config->training; k++) raise_to(&plan.back[k].row_bytes, out * sizeof(float));
        const size_t heads = (size_t)plan.layout.rows[last]; // padded; their product is f32
        raise_to(&plan.outs[plan.places.out[i]].row_bytes, i == last ? heads * sizeof(float)
                                                           : gates   ? out * sizeof(float)
                                                                     : out * each);
        if (!config->training) continue;
        raise_to(&plan.diffs[plan.places.diff[i]].row_bytes, (i == last ? heads : out) * each);
        if (op->kind == FARM_NET_OP_POOL) plan.maxima[i].row_bytes = out;
        if (op->kind == FARM_NET_OP_CONV && each < sizeof(float)) // rounded gradients, before they are added
            raise_to(&dweight, (size_t)net->tensors[op->weight].count * each);
        if (op->weight >= 0 && op->kind != FARM_NET_OP_JOIN)
            raise_to(&scratch, farm_cuda_slope_gradient_scratch_bytes(pixels_of(op->out, rows),
                                                                      i == last ? (int)heads : op->out.channels));
    }
    append_pieces(&plan, &plan.input, 1, rows);
    append_pieces(&plan, plan.outs, OPS_MAX, rows);
    append_pieces(&plan, plan.diffs, OPS_MAX, rows);
    append_pieces(&plan, plan.maxima, OPS_MAX, rows);
    append_pieces(&plan, plan.before, OPS_MAX, rows);
    append_pieces(&plan, plan.cells, OPS_MAX, rows);
    append_pieces(&plan, plan.back, 2, rows);
    plan.dweight = append_bytes(&plan, dweight);
    plan.scratch = append_bytes(&plan, scratch);
    plan.workspace_bytes = workspace_bytes(net, config->training, rows, each);
    plan.workspace = append_bytes(&plan, plan.workspace_bytes);
    return plan;
}

size_t farm_cuda_executor_bytes(const struct farm_cuda_executor_config *config) {
    return plan_of(config).bytes;
}

static void *memory_at(const struct farm_cuda_executor *ex, size_t offset) {
    return ex->memory + offset;
}
static void *out_of(const struct farm_cuda_executor *ex, int op) {
    return op < 0 ? memory_at(ex, ex->plan.input.offset) : memory_at(ex, ex->plan.outs[ex->plan.places.out[op]].offset);
}
static void *diff_of(const struct farm_cuda_executor *ex, int op) {
    return memory_at(ex, ex->plan.diffs[ex->plan.places.diff[op]].offset);
}
static void *workspace_of(const struct farm_cuda_executor *ex) {
    return memory_at(ex, ex->plan.workspace);
}
static uint8_t *maxima_of(const struct farm_cuda_executor *ex, int op) {
    return ex->plan.maxima[op].row_bytes > 0 ? memory_at(ex, ex->plan.maxima[op].offset) : NULL;
}
static enum farm_cuda_type type_of(const struct farm_cuda_executor *ex) {
    return ex->bf16 ? FARM_CUDA_BF16 : FARM_CUDA_F32;
}

// ---- creation ----

static enum farm_status check_net(const struct farm_net *net, struct farm_error *err) {
    for (int i = 0; i < net->op_count; i++) {
        const struct farm_net_op *op = &net->ops[i];
        const bool even = op->pad_before[0] == op->pad_after[0] && op->pad_before[1] == op->pad_after[1];
        if (op->kind == FARM_NET_OP_CONV && !even)
            return farm_fail(
                err, FARM_E_UNSUPPORTED,
                "network %s: op %d is a convolution of %dx%d by %d at stride %d, padded on one side alone, "
                "which cuDNN lacks; use another network or --device cpu",
                net->spec.text, i, op->in.height, op->in.width, op->kernel, op->stride);
        if (op->kind == FARM_NET_OP_POOL && op->kernel > FARM_POOL_KERNEL_MAX)
            return farm_fail(err, FARM_E_UNSUPPORTED, "network %s: op %d is a pool of %d; at most %d is supported",
                             net->spec.text, i, op->kernel, FARM_POOL_KERNEL_MAX);
    }
    return FARM_OK;
}

static enum farm_status open_device(struct farm_cuda_executor *ex, struct farm_error *err) {
    const struct farm_cuda_vendor *vendor = ex->config.vendor;
    const cudaError_t code = cudaMalloc((void **)&ex->memory, ex->plan.bytes);
    if (code == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); // no later call reports it
        return farm_fail(err, FARM_E_LIMIT,
                         "network %s with %d rows%s needs %zu MB of free device memory; use smaller batches or "
                         "--device cpu",
                         ex->net.spec.text, ex->config.batch_max, ex->config.training ? " in training" : "",
                         (ex->plan.bytes >> 20) + 1);
    }
    if (code != cudaSuccess) return farm_cuda_fail(err, code, "cudaMalloc", __FILE__, __LINE__);
    FARM_CUDA_TRY(cudaMemsetAsync(ex->memory, 0, ex->plan.workspace, NULL)); // all but the workspace, which is last
    FARM_CUDA_TRY(cudaStreamSynchronize(NULL));
    const cudnnStatus_t cudnn = vendor->cudnn.Create(&ex->cudnn);
    if (cudnn != CUDNN_STATUS_SUCCESS) return farm_cudnn_fail(&vendor->cudnn, err, cudnn, "Create");
    const cublasStatus_t cublaslt = vendor->cublaslt.Create(&ex->cublaslt);
    if (cublaslt != CUBLAS_STATUS_SUCCESS)
        return farm_fail(err, cublaslt == CUBLAS_STATUS_ALLOC_FAILED ? FARM_E_LIMIT : FARM_E_IO,
                         "cublasLtCreate: %s (%d)", vendor->cublaslt.GetStatusString(cublaslt), (int)cublaslt);
    return FARM_OK;
}

enum farm_status farm_cuda_executor_create(const struct farm_cuda_executor_config *config,
                                           struct farm_cuda_executor **out, struct farm_error *err) {
    *out = NULL;
    if (config->batch_max < 1 || config->batch_max > 1 << 20)
        return farm_fail(err, FARM_E_INVALID, "batches have 1 to %d rows, not %d", 1 << 20, config->batch_max);
    enum farm_status status = check_net(config->net, err);
    if (status != FARM_OK) return status;
    struct farm_cuda_executor *ex = calloc(1, sizeof *ex);
    if (ex == NULL) return farm_fail(err, FARM_E_LIMIT, "no memory for an executor");
    ex->net = *config->net;
    ex->config = *config;
    ex->config.net = &ex->net;
    ex->bf16 = config->precision != FARM_PRECISION_F32;
    ex->plan = plan_of(config);
    status = open_device(ex, err);
    if (status == FARM_OK)
        *out = ex;
    else
        farm_cuda_executor_destroy(ex);
    return status;
}

static void drop_rung(struct rung *rung) {
    for (int i = 0; i < OPS_MAX; i++) {
        farm_cuda_convolution_drop(&rung->steps[i].convolution);
        farm_cuda_product_drop(&rung->steps[i].forward);
        farm_cuda_product_drop(&rung->steps[i].data);
        farm_cuda_product_drop(&rung->steps[i].weight);
    }
    free(rung);
}

void farm_cuda_executor_destroy(struct farm_cuda_executor *ex) {
    if (ex == NULL) return;
    for (int r = 0; r < ex->rung_count; r++) drop_rung(ex->rungs[r]);
    if (ex->cudnn != NULL) ex->config.vendor->cudnn.Destroy(ex->cudnn);
    if (ex->cublaslt != NULL) ex->config.vendor->cublaslt.Destroy(ex->cublaslt);
    if (ex->memory != NULL) cudaFree(ex->memory);
    free(ex);
}

enum farm_precision farm_cuda_executor_precision(const struct farm_cuda_executor *ex) {
    return ex->bf16 ? FARM_PRECISION_BF16 : FARM_PRECISION_F32;
}

// ---- one number of rows ----

static enum farm_status make_convolution(struct farm_cuda_executor *ex, int i, int rows, struct step *step,
                                         struct farm_error *err) {
    const struct farm_cuda_convolution_config config = {
        .cudnn = &ex->config.vendor->cudnn,
        .handle = ex->cudnn,
        .op = ex->net.ops[i],
        .rows = rows,
        .bf16 = ex->bf16,
        .training = ex->config.training,
        .data_gradient = i > 0,
        .workspace_bytes = ex->plan.workspace_bytes,
    };
    return farm_cuda_convolution_make(&config, &step->convolution, err);
}

// Whether the forward product's result is f32, and other kernels add its bias.
static bool gives_f32(const struct farm_cuda_executor *ex, int i) {
    return i == ex->net.op_count - 1 || is_gates(&ex->net, i);
}

// What cuBLASLt adds to a forward product. The heads' bias is added when they are split, an LSTM's with the gates; tanh
// is applied with the bias by a kernel.
static cublasLtEpilogue_t epilogue_of(const struct farm_cuda_executor *ex, int i) {
    const enum farm_activation activation = ex->net.ops[i].activation;
    if (gives_f32(ex, i) || activation == FARM_ACTIVATION_TANH) return CUBLASLT_EPILOGUE_DEFAULT;
    return activation == FARM_ACTIVATION_RELU ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
}

static enum farm_status make_dense(struct farm_cuda_executor *ex, int i, int rows, struct step *step,
                                   struct farm_error *err) {
    const struct farm_net_op *op = &ex->net.ops[i];
    struct farm_cuda_product_config config = {
        .cublaslt = &ex->config.vendor->cublaslt,
        .handle = ex->cublaslt,
        .rows = rows,
        .in = (int)farm_shape_count(op->in),
        .out = ex->plan.layout.rows[i],
        .bf16 = ex->bf16,
        .result_f32 = gives_f32(ex, i),
        .epilogue = epilogue_of(ex, i),
        .workspace_bytes = ex->plan.workspace_bytes,
    };
    step->fused = config.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
    if (step->fused) config.bias = ex->memory; // aligned like the real ones, never read
    enum farm_status status = farm_cuda_product_make(&config, &step->forward, err);
    config.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    config.bias = NULL;
    if (status == FARM_E_UNSUPPORTED && step->fused) {
        farm_cuda_product_drop(&step->forward);
        step->fused = false;
        status = farm_cuda_product_make(&config, &step->forward, err);
    }
    config.result_f32 = false;
    config.kind = FARM_CUDA_PRODUCT_WEIGHT;
    if (status == FARM_OK && ex->config.training) status = farm_cuda_product_make(&config, &step->weight, err);
    config.kind = FARM_CUDA_PRODUCT_DATA;
    if (status == FARM_OK && ex->config.training && i > 0) status = farm_cuda_product_make(&config, &step->data, err);
    return status;
}

// The largest power of two, up to cuBLASLt's default of 256, that divides bytes.
static uint32_t alignment_of(size_t bytes) {
    return (uint32_t)((bytes | ALIGNMENT) & -(bytes | ALIGNMENT));
}

// Recurrent products are of one step's columns, whose rows begin anywhere; weight's gradient is of all rows.
static enum farm_status make_lstm(struct farm_cuda_executor *ex, int i, const struct rung *rung, struct step *step,
                                  struct farm_error *err) {
    const struct farm_net_op *op = &ex->net.ops[i];
    struct farm_cuda_product_config config = {
        .cublaslt = &ex->config.vendor->cublaslt,
        .handle = ex->cublaslt,
        .rows = rung->columns,
        .in = op->out.channels,
        .out = op->in.channels,
        .bf16 = ex->bf16,
        .result_f32 = true,
        .alignment = alignment_of((size_t)rung->columns * farm_shape_count(op->out) * size_of(ex->bf16)),
        .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
        .workspace_bytes = ex->plan.workspace_bytes,
    };
    enum farm_status status = farm_cuda_product_make(&config, &step->forward, err);
    config.kind = FARM_CUDA_PRODUCT_DATA;
    if (status == FARM_OK && ex->config.training) status = farm_cuda_product_make(&config, &step->data, err);
    config.kind = FARM_CUDA_PRODUCT_WEIGHT;
    config.rows = rung->rows;
    config.alignment = 0;
    if (status == FARM_OK && ex->config.training) status = farm_cuda_product_make(&config, &step->weight, err);
    return status;
}

static enum farm_status make_rung(struct farm_cuda_executor *ex, int rows, int columns, struct rung **out,
                                  struct farm_error *err) {
    if (ex->rung_count == FARM_CUDA_EXECUTOR_ROWS_MAX) { // the oldest gives way; graphs do not need it any more
        drop_rung(ex->rungs[0]);
        memmove(ex->rungs, ex->rungs + 1, (size_t)--ex->rung_count * sizeof *ex->rungs);
    }
    struct rung *rung = calloc(1, sizeof *rung);
    if (rung == NULL) return farm_fail(err, FARM_E_LIMIT, "no memory for an executor");
    rung->rows = rows;
    rung->columns = columns;
    enum farm_status status = FARM_OK;
    for (int i = 0; i < ex->net.op_count && status == FARM_OK; i++) {
        if (ex->net.ops[i].kind == FARM_NET_OP_CONV) status = make_convolution(ex, i, rows, &rung->steps[i], err);
        if (ex->net.ops[i].kind == FARM_NET_OP_DENSE) status = make_dense(ex, i, rows, &rung->steps[i], err);
        if (ex->net.ops[i].kind == FARM_NET_OP_LSTM) status = make_lstm(ex, i, rung, &rung->steps[i], err);
    }
    if (status == FARM_OK)
        ex->rungs[ex->rung_count++] = *out = rung;
    else
        drop_rung(rung);
    return status;
}

static enum farm_status rung_for(struct farm_cuda_executor *ex, struct farm_sequence sequence, struct rung **out,
                                 struct farm_error *err) {
    const int rows = sequence.steps * sequence.columns, columns = ex->net.state > 0 ? sequence.columns : 0;
    assert(rows >= 1 && rows <= ex->config.batch_max);
    for (int r = 0; r < ex->rung_count; r++)
        if (ex->rungs[r]->rows == rows && ex->rungs[r]->columns == columns) {
            *out = ex->rungs[r];
            return FARM_OK;
        }
    return make_rung(ex, rows, columns, out, err);
}

static enum farm_status use_stream(struct farm_cuda_executor *ex, cudaStream_t stream, struct farm_error *err) {
    const struct farm_cudnn *cudnn = &ex->config.vendor->cudnn;
    const cudnnStatus_t status = cudnn->SetStream(ex->cudnn, stream);
    return status == CUDNN_STATUS_SUCCESS ? FARM_OK : farm_cudnn_fail(cudnn, err, status, "SetStream");
}

// The arguments of one call.
struct call {
    struct farm_cuda_executor *ex;
    cudaStream_t stream;
    struct farm_sequence sequence;
    struct rung *rung;
    const char *params;
    float *gradients; // backward
};

static const void *param(const struct call *call, size_t offset) {
    return call->params + offset * size_of(call->ex->bf16);
}
static size_t rows_of(const struct call *call) {
    return (size_t)call->rung->rows;
}

// ---- forward ----

static enum farm_status copy_input(const struct call *call, const struct farm_cuda_input *input,
                                   struct farm_error *err) {
    struct farm_cuda_executor *ex = call->ex;
    const struct farm_net_io *io = &ex->net.io;
    const size_t count = rows_of(call) * (size_t)io->flat;
    assert((input->flat != NULL) == (io->flat > 0) && (input->frames != NULL) == (io->frame_channels > 0));
    assert((input->scale != NULL) == io->normalise_frames);
    ex->flat = input->flat;
    if (io->frame_channels > 0) {
        const struct farm_cuda_stack stack = {
            .frames = input->frames,
            .rows = (uint32_t)call->rung->rows,
            .stack = (uint32_t)(io->images * io->stack),
            .channels = (uint32_t)io->frame_channels,
            .height = (uint32_t)io->height,
            .width = (uint32_t)io->width,
            .interleaved = io->interleaved,
            .type = type_of(ex),
            .scale = input->scale,
            .images = (uint32_t)io->images,
            .out = out_of(ex, -1),
        };
        return farm_cuda_stack(call->stream, &stack, err);
    }
    if (ex->bf16) return farm_cuda_round(call->stream, input->flat, out_of(ex, -1), count, err);
    FARM_CUDA_TRY(
        cudaMemcpyAsync(out_of(ex, -1), input->flat, count * sizeof(float), cudaMemcpyDeviceToDevice, call->stream));
    return FARM_OK;
}

static struct farm_cuda_join join_of(const struct call *call, int i) {
    const struct farm_cuda_executor *ex = call->ex;
    return (struct farm_cuda_join){
        .type = type_of(ex),
        .rows = (uint32_t)call->rung->rows,
        .features = (int)farm_shape_count(ex->net.ops[i].in),
        .units = FARM_NET_JOIN_UNITS,
        .flat = ex->net.io.flat,
        .numbers = ex->flat,
    };
}

// Forward, or, with gradients, backward.
static enum farm_status run_norm(const struct call *call, int i, void *dy, void *dx, struct farm_error *err) {
    const struct farm_cuda_executor *ex = call->ex;
    const struct farm_net_op *op = &ex->net.ops[i];
    const void *x = out_of(ex, i - 1), *weight = param(call, ex->plan.layout.weight[i]);
    const void *bias = param(call, ex->plan.layout.bias[i]);
    const size_t rows = pixels_of(op->out, rows_of(call));
    const struct farm_cuda_norm norm = {op->activation, type_of(ex), rows, op->out.channels, x, weight, bias,
                                        out_of(ex, i),  dy,          dx};
    return farm_cuda_norm(call->stream, &norm, err);
}

static enum farm_status dense_forward(const struct call *call, int i, struct farm_error *err) {
    struct farm_cuda_executor *ex = call->ex;
    const struct farm_net_op *op = &ex->net.ops[i];
    const struct step *step = &call->rung->steps[i];
    const void *bias = param(call, ex->plan.layout.bias[i]);
    const enum farm_status status =
        farm_cuda_product_run(&step->forward, call->stream, param(call, ex->plan.layout.weight[i]), out_of(ex, i - 1),
                              step->fused ? bias : NULL, false, out_of(ex, i), workspace_of(ex), err);
    if (status != FARM_OK || step->fused || gives_f32(ex, i)) return status;
    return farm_cuda_bias_activate(call->stream, op->activation, type_of(ex), bias, out_of(ex, i), rows_of(call),
                                   op->out.channels, err);
}

// Step t of LSTM op i.
static struct farm_cuda_lstm lstm_step(const struct call *call, int i, int t) {
    const struct farm_cuda_executor *ex = call->ex;
    const size_t units = farm_shape_count(ex->net.ops[i].out), row = (size_t)t * (size_t)call->rung->columns;
    return (struct farm_cuda_lstm){
        .type = type_of(ex),
        .columns = (uint32_t)call->rung->columns,
        .units = (uint32_t)units,
        .state = (uint32_t)ex->net.state,
        .last = t == call->sequence.steps - 1,
        .flags = call->sequence.flags + row,
        .gates = (float *)out_of(ex, i - 1) + row * 4 * units,
        .cells = (float *)memory_at(ex, ex->plan.cells[i].offset) + row * units,
        .before = (char *)memory_at(ex, ex->plan.before[i].offset) + row * units * size_of(ex->bf16),
    };
}

static enum farm_status lstm_forward(const struct call *call, int i, struct farm_error *err) {
    struct farm_cuda_executor *ex = call->ex;
    const struct farm_sequence *s = &call->sequence;
    const void *weight = param(call, ex->plan.layout.weight[i]);
    const int state = ex->net.ops[i].state;
    struct farm_cuda_lstm step = lstm_step(call, i, 0);
    const size_t h_bytes = (size_t)step.columns * step.units * size_of(ex->bf16);
    enum farm_status status = farm_cuda_lstm_enter(call->stream, &step, s->state_in + state, err);
    for (int t = 0; t < s->steps && status == FARM_OK; t++) {
        step = lstm_step(call, i, t);
        status = farm_cuda_product_run(&call->rung->steps[i].forward, call->stream, weight, step.before, NULL, true,
                                       step.gates, workspace_of(ex), err);
        if (status == FARM_OK)
            status = farm_cuda_lstm_forward(
                call->stream, &step, param(call, ex->plan.layout.bias[i - 1]), param(call, ex->plan.layout.bias[i]),
                (char *)out_of(ex, i) + (size_t)t * h_bytes, s->state_out != NULL ? s->state_out + state : NULL, err);
    }
    return status;
}

static enum farm_status op_forward(const struct call *call, int i, struct farm_error *err) {
    struct farm_cuda_executor *ex = call->ex;
    const struct farm_net_op *op = &ex->net.ops[i];
    const struct farm_pool pool = farm_net_pool(op);
    switch (op->kind) {
    case FARM_NET_OP_CONV:
        return farm_cuda_convolution_forward(
            &call->rung->steps[i].convolution, call->stream, out_of(ex, i - 1), param(call, ex->plan.layout.weight[i]),
            param(call, ex->plan.layout.bias[i]), op->skip >= 0, out_of(ex, i), workspace_of(ex), err);
    case FARM_NET_OP_DENSE:
        return dense_forward(call, i, err);
    case FARM_NET_OP_POOL:
        return farm_cuda_pool(call->stream, &pool, type_of(ex), rows_of(call), out_of(ex, i - 1), out_of(ex, i),
                              maxima_of(ex, i), err);
    case FARM_NET_OP_RELU:
    case FARM_NET_OP_ACTIVATION:
        return farm_cuda_activate(call->stream, op->activation, type_of(ex), out_of(ex, i - 1), NULL, out_of(ex, i),
                                  rows_of(call) * farm_shape_count(op->out), err);
    case FARM_NET_OP_JOIN: {
        const struct farm_cuda_join join = join_of(call, i);
        return farm_cuda_join(call->stream, &join, out_of(ex, i - 1), param(call, ex->plan.layout.weight[i]),
                              param(call, ex->plan.layout.bias[i]), out_of(ex, i), err);
    }
    case FARM_NET_OP_LSTM:
        return lstm_forward(call, i, err);
    case FARM_NET_OP_NORM:
        return run_norm(call, i, NULL, NULL, err);
    }
    return farm_fail(err, FARM_E_UNSUPPORTED, "network %s: op %d is of an unknown kind", ex->net.spec.text, i);
}

static struct farm_cuda_heads heads_of(const struct call *call) {
    const struct farm_cuda_executor *ex = call->ex;
    return (struct farm_cuda_heads){
        .type = type_of(ex),
        .rows = (uint32_t)call->rung->rows,
        .actions = ex->net.io.actions,
        .pitch = ex->plan.layout.rows[ex->net.op_count - 1],
    };
}

enum farm_status farm_cuda_executor_forward(struct farm_cuda_executor *ex, struct CUstream_st *stream,
                                            const void *params, const struct farm_cuda_input *input,
                                            struct farm_sequence sequence, float *logits, float *value,
                                            struct farm_error *err) {
    const int last = ex->net.op_count - 1;
    struct call call = {.ex = ex, .stream = stream, .sequence = sequence, .params = params};
    assert(ex->net.state == 0 || (sequence.flags != NULL && sequence.state_in != NULL));
    enum farm_status status = rung_for(ex, sequence, &call.rung, err);
    if (status == FARM_OK) status = use_stream(ex, stream, err);
    if (status == FARM_OK) status = copy_input(&call, input, err);
    for (int i = 0; i <= last && status == FARM_OK; i++) status = op_forward(&call, i, err);
    if (status != FARM_OK) return status;
    const struct farm_cuda_heads heads = heads_of(&call);
    ex->forward = call.rung;
    return farm_cuda_heads_split(stream, &heads, out_of(ex, last), param(&call, ex->plan.layout.bias[last]), logits,
                                 value, err);
}

// ---- backward ----

// The gradient of the sums of op i from that by its output, in place, and that of a bias, its own or the LSTM's after
// it. A normalisation's are sums already.
static enum farm_status slope_backward(const struct call *call, int i, void *dy, size_t bias, struct farm_error *err) {
    struct farm_cuda_executor *ex = call->ex;
    const struct farm_net_op *op = &ex->net.ops[i];
    const bool heads = i == ex->net.op_count - 1;
    const struct farm_cuda_slope_gradient gradient = {
        .kind = op->kind == FARM_NET_OP_NORM ? FARM_ACTIVATION_NONE : op->activation,
        .type = type_of(ex),
        .rows = pixels_of(op->out, rows_of(call)),
        .channels = heads ? ex->plan.layout.rows[i] : op->out.channels,
        .y = heads ? NULL : out_of(ex, i),
        .dy = dy,
        .bias_gradient = call->gradients + bias,
        .scratch = memory_at(ex, ex->plan.scratch),
    };
    return farm_cuda_slope_gradient(call->stream, &gradient, err);
}

static enum farm_status convolution_backward(const struct call *call, int i, struct farm_error *err) {
    struct farm_cuda_executor *ex = call->ex;
    struct farm_cuda_convolution *convolution = &call->rung->steps[i].convolution;
    const size_t offset = ex->plan.layout.weight[i];
    const enum farm_status status = farm_cuda_convolution_weight_gradient(
        convolution, call->stream, out_of(ex, i - 1), diff_of(ex, i), call->gradients + offset,
        memory_at(ex, ex->plan.dweight), workspace_of(ex), err);
    if (status != FARM_OK || i == 0) return status;
    return farm_cuda_convolution_data_gradient(convolution, call->stream, param(call, offset), diff_of(ex, i),
                                               diff_of(ex, i - 1), workspace_of(ex), err);
}

static enum farm_status dense_backward(const struct call *call, int i, struct farm_error *err) {
    struct farm_cuda_executor *ex = call->ex;
    const struct step *step = &call->rung->steps[i];
    const size_t offset = ex->plan.layout.weight[i];
    const enum farm_status status =
        farm_cuda_product_run(&step->weight, call->stream, out_of(ex, i - 1), diff_of(ex, i), NULL, true,
                              call->gradients + offset, workspace_of(ex), err);
    if (status != FARM_OK || i == 0) return status;
    return farm_cuda_product_run(&step->data, call->stream, param(call, offset), diff_of(ex, i), NULL, false,
                                 diff_of(ex, i - 1), workspace_of(ex), err);
}

// Through time. The sums' gradients are those of op i - 1, which both products share; so is the bias's.
static enum farm_status lstm_backward(const struct call *call, int i, struct farm_error *err) {
    struct farm_cuda_executor *ex = call->ex;
    const struct step *products = &call->rung->steps[i];
    const size_t weight = ex->plan.layout.weight[i], row = (size_t)call->rung->columns * size_of(ex->bf16);
    float *dh = memory_at(ex, ex->plan.back[0].offset), *dcells = memory_at(ex, ex->plan.back[1].offset);
    enum farm_status status = FARM_OK;
    for (int t = call->sequence.steps - 1; t >= 0 && status == FARM_OK; t--) {
        const struct farm_cuda_lstm step = lstm_step(call, i, t);
        const void *dout = (char *)diff_of(ex, i) + (size_t)t * row * step.units;
        void *dgates = (char *)diff_of(ex, i - 1) + (size_t)t * row * 4 * step.units;
        status = farm_cuda_lstm_backward(call->stream, &step, dout, dh, dcells, dgates, err);
        if (status == FARM_OK && t > 0)
            status = farm_cuda_product_run(&products->data, call->stream, param(call, weight), dgates, NULL, false, dh,
                                           workspace_of(ex), err);
    }
    if (status == FARM_OK)
        status = farm_cuda_product_run(&products->weight, call->stream, memory_at(ex, ex->plan.before[i].offset),
                                       diff_of(ex, i - 1), NULL, true, call->gradients + weight, workspace_of(ex), err);
    return status == FARM_OK ? slope_backward(call, i - 1, diff_of(ex, i - 1), ex->plan.layout.bias[i], err) : status;
}

static enum farm_status op_backward(const struct call *call, int i, struct farm_error *err) {
    struct farm_cuda_executor *ex = call->ex;
    const struct farm_net_op *op = &ex->net.ops[i];
    const struct farm_pool pool = farm_net_pool(op);
    const bool separate = op->kind == FARM_NET_OP_CONV || op->kind == FARM_NET_OP_DENSE; // from activation and bias
    enum farm_status status =
        separate ? slope_backward(call, i, diff_of(ex, i), ex->plan.layout.bias[i], err) : FARM_OK;
    if (status != FARM_OK) return status;
    switch (op->kind) {
    case FARM_NET_OP_CONV:
        return convolution_backward(call, i, err);
    case FARM_NET_OP_DENSE:
        return dense_backward(call, i, err);
    case FARM_NET_OP_POOL:
        return farm_cuda_pool_gradient(call->stream, &pool, type_of(ex), rows_of(call), diff_of(ex, i),
                                       maxima_of(ex, i), diff_of(ex, i - 1), err);
    case FARM_NET_OP_RELU: // its block has added to the input; diff_of(i - 1) holds the gradient that bypasses it
    case FARM_NET_OP_ACTIVATION:
        return farm_cuda_activate(call->stream, op->activation, type_of(ex),
                                  out_of(ex, op->kind == FARM_NET_OP_RELU ? i : i - 1), diff_of(ex, i),
                                  diff_of(ex, i - 1), rows_of(call) * farm_shape_count(op->out), err);
    case FARM_NET_OP_JOIN: {
        const struct farm_cuda_join join = join_of(call, i);
        return farm_cuda_join_gradient(call->stream, &join, out_of(ex, i), diff_of(ex, i), diff_of(ex, i - 1),
                                       call->gradients + ex->plan.layout.weight[i],
                                       call->gradients + ex->plan.layout.bias[i], err);
    }
    case FARM_NET_OP_LSTM:
        return lstm_backward(call, i, err);
    case FARM_NET_OP_NORM: // the gradients of weight and bias are summed last
        status = run_norm(call, i, diff_of(ex, i), i > 0 ? diff_of(ex, i - 1) : NULL, err);
        if (!status) status = slope_backward(call, i, out_of(ex, i), ex->plan.layout.weight[i], err);
        return status ? status : slope_backward(call, i, diff_of(ex, i), ex->plan.layout.bias[i], err);
    }
    return farm_fail(err, FARM_E_UNSUPPORTED, "network %s: op %d is of an unknown kind", ex->net.spec.text, i);
}

enum farm_status farm_cuda_executor_backward(struct farm_cuda_executor *ex, struct CUstream_st *stream,
                                             const void *params, const float *dlogits, const float *dvalue,
                                             struct farm_sequence sequence, float *gradients, struct farm_error *err) {
    assert(ex->config.training);
    const int last = ex->net.op_count - 1;
    struct call call = {.ex = ex, .stream = stream, .sequence = sequence, .params = params, .gradients = gradients};
    enum farm_status status = rung_for(ex, sequence, &call.rung, err);
    assert(status != FARM_OK || call.rung == ex->forward);
    if (status == FARM_OK) status = use_stream(ex, stream, err);
    if (status != FARM_OK) return status;
    const struct farm_cuda_heads heads = heads_of(&call);
    status = farm_cuda_heads_join(stream, &heads, dlogits, dvalue, diff_of(ex, last), err);
    for (int i = last; i >= 0 && status == FARM_OK; i--) status = op_backward(&call, i, err);
    return status;
}
