// The op of a maximum over pictures (FARM_NET_OP_POOL, kernels/maxpool.h) in an executor.
#include "kernels/maxpool.h"

#include "nn/layer.h"

struct pool {
    struct farm_pool shape;
    int block;
    uint8_t *taps; // in training
};

static enum farm_status make(struct farm_op_layer *layer, struct farm_error *err) {
    const struct farm_layer_config *config = &layer->config;
    struct pool *pool = layer->own;
    (void)err;
    pool->shape = farm_net_pool(&config->op);
    pool->block = config->block ? config->block : config->op.in.channels;
    if (config->training)
        pool->taps = farm_dnnl_keep(layer->dnnl, (size_t)config->batch_max * farm_shape_count(config->op.out));
    return FARM_OK;
}

static void forward(struct farm_op_layer *layer, const struct farm_op_call *call) {
    const struct pool *pool = layer->own;
    farm_maxpool_loops(&pool->shape)
        ->forward(&pool->shape, pool->block, layer->config.type == dnnl_bf16, layer->rows.in, call->padded,
                  layer->rows.out, pool->taps);
}

static void backward(struct farm_op_layer *layer, const struct farm_op_call *call) {
    const struct pool *pool = layer->own;
    farm_maxpool_loops(&pool->shape)
        ->backward(&pool->shape, pool->block, layer->config.type == dnnl_bf16, layer->rows.diff_out, pool->taps,
                   call->padded, layer->rows.diff_in);
}

const struct farm_op_methods farm_op_pool = {sizeof(struct pool), make, NULL, forward, backward};
