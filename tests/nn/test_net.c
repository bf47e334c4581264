// Shapes, names and numbers of parameters, and their initial values.
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nn/net.h"

static const struct farm_net_io atari = {.frame_channels = 1, .height = 84, .width = 84, .stack = 4, .actions = 6};
static const struct farm_net_io cartpole = {.flat = 4, .stack = 1, .actions = 2};

static struct farm_net make(const char *name, struct farm_net_io io) {
    struct farm_net net;
    struct farm_error err = {.message = ""};
    const struct farm_net_spec *spec = farm_net_find(name, &err);
    cr_assert_not_null(spec, "%s", err.message);
    cr_assert_eq(farm_net_make(spec, &io, &net, &err), FARM_OK, "%s", err.message);
    return net;
}

static void expect_refused(const struct farm_net_spec *spec, struct farm_net_io io, const char *reason) {
    struct farm_net net;
    struct farm_error err = {.message = ""};
    cr_assert_eq(farm_net_make(spec, &io, &net, &err), FARM_E_INVALID);
    cr_assert_not_null(strstr(err.message, reason), "\"%s\" does not say \"%s\"", err.message, reason);
}

// Counted by hand: 16*(4*64+1) + 32*(16*16+1) + 256*(32*81+1) + 7*(256+1).
Test(nn, counts_the_parameters_of_shallow) {
    cr_assert_eq(make("shallow", atari).parameter_count, 677943);
}

// The published number for 18 actions without the value head is 1693362 (Mnih et al.'s network in PyTorch); here 6 + 1
// heads.
Test(nn, counts_the_parameters_of_nature) {
    cr_assert_eq(make("nature", atari).parameter_count, 1693362 - 11 * 513);
}

Test(nn, counts_the_parameters_of_mlp) {
    cr_assert_eq(make("mlp", cartpole).parameter_count, 5 * 64 + 65 * 64 + 3 * 65);
}

Test(nn, names_tensors_in_order_without_gaps) {
    const struct farm_net net = make("shallow", atari);
    static const char *const names[] = {"layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias",
                                        "layers.2.weight", "layers.2.bias", "policy.weight",   "value.weight",
                                        "policy.bias",     "value.bias"};
    static const int dims[][4] = {{16, 4, 8, 8}, {16},     {32, 16, 4, 4}, {32}, {256, 2592},
                                  {256},         {6, 256}, {1, 256},       {6},  {1}};
    cr_assert_eq(net.tensor_count, 10);
    size_t offset = 0;
    for (int t = 0; t < net.tensor_count; t++) {
        const struct farm_tensor *tensor = &net.tensors[t];
        cr_assert_str_eq(tensor->name, names[t]);
        cr_assert_eq(tensor->offset, offset);
        size_t count = 1;
        for (int i = 0; i < tensor->rank; i++) {
            cr_assert_eq(tensor->dims[i], dims[t][i], "%s dimension %d", names[t], i);
            count *= (size_t)dims[t][i];
        }
        cr_assert_eq(tensor->count, count);
        offset += count;
    }
    cr_assert_eq(net.parameter_count, offset);
}

Test(nn, takes_the_channels_of_all_stacked_frames) {
    struct farm_net_io io = atari;
    io.frame_channels = 3;
    io.stack = 2;
    cr_assert_eq(make("nature", io).tensors[0].dims[1], 6);
}

Test(nn, lists_networks_until_null) {
    size_t i = 0;
    for (; farm_net_at(i) != NULL; i++) cr_assert_eq(farm_net_find(farm_net_at(i)->name, NULL), farm_net_at(i));
    cr_assert_eq(i, 3);
}

Test(nn, names_the_networks_where_one_is_unknown) {
    struct farm_error err = {.message = ""};
    cr_assert_null(farm_net_find("shalow", &err));
    cr_assert_eq(err.status, FARM_E_NOT_FOUND);
    cr_assert_not_null(strstr(err.message, "shallow, nature, mlp"));
}

Test(nn, refuses_what_does_not_fit) {
    const struct farm_net_spec *shallow = farm_net_find("shallow", NULL), *mlp = farm_net_find("mlp", NULL);
    struct farm_net_io io = atari;
    io.height = 7;
    expect_refused(shallow, io, "too small");
    io = atari;
    io.width = 19; // 3 columns after the first layer, the second wants 4
    expect_refused(shallow, io, "layer 1 gets 20x3");
    expect_refused(shallow, cartpole, "flat");
    expect_refused(mlp, atari, "takes flat observations");
    io = cartpole;
    io.stack = 4;
    expect_refused(mlp, io, "not stacked");
    io = atari;
    io.actions = 0;
    expect_refused(shallow, io, "at least one action");
    io = atari;
    io.stack = 0;
    expect_refused(shallow, io, "stack");
    io = atari;
    io.flat = 4;
    expect_refused(shallow, io, "either");
}

Test(nn, initial_values_are_uniform_within_their_bounds) {
    const struct farm_net net = make("shallow", atari);
    float *params = malloc(net.parameter_count * sizeof *params);
    farm_net_init(&net, 5, params);
    for (int t = 0; t < net.tensor_count; t++) {
        const struct farm_tensor *tensor = &net.tensors[t];
        double most = 0, square = 0;
        for (size_t i = 0; i < tensor->count; i++) {
            const double x = params[tensor->offset + i];
            most = fabs(x) > most ? fabs(x) : most;
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

// The numbers themselves are part of the contract: a seed means the same run on every machine.
Test(nn, initial_values_depend_on_the_seed_alone) {
    const struct farm_net net = make("mlp", cartpole);
    float *a = malloc(net.parameter_count * sizeof *a), *b = malloc(net.parameter_count * sizeof *b);
    farm_net_init(&net, 1, a);
    farm_net_init(&net, 1, b);
    cr_assert_arr_eq(a, b, net.parameter_count * sizeof *a);
    farm_net_init(&net, 2, b);
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
