// The adapter for gym3's libenv interface (src/envs/libenv/libenv.c) over our own environment (libenv_fixture.c), and
// over Procgen's library if it is installed.
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

static void add_option(struct config *config, const char *key, const char *value) {
    cr_assert_lt(config->env.option_count, (size_t)OPTIONS_MAX);
    config->options[config->env.option_count++] = (struct farm_env_option){key, value};
    config->env.options = config->options;
}

static void use_library(struct config *config, const char *library) {
    memset(config, 0, sizeof *config);
    snprintf(config->lib, sizeof config->lib, "%s/%s", build(), library);
    add_option(config, "lib", config->lib);
}

static void use_fixture(struct config *config, const char *shape) {
    use_library(config, "tests/envs/libenv_fixture.so");
    if (shape) add_option(config, "shape", shape);
}

static void check_refused(const struct config *config, const char *message) {
    struct farm_plugin plugin = open_plugin("libenv.so", NULL);
    struct farm_env_spec spec;
    char error[256] = "";
    cr_assert_eq(plugin.api->spec(&config->env, &spec, error, sizeof error), -1, "accepted; expected: %s", message);
    cr_assert_not_null(strstr(error, message), "'%s' lacks '%s'", error, message);
    error[0] = 0;
    cr_assert_null(plugin.api->create(&config->env, error, sizeof error));
    cr_assert_not_null(strstr(error, message), "create: '%s' lacks '%s'", error, message);
}

// One environment of the fixture, and what it wrote last.
struct player {
    const struct farm_env_api *api;
    void *env;
    uint8_t image[IMAGE_BYTES];
    int32_t clock;
    float options[5], acted[3], reward;
    uint32_t flags;
};

static struct player make_player(const struct config *config) {
    char error[256] = "";
    struct player player = {.api = open_plugin("libenv.so", NULL).api};
    player.env = player.api->create(&config->env, error, sizeof error);
    cr_assert_not_null(player.env, "%s", error);
    return player;
}

static void destroy_player(struct player *player) {
    player->api->destroy(player->env);
}

// action NULL: a reset.
static void advance(struct player *player, const void *action) {
    void *const obs[] = {player->image, &player->clock, player->options, player->acted};
    memset(player->image, 0xEE, sizeof *player - offsetof(struct player, image));
    if (action)
        player->flags = player->api->step(player->env, action, obs, &player->reward);
    else
        player->api->reset(player->env, obs);
}

static struct farm_env_spec spec_of(const char *shape) {
    struct config config;
    struct farm_env_spec spec;
    struct farm_error err = {0};
    char error[256] = "";
    use_fixture(&config, shape);
    cr_assert_eq(open_plugin("libenv.so", "libenv/any").api->spec(&config.env, &spec, error, sizeof error), 0, "%s",
                 error);
    cr_assert_eq(farm_plugin_check_spec(&spec, &err), FARM_OK, "%s", err.message);
    return spec;
}

Test(envs, libenv_spaces_become_a_spec) {
    struct farm_env_spec spec = spec_of(NULL);
    cr_assert_eq(spec.obs_count, 4);
    cr_assert_str_eq(spec.obs[0].name, "image");
    cr_assert(spec.obs[0].dtype == FARM_U8 && spec.obs[0].rank == 3 && farm_field_bytes(&spec.obs[0]) == IMAGE_BYTES);
    cr_assert(spec.obs[1].dtype == FARM_I32 && spec.obs[1].rank == 1 && spec.obs[1].dims[0] == 1, "scalar to vector");
    cr_assert_str_eq(spec.obs[2].name, "ob_2", "the library's name is too long");
    cr_assert(spec.obs[2].dtype == FARM_F32 && spec.obs[2].dims[0] == 5);
    cr_assert(spec.action.kind == FARM_ACTION_DISCRETE && spec.action.dims == 1 && spec.action.sizes[0] == 7);
    cr_assert(spec.obs[0].choices == 0 && spec.obs[1].choices == 0, "no ranges");
    spec = spec_of("ranges");
    cr_assert(spec.obs[0].choices == 2 && spec.obs[1].choices == 10000);
    spec = spec_of("vector");
    cr_assert(spec.action.kind == FARM_ACTION_MULTI_DISCRETE && spec.action.dims == 3 && spec.action.sizes[2] == 7);
    spec = spec_of("real");
    cr_assert(spec.action.kind == FARM_ACTION_CONTINUOUS && spec.action.dims == 2);
    cr_assert(spec.action.low[1] == -2 && spec.action.high[1] == 0.5f);
}

