// See dnnl_layer.h.
#include "nn/dnnl_layer.h"

#include <stdlib.h>
#include <string.h>

static dnnl_memory_desc_t vector_md(int count) {
    dnnl_memory_desc_t md;
    const dnnl_dims_t dims = {count};
    return dnnl_memory_desc_init_by_tag(&md, 1, dims, dnnl_f32, dnnl_a) == dnnl_success ? md : (dnnl_memory_desc_t){0};
}

// One output's weights have the shape of one input row (dense) or of the input under the kernel (convolution).
static struct farm_shape weight_shape(const struct farm_dnnl_layer_config *config) {
    if (config->op.kind == FARM_NET_OP_DENSE) return config->op.in;
    return (struct farm_shape){config->op.in.channels, config->op.kernel, config->op.kernel};
}

// In the flat parameters: PyTorch's order.
static dnnl_memory_desc_t flat_weights_md(const struct farm_dnnl_layer_config *config) {
    return farm_dnnl_rows_md(weight_shape(config), config->op.out.channels, dnnl_f32, dnnl_abcd);
}

// Packed weights: primitives choose.
static dnnl_memory_desc_t wanted_weights_md(const struct farm_dnnl_layer_config *config) {
    return farm_dnnl_rows_md(weight_shape(config), config->op.out.channels, config->type, dnnl_format_tag_any);
}

// Their gradient: likewise, but a product's lies as its input rows do. Adding it to the flat gradient is then a
// permutation within rows; from what primitives choose it takes longer than the product.
static dnnl_memory_desc_t wanted_diff_md(const struct farm_dnnl_layer_config *config) {
    return farm_dnnl_rows_md(weight_shape(config), config->op.out.channels, dnnl_f32,
                             config->op.kind == FARM_NET_OP_DENSE ? config->layout : dnnl_format_tag_any);
}

static dnnl_alg_kind_t forward_eltwise(const struct farm_dnnl_layer_config *config) {
    switch (config->op.activation) {
    case FARM_ACTIVATION_RELU:
        return dnnl_eltwise_relu;
    case FARM_ACTIVATION_TANH:
        return dnnl_eltwise_tanh;
    case FARM_ACTIVATION_NONE:
        break;
    }
    return dnnl_alg_kind_undef;
}

// Memory descriptors of one layer at one batch size.
struct descs {
    dnnl_memory_desc_t in, out, diff_in, diff_out, bias;
    dnnl_dims_t strides, before, after;
};

static struct descs descs_of(const struct farm_dnnl_layer_config *config, int batch) {
    return (struct descs){
        .in = farm_dnnl_rows_md(config->op.in, batch, config->type, config->layout),
        .out = farm_dnnl_rows_md(config->op.out, batch, config->out_type, config->layout),
        .diff_in = farm_dnnl_rows_md(config->op.in, batch, config->type, config->layout),
        .diff_out = farm_dnnl_rows_md(config->op.out, batch, config->type, config->layout),
        .bias = vector_md(config->op.out.channels),
        .strides = {config->op.stride, config->op.stride},
        .before = {config->op.pad_before[0], config->op.pad_before[1]},
        .after = {config->op.pad_after[0], config->op.pad_after[1]},
    };
}

static dnnl_status_t forward_pd(struct farm_dnnl *dnnl, const struct farm_dnnl_layer_config *config,
                                const struct descs *d, const dnnl_memory_desc_t *weights, dnnl_primitive_desc_t *pd) {
    const dnnl_prop_kind_t prop = config->training ? dnnl_forward_training : dnnl_forward_inference;
    dnnl_status_t status;
    if (config->op.kind == FARM_NET_OP_CONV) {
        dnnl_convolution_desc_t desc;
        status = dnnl_convolution_forward_desc_init(&desc, prop, dnnl_convolution_direct, &d->in, weights, &d->bias,
                                                    &d->out, d->strides, d->before, d->after);
        return status != dnnl_success
                   ? status
                   : farm_dnnl_pd_make(dnnl, &desc, NULL, config->op.skip >= 0, forward_eltwise(config), pd);
    }
    dnnl_inner_product_desc_t desc;
    status = dnnl_inner_product_forward_desc_init(&desc, prop, &d->in, weights, &d->bias, &d->out);
    return status != dnnl_success
               ? status
               : farm_dnnl_pd_make(dnnl, &desc, NULL, config->op.skip >= 0, forward_eltwise(config), pd);
}

