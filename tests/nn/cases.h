// The networks that both executors compute: test_executor.c on the CPU, beside a plain network; cuda/executor.h over
// emulators and on a GPU, beside the CPU's executor. deep: even and odd sizes at every pool, the smallest picture, and
// the least that is stacked.
#ifndef TESTS_NN_CASES_H
#define TESTS_NN_CASES_H

#include "problem.h"

// How far an answer may be off: logits and values together, the gradient as a whole, that of one tensor.
struct bounds {
    double forward, gradient, tensor;
};

static const struct net_case {
    const char *net;
    struct farm_net_io io;
    int rows, emulations; // emulations: on the CPU (test_executor.c)
    struct bounds bf16;   // on GPUs: roundings move signs and maxima, whose gradients move as a whole
} cases[] = {
    {"deep", {.frame_channels = 1, .height = 10, .width = 5, .stack = 1, .actions = 3}, 5, 4, {0, 0, 0}},
    {"deep", {.frame_channels = 1, .height = 1, .width = 1, .stack = 2, .actions = 2}, 4, 4, {0, 0, 0}},
    {"shallow", {.frame_channels = 1, .height = 84, .width = 84, .stack = 4, .actions = 6}, 2, 2, {1e-2, 4e-2, 0.2}},
    {"shallow", {.frame_channels = 3, .height = 37, .width = 50, .stack = 2, .actions = 15}, 2, 0, {1e-2, 4e-2, 0.2}},
    {"nature", {.frame_channels = 1, .height = 84, .width = 84, .stack = 4, .actions = 18}, 2, 2, {1e-2, 4e-2, 0.2}},
    {"mlp", {.flat = 17, .stack = 1, .actions = 7}, 5, 0, {1e-2, 1e-2, 2e-2}},
    {"deep", {.frame_channels = 1, .height = 33, .width = 46, .stack = 2, .actions = 18}, 2, 0, {1e-2, 0.12, 0.45}},
    {"deep", {.frame_channels = 3, .height = 24, .width = 31, .stack = 1, .actions = 3}, 2, 4, {1e-2, 0.12, 0.45}},
    {"lite", // two stacks of colour images beside numbers
     {.frame_channels = 3,
      .height = 44,
      .width = 51,
      .interleaved = true,
      .stack = 2,
      .images = 2,
      .flat = 13,
      .actions = 5},
     3,
     0,
     {1e-2, 4e-2, 0.2}},
    {"separate", {.flat = 9, .stack = 1, .actions = 3, .free_outputs = 1}, 6, 0, {1e-2, 1e-2, 2e-2}},
    {"mlp", {.flat = 17, .stack = 1, .lstm = 19, .lstm_layers = 1, .actions = 7}, 21, 0, {1e-2, 1e-2, 5e-2}},
    {"mlp", {.flat = 3, .stack = 1, .lstm = 8, .lstm_layers = 2, .actions = 2}, 5, 0, {1e-2, 1e-2, 2e-2}},
    {"shallow", // two layers behind frames and a flat input
     {.frame_channels = 1,
      .height = 44,
      .width = 40,
      .stack = 2,
      .flat = 7,
      .lstm = 64,
      .lstm_layers = 2,
      .actions = 5},
     12,
     0,
     {1e-2, 4e-2, 0.2}},
};
enum { ON_CUDA = 2, ODD = sizeof cases / sizeof *cases, CASES };

// What no known network has: odd numbers of channels, dense layers with ReLU and without activation, a dense layer that
// reads a pool, a ReLU between residual blocks, normalisations, activations after convolutions.
static const struct farm_net_spec odd_net = {
    .text = "odd",
    .layer_count = 9,
    .layers = {CONV(CONV, 5, 3, 2, TANH), NORM(NONE), CONV(RESIDUAL, 5, 3, 0, NONE), CONV(RESIDUAL, 5, 3, 0, RELU),
               CONV(CONV_SAME, 7, 3, 1, ELU), CONV(POOL, 0, 2, 2, NONE), DENSE(11, NONE), NORM(SILU), DENSE(9, RELU)},
};
static const struct farm_net_io odd_io = {.frame_channels = 2, .height = 19, .width = 22, .stack = 3, .actions = 4};

#endif
