// One layer of a network on oneDNN: its packed weights and, for each batch size, its operations forward and backward.
// Convolutions and dense layers; ReLU and tanh are part of the forward product. Same threads as dnnl_op.h. Does not
// know where rows come from, nor which layer comes next.
#ifndef FARM_NN_DNNL_LAYER_H
#define FARM_NN_DNNL_LAYER_H

#include <stdbool.h>

#include "nn/dnnl_op.h"
#include "nn/net.h"

// A picture, or a vector of `channels` numbers where height is 0.
struct farm_shape {
    int channels, height, width;
};
size_t farm_shape_count(struct farm_shape shape);

struct farm_dnnl_layer_config {
    enum farm_layer_kind kind;
    int kernel, stride; // convolution only
    bool activated;     // false: heads, which are products alone
    enum farm_activation activation;
    struct farm_shape in, out;
    size_t weight_offset, bias_offset; // in the flat parameters, in floats
    float weight_scale;                // the product is weight_scale * weights . input + bias
    dnnl_data_type_t type;             // of inputs, packed weights and gradients of inputs and outputs: f32 or bf16
    dnnl_data_type_t out_type;         // of outputs
    dnnl_format_tag_t layout;          // of pictures: nhwc, or nChw8c
    bool training;
    bool data_gradient; // false: first layer, nothing before it
    int batch_max;
};

struct farm_dnnl_layer {
    struct farm_dnnl_layer_config config;
    dnnl_memory_desc_t weights_md, back_md,
        diff_md; // what the forward, data gradient and weight gradient primitives want
    void *weights;
    void *back_weights;         // equal to weights where back_md is weights_md
    float *bias;                // [out.channels]
    float *diff_weights;        // packed, by diff_md
    float *diff_bias;           // [out.channels]
    struct farm_dnnl_op pack;   // flat parameters -> weights
    struct farm_dnnl_op repack; // flat parameters -> back_weights, empty where shared
    struct farm_dnnl_op unpack; // diff_weights -> added to flat gradients
};

// The operations of one layer for one batch size. The backward ones are empty where they are not needed.
struct farm_dnnl_layer_ops {
    struct farm_dnnl_op forward;    // in -> out
    struct farm_dnnl_op activation; // diff_out becomes the gradient before the activation, in place
    struct farm_dnnl_op data;       // diff_out -> diff_in
    struct farm_dnnl_op weights;    // in, diff_out -> diff_weights, diff_bias
};

// Rows of the layer and their gradients; all keep their place as long as the operations live.
struct farm_dnnl_layer_rows {
    void *in, *out, *diff_in, *diff_out;
};

size_t farm_dnnl_row_bytes(struct farm_shape shape, dnnl_data_type_t type);

// On error nothing is left behind. Destroy layers after their operations.
enum farm_status farm_dnnl_layer_make(struct farm_dnnl *dnnl, const struct farm_dnnl_layer_config *config,
                                      struct farm_dnnl_layer *layer, struct farm_error *err);
void farm_dnnl_layer_drop(struct farm_dnnl_layer *layer);

enum farm_status farm_dnnl_layer_ops_make(struct farm_dnnl *dnnl, const struct farm_dnnl_layer *layer, int batch,
                                          const struct farm_dnnl_layer_rows *rows, struct farm_dnnl_layer_ops *ops,
                                          struct farm_error *err);
void farm_dnnl_layer_ops_drop(struct farm_dnnl_layer_ops *ops);

// The gradient through an activation alone, in place in diff_out; `out` is what the activation gave.
enum farm_status farm_dnnl_activation_make(struct farm_dnnl *dnnl, const struct farm_dnnl_layer_config *config,
                                           int batch, void *out, void *diff_out, struct farm_dnnl_op *op,
                                           struct farm_error *err);

// Packs this layer's part of the flat parameters.
void farm_dnnl_layer_load(struct farm_dnnl *dnnl, struct farm_dnnl_layer *layer, const float *params);

// Runs ops->weights and adds its result to this layer's part of the flat gradients.
void farm_dnnl_layer_add_gradient(struct farm_dnnl *dnnl, struct farm_dnnl_layer *layer,
                                  struct farm_dnnl_layer_ops *ops, float *grads);

#endif
