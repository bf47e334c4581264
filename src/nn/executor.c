// See executor.h. All memory is taken and all primitives are made by farm_executor_create; forward and backward only
// run them. An executor's layers are the network's ops, the heads being the last. Batches are padded to the next rung
// of a ladder of sizes, because oneDNN's primitives are made for one size.
#include "nn/executor.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/conv_u8.h"
#include "nn/dnnl_layer.h"
#include "nn/staging.h"

enum { LAYERS_MAX = FARM_NET_OPS_MAX, RUNGS_MAX = 64 };

// From libgomp; its header comes with the compiler's own OpenMP support only.
void omp_set_num_threads(int threads);

// One batch size. ops[0] holds no products where the first layer is kernels/conv_u8.h's.
struct rung {
    int batch;
    struct farm_dnnl_layer_ops ops[LAYERS_MAX];
};

// The first layer where kernels/conv_u8.h computes it.
struct conv_u8 {
    bool used;
    struct farm_conv_u8_shape shape;
    void *packed;
    void *scratch; // training
    float *bias;
};

// Memory of [batch_max] rows, for one layer after another; unused ones are empty.
struct buffer {
    size_t row_bytes;
    void *data;
};

// Where a layer's output and its gradient lie: indices of outs and diffs. A layer that adds to a residual block's input
// does so in place.
struct place {
    int out, diff;
};

struct farm_executor {
    struct farm_net_spec spec;
    struct farm_net net;
    enum farm_precision precision;
    int batch_max;
    bool training;

    struct farm_dnnl dnnl;
    struct conv_u8 conv_u8;
    void *staging; // rows of the first layer, where conv_u8 is not used
    int layer_count;
    struct farm_dnnl_layer_config configs[LAYERS_MAX];
    struct farm_dnnl_layer layers[LAYERS_MAX]; // layers[0] is empty where conv_u8 is used
    struct place places[LAYERS_MAX];
    struct buffer outs[LAYERS_MAX];
    struct buffer diffs[LAYERS_MAX]; // training
    int rung_count;
    struct rung rungs[RUNGS_MAX];
    int forward_batch; // rows of the last forward
};

// oneDNN's loops must stay in the calling thread. OpenMP keeps this number per thread, so every entry sets it.
static void use_one_thread(void) {
    omp_set_num_threads(1);
}

static bool cpu_has_bf16(void) {
    const unsigned bf16 = dnnl_cpu_isa_avx512_core_bf16; // a set of bits that every richer set holds, AMX's too
    return ((unsigned)dnnl_get_effective_cpu_isa() & bf16) == bf16;
}

// Whether pictures lie in blocks of eight channels between the layers: what AVX2 convolutions like best. Others take
// NHWC.
static bool blocks_of_eight(const struct farm_net *net) {
    if (dnnl_get_effective_cpu_isa() != dnnl_cpu_isa_avx2) return false;
    for (int i = 0; i < net->op_count; i++)
        if (net->ops[i].kind == FARM_NET_OP_CONV && net->ops[i].out.channels % 8 != 0) return false;
    return true;
}

static struct conv_u8 plan_conv_u8(const struct farm_executor *ex, bool exact) {
    const struct farm_net_io *io = &ex->net.io;
    const struct farm_net_op *op = &ex->net.ops[0];
    const bool padded = op->pad_before[0] + op->pad_before[1] + op->pad_after[0] + op->pad_after[1] > 0;
    if (exact || ex->precision != FARM_PRECISION_F32 || io->frame_channels != 1) return (struct conv_u8){0};
    if (padded || op->activation != FARM_ACTIVATION_RELU) return (struct conv_u8){0};
    const struct farm_conv_u8_shape shape = {
        .stack = io->stack,
        .height = io->height,
        .width = io->width,
        .kernel = op->kernel,
        .stride = op->stride,
        .outputs = op->out.channels,
        .layout = blocks_of_eight(&ex->net) ? FARM_CONV_U8_NCHW8C : FARM_CONV_U8_NHWC,
        .precision = FARM_CONV_U8_I16,
    };
    return (struct conv_u8){.used = farm_conv_u8_check(&shape, NULL) == FARM_OK, .shape = shape};
}

