// Where the parameters of each op stand in the vector in device order (executor.h). Pure.
#ifndef FARM_NN_CUDA_ORDER_H
#define FARM_NN_CUDA_ORDER_H

#include <stddef.h>

#include "nn/net.h"

struct farm_cuda_order {
    size_t weight[FARM_NET_OPS_MAX], bias[FARM_NET_OPS_MAX]; // in elements; of ops that have them
    int rows[FARM_NET_OPS_MAX];                              // of weight: the op's outputs, the heads' padded
    size_t count;
};
struct farm_cuda_order farm_cuda_order_of(const struct farm_net *net);

#endif
