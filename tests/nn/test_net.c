// Shapes, names and numbers of parameters, their initial values, and the size of features that these give.
#include <string.h>

#include "problem.h"

static struct farm_error err;

static const struct farm_net_io cartpole = {.flat = 4, .stack = 1, .actions = 2};

static struct farm_net make(const char *text, struct farm_net_io io) {
    struct farm_net net;
    cr_assert_eq(farm_net_make(net_spec(text), &io, &net, &err), FARM_OK, "%s", err.message);
    return net;
}

// Of a text, or, if it is one, of the network that it gives.
static void expect_refused(const char *text, struct farm_net_io io, const char *reason) {
    struct farm_net_spec spec;
    struct farm_net net;
    enum farm_status status = farm_net_find(text, &spec, &err);
    if (!status) status = farm_net_make(&spec, &io, &net, &err);
    cr_assert_eq(status, FARM_E_INVALID, "%s", text);
    cr_expect_not_null(strstr(err.message, reason), "\"%s\" does not say \"%s\"", err.message, reason);
}

// By hand. nature: the published number for 18 actions without a value head is 1693362 (Mnih et al.'s network in
// PyTorch); here 6 + 1 heads.
Test(nn, counts_the_parameters_of_each_network) {
    cr_expect_eq(make("shallow", atari).parameter_count,
                 16 * (4 * 64 + 1) + 32 * (16 * 16 + 1) + 256 * (32 * 81 + 1) + 7 * 257);
    cr_expect_eq(make("nature", atari).parameter_count, 1693362 - 11 * 513);
    cr_expect_eq(make("mlp", cartpole).parameter_count, 5 * 64 + 65 * 64 + 3 * 65);
    cr_expect_eq(make("deep", atari).parameter_count, 16 * (9 * 4 + 1) + 4 * 16 * (9 * 16 + 1) + 32 * (9 * 16 + 1) +
                                                          9 * 32 * (9 * 32 + 1) + 256 * (32 * 11 * 11 + 1) + 7 * 257);
}

// The sections of the deep network at 84x84: 84, 42, 21, 11; and at the sizes of small pictures.
Test(nn, pools_to_half_rounded_up_and_pads_as_tensorflow_does) {
    static const int pools[][4] = {{84, 42, 0, 1}, {21, 11, 1, 1}, {5, 3, 1, 1}, {4, 2, 0, 1},
                                   {3, 2, 1, 1},   {2, 1, 0, 1},   {1, 1, 1, 1}}; // size, result, padding before, after
    for (size_t i = 0; i < sizeof pools / sizeof pools[0]; i++) {
        const int *p = pools[i];
        struct farm_net_io io = atari;
        io.height = p[0];
        io.width = 9;
        const struct farm_net net = make("deep", io);
        const struct farm_net_op *conv = &net.ops[0], *pool = &net.ops[1];
        cr_assert(conv->kind == FARM_NET_OP_CONV && pool->kind == FARM_NET_OP_POOL);
        cr_assert(conv->out.channels == 16 && conv->out.height == p[0] && conv->out.width == 9);
        for (int d = 0; d < 2; d++) cr_assert(conv->pad_before[d] == 1 && conv->pad_after[d] == 1);
        cr_assert(pool->out.channels == 16 && pool->out.height == p[1] && pool->out.width == 5, "%d rows", p[0]);
        cr_assert(pool->pad_before[0] == p[2] && pool->pad_after[0] == p[3], "%d rows", p[0]);
        cr_assert(pool->pad_before[1] == 1 && pool->pad_after[1] == 1);
    }
}

