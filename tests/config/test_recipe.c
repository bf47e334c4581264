// Recipes: layers, ranges, valid and invalid YAML, and writing. Any bytes: tests/fuzz/fuzz_recipe.c.
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "algo/registry.h"
#include "base/file.h"
#include "config/recipe.h"

static struct farm_recipe defaults(void) {
    struct farm_recipe recipe;
    farm_recipe_defaults(&recipe, farm_algo_family_at);
    return recipe;
}

static enum farm_status parse(struct farm_recipe *recipe, const char *text, struct farm_error *err) {
    return farm_recipe_parse(recipe, FARM_LAYER_FILE, text, strlen(text), "my.yaml", err);
}

static void set(struct farm_recipe *recipe, enum farm_recipe_layer layer, const char *name, const char *value) {
    struct farm_error err;
    cr_assert_eq(farm_recipe_set(recipe, layer, name, value, &err), FARM_OK, "%s", err.message);
}

Test(recipe, every_default_lies_in_its_range) {
    struct farm_recipe recipe = defaults();
    cr_assert_eq(recipe.batch, 0);
    cr_assert_float_eq(recipe.lr, 3e-4, 1e-18);
    cr_assert_str_eq(recipe.env, "native/breakout");
    cr_assert(recipe.pin && !recipe.loss_sum);
    size_t count = 0;
    for (const struct farm_recipe_key *key; (key = farm_recipe_key_at(&recipe, count)); count++)
        cr_assert(key->help[0]);
    cr_assert_gt(count, 40);
}

