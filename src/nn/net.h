// Networks as tables of layers, and their parameters as one flat vector of named tensors: shapes and numbers only.
// executor.h computes them on the CPU, cuda/executor.h on a GPU. Runs in the learner, in actors with local inference
// and in tools; no threads, no files.
#ifndef FARM_NN_NET_H
#define FARM_NN_NET_H

#include <farm/env.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/layers.h"

// "Same" padding is TensorFlow's: n rows at stride s become ceil(n/s); the p = max((ceil(n/s) - 1)*s + k - n, 0) rows
// that a kernel of k lacks are added, p/2 (rounded down) above and the rest below; the same for columns. A 3x3
// convolution of stride 1 gets one on each side. A 3x3 pool of stride 2 gets one on each side if n is odd, else one
// below (right) only: torch.nn.MaxPool2d(3, 2, padding=(height % 2, width % 2), ceil_mode=True). A convolution's
// padding is zeros; a pool's is never the maximum.
enum farm_layer_kind {
    FARM_LAYER_CONV,      // 2-D convolution, square kernel, no padding, then the activation
    FARM_LAYER_DENSE,     // flattens a picture; product, then the activation
    FARM_LAYER_CONV_SAME, // as CONV, with "same" padding
    FARM_LAYER_POOL,      // maximum under a square kernel, "same" padding; out 0, no activation
    FARM_LAYER_RESIDUAL,  // x + conv1(relu(conv0(relu(x)))), both CONV_SAME of stride 1 (stride 0), `out` = x's
                          // channels; then the activation. x comes from a layer without activation
    FARM_LAYER_NORM,      // layer normalisation, then the activation; out 0
};

struct farm_layer {
    enum farm_layer_kind kind;
    int out;    // channels (conv, residual) or units (dense)
    int kernel; // conv, pool, residual
    int stride; // conv, pool
    enum farm_activation activation;
};

enum {
    FARM_NET_LAYERS_MAX = 32,
    FARM_NET_TEXT_BYTES = 256, // zero included
    FARM_NET_SIZE_MAX = 65536, // largest number in a text
    FARM_NET_LSTM_LAYERS_MAX = 2,
    FARM_NET_LSTM_UNITS_MAX = 4096,
    FARM_NET_OPS_MAX = 4 * FARM_NET_LAYERS_MAX + 2 * FARM_NET_LSTM_LAYERS_MAX + 2,
    FARM_TENSORS_MAX = 4 * (FARM_NET_LAYERS_MAX + FARM_NET_LSTM_LAYERS_MAX + 4),
    FARM_NET_INPUTS_MAX = 16, // parts of the flat input
    FARM_NET_JOIN_UNITS = 64, // in the layer over the flat input beside frames
    FARM_TENSOR_NAME_MAX = 48,
    FARM_NET_PARAMETERS_MAX = 1 << 28 // 1 GiB
};

// A layer as a text's reader counts them: a section is one, and has several rows of the table.
struct farm_net_words {
    uint8_t number;    // from 1; 0: the table is not a text's
    uint8_t at, bytes; // its words in the text
};

struct farm_net_spec {
    char text[FARM_NET_TEXT_BYTES]; // as farm_net_find takes it
    bool separate; // dense layers only; the first half of each one's units leads to the policy, the second to the
                   // value: weights between the halves stay 0
    int layer_count;
    struct farm_layer layers[FARM_NET_LAYERS_MAX];
    struct farm_net_words words[FARM_NET_LAYERS_MAX]; // where each row comes from
};

// Reads a network: a name, or its layers with commas between them (docs/TRAINING.md, "Networks"):
//   conv OUT@KxK/S [same]   dense UNITS   pool [KxK/S]   residual [OUT]   section OUT
// Names are texts, too:
//   shallow  IMPALA's small net (Espeholt et al. 2018, fig. 3 left)
//   nature   Mnih et al. 2015
//   lite     for few cores
//   mlp      two hidden layers of 64 units, tanh
//   separate two such networks, one for the policy and one for the value
//   deep     IMPALA's large net (fig. 3 right)
// Their LSTM, if any, is farm_net_io's. Shapes are farm_net_make's to check. FARM_E_INVALID. The text may
// come from another process.
enum farm_status farm_net_find(const char *text, struct farm_net_spec *spec, struct farm_error *err);

// Puts the layer's number and words before the message in *err: "layer 3 (64@3x3/1): ". Returns FARM_E_INVALID.
enum farm_status farm_net_fail_layer(const struct farm_net_spec *spec, struct farm_net_words source,
                                     struct farm_error *err);