// An op and what it adds: three to a residual block, the last of which adds what entered the first.
Test(nn, takes_deep_apart_into_ops) {
    const struct farm_net net = make("deep", atari);
    cr_assert_eq(net.op_count, 3 * (2 + 2 * 3) + 2);
    static const enum farm_net_op_kind section[] = {FARM_NET_OP_CONV, FARM_NET_OP_POOL, FARM_NET_OP_RELU,
                                                    FARM_NET_OP_CONV, FARM_NET_OP_CONV, FARM_NET_OP_RELU,
                                                    FARM_NET_OP_CONV, FARM_NET_OP_CONV};
    static const int skips[] = {-1, -1, -1, -1, 1, -1, -1, 4}; // from the section's start
    for (int i = 0; i < 24; i++) {
        const struct farm_net_op *op = &net.ops[i];
        cr_assert_eq(op->kind, section[i % 8], "op %d", i);
        cr_assert_eq(op->skip, skips[i % 8] < 0 ? -1 : i / 8 * 8 + skips[i % 8], "op %d", i);
        const bool relu = op->kind == FARM_NET_OP_RELU || i % 8 == 3 || i % 8 == 6 || i == 23;
        cr_assert_eq(op->activation, relu ? FARM_ACTIVATION_RELU : FARM_ACTIVATION_NONE, "op %d", i);
    }
    cr_assert_eq(net.ops[23].out.height, 11);
    cr_assert_eq(net.ops[24].out.channels, 256);
    cr_assert_eq(net.ops[25].out.channels, 7);
    cr_assert_str_eq(net.tensors[net.ops[25].weight].name, "policy.weight");
}

struct named {
    int tensor;
    const char *name;
    int dims[4];
};

static void expect_tensors(const struct farm_net *net, const struct named *named, int count) {
    for (int i = 0; i < count; i++) {
        const struct farm_tensor *tensor = &net->tensors[named[i].tensor];
        cr_assert_str_eq(tensor->name, named[i].name);
        cr_assert_arr_eq(tensor->dims, named[i].dims, sizeof tensor->dims, "%s", tensor->name);
    }
    size_t offset = 0;
    for (int t = 0; t < net->tensor_count; t++) {
        const struct farm_tensor *tensor = &net->tensors[t];
        size_t elements = 1;
        for (int i = 0; i < tensor->rank; i++) elements *= (size_t)tensor->dims[i];
        cr_assert(tensor->offset == offset && tensor->count == elements, "%s", tensor->name);
        offset += elements;
    }
    cr_assert_eq(net->parameter_count, offset);
}

Test(nn, names_tensors_in_order_without_gaps_as_pytorchs_module_list_does) {
    static const struct named shallow[] = {{0, "layers.0.weight", {16, 4, 8, 8}},
                                           {1, "layers.0.bias", {16}},
                                           {2, "layers.1.weight", {32, 16, 4, 4}},
                                           {3, "layers.1.bias", {32}},
                                           {4, "layers.2.weight", {256, 2592}},
                                           {5, "layers.2.bias", {256}},
                                           {6, "policy.weight", {6, 256}},
                                           {7, "value.weight", {1, 256}},
                                           {8, "policy.bias", {6}},
                                           {9, "value.bias", {1}}};
    static const struct named deep[] = {{0, "layers.0.weight", {16, 4, 3, 3}},
                                        {2, "layers.2.conv0.weight", {16, 16, 3, 3}},
                                        {5, "layers.2.conv1.bias", {16}},
                                        {9, "layers.3.conv1.bias", {16}},
                                        {10, "layers.4.weight", {32, 16, 3, 3}},
                                        {28, "layers.11.conv1.weight", {32, 32, 3, 3}},
                                        {30, "layers.12.weight", {256, 32 * 11 * 11}},
                                        {32, "policy.weight", {6, 256}}};
    struct farm_net_io io = atari;
    struct farm_net net = make("shallow", atari);
    cr_assert_eq(net.tensor_count, 10);
    expect_tensors(&net, shallow, 10);
    net = make("deep", atari);
    cr_assert_eq(net.tensor_count, 36);
    expect_tensors(&net, deep, 8);
    io.frame_channels = 3;
    io.stack = 2;
    cr_assert_eq(make("nature", io).tensors[0].dims[1], 6); // the channels of all stacked frames
}

static const struct farm_net_io tiny = {.frame_channels = 1, .height = 7, .width = 84, .stack = 4, .actions = 6};

