// Parameters in the device's layout: a flat vector that is longer than PyTorch's. Every tensor starts at a multiple of
// FARM_CUDA_TENSOR_ALIGNMENT elements; the gaps and their gradients are zeros, so an optimiser may run over the whole
// vector. Convolutions are [out][kh][kw][in]; the columns of the first dense layer after a picture go by height, width,
// channel; both heads are one matrix and one vector of actions + 1 rows, padded with rows of zeros to a multiple of 8.
// Statistics (normalise.*) are not part of it: only the host reads them.
// The vector must start at a multiple of 256 bytes, as cudaMalloc's do. Pure functions over host memory.
#ifndef FARM_NN_CUDA_PARAMETER_LAYOUT_H
#define FARM_NN_CUDA_PARAMETER_LAYOUT_H

#include <stddef.h>

#include "nn/net.h"

enum { FARM_CUDA_TENSOR_ALIGNMENT = 128, FARM_CUDA_HEADS_MULTIPLE = 8 };

// Elements of the vector, a multiple of FARM_CUDA_TENSOR_ALIGNMENT.
size_t farm_cuda_parameter_count(const struct farm_net *net);

// pytorch [net->parameter_count] as in net.h, device [farm_cuda_parameter_count]; writes zeros into gaps, and leaves
// statistics in `pytorch` as they are. Gradients, masks and moments of optimisers are converted in the same way.
// Moments in gaps may start at any value: they change nothing.
void farm_cuda_to_device_layout(const struct farm_net *net, const float *pytorch, float *device);
void farm_cuda_to_pytorch_layout(const struct farm_net *net, const float *device, float *pytorch);

struct farm_cuda_parameter_layout {
    size_t weight[FARM_NET_OPS_MAX], bias[FARM_NET_OPS_MAX]; // in elements; of ops that have them
    int rows[FARM_NET_OPS_MAX];                              // rows of weight: the op's outputs, the heads' padded
    size_t count;
};
struct farm_cuda_parameter_layout farm_cuda_parameter_layout_of(const struct farm_net *net);

#endif
