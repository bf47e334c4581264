// Networks as tables of layers, and their parameters as one flat vector of named tensors. This header knows shapes and
// numbers of parameters only; who computes them stands in executor.h (CPU) and in the CUDA backend. Runs in the
// learner, in actors with local inference and in tools; no threads, no files.
#ifndef FARM_NN_NET_H
#define FARM_NN_NET_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum farm_layer_kind {
    FARM_LAYER_CONV,  // 2-D convolution, square kernel, no padding, then ReLU
    FARM_LAYER_DENSE, // flatten where needed, product, then the activation
};

enum farm_activation { FARM_ACTIVATION_RELU, FARM_ACTIVATION_TANH };

struct farm_layer {
    enum farm_layer_kind kind;
    int out;    // channels (conv) or units (dense)
    int kernel; // conv only
    int stride; // conv only
    enum farm_activation activation;
};

enum { FARM_NET_LAYERS_MAX = 16, FARM_TENSORS_MAX = 2 * (FARM_NET_LAYERS_MAX + 2), FARM_TENSOR_NAME_MAX = 48 };

struct farm_net_spec {
    const char *name;  // "shallow", "nature", "mlp"
    const char *about; // one line for --help
    int layer_count;
    struct farm_layer layers[FARM_NET_LAYERS_MAX];
};

// Known networks; NULL-terminated by index: i = 0, 1, ... until NULL.
//   shallow  IMPALA's small net (Espeholt et al. 2018, fig. 3 left, without the LSTM): conv 16@8x8/4, 32@4x4/2, FC 256
//   nature   Mnih et al. 2015: conv 32@8x8/4, 64@4x4/2, 64@3x3/1, FC 512
//   mlp      two hidden layers of 64 units, tanh
const struct farm_net_spec *farm_net_at(size_t i);
const struct farm_net_spec *farm_net_find(const char *name, struct farm_error *err);

// What enters and leaves the network.
struct farm_net_io {
    int frame_channels; // channels of one stored frame (1 grey, 3 RGB); 0: flat input
    int height, width;  // pixels of a frame; 0 for flat input
    int stack;          // frames stacked, >= 1; input channels = stack * frame_channels, oldest frame first
    int flat;           // length of a flat f32 input; 0 for frames
    int actions;        // policy logits; a value head of one output stands beside
};

struct farm_tensor {
    char name[FARM_TENSOR_NAME_MAX]; // "layers.0.weight", "layers.0.bias", "policy.weight", "value.bias", ...
    int dims[4]; // PyTorch order: conv [out][in][kh][kw], dense [out][in]; dense after conv: in = C*H*W, C slowest
    int rank;
    size_t offset; // in floats from the start of the flat vector
    size_t count;  // in floats
};

struct farm_net {
    const struct farm_net_spec *spec;
    struct farm_net_io io;
    int tensor_count;
    struct farm_tensor tensors[FARM_TENSORS_MAX];
    size_t parameter_count;
};

// Works out all shapes. Tensors stand in the order of the layers, weight before bias; then policy.weight, value.weight,
// policy.bias, value.bias, so that both heads are one product of actions + 1 outputs. FARM_E_INVALID with the reason
// where the input is too small for a layer, or frames meet an mlp.
enum farm_status farm_net_make(const struct farm_net_spec *spec, const struct farm_net_io *io, struct farm_net *net,
                               struct farm_error *err);

// Initial parameters: orthogonal is not needed; PyTorch's default uniform(-1/sqrt(fan_in), 1/sqrt(fan_in)) for hidden
// layers, policy head scaled by 0.01, value head by 1, biases zero. Deterministic in seed on every machine.
void farm_net_init(const struct farm_net *net, uint64_t seed, float *params /* [parameter_count] */);

#endif