static void plan_layers(struct farm_executor *ex) {
    const dnnl_data_type_t type = ex->precision == FARM_PRECISION_BF16 ? dnnl_bf16 : dnnl_f32;
    const bool blocked = ex->conv_u8.used && ex->conv_u8.shape.layout == FARM_CONV_U8_NCHW8C;
    ex->layer_count = ex->net.op_count;
    for (int i = 0; i < ex->layer_count; i++) {
        const struct farm_net_op *op = &ex->net.ops[i];
        ex->configs[i] = (struct farm_dnnl_layer_config){
            .op = *op,
            .weight_offset = op->weight >= 0 ? ex->net.tensors[op->weight].offset : 0,
            .bias_offset = op->bias >= 0 ? ex->net.tensors[op->bias].offset : 0,
            .weight_scale = i == 0 && ex->net.io.flat == 0 ? 1.0f / 255.0f : 1.0f,
            .type = type,
            .out_type = i == ex->layer_count - 1 ? dnnl_f32 : type,
            .layout = blocked ? dnnl_nChw8c : dnnl_nhwc,
            .training = ex->training,
            .data_gradient = i > 0,
            .batch_max = ex->batch_max,
        };
    }
}

// The first buffer that is neither of these.
static int other_than(int a, int b) {
    int i = 0;
    while (i == a || i == b) i++;
    return i;
}

// Training keeps all outputs for backward. Inference takes turns between two buffers, and a third within residual
// blocks, whose input is `held` until it is added to. So do gradients, from the last layer to the first.
static void plan_places(struct farm_executor *ex) {
    int held = -1;
    for (int i = 0; i < ex->layer_count; i++) {
        const struct farm_net_op *op = &ex->configs[i].op;
        const int in = i > 0 ? ex->places[i - 1].out : -1;
        if (op->kind == FARM_NET_OP_RELU) held = in;
        ex->places[i].out = op->skip >= 0 ? ex->places[op->skip].out : ex->training ? i : other_than(in, held);
        if (op->skip >= 0) held = -1;
    }
    held = -1;
    for (int i = ex->layer_count - 1; i > 0; i--) {
        const struct farm_net_op *op = &ex->configs[i].op;
        const int diff = ex->places[i].diff;
        if (op->skip >= 0) held = diff;
        ex->places[i - 1].diff = op->kind == FARM_NET_OP_RELU ? held : other_than(diff, held);
        if (op->kind == FARM_NET_OP_RELU) held = -1;
    }
}

static bool allocate_conv_u8(struct farm_executor *ex) {
    struct conv_u8 *conv = &ex->conv_u8;
    conv->packed = farm_dnnl_alloc(farm_conv_u8_packed_bytes(&conv->shape));
    conv->bias = farm_dnnl_alloc((size_t)conv->shape.outputs * sizeof *conv->bias);
    if (ex->training) conv->scratch = farm_dnnl_alloc(farm_conv_u8_scratch_bytes(&conv->shape));
    return conv->packed != NULL && conv->bias != NULL && (!ex->training || conv->scratch != NULL);
}

static void widen(struct buffer *buffer, size_t row_bytes) {
    if (row_bytes > buffer->row_bytes) buffer->row_bytes = row_bytes;
}

static bool allocate_buffers(struct buffer *buffers, int batch_max) {
    bool ok = true;
    for (int i = 0; i < LAYERS_MAX; i++) {
        if (buffers[i].row_bytes == 0) continue;
        buffers[i].data = farm_dnnl_alloc((size_t)batch_max * buffers[i].row_bytes);
        ok = ok && buffers[i].data != NULL;
    }
    return ok;
}

static bool allocate_rows(struct farm_executor *ex) {
    for (int i = 0; i < ex->layer_count; i++) {
        const struct farm_dnnl_layer_config *config = &ex->configs[i];
        widen(&ex->outs[ex->places[i].out], farm_dnnl_row_bytes(config->op.out, config->out_type));
        if (ex->training) widen(&ex->diffs[ex->places[i].diff], farm_dnnl_row_bytes(config->op.out, config->type));
    }
    if (!allocate_buffers(ex->outs, ex->batch_max) || !allocate_buffers(ex->diffs, ex->batch_max)) return false;
    if (ex->conv_u8.used) return allocate_conv_u8(ex);
    ex->staging =
        farm_dnnl_alloc((size_t)ex->batch_max * farm_dnnl_row_bytes(ex->configs[0].op.in, ex->configs[0].type));
    return ex->staging != NULL;
}

// 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, ...: at most a third of the rows are padding beyond 16.
static int next_rung(int batch) {
    if (batch < 16) return 2 * batch;
    return (batch & (batch - 1)) == 0 ? batch / 2 * 3 : batch / 3 * 4;
}

static void *layer_out(const struct farm_executor *ex, int i) {
    return ex->outs[ex->places[i].out].data;
}

// NULL where not training.
static void *layer_diff(const struct farm_executor *ex, int i) {
    return ex->diffs[ex->places[i].diff].data;
}