Test(recipe, an_environment_of_several_names_keeps_one) {
    static const char *const cases[][2] = {{"ale/pong", "ale/Pong"},
                                           {"ale/space_invaders", "ale/SpaceInvaders"},
                                           {"ale/MSPACMAN", "ale/MsPacman"},
                                           {"ale/pitfall_2", "ale/Pitfall2"},
                                           {"ale/Pitfall", "ale/Pitfall"},
                                           {"ale/pon", "ale/pon"},
                                           {"ale/", "ale/"},
                                           {"gym/gymnasium:Pendulum-v1", "gym/Pendulum-v1"},
                                           {"gym/pong", "gym/pong"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct farm_recipe recipe = defaults();
        set(&recipe, FARM_LAYER_FILE, "env", cases[i][0]);
        cr_assert_str_eq(recipe.env, cases[i][1]);
    }
}

Test(recipe, a_stronger_layer_wins_whatever_the_order) {
    struct farm_recipe recipe = defaults();
    set(&recipe, FARM_LAYER_FLAG, "lr", "0.5");
    set(&recipe, FARM_LAYER_FILE, "lr", "0.25");
    set(&recipe, FARM_LAYER_SHIPPED, "batch", "64");
    set(&recipe, FARM_LAYER_FILE, "batch", "128");
    set(&recipe, FARM_LAYER_FLAG, "env.noop-max", "7");
    set(&recipe, FARM_LAYER_FILE, "env.noop_max", "9");
    cr_assert_float_eq(recipe.lr, 0.5, 0);
    cr_assert_eq(recipe.batch, 128);
    cr_assert_eq(recipe.option_count, 1);
    cr_assert_str_eq(recipe.options[0].key, "noop_max");
    cr_assert_str_eq(recipe.options[0].value, "7");
    struct farm_error err;
    cr_assert_eq(farm_recipe_set(&recipe, FARM_LAYER_SHIPPED, "lr", "fast", &err), FARM_E_USAGE,
                 "a weaker layer's value is checked all the same");
}

Test(recipe, flags_accept_dashes_suffixes_and_no) {
    struct farm_recipe recipe = defaults();
    set(&recipe, FARM_LAYER_FLAG, "rmsprop-epsilon", "1e-3");
    set(&recipe, FARM_LAYER_FLAG, "frames", "2.5M");
    set(&recipe, FARM_LAYER_FLAG, "no-pin", NULL);
    set(&recipe, FARM_LAYER_FLAG, "huge-pages", "off");
    cr_assert_float_eq(recipe.rmsprop_epsilon, 1e-3, 0);
    cr_assert_eq(recipe.frames, 2500000);
    cr_assert(!recipe.pin && !recipe.huge_pages);
    struct farm_error err;
    cr_assert_eq(farm_recipe_set(&recipe, FARM_LAYER_FLAG, "no-batch", NULL, &err), FARM_E_NOT_FOUND);
    cr_assert_eq(farm_recipe_set(&recipe, FARM_LAYER_FLAG, "batch", NULL, &err), FARM_E_USAGE);
}

Test(recipe, values_outside_their_range_are_refused_with_the_range) {
    static const char *const bad[][2] = {
        {"discount", "1.01"}, {"batch", "-1"},    {"batch", "1.5"},       {"batch", "65537"}, {"lr", "nan"},
        {"lr", "-1"},         {"lr", ""},         {"pin", "maybe"},       {"device", "tpu"},  {"precision", "f3"},
        {"seed", "-1"},       {"seconds", "inf"}, {"optimiser", "adam|"}, {"net", "\xff"},    {"net", "\xed\xa0\x80"},
        {"env.a", "\xc0\xaf"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct farm_recipe recipe = defaults(), before = recipe;
        struct farm_error err;
        cr_assert_eq(farm_recipe_set(&recipe, FARM_LAYER_FLAG, bad[i][0], bad[i][1], &err), FARM_E_USAGE, "%s",
                     bad[i][1]);
        cr_assert(strstr(err.message, bad[i][0]), "%s", err.message);
        cr_assert_eq(memcmp(&recipe, &before, sizeof recipe), 0, "%s changed the recipe", bad[i][0]);
    }
    struct farm_recipe recipe = defaults();
    struct farm_error err;
    farm_recipe_set(&recipe, FARM_LAYER_FLAG, "discount", "2", &err);
    cr_assert(strstr(err.message, "0 to 1"), "%s", err.message);
}

Test(recipe, reads_yaml) {
    struct farm_recipe recipe = defaults();
    struct farm_error err;
    cr_assert_eq(
        parse(&recipe,
              "# comment\nenv: ale/Pong\nlr: 3e-4   # more\nbatch: 16\npin: no\nenv.noop_max: 30\nnet: \"nature\"\n",
              &err),
        FARM_OK, "%s", err.message);
    cr_assert_str_eq(recipe.env, "ale/Pong");
    cr_assert_str_eq(recipe.net, "nature");
    cr_assert_float_eq(recipe.lr, 3e-4, 0);
    cr_assert_eq(recipe.batch, 16);
    cr_assert(!recipe.pin);
    cr_assert_str_eq(recipe.options[0].value, "30");
    // A network's layers, unquoted, over two lines.
    cr_assert_eq(parse(&recipe, "net: conv 16@8x8/4, 32@4x4/2,\n  dense 256\n", &err), FARM_OK, "%s", err.message);
    cr_assert_str_eq(recipe.net, "conv 16@8x8/4, 32@4x4/2, dense 256");
    cr_assert_eq(parse(&recipe, "", &err), FARM_OK);
    cr_assert_eq(parse(&recipe, "# nothing but words\n", &err), FARM_OK);
}

Test(recipe, names_file_line_and_the_nearest_key) {
    struct farm_recipe recipe = defaults();
    struct farm_error err;
    cr_assert_eq(parse(&recipe, "lr: 1\n\nentropy_cots: 1\n", &err), FARM_E_USAGE);
    cr_assert(strstr(err.message, "my.yaml:3"), "%s", err.message);
    cr_assert(strstr(err.message, "'entropy_cost'"), "%s", err.message);
    cr_assert_eq(parse(&recipe, "lr: 1\nbatch: -5\n", &err), FARM_E_USAGE);
    cr_assert(strstr(err.message, "my.yaml:2: batch: -5 is outside its range, 0 to 65536"), "%s", err.message);
}

Test(recipe, refuses_yaml_that_is_not_a_flat_mapping) {
    static const char *const bad[] = {"- lr\n- batch\n",  "lr: [1, 2]\n",
                                      "lr: {a: 1}\n",     "lr\n",
                                      "? [a]\n: 1\n",     "lr: &a 1\nbatch: *a\n",
                                      "lr: 1\nlr: 2\n",   "lr: 1\n---\nlr: 2\n",
                                      "lr: 1\n  batch",   "\"lr: 1\n",
                                      "lr: 'x\n",         "\tlr: 1\n",
                                      "lr: \"0.1\\0\"\n", "%YAML 9.9\n---\nlr: 1\n",
                                      "lr: @x\n",         "{{{{{{{{{{{{",
                                      "\"lr\\0\": 1\n",   "net: \xff\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct farm_recipe recipe = defaults();
        struct farm_error err = {0};
        cr_assert_eq(parse(&recipe, bad[i], &err), FARM_E_USAGE, "accepted: %s", bad[i]);
        cr_assert(strstr(err.message, "my.yaml:"), "%s", err.message);
    }
}

Test(recipe, too_many_or_too_long_options_are_refused) {
    struct farm_recipe recipe = defaults();
    struct farm_error err;
    char name[256], longest[FARM_RECIPE_PATH_BYTES + 1];
    memset(longest, 'v', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    cr_assert_eq(farm_recipe_set(&recipe, FARM_LAYER_FLAG, "env.x", longest, &err), FARM_E_USAGE);
    cr_assert_eq(farm_recipe_set(&recipe, FARM_LAYER_FLAG, "env.", "1", &err), FARM_E_USAGE);
    cr_assert_eq(farm_recipe_set(&recipe, FARM_LAYER_FLAG, "env", longest, &err), FARM_E_USAGE);
    cr_assert_eq(farm_recipe_set(&recipe, FARM_LAYER_FLAG, longest, "1", &err), FARM_E_NOT_FOUND);
    for (int i = 0; i < FARM_RECIPE_OPTIONS_MAX; i++) {
        snprintf(name, sizeof name, "env.option_%d", i);
        set(&recipe, FARM_LAYER_FLAG, name, "1");
    }
    cr_assert_eq(farm_recipe_set(&recipe, FARM_LAYER_FLAG, "env.one_more", "1", &err), FARM_E_USAGE);
}

Test(recipe, long_paths_of_environments_and_options_are_kept) {
    struct farm_recipe recipe = defaults(), again = defaults();
    struct farm_error err;
    char path[FARM_RECIPE_PATH_BYTES];
    size_t bytes;
    for (size_t i = 0; i < sizeof path; i++) path[i] = i % 7 ? (char)('a' + i % 26) : i % 2 ? '/' : ' ';
    path[0] = '.';
    path[sizeof path - 2] = 'z'; // no blank at either end
    path[sizeof path - 1] = 0;
    set(&recipe, FARM_LAYER_FLAG, "env", path);
    for (int i = 0; i < FARM_RECIPE_OPTIONS_MAX; i++) {
        char name[32];
        snprintf(name, sizeof name, "env.option_%d", i);
        set(&recipe, FARM_LAYER_FLAG, name, path);
    }
    char *text = farm_recipe_format(&recipe, &bytes);
    cr_assert_not_null(text);
    cr_assert_eq(parse(&again, text, &err), FARM_OK, "%s", err.message);
    cr_assert_str_eq(again.env, path);
    cr_assert_str_eq(again.options[FARM_RECIPE_OPTIONS_MAX - 1].value, path);
    free(text);
    memset(path, 0x01, sizeof path - 1); // the worst that may be written: an escape a byte
    set(&recipe, FARM_LAYER_FLAG, "env", path);
    for (int i = 0; i < FARM_RECIPE_OPTIONS_MAX; i++) memcpy(recipe.options[i].value, path, sizeof path);
    cr_assert_not_null(text = farm_recipe_format(&recipe, &bytes));
    free(text);
    path[70] = 0;
    cr_assert_eq(farm_recipe_set(&recipe, FARM_LAYER_FLAG, "scale", path, &err), FARM_E_USAGE, "others are short");
}

Test(recipe, the_stronger_of_frames_and_seconds_ends_the_run) {
    struct farm_error err;
    struct farm_recipe recipe = defaults();
    set(&recipe, FARM_LAYER_SHIPPED, "seconds", "60");
    set(&recipe, FARM_LAYER_FLAG, "frames", "1000");
    cr_assert_eq(farm_recipe_settle(&recipe, &err), FARM_OK);
    cr_assert_eq(recipe.frames, 1000);
    cr_assert_float_eq(recipe.seconds, 0, 0);
    recipe = defaults();
    set(&recipe, FARM_LAYER_FLAG, "seconds", "60");
    set(&recipe, FARM_LAYER_FLAG, "frames", "1000");
    cr_assert_eq(farm_recipe_settle(&recipe, &err), FARM_OK);
    cr_assert(recipe.frames == 1000 && recipe.seconds == 60, "of one layer both count");
}

Test(recipe, keys_that_contradict_one_another_are_refused) {
    static const char *const bad[][2] = {{"envs_per_actor", "7"}, {"lr_end", "0.1"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct farm_recipe recipe = defaults();
        struct farm_error err;
        set(&recipe, FARM_LAYER_FLAG, bad[i][0], bad[i][1]);
        cr_assert_eq(farm_recipe_settle(&recipe, &err), FARM_E_USAGE);
        cr_assert(strstr(err.message, bad[i][0]), "%s", err.message);
    }
}

Test(recipe, the_stronger_layer_says_how_many_environments) {
    static const struct {
        int total, each;
        bool total_stays, each_stays;
    } cases[] = {{FARM_LAYER_SHIPPED, FARM_LAYER_FLAG, false, true},
                 {FARM_LAYER_FILE, FARM_LAYER_SHIPPED, true, false}};
    struct farm_error err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct farm_recipe recipe = defaults();
        set(&recipe, (enum farm_recipe_layer)cases[i].total, "envs_total", "16");
        set(&recipe, (enum farm_recipe_layer)cases[i].each, "envs_per_actor", "8");
        cr_assert_eq(farm_recipe_settle(&recipe, &err), FARM_OK, "%s", err.message);
        cr_assert_eq(recipe.envs_total > 0, cases[i].total_stays);
        cr_assert_eq(recipe.envs_per_actor > 0, cases[i].each_stays);
    }
    struct farm_recipe recipe = defaults();
    set(&recipe, FARM_LAYER_FLAG, "envs_total", "16");
    set(&recipe, FARM_LAYER_FLAG, "envs_per_actor", "8");
    cr_assert_eq(farm_recipe_settle(&recipe, &err), FARM_E_USAGE);
    cr_assert(strstr(err.message, "envs_total (16) and envs_per_actor (8)"), "%s", err.message);
}

Test(recipe, a_smaller_learning_rate_lowers_the_end_that_a_weaker_layer_set) {
    struct farm_recipe recipe = defaults();
    struct farm_error err;
    set(&recipe, FARM_LAYER_SHIPPED, "lr_end", "0.0002");
    set(&recipe, FARM_LAYER_FLAG, "lr", "0.0001");
    cr_assert_eq(farm_recipe_settle(&recipe, &err), FARM_OK);
    cr_assert_float_eq(recipe.lr_end, 0.0001, 0);
}

Test(recipe, a_written_recipe_reads_back_the_same) {
    struct farm_recipe recipe = defaults(), again = defaults();
    struct farm_error err;
    set(&recipe, FARM_LAYER_FILE, "lr", "0.00012345678901234567");
    set(&recipe, FARM_LAYER_FILE, "checkpoint_every", "300");
    set(&recipe, FARM_LAYER_FILE, "seed", "9000000000000000");
    set(&recipe, FARM_LAYER_FILE, "env", "ale/Pong");
    set(&recipe, FARM_LAYER_FILE, "env.odd", "yes: #1 \"quoted\" 'x' é\t\\");
    set(&recipe, FARM_LAYER_FILE, "env.empty", "");
    set(&recipe, FARM_LAYER_FILE, "no-loss-sum", NULL);
    size_t bytes;
    char *text = farm_recipe_format(&recipe, &bytes);
    cr_assert(text);
    cr_assert(strstr(text, "checkpoint_every: 300\n"), "%s", text);
    cr_assert_eq(farm_recipe_parse(&again, FARM_LAYER_FILE, text, bytes, "written", &err), FARM_OK, "%s\n%s",
                 err.message, text);
    memset(recipe.layers, 0, sizeof recipe.layers);
    memset(again.layers, 0, sizeof again.layers);
    cr_assert_eq(memcmp(&recipe, &again, sizeof recipe), 0, "%s", text);
    free(text);
}

Test(recipe, a_written_recipe_of_each_algorithm_is_read) { // a key that several have is in the range of all
    for (size_t i = 0; farm_algo_family_at(i); i++) {
        struct farm_recipe recipe = defaults(), again = defaults();
        struct farm_error err;
        size_t bytes;
        set(&recipe, FARM_LAYER_FLAG, "algo", farm_algo_family_at(i)->name);
        cr_assert_eq(farm_recipe_settle(&recipe, &err), FARM_OK, "%s", err.message);
        char *text = farm_recipe_format(&recipe, &bytes);
        cr_assert_eq(farm_recipe_parse(&again, FARM_LAYER_FILE, text, bytes, "written", &err), FARM_OK, "%s",
                     err.message);
        free(text);
    }
}

Test(recipe, finds_the_recipe_of_an_environment_or_its_family_and_of_the_algorithm) {
    static const char *const files[] = {"ale",        "ale_Pong",       "ale_ppo",    "ale_Pong_dqn",
                                        "gym",        "gym_continuous", "gym_vtrace", "gym_Odd",
                                        "gym_frames", "gym_Grid",       "gym_ppo",    "gym_continuous_ppo"};
    static const struct {
        const char *env, *algo, *variant, *found;
    } cases[] = {
        {"ale/Pong", "auto", "", "ale_Pong"},
        {"ale/Breakout", "auto", "", "ale"},
        {"ale/Pong", "ppo", "", "ale_ppo"},
        {"ale/Pong", "dqn", "", "ale_Pong_dqn"},
        {"ale/Breakout", "ppo", "", "ale_ppo"},
        {"ale/Breakout", "dqn", "", "ale"},
        {"native/catch", "auto", "", NULL},
        {"ale/Breakout", "auto", "_continuous", NULL},
        {"gym/X", "auto", "", "gym"},
        {"gym/X", "auto", "_continuous", "gym_continuous"},
        {"gym/X", "ppo", "_continuous", "gym_continuous_ppo"},
        {"gym/X", "vtrace", "_continuous", NULL},
        {"gym/X", "dqn", "_continuous", "gym_continuous"},
        {"gym/Odd", "auto", "_continuous", NULL},
        {"gym/X", "auto", "_frames", "gym_frames"},
        {"gym/Grid-8x8-v0", "auto", "", "gym_Grid"},
        {"gym/Grid/one", "auto", "", "gym_Grid"},
        {"gym/Grid-8x8-v0", "auto", "_frames", NULL},
        {"gym/Grid-8x8-v0", "ppo", "", "gym_ppo"},
    };
    char folder[] = "/tmp/farm-recipes-XXXXXX", path[128], name[128];
    cr_assert(mkdtemp(folder));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(name, sizeof name, "%s/%s.yaml", folder, files[i]);
        cr_assert_eq(farm_file_replace(name, "lr: 0.5\n", 8, NULL), FARM_OK);
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bool found =
            farm_recipe_shipped(folder, cases[i].env, cases[i].algo, cases[i].variant, path, sizeof path);
        cr_assert_eq(found, cases[i].found != NULL, "case %zu: %s", i, path);
        snprintf(name, sizeof name, "%s/%s.yaml", folder, found ? cases[i].found : "");
        if (found) cr_assert_str_eq(path, name, "case %zu", i);
    }
    struct farm_recipe recipe = defaults();
    struct farm_error err;
    snprintf(recipe.continuous, sizeof recipe.continuous, "%s/gym_continuous.yaml", folder);
    set(&recipe, FARM_LAYER_SHIPPED, "lr", "0.25");
    cr_assert_eq(farm_recipe_vary(&recipe, false, true, &err), FARM_OK);
    cr_assert_eq(recipe.lr, 0.25);
    cr_assert_eq(farm_recipe_vary(&recipe, true, true, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(recipe.lr, 0.5);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(name, sizeof name, "%s/%s.yaml", folder, files[i]);
        unlink(name);
    }
    rmdir(folder);
}

Test(recipe, a_missing_recipe_file_is_wrong_usage) {
    struct farm_recipe recipe = defaults();
    struct farm_error err;
    cr_assert_eq(farm_recipe_load(&recipe, FARM_LAYER_FILE, "/nowhere/r.yaml", &err), FARM_E_USAGE);
    cr_assert(strstr(err.message, "/nowhere/r.yaml"), "%s", err.message);
    cr_assert_eq(farm_recipe_load(&recipe, FARM_LAYER_FILE, "/dev/zero", &err), FARM_E_USAGE);
}

// ---- keys of algorithms ----

static const struct farm_recipe_key one_keys[] = {
    {"shared", FARM_RECIPE_DOUBLE, 0, "1", .most = 10, .help = "in both"},
    {"own", FARM_RECIPE_DOUBLE, 0, "2", .most = 10, .help = "in one"},
};
static const struct farm_recipe_key two_keys[] = {
    {"shared", FARM_RECIPE_DOUBLE, 0, "3", .most = 10, .help = "in both"}};
static const struct farm_recipe_family families[] = {{"one", "the first", one_keys, 2},
                                                     {"two", "the second", two_keys, 1}};

static const struct farm_recipe_family *family_at(size_t i) {
    return i < 2 ? &families[i] : NULL;
}

Test(recipe, each_algorithm_has_its_own_keys_and_defaults) {
    struct farm_recipe recipe;
    struct farm_error err;
    farm_recipe_defaults(&recipe, family_at);
    cr_assert_eq(farm_recipe_settle(&recipe, &err), FARM_OK);
    cr_assert_str_eq(recipe.algo, "one");
    cr_assert_eq(farm_recipe_family_value(&recipe, 0), 1);
    cr_assert_eq(farm_recipe_family_value(&recipe, 1), 2);
    set(&recipe, FARM_LAYER_FLAG, "algo", "two");
    cr_assert_eq(farm_recipe_family_value(&recipe, 0), 3);
    set(&recipe, FARM_LAYER_FILE, "shared", "5");
    cr_assert_eq(farm_recipe_settle(&recipe, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(farm_recipe_family_value(&recipe, 0), 5);
    size_t bytes;
    char *text = farm_recipe_format(&recipe, &bytes);
    cr_assert(strstr(text, "shared: 5") && !strstr(text, "own:"), "%s", text);
    free(text);
}

Test(recipe, a_key_of_another_algorithm_is_refused_unless_a_shipped_recipe_has_it) {
    struct farm_recipe recipe;
    struct farm_error err;
    farm_recipe_defaults(&recipe, family_at);
    set(&recipe, FARM_LAYER_FLAG, "algo", "two");
    set(&recipe, FARM_LAYER_SHIPPED, "own", "4");
    cr_assert_eq(farm_recipe_settle(&recipe, &err), FARM_OK, "%s", err.message);
    set(&recipe, FARM_LAYER_FILE, "own", "4");
    cr_assert_eq(farm_recipe_settle(&recipe, &err), FARM_E_USAGE);
    cr_assert(strstr(err.message, "own is a key of algorithm one"), "%s", err.message);
    cr_assert_eq(farm_recipe_set(&recipe, FARM_LAYER_FLAG, "algo", "three", &err), FARM_E_USAGE);
    cr_assert(strstr(err.message, "one of one, two"), "%s", err.message);
}

// ---- effect ----

Test(recipe, a_key_has_an_effect_if_what_it_needs_is_there) {
    static const struct farm_recipe_fact facts[] = {{"device", "cpu"}, {"actions", "discrete"}, {NULL, NULL}};
    static const struct {
        enum farm_recipe_own_key key;
        const char *set[2], *message; // NULL: it has an effect
    } cases[] = {
        {FARM_KEY_infer_threads, {"infer_threads", "2"}, NULL},
        {FARM_KEY_mirror,
         {"mirror", "off"},
         "--mirror off has no effect: it needs device=cuda; this run has device=cpu"},
        {FARM_KEY_squash, {"squash", "true"}, "has actions=discrete"},
        {FARM_KEY_squash, {"squash", "false"}, NULL},
        {FARM_KEY_lr_end, {"lr_end", "0"}, "--lr-end 0 has no effect: it needs frames|seconds; this run has seconds=0"},
        {FARM_KEY_lr_end, {"seconds", "9"}, NULL},
        {FARM_KEY_lr_end, {"frames", "9"}, NULL},
        {FARM_KEY_metrics_every, {"deterministic", "no"}, NULL},
        {FARM_KEY_metrics_every, {"deterministic", "yes"}, "needs deterministic=false"},
        {FARM_KEY_refresh, {"refresh", "window"}, "needs inference=local; this run has inference=central"},
        {FARM_KEY_seed, {"seed", "2"}, NULL},
        {FARM_KEY_opponents, {"opponents", "1"}, "it needs opponent; this run has opponent=none"},
        {FARM_KEY_opponents, {"opponent", "a.safetensors"}, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct farm_recipe recipe = defaults();
        struct farm_error err = {0};
        set(&recipe, FARM_LAYER_FLAG, cases[i].set[0], cases[i].set[1]);
        const bool effect = !farm_recipe_check_effect(&recipe, cases[i].key, facts, &err);
        cr_expect_eq(effect, !cases[i].message, "case %zu: %s", i, err.message);
        cr_expect(effect || strstr(err.message, cases[i].message), "case %zu: %s", i, err.message);
    }
}

Test(recipe, what_a_key_needs_is_a_fact_of_a_run_or_a_value_that_a_key_may_have) {
    static const char facts[] = "device regime head windows actions observations listen"; // run/plan.c
    struct farm_recipe recipe = defaults();
    const struct farm_recipe_key *key, *other;
    for (size_t i = 0; (key = farm_recipe_key_at(&recipe, i)); i++) {
        char name[32] = "", value[32] = "";
        if (!key->needs) continue;
        cr_assert_gt(sscanf(key->needs, "%31[^=|]=%31[^|]", name, value), 0);
        other = strstr(facts, name) ? NULL : farm_recipe_find(&recipe, name);
        cr_expect(other || strstr(facts, name), "%s needs %s", key->name, key->needs);
        if (other && value[0]) cr_expect_eq(farm_recipe_set(&recipe, FARM_LAYER_FLAG, name, value, NULL), FARM_OK);
    }
}
