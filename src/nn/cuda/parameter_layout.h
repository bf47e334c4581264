// Parameters in device order, and where those of each op stand in it. Pure.
#ifndef FARM_NN_CUDA_PARAMETER_LAYOUT_H
#define FARM_NN_CUDA_PARAMETER_LAYOUT_H

#include <stddef.h>

#include "nn/net.h"

// ---- parameters in device order: a flat vector that is longer than PyTorch's ----
//
// Every tensor starts at a multiple of FARM_CUDA_TENSOR_ALIGNMENT elements; the gaps are zeros, their gradients too, so
// that an optimiser may run over the whole vector. Convolutions are [out][kh][kw][in]; the columns of the first dense
// layer behind a picture go by height, width, channel; both heads are one matrix and one vector of actions + 1 rows,
// padded with rows of zeros to a multiple of 8. The vector's own address must be a multiple of 256 bytes (cudaMalloc's
// are).
enum { FARM_CUDA_TENSOR_ALIGNMENT = 128, FARM_CUDA_HEADS_MULTIPLE = 8 };

// Elements of the vector in device order, a multiple of FARM_CUDA_TENSOR_ALIGNMENT; at least net->parameter_count.
size_t farm_cuda_parameter_count(const struct farm_net *net);

// Pure functions over host memory: pytorch [net->parameter_count] as in net.h, device [farm_cuda_executor_parameter_
// count]. The gaps are written as zeros. Gradients and moments of optimisers go the same ways. An optimiser whose
// moments do not start at zero (RMSProp: second_initial) may start gaps at whatever it likes: they change nothing.
void farm_cuda_to_device_layout(const struct farm_net *net, const float *pytorch, float *device);
void farm_cuda_to_pytorch_layout(const struct farm_net *net, const float *device, float *pytorch);

struct farm_cuda_parameter_layout {
    size_t weight[FARM_NET_OPS_MAX], bias[FARM_NET_OPS_MAX]; // in elements; of ops that have them
    int rows[FARM_NET_OPS_MAX];                              // of weight: the op's outputs, the heads' padded
    size_t count;
};
struct farm_cuda_parameter_layout farm_cuda_parameter_layout_of(const struct farm_net *net);

#endif
