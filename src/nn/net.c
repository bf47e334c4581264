// See net.h. Tables and arithmetic; allocates nothing.
#include "nn/net.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/random.h"

enum { OUTPUTS_MAX = 1 << 26 }; // a layer's numbers for one row
static const float policy_scale = 0.01f;
static const uint64_t half_stream = 88; // random numbers of a tensor's second half; separate networks have fewer

size_t farm_shape_count(struct farm_shape shape) {
    return (size_t)shape.channels * (shape.height > 0 ? (size_t)shape.height * (size_t)shape.width : 1);
}

static bool has_frames(const struct farm_net_io *io) {
    return io->frame_channels > 0;
}

// Writes out the defaults.
static void complete_io(struct farm_net_io *io) {
    if (io->images == 0) io->images = 1;
    if (io->lstm == 0) io->lstm_layers = 0;
    if (io->flat == 0 || io->input_count > 0) return;
    io->inputs[0] = (struct farm_net_input){.kind = FARM_INPUT_NUMBERS, .count = io->flat};
    io->input_count = 1;
}

static enum farm_status check_io(const struct farm_net_io *io, struct farm_error *err) {
    if (io->actions < 1)
        return farm_fail(err, FARM_E_INVALID, "a network needs at least one action, not %d", io->actions);
    if (io->stack < 1) return farm_fail(err, FARM_E_INVALID, "stack must be at least 1, not %d", io->stack);
    const bool frames = io->frame_channels > 0 && io->height > 0 && io->width > 0;
    int flat = 0;
    for (int i = 0; i < io->input_count; i++) flat += farm_net_input_width(&io->inputs[i]);
    if (frames != has_frames(io) || (!frames && io->flat < 1) || flat != io->flat)
        return farm_fail(err, FARM_E_INVALID,
                         "invalid input: frames of %d channels of %dx%d, and %d numbers in %d parts of %d together",
                         io->frame_channels, io->height, io->width, io->flat, io->input_count, flat);
    if (!frames && io->stack != 1)
        return farm_fail(err, FARM_E_INVALID, "flat observations are not stacked: stack must be 1, not %d", io->stack);
    if ((double)io->images * io->stack * io->frame_channels * io->height * io->width > INT_MAX)
        return farm_fail(err, FARM_E_INVALID, "the input is too large: %d frames of %d channels of %dx%d",
                         io->images * io->stack, io->frame_channels, io->height, io->width);
    return FARM_OK;
}

static enum farm_status check_lstm(const struct farm_net_spec *spec, const struct farm_net_io *io,
                                   struct farm_error *err) {
    if (io->lstm == 0) return FARM_OK;
    if (io->lstm < 0 || io->lstm > FARM_NET_LSTM_UNITS_MAX)
        return farm_fail(err, FARM_E_INVALID, "an LSTM layer has 1 to %d units (0: no LSTM), not %d",
                         FARM_NET_LSTM_UNITS_MAX, io->lstm);
    if (io->lstm_layers < 1 || io->lstm_layers > FARM_NET_LSTM_LAYERS_MAX)
        return farm_fail(err, FARM_E_INVALID, "an LSTM has 1 to %d layers, not %d", FARM_NET_LSTM_LAYERS_MAX,
                         io->lstm_layers);
    if (spec->separate)
        return farm_fail(err, FARM_E_INVALID,
                         "network %s cannot have an LSTM, which would join the policy and the value; use \"mlp\"",
                         spec->text);
    return FARM_OK;
}

// Returns the tensor's index.
static int append_tensor(struct farm_net *net, const char *name, const int *dims, int rank) {
    assert(net->tensor_count < FARM_TENSORS_MAX);
    struct farm_tensor *tensor = &net->tensors[net->tensor_count];
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    tensor->rank = rank;
    tensor->offset = net->parameter_count;
    tensor->count = 1;
    for (int i = 0; i < rank; i++) {
        tensor->dims[i] = dims[i];
        if (tensor->count <= UINT32_MAX) tensor->count *= (size_t)dims[i]; // else refused, without an overflow
    }
    net->parameter_count += tensor->count;
    return net->tensor_count++;
}

// The input of the next op.
static struct farm_shape next_in(const struct farm_net *net) {
    if (net->op_count > 0) return net->ops[net->op_count - 1].out;
    if (!has_frames(&net->io)) return (struct farm_shape){.channels = net->io.flat};
    return (struct farm_shape){net->io.images * net->io.stack * net->io.frame_channels, net->io.height, net->io.width};
}

