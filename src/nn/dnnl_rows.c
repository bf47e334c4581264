// See dnnl_rows.h.
#include "nn/dnnl_rows.h"

size_t farm_dnnl_row_bytes(struct farm_shape shape, dnnl_data_type_t type) {
    return farm_shape_count(shape) * (type == dnnl_bf16 ? 2 : 4);
}

dnnl_memory_desc_t farm_dnnl_rows_md(struct farm_shape shape, int count, dnnl_data_type_t type,
                                     dnnl_format_tag_t layout) {
    dnnl_memory_desc_t md;
    const bool picture = shape.height > 0;
    const dnnl_dims_t dims = {count, shape.channels, shape.height, shape.width};
    const dnnl_format_tag_t tag = picture || layout == dnnl_format_tag_any ? layout : dnnl_ab;
    const dnnl_status_t status = dnnl_memory_desc_init_by_tag(&md, picture ? 4 : 2, dims, type, tag);
    return status == dnnl_success ? md : (dnnl_memory_desc_t){0};
}

enum farm_status farm_dnnl_relu_make(struct farm_dnnl *dnnl, const dnnl_memory_desc_t *md, void *in, void *out,
                                     struct farm_dnnl_op *op, struct farm_error *err) {
    dnnl_eltwise_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status =
        dnnl_eltwise_forward_desc_init(&desc, dnnl_forward_training, dnnl_eltwise_relu, md, 0.0f, 0.0f);
    if (status == dnnl_success) status = farm_dnnl_pd_make(dnnl, &desc, NULL, false, dnnl_alg_kind_undef, &pd);
    if (status != dnnl_success) return farm_dnnl_fail(err, "ReLU", status);
    const struct farm_dnnl_binding bindings[] = {{DNNL_ARG_SRC, md, in}, {DNNL_ARG_DST, md, out}};
    return farm_dnnl_op_make(dnnl, pd, "ReLU", bindings, 2, op, err);
}

enum farm_status farm_dnnl_activation_make(struct farm_dnnl *dnnl, enum farm_activation activation,
                                           const dnnl_memory_desc_t *md, void *out, void *diff_out,
                                           struct farm_dnnl_op *op, struct farm_error *err) {
    const dnnl_alg_kind_t alg =
        activation == FARM_ACTIVATION_TANH ? dnnl_eltwise_tanh_use_dst_for_bwd : dnnl_eltwise_relu_use_dst_for_bwd;
    dnnl_eltwise_desc_t desc;
    dnnl_primitive_desc_t forward = NULL, backward = NULL;
    dnnl_status_t status = dnnl_eltwise_forward_desc_init(&desc, dnnl_forward_training, alg, md, 0.0f, 0.0f);
    if (status == dnnl_success) status = farm_dnnl_pd_make(dnnl, &desc, NULL, false, dnnl_alg_kind_undef, &forward);
    if (status == dnnl_success) status = dnnl_eltwise_backward_desc_init(&desc, alg, md, md, 0.0f, 0.0f);
    if (status == dnnl_success) status = farm_dnnl_pd_make(dnnl, &desc, forward, false, dnnl_alg_kind_undef, &backward);
    if (forward != NULL) dnnl_primitive_desc_destroy(forward);
    if (status != dnnl_success) return farm_dnnl_fail(err, "activation", status);
    const struct farm_dnnl_binding bindings[] = {
        {DNNL_ARG_DST, md, out}, {DNNL_ARG_DIFF_DST, md, diff_out}, {DNNL_ARG_DIFF_SRC, md, diff_out}};
    return farm_dnnl_op_make(dnnl, backward, "activation", bindings, 3, op, err);
}

enum farm_status farm_dnnl_add_make(struct farm_dnnl *dnnl, const dnnl_memory_desc_t *md, void *to, void *from,
                                    struct farm_dnnl_op *op, struct farm_error *err) {
    dnnl_binary_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = dnnl_binary_desc_init(&desc, dnnl_binary_add, md, md, md);
    if (status == dnnl_success) status = farm_dnnl_pd_make(dnnl, &desc, NULL, false, dnnl_alg_kind_undef, &pd);
    if (status != dnnl_success) return farm_dnnl_fail(err, "sum", status);
    const struct farm_dnnl_binding bindings[] = {
        {DNNL_ARG_SRC_0, md, to}, {DNNL_ARG_SRC_1, md, from}, {DNNL_ARG_DST, md, to}};
    return farm_dnnl_op_make(dnnl, pd, "sum", bindings, 3, op, err);
}

