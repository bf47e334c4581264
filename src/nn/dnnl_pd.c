// See dnnl_op.h: memory descriptors and primitive descriptors, which oneDNN 2.x (Debian 12) and 3.x make differently.
#include <stdlib.h>

#include "nn/dnnl_op.h"

#if DNNL_VERSION_MAJOR < 3

typedef dnnl_memory_desc_t *own_md;

static dnnl_status_t append_sum(dnnl_post_ops_t ops) {
    return dnnl_post_ops_append_sum(ops, 1.0f);
}

static dnnl_status_t append_eltwise(dnnl_post_ops_t ops, dnnl_alg_kind_t alg) {
    return dnnl_post_ops_append_eltwise(ops, 1.0f, alg, 0.0f, 0.0f);
}

static own_md copy_md(farm_dnnl_md md) {
    dnnl_memory_desc_t *copy = malloc(sizeof *copy);
    if (copy) *copy = *md;
    return copy;
}

static own_md make_md(int rank, const dnnl_dims_t dims, dnnl_data_type_t type, dnnl_format_tag_t tag) {
    dnnl_memory_desc_t md;
    return dnnl_memory_desc_init_by_tag(&md, rank, dims, type, tag) == dnnl_success ? copy_md(&md) : NULL;
}

static void drop_md(own_md md) {
    free(md);
}

union op_desc {
    dnnl_convolution_desc_t conv;
    dnnl_inner_product_desc_t product;
};

static dnnl_status_t describe(const struct farm_dnnl_pd *p, union op_desc *desc) {
    const dnnl_alg_kind_t direct = dnnl_convolution_direct;
    switch (p->kind) {
    case FARM_DNNL_CONV:
        if (p->pass == FARM_DNNL_FORWARD)
            return dnnl_convolution_forward_desc_init(&desc->conv, p->prop, direct, p->in, p->weights, p->bias, p->out,
                                                      p->strides, p->before, p->after);
        if (p->pass == FARM_DNNL_DATA)
            return dnnl_convolution_backward_data_desc_init(&desc->conv, direct, p->in, p->weights, p->out, p->strides,
                                                            p->before, p->after);
        return dnnl_convolution_backward_weights_desc_init(&desc->conv, direct, p->in, p->weights, p->bias, p->out,
                                                           p->strides, p->before, p->after);
    case FARM_DNNL_PRODUCT:
        if (p->pass == FARM_DNNL_FORWARD)
            return dnnl_inner_product_forward_desc_init(&desc->product, p->prop, p->in, p->weights, p->bias, p->out);
        if (p->pass == FARM_DNNL_DATA)
            return dnnl_inner_product_backward_data_desc_init(&desc->product, p->in, p->weights, p->out);
        return dnnl_inner_product_backward_weights_desc_init(&desc->product, p->in, p->weights, p->bias, p->out);
    case FARM_DNNL_COPY:
        break; // has no description
    }
    return dnnl_invalid_arguments;
}

static dnnl_status_t create(dnnl_engine_t engine, const struct farm_dnnl_pd *p, dnnl_primitive_attr_t attr,
                            dnnl_primitive_desc_t *pd) {
    union op_desc desc;
    const dnnl_status_t status = describe(p, &desc);
    return status == dnnl_success ? dnnl_primitive_desc_create(pd, &desc, attr, engine, p->forward) : status;
}

#else

typedef dnnl_memory_desc_t own_md;

static dnnl_status_t append_sum(dnnl_post_ops_t ops) {
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}

static dnnl_status_t append_eltwise(dnnl_post_ops_t ops, dnnl_alg_kind_t alg) {
    return dnnl_post_ops_append_eltwise(ops, alg, 0.0f, 0.0f);
}

static own_md copy_md(farm_dnnl_md md) {
    dnnl_memory_desc_t copy;
    return dnnl_memory_desc_clone(&copy, md) == dnnl_success ? copy : NULL;
}

static own_md make_md(int rank, const dnnl_dims_t dims, dnnl_data_type_t type, dnnl_format_tag_t tag) {
    dnnl_memory_desc_t md;
    return dnnl_memory_desc_create_with_tag(&md, rank, dims, type, tag) == dnnl_success ? md : NULL;
}

static void drop_md(own_md md) {
    dnnl_memory_desc_destroy(md);
}