// Appends an op; its output has its input's shape.
static struct farm_net_op *append_op(struct farm_net *net, enum farm_net_op_kind kind,
                                     enum farm_activation activation) {
    assert(net->op_count < FARM_NET_OPS_MAX);
    const struct farm_shape in = next_in(net);
    struct farm_net_op *op = &net->ops[net->op_count++];
    *op = (struct farm_net_op){
        .kind = kind, .activation = activation, .skip = -1, .weight = -1, .bias = -1, .in = in, .out = in};
    return op;
}

// Sets the op's kernel, its padding, and its output's height and width.
static void set_kernel(struct farm_net_op *op, int kernel, int stride, bool same) {
    const int sizes[2] = {op->in.height, op->in.width};
    int *const outs[2] = {&op->out.height, &op->out.width};
    op->kernel = kernel;
    op->stride = stride;
    for (int i = 0; i < 2; i++) {
        *outs[i] = (same ? sizes[i] - 1 : sizes[i] - kernel) / stride + 1;
        const int lacking = (*outs[i] - 1) * stride + kernel - sizes[i];
        if (!same || lacking <= 0) continue;
        op->pad_before[i] = lacking / 2;
        op->pad_after[i] = lacking - lacking / 2;
    }
}

// Appends "layers.<i>.<part>weight" and "...bias" of an op whose input and kernel are set.
static void append_weights(struct farm_net *net, struct farm_net_op *op, int i, const char *part) {
    const bool conv = op->kind == FARM_NET_OP_CONV, norm = op->kind == FARM_NET_OP_NORM;
    const int dims[4] = {op->out.channels, conv ? op->in.channels : (int)farm_shape_count(op->in), op->kernel,
                         op->kernel};
    char name[FARM_TENSOR_NAME_MAX];
    snprintf(name, sizeof name, "layers.%d.%sweight", i, part);
    op->weight = append_tensor(net, name, dims, conv ? 4 : norm ? 1 : 2);
    snprintf(name, sizeof name, "layers.%d.%sbias", i, part);
    op->bias = append_tensor(net, name, dims, 1);
}

static struct farm_net_op *append_conv(struct farm_net *net, int i, const char *part, int stride, bool same,
                                       enum farm_activation activation) {
    const struct farm_layer *layer = &net->spec.layers[i];
    struct farm_net_op *op = append_op(net, FARM_NET_OP_CONV, activation);
    op->out.channels = layer->out;
    set_kernel(op, layer->kernel, stride, same);
    append_weights(net, op, i, part);
    return op;
}

static void append_residual(struct farm_net *net, int i) {
    const int skip = net->op_count - 1;
    append_op(net, FARM_NET_OP_RELU, FARM_ACTIVATION_RELU);
    append_conv(net, i, "conv0.", 1, true, FARM_ACTIVATION_RELU);
    append_conv(net, i, "conv1.", 1, true, net->spec.layers[i].activation)->skip = skip;
}

static void append_dense(struct farm_net *net, int i) {
    struct farm_net_op *op = append_op(net, FARM_NET_OP_DENSE, net->spec.layers[i].activation);
    op->out = (struct farm_shape){.channels = net->spec.layers[i].out};
    append_weights(net, op, i, "");
}

// Gives the last op's activation to an op of its own if executors do not fuse it.
static void append_activation(struct farm_net *net) {
    struct farm_net_op *op = &net->ops[net->op_count - 1];
    const enum farm_activation activation = op->activation;
    if (op->kind == FARM_NET_OP_NORM || activation == FARM_ACTIVATION_RELU || activation == FARM_ACTIVATION_NONE ||
        (op->kind == FARM_NET_OP_DENSE && activation == FARM_ACTIVATION_TANH))
        return;
    op->activation = FARM_ACTIVATION_NONE;
    append_op(net, FARM_NET_OP_ACTIVATION, activation);
}

// Says why layer i is refused: layer, input, reason.
#define REFUSE(net, i, err, ...)                                                                                       \
    (farm_fail(err, FARM_E_INVALID, __VA_ARGS__), farm_net_fail_layer(&(net)->spec, (net)->spec.words[i], err))

