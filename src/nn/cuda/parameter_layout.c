// See parameter_layout.h, and executor.h for the order itself.
#include "nn/cuda/parameter_layout.h"

#include <stdbool.h>
#include <string.h>

static size_t round_up(size_t count, size_t multiple) {
    return (count + multiple - 1) / multiple * multiple;
}

// Inputs of one output: a convolution's kernel, or everything that a dense layer reads. [channels][height][width] in
// PyTorch's order, [height][width][channels] in the device's.
static struct farm_shape inputs_of(const struct farm_net_op *op) {
    if (op->kind == FARM_NET_OP_CONV) return (struct farm_shape){op->in.channels, op->kernel, op->kernel};
    return (struct farm_shape){op->in.channels, op->in.height > 0 ? op->in.height : 1,
                               op->in.height > 0 ? op->in.width : 1};
}

struct farm_cuda_parameter_layout farm_cuda_parameter_layout_of(const struct farm_net *net) {
    struct farm_cuda_parameter_layout layout = {.count = 0};
    for (int i = 0; i < net->op_count; i++) {
        const struct farm_net_op *op = &net->ops[i];
        if (op->weight < 0) continue;
        const bool heads = i == net->op_count - 1;
        const size_t rows = round_up((size_t)op->out.channels, heads ? FARM_CUDA_HEADS_MULTIPLE : 1);
        layout.rows[i] = (int)rows;
        layout.weight[i] = layout.count;
        layout.count += round_up(rows * farm_shape_count(inputs_of(op)), FARM_CUDA_TENSOR_ALIGNMENT);
        layout.bias[i] = layout.count;
        layout.count += round_up(rows, FARM_CUDA_TENSOR_ALIGNMENT);
    }
    return layout;
}

size_t farm_cuda_parameter_count(const struct farm_net *net) {
    return farm_cuda_parameter_layout_of(net).count;
}

// Calls `move` for every weight of the op with its places in both vectors.
static void move_weights(const struct farm_net *net, const struct farm_net_op *op, size_t device, const float *from,
                         float *to, bool to_device) {
    const struct farm_shape in = inputs_of(op);
    const size_t channels = (size_t)in.channels, height = (size_t)in.height, width = (size_t)in.width;
    size_t pytorch = net->tensors[op->weight].offset; // the heads' second tensor follows their first
    for (size_t row = 0; row < (size_t)op->out.channels; row++, device += channels * height * width)
        for (size_t c = 0; c < channels; c++)
            for (size_t y = 0; y < height; y++)
                for (size_t x = 0; x < width; x++, pytorch++) {
                    const size_t at = device + (y * width + x) * channels + c;
                    if (to_device)
                        to[at] = from[pytorch];
                    else
                        to[pytorch] = from[at];
                }
}

static void move_all(const struct farm_net *net, const float *from, float *to, bool to_device) {
    const struct farm_cuda_parameter_layout layout = farm_cuda_parameter_layout_of(net);
    for (int i = 0; i < net->op_count; i++) {
        const struct farm_net_op *op = &net->ops[i];
        if (op->weight < 0) continue;
        const size_t pytorch = net->tensors[op->bias].offset, count = (size_t)op->out.channels;
        move_weights(net, op, layout.weight[i], from, to, to_device);
        if (to_device)
            memcpy(to + layout.bias[i], from + pytorch, count * sizeof *to);
        else
            memcpy(to + pytorch, from + layout.bias[i], count * sizeof *to);
    }
}

void farm_cuda_to_device_layout(const struct farm_net *net, const float *pytorch, float *device) {
    memset(device, 0, farm_cuda_parameter_count(net) * sizeof *device);
    move_all(net, pytorch, device, true);
}

void farm_cuda_to_pytorch_layout(const struct farm_net *net, const float *device, float *pytorch) {
    move_all(net, device, pytorch, false);
}
