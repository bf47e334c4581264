// The adapter for gym3's libenv interface (src/envs/libenv/libenv.c) with an environment of our own behind it
// (libenv_fixture.c), and with Procgen's library, which other people compiled, where that is here.
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "envs/plugin.h"
#include "ring/spec.h"

enum { OPTIONS_MAX = 8, ENDED = FARM_STEP_TERMINATED | FARM_STEP_GAME_END, RGB_BYTES = 64 * 64 * 3 };
enum { IMAGE_BYTES = 8 };

struct config {
    struct farm_env_option options[OPTIONS_MAX];
    struct farm_env_config env;
    char lib[4096];
};

static const char *build(void) {
    return getenv("FARM_BUILD") ? getenv("FARM_BUILD") : "build";
}

static struct farm_plugin open_plugin(const char *file, const char *name) {
    char path[4096];
    struct farm_plugin plugin;
    struct farm_error err = {0};
    snprintf(path, sizeof path, "%s/envs/%s", build(), file);
    cr_assert_eq(farm_plugin_open(path, name, &plugin, &err), FARM_OK, "%s", err.message);
    return plugin;
}

static void put(struct config *config, const char *key, const char *value) {
    cr_assert_lt(config->env.option_count, (size_t)OPTIONS_MAX);
    config->options[config->env.option_count++] = (struct farm_env_option){key, value};
    config->env.options = config->options;
}

static void use(struct config *config, const char *library) {
    memset(config, 0, sizeof *config);
    snprintf(config->lib, sizeof config->lib, "%s/%s", build(), library);
    put(config, "lib", config->lib);
}

static void fixture(struct config *config, const char *shape) {
    use(config, "tests/envs/libenv_fixture.so");
    if (shape) put(config, "shape", shape);
}

static void refused(const struct config *config, const char *sentence) {
    struct farm_plugin plugin = open_plugin("libenv.so", NULL);
    struct farm_env_spec spec;
    char error[256] = "";
    cr_assert_eq(plugin.api->spec(&config->env, &spec, error, sizeof error), -1, "accepted; wanted: %s", sentence);
    cr_assert_not_null(strstr(error, sentence), "it says '%s', not '%s'", error, sentence);
    error[0] = 0;
    cr_assert_null(plugin.api->create(&config->env, error, sizeof error));
    cr_assert_not_null(strstr(error, sentence), "create says '%s'", error);
}

// What the fixture shows.
struct sight {
    uint8_t image[IMAGE_BYTES];
    int32_t clock;
    float options[5], acted[3];
    float reward;
    uint32_t answer;
};

static void look(struct sight *sight, void **obs) {
    memset(sight, 0xEE, sizeof *sight);
    obs[0] = sight->image;
    obs[1] = &sight->clock;
    obs[2] = sight->options;
    obs[3] = sight->acted;
}

static void reset(const struct farm_env_api *api, void *env, struct sight *sight) {
    void *obs[FARM_OBS_FIELDS_MAX];
    look(sight, obs);
    api->reset(env, obs);
}

static void step(const struct farm_env_api *api, void *env, const void *action, struct sight *sight) {
    void *obs[FARM_OBS_FIELDS_MAX];
    look(sight, obs);
    sight->answer = api->step(env, action, obs, &sight->reward);
}

static void *make(const struct farm_env_api *api, const struct config *config) {
    char error[256] = "";
    void *env = api->create(&config->env, error, sizeof error);
    cr_assert_not_null(env, "%s", error);
    return env;
}