Test(envs, libenv_loses_and_repeats_no_reward_at_the_end_of_an_episode) {
    struct config config;
    use_fixture(&config, NULL);
    struct player player = make_player(&config);
    for (int32_t episode = 0; episode < 4; episode++) {
        advance(&player, NULL);
        cr_assert_eq(player.clock, 1000 * episode, "an episode starts with its own first observation");
        for (int32_t n = 1; n <= 3; n++) {
            const int32_t clock = n == 3 ? 1000 * (episode + 1) : 1000 * episode + n;
            advance(&player, &n);
            cr_assert_eq(player.reward, (float)(100 * episode + n));
            cr_assert_eq(player.acted[0], (float)n);
            cr_assert_eq(player.flags, n == 3 ? ENDED : 0u);
            cr_assert_eq(player.clock, clock);
            for (size_t i = 0; i < IMAGE_BYTES; i++) cr_assert_eq(player.image[i], clock % 251);
        }
    }
    destroy_player(&player);
}

static void check_acted(const char *shape, const void *action, const float expected[3]) {
    struct config config;
    use_fixture(&config, shape);
    struct player player = make_player(&config);
    advance(&player, NULL);
    advance(&player, action);
    cr_assert_arr_eq(player.acted, expected, sizeof player.acted);
    destroy_player(&player);
}

Test(envs, libenv_passes_vectors_of_actions_of_both_types) {
    check_acted("vector", (const int32_t[]){6, 0, 4}, (const float[]){6, 0, 4});
    check_acted("real", (const float[]){-1.25f, 0.5f}, (const float[]){-1.25f, 0.5f, 0});
}

// pairs: key, value, key, value, NULL.
static void check_options(const char *const *pairs, const float *expected) {
    struct config config;
    use_fixture(&config, NULL);
    config.env.seed = 77;
    for (; *pairs; pairs += 2) add_option(&config, pairs[0], pairs[1]);
    struct player player = make_player(&config);
    advance(&player, NULL);
    for (int i = 0; i < 5; i++)
        cr_assert_eq(player.options[i], expected[i], "option %d: %g, not %g", i, (double)player.options[i],
                     (double)expected[i]);
    destroy_player(&player);
}

Test(envs, libenv_passes_options_by_the_type_of_their_text) {
    check_options((const char *const[]){"length", "12", "scale", "-2.5e1", "loud", "true", "title", "Hello",
                                        "seed_option", "seed", NULL},
                  (const float[]){12, -25, 1, 5, 77});
    check_options(
        (const char *const[]){"length", "int:4", "scale", "float:3", "loud", "bool:false", "title", "string:12", NULL},
        (const float[]){4, 3, 0, 2, 0});
    check_options((const char *const[]){"length", "4.0", "scale", "3", "title", "1", NULL},
                  (const float[]){-1, -1, 0, -1, 0});
}

Test(envs, libenv_refuses_invalid_options) {
    struct config config;
    use_fixture(&config, NULL);
    add_option(&config, "length", "int:long");
    check_refused(&config, "\"length\"");
    memset(&config, 0, sizeof config);
    check_refused(&config, "libenv:PATH");
}

Test(envs, libenv_refuses_invalid_libraries) {
    struct config config;
    use_library(&config, "tests/envs/nothing.so");
    check_refused(&config, "nothing.so");
    use_library(&config, "envs/libenv.so");
    check_refused(&config, "exports no libenv_version");
    use_fixture(&config, NULL);
    setenv("FIXTURE_VERSION", "2", 1);
    check_refused(&config, "has version 2 of the libenv interface; this farm has 1");
    setenv("FIXTURE_VERSION", "1", 1);
    use_fixture(&config, "none");
    check_refused(&config, "libenv_make returned no environment");
}