// A part of the flat input: what a row's pointer to it means.
enum farm_net_input_kind {
    FARM_INPUT_NUMBERS, // `count` f32
    FARM_INPUT_WHOLE,   // `count` i32, as numbers
    FARM_INPUT_ONE_HOT, // `count` i32 in [0, choices): `choices` numbers each, one of them 1
    FARM_INPUT_BYTES,   // `count` u8, divided by choices - 1
    FARM_INPUT_SIGN,    // `count` f32, clipped to +-1
    FARM_INPUT_SCALED,  // `count` f32, (number - last_offset) / last_scale
};
struct farm_net_input {
    enum farm_net_input_kind kind;
    int count, choices;
    bool normalise; // NUMBERS, WHOLE: by the running mean and variance (tensors normalise.*)
    int source;     // the observation's field, or enum farm_net_source; only callers read it
};
enum farm_net_source { FARM_SOURCE_LAST_ACTION = -1, FARM_SOURCE_LAST_REWARD = -2 };

// The network's input and output: frames, a flat input, or both.
struct farm_net_io {
    int frame_channels; // channels of one stored frame (1 grey, 3 RGB); 0: no frames
    int height, width;  // pixels of a frame; 0: no frames
    bool interleaved;   // a frame is [height][width][channels]; false: [channels][height][width]
    int stack;          // frames stacked, >= 1; input channels = images * stack * frame_channels, oldest frame first
    int images;         // fields of frames, one stack after another; 0 means 1
    int image_source[FARM_NET_INPUTS_MAX]; // each one's observation field; only callers read it
    bool normalise_frames;                 // pixels by their running mean and variance (kernels/pixels.h)
    int flat;                              // numbers of the flat input; 0: none
    int input_count;                       // its parts; 0: one of `flat` f32, the observation's field 0
    struct farm_net_input inputs[FARM_NET_INPUTS_MAX];
    float last_offset[FARM_ACTION_DIMS_MAX], last_scale[FARM_ACTION_DIMS_MAX]; // the last continuous action's
    int lstm, lstm_layers;  // units of each LSTM layer between the features and the heads, 0: none; layers
    bool normalise_rewards; // the parameters have a tensor for it
    int actions;            // policy outputs; the value head has one output more
    int free_outputs;       // the last outputs of the policy are its biases alone: their weights stay 0
    int biased_outputs;     // so many of the last outputs start with the bias
    float bias_start;
};

// Numbers that a part of the flat input becomes.
static inline int farm_net_input_width(const struct farm_net_input *input) {
    return input->kind == FARM_INPUT_ONE_HOT ? input->count * input->choices : input->count;
}

// "layers.0.weight", "layers.0.bias", "layers.2.conv0.weight" (residual: conv0, conv1), "policy.weight", "value.bias",
// ...: the state_dict of a PyTorch module with a ModuleList `layers` that has one entry a table row (a pool has no
// tensors, but counts), an LSTM `lstm` and two Linears `policy` and `value`.
struct farm_tensor {
    char name[FARM_TENSOR_NAME_MAX];
    int dims[4]; // PyTorch order: conv [out][in][kh][kw], dense [out][in]; dense after conv: in = C*H*W, C slowest
    int rank;
    size_t offset; // in floats from the start of the flat vector
    size_t count;  // in floats
};

// A picture, or, if height is 0, a vector of `channels` numbers.
struct farm_shape {
    int channels, height, width;
};
size_t farm_shape_count(struct farm_shape shape);

enum farm_net_op_kind {
    FARM_NET_OP_CONV,  // out = activation(weight * in + bias), plus the output of `skip` before the activation
    FARM_NET_OP_DENSE, // out = activation(weight . in + bias)
    FARM_NET_OP_POOL,  // out = maxima of in
    FARM_NET_OP_RELU,  // out = relu(in); `in` is kept, its residual block's last convolution adds it
    FARM_NET_OP_JOIN,  // out = in, then relu(weight . flat input + bias): [in.channels + FARM_NET_JOIN_UNITS]
    FARM_NET_OP_LSTM,  // out = h of kernels/lstm.h, whose gates are in + weight . (h of the step before) + bias
    FARM_NET_OP_NORM,  // out = activation(weight * (in - mean) / sqrt(variance + FARM_NORM_EPSILON) + bias): mean and
                       // variance of a pixel's channels, or of a vector (Ba et al. 2016, "Layer normalization")
    FARM_NET_OP_ACTIVATION, // out = activation(in), which the op before lacks: CONV has ReLU, DENSE ReLU and tanh
};

// One operation. Each reads the output of the one before, the first reads the frames, or else the flat input.
// The last one is the heads: `actions` logits, then the value, without activation.
struct farm_net_op {
    enum farm_net_op_kind kind;
    enum farm_activation activation; // RELU for FARM_NET_OP_RELU
    int kernel, stride;              // CONV, POOL
    int pad_before[2], pad_after[2]; // CONV, POOL: rows above and below, columns left and right
    int skip;                        // CONV: the op whose output is added; -1: none
    int weight, bias;                // indices of tensors; -1: none. Heads: policy's; value's follow each
    int state;                       // LSTM: offset of its h in the state; its c follows
    struct farm_shape in, out;
};