// Checks layer i, which reads a picture.
static enum farm_status check_picture(const struct farm_net *net, int i, struct farm_error *err) {
    const struct farm_layer *layer = &net->spec.layers[i];
    const struct farm_shape in = next_in(net);
    const bool residual = layer->kind == FARM_LAYER_RESIDUAL;
    if (in.height == 0)
        return REFUSE(net, i, err, "it reads a picture, but its input is a vector of %d numbers; %s", in.channels,
                      has_frames(&net->io) ? "put it before the first `dense`"
                                           : "use `dense` layers, \"mlp\" or \"separate\"");
    if (layer->kind == FARM_LAYER_CONV && (in.height < layer->kernel || in.width < layer->kernel))
        return REFUSE(net, i, err, "kernel %d exceeds its input, %dx%d; use a smaller kernel, or `same`", layer->kernel,
                      in.height, in.width);
    if (residual && net->ops[net->op_count - 1].activation != FARM_ACTIVATION_NONE)
        return REFUSE(net, i, err, "a residual block follows a layer without activation; write `none` there");
    if (residual && layer->out != in.channels)
        return REFUSE(net, i, err, "a residual block has as many channels as its input, %d", in.channels);
    return FARM_OK;
}

// Appends the tensors and ops of layer i.
static enum farm_status append_layer(struct farm_net *net, int i, struct farm_error *err) {
    const struct farm_layer *layer = &net->spec.layers[i];
    const bool conv = layer->kind == FARM_LAYER_CONV || layer->kind == FARM_LAYER_CONV_SAME;
    const bool norm = layer->kind == FARM_LAYER_NORM;
    if (net->op_count == 0 && has_frames(&net->io) && !conv)
        return REFUSE(net, i, err,
                      "the first layer over frames must be `conv` or `section`, as in shallow, nature, "
                      "lite, deep");
    if (net->spec.separate && layer->kind != FARM_LAYER_DENSE)
        return REFUSE(net, i, err, "`separate` is for `dense` layers alone%s",
                      norm ? ": `norm` would join the policy and the value" : "");
    if (layer->kind != FARM_LAYER_DENSE && !norm) {
        const enum farm_status status = check_picture(net, i, err);
        if (status != FARM_OK) return status;
    }
    switch (layer->kind) {
    case FARM_LAYER_CONV:
    case FARM_LAYER_CONV_SAME:
        append_conv(net, i, "", layer->stride, layer->kind == FARM_LAYER_CONV_SAME, layer->activation);
        break;
    case FARM_LAYER_POOL:
        set_kernel(append_op(net, FARM_NET_OP_POOL, layer->activation), layer->kernel, layer->stride, true);
        break;
    case FARM_LAYER_RESIDUAL:
        append_residual(net, i);
        break;
    case FARM_LAYER_DENSE:
        append_dense(net, i);
        break;
    case FARM_LAYER_NORM:
        append_weights(net, append_op(net, FARM_NET_OP_NORM, layer->activation), i, "");
        break;
    }
    append_activation(net);
    const struct farm_shape out = next_in(net);
    if ((double)out.channels * (out.height + 1) * (out.width + 1) > OUTPUTS_MAX)
        return REFUSE(net, i, err, "an output of %dx%dx%d is too large: at most %d numbers", out.channels, out.height,
                      out.width, OUTPUTS_MAX);
    if (net->parameter_count > FARM_NET_PARAMETERS_MAX)
        return REFUSE(net, i, err, "%zu parameters with it: at most %d", net->parameter_count, FARM_NET_PARAMETERS_MAX);
    return FARM_OK;
}

// A layer over the flat input beside the features, then one over both (or an LSTM): the heads alone would only add what
// they say.
static void append_join(struct farm_net *net) {
    struct farm_net_op *op = append_op(net, FARM_NET_OP_JOIN, FARM_ACTIVATION_RELU);
    op->out = (struct farm_shape){.channels = (int)farm_shape_count(op->in) + FARM_NET_JOIN_UNITS};
    op->weight = append_tensor(net, "inputs.weight", (int[]){FARM_NET_JOIN_UNITS, net->io.flat}, 2);
    op->bias = append_tensor(net, "inputs.bias", (int[]){FARM_NET_JOIN_UNITS}, 1);
    if (net->io.lstm > 0) return;
    const int units = op->in.channels;
    op = append_op(net, FARM_NET_OP_DENSE, FARM_ACTIVATION_RELU);
    op->out = (struct farm_shape){.channels = units};
    op->weight = append_tensor(net, "joined.weight", (int[]){units, units + FARM_NET_JOIN_UNITS}, 2);
    op->bias = append_tensor(net, "joined.bias", (int[]){units}, 1);
}

static int append_lstm_tensor(struct farm_net *net, const char *what, int layer, const int *dims, int rank) {
    char name[FARM_TENSOR_NAME_MAX];
    snprintf(name, sizeof name, "lstm.%s_l%d", what, layer);
    return append_tensor(net, name, dims, rank);
}

