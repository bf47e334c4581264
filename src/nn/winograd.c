// A convolution in f32 whose form says so (kernels/winograd.h) in an executor.
#include "kernels/winograd.h"

#include <string.h>

#include "nn/layer.h"

struct winograd {
    struct farm_winograd_shape shape;
    void *packed[2]; // weights by enum farm_winograd_pass; DATA: in training
    float *bias;     // [out.channels]
};

static struct farm_winograd_shape shape_of(const struct farm_net_op *op, int block) {
    return (struct farm_winograd_shape){.kernel = op->kernel,
                                        .stride = op->stride,
                                        .pad = {op->pad_before[0], op->pad_before[1]},
                                        .channels = op->in.channels,
                                        .height = op->in.height,
                                        .width = op->in.width,
                                        .outputs = op->out.channels,
                                        .out_height = op->out.height,
                                        .out_width = op->out.width,
                                        .block = block};
}

bool farm_winograd_has(const struct farm_net_op *op, int block) {
    const struct farm_winograd_shape shape = shape_of(op, block);
    return op->kind == FARM_NET_OP_CONV && farm_winograd_runs(&shape);
}

static enum farm_status make(struct farm_op_layer *layer, struct farm_error *err) {
    struct winograd *conv = layer->own;
    (void)err;
    conv->shape = shape_of(&layer->config.op, layer->config.block);
    for (int pass = 0; pass < (layer->config.training ? 2 : 1); pass++)
        farm_dnnl_keep_packed(layer->dnnl, farm_winograd_packed_bytes(&conv->shape), &conv->packed[pass]);
    farm_dnnl_keep_packed(layer->dnnl, (size_t)conv->shape.outputs * sizeof *conv->bias, &conv->bias);
    farm_dnnl_reserve(layer->dnnl, farm_winograd_loops()->scratch_bytes(&conv->shape));
    return FARM_OK;
}

static void load(struct farm_op_layer *layer, const float *params) {
    struct winograd *conv = layer->own;
    for (int pass = 0; pass < 2 && conv->packed[pass] != NULL; pass++)
        farm_winograd_loops()->pack(&conv->shape, (enum farm_winograd_pass)pass, params + layer->config.weight_offset,
                                    conv->packed[pass]);
    memcpy(conv->bias, params + layer->config.bias_offset, (size_t)conv->shape.outputs * sizeof *conv->bias);
}

static void forward(struct farm_op_layer *layer, const struct farm_op_call *call) {
    const struct winograd *conv = layer->own;
    const struct farm_net_op *op = &layer->config.op;
    farm_winograd_loops()->forward(&conv->shape, conv->packed[FARM_WINOGRAD_FORWARD], conv->bias, layer->rows.in,
                                   call->padded, op->skip >= 0, op->activation == FARM_ACTIVATION_RELU, layer->rows.out,
                                   layer->dnnl->scratch);
}

static void backward(struct farm_op_layer *layer, const struct farm_op_call *call) {
    const struct winograd *conv = layer->own;
    farm_winograd_loops()->backward(&conv->shape, conv->packed[FARM_WINOGRAD_DATA], layer->rows.in,
                                    layer->rows.diff_out, call->padded, layer->rows.diff_in,
                                    call->grads + layer->config.weight_offset, call->grads + layer->config.bias_offset,
                                    layer->dnnl->scratch);
}

const struct farm_op_methods farm_op_winograd = {sizeof(struct winograd), make, load, forward, backward};