static dnnl_status_t create(dnnl_engine_t engine, const struct farm_dnnl_pd *p, dnnl_primitive_attr_t attr,
                            dnnl_primitive_desc_t *pd) {
    const dnnl_alg_kind_t direct = dnnl_convolution_direct;
    const dnnl_dims_t dense = {0};
    switch (p->kind) {
    case FARM_DNNL_CONV:
        if (p->pass == FARM_DNNL_FORWARD)
            return dnnl_convolution_forward_primitive_desc_create(pd, engine, p->prop, direct, p->in, p->weights,
                                                                  p->bias, p->out, p->strides, dense, p->before,
                                                                  p->after, attr);
        if (p->pass == FARM_DNNL_DATA)
            return dnnl_convolution_backward_data_primitive_desc_create(pd, engine, direct, p->in, p->weights, p->out,
                                                                        p->strides, dense, p->before, p->after,
                                                                        p->forward, attr);
        return dnnl_convolution_backward_weights_primitive_desc_create(pd, engine, direct, p->in, p->weights, p->bias,
                                                                       p->out, p->strides, dense, p->before, p->after,
                                                                       p->forward, attr);
    case FARM_DNNL_PRODUCT:
        if (p->pass == FARM_DNNL_FORWARD)
            return dnnl_inner_product_forward_primitive_desc_create(pd, engine, p->prop, p->in, p->weights, p->bias,
                                                                    p->out, attr);
        if (p->pass == FARM_DNNL_DATA)
            return dnnl_inner_product_backward_data_primitive_desc_create(pd, engine, p->in, p->weights, p->out,
                                                                          p->forward, attr);
        return dnnl_inner_product_backward_weights_primitive_desc_create(pd, engine, p->in, p->weights, p->bias, p->out,
                                                                         p->forward, attr);
    case FARM_DNNL_COPY:
        break; // as in 2.x
    }
    return dnnl_invalid_arguments;
}

#endif

// ---- memory descriptors ----

static bool make_room(struct farm_dnnl *dnnl) {
    farm_dnnl_md *mds = realloc(dnnl->mds, (dnnl->md_count + 1) * sizeof *mds);
    if (mds) dnnl->mds = mds;
    return mds != NULL;
}

// Takes `md`, and returns one of the same layout that lives as long as the farm_dnnl.
static farm_dnnl_md keep(struct farm_dnnl *dnnl, own_md md) {
    farm_dnnl_md same = NULL;
    if (!md) return NULL;
    for (size_t i = 0; i < dnnl->md_count && !same; i++)
        if (dnnl_memory_desc_equal(dnnl->mds[i], md)) same = dnnl->mds[i];
    if (!same && make_room(dnnl)) return dnnl->mds[dnnl->md_count++] = md;
    drop_md(md);
    return same;
}

farm_dnnl_md farm_dnnl_md_make(struct farm_dnnl *dnnl, int rank, const dnnl_dims_t dims, dnnl_data_type_t type,
                               dnnl_format_tag_t tag) {
    return keep(dnnl, make_md(rank, dims, type, tag));
}

farm_dnnl_md farm_dnnl_md_copy(struct farm_dnnl *dnnl, farm_dnnl_md md) {
    return keep(dnnl, md ? copy_md(md) : NULL);
}

void farm_dnnl_mds_drop(struct farm_dnnl *dnnl) {
    for (size_t i = 0; i < dnnl->md_count; i++) drop_md((own_md)dnnl->mds[i]);
    free(dnnl->mds);
}

// ---- primitive descriptors ----

// Of every primitive here: scratch memory of the caller, then the sum and the activation.
static dnnl_status_t set_attr(dnnl_primitive_attr_t attr, dnnl_post_ops_t ops, const struct farm_dnnl_pd *p) {
    dnnl_status_t status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (status == dnnl_success && p->accumulate) status = append_sum(ops);
    if (status == dnnl_success && p->then != dnnl_alg_kind_undef) status = append_eltwise(ops, p->then);
    return status == dnnl_success ? dnnl_primitive_attr_set_post_ops(attr, ops) : status;
}

dnnl_status_t farm_dnnl_pd_make(struct farm_dnnl *dnnl, const struct farm_dnnl_pd *p, dnnl_primitive_desc_t *pd) {
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t ops = NULL;
    if (!p->in || !p->out || (p->kind != FARM_DNNL_COPY && (!p->weights || !p->bias))) return dnnl_out_of_memory;
    dnnl_status_t status = dnnl_primitive_attr_create(&attr);
    if (status == dnnl_success) status = dnnl_post_ops_create(&ops);
    if (status == dnnl_success) status = set_attr(attr, ops, p);
    if (status == dnnl_success)
        status = p->kind == FARM_DNNL_COPY
                     ? dnnl_reorder_primitive_desc_create(pd, p->in, dnnl->engine, p->out, dnnl->engine, attr)
                     : create(dnnl->engine, p, attr, pd);
    if (ops != NULL) dnnl_post_ops_destroy(ops);
    if (attr != NULL) dnnl_primitive_attr_destroy(attr);
    return status;
}