static enum farm_status make_rung(struct farm_executor *ex, int batch, struct farm_error *err) {
    assert(ex->rung_count < RUNGS_MAX);
    struct rung *rung = &ex->rungs[ex->rung_count];
    *rung = (struct rung){.batch = batch};
    ex->rung_count++;
    for (int i = 0; i < ex->layer_count; i++) {
        const struct farm_dnnl_layer_rows rows = {
            .in = i == 0 ? ex->staging : layer_out(ex, i - 1),
            .out = layer_out(ex, i),
            .diff_in = i == 0 ? NULL : layer_diff(ex, i - 1),
            .diff_out = layer_diff(ex, i),
        };
        enum farm_status status = FARM_OK;
        if (i > 0 || !ex->conv_u8.used)
            status = farm_dnnl_layer_ops_make(&ex->dnnl, &ex->layers[i], batch, &rows, &rung->ops[i], err);
        else if (ex->training)
            status = farm_dnnl_layer_activation_make(&ex->dnnl, &ex->configs[i], batch, &rows, &rung->ops[i].activation,
                                                     err);
        if (status != FARM_OK) return status;
    }
    return FARM_OK;
}

static enum farm_status build(struct farm_executor *ex, struct farm_error *err) {
    enum farm_status status = farm_dnnl_open(&ex->dnnl, err);
    if (status != FARM_OK) return status;
    plan_layers(ex);
    plan_places(ex);
    if (!allocate_rows(ex))
        return farm_fail(err, FARM_E_LIMIT, "no memory for network %s with %d rows; take smaller batches",
                         ex->spec.name, ex->batch_max);
    for (int i = ex->conv_u8.used ? 1 : 0; i < ex->layer_count && status == FARM_OK; i++)
        status = farm_dnnl_layer_make(&ex->dnnl, &ex->configs[i], &ex->layers[i], err);
    for (int batch = 1; batch < ex->batch_max && status == FARM_OK; batch = next_rung(batch))
        status = make_rung(ex, batch, err);
    return status == FARM_OK ? make_rung(ex, ex->batch_max, err) : status;
}

static enum farm_status create(const struct farm_executor_config *config, enum farm_precision precision, bool exact,
                               struct farm_executor **out, struct farm_error *err) {
    struct farm_executor *ex = calloc(1, sizeof *ex);
    if (ex == NULL) return farm_fail(err, FARM_E_LIMIT, "no memory for an executor");
    ex->spec = *config->net->spec;
    ex->net = *config->net;
    ex->net.spec = &ex->spec;
    ex->precision = precision;
    ex->batch_max = config->batch_max;
    ex->training = config->training;
    ex->conv_u8 = plan_conv_u8(ex, exact);
    const enum farm_status status = build(ex, err);
    if (status == FARM_OK)
        *out = ex;
    else
        farm_executor_destroy(ex);
    return status;
}

enum farm_status farm_executor_create(const struct farm_executor_config *config, struct farm_executor **out,
                                      struct farm_error *err) {
    use_one_thread();
    *out = NULL;
    if (config->batch_max < 1 || config->batch_max > 1 << 20)
        return farm_fail(err, FARM_E_INVALID, "an executor takes batches of 1 to %d rows, not %d", 1 << 20,
                         config->batch_max);
    if (config->precision == FARM_PRECISION_F32) return create(config, FARM_PRECISION_F32, true, out, err);
    if (cpu_has_bf16()) {
        const enum farm_status status = create(config, FARM_PRECISION_BF16, false, out, err);
        if (status != FARM_E_UNSUPPORTED || config->precision == FARM_PRECISION_BF16) return status;
    }
    if (config->precision == FARM_PRECISION_BF16)
        return farm_fail(err, FARM_E_UNSUPPORTED,
                         "this CPU has no bf16 arithmetic (AVX512_BF16 or AMX); take precision auto or f32");
    return create(config, FARM_PRECISION_F32, false, out, err);
}

void farm_executor_destroy(struct farm_executor *ex) {
    if (ex == NULL) return;
    for (int r = 0; r < ex->rung_count; r++)
        for (int i = 0; i < ex->layer_count; i++) farm_dnnl_layer_ops_drop(&ex->rungs[r].ops[i]);
    for (int i = 0; i < LAYERS_MAX; i++) {
        farm_dnnl_layer_drop(&ex->layers[i]);
        free(ex->outs[i].data);
        free(ex->diffs[i].data);
    }
    free(ex->staging);
    free(ex->conv_u8.packed);
    free(ex->conv_u8.scratch);
    free(ex->conv_u8.bias);
    farm_dnnl_close(&ex->dnnl);
    free(ex);
}

enum farm_precision farm_executor_precision(const struct farm_executor *ex) {
    return ex->precision;
}

