// The op that joins a flat input to features (join.h) in an executor.
#include <string.h>

#include "nn/join.h"
#include "nn/layer.h"

static enum farm_status make(struct farm_op_layer *layer, struct farm_error *err) {
    struct farm_join *join = layer->own;
    const size_t flat = (size_t)layer->net->io.flat;
    (void)err;
    *join = (struct farm_join){
        .features = layer->config.op.in.channels, .flat = layer->net->io.flat, .bf16 = layer->config.type == dnnl_bf16};
    farm_dnnl_keep_packed(layer->dnnl, FARM_NET_JOIN_UNITS * flat * sizeof(float), &join->weight);
    farm_dnnl_keep_packed(layer->dnnl, FARM_NET_JOIN_UNITS * sizeof(float), &join->bias);
    return FARM_OK;
}

static void load(struct farm_op_layer *layer, const float *params) {
    const struct farm_join *join = layer->own;
    const size_t flat = (size_t)join->flat;
    memcpy(join->weight, params + layer->config.weight_offset, FARM_NET_JOIN_UNITS * flat * sizeof *join->weight);
    memcpy(join->bias, params + layer->config.bias_offset, FARM_NET_JOIN_UNITS * sizeof *join->bias);
}

static void forward(struct farm_op_layer *layer, const struct farm_op_call *call) {
    farm_join_forward(layer->own, layer->rows.in, call->flat, call->rows, layer->rows.out);
    farm_pad_rows(layer->rows.out, farm_dnnl_row_bytes(layer->config.op.out, layer->config.type), call);
}

static void backward(struct farm_op_layer *layer, const struct farm_op_call *call) {
    const struct farm_layer_rows *rows = &layer->rows;
    farm_join_backward(layer->own, call->flat, rows->out, rows->diff_out, call->rows, rows->diff_in,
                       call->grads + layer->config.weight_offset, call->grads + layer->config.bias_offset);
    farm_pad_rows(rows->diff_in, farm_dnnl_row_bytes(layer->config.op.in, layer->config.type), call);
}

const struct farm_op_methods farm_op_join = {sizeof(struct farm_join), make, load, forward, backward};