Test(envs, libenv_refuses_absurd_spaces) {
    static const char *const shapes[][2] = {
        {"no_obs", "0 observation tensors"},
        {"crowd", "1000000000 observation tensors"},
        {"negative", "-1 observation tensors"},
        {"huge", "has an invalid shape"},
        {"hollow", "has an invalid shape"},
        {"backwards", "has an invalid shape"},
        {"bottomless", "has an invalid shape"},
        {"deep", "'image' has 5 dimensions"},
        {"double", "dtype 7"},
        {"real_bytes", "scalar type 1 with dtype 1"},
        {"endless_name", "does not end"},
        {"two_actions", "2 action tensors"},
        {"byte_actions", "dtype uint8"},
        {"actions_from_1", "from 1 to 6"},
        {"all_actions", "from 0 to 2147483647"},
        {"wide_actions", "actions of 129 numbers"},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct config config;
        use_fixture(&config, shapes[i][0]);
        check_refused(&config, shapes[i][1]);
    }
}

// Procgen twice: through the adapter, which does not know it, and through its own plug-in.
Test(envs, libenv_runs_procgen_unchanged) {
    struct config any, own = {.env = {.seed = 4711}};
    char images[4200];
    static const char *const places[] = {"procgen", "../procgen"}; // the second beside a sanitizer's build
    const char *place = NULL;
    for (size_t i = 0; i < 2; i++) {
        snprintf(images, sizeof images, "%s/libenv.so", places[i]);
        use_library(&any, images);
        if (!access(any.lib, R_OK)) place = places[i];
        if (place) break;
    }
    if (!place) cr_skip_test("Procgen's library is not in build/procgen (make deps fetches it)");
    snprintf(images, sizeof images, "%s/%s/assets/", build(), place);
    static const char *const pairs[][2] = {{"env_name", "leaper"}, {"num_levels", "0"},  {"start_level", "0"},
                                           {"num_actions", "15"},  {"num_threads", "0"}, {"rand_seed", "4711"}};
    for (size_t i = 0; i < 6; i++) add_option(&any, pairs[i][0], pairs[i][1]);
    add_option(&any, "resource_root", images);
    // Defaults of the library that differ from the plug-in's, which are those of Procgen's Python.
    add_option(&own, "distribution_mode", "easy");
    add_option(&own, "center_agent", "false");
    add_option(&own, "lib", any.lib);
    const struct farm_env_api *apis[] = {open_plugin("libenv.so", NULL).api,
                                         open_plugin("procgen.so", "procgen/leaper").api};
    const struct config *configs[] = {&any, &own};
    static uint8_t seen[2][RGB_BYTES];
    void *envs[2];
    char error[256] = "";
    for (int i = 0; i < 2; i++) {
        envs[i] = apis[i]->create(&configs[i]->env, error, sizeof error);
        cr_assert_not_null(envs[i], "%s", error);
    }
    uint32_t flags[2] = {1, 1}, ends = 0, rng = 5;
    for (int32_t n = 0; n < 300; n++) {
        float reward[2] = {0, 0};
        rng = rng * 1664525u + 1013904223u;
        const int32_t action = (int32_t)((rng >> 16) % 15);
        for (int i = 0; i < 2; i++) {
            void *const obs[] = {seen[i]};
            if (flags[i]) apis[i]->reset(envs[i], obs);
            flags[i] = apis[i]->step(envs[i], &action, obs, &reward[i]);
        }
        cr_assert(flags[0] == flags[1] && reward[0] == reward[1]);
        cr_assert_arr_eq(seen[0], seen[1], RGB_BYTES);
        ends += flags[0] != 0;
    }
    cr_assert_gt(ends, 0);
    for (int i = 0; i < 2; i++) apis[i]->destroy(envs[i]);
}
