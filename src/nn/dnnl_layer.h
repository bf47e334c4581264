// One op of a network on oneDNN, here called a layer: its packed weights, if it has any, and for each batch size its
// operations forward and backward. Bias, activation and the sum of a residual block are part of the forward product.
// Same threads as dnnl_op.h. Does not know where rows come from, nor which layer is next.
#ifndef FARM_NN_DNNL_LAYER_H
#define FARM_NN_DNNL_LAYER_H

#include "nn/dnnl_op.h"
#include "nn/net.h"

struct farm_dnnl_layer_config {
    struct farm_net_op op;
    size_t weight_offset, bias_offset; // in the flat parameters, in floats
    dnnl_data_type_t type;             // of inputs, packed weights and gradients of outputs: f32 or bf16
    dnnl_data_type_t out_type;         // of outputs
    dnnl_data_type_t diff_in_type;     // of gradients of inputs
    dnnl_format_tag_t layout;          // of pictures: nhwc, nChw8c or nChw16c
    bool training;
    bool data_gradient; // false: first layer
    int batch_max;
};

struct farm_dnnl_layer {
    struct farm_dnnl_layer_config config;
    // What each pass reads or, WEIGHTS, writes, in the layout that its primitive prefers. DATA shares FORWARD's memory
    // if both prefer the same. In training, a pass that prefers the parameters' own layout has no memory here: it reads
    // them where they lie.
    farm_dnnl_md weights_md[FARM_DNNL_PASSES], flat_md; // flat: the parameters' own
    void *weights[FARM_DNNL_PASSES];
    float *bias, *diff_bias; // [out.channels]
    struct farm_dnnl_op
        pack[FARM_DNNL_PASSES]; // from flat parameters; WEIGHTS: added to flat gradients (empty: as they)
};

// The operations of one layer for one batch size; those that are not needed are empty.
struct farm_dnnl_layer_ops {
    struct farm_dnnl_op tanh; // before DATA and WEIGHTS: diff_out becomes the gradient before the tanh. ReLU's is the
                              // executor's
    struct farm_dnnl_op pass[FARM_DNNL_PASSES];
};

// Rows of the layer and their gradients; they must stay in place as long as the operations live.
struct farm_dnnl_layer_rows {
    void *in, *out, *diff_in, *diff_out;
};

size_t farm_dnnl_row_bytes(struct farm_shape shape, dnnl_data_type_t type);

// `count` rows of `shape`: pictures in `layout`, vectors one after another; or as oneDNN prefers if `layout` is any.
farm_dnnl_md farm_dnnl_rows_md(struct farm_dnnl *dnnl, struct farm_shape shape, int count, dnnl_data_type_t type,
                               dnnl_format_tag_t layout);

// On error nothing is left behind. Destroy layers after their operations.
enum farm_status farm_dnnl_layer_make(struct farm_dnnl *dnnl, const struct farm_dnnl_layer_config *config,
                                      struct farm_dnnl_layer *layer, struct farm_error *err);
void farm_dnnl_layer_drop(struct farm_dnnl_layer *layer);

enum farm_status farm_dnnl_layer_ops_make(struct farm_dnnl *dnnl, const struct farm_dnnl_layer *layer, int batch,
                                          const struct farm_dnnl_layer_rows *rows, struct farm_dnnl_layer_ops *ops,
                                          struct farm_error *err);
void farm_dnnl_layer_ops_drop(struct farm_dnnl_layer_ops *ops);

// Packs this layer's part of the flat parameters. Like the next functions, only for layers with weights.
void farm_dnnl_layer_load(struct farm_dnnl *dnnl, struct farm_dnnl_layer *layer, const float *params);

// Points the passes that read the flat parameters in place at them. Call for all operations of a layer at each load.
void farm_dnnl_layer_ops_bind(const struct farm_dnnl_layer *layer, struct farm_dnnl_layer_ops *ops,
                              const float *params);

// Can the WEIGHTS pass write this layer's part of the flat gradients itself? And its weights, in floats.
bool farm_dnnl_layer_writes(const struct farm_dnnl_layer *layer);
size_t farm_dnnl_layer_weights(const struct farm_dnnl_layer *layer);

// Runs the WEIGHTS pass and adds its result to this layer's part of the flat gradients. first: weights that
// farm_dnnl_layer_writes are not read but written; the others are zeros.
void farm_dnnl_layer_add_gradient(struct farm_dnnl *dnnl, struct farm_dnnl_layer *layer,
                                  struct farm_dnnl_layer_ops *ops, bool first, float *grads);

#endif