static dnnl_status_t data_pd(struct farm_dnnl *dnnl, const struct farm_dnnl_layer_config *config, const struct descs *d,
                             const dnnl_memory_desc_t *weights, const_dnnl_primitive_desc_t forward,
                             dnnl_primitive_desc_t *pd) {
    dnnl_status_t status;
    if (config->op.kind == FARM_NET_OP_CONV) {
        dnnl_convolution_desc_t desc;
        status = dnnl_convolution_backward_data_desc_init(&desc, dnnl_convolution_direct, &d->diff_in, weights,
                                                          &d->diff_out, d->strides, d->before, d->after);
        return status != dnnl_success ? status
                                      : farm_dnnl_pd_make(dnnl, &desc, forward, false, dnnl_alg_kind_undef, pd);
    }
    dnnl_inner_product_desc_t desc;
    status = dnnl_inner_product_backward_data_desc_init(&desc, &d->diff_in, weights, &d->diff_out);
    return status != dnnl_success ? status : farm_dnnl_pd_make(dnnl, &desc, forward, false, dnnl_alg_kind_undef, pd);
}

static dnnl_status_t weights_pd(struct farm_dnnl *dnnl, const struct farm_dnnl_layer_config *config,
                                const struct descs *d, const dnnl_memory_desc_t *diff,
                                const_dnnl_primitive_desc_t forward, dnnl_primitive_desc_t *pd) {
    dnnl_status_t status;
    if (config->op.kind == FARM_NET_OP_CONV) {
        dnnl_convolution_desc_t desc;
        status = dnnl_convolution_backward_weights_desc_init(&desc, dnnl_convolution_direct, &d->in, diff, &d->bias,
                                                             &d->diff_out, d->strides, d->before, d->after);
        return status != dnnl_success ? status
                                      : farm_dnnl_pd_make(dnnl, &desc, forward, false, dnnl_alg_kind_undef, pd);
    }
    dnnl_inner_product_desc_t desc;
    status = dnnl_inner_product_backward_weights_desc_init(&desc, &d->in, diff, &d->bias, &d->diff_out);
    return status != dnnl_success ? status : farm_dnnl_pd_make(dnnl, &desc, forward, false, dnnl_alg_kind_undef, pd);
}

// The three primitive descriptors of a layer; data and weights stay NULL where they are not needed.
struct pds {
    dnnl_primitive_desc_t forward, data, weights;
};

static void drop_pds(struct pds *pds) {
    if (pds->forward != NULL) dnnl_primitive_desc_destroy(pds->forward);
    if (pds->data != NULL) dnnl_primitive_desc_destroy(pds->data);
    if (pds->weights != NULL) dnnl_primitive_desc_destroy(pds->weights);
}

static dnnl_status_t make_pds(struct farm_dnnl *dnnl, const struct farm_dnnl_layer_config *config,
                              const struct descs *d, const dnnl_memory_desc_t *weights, const dnnl_memory_desc_t *back,
                              const dnnl_memory_desc_t *diff, struct pds *pds) {
    *pds = (struct pds){0};
    dnnl_status_t status = forward_pd(dnnl, config, d, weights, &pds->forward);
    if (config->training && status == dnnl_success)
        status = weights_pd(dnnl, config, d, diff, pds->forward, &pds->weights);
    if (config->training && config->data_gradient && status == dnnl_success)
        status = data_pd(dnnl, config, d, back, pds->forward, &pds->data);
    if (status != dnnl_success) drop_pds(pds);
    return status;
}

static const char *kind_name(const struct farm_dnnl_layer_config *config) {
    if (config->type == dnnl_bf16) return config->op.kind == FARM_NET_OP_CONV ? "bf16 convolution" : "bf16 product";
    return config->op.kind == FARM_NET_OP_CONV ? "convolution" : "product";
}