void farm_executor_load(struct farm_executor *ex, const float *params) {
    use_one_thread();
    if (ex->conv_u8.used) {
        farm_conv_u8_pack(&ex->conv_u8.shape, params + ex->configs[0].weight_offset, ex->conv_u8.packed);
        memcpy(ex->conv_u8.bias, params + ex->configs[0].bias_offset,
               (size_t)ex->conv_u8.shape.outputs * sizeof *ex->conv_u8.bias);
    }
    for (int i = ex->conv_u8.used ? 1 : 0; i < ex->layer_count; i++)
        if (ex->configs[i].op.weight >= 0) farm_dnnl_layer_load(&ex->dnnl, &ex->layers[i], params);
}

static struct rung *rung_for(struct farm_executor *ex, int batch) {
    assert(batch >= 1 && batch <= ex->batch_max);
    int r = 0;
    while (ex->rungs[r].batch < batch) r++;
    return &ex->rungs[r];
}

// Brings the rows in: to the first layer's output (conv_u8) or to its input (staging). Rows from `batch` on become
// zeros.
static void enter(struct farm_executor *ex, const void *const *rows, int batch, int padded) {
    const bool bf16 = ex->precision == FARM_PRECISION_BF16;
    if (ex->conv_u8.used) {
        const size_t row = farm_shape_count(ex->configs[0].op.out);
        float *out = layer_out(ex, 0);
        farm_conv_u8_forward(&ex->conv_u8.shape, ex->conv_u8.packed, ex->conv_u8.bias, (const uint8_t *const *)rows,
                             batch, out);
        memset(out + (size_t)batch * row, 0, (size_t)(padded - batch) * row * sizeof *out);
    } else if (ex->net.io.flat > 0) {
        farm_stage_flat(&ex->net.io, rows, batch, padded, bf16, ex->staging);
    } else {
        farm_stage_frames(&ex->net.io, rows, batch, padded, bf16, ex->staging);
    }
}

int farm_executor_forward(struct farm_executor *ex, const void *const *rows, int batch, float *logits, float *value) {
    use_one_thread();
    struct rung *rung = rung_for(ex, batch);
    enter(ex, rows, batch, rung->batch);
    for (int i = ex->conv_u8.used ? 1 : 0; i < ex->layer_count; i++) farm_dnnl_op_run(&ex->dnnl, &rung->ops[i].forward);
    const size_t actions = (size_t)ex->net.io.actions;
    const float *heads = layer_out(ex, ex->layer_count - 1);
    for (size_t b = 0; b < (size_t)batch; b++) {
        memcpy(logits + b * actions, heads + b * (actions + 1), actions * sizeof *logits);
        value[b] = heads[b * (actions + 1) + actions];
    }
    ex->forward_batch = batch;
    return rung->batch;
}

// The heads' gradients side by side; rows from `batch` on are zeros, and so are all gradients that come from them.
static void join_heads(const struct farm_executor *ex, const float *dlogits, const float *dvalue, int batch, int padded,
                       void *out) {
    const bool bf16 = ex->precision == FARM_PRECISION_BF16;
    const size_t actions = (size_t)ex->net.io.actions, row = actions + 1;
    for (size_t i = 0; i < (size_t)batch * row; i++) {
        const size_t b = i / row, a = i % row;
        const float x = a < actions ? dlogits[b * actions + a] : dvalue[b];
        if (bf16)
            ((uint16_t *)out)[i] = farm_bf16(x);
        else
            ((float *)out)[i] = x;
    }
    const size_t row_bytes = row * (bf16 ? sizeof(uint16_t) : sizeof(float));
    memset((char *)out + (size_t)batch * row_bytes, 0, (size_t)(padded - batch) * row_bytes);
}

void farm_executor_backward(struct farm_executor *ex, const void *const *rows, int batch, const float *dlogits,
                            const float *dvalue, float *grads) {
    assert(ex->training);
    assert(batch == ex->forward_batch);
    use_one_thread();
    struct rung *rung = rung_for(ex, batch);
    const int last = ex->layer_count - 1;
    join_heads(ex, dlogits, dvalue, batch, rung->batch, layer_diff(ex, last));
    for (int i = last; i >= 0; i--) {
        struct farm_dnnl_layer_ops *ops = &rung->ops[i];
        if (ops->activation.primitive != NULL) farm_dnnl_op_run(&ex->dnnl, &ops->activation);
        if (i == 0 && ex->conv_u8.used) {
            farm_conv_u8_backward_weights(&ex->conv_u8.shape, (const uint8_t *const *)rows, batch, layer_diff(ex, 0),
                                          grads + ex->configs[0].weight_offset, grads + ex->configs[0].bias_offset,
                                          ex->conv_u8.scratch);
            continue;
        }
        if (ex->configs[i].op.weight >= 0) farm_dnnl_layer_add_gradient(&ex->dnnl, &ex->layers[i], ops, grads);
        if (i > 0) farm_dnnl_op_run(&ex->dnnl, &ops->data);
    }
}
