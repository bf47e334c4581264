// An op on oneDNN: its packed weights, if it has any, and for each rung of the ladder its operations forward and
// backward. Bias, activation and the sum of a residual block are part of the forward product.
#include "nn/layer.h"

#include <string.h>

#include "kernels/optimiser.h"

enum { FORWARD = FARM_DNNL_FORWARD, DATA = FARM_DNNL_DATA, WEIGHTS = FARM_DNNL_WEIGHTS, PASSES = FARM_DNNL_PASSES };

size_t farm_dnnl_row_bytes(struct farm_shape shape, dnnl_data_type_t type) {
    return farm_shape_count(shape) * (type == dnnl_bf16 ? 2 : 4);
}

farm_dnnl_md farm_dnnl_rows_md(struct farm_dnnl *dnnl, struct farm_shape shape, int count, dnnl_data_type_t type,
                               dnnl_format_tag_t layout) {
    const bool picture = shape.height > 0;
    const dnnl_dims_t dims = {count, shape.channels, shape.height, shape.width};
    const dnnl_format_tag_t tag = picture || layout == dnnl_format_tag_any ? layout : dnnl_ab;
    return farm_dnnl_md_make(dnnl, picture ? 4 : 2, dims, type, tag);
}

// One output's weights have the shape of one input row (dense) or of the input under the kernel (convolution).
static farm_dnnl_md weights_md(struct farm_dnnl *dnnl, const struct farm_layer_config *config, dnnl_data_type_t type,
                               dnnl_format_tag_t layout) {
    const struct farm_net_op *op = &config->op;
    const struct farm_shape under_kernel = {op->in.channels, op->kernel, op->kernel};
    const struct farm_shape shape = op->kind == FARM_NET_OP_DENSE ? op->in : under_kernel;
    return farm_dnnl_rows_md(dnnl, shape, op->out.channels, type, layout);
}

// Layouts of one layer at one batch size.
struct descs {
    farm_dnnl_md in, out, diff_in, diff_out, bias;
};

static struct descs descs_of(struct farm_dnnl *dnnl, const struct farm_layer_config *config, int batch) {
    const struct farm_net_op *op = &config->op;
    const dnnl_dims_t channels = {op->out.channels};
    return (struct descs){
        .in = farm_dnnl_rows_md(dnnl, op->in, batch, config->type, config->layout),
        .out = farm_dnnl_rows_md(dnnl, op->out, batch, config->out_type, config->layout),
        .diff_in = farm_dnnl_rows_md(dnnl, op->in, batch, config->diff_in_type, config->layout),
        .diff_out = farm_dnnl_rows_md(dnnl, op->out, batch, config->type, config->layout),
        .bias = farm_dnnl_md_make(dnnl, 1, channels, dnnl_f32, dnnl_a),
    };
}

// One pass.
static struct farm_dnnl_pd pass_of(const struct farm_layer_config *config, const struct descs *d, int pass,
                                   farm_dnnl_md weights) {
    const struct farm_net_op *op = &config->op;
    const bool forward = pass == FORWARD;
    struct farm_dnnl_pd p = {
        .kind = op->kind == FARM_NET_OP_CONV ? FARM_DNNL_CONV : FARM_DNNL_PRODUCT,
        .pass = (enum farm_dnnl_pass)pass,
        .prop = config->training ? dnnl_forward_training : dnnl_forward_inference,
        .in = pass == DATA ? d->diff_in : d->in,
        .out = forward ? d->out : d->diff_out,
        .weights = weights,
        .bias = d->bias,
        .strides = {op->stride, op->stride},
        .before = {op->pad_before[0], op->pad_before[1]},
        .after = {op->pad_after[0], op->pad_after[1]},
        .accumulate = forward && op->skip >= 0,
    };
    if (forward && op->activation == FARM_ACTIVATION_RELU) p.then = dnnl_eltwise_relu;
    if (forward && op->activation == FARM_ACTIVATION_TANH) p.then = dnnl_eltwise_tanh;
    return p;
}

static void drop_pds(dnnl_primitive_desc_t pds[PASSES]) {
    for (int pass = 0; pass < PASSES; pass++)
        if (pds[pass] != NULL) dnnl_primitive_desc_destroy(pds[pass]);
}

