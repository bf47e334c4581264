// One op of a network on oneDNN, here called a layer: its packed weights, if it has any, and, for each batch size, its
// operations forward and backward. Activations and the sum of a residual block are part of the forward product. Same
// threads as dnnl_op.h. Does not know where rows come from, nor which layer comes next.
#ifndef FARM_NN_DNNL_LAYER_H
#define FARM_NN_DNNL_LAYER_H

#include <stdbool.h>

#include "nn/dnnl_op.h"
#include "nn/dnnl_rows.h"

struct farm_dnnl_layer_config {
    struct farm_net_op op;
    size_t weight_offset, bias_offset; // in the flat parameters, in floats
    dnnl_data_type_t type;             // of inputs, packed weights and gradients of inputs and outputs: f32 or bf16
    dnnl_data_type_t out_type;         // of outputs
    dnnl_format_tag_t layout;          // of pictures: nhwc, nChw8c or nChw16c
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
    void *workspace;            // pool in training: where the maxima stood
};

// The operations of one layer for one batch size. The backward ones are empty where they are not needed; each runs
// after those above it.
struct farm_dnnl_layer_ops {
    struct farm_dnnl_op forward;    // in -> out; in -> added to out where the op has a skip
    struct farm_dnnl_op activation; // diff_out becomes the gradient before the activation, in place
    struct farm_dnnl_op data;       // diff_out -> diff_in; FARM_NET_OP_RELU: diff_out -> added to diff_in
    struct farm_dnnl_op weights;    // in, diff_out -> diff_weights, diff_bias
};

// Rows of the layer and their gradients; all keep their place as long as the operations live.
struct farm_dnnl_layer_rows {
    void *in, *out, *diff_in, *diff_out;
};

// On error nothing is left behind. Destroy layers after their operations.
enum farm_status farm_dnnl_layer_make(struct farm_dnnl *dnnl, const struct farm_dnnl_layer_config *config,
                                      struct farm_dnnl_layer *layer, struct farm_error *err);
void farm_dnnl_layer_drop(struct farm_dnnl_layer *layer);

enum farm_status farm_dnnl_layer_ops_make(struct farm_dnnl *dnnl, const struct farm_dnnl_layer *layer, int batch,
                                          const struct farm_dnnl_layer_rows *rows, struct farm_dnnl_layer_ops *ops,
                                          struct farm_error *err);
void farm_dnnl_layer_ops_drop(struct farm_dnnl_layer_ops *ops);

// The gradient through the op's activation alone, for a layer whose product is not oneDNN's.
enum farm_status farm_dnnl_layer_activation_make(struct farm_dnnl *dnnl, const struct farm_dnnl_layer_config *config,
                                                 int batch, const struct farm_dnnl_layer_rows *rows,
                                                 struct farm_dnnl_op *op, struct farm_error *err);

// Packs this layer's part of the flat parameters. This and the next: layers with weights only.
void farm_dnnl_layer_load(struct farm_dnnl *dnnl, struct farm_dnnl_layer *layer, const float *params);

// Runs ops->weights and adds its result to this layer's part of the flat gradients.
void farm_dnnl_layer_add_gradient(struct farm_dnnl *dnnl, struct farm_dnnl_layer *layer,
                                  struct farm_dnnl_layer_ops *ops, float *grads);

#endif
