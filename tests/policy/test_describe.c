// A policy's text: another process makes the same network, head and arithmetic of it, and hostile text is refused.
#include "policy/describe.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static const struct farm_field_spec numbers = {.name = "numbers", .dtype = FARM_F32, .rank = 1, .dims = {5}},
                                    kinds = {.name = "kinds", .dtype = FARM_I32, .rank = 1, .dims = {2}, .choices = 7},
                                    frame = {.name = "frame", .dtype = FARM_U8, .rank = 3, .dims = {3, 64, 48}},
                                    pixels = {.name = "pixels", .dtype = FARM_U8, .rank = 3, .dims = {48, 40, 3}},
                                    mask = {.name = "action_mask", .dtype = FARM_U8, .rank = 1, .dims = {6}};
static const struct farm_action_spec two = {.kind = FARM_ACTION_MULTI_DISCRETE, .dims = 2, .sizes = {4, 2}},
                                     box = {.kind = FARM_ACTION_CONTINUOUS, .dims = 2, .low = {-2, 0}, .high = {2, 1}};

struct sample {
    const char *name, *net;
    struct farm_env_spec env;
    struct farm_policy_options options;
};

static const struct sample samples[] = {
    {"flat", "mlp", {.obs_count = 2, .obs = {numbers, kinds}, .action = two}, {.stack = 1}},
    {"mask", "mlp", {.obs_count = 2, .obs = {mask, numbers}, .action = two}, {.stack = 1, .last_inputs = true}},
    {"recurrent",
     "shallow",
     {.obs_count = 2, .obs = {frame, kinds}, .action = two},
     {.stack = 3, .lstm = 32, .lstm_layers = 2, .normalise_rewards = true, .normalise_observations = true}},
    {"interleaved", "deep", {.obs_count = 1, .obs = {pixels}, .action = two}, {.stack = 4}},
    {"squashed",
     "separate",
     {.obs_count = 1, .obs = {numbers}, .action = box},
     {.stack = 1,
      .last_inputs = true,
      .normalise_observations = true,
      .head = {.squash = true, .scale = true, .state_sigma = true}}},
};
enum { SAMPLES = sizeof samples / sizeof samples[0] };

static struct farm_policy_description made;
static char text[FARM_POLICY_TEXT_BYTES];

