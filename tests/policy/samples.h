// Policies of every kind, for tests: environments, options, and the description that a learner would give.
#ifndef TESTS_POLICY_SAMPLES_H
#define TESTS_POLICY_SAMPLES_H

#include "../support/nets.h"
#include "policy/describe.h"

#define NUMBERS                                                                                                        \
    {                                                                                                                  \
        .name = "numbers", .dtype = FARM_F32, .rank = 1, .dims = { 5 }                                                 \
    }
#define KINDS                                                                                                          \
    { .name = "kinds", .dtype = FARM_I32, .rank = 1, .dims = {2}, .choices = 7 }
#define TWO                                                                                                            \
    {                                                                                                                  \
        .kind = FARM_ACTION_MULTI_DISCRETE, .dims = 2, .sizes = { 4, 2 }                                               \
    }

struct sample {
    const char *name, *net;
    struct farm_env_spec env;
    struct farm_policy_options options;
};

static const struct sample samples[] = {
    {"flat", "mlp", {.obs_count = 2, .frames_per_step = 1, .obs = {NUMBERS, KINDS}, .action = TWO}, {.stack = 1}},
    {"mask",
     "mlp",
     {.obs_count = 2,
      .frames_per_step = 1,
      .obs = {{.name = "action_mask", .dtype = FARM_U8, .rank = 1, .dims = {6}}, NUMBERS},
      .action = TWO},
     {.stack = 1, .last_inputs = 1}},
    {"recurrent",
     "shallow",
     {.obs_count = 2,
      .frames_per_step = 1,
      .obs = {{.name = "frame", .dtype = FARM_U8, .rank = 3, .dims = {3, 64, 48}}, KINDS},
      .action = TWO},
     {.stack = 3, .lstm = 32, .lstm_layers = 2, .normalise_rewards = 1, .normalise_observations = 1}},
    {"interleaved",
     "deep",
     {.obs_count = 1,
      .frames_per_step = 1,
      .obs = {{.name = "pixels", .dtype = FARM_U8, .rank = 3, .dims = {48, 40, 3}}},
      .action = TWO},
     {.stack = 4}},
    {"squashed",
     "separate",
     {.obs_count = 1,
      .frames_per_step = 1,
      .obs = {NUMBERS},
      .action = {.kind = FARM_ACTION_CONTINUOUS, .dims = 2, .low = {-2, 0}, .high = {2, 1}}},
     {.stack = 1, .last_inputs = 1, .normalise_observations = 1, .squash = 1, .scale_actions = 1, .state_sigma = 1}},
    {"values",
     "mlp",
     {.obs_count = 2,
      .frames_per_step = 1,
      .obs = {{.name = "action_mask", .dtype = FARM_U8, .rank = 1, .dims = {6}}, NUMBERS},
      .action = {.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {6}}},
     {.stack = 1, .q = 1, .duelling = 1}},
    {"text",
     "conv 9@5x5/2 same none, residual relu, conv 16@3x3/1, pool 2x2/2, dense 40, 24 tanh, 8 none",
     {.obs_count = 1,
      .frames_per_step = 1,
      .obs = {{.name = "pixels", .dtype = FARM_U8, .rank = 3, .dims = {48, 40, 3}}},
      .action = TWO},
     {.stack = 2}},
};
enum { SAMPLES = sizeof samples / sizeof samples[0] };

// The learner's description, with the last arithmetic that the CPU has, and its text.
static inline struct farm_policy_description sample_describe(const struct sample *sample, uint32_t refresh,
                                                             char text[FARM_POLICY_TEXT_BYTES]) {
    struct farm_error err = {0};
    struct farm_net_io io;
    struct farm_form forms[FARM_FORMS_MAX];
    struct farm_policy_description made = {.sampler = {UINT64_MAX - 3, 0, 0.9f, 0.1f, 1, 12, 3, 7, 0},
                                           .refresh = refresh,
                                           .head_options = farm_policy_head_options(&sample->options)};
    must(farm_policy_io(&sample->env, &sample->options, &io, &err), &err);
    must(farm_net_make(net_spec(sample->net), &io, &made.net, &err), &err);
    must(farm_head_make(&sample->env, made.head_options, &made.head, &err), &err);
    const int count = farm_arithmetic_forms(&made.net, FARM_PRECISION_AUTO, forms);
    made.arithmetic = farm_arithmetic_uniform(&made.net, FARM_PRECISION_AUTO, forms[count - 1]);
    must(farm_policy_describe(&made, &sample->env, text, &err), &err);
    return made;
}

#endif