static void append_lstm(struct farm_net *net, int layer) {
    const int units = net->io.lstm, gates = 4 * units;
    struct farm_net_op *op = append_op(net, FARM_NET_OP_DENSE, FARM_ACTIVATION_NONE);
    op->out = (struct farm_shape){.channels = gates};
    op->weight = append_lstm_tensor(net, "weight_ih", layer, (int[]){gates, (int)farm_shape_count(op->in)}, 2);
    op->bias = append_lstm_tensor(net, "bias_ih", layer, (int[]){gates}, 1);
    op = append_op(net, FARM_NET_OP_LSTM, FARM_ACTIVATION_NONE);
    op->out = (struct farm_shape){.channels = units};
    op->weight = append_lstm_tensor(net, "weight_hh", layer, (int[]){gates, units}, 2);
    op->bias = append_lstm_tensor(net, "bias_hh", layer, (int[]){gates}, 1);
    op->state = net->state;
    net->state += 2 * units;
}

static void append_statistics(struct farm_net *net) {
    bool normalises = net->io.normalise_frames;
    const int numbers = farm_net_pixels(&net->io) + net->io.flat;
    for (int i = 0; i < net->io.input_count; i++) normalises |= net->io.inputs[i].normalise;
    net->normalise = net->normalise_return = -1;
    if (normalises) {
        net->normalise = append_tensor(net, "normalise.mean", (int[]){numbers}, 1);
        append_tensor(net, "normalise.variance", (int[]){numbers}, 1);
        append_tensor(net, "normalise.count", (int[]){1}, 1);
    }
    if (net->io.normalise_rewards) net->normalise_return = append_tensor(net, "normalise.return", (int[]){3}, 1);
}

static void append_heads(struct farm_net *net) {
    const int actions = net->io.actions;
    struct farm_net_op *op = append_op(net, FARM_NET_OP_DENSE, FARM_ACTIVATION_NONE);
    const int features = (int)farm_shape_count(op->in);
    op->out = (struct farm_shape){.channels = actions + 1};
    op->weight = append_tensor(net, "policy.weight", (int[]){actions, features}, 2);
    append_tensor(net, "value.weight", (int[]){1, features}, 2);
    op->bias = append_tensor(net, "policy.bias", (int[]){actions}, 1);
    append_tensor(net, "value.bias", (int[]){1}, 1);
}

enum farm_status farm_net_make(const struct farm_net_spec *spec, const struct farm_net_io *io, struct farm_net *net,
                               struct farm_error *err) {
    *net = (struct farm_net){.spec = *spec, .io = *io};
    complete_io(&net->io);
    enum farm_status status = check_io(&net->io, err);
    if (status == FARM_OK) status = check_lstm(spec, &net->io, err);
    if (status != FARM_OK) return status;
    assert(spec->layer_count >= 1 && spec->layer_count <= FARM_NET_LAYERS_MAX);
    for (int i = 0; i < spec->layer_count; i++) {
        const enum farm_status made = append_layer(net, i, err);
        if (made != FARM_OK) return made;
    }
    const bool joins = has_frames(&net->io) && net->io.flat > 0;
    if (joins && next_in(net).height > 0)
        return REFUSE(net, spec->layer_count - 1, err, "it must be a vector, beside a flat input: end with `dense`");
    if (joins) append_join(net);
    for (int layer = 0; layer < net->io.lstm_layers; layer++) append_lstm(net, layer);
    append_heads(net);
    append_statistics(net);
    if (net->parameter_count <= FARM_NET_PARAMETERS_MAX) return FARM_OK;
    return farm_fail(err, FARM_E_INVALID, "network %s has %zu parameters here: at most %d", spec->text,
                     net->parameter_count, FARM_NET_PARAMETERS_MAX);
}

// The first buffer that is neither a nor b.
static int other_than(int a, int b) {
    int i = 0;
    while (i == a || i == b) i++;
    return i;
}

double farm_net_multiplications(const struct farm_net *net, int i) {
    const struct farm_net_op *op = &net->ops[i];
    const double positions = op->out.height > 0 ? (double)op->out.height * op->out.width : 1;
    if (op->weight < 0) return 0;
    const struct farm_tensor *heads = &net->tensors[op->weight + 1]; // the value's weight, after the policy's
    return positions * (double)(net->tensors[op->weight].count + (i == net->op_count - 1 ? heads->count : 0));
}

