// An op on oneDNN: its packed weights, if it has any, and for each rung of the ladder its operations forward and
// backward. Bias, activation and the sum of a residual block are part of the forward product.
#ifndef FARM_NN_DNNL_LAYER_H
#define FARM_NN_DNNL_LAYER_H

#include "nn/layer.h"

// The operations for one batch size; those that are not needed are empty.
struct farm_dnnl_rung {
    struct farm_dnnl_op tanh; // before DATA and WEIGHTS: diff_out becomes the gradient before the tanh
    struct farm_dnnl_op pass[FARM_DNNL_PASSES];
};

// `own` of farm_op_dnnl.
struct farm_dnnl_layer {
    // What each pass reads or, WEIGHTS, writes, in the layout that its primitive prefers. DATA shares FORWARD's memory
    // if both prefer the same. In training, a pass that prefers the parameters' own layout has no memory here: it reads
    // them where they lie.
    farm_dnnl_md weights_md[FARM_DNNL_PASSES], flat_md; // flat: the parameters' own
    void *weights[FARM_DNNL_PASSES];
    float *bias, *diff_bias; // [out.channels]
    struct farm_dnnl_op
        pack[FARM_DNNL_PASSES]; // from flat parameters; WEIGHTS: added to flat gradients (empty: as they)
    struct farm_dnnl_rung *rungs;
};

// Runs the WEIGHTS pass and adds its result to this layer's part of the flat gradients. If the call begins a sum,
// weights that the layer `writes` are not read but written; the others are zeros. Only for layers with weights.
void farm_dnnl_layer_add_gradient(struct farm_op_layer *layer, const struct farm_op_call *call);

#endif