// Asks at the largest batch which weight layouts the primitives want; all batch sizes then share them.
static enum farm_status choose_layouts(struct farm_dnnl *dnnl, struct farm_dnnl_layer *layer, struct farm_error *err) {
    const struct farm_dnnl_layer_config *config = &layer->config;
    const struct descs d = descs_of(config, config->batch_max);
    const dnnl_memory_desc_t wanted = wanted_weights_md(config), wanted_diff = wanted_diff_md(config);
    struct pds pds;
    const dnnl_status_t status = make_pds(dnnl, config, &d, &wanted, &wanted, &wanted_diff, &pds);
    if (status != dnnl_success) return farm_dnnl_fail(err, kind_name(config), status);
    layer->weights_md = *dnnl_primitive_desc_query_md(pds.forward, dnnl_query_weights_md, 0);
    layer->back_md = layer->weights_md;
    if (pds.data != NULL) layer->back_md = *dnnl_primitive_desc_query_md(pds.data, dnnl_query_weights_md, 0);
    if (pds.weights != NULL) layer->diff_md = *dnnl_primitive_desc_query_md(pds.weights, dnnl_query_diff_weights_md, 0);
    drop_pds(&pds);
    return FARM_OK;
}

static bool allocate(struct farm_dnnl_layer *layer) {
    const struct farm_dnnl_layer_config *config = &layer->config;
    const size_t bias_bytes = (size_t)config->op.out.channels * sizeof(float);
    layer->weights = farm_dnnl_alloc(dnnl_memory_desc_get_size(&layer->weights_md));
    layer->bias = farm_dnnl_alloc(bias_bytes);
    const bool shared = dnnl_memory_desc_equal(&layer->weights_md, &layer->back_md);
    layer->back_weights = shared ? layer->weights : farm_dnnl_alloc(dnnl_memory_desc_get_size(&layer->back_md));
    bool ok = layer->weights != NULL && layer->bias != NULL && layer->back_weights != NULL;
    if (config->training) {
        layer->diff_weights = farm_dnnl_alloc(dnnl_memory_desc_get_size(&layer->diff_md));
        layer->diff_bias = farm_dnnl_alloc(bias_bytes);
        ok = ok && layer->diff_weights != NULL && layer->diff_bias != NULL;
    }
    return ok;
}

static enum farm_status make_packing(struct farm_dnnl *dnnl, struct farm_dnnl_layer *layer, struct farm_error *err) {
    const dnnl_memory_desc_t flat_md = flat_weights_md(&layer->config);
    const struct farm_dnnl_binding flat = {0, &flat_md, NULL};
    const struct farm_dnnl_binding weights = {0, &layer->weights_md, layer->weights};
    const struct farm_dnnl_binding back = {0, &layer->back_md, layer->back_weights};
    const struct farm_dnnl_binding diff = {0, &layer->diff_md, layer->diff_weights};
    enum farm_status status = farm_dnnl_reorder_make(dnnl, &flat, &weights, 1, false, &layer->pack, err);
    if (status == FARM_OK && layer->back_weights != layer->weights)
        status = farm_dnnl_reorder_make(dnnl, &flat, &back, 1, false, &layer->repack, err);
    if (status == FARM_OK && layer->config.training)
        status = farm_dnnl_reorder_make(dnnl, &diff, &flat, 1, true, &layer->unpack, err);
    return status;
}

static struct farm_dnnl_pool_config pool_config(const struct farm_dnnl_layer_config *config, int batch) {
    return (struct farm_dnnl_pool_config){.op = &config->op,
                                          .batch = batch,
                                          .type = config->type,
                                          .layout = config->layout,
                                          .training = config->training};
}

static enum farm_status make_workspace(struct farm_dnnl *dnnl, struct farm_dnnl_layer *layer, struct farm_error *err) {
    const struct farm_dnnl_pool_config pool = pool_config(&layer->config, layer->config.batch_max);
    size_t bytes;
    const enum farm_status status = farm_dnnl_pool_workspace(dnnl, &pool, &bytes, err);
    if (status != FARM_OK || bytes == 0) return status;
    layer->workspace = farm_dnnl_alloc(bytes);
    return layer->workspace != NULL ? FARM_OK : farm_fail(err, FARM_E_LIMIT, "no memory for a pool's workspace");
}