struct farm_pool farm_net_pool(const struct farm_net_op *op) {
    return (struct farm_pool){
        .height = op->in.height,
        .width = op->in.width,
        .channels = op->in.channels,
        .out_height = op->out.height,
        .out_width = op->out.width,
        .kernel = op->kernel,
        .stride = op->stride,
        .pad_top = op->pad_before[0],
        .pad_left = op->pad_before[1],
    };
}

void farm_net_plan_places(const struct farm_net *net, bool training, struct farm_net_places *places) {
    int held = -1; // the input of the residual block around op i
    *places = (struct farm_net_places){.diff = {0}};
    for (int i = 0; i < net->op_count; i++) {
        const struct farm_net_op *op = &net->ops[i];
        const int in = i > 0 ? places->out[i - 1] : -1;
        if (op->kind == FARM_NET_OP_RELU) held = in;
        places->out[i] = op->skip >= 0 ? places->out[op->skip] : training ? i : other_than(in, held);
        if (op->skip >= 0) held = -1;
    }
    for (int i = net->op_count - 1; i > 0; i--) {
        const struct farm_net_op *op = &net->ops[i];
        if (op->skip >= 0) held = places->diff[i];
        places->diff[i - 1] = op->kind == FARM_NET_OP_RELU ? held : other_than(places->diff[i], held);
        if (op->kind == FARM_NET_OP_RELU) held = -1;
    }
}

// Sum of products of two vectors with the same stride.
static float dot(const float *a, const float *b, size_t count, size_t stride) {
    enum { PARTS = 16 };
    float part[PARTS] = {0}, sum = 0;
    size_t i = 0;
    for (; stride == 1 && i + PARTS <= count; i += PARTS)
        for (size_t k = 0; k < PARTS; k++) part[k] += a[i + k] * b[i + k];
    for (; i < count; i++) part[i % PARTS] += a[i * stride] * b[i * stride];
    for (size_t k = 0; k < PARTS; k++) sum += part[k];
    return sum;
}

// A part of a matrix [..][stride]: rows x columns.
struct block {
    size_t first, rows, columns, stride; // first: in the flat vector
};

// Normal numbers, then Gram and Schmidt over the rows or, if there are more rows than columns, over the columns.
static void fill_orthogonal(float *params, const struct block *b, float gain, uint64_t key, uint64_t stream) {
    const bool wide = b->rows <= b->columns;
    const size_t vectors = wide ? b->rows : b->columns, count = wide ? b->columns : b->rows;
    float *const turned = wide ? NULL : malloc(vectors * count * sizeof *turned); // NULL: slower, the same result
    const size_t step = wide ? b->stride : turned ? count : 1, stride = wide || turned ? 1 : b->stride;
    float *out = turned ? turned : params + b->first;
    for (size_t v = 0; v < vectors; v++)
        for (size_t i = 0; i < count; i++)
            out[v * step + i * stride] =
                farm_random_normal(key, stream, (v * count + i) / 2, (int)((v * count + i) % 2));
    for (size_t v = 0; v < vectors; v++) {
        float *own = out + v * step;
        for (size_t other = 0; other < v; other++) {
            const float *unit = out + other * step, along = dot(own, unit, count, stride);
            for (size_t i = 0; i < count; i++) own[i * stride] -= along * unit[i * stride];
        }
        const float norm = sqrtf(dot(own, own, count, stride));
        for (size_t i = 0; i < count; i++) own[i * stride] /= norm;
    }
    for (size_t v = 0; v < vectors; v++)
        for (size_t i = 0; i < count; i++) out[v * step + i * stride] *= gain;
    for (size_t i = 0; i < count && turned; i++)
        for (size_t v = 0; v < vectors; v++) params[b->first + v + i * b->stride] = turned[v * count + i];
    free(turned);
}

static void fill_uniform(float *params, const struct block *b, float bound, uint64_t key, uint64_t stream) {
    for (size_t r = 0; r < b->rows; r++)
        for (size_t c = 0; c < b->columns; c++)
            params[b->first + r * b->stride + c] =
                bound * (2.0f * farm_random_uniform(key, stream, r * b->columns + c) - 1.0f);
}