struct farm_net {
    struct farm_net_spec spec;
    struct farm_net_io io;
    int state;            // floats of recurrent state of one environment: of each LSTM layer h, then c; 0: none
    int normalise;        // index of the tensor normalise.mean [farm_net_pixels + flat]; normalise.variance and
                          // normalise.count [1] follow; -1: none
    int normalise_return; // index of the tensor normalise.return [3]: mean, variance, count; -1: none
    int tensor_count;
    struct farm_tensor tensors[FARM_TENSORS_MAX];
    size_t parameter_count;
    int op_count; // with the heads
    struct farm_net_op ops[FARM_NET_OPS_MAX];
};

// Multiplications of op i in one row's forward pass.
double farm_net_multiplications(const struct farm_net *net, int i);

// The pool that an op is.
struct farm_pool farm_net_pool(const struct farm_net_op *op);

// Buffers for the ops' outputs and their gradients, by number, at most op_count of each. Training keeps all outputs for
// backward; inference alternates between two buffers, and a third inside residual blocks, whose input stays until it is
// added to. Gradients alternate too, from the last op to the first. An op that adds to a residual block's input
// does so in place.
struct farm_net_places {
    int out[FARM_NET_OPS_MAX], diff[FARM_NET_OPS_MAX];
};
void farm_net_plan_places(const struct farm_net *net, bool training, struct farm_net_places *places);

// The rows of one call of an executor: time-major, row (t, c) = t * columns + c. Without a state rows are independent,
// and only their number matters.
struct farm_sequence {
    int steps, columns;    // >= 1
    const uint8_t *flags;  // [steps][columns] FARM_STEP_*: the state is zeroed before a FIRST; NULL without a state
    const float *state_in; // [columns][net->state] before the first step; NULL without a state
    float *state_out;      // [columns][net->state] after the last one; NULL without a state
};

// Independent rows.
static inline struct farm_sequence farm_sequence_rows(int rows) {
    struct farm_sequence sequence;
    sequence.steps = 1;
    sequence.columns = rows;
    sequence.flags = NULL;
    sequence.state_in = NULL;
    sequence.state_out = NULL;
    return sequence;
}

// Frames whose channels lie beside one another: networks read planes.
static inline bool farm_net_interleaved(const struct farm_net_io *io) {
    return io->interleaved && io->frame_channels > 1;
}

// Pixels with statistics: an image's planes [channels][height][width], one image after another.
static inline int farm_net_pixels(const struct farm_net_io *io) {
    return io->normalise_frames ? io->images * io->frame_channels * io->height * io->width : 0;
}

// Pointers of a row: its frames, then the parts of its flat input.
static inline int farm_net_pointers(const struct farm_net *net) {
    return (net->io.frame_channels > 0 ? net->io.images * net->io.stack : 0) + net->io.input_count;
}

// Computes all shapes and the ops. Tensors are in the order of the layers, weight before bias, conv0 before conv1; then
// inputs.weight, inputs.bias (JOIN), joined.weight, joined.bias (DENSE over both, as wide as the features, ReLU; not
// before an LSTM); then of each LSTM layer lstm.weight_ih_l0, lstm.bias_ih_l0 (DENSE: what its input adds to the
// gates), lstm.weight_hh_l0, lstm.bias_hh_l0 (LSTM), as torch.nn.LSTM names them; then policy.weight, value.weight,
// policy.bias, value.bias, so that both heads are one product of actions + 1 outputs; then normalise.*, which are no
// weights: statistics that training updates at publish. net->io has `images` and the parts of the flat input written
// out. FARM_E_INVALID if the input is invalid or the layers, of sizes as farm_net_find reads them, do not fit.
enum farm_status farm_net_make(const struct farm_net_spec *spec, const struct farm_net_io *io, struct farm_net *net,
                               struct farm_error *err);

// Weights of hidden layers, of the policy, of the value. Biases are zero.
enum farm_net_init {
    FARM_INIT_ORTHOGONAL, // orthogonal rows or columns (Saxe et al. 2013) times sqrt(2) (deep: less where no ReLU
                          // follows, in an LSTM and in residual blocks), 0.01, 1: signals keep their size
    FARM_INIT_UNIFORM,    // U(-1/sqrt(fan_in), 1/sqrt(fan_in)), PyTorch's default, times 1, 0.01, 1
};

// Initial parameters [parameter_count], a function of the seed.
void farm_net_init(const struct farm_net *net, enum farm_net_init how, uint64_t seed, float *params);

// What the optimiser changes: mask [parameter_count] becomes 1, and 0 for weights that stay 0 (free_outputs, separate)
// and statistics. Returns whether there is a 0.
bool farm_net_trainable(const struct farm_net *net, float *mask);

#endif