// Memory descriptors of a pool.
struct pool_descs {
    dnnl_memory_desc_t in, out;
    dnnl_dims_t strides, kernel, before, after;
};

static struct pool_descs descs_of(const struct farm_dnnl_pool_config *config) {
    const struct farm_net_op *op = config->op;
    return (struct pool_descs){
        .in = farm_dnnl_rows_md(op->in, config->batch, config->type, config->layout),
        .out = farm_dnnl_rows_md(op->out, config->batch, config->type, config->layout),
        .strides = {op->stride, op->stride},
        .kernel = {op->kernel, op->kernel},
        .before = {op->pad_before[0], op->pad_before[1]},
        .after = {op->pad_after[0], op->pad_after[1]},
    };
}

static dnnl_status_t forward_pd(struct farm_dnnl *dnnl, const struct pool_descs *d, bool training,
                                dnnl_primitive_desc_t *pd) {
    dnnl_pooling_desc_t desc;
    const dnnl_status_t status =
        dnnl_pooling_forward_desc_init(&desc, training ? dnnl_forward_training : dnnl_forward_inference,
                                       dnnl_pooling_max, &d->in, &d->out, d->strides, d->kernel, d->before, d->after);
    return status != dnnl_success ? status : farm_dnnl_pd_make(dnnl, &desc, NULL, false, dnnl_alg_kind_undef, pd);
}

static dnnl_status_t backward_pd(struct farm_dnnl *dnnl, const struct pool_descs *d,
                                 const_dnnl_primitive_desc_t forward, dnnl_primitive_desc_t *pd) {
    dnnl_pooling_desc_t desc;
    const dnnl_status_t status = dnnl_pooling_backward_desc_init(&desc, dnnl_pooling_max, &d->in, &d->out, d->strides,
                                                                 d->kernel, d->before, d->after);
    return status != dnnl_success ? status : farm_dnnl_pd_make(dnnl, &desc, forward, false, dnnl_alg_kind_undef, pd);
}

enum farm_status farm_dnnl_pool_workspace(struct farm_dnnl *dnnl, const struct farm_dnnl_pool_config *config,
                                          size_t *bytes, struct farm_error *err) {
    const struct pool_descs d = descs_of(config);
    dnnl_primitive_desc_t pd = NULL;
    *bytes = 0;
    const dnnl_status_t status = forward_pd(dnnl, &d, config->training, &pd);
    if (status != dnnl_success) return farm_dnnl_fail(err, "pool", status);
    if (config->training)
        *bytes = dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(pd, dnnl_query_workspace_md, 0));
    dnnl_primitive_desc_destroy(pd);
    return FARM_OK;
}

enum farm_status farm_dnnl_pool_make(struct farm_dnnl *dnnl, const struct farm_dnnl_pool_config *config,
                                     const struct farm_dnnl_pool_rows *rows, struct farm_dnnl_op *forward,
                                     struct farm_dnnl_op *backward, struct farm_error *err) {
    const struct pool_descs d = descs_of(config);
    const bool training = config->training;
    dnnl_primitive_desc_t pd = NULL, back = NULL;
    dnnl_memory_desc_t workspace = {0};
    dnnl_status_t made = forward_pd(dnnl, &d, training, &pd);
    if (made == dnnl_success && training) {
        workspace = *dnnl_primitive_desc_query_md(pd, dnnl_query_workspace_md, 0);
        made = backward_pd(dnnl, &d, pd, &back);
    }
    if (made != dnnl_success) {
        if (pd != NULL) dnnl_primitive_desc_destroy(pd);
        return farm_dnnl_fail(err, "pool", made);
    }
    const struct farm_dnnl_binding bindings[] = {{DNNL_ARG_SRC, &d.in, rows->in},
                                                 {DNNL_ARG_DST, &d.out, rows->out},
                                                 {DNNL_ARG_WORKSPACE, &workspace, rows->workspace}};
    const struct farm_dnnl_binding back_bindings[] = {{DNNL_ARG_DIFF_DST, &d.out, rows->diff_out},
                                                      {DNNL_ARG_DIFF_SRC, &d.in, rows->diff_in},
                                                      {DNNL_ARG_WORKSPACE, &workspace, rows->workspace}};
    enum farm_status status = farm_dnnl_op_make(dnnl, pd, "pool", bindings, training ? 3 : 2, forward, err);
    if (back == NULL) return status;
    if (status == FARM_OK) return farm_dnnl_op_make(dnnl, back, "pool", back_bindings, 3, backward, err);
    dnnl_primitive_desc_destroy(back);
    return status;
}