// The blocks of a weight that are trained: one, or one of each half. Returns their number; 0: no weight.
static int trained_blocks(const struct farm_net *net, int t, struct block out[2]) {
    const struct farm_tensor *tensor = &net->tensors[t];
    const int heads = net->ops[net->op_count - 1].weight;
    const bool policy = t == heads, value = t == heads + 1;
    if (tensor->rank < 2) return 0;
    const size_t all = (size_t)tensor->dims[0], columns = tensor->count / all;
    const struct block whole = {tensor->offset, all - (policy ? (size_t)net->io.free_outputs : 0), columns, columns};
    out[0] = out[1] = whole;
    if (!net->spec.separate) return 1;
    if (policy || value) {
        out[0].columns /= 2;
        out[0].first += value ? columns / 2 : 0;
        return 1;
    }
    const bool first = t == net->ops[0].weight;
    for (size_t half = 0; half < 2; half++) {
        out[half].rows /= 2;
        if (!first) out[half].columns /= 2;
        out[half].first += half * (out[half].rows * columns + (first ? 0 : columns / 2));
    }
    return 2;
}

bool farm_net_trainable(const struct farm_net *net, float *mask) {
    bool all = true;
    for (int t = 0; t < net->tensor_count; t++) {
        struct block blocks[2];
        const struct farm_tensor *tensor = &net->tensors[t];
        const bool statistic = (net->normalise >= 0 && t >= net->normalise) || t == net->normalise_return;
        const int count = trained_blocks(net, t, blocks);
        for (size_t i = 0; i < tensor->count; i++) mask[tensor->offset + i] = count == 0 && !statistic;
        for (int k = 0; k < count; k++)
            for (size_t r = 0; r < blocks[k].rows; r++)
                for (size_t c = 0; c < blocks[k].columns; c++) mask[blocks[k].first + r * blocks[k].stride + c] = 1;
        for (size_t i = 0; i < tensor->count; i++) all &= mask[tensor->offset + i] != 0;
    }
    return !all;
}

// The factor of a hidden layer's orthogonal weights. ReLU halves the power of its input, so sqrt(2), also before other
// activations; 1 without one (a normalisation between keeps what it gets). Each of n residual blocks adds power to its
// input, 1 / 2n of it, so that all give less than sqrt(e) (Hanin and Rolnick 2018, "How to start training", section 4).
static float hidden_gain(const struct farm_net *net, int t) {
    float gain = sqrtf(2), blocks = 0;
    for (int i = 0; i < net->op_count; i++) blocks += net->ops[i].skip >= 0;
    for (int i = 0; i < net->op_count; i++) {
        const struct farm_net_op *op = &net->ops[i];
        if (op->weight != t) continue;
        const bool passes = op[1].kind == FARM_NET_OP_NORM || op[1].kind == FARM_NET_OP_ACTIVATION; // op: not the last
        if (op->skip >= 0) gain = sqrtf(1 / blocks);
        if (op->skip < 0 && (passes ? op[1].activation : op->activation) == FARM_ACTIVATION_NONE) gain = 1;
    }
    return gain;
}

void farm_net_init(const struct farm_net *net, enum farm_net_init how, uint64_t seed, float *params) {
    const uint64_t key = farm_random_mix(seed);
    const struct farm_net_op *heads = &net->ops[net->op_count - 1];
    memset(params, 0, net->parameter_count * sizeof *params);
    for (int t = 0; t < net->tensor_count; t++) {
        const bool policy = t == heads->weight, value = t == heads->weight + 1;
        struct block blocks[2];
        const int count = trained_blocks(net, t, blocks);
        for (int k = 0; k < count; k++) {
            const uint64_t stream = (uint64_t)t + (uint64_t)k * half_stream;
            if (how == FARM_INIT_ORTHOGONAL)
                fill_orthogonal(params, &blocks[k],
                                policy  ? policy_scale
                                : value ? 1
                                        : hidden_gain(net, t),
                                key, stream);
            else
                fill_uniform(params, &blocks[k], (policy ? policy_scale : 1) / sqrtf((float)blocks[k].columns), key,
                             stream);
        }
    }
    for (const struct farm_net_op *op = net->ops; op < heads; op++)
        for (int c = 0; op->kind == FARM_NET_OP_NORM && c < op->out.channels; c++)
            params[net->tensors[op->weight].offset + (size_t)c] = 1;
    float *bias = params + net->tensors[heads->bias].offset + net->io.actions;
    for (int i = 1; i <= net->io.biased_outputs; i++) bias[-i] = net->io.bias_start;
    if (net->normalise >= 0) {
        const struct farm_tensor *variance = &net->tensors[net->normalise + 1];
        for (size_t i = 0; i < variance->count; i++) params[variance->offset + i] = 1;
    }
    if (net->normalise_return >= 0) params[net->tensors[net->normalise_return].offset + 1] = 1;
}
