// Rows of pictures or of vectors as oneDNN sees them, and what is done to them without weights: the maximum under a
// kernel, ReLU, sums, and the gradients through them. Same threads as dnnl_op.h. Does not know where rows come from.
#ifndef FARM_NN_DNNL_ROWS_H
#define FARM_NN_DNNL_ROWS_H

#include <stdbool.h>

#include "nn/dnnl_op.h"
#include "nn/net.h"

size_t farm_dnnl_row_bytes(struct farm_shape shape, dnnl_data_type_t type);

// `count` rows of `shape`: pictures in `layout`, vectors one after another; or as oneDNN likes where layout is any.
dnnl_memory_desc_t farm_dnnl_rows_md(struct farm_shape shape, int count, dnnl_data_type_t type,
                                     dnnl_format_tag_t layout);

// Below `md` describes all rows that an operation is given; the memory keeps its place as long as the operation lives.

// out = relu(in).
enum farm_status farm_dnnl_relu_make(struct farm_dnnl *dnnl, const dnnl_memory_desc_t *md, void *in, void *out,
                                     struct farm_dnnl_op *op, struct farm_error *err);

// The gradient through ReLU or tanh, in place in diff_out; `out` is what the activation gave.
enum farm_status farm_dnnl_activation_make(struct farm_dnnl *dnnl, enum farm_activation activation,
                                           const dnnl_memory_desc_t *md, void *out, void *diff_out,
                                           struct farm_dnnl_op *op, struct farm_error *err);

// to += from.
enum farm_status farm_dnnl_add_make(struct farm_dnnl *dnnl, const dnnl_memory_desc_t *md, void *to, void *from,
                                    struct farm_dnnl_op *op, struct farm_error *err);

// The maxima of FARM_NET_OP_POOL for `batch` rows.
struct farm_dnnl_pool_config {
    const struct farm_net_op *op;
    int batch;
    dnnl_data_type_t type;
    dnnl_format_tag_t layout;
    bool training; // false: no gradient, and no workspace
};

// What forward must note down for backward: where each maximum stood. 0 where not training.
enum farm_status farm_dnnl_pool_workspace(struct farm_dnnl *dnnl, const struct farm_dnnl_pool_config *config,
                                          size_t *bytes, struct farm_error *err);

// forward: in -> out, workspace. backward (empty where not training): diff_out, workspace -> diff_in.
struct farm_dnnl_pool_rows {
    void *in, *out, *diff_in, *diff_out, *workspace;
};
enum farm_status farm_dnnl_pool_make(struct farm_dnnl *dnnl, const struct farm_dnnl_pool_config *config,
                                     const struct farm_dnnl_pool_rows *rows, struct farm_dnnl_op *forward,
                                     struct farm_dnnl_op *backward, struct farm_error *err);

#endif