Test(nn, refuses_inputs_that_do_not_fit) {
    struct farm_net_io narrow = tiny, still = tiny, none = tiny, stacked = cartpole, parts = cartpole, both = atari;
    both.flat = 3;
    narrow.height = 84;
    narrow.width = 19;
    still.stack = none.actions = 0;
    stacked.stack = 4;
    parts.input_count = 1;
    parts.inputs[0] = (struct farm_net_input){FARM_INPUT_ONE_HOT, 1, 5, false, 0};
    expect_refused("shallow", tiny,
                   "network shallow: layer 1 (conv 16@8x8/4): kernel 8 exceeds its input, 7x84; use a "
                   "smaller kernel, or `same`");
    expect_refused("shallow", narrow, "network shallow: layer 2 (32@4x4/2): kernel 4 exceeds its input, 20x3");
    expect_refused("shallow", cartpole, "its input is a vector of 4 numbers; use `dense` layers");
    expect_refused("mlp", atari, "the first layer over frames must be `conv`");
    expect_refused("conv 8@8x8/4 norm", both, "layer 1 (conv 8@8x8/4 norm): it must be a vector, beside a flat input");
    expect_refused("mlp", stacked, "not stacked");
    expect_refused("shallow", none, "at least one action");
    expect_refused("shallow", still, "stack");
    expect_refused("mlp", parts, "4 numbers in 1 parts of 5");
}