static void describe(const struct sample *sample) {
    struct farm_error err = {0};
    struct farm_net_io io;
    struct farm_form forms[FARM_FORMS_MAX];
    made =
        (struct farm_policy_description){.seed = UINT64_MAX - 3, .refresh = 20, .head_options = sample->options.head};
    cr_assert_eq(farm_policy_io(&sample->env, &sample->options, &io, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(farm_net_make(farm_net_find(sample->net, &err), &io, &made.net, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(farm_head_make(&sample->env, sample->options.head, &made.head, &err), FARM_OK, "%s", err.message);
    const int count = farm_arithmetic_forms(&made.net, FARM_PRECISION_AUTO, forms);
    made.arithmetic = farm_arithmetic_uniform(&made.net, FARM_PRECISION_AUTO, forms[count - 1]);
    cr_assert_eq(farm_policy_describe(&made, &sample->env, text, &err), FARM_OK, "%s: %s", sample->name, err.message);
}

Test(describe, gives_the_same_policy_elsewhere) {
    for (int i = 0; i < SAMPLES; i++) {
        struct farm_policy_description there;
        struct farm_error err = {0};
        describe(&samples[i]);
        const enum farm_status status = farm_policy_understand(text, &samples[i].env, &there, &err);
        cr_assert_eq(status, FARM_OK, "%s: %s", samples[i].name, err.message);
        cr_assert(there.seed == made.seed && there.refresh == made.refresh && !there.plain);
        cr_assert_eq(memcmp(&there.head, &made.head, sizeof there.head), 0, "%s", samples[i].name);
        cr_assert_eq(memcmp(there.net.ops, made.net.ops, sizeof there.net.ops), 0, "%s", samples[i].name);
        cr_assert_eq(memcmp(there.net.tensors, made.net.tensors, sizeof there.net.tensors), 0, "%s", samples[i].name);
        cr_assert_eq(memcmp(there.net.io.last_scale, made.net.io.last_scale, sizeof made.net.io.last_scale), 0);
        cr_assert_eq(there.arithmetic.first, made.arithmetic.first);
        for (int op = 0; op < made.net.op_count; op++)
            cr_assert(farm_form_equal(there.arithmetic.forms[op], made.arithmetic.forms[op]), "%s", samples[i].name);
    }
}

// Replaces the value of a line; NULL: removes the line.
static void replace(const char *key, const char *value, char out[2 * FARM_POLICY_TEXT_BYTES]) {
    const char *line = strstr(text, key), *end = strchr(line, '\n') + 1;
    snprintf(out, 2 * FARM_POLICY_TEXT_BYTES, "%.*s%s%s%s%s", (int)(line - text), text, value ? key : "",
             value ? value : "", value ? "\n" : "", end);
}

Test(describe, refuses_what_is_no_such_text) {
    static const char *const wrong[][2] = {{"net=", NULL},
                                           {"net=", "mlq"},
                                           {"net=", "shallow"},
                                           {"stack=", "0"},
                                           {"stack=", "33"},
                                           {"stack=", "2"},
                                           {"lstm=", "4097"},
                                           {"lstm=", "-1"},
                                           {"lstm=", "8"},
                                           {"lstm_layers=", ""},
                                           {"last_inputs=", "2"},
                                           {"squash=", NULL},
                                           {"refresh=", "0"},
                                           {"seed=", "0x1"},
                                           {"seed=", "1 "},
                                           {"arithmetic=", NULL},
                                           {"stack=", "1\nstack=1"},
                                           {"arithmetic=", "0 0 f0\nmore"},
                                           {"refresh=", "4294967296"}};
    char out[2 * FARM_POLICY_TEXT_BYTES];
    describe(&samples[0]);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct farm_policy_description there;
        struct farm_error err = {0};
        replace(wrong[i][0], wrong[i][1], out);
        cr_assert_neq(farm_policy_understand(out, &samples[0].env, &there, &err), FARM_OK, "%s%s", wrong[i][0],
                      wrong[i][1] ? wrong[i][1] : " removed");
        cr_assert_neq(err.message[0], 0);
    }
}

Test(describe, takes_f32_for_arithmetic_that_this_cpu_lacks) {
    char out[2 * FARM_POLICY_TEXT_BYTES];
    struct farm_policy_description there;
    struct farm_error err = {0};
    describe(&samples[2]);
    replace("arithmetic=", "1 99 b16", out);
    cr_assert_eq(farm_policy_understand(out, &samples[2].env, &there, &err), FARM_OK, "%s", err.message);
    cr_assert(there.plain && !there.arithmetic.forms[1].bf16 && there.arithmetic.first == FARM_CONV_U8_F32);
    cr_assert_eq(farm_arithmetic_check(&there.net, &there.arithmetic, &err), FARM_OK, "%s", err.message);
}

Test(describe, bounds_parameters_before_anything_is_allocated) {
    struct farm_env_spec env = samples[0].env;
    struct farm_policy_description there;
    struct farm_error err = {0};
    describe(&samples[0]);
    env.obs[0].rank = 2; // 1 << 22 columns of the first layer's 64 rows
    env.obs[0].dims[0] = 1 << 10, env.obs[0].dims[1] = 1 << 12;
    cr_assert_eq(farm_policy_understand(text, &env, &there, &err), FARM_E_LIMIT, "%s", err.message);
}

Test(describe, refuses_to_write_what_would_be_read_otherwise) {
    struct farm_error err = {0};
    describe(&samples[0]);
    made.net.io.inputs[1].kind = FARM_INPUT_WHOLE;
    cr_assert_eq(farm_policy_describe(&made, &samples[0].env, text, &err), FARM_E_UNSUPPORTED);
}
