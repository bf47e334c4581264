// See own_layer.h.
#include "nn/own_layer.h"

#include <stdlib.h>
#include <string.h>

static struct farm_winograd_shape conv_of(const struct farm_net_op *op, int block) {
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

enum farm_own_layer_kind farm_own_layer_kind_of(const struct farm_net_op *op, int block, bool winograd) {
    if (op->kind == FARM_NET_OP_POOL) return FARM_OWN_POOL;
    if (!winograd || op->kind != FARM_NET_OP_CONV || op->activation == FARM_ACTIVATION_TANH) return FARM_OWN_NONE;
    const struct farm_winograd_shape conv = conv_of(op, block);
    return farm_winograd_runs(&conv) ? FARM_OWN_WINOGRAD : FARM_OWN_NONE;
}

bool farm_own_layer_make(const struct farm_dnnl_layer_config *config, int block, bool winograd,
                         struct farm_own_layer *layer) {
    const struct farm_net_op *op = &config->op;
    *layer = (struct farm_own_layer){.kind = farm_own_layer_kind_of(op, block, winograd), .config = *config};
    if (layer->kind == FARM_OWN_POOL) {
        layer->pool = farm_net_pool(op);
        layer->block = block ? block : op->in.channels;
        if (!config->training) return true;
        layer->taps = farm_dnnl_alloc((size_t)config->batch_max * farm_shape_count(op->out));
        return layer->taps != NULL;
    }
    if (layer->kind == FARM_OWN_NONE) return true;
    layer->conv = conv_of(op, block);
    for (int pass = 0; pass < (config->training ? 2 : 1); pass++)
        if ((layer->packed[pass] = farm_dnnl_alloc(farm_winograd_packed_bytes(&layer->conv))) == NULL) return false;
    layer->bias = farm_dnnl_alloc((size_t)op->out.channels * sizeof *layer->bias);
    return layer->bias != NULL;
}

void farm_own_layer_drop(struct farm_own_layer *layer) {
    for (int pass = 0; pass < 2; pass++) free(layer->packed[pass]);
    free(layer->bias);
    free(layer->taps);
    *layer = (struct farm_own_layer){0};
}

void farm_own_layer_load(struct farm_own_layer *layer, const float *params) {
    for (int pass = 0; pass < 2 && layer->packed[pass] != NULL; pass++)
        farm_winograd_loops()->pack(&layer->conv, (enum farm_winograd_pass)pass, params + layer->config.weight_offset,
                                    layer->packed[pass]);
    if (layer->bias)
        memcpy(layer->bias, params + layer->config.bias_offset, (size_t)layer->conv.outputs * sizeof *layer->bias);
}

size_t farm_own_layer_scratch_bytes(const struct farm_own_layer *layer) {
    return layer->kind == FARM_OWN_WINOGRAD ? farm_winograd_loops()->scratch_bytes(&layer->conv) : 0;
}

void farm_own_layer_run(const struct farm_own_layer *layer, int batch, const struct farm_dnnl_layer_rows *rows,
                        void *scratch) {
    const struct farm_net_op *op = &layer->config.op;
    if (layer->kind == FARM_OWN_POOL)
        farm_maxpool_loops(&layer->pool)
            ->forward(&layer->pool, layer->block, layer->config.type == dnnl_bf16, rows->in, batch, rows->out,
                      layer->taps);
    else
        farm_winograd_loops()->forward(&layer->conv, layer->packed[FARM_WINOGRAD_FORWARD], layer->bias, rows->in, batch,
                                       op->skip >= 0, op->activation == FARM_ACTIVATION_RELU, rows->out, scratch);
}

void farm_own_layer_run_back(const struct farm_own_layer *layer, int batch, const struct farm_dnnl_layer_rows *rows,
                             float *grads, void *scratch) {
    if (layer->kind == FARM_OWN_POOL) {
        farm_maxpool_loops(&layer->pool)
            ->backward(&layer->pool, layer->block, layer->config.type == dnnl_bf16, rows->diff_out, layer->taps, batch,
                       rows->diff_in);
        return;
    }
    farm_winograd_loops()->backward(&layer->conv, layer->packed[FARM_WINOGRAD_DATA], rows->in, rows->diff_out, batch,
                                    rows->diff_in, grads + layer->config.weight_offset,
                                    grads + layer->config.bias_offset, scratch);
}