// The primitive descriptors of a layer; those of passes that are not needed become NULL.
static dnnl_status_t make_pds(struct farm_dnnl *dnnl, const struct farm_layer_config *config, const struct descs *d,
                              const farm_dnnl_md weights[PASSES], dnnl_primitive_desc_t pds[PASSES]) {
    const bool wanted[PASSES] = {true, config->training && config->data_gradient, config->training};
    dnnl_status_t status = dnnl_success;
    memset(pds, 0, PASSES * sizeof *pds);
    for (int pass = 0; pass < PASSES && status == dnnl_success; pass++) {
        struct farm_dnnl_pd p = pass_of(config, d, pass, weights[pass]);
        if (pass != FORWARD) p.forward = pds[FORWARD];
        if (wanted[pass]) status = farm_dnnl_pd_make(dnnl, &p, &pds[pass]);
    }
    if (status != dnnl_success) drop_pds(pds);
    return status;
}

static const char *kind_name(const struct farm_layer_config *config) {
    static const char *const names[][2] = {
        [FARM_NET_OP_CONV] = {"convolution", "bf16 convolution"}, [FARM_NET_OP_DENSE] = {"product", "bf16 product"}};
    return names[config->op.kind][config->type == dnnl_bf16];
}

// ---- layers ----

// Does the layer's forward product gain nothing from weights in the layout that its primitive prefers, so that packing
// them for each version would be lost? oneDNN's gemm copies both factors at each run, except f32 with AVX-512.
static bool takes_rows(const struct farm_layer_config *config, const_dnnl_primitive_desc_t forward) {
    const char *implementation = "";
    if (config->op.kind != FARM_NET_OP_DENSE) return false;
    if (dnnl_primitive_desc_query(forward, dnnl_query_impl_info_str, 0, &implementation) != dnnl_success) return false;
    const bool wide = (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
    return strstr(implementation, "gemm:jit") != NULL && (config->type == dnnl_bf16 || !wide);
}

// Asks oneDNN at the largest batch which weight layouts the primitives prefer; all batch sizes share them. A dense
// layer's gradient lies as the flat gradient does: to add what the primitive prefers takes longer than the product.
static enum farm_status choose_layouts(struct farm_op_layer *op, struct farm_error *err) {
    struct farm_dnnl_layer *layer = op->own;
    struct farm_dnnl *dnnl = op->dnnl;
    const struct farm_layer_config *config = &op->config;
    const struct descs d = descs_of(dnnl, config, config->batch_max);
    const bool dense = config->op.kind == FARM_NET_OP_DENSE;
    const farm_dnnl_md any = weights_md(dnnl, config, config->type, dnnl_format_tag_any);
    const farm_dnnl_md wanted[PASSES] = {
        any, any, weights_md(dnnl, config, dnnl_f32, dense ? config->layout : dnnl_format_tag_any)};
    dnnl_primitive_desc_t pds[PASSES];
    const dnnl_status_t status = make_pds(dnnl, config, &d, wanted, pds);
    if (status != dnnl_success) return farm_dnnl_fail(err, kind_name(config), status);
    for (int pass = 0; pass < PASSES; pass++) {
        const dnnl_query_t query = pass == WEIGHTS ? dnnl_query_diff_weights_md : dnnl_query_weights_md;
        layer->weights_md[pass] = pds[pass] != NULL
                                      ? farm_dnnl_md_copy(dnnl, dnnl_primitive_desc_query_md(pds[pass], query, 0))
                                      : layer->weights_md[FORWARD];
        if (pass == FORWARD && takes_rows(config, pds[FORWARD]))
            layer->weights_md[FORWARD] = weights_md(dnnl, config, config->type, config->layout);
    }
    drop_pds(pds);
    layer->flat_md = weights_md(dnnl, config, dnnl_f32, dnnl_abcd);
    for (int pass = 0; pass < PASSES; pass++)
        if (!layer->weights_md[pass] || !layer->flat_md)
            return farm_dnnl_fail(err, kind_name(config), dnnl_out_of_memory);
    return FARM_OK;
}

// A pass that can read the flat parameters where they lie has no memory.
static void allocate(struct farm_op_layer *op) {
    struct farm_dnnl_layer *layer = op->own;
    const size_t bias_bytes = (size_t)op->config.op.out.channels * sizeof(float);
    for (int pass = 0; pass < (op->config.training ? PASSES : DATA); pass++) {
        const farm_dnnl_md md = layer->weights_md[pass];
        if (op->config.training && pass != WEIGHTS && dnnl_memory_desc_equal(md, layer->flat_md)) continue;
        if (pass == DATA && dnnl_memory_desc_equal(md, layer->weights_md[FORWARD]))
            layer->weights[pass] = layer->weights[FORWARD];
        else
            farm_dnnl_keep_packed(op->dnnl, dnnl_memory_desc_get_size(md), &layer->weights[pass]);
    }
    farm_dnnl_keep_packed(op->dnnl, bias_bytes, &layer->bias);
    layer->diff_bias = farm_dnnl_keep(op->dnnl, bias_bytes);
}

static enum farm_status make_packing(struct farm_op_layer *op, struct farm_error *err) {
    struct farm_dnnl_layer *layer = op->own;
    const struct farm_dnnl_binding flat = {0, layer->flat_md, NULL};
    enum farm_status status = FARM_OK;
    for (int pass = 0; pass < PASSES && status == FARM_OK; pass++) {
        const struct farm_dnnl_binding packed = {0, layer->weights_md[pass], layer->weights[pass]};
        const bool gradient = pass == WEIGHTS;
        if (packed.data == NULL || (pass == DATA && packed.data == layer->weights[FORWARD])) continue;
        if (gradient && dnnl_memory_desc_equal(packed.md, flat.md)) // added by our own loop
            op->writes = dnnl_memory_desc_get_size(packed.md) / sizeof(float);
        else
            status = farm_dnnl_reorder_make(op->dnnl, gradient ? packed : flat, gradient ? flat : packed, gradient,
                                            &layer->pack[pass], err);
    }
    return status;
}

// ---- operations ----

// What a pass reads and writes; returns how many arguments.
static int bind_pass(const struct farm_op_layer *op, int pass, const struct descs *d,
                     struct farm_dnnl_binding out[FARM_DNNL_BINDINGS_MAX]) {
    const struct farm_dnnl_layer *layer = op->own;
    const struct farm_layer_rows *rows = &op->rows;
    int count = 0;
    if (pass == FORWARD) out[count++] = (struct farm_dnnl_binding){DNNL_ARG_DST, d->out, rows->out};
    if (pass != FORWARD) out[count++] = (struct farm_dnnl_binding){DNNL_ARG_DIFF_DST, d->diff_out, rows->diff_out};
    if (pass == DATA) out[count++] = (struct farm_dnnl_binding){DNNL_ARG_DIFF_SRC, d->diff_in, rows->diff_in};
    if (pass != DATA) out[count++] = (struct farm_dnnl_binding){DNNL_ARG_SRC, d->in, rows->in};
    const bool gradient = pass == WEIGHTS;
    out[count++] = (struct farm_dnnl_binding){gradient ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS,
                                              layer->weights_md[pass], layer->weights[pass]};
    if (pass != DATA)
        out[count++] = (struct farm_dnnl_binding){gradient ? DNNL_ARG_DIFF_BIAS : DNNL_ARG_BIAS, d->bias,
                                                  gradient ? layer->diff_bias : layer->bias};
    return count;
}

static enum farm_status make_rung(struct farm_op_layer *op, int batch, struct farm_dnnl_rung *rung,
                                  struct farm_error *err) {
    const struct farm_dnnl_layer *layer = op->own;
    const char *name = kind_name(&op->config);
    const struct descs d = descs_of(op->dnnl, &op->config, batch);
    dnnl_primitive_desc_t pds[PASSES];
    const dnnl_status_t made = make_pds(op->dnnl, &op->config, &d, layer->weights_md, pds);
    if (made != dnnl_success) return farm_dnnl_fail(err, name, made);
    enum farm_status status = FARM_OK;
    for (int pass = 0; pass < PASSES && status == FARM_OK; pass++) {
        struct farm_dnnl_binding bindings[FARM_DNNL_BINDINGS_MAX];
        const int count = bind_pass(op, pass, &d, bindings);
        if (pds[pass] == NULL) continue;
        status = farm_dnnl_op_make(op->dnnl, pds[pass], name, bindings, count, &rung->pass[pass], err);
        pds[pass] = NULL;
    }
    drop_pds(pds);
    return status;
}

// ---- the op ----

static enum farm_status make(struct farm_op_layer *op, struct farm_error *err) {
    struct farm_dnnl_layer *layer = op->own;
    enum farm_status status = choose_layouts(op, err);
    if (status != FARM_OK) return status;
    allocate(op);
    layer->rungs = farm_dnnl_keep(op->dnnl, (size_t)op->ladder->count * sizeof *layer->rungs);
    if (op->dnnl->lacking) return FARM_OK;
    status = make_packing(op, err);
    for (int r = 0; r < op->ladder->count && status == FARM_OK; r++)
        status = make_rung(op, op->ladder->rows[r], &layer->rungs[r], err);
    return status;
}

// Packs the weights, or points the passes that read them in place at them.
static void load(struct farm_op_layer *op, const float *params) {
    struct farm_dnnl_layer *layer = op->own;
    const float *weights = params + op->config.weight_offset;
    memcpy(layer->bias, params + op->config.bias_offset, (size_t)op->config.op.out.channels * sizeof(float));
    for (int pass = FORWARD; pass <= DATA; pass++) {
        for (int r = 0; r < op->ladder->count && layer->weights[pass] == NULL; r++)
            if (layer->rungs[r].pass[pass].primitive)
                farm_dnnl_op_bind(&layer->rungs[r].pass[pass], DNNL_ARG_WEIGHTS, weights);
        if (layer->pack[pass].primitive == NULL) continue;
        farm_dnnl_op_bind(&layer->pack[pass], DNNL_ARG_FROM, weights);
        farm_dnnl_op_bind(&layer->pack[pass], DNNL_ARG_TO, layer->weights[pass]);
        farm_dnnl_op_run(op->dnnl, &layer->pack[pass]);
    }
}

struct farm_dnnl_op *farm_dnnl_layer_forward(struct farm_dnnl_layer *layer, int rung) {
    struct farm_dnnl_rung *r = &layer->rungs[rung];
    if (r->weights == layer->weights[FORWARD]) return &r->pass[FORWARD];
    r->weights = layer->weights[FORWARD];
    farm_dnnl_op_bind(&r->pass[FORWARD], DNNL_ARG_WEIGHTS, layer->weights[FORWARD]);
    farm_dnnl_op_bind(&r->pass[FORWARD], DNNL_ARG_BIAS, layer->bias);
    return &r->pass[FORWARD];
}

static void forward(struct farm_op_layer *op, const struct farm_op_call *call) {
    farm_dnnl_op_run(op->dnnl, farm_dnnl_layer_forward(op->own, call->rung));
}

void farm_dnnl_layer_add_gradient(struct farm_op_layer *op, const struct farm_op_call *call) {
    struct farm_dnnl_layer *layer = op->own;
    struct farm_dnnl_op *pass = &layer->rungs[call->rung].pass[WEIGHTS];
    float *weights = call->grads + op->config.weight_offset, *own = layer->weights[WEIGHTS];
    if (op->writes) farm_dnnl_op_bind(pass, DNNL_ARG_DIFF_WEIGHTS, call->begins ? weights : own);
    farm_dnnl_op_run(op->dnnl, pass);
    if (!op->writes) {
        farm_dnnl_op_bind(&layer->pack[WEIGHTS], DNNL_ARG_TO, weights);
        farm_dnnl_op_run(op->dnnl, &layer->pack[WEIGHTS]);
    } else if (!call->begins)
        farm_optimiser_add(weights, own, op->writes);
    farm_optimiser_add(call->grads + op->config.bias_offset, layer->diff_bias, (size_t)op->config.op.out.channels);
}

static void backward(struct farm_op_layer *op, const struct farm_op_call *call) {
    struct farm_dnnl_layer *layer = op->own;
    farm_dnnl_layer_add_gradient(op, call);
    farm_dnnl_op_run(op->dnnl, &layer->rungs[call->rung].pass[DATA]);
}

const struct farm_op_methods farm_op_dnnl = {sizeof(struct farm_dnnl_layer), make, load, forward, backward};
