// See net.h. Plain tables and arithmetic; allocates nothing.
#include "nn/net.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "kernels/random.h"

#define CONV(out_, kernel_, stride_)                                                                                   \
    {                                                                                                                  \
        .kind = FARM_LAYER_CONV, .out = (out_), .kernel = (kernel_), .stride = (stride_),                              \
        .activation = FARM_ACTIVATION_RELU                                                                             \
    }
#define DENSE(out_, activation_)                                                                                       \
    { .kind = FARM_LAYER_DENSE, .out = (out_), .activation = (activation_) }

static const struct farm_net_spec nets[] = {
    {.name = "shallow",
     .about = "IMPALA's small network: conv 16@8x8/4, 32@4x4/2, dense 256",
     .layer_count = 3,
     .layers = {CONV(16, 8, 4), CONV(32, 4, 2), DENSE(256, FARM_ACTIVATION_RELU)}},
    {.name = "nature",
     .about = "DQN's network: conv 32@8x8/4, 64@4x4/2, 64@3x3/1, dense 512",
     .layer_count = 4,
     .layers = {CONV(32, 8, 4), CONV(64, 4, 2), CONV(64, 3, 1), DENSE(512, FARM_ACTIVATION_RELU)}},
    {.name = "mlp",
     .about = "two hidden layers of 64 units with tanh, for flat observations",
     .layer_count = 2,
     .layers = {DENSE(64, FARM_ACTIVATION_TANH), DENSE(64, FARM_ACTIVATION_TANH)}},
};
enum { NET_COUNT = sizeof nets / sizeof nets[0] };

static const float policy_scale = 0.01f;

const struct farm_net_spec *farm_net_at(size_t i) {
    return i < NET_COUNT ? &nets[i] : NULL;
}

const struct farm_net_spec *farm_net_find(const char *name, struct farm_error *err) {
    for (size_t i = 0; i < NET_COUNT; i++)
        if (strcmp(nets[i].name, name) == 0) return &nets[i];
    char known[128] = "";
    for (size_t i = 0, n = 0; i < NET_COUNT && n < sizeof known; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i > 0 ? ", " : "", nets[i].name);
    farm_fail(err, FARM_E_NOT_FOUND, "there is no network \"%s\"; take one of: %s", name, known);
    return NULL;
}

// What one layer hands to the next: a picture, or a vector of `channels` numbers where height is 0.
struct shape {
    int channels, height, width;
};

static size_t shape_count(struct shape shape) {
    return (size_t)shape.channels * (shape.height > 0 ? (size_t)shape.height * (size_t)shape.width : 1);
}

static enum farm_status check_io(const struct farm_net_io *io, struct farm_error *err) {
    if (io->actions < 1)
        return farm_fail(err, FARM_E_INVALID, "a network needs at least one action, not %d", io->actions);
    if (io->stack < 1) return farm_fail(err, FARM_E_INVALID, "stack must be at least 1, not %d", io->stack);
    const bool frames = io->frame_channels > 0 && io->height > 0 && io->width > 0;
    const bool flat = io->flat > 0;
    if (frames == flat)
        return farm_fail(err, FARM_E_INVALID,
                         "the input must be either frames (%d channels of %dx%d) or flat (%d numbers)",
                         io->frame_channels, io->height, io->width, io->flat);
    if (flat && io->stack != 1)
        return farm_fail(err, FARM_E_INVALID, "flat observations are not stacked: stack must be 1, not %d", io->stack);
    if (frames && (double)io->stack * io->frame_channels * io->height * io->width > INT_MAX)
        return farm_fail(err, FARM_E_INVALID, "%d frames of %d channels of %dx%d are too large an input", io->stack,
                         io->frame_channels, io->height, io->width);
    return FARM_OK;
}

static void append(struct farm_net *net, const char *name, const int *dims, int rank) {
    assert(net->tensor_count < FARM_TENSORS_MAX);
    struct farm_tensor *tensor = &net->tensors[net->tensor_count++];
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    tensor->rank = rank;
    tensor->offset = net->parameter_count;
    tensor->count = 1;
    for (int i = 0; i < rank; i++) {
        tensor->dims[i] = dims[i];
        tensor->count *= (size_t)dims[i];
    }
    net->parameter_count += tensor->count;
}

