// An op of a network that our own kernels compute in place of oneDNN: a pool (kernels/maxpool.h), or a convolution
// whose form says so (kernels/winograd.h). Runs in an executor's thread.
#ifndef FARM_NN_OWN_LAYER_H
#define FARM_NN_OWN_LAYER_H

#include "kernels/maxpool.h"
#include "kernels/winograd.h"
#include "nn/dnnl_layer.h"

enum farm_own_layer_kind { FARM_OWN_NONE, FARM_OWN_WINOGRAD, FARM_OWN_POOL };

struct farm_own_layer {
    enum farm_own_layer_kind kind; // NONE: oneDNN computes the op
    struct farm_dnnl_layer_config config;
    struct farm_winograd_shape conv;
    void *packed[2]; // weights by enum farm_winograd_pass; DATA: in training
    float *bias;     // [out.channels]
    struct farm_pool pool;
    int block;     // of the pool's pictures
    uint8_t *taps; // in training
};

// Which kernels compute the op in a form: blocks of so many channels (0: all), Winograd's convolutions or not.
enum farm_own_layer_kind farm_own_layer_kind_of(const struct farm_net_op *op, int block, bool winograd);

// False if there is no memory; drop it then too.
bool farm_own_layer_make(const struct farm_dnnl_layer_config *config, int block, bool winograd,
                         struct farm_own_layer *layer);
void farm_own_layer_drop(struct farm_own_layer *layer);

// Transforms this layer's part of the flat parameters, if it has any.
void farm_own_layer_load(struct farm_own_layer *layer, const float *params);

// Bytes of the next functions' scratch, which layers may share.
size_t farm_own_layer_scratch_bytes(const struct farm_own_layer *layer);

// As a farm_dnnl_layer's passes. run_back adds to this layer's part of grads.
void farm_own_layer_run(const struct farm_own_layer *layer, int batch, const struct farm_dnnl_layer_rows *rows,
                        void *scratch);
void farm_own_layer_run_back(const struct farm_own_layer *layer, int batch, const struct farm_dnnl_layer_rows *rows,
                             float *grads, void *scratch);

#endif