enum farm_status farm_dnnl_layer_make(struct farm_dnnl *dnnl, const struct farm_dnnl_layer_config *config,
                                      struct farm_dnnl_layer *layer, struct farm_error *err) {
    *layer = (struct farm_dnnl_layer){.config = *config};
    if (config->op.kind == FARM_NET_OP_RELU) return FARM_OK;
    if (config->op.kind == FARM_NET_OP_POOL) return make_workspace(dnnl, layer, err);
    enum farm_status status = choose_layouts(dnnl, layer, err);
    if (status != FARM_OK) return status;
    if (allocate(layer))
        status = make_packing(dnnl, layer, err);
    else
        status = farm_fail(err, FARM_E_LIMIT, "no memory for a layer's weights");
    if (status != FARM_OK) farm_dnnl_layer_drop(layer);
    return status;
}

void farm_dnnl_layer_drop(struct farm_dnnl_layer *layer) {
    farm_dnnl_op_drop(&layer->pack);
    farm_dnnl_op_drop(&layer->repack);
    farm_dnnl_op_drop(&layer->unpack);
    if (layer->back_weights != layer->weights) free(layer->back_weights);
    free(layer->weights);
    free(layer->bias);
    free(layer->diff_weights);
    free(layer->diff_bias);
    free(layer->workspace);
    *layer = (struct farm_dnnl_layer){0};
}

enum farm_status farm_dnnl_layer_activation_make(struct farm_dnnl *dnnl, const struct farm_dnnl_layer_config *config,
                                                 int batch, const struct farm_dnnl_layer_rows *rows,
                                                 struct farm_dnnl_op *op, struct farm_error *err) {
    const dnnl_memory_desc_t md = farm_dnnl_rows_md(config->op.out, batch, config->type, config->layout);
    return farm_dnnl_activation_make(dnnl, config->op.activation, &md, rows->out, rows->diff_out, op, err);
}

// Binds the three products; takes their descriptors.
static enum farm_status bind_products(struct farm_dnnl *dnnl, const struct farm_dnnl_layer *layer, struct pds *pds,
                                      const struct descs *d, const struct farm_dnnl_layer_rows *rows,
                                      struct farm_dnnl_layer_ops *ops, struct farm_error *err) {
    const char *what = kind_name(&layer->config);
    const struct farm_dnnl_binding forward[] = {{DNNL_ARG_SRC, &d->in, rows->in},
                                                {DNNL_ARG_WEIGHTS, &layer->weights_md, layer->weights},
                                                {DNNL_ARG_BIAS, &d->bias, layer->bias},
                                                {DNNL_ARG_DST, &d->out, rows->out}};
    const struct farm_dnnl_binding data[] = {{DNNL_ARG_DIFF_DST, &d->diff_out, rows->diff_out},
                                             {DNNL_ARG_WEIGHTS, &layer->back_md, layer->back_weights},
                                             {DNNL_ARG_DIFF_SRC, &d->diff_in, rows->diff_in}};
    const struct farm_dnnl_binding weights[] = {{DNNL_ARG_SRC, &d->in, rows->in},
                                                {DNNL_ARG_DIFF_DST, &d->diff_out, rows->diff_out},
                                                {DNNL_ARG_DIFF_WEIGHTS, &layer->diff_md, layer->diff_weights},
                                                {DNNL_ARG_DIFF_BIAS, &d->bias, layer->diff_bias}};
    enum farm_status status = farm_dnnl_op_make(dnnl, pds->forward, what, forward, 4, &ops->forward, err);
    pds->forward = NULL;
    if (status == FARM_OK && pds->data != NULL) {
        status = farm_dnnl_op_make(dnnl, pds->data, what, data, 3, &ops->data, err);
        pds->data = NULL;
    }
    if (status == FARM_OK && pds->weights != NULL) {
        status = farm_dnnl_op_make(dnnl, pds->weights, what, weights, 4, &ops->weights, err);
        pds->weights = NULL;
    }
    drop_pds(pds);
    return status;
}

static enum farm_status make_products(struct farm_dnnl *dnnl, const struct farm_dnnl_layer *layer, int batch,
                                      const struct farm_dnnl_layer_rows *rows, struct farm_dnnl_layer_ops *ops,
                                      struct farm_error *err) {
    const struct descs d = descs_of(&layer->config, batch);
    struct pds pds;
    const dnnl_status_t made =
        make_pds(dnnl, &layer->config, &d, &layer->weights_md, &layer->back_md, &layer->diff_md, &pds);
    if (made != dnnl_success) return farm_dnnl_fail(err, kind_name(&layer->config), made);
    return bind_products(dnnl, layer, &pds, &d, rows, ops, err);
}