Test(nn, refuses_texts_in_words) {
    static const char *const cases[][2] = {
        {"shalow", "unexpected word 'shalow'; did you mean 'shallow'?"},
        {"covn 8@3x3/1, dense 8", "unexpected word 'covn'; did you mean 'conv'?"},
        {"conv 8@3x3/1, 9@3/1", "layer 2 (9@3/1): it must be written as conv CHANNELS@KxK/STRIDE [same]"},
        {"relu, conv 8@3x3/1 smae", "layer 1 (conv 8@3x3/1 smae): 'smae' is unexpected: it must be written as conv"},
        {"conv -8@3x3/1", "layer 1 (conv -8@3x3/1): -8 is outside its range, 1 to 65536"},
        {"conv 8@3x3/0", "0 is outside its range"},
        {"conv 8@3x3/1, dense 99999999999999999999", "it must be written as dense UNITS"},
        {"conv 8@3x4/1", "a kernel of 3x4 is not square"},
        {"conv", "it must be written as conv CHANNELS"},
        {"8@3x3/1", "unexpected word '8@3x3/1'"},
        {"conv 8@3x3/1,, dense 8", "a layer is missing at byte 14"},
        {"", "a layer is missing at byte 1 of ''"},
        {"tanh, separate", "a network needs a layer"},
        {"conv 8@3x3/1 relu elu", "'elu' is unexpected"},
        {"conv 8@3x3/1, pool relu", "'relu' is unexpected: it must be written as pool [KxK/STRIDE]"},
        {"Conv 8@3x3/1", "byte 1: a network's text has small letters"},
        {"conv 8@\n3x3/1", "byte 8: a network"},
        {"separate, relu 4", "unexpected word 'relu'"},
        {"conv 8@3x3/1, dense 8 pool", "layer 2 (dense 8 pool): 'pool' is unexpected"},
        {"conv 65536@1x1/84, 65536@65536x65536/1 same", "parameters with it: at most"}, // 2^64 and some
        {"section 8, 8, 8, 8, 8, 8, 8, 8, dense 8", "layer 9 (dense 8): more than 32 layers in all"},
        {"pool, conv 8@3x3/1", "layer 1 (pool): the first layer over frames must be `conv`"},
        {"norm, conv 8@3x3/1", "the first layer over frames"},
        {"conv 8@3x3/1, residual", "layer 2 (residual): a residual block follows a layer without activation"},
        {"conv 8@3x3/1 none, residual 16", "as many channels as its input, 8"},
        {"conv 8@3x3/1, dense 8, pool", "layer 3 (pool): it reads a picture, but its input is a vector of 8 numbers"},
        {"separate, conv 8@3x3/1, dense 8", "`separate` is for `dense` layers alone"},
        {"conv 999@1x1/1, 9999@84x84/1, dense 8", "70482406050 parameters with it: at most 268435456"},
        {"conv 65536@1x1/1", "an output of 65536x84x84 is too large"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) expect_refused(cases[i][0], atari, cases[i][1]);
    expect_refused("separate, dense 8 norm", cartpole, "`norm` would join the policy and the value");
    char text[FARM_NET_TEXT_BYTES + 1];
    memset(text, ' ', sizeof text);
    text[sizeof text - 1] = 0;
    expect_refused(text, atari, "a network's text has at most 255 bytes (here: 256)");
}

static void expect_same(const char *text, const char *other) {
    const struct farm_net_spec *a = net_spec(text), *b = net_spec(other);
    cr_assert_eq(a->layer_count, b->layer_count, "%s", text);
    cr_expect(a->separate == b->separate && memcmp(a->layers, b->layers, sizeof a->layers) == 0, "%s", text);
}

// The layers of the names are written out by other tests: counts of parameters, shapes, PyTorch's outputs.
Test(nn, texts_are_tables) {
    expect_same("conv 16@8x8/4, conv 32@4x4/2 relu, dense 256 relu", "shallow");
    expect_same("  tanh ,relu, dense   64 tanh,64 tanh", "mlp");
    expect_same("dense 64 tanh, separate, tanh, dense 64", "separate");
    expect_same("section 16, conv 32@3x3/1 same none, pool 3x3/2, residual 32, residual, section 32 relu, dense 256",
                "deep");
    expect_same("conv 8@3x3/2 norm, pool, norm silu, elu, dense 9, 7 norm",
                "conv 8@3x3/2 none, norm relu, pool 3x3/2, norm silu, dense 9 elu, dense 7 none, norm elu");
}

// A convolution's ELU and a residual block's tanh are ops of their own; a normalisation has its activation.
Test(nn, appends_norms_and_activations) {
    static const enum farm_net_op_kind kinds[] = {
        FARM_NET_OP_CONV,       FARM_NET_OP_NORM,  FARM_NET_OP_RELU,       FARM_NET_OP_CONV, FARM_NET_OP_CONV,
        FARM_NET_OP_ACTIVATION, FARM_NET_OP_DENSE, FARM_NET_OP_ACTIVATION, FARM_NET_OP_NORM, FARM_NET_OP_DENSE};
    const struct farm_net net = make("conv 8@3x3/2 none, norm, residual tanh, dense 7 elu, norm silu", atari);
    cr_assert_eq(net.op_count, 10);
    for (int i = 0; i < 10; i++) cr_expect_eq(net.ops[i].kind, kinds[i], "op %d", i);
    cr_expect(net.ops[4].activation == FARM_ACTIVATION_NONE && net.ops[5].activation == FARM_ACTIVATION_TANH);
    cr_expect(net.ops[7].activation == FARM_ACTIVATION_ELU && net.ops[8].activation == FARM_ACTIVATION_SILU);
    static const struct named tensors[] = {{2, "layers.1.weight", {8}}, {11, "layers.4.bias", {7}}};
    expect_tensors(&net, tensors, sizeof tensors / sizeof *tensors);
    float *params = array(net.parameter_count, sizeof *params), *mask = array(net.parameter_count, sizeof *mask);
    farm_net_init(&net, FARM_INIT_ORTHOGONAL, 5, params);
    cr_expect(!farm_net_trainable(&net, mask));
    for (int k = 0; k < 8; k++)
        cr_expect(params[net.tensors[2].offset + k] == 1 && params[net.tensors[3].offset + k] == 0);
    free(params);
    free(mask);
}

Test(nn, initial_values_are_uniform_within_their_bounds) {
    static const char *const names[] = {"shallow", "deep"};
    for (int n = 0; n < 2; n++) {
        const struct farm_net net = make(names[n], atari);
        float *params = malloc(net.parameter_count * sizeof *params);
        farm_net_init(&net, FARM_INIT_UNIFORM, 5, params);
        for (int t = 0; t < net.tensor_count; t++) {
            const struct farm_tensor *tensor = &net.tensors[t];
            double most = 0, square = 0;
            for (size_t i = 0; i < tensor->count; i++) {
                const double x = params[tensor->offset + i];
                most = fmax(most, fabs(x));
                square += x * x / (double)tensor->count;
            }
            double bound = tensor->rank == 1 ? 0 : 1 / sqrt((double)tensor->count / tensor->dims[0]);
            if (strcmp(tensor->name, "policy.weight") == 0) bound *= 0.01;
            cr_assert_leq(most, bound * 1.000001, "%s: %g beyond %g", tensor->name, most, bound);
            cr_assert_geq(most, bound * 0.97, "%s: %g far within %g", tensor->name, most, bound);
            cr_assert_float_eq(square, bound * bound / 3, 0.1 * bound * bound, "%s: variance %g", tensor->name, square);
        }
        free(params);
    }
}

// Of `separate`, no path of trainable weights leads from one half to the other head, and statistics are not trained.
Test(nn, separate_keeps_policy_and_value_apart) {
    const struct farm_net_io io = {.flat = 3,
                                   .stack = 1,
                                   .actions = 4,
                                   .free_outputs = 2,
                                   .input_count = 1,
                                   .inputs = {{FARM_INPUT_NUMBERS, 3, 0, true, 0}},
                                   .normalise_rewards = true};
    struct farm_net net;
    cr_assert_eq(farm_net_make(net_spec("separate"), &io, &net, NULL), FARM_OK);
    float *params = malloc(net.parameter_count * sizeof *params), *mask = malloc(net.parameter_count * sizeof *mask);
    farm_net_init(&net, FARM_INIT_ORTHOGONAL, 5, params);
    cr_assert(farm_net_trainable(&net, mask));
    size_t trained[FARM_TENSORS_MAX] = {0};
    for (int t = 0; t < net.tensor_count; t++)
        for (size_t i = 0; i < net.tensors[t].count; i++) {
            const size_t at = net.tensors[t].offset + i, row = i / 128, column = i % 128;
            trained[t] += mask[at] != 0;
            if (net.tensors[t].rank < 2) continue;
            cr_expect_eq(mask[at] != 0, params[at] != 0, "%s[%zu]", net.tensors[t].name, i);
            if (t == 2) cr_expect_eq(mask[at] != 0, row / 64 == column / 64);
            if (t == 4) cr_expect_eq(mask[at] != 0, row < 2 && column < 64);
            if (t == 5) cr_expect_eq(mask[at] != 0, column >= 64);
        }
    static const size_t expected[] = {384, 128, 2 * 64 * 64, 128, 2 * 64, 64, 4, 1, 0, 0, 0, 0};
    cr_assert_eq(net.tensor_count, 12);
    for (int t = 0; t < 12; t++) cr_expect_eq(trained[t], expected[t], "%s: %zu", net.tensors[t].name, trained[t]);
    cr_expect_eq(params[net.tensors[net.normalise + 1].offset], 1);
    cr_expect_eq(params[net.tensors[net.normalise_return].offset + 1], 1);
    double square = 0; // over a unit's weights in the second layer
    for (int c = 0; c < 64; c++) square += pow((double)params[net.tensors[2].offset + c], 2);
    cr_expect_float_eq(square, 2, 1e-4);
    free(params);
    free(mask);
}

// Of torch.nn.LSTM's names and shapes; the state is h and c, layer after layer. JOIN feeds it directly.
Test(nn, puts_an_lstm_between_the_features_and_the_heads) {
    static const struct named tensors[] = {{6, "inputs.weight", {FARM_NET_JOIN_UNITS, 3}},
                                           {8, "lstm.weight_ih_l0", {40, 256 + FARM_NET_JOIN_UNITS}},
                                           {9, "lstm.bias_ih_l0", {40}},
                                           {10, "lstm.weight_hh_l0", {40, 10}},
                                           {11, "lstm.bias_hh_l0", {40}},
                                           {12, "lstm.weight_ih_l1", {40, 10}},
                                           {14, "lstm.weight_hh_l1", {40, 10}},
                                           {16, "policy.weight", {6, 10}}};
    struct farm_net_io io = atari;
    io.lstm = 10, io.lstm_layers = 2, io.flat = 3;
    const struct farm_net net = make("shallow", io);
    expect_tensors(&net, tensors, sizeof tensors / sizeof *tensors);
    cr_expect(net.state == 40 && net.ops[5].state == 0 && net.ops[7].state == 20);
    for (int i = 4; i < 8; i++) {
        const enum farm_net_op_kind kind = i % 2 ? FARM_NET_OP_LSTM : FARM_NET_OP_DENSE;
        cr_expect(net.ops[i].kind == kind && net.ops[i].activation == FARM_ACTIVATION_NONE);
    }
    cr_expect_eq(make("shallow", atari).state, 0);
    float *params = array(net.parameter_count, sizeof *params);
    farm_net_init(&net, FARM_INIT_ORTHOGONAL, 5, params);
    for (int t = 8; t < 16; t++) {
        double squares = 0; // orthonormal columns, as many as there are inputs; or rows
        for (size_t i = 0; i < net.tensors[t].count; i++) squares += pow((double)params[net.tensors[t].offset + i], 2);
        cr_expect_float_eq(squares, t % 2 ? 0 : fmin(40, net.tensors[t].dims[1]), 1e-3, "%s", net.tensors[t].name);
    }
    free(params);
}

Test(nn, refuses_an_lstm_that_cannot_be) {
    struct farm_net_io io = cartpole;
    io.lstm = 8, io.lstm_layers = 1;
    expect_refused("separate", io, "cannot have an LSTM");
    io.lstm_layers = 3;
    expect_refused("mlp", io, "1 to 2 layers, not 3");
    io.lstm = -1;
    expect_refused("mlp", io, "not -1");
}

// W W' (or W' W, if there are more rows) is the unit matrix times the gain's square; free outputs have no weights.
Test(nn, orthogonal_initial_weights_are_so_with_their_gain) {
    struct farm_net_io io = atari;
    io.free_outputs = 2, io.biased_outputs = 3, io.bias_start = -1.5f;
    struct farm_net net;
    cr_assert_eq(farm_net_make(net_spec("lite"), &io, &net, NULL), FARM_OK);
    float *params = malloc(net.parameter_count * sizeof *params), *mask = calloc(net.parameter_count, sizeof *mask);
    memset(params, 0x55, net.parameter_count * sizeof *params);
    farm_net_init(&net, FARM_INIT_ORTHOGONAL, 5, params);
    cr_assert(farm_net_trainable(&net, mask));
    size_t frozen = 0;
    for (size_t i = 0; i < net.parameter_count; i++) {
        frozen += mask[i] == 0;
        if (mask[i] == 0) cr_assert_eq(params[i], 0);
    }
    cr_assert_eq(frozen, 2 * 128);
    free(mask);
    for (int t = 0; t < net.tensor_count; t++) {
        const struct farm_tensor *tensor = &net.tensors[t];
        const bool policy = strcmp(tensor->name, "policy.weight") == 0,
                   value = strcmp(tensor->name, "value.weight") == 0;
        const size_t rows = (size_t)tensor->dims[0] - (policy ? 2 : 0),
                     columns = tensor->count / (size_t)tensor->dims[0];
        const bool wide = rows <= columns;
        const size_t vectors = wide ? rows : columns, count = wide ? columns : rows;
        const double gain = policy ? 1e-4 : value ? 1 : 2;
        const float *w = params + tensor->offset;
        for (size_t a = 0; a < vectors; a++)
            for (size_t b = 0; b <= a && tensor->rank > 1; b++) {
                double sum = 0;
                for (size_t i = 0; i < count; i++)
                    sum += (double)(wide ? w[a * columns + i] : w[i * columns + a]) *
                           (double)(wide ? w[b * columns + i] : w[i * columns + b]);
                cr_assert_float_eq(sum, a == b ? gain : 0, 1e-4 * gain, "%s %zu %zu: %g", tensor->name, a, b, sum);
            }
        const size_t zeros = tensor->count - (strcmp(tensor->name, "policy.bias") == 0 ? 3 : 0);
        for (size_t i = 0; i < tensor->count && tensor->rank == 1; i++) cr_assert_eq(w[i], i < zeros ? 0 : -1.5f);
    }
    free(params);
}

// A seed means the same run on every machine.
Test(nn, initial_values_depend_on_the_seed_alone) {
    const struct farm_net net = make("mlp", cartpole);
    float *a = malloc(net.parameter_count * sizeof *a), *b = malloc(net.parameter_count * sizeof *b);
    farm_net_init(&net, FARM_INIT_UNIFORM, 1, a);
    farm_net_init(&net, FARM_INIT_UNIFORM, 1, b);
    cr_assert_arr_eq(a, b, net.parameter_count * sizeof *a);
    farm_net_init(&net, FARM_INIT_UNIFORM, 2, b);
    int same = 0;
    for (size_t i = 0; i < net.tensors[0].count; i++) same += a[i] == b[i];
    cr_assert_lt(same, 3);
    const size_t second = net.tensors[2].offset;
    same = 0;
    for (size_t i = 0; i < net.tensors[0].count; i++) same += a[i] == a[second + i];
    cr_assert_lt(same, 3, "two tensors got the same numbers");
    free(a);
    free(b);
}

// Root mean square of what layer `last` leaves, over that of random observations. The features of a network cut off
// there are the gradient of its value by the value's weights.
static double feature_size(const char *name, int last, enum farm_net_init how) {
    enum { ROWS = 4 };
    struct farm_net_spec spec = *net_spec(name);
    const bool flat = spec.layers[0].kind == FARM_LAYER_DENSE;
    const struct farm_net_io frames = {.frame_channels = 1, .height = 52, .width = 52, .stack = 4, .actions = 1},
                             numbers = {.flat = 17, .stack = 1, .actions = 1};
    const size_t ins = ROWS * (flat ? 17 : 4 * 52 * 52);
    double out = 0, in = 0;
    spec.layer_count = last + 1;
    struct problem *p = problem_new(&spec, flat ? &numbers : &frames, ROWS);
    problem_randomise(p, 9);
    farm_net_init(&p->net, how, 3, p->params);
    const struct farm_arithmetic f32 = farm_arithmetic_uniform(&p->net, FARM_PRECISION_F32, (struct farm_form){0});
    const struct farm_executor_config config = {
        .net = &p->net, .batch_max = ROWS, .training = true, .arithmetic = &f32};
    struct farm_executor *executor;
    cr_assert_eq(farm_executor_create(&config, &executor, &err), FARM_OK, "%s", err.message);
    farm_executor_load(executor, p->params);
    farm_executor_forward(executor, p->rows, farm_sequence_rows(ROWS), p->right.logits, p->right.value);
    const struct farm_tensor *value = &p->net.tensors[p->net.ops[p->net.op_count - 1].weight + 1];
    float *features = p->right.grads + value->offset;
    memset(p->dlogits, 0, ROWS * sizeof *p->dlogits);
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < ROWS; i++) p->dvalue[i] = i == row;
        memset(features, 0, value->count * sizeof *features);
        farm_executor_backward(executor, farm_sequence_rows(ROWS), p->dlogits, p->dvalue, p->right.grads);
        for (size_t i = 0; i < value->count; i++) out += pow((double)features[i], 2);
    }
    for (size_t i = 0; i < ins; i++) in += pow(flat ? (double)p->numbers[i] : p->frames[i] / 255.0, 2);
    const double size = sqrt(out / (double)(ROWS * value->count) / (in / (double)ins));
    farm_executor_destroy(executor);
    problem_free_host(p);
    return size;
}

