// What a network reads of an environment's observation fields, and which fields cannot be trained.
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "algo/registry.h"
#include "nn/inputs.h"
#include "run/trains.h"

#define IMAGE(...)                                                                                                     \
    {                                                                                                                  \
        .name = "image", .dtype = FARM_U8, .rank = 3, .dims = { __VA_ARGS__ }                                          \
    }
#define MASK                                                                                                           \
    {                                                                                                                  \
        .name = "action_mask", .dtype = FARM_U8, .rank = 1, .dims = { 4 }                                              \
    }
#define NUMBERS(name_, type)                                                                                           \
    {                                                                                                                  \
        .name = name_, .dtype = type, .rank = 1, .dims = { 6 }                                                         \
    }

static enum farm_status trains(const struct farm_field_spec *fields, uint32_t count, const char *net,
                               struct farm_recipe *recipe, struct farm_net_io *io, struct farm_error *err) {
    struct farm_env_spec env = {.obs_count = count, .action = {FARM_ACTION_DISCRETE, 1, .sizes = {4}}};
    memcpy(env.obs, fields, count * sizeof *fields);
    farm_recipe_defaults(recipe, farm_algo_family_at);
    snprintf(recipe->net, sizeof recipe->net, "%s", net);
    return farm_run_trains(&env, recipe, io, err);
}

Test(run, images_have_their_channels_first_or_last) {
    static const struct {
        struct farm_field_spec field;
        int channels, height, width;
        bool interleaved;
        const char *net;
    } cases[] = {
        {{.name = "image", .dtype = FARM_U8, .rank = 2, .dims = {84, 80}}, 1, 84, 80, false, "shallow"},
        {IMAGE(64, 60, 3), 3, 64, 60, true, "shallow"},
        {IMAGE(3, 64, 60), 3, 64, 60, false, "shallow"},
        {IMAGE(17, 64, 60), 60, 17, 64, true, "deep"}, // too many channels in front
        {IMAGE(3, 64, 3), 3, 3, 64, true, "deep"},
        {IMAGE(7, 7, 3), 3, 7, 7, true, "deep"}, // too small for shallow's kernels
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct farm_recipe recipe;
        struct farm_net_io io;
        struct farm_error err = {0};
        cr_assert_eq(trains(&cases[i].field, 1, "auto", &recipe, &io, &err), FARM_OK, "%s", err.message);
        cr_expect(io.frame_channels == cases[i].channels && io.height == cases[i].height &&
                      io.width == cases[i].width && io.interleaved == cases[i].interleaved && io.images == 1 &&
                      io.flat == 0,
                  "case %zu: %d channels of %dx%d", i, io.frame_channels, io.height, io.width);
        cr_expect_str_eq(recipe.net, cases[i].net);
    }
}

Test(run, fields_of_all_kinds_are_read_side_by_side) {
    static const struct farm_field_spec fields[] = {
        NUMBERS("speed", FARM_F32),
        IMAGE(64, 64, 3),
        {.name = "card", .dtype = FARM_I32, .rank = 1, .dims = {2}, .choices = 13},
        MASK,
        NUMBERS("count", FARM_I32),
        IMAGE(64, 64, 3),
        NUMBERS("bytes", FARM_U8),
        {.name = "bits", .dtype = FARM_U8, .rank = 2, .dims = {8, 8}, .choices = 2},
    };
    static const struct farm_net_input inputs[] = {{FARM_INPUT_NUMBERS, 6, .source = 0},
                                                   {FARM_INPUT_ONE_HOT, 2, 13, .source = 2},
                                                   {FARM_INPUT_WHOLE, 6, .source = 4},
                                                   {FARM_INPUT_BYTES, 6, 256, .source = 6},
                                                   {FARM_INPUT_BYTES, 64, 2, .source = 7}};
    struct farm_recipe recipe;
    struct farm_net_io io;
    struct farm_error err = {0};
    cr_assert_eq(trains(fields, 8, "auto", &recipe, &io, &err), FARM_OK, "%s", err.message);
    cr_assert(io.images == 2 && io.image_source[0] == 1 && io.image_source[1] == 5);
    cr_assert_eq(io.flat, 6 + 26 + 6 + 6 + 64);
    cr_assert_eq(io.input_count, 5);
    for (int i = 0; i < 5; i++) {
        const struct farm_net_input *got = &io.inputs[i], *want = &inputs[i];
        cr_expect(got->kind == want->kind && got->count == want->count && got->choices == want->choices &&
                      got->source == want->source,
                  "input %d: kind %d, %d of %d, field %d", i, got->kind, got->count, got->choices, got->source);
    }
    cr_assert_str_eq(recipe.net, "shallow");
}