// Appends the tensors of layer i and turns *shape from its input into its output.
static enum farm_status append_layer(struct farm_net *net, int i, struct shape *shape, struct farm_error *err) {
    const struct farm_layer *layer = &net->spec->layers[i];
    const bool conv = layer->kind == FARM_LAYER_CONV;
    int dims[4] = {layer->out};
    if (layer->out < 1) return farm_fail(err, FARM_E_INVALID, "layer %d has %d outputs", i, layer->out);
    if (conv) {
        if (shape->height == 0)
            return farm_fail(err, FARM_E_INVALID,
                             "network %s: layer %d is a convolution, but its input is flat; take \"mlp\"",
                             net->spec->name, i);
        if (layer->kernel < 1 || layer->stride < 1 || layer->activation != FARM_ACTIVATION_RELU)
            return farm_fail(err, FARM_E_INVALID,
                             "network %s: layer %d: a convolution has kernel and stride >= 1 and ReLU", net->spec->name,
                             i);
        if (shape->height < layer->kernel || shape->width < layer->kernel)
            return farm_fail(err, FARM_E_INVALID,
                             "network %s: the input is too small: layer %d gets %dx%d, its kernel is %dx%d",
                             net->spec->name, i, shape->height, shape->width, layer->kernel, layer->kernel);
        dims[1] = shape->channels;
        dims[2] = dims[3] = layer->kernel;
        *shape = (struct shape){layer->out, (shape->height - layer->kernel) / layer->stride + 1,
                                (shape->width - layer->kernel) / layer->stride + 1};
    } else {
        dims[1] = (int)shape_count(*shape);
        *shape = (struct shape){.channels = layer->out};
    }
    if ((double)shape->channels * (shape->height + 1) * (shape->width + 1) > INT_MAX)
        return farm_fail(err, FARM_E_INVALID, "network %s: layer %d is too large", net->spec->name, i);
    char name[FARM_TENSOR_NAME_MAX];
    snprintf(name, sizeof name, "layers.%d.weight", i);
    append(net, name, dims, conv ? 4 : 2);
    snprintf(name, sizeof name, "layers.%d.bias", i);
    append(net, name, dims, 1);
    return FARM_OK;
}

enum farm_status farm_net_make(const struct farm_net_spec *spec, const struct farm_net_io *io, struct farm_net *net,
                               struct farm_error *err) {
    const enum farm_status status = check_io(io, err);
    if (status != FARM_OK) return status;
    if (spec->layer_count < 1 || spec->layer_count > FARM_NET_LAYERS_MAX)
        return farm_fail(err, FARM_E_INVALID, "network %s has %d layers; 1 to %d are possible", spec->name,
                         spec->layer_count, FARM_NET_LAYERS_MAX);
    *net = (struct farm_net){.spec = spec, .io = *io};
    struct shape shape = {.channels = io->flat};
    if (io->flat == 0) {
        if (spec->layers[0].kind != FARM_LAYER_CONV)
            return farm_fail(err, FARM_E_INVALID,
                             "network %s takes flat observations, not frames; take \"shallow\" or \"nature\"",
                             spec->name);
        shape = (struct shape){io->stack * io->frame_channels, io->height, io->width};
    }
    for (int i = 0; i < spec->layer_count; i++) {
        const enum farm_status made = append_layer(net, i, &shape, err);
        if (made != FARM_OK) return made;
    }
    const int features = (int)shape_count(shape);
    append(net, "policy.weight", (int[]){io->actions, features}, 2);
    append(net, "value.weight", (int[]){1, features}, 2);
    append(net, "policy.bias", (int[]){io->actions}, 1);
    append(net, "value.bias", (int[]){1}, 1);
    return FARM_OK;
}

void farm_net_init(const struct farm_net *net, uint64_t seed, float *params) {
    const uint64_t key = farm_random_mix(seed);
    for (int t = 0; t < net->tensor_count; t++) {
        const struct farm_tensor *tensor = &net->tensors[t];
        float *out = params + tensor->offset;
        if (tensor->rank == 1) {
            memset(out, 0, tensor->count * sizeof *out);
            continue;
        }
        const float fan_in = (float)(tensor->count / (size_t)tensor->dims[0]);
        const float scale = strcmp(tensor->name, "policy.weight") == 0 ? policy_scale : 1.0f;
        const float bound = scale / sqrtf(fan_in);
        for (size_t i = 0; i < tensor->count; i++)
            out[i] = bound * (2.0f * farm_random_uniform(key, (uint64_t)t, i) - 1.0f);
    }
}