static enum farm_status make_pool(struct farm_dnnl *dnnl, const struct farm_dnnl_layer *layer, int batch,
                                  const struct farm_dnnl_layer_rows *rows, struct farm_dnnl_layer_ops *ops,
                                  struct farm_error *err) {
    const struct farm_dnnl_pool_config pool = pool_config(&layer->config, batch);
    const struct farm_dnnl_pool_rows pool_rows = {rows->in, rows->out, rows->diff_in, rows->diff_out, layer->workspace};
    return farm_dnnl_pool_make(dnnl, &pool, &pool_rows, &ops->forward, &ops->data, err);
}

static enum farm_status make_relu(struct farm_dnnl *dnnl, const struct farm_dnnl_layer_config *config, int batch,
                                  const struct farm_dnnl_layer_rows *rows, struct farm_dnnl_layer_ops *ops,
                                  struct farm_error *err) {
    const dnnl_memory_desc_t md = farm_dnnl_rows_md(config->op.out, batch, config->type, config->layout);
    const enum farm_status status = farm_dnnl_relu_make(dnnl, &md, rows->in, rows->out, &ops->forward, err);
    if (status != FARM_OK || !config->training) return status;
    return farm_dnnl_add_make(dnnl, &md, rows->diff_in, rows->diff_out, &ops->data, err);
}

enum farm_status farm_dnnl_layer_ops_make(struct farm_dnnl *dnnl, const struct farm_dnnl_layer *layer, int batch,
                                          const struct farm_dnnl_layer_rows *rows, struct farm_dnnl_layer_ops *ops,
                                          struct farm_error *err) {
    const struct farm_dnnl_layer_config *config = &layer->config;
    *ops = (struct farm_dnnl_layer_ops){0};
    enum farm_status status;
    switch (config->op.kind) {
    case FARM_NET_OP_POOL:
        status = make_pool(dnnl, layer, batch, rows, ops, err);
        break;
    case FARM_NET_OP_RELU:
        status = make_relu(dnnl, config, batch, rows, ops, err);
        break;
    default:
        status = make_products(dnnl, layer, batch, rows, ops, err);
        break;
    }
    if (status == FARM_OK && config->training && config->op.activation != FARM_ACTIVATION_NONE)
        status = farm_dnnl_layer_activation_make(dnnl, config, batch, rows, &ops->activation, err);
    if (status != FARM_OK) farm_dnnl_layer_ops_drop(ops);
    return status;
}

void farm_dnnl_layer_ops_drop(struct farm_dnnl_layer_ops *ops) {
    farm_dnnl_op_drop(&ops->forward);
    farm_dnnl_op_drop(&ops->activation);
    farm_dnnl_op_drop(&ops->data);
    farm_dnnl_op_drop(&ops->weights);
}

void farm_dnnl_layer_load(struct farm_dnnl *dnnl, struct farm_dnnl_layer *layer, const float *params) {
    const struct farm_dnnl_layer_config *config = &layer->config;
    memcpy(layer->bias, params + config->bias_offset, (size_t)config->op.out.channels * sizeof(float));
    farm_dnnl_op_bind(&layer->pack, DNNL_ARG_FROM, params + config->weight_offset);
    farm_dnnl_op_run(dnnl, &layer->pack);
    if (layer->repack.primitive == NULL) return;
    farm_dnnl_op_bind(&layer->repack, DNNL_ARG_FROM, params + config->weight_offset);
    farm_dnnl_op_run(dnnl, &layer->repack);
}

void farm_dnnl_layer_add_gradient(struct farm_dnnl *dnnl, struct farm_dnnl_layer *layer,
                                  struct farm_dnnl_layer_ops *ops, float *grads) {
    const struct farm_dnnl_layer_config *config = &layer->config;
    farm_dnnl_op_run(dnnl, &ops->weights);
    farm_dnnl_op_bind(&layer->unpack, DNNL_ARG_TO, grads + config->weight_offset);
    farm_dnnl_op_run(dnnl, &layer->unpack);
    for (int i = 0; i < config->op.out.channels; i++) grads[config->bias_offset + (size_t)i] += layer->diff_bias[i];
}