Test(envs, libenv_spaces_become_a_spec) {
    struct config config;
    struct farm_plugin plugin = open_plugin("libenv.so", "libenv/any");
    struct farm_env_spec spec;
    struct farm_error err = {0};
    char error[256] = "";
    fixture(&config, NULL);
    cr_assert_eq(plugin.api->spec(&config.env, &spec, error, sizeof error), 0, "%s", error);
    cr_assert_eq(farm_plugin_check_spec(&spec, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(spec.obs_count, 4);
    cr_assert_str_eq(spec.obs[0].name, "image");
    cr_assert_eq(spec.obs[0].dtype, FARM_U8);
    cr_assert_eq(spec.obs[0].rank, 3);
    cr_assert_eq(farm_field_bytes(&spec.obs[0]), IMAGE_BYTES);
    cr_assert_eq(spec.obs[1].dtype, FARM_I32);
    cr_assert(spec.obs[1].rank == 1 && spec.obs[1].dims[0] == 1, "a scalar is a vector of 1");
    cr_assert_str_eq(spec.obs[2].name, "ob_2", "a name too long for ours");
    cr_assert(spec.obs[2].dtype == FARM_F32 && spec.obs[2].dims[0] == 5);
    cr_assert(spec.action.kind == FARM_ACTION_DISCRETE && spec.action.dims == 1 && spec.action.sizes[0] == 7);

    fixture(&config, "vector");
    cr_assert_eq(plugin.api->spec(&config.env, &spec, error, sizeof error), 0, "%s", error);
    cr_assert(spec.action.kind == FARM_ACTION_MULTI_DISCRETE && spec.action.dims == 3 && spec.action.sizes[2] == 7);
    fixture(&config, "real");
    cr_assert_eq(plugin.api->spec(&config.env, &spec, error, sizeof error), 0, "%s", error);
    cr_assert(spec.action.kind == FARM_ACTION_CONTINUOUS && spec.action.dims == 2);
    cr_assert(spec.action.low[1] == -2 && spec.action.high[1] == 0.5f);
}

Test(envs, libenv_loses_and_doubles_no_reward_where_episodes_end) {
    struct config config;
    struct farm_plugin plugin = open_plugin("libenv.so", NULL);
    struct sight sight;
    fixture(&config, NULL);
    void *env = make(plugin.api, &config);
    for (int32_t episode = 0; episode < 4; episode++) {
        reset(plugin.api, env, &sight);
        cr_assert_eq(sight.clock, 1000 * episode, "an episode starts with its own first observation");
        for (int32_t n = 1; n <= 3; n++) {
            const int32_t action = n;
            step(plugin.api, env, &action, &sight);
            cr_assert_eq(sight.reward, (float)(100 * episode + n));
            cr_assert_eq(sight.acted[0], (float)n);
            cr_assert_eq(sight.answer, n == 3 ? ENDED : 0u);
            const int32_t clock = n == 3 ? 1000 * (episode + 1) : 1000 * episode + n;
            cr_assert_eq(sight.clock, clock);
            for (size_t i = 0; i < IMAGE_BYTES; i++) cr_assert_eq(sight.image[i], clock % 251);
        }
    }
    plugin.api->destroy(env);
}

Test(envs, libenv_passes_vectors_of_actions_of_both_types) {
    struct config config;
    struct farm_plugin plugin = open_plugin("libenv.so", NULL);
    struct sight sight;
    const int32_t whole[3] = {6, 0, 4};
    const float real[2] = {-1.25f, 0.5f};
    fixture(&config, "vector");
    void *env = make(plugin.api, &config);
    reset(plugin.api, env, &sight);
    step(plugin.api, env, whole, &sight);
    cr_assert(sight.acted[0] == 6 && sight.acted[1] == 0 && sight.acted[2] == 4);
    plugin.api->destroy(env);
    fixture(&config, "real");
    env = make(plugin.api, &config);
    reset(plugin.api, env, &sight);
    step(plugin.api, env, real, &sight);
    cr_assert(sight.acted[0] == -1.25f && sight.acted[1] == 0.5f && sight.acted[2] == 0);
    plugin.api->destroy(env);
}

static void said(const char *const *pairs, const float *wanted) {
    struct config config;
    struct farm_plugin plugin = open_plugin("libenv.so", NULL);
    struct sight sight;
    fixture(&config, NULL);
    config.env.seed = 77;
    for (; *pairs; pairs += 2) put(&config, pairs[0], pairs[1]);
    void *env = make(plugin.api, &config);
    reset(plugin.api, env, &sight);
    for (int i = 0; i < 5; i++)
        cr_assert_eq(sight.options[i], wanted[i], "option %d: %g, not %g", i, (double)sight.options[i],
                     (double)wanted[i]);
    plugin.api->destroy(env);
}

Test(envs, libenv_passes_options_by_the_type_that_their_text_has) {
    said((const char *const[]){"length", "12", "scale", "-2.5e1", "loud", "true", "title", "Hello", "seed_option",
                               "seed", NULL},
         (const float[]){12, -25, 1, 5, 77});
    said((const char *const[]){"length", "int:4", "scale", "float:3", "loud", "bool:false", "title", "string:12", NULL},
         (const float[]){4, 3, 0, 2, 0});
    said((const char *const[]){"length", "4.0", "scale", "3", "title", "1", NULL}, (const float[]){-1, -1, 0, -1, 0});
}

Test(envs, libenv_refuses_options_that_cannot_be_passed) {
    struct config config;
    fixture(&config, NULL);
    put(&config, "length", "int:long");
    refused(&config, "\"length\" is not what \"int:long\" says");
    memset(&config, 0, sizeof config);
    refused(&config, "libenv:PATH");
}

Test(envs, libenv_refuses_libraries_that_are_none) {
    struct config config;
    use(&config, "tests/envs/nothing.so");
    refused(&config, "nothing.so");
    use(&config, "envs/libenv.so");
    refused(&config, "exports no libenv_version");
    fixture(&config, NULL);
    setenv("FIXTURE_VERSION", "2", 1);
    refused(&config, "speaks version 2 of the libenv interface, this farm speaks 1");
    setenv("FIXTURE_VERSION", "1", 1);
    fixture(&config, "none");
    refused(&config, "libenv_make gives no environment");
}

Test(envs, libenv_refuses_absurd_spaces) {
    static const char *const shapes[][2] = {
        {"no_obs", "0 observation tensors"},
        {"crowd", "1000000000 observation tensors"},
        {"negative", "-1 observation tensors"},
        {"huge", "makes no sense"},
        {"hollow", "makes no sense"},
        {"backwards", "makes no sense"},
        {"bottomless", "makes no sense"},
        {"deep", "'image' has 5 dimensions"},
        {"double", "dtype 7"},
        {"real_bytes", "scalar type 1 with dtype 1"},
        {"endless_name", "does not end"},
        {"two_actions", "2 action tensors"},
        {"byte_actions", "dtype uint8"},
        {"actions_from_1", "from 1 to 6"},
        {"all_actions", "from 0 to 2147483647"},
        {"wide_actions", "actions of 33 numbers"},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct config config;
        fixture(&config, shapes[i][0]);
        refused(&config, shapes[i][1]);
    }
}

// Procgen twice: through the adapter, which knows nothing of it, and through its own plug-in.
Test(envs, libenv_runs_procgen_unchanged) {
    struct config any, own = {.env = {.seed = 4711}};
    char images[4200];
    use(&any, "procgen/libenv.so");
    if (access(any.lib, R_OK)) cr_skip_test("Procgen's library is not in build/procgen (make deps brings it)");
    snprintf(images, sizeof images, "%s/procgen/assets/", build());
    static const char *const pairs[][2] = {{"env_name", "leaper"}, {"num_levels", "0"},  {"start_level", "0"},
                                           {"num_actions", "15"},  {"num_threads", "0"}, {"rand_seed", "4711"}};
    for (size_t i = 0; i < 6; i++) put(&any, pairs[i][0], pairs[i][1]);
    put(&any, "resource_root", images);
    // What is left out has other defaults in the library than in the plug-in, which has those of Procgen's Python.
    put(&own, "distribution_mode", "easy");
    put(&own, "center_agent", "false");
    struct farm_plugin left = open_plugin("libenv.so", NULL), right = open_plugin("procgen.so", "procgen/leaper");
    void *a = make(left.api, &any), *b = make(right.api, &own);
    uint8_t *seen[2] = {calloc(1, RGB_BYTES), calloc(1, RGB_BYTES)};
    uint32_t answer = 1, ends = 0, rng = 5;
    for (int32_t n = 0; n < 300; n++) {
        float reward[2] = {0, 0};
        rng = rng * 1664525u + 1013904223u;
        const int32_t action = (int32_t)((rng >> 16) % 15);
        if (answer) left.api->reset(a, (void *const *)&seen[0]), right.api->reset(b, (void *const *)&seen[1]);
        answer = left.api->step(a, &action, (void *const *)&seen[0], &reward[0]);
        cr_assert_eq(right.api->step(b, &action, (void *const *)&seen[1], &reward[1]), answer);
        cr_assert_eq(reward[0], reward[1]);
        cr_assert_arr_eq(seen[0], seen[1], RGB_BYTES);
        ends += answer != 0;
    }
    cr_assert_gt(ends, 0);
    left.api->destroy(a);
    right.api->destroy(b);
    free(seen[0]);
    free(seen[1]);
}