Test(run, refuses_what_no_network_reads_naming_the_fields) {
    static const struct {
        const char *net;
        struct farm_field_spec fields[2];
        const char *message;
    } cases[] = {
        {"auto",
         {IMAGE(64, 64, 3), {.name = "small", .dtype = FARM_U8, .rank = 2, .dims = {64, 64}}},
         "'image' and 'small' are images of different shapes"},
        {"auto",
         {NUMBERS("x", FARM_F32), {.name = "id", .dtype = FARM_I32, .rank = 1, .dims = {3}, .choices = 30000}},
         "field 'id': 3 integers of 30000 choices are 90.0k numbers one-hot"},
        {"auto", {MASK, MASK}, "no field besides"},
        {"auto", {NUMBERS("x", FARM_F32), NUMBERS("action_mask", FARM_U8)}, "a mask has one u8 per choice, 4 here"},
        {"mlp",
         {NUMBERS("x", FARM_F32), IMAGE(64, 64, 3)},
         "net: network mlp: layer 1 (dense 64): the first layer over frames"},
        {"shalow", {NUMBERS("x", FARM_F32), NUMBERS("y", FARM_F32)}, "did you mean 'shallow'?"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct farm_recipe recipe;
        struct farm_net_io io;
        struct farm_error err = {0};
        cr_expect_neq(trains(cases[i].fields, 2, cases[i].net, &recipe, &io, &err), FARM_OK);
        cr_expect(strstr(err.message, cases[i].message), "'%s' does not say '%s'", err.message, cases[i].message);
    }
}

Test(run, recipes_add_statistics_and_the_last_action_and_reward) {
    struct farm_env_spec env = {.obs_count = 2,
                                .obs = {NUMBERS("speed", FARM_F32), IMAGE(64, 64, 3)},
                                .action = {FARM_ACTION_MULTI_DISCRETE, 2, .sizes = {2, 5}}};
    struct farm_algo_config algo;
    struct farm_recipe recipe;
    struct farm_net_io io;
    struct farm_error err = {0};
    for (int continuous = 0; continuous < 2; continuous++) {
        farm_recipe_defaults(&recipe, farm_algo_family_at);
        recipe.normalise_observations = recipe.normalise_rewards = recipe.last_inputs = true;
        if (continuous) env.action = (struct farm_action_spec){FARM_ACTION_CONTINUOUS, 2, .high = {4, INFINITY}};
        cr_assert_eq(farm_run_trains(&env, &recipe, &io, &err), FARM_OK, "%s", err.message);
        cr_assert_eq(io.input_count, 3);
        cr_expect(io.normalise_rewards && io.inputs[0].normalise && !io.inputs[1].normalise && !io.inputs[2].normalise);
        cr_expect(io.inputs[1].source == FARM_SOURCE_LAST_ACTION && io.inputs[1].count == 2);
        cr_expect_eq(io.inputs[1].kind, continuous ? FARM_INPUT_SCALED : FARM_INPUT_ONE_HOT);
        if (continuous) {
            const float last[] = {4, 4}, zeros[9] = {0};
            float flat[9];
            farm_inputs_write(&io, zeros, zeros, (const void *[]){NULL, last, NULL}, flat);
            cr_expect(flat[6] == 1 && flat[7] == 4, "a bound is 1; without one the action keeps its units");
        }
        cr_expect_eq(io.inputs[2].source, FARM_SOURCE_LAST_REWARD);
        cr_expect_eq(io.flat, 6 + (continuous ? 2 : 2 * 5) + 1); // as wide as the largest dimension
    }
    cr_assert_eq(farm_recipe_settle(&recipe, &err), FARM_OK);
    cr_assert_eq(farm_algo_configure(&recipe, &algo, &err), FARM_OK);
    cr_expect_eq(algo.stack, 2, "windows hold the step before their start");
}

Test(run, a_shipped_net_that_does_not_read_the_observation_becomes_another) {
    for (int layer = FARM_LAYER_SHIPPED; layer <= FARM_LAYER_FILE; layer++) {
        struct farm_env_spec env = {
            .obs_count = 1, .obs = {IMAGE(64, 60, 3)}, .action = {FARM_ACTION_CONTINUOUS, 1, .low = {-1}, .high = {1}}};
        struct farm_recipe recipe;
        struct farm_net_io io;
        struct farm_error err = {0};
        farm_recipe_defaults(&recipe, farm_algo_family_at);
        farm_recipe_set(&recipe, (enum farm_recipe_layer)layer, "net", "separate", NULL);
        const enum farm_status status = farm_run_trains(&env, &recipe, &io, &err);
        cr_expect_eq(status, layer == FARM_LAYER_SHIPPED ? FARM_OK : FARM_E_USAGE, "%s", err.message);
        cr_expect_str_eq(recipe.net, layer == FARM_LAYER_SHIPPED ? "shallow" : "separate");
    }
}
