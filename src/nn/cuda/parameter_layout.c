// See parameter_layout.h.
#include "nn/cuda/parameter_layout.h"

#include <stdbool.h>
#include <string.h>

static size_t round_up(size_t count, size_t multiple) {
    return (count + multiple - 1) / multiple * multiple;
}

// Inputs of one output: [channels][height][width] in PyTorch's order, [height][width][channels] in the device's.
static struct farm_shape inputs_of(const struct farm_net *net, const struct farm_net_op *op) {
    const int *dims = net->tensors[op->weight].dims;
    if (op->kind == FARM_NET_OP_DENSE && op->in.height > 0) return op->in;
    return op->kind == FARM_NET_OP_CONV ? (struct farm_shape){dims[1], dims[2], dims[3]}
                                        : (struct farm_shape){op->kind == FARM_NET_OP_NORM ? 1 : dims[1], 1, 1};
}

// Rows of its weight, without padding; the heads have one more, the value's.
static size_t outputs_of(const struct farm_net *net, const struct farm_net_op *op) {
    return (size_t)net->tensors[op->weight].dims[0] + (op == &net->ops[net->op_count - 1]);
}

struct farm_cuda_parameter_layout farm_cuda_parameter_layout_of(const struct farm_net *net) {
    struct farm_cuda_parameter_layout layout = {.count = 0};
    for (int i = 0; i < net->op_count; i++) {
        const struct farm_net_op *op = &net->ops[i];
        if (op->weight < 0) continue;
        const bool heads = i == net->op_count - 1;
        const size_t rows = round_up(outputs_of(net, op), heads ? FARM_CUDA_HEADS_MULTIPLE : 1);
        layout.rows[i] = (int)rows;
        layout.weight[i] = layout.count;
        layout.count += round_up(rows * farm_shape_count(inputs_of(net, op)), FARM_CUDA_TENSOR_ALIGNMENT);
        layout.bias[i] = layout.count;
        layout.count += round_up(rows, FARM_CUDA_TENSOR_ALIGNMENT);
    }
    return layout;
}

size_t farm_cuda_parameter_count(const struct farm_net *net) {
    return farm_cuda_parameter_layout_of(net).count;
}

// Copies element `device` of one vector from or to element `pytorch` of the other.
static void copy_element(const float *from, float *to, size_t device, size_t pytorch, bool to_device) {
    if (to_device)
        to[device] = from[pytorch];
    else
        to[pytorch] = from[device];
}

static void copy_op(const struct farm_net *net, const struct farm_net_op *op, size_t weight, size_t bias,
                    const float *from, float *to, bool to_device) {
    const struct farm_shape in = inputs_of(net, op);
    const size_t channels = (size_t)in.channels, height = (size_t)in.height, width = (size_t)in.width;
    size_t pytorch = net->tensors[op->weight].offset; // the heads' second tensor follows their first
    for (size_t row = 0; row < outputs_of(net, op); row++, weight += channels * height * width) {
        for (size_t c = 0; c < channels; c++)
            for (size_t yx = 0; yx < height * width; yx++, pytorch++)
                copy_element(from, to, weight + yx * channels + c, pytorch, to_device);
        copy_element(from, to, bias + row, net->tensors[op->bias].offset + row, to_device);
    }
}

static void copy_all(const struct farm_net *net, const float *from, float *to, bool to_device) {
    const struct farm_cuda_parameter_layout layout = farm_cuda_parameter_layout_of(net);
    for (int i = 0; i < net->op_count; i++)
        if (net->ops[i].weight >= 0) copy_op(net, &net->ops[i], layout.weight[i], layout.bias[i], from, to, to_device);
}

void farm_cuda_to_device_layout(const struct farm_net *net, const float *pytorch, float *device) {
    memset(device, 0, farm_cuda_parameter_count(net) * sizeof *device);
    copy_all(net, pytorch, device, true);
}

void farm_cuda_to_pytorch_layout(const struct farm_net *net, const float *device, float *pytorch) {
    copy_all(net, device, pytorch, false);
}
