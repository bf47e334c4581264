// Ops on kernels/norm.h in an executor: NORM, and without weights RELU and ACTIVATION.
#include "kernels/norm.h"

#include "nn/layer.h"

static enum farm_status make(struct farm_op_layer *layer, struct farm_error *err) {
    const struct farm_layer_config *config = &layer->config;
    const struct farm_shape in = config->op.in;
    const bool norm = config->op.kind == FARM_NET_OP_NORM, picture = in.height > 0;
    struct farm_norm *own = layer->own;
    (void)err;
    *own = (struct farm_norm){.activation = config->op.activation,
                              .bf16 = config->type == dnnl_bf16,
                              .channels = in.channels * (picture && !norm ? in.width : 1),
                              .positions = !picture ? 1
                                           : norm   ? in.height * in.width
                                                    : in.height};
    own->padded = (own->channels + FARM_NORM_VECTOR - 1) / FARM_NORM_VECTOR * FARM_NORM_VECTOR;
    own->block = picture && norm && config->block ? config->block : own->channels;
    const size_t bytes = (size_t)own->padded * sizeof(float);
    farm_dnnl_reserve(layer->dnnl, FARM_NORM_SCRATCH * bytes);
    if (norm) farm_dnnl_keep_packed(layer->dnnl, bytes, &own->weight);
    if (norm) farm_dnnl_keep_packed(layer->dnnl, bytes, &own->bias);
    return FARM_OK;
}

static void load(struct farm_op_layer *layer, const float *params) {
    const struct farm_norm *own = layer->own;
    for (int c = 0; c < own->padded && own->weight; c++) {
        own->weight[c] = c < own->channels ? params[layer->config.weight_offset + (size_t)c] : 0;
        own->bias[c] = c < own->channels ? params[layer->config.bias_offset + (size_t)c] : 0;
    }
}

static void forward(struct farm_op_layer *layer, const struct farm_op_call *call) {
    const struct farm_norm_pictures pictures = {.x = layer->rows.in, .y = layer->rows.out};
    farm_norm_loops()->run(layer->own, &pictures, call->padded, layer->dnnl->scratch);
}

// A residual block has added to ReLU's input, and its gradient is there already.
static void backward(struct farm_op_layer *layer, const struct farm_op_call *call) {
    const struct farm_layer_rows *rows = &layer->rows;
    const struct farm_layer_config *config = &layer->config;
    float *dweight = call->grads + config->weight_offset, *dbias = call->grads + config->bias_offset;
    const struct farm_norm_pictures pictures = {rows->in, rows->diff_out, NULL, rows->diff_in, dweight, dbias};
    if (config->op.kind == FARM_NET_OP_RELU)
        farm_norm_loops()->slope(FARM_ACTIVATION_RELU, config->type == dnnl_bf16, rows->out, rows->diff_out,
                                 rows->diff_in, (size_t)call->padded * farm_shape_count(config->op.out));
    else
        farm_norm_loops()->run(layer->own, &pictures, call->padded, layer->dnnl->scratch);
}

const struct farm_op_methods farm_op_norm = {sizeof(struct farm_norm), make, load, forward, backward};
