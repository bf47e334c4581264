// A policy's text: another process makes the same network, head and arithmetic of it, and hostile text is refused.
#include <criterion/criterion.h>
#include <string.h>

#include "samples.h"

static struct farm_policy_description made;
static char text[FARM_POLICY_TEXT_BYTES];

static void describe(const struct sample *sample) {
    made = sample_describe(sample, 20, text);
}

Test(describe, gives_the_same_policy_elsewhere) {
    for (int i = 0; i < SAMPLES; i++) {
        struct farm_policy_description there;
        struct farm_error err = {0};
        describe(&samples[i]);
        const enum farm_status status = farm_policy_understand(text, &samples[i].env, &there, &err);
        cr_assert_eq(status, FARM_OK, "%s: %s", samples[i].name, err.message);
        cr_assert_eq(memcmp(&there.sampler, &made.sampler, sizeof there.sampler), 0);
        cr_assert(there.refresh == made.refresh && !there.plain);
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
                                           {"net=", "dense 64, 64, dense"},
                                           {"net=", "dense 64,\x1b[31m 64"},
                                           {"stack=", "0"},
                                           {"stack=", "33"},
                                           {"stack=", "2"},
                                           {"lstm=", "4097"},
                                           {"lstm=", "-1"},
                                           {"lstm=", "8"},
                                           {"lstm_layers=", ""},
                                           {"last_inputs=", "2"},
                                           {"squash=", NULL},
                                           {"q=", "1"},
                                           {"epsilon=", "1.5"},
                                           {"epsilon_end=", "nan"},
                                           {"ladder=", "-1"},
                                           {"refresh=", "0"},
                                           {"seed=", "0x1"},
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
    cr_assert_eq(farm_policy_understand(text, &env, &there, &err), FARM_E_INVALID, "%s", err.message);
}

Test(describe, refuses_to_write_what_would_be_read_otherwise) {
    struct farm_error err = {0};
    describe(&samples[0]);
    made.net.spec = *net_spec("separate"); // with the parameters of mlp
    cr_assert_eq(farm_policy_describe(&made, &samples[0].env, text, &err), FARM_E_UNSUPPORTED);
}