// z = sqrt(2) Q x with orthonormal rows has twice the power of x, averaged over Q, and ReLU halves it: 1 after each
// layer, but for the chance of 16 channels. In deep, pools take maxima of 3x3, and residual blocks add up to e^(1/4).
// With 64 rows for 17 numbers the columns are orthonormal: sqrt(2 * 17 / 64) = 0.73, of which tanh takes some; the next
// layer makes sqrt(2) times as much of it, of which tanh takes more.
// PyTorch's default U(+-1/sqrt(n)) has the variance 1/3n: 1/sqrt(6) = 0.41 for each layer of ReLU.
Test(nn, orthogonal_initial_weights_keep_the_size_of_features) {
    static const struct {
        const char *name;
        double least, most, uniform; // uniform: after the last layer
    } nets[] = {{"shallow", 0.7, 1.5, 0.069}, {"nature", 0.7, 1.5, 0.028}, {"lite", 0.7, 1.5, 0.028},
                {"deep", 0.7, 2.5, 0},        {"mlp", 0.5, 1, 0},          {"separate", 0.5, 1, 0}};
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++) {
        const int layers = net_spec(nets[i].name)->layer_count;
        for (int l = 0; l < layers; l++) {
            const double size = feature_size(nets[i].name, l, FARM_INIT_ORTHOGONAL);
            cr_expect(size > nets[i].least && size < nets[i].most, "%s: %.3g after layer %d", nets[i].name, size, l);
        }
        const double expected = nets[i].uniform;
        const double size = expected > 0 ? feature_size(nets[i].name, layers - 1, FARM_INIT_UNIFORM) : 0;
        cr_expect(size >= expected / 1.3 && size <= expected * 1.3, "%s: %.3g, not %.3g", nets[i].name, size, expected);
    }
}
