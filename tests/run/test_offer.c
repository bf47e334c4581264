// A node's recipe from a learner's offer, and what the node refuses.
#include "run/offer.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "algo/registry.h"
#include "envs/registry.h"

static struct farm_wire_offer *offer;
static struct farm_recipe recipe;
static struct farm_env env;
static struct farm_error error;

static void set_flag(const char *key, const char *value) {
    cr_assert_eq(farm_recipe_set(&recipe, FARM_LAYER_FLAG, key, value, &error), FARM_OK, "%s", error.message);
}

// The offer of a learner that plays native/catch with 2 lanes of 8 environments.
static void make_offer(void) {
    offer = calloc(1, sizeof *offer);
    cr_assert(offer);
    farm_recipe_defaults(&recipe, farm_algo_family_at);
    struct farm_recipe there = recipe;
    snprintf(there.env, sizeof there.env, "native/catch");
    cr_assert_eq(farm_env_find(&there, &env, &error), FARM_OK, "%s", error.message);
    offer->spec = (struct farm_ring_spec){.lanes = 2, .width = 8, .steps = 64, .env = env.spec};
    farm_ring_spec_answers(&offer->spec);
    offer->seed = UINT64_MAX - 6;
    offer->window = 20;
    snprintf(offer->env, sizeof offer->env, "native/catch");
    snprintf(offer->bad_values, sizeof offer->bad_values, "reset");
}

static void free_offer(void) {
    free(offer);
}

TestSuite(offer, .init = make_offer, .fini = free_offer, .timeout = 30);

static void offer_env(const char *name) {
    snprintf(offer->env, sizeof offer->env, "%s", name);
}

static void offer_option(const char *key, const char *value) {
    snprintf(offer->options[offer->option_count][0], FARM_WIRE_OPTION_BYTES, "%s", key);
    snprintf(offer->options[offer->option_count++][1], FARM_WIRE_OPTION_BYTES, "%s", value);
}

static void expect_applied(void) {
    cr_assert_eq(farm_run_offer_apply(offer, &recipe, &error), FARM_OK, "%s", error.message);
}

static void expect_refused(enum farm_status wanted, const char *words) {
    cr_assert_eq(farm_run_offer_apply(offer, &recipe, &error), wanted);
    cr_assert(strstr(error.message, words), "%s", error.message);
}

static const char *find_option(const char *key) {
    for (size_t i = 0; i < recipe.option_count; i++)
        if (strcmp(recipe.options[i].key, key) == 0) return recipe.options[i].value;
    return "";
}

Test(offer, takes_shape_and_seed_from_the_learner_and_actors_from_here) {
    set_flag("actors", "3");
    offer_option("rows", "10");
    expect_applied();
    cr_expect_str_eq(recipe.env, "native/catch");
    cr_expect_str_eq(recipe.bad_values, "reset");
    cr_expect_str_eq(find_option("rows"), "10");
    cr_expect_eq(recipe.actors, 3);
    cr_expect_eq(recipe.lanes, 2);
    cr_expect_eq(recipe.envs_per_actor, 16);
    cr_expect_eq(recipe.ring_steps, 4);
    cr_expect_eq((uint64_t)recipe.seed, UINT64_MAX - 6);
    cr_expect_eq(recipe.frames, 0);
    cr_expect_eq(recipe.seconds, 0);
}

Test(offer, local_actors_have_rings_like_the_learners_of_16_MiB_a_lane_at_most) {
    offer->spec.answers = FARM_ANSWERS_LOCAL;
    cr_expect_eq(farm_run_offer_steps(offer), offer->spec.steps);
    offer->spec.steps = 1000000;
    struct farm_ring_layout layout;
    cr_assert_eq(farm_ring_layout_make(&offer->spec, &layout, &error), FARM_OK);
    cr_expect_leq(farm_run_offer_steps(offer) * (layout.up_stride / 1000000), 16 << 20);
    cr_expect_geq(farm_run_offer_steps(offer), 1000);
    offer->window = 100000;
    cr_expect_geq(farm_run_offer_steps(offer), 2 * offer->window);
    expect_applied();
}

// What the learner's text may say, and what not, is in tests/policy/test_describe.c.
Test(offer, a_local_policy_that_is_unknown_here_is_refused) {
    struct farm_policy_description policy;
    static const char *const texts[] = {"", "net=best", "farm=policy\nnet=mlp\n"};
    offer->spec.answers = FARM_ANSWERS_LOCAL;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        snprintf(offer->net, sizeof offer->net, "%s", texts[i]);
        cr_expect_neq(farm_run_offer_policy(offer, &policy, &error), FARM_OK);
        cr_expect(strstr(error.message, "learner's policy"), "%s", error.message);
    }
}

Test(offer, makes_rings_as_long_as_the_rarest_answer_field_needs) {
    offer->spec.answer[offer->spec.answer_count] = offer->spec.answer[FARM_ANSWER_VALUE];
    offer->spec.answer[offer->spec.answer_count++].every = 40;
    cr_expect_eq(farm_run_offer_steps(offer), 40);
}

Test(offer, lets_no_peer_choose_code) {
    static const char *const names[] = {"plugin:/x/y.so", "plugin:/x/y.so:NAME", "libenv:/x/y.so", "gym/os:x"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        offer_env(names[i]);
        expect_refused(FARM_E_USAGE, "--env");
    }
    offer_env("native/catch");
    offer->spec.number_count = 1;
    strcpy(offer->spec.numbers[0], "gravity.x");
    expect_applied();
    strcpy(offer->spec.numbers[0], "lib");
    expect_refused(FARM_E_USAGE, "number 'lib'");
    strcpy(offer->spec.numbers[0], "a/b");
    expect_refused(FARM_E_USAGE, "number 'a/b'");
}

Test(offer, a_plugin_named_here_replaces_the_learners) {
    offer_env("plugin:/there/y.so");
    set_flag("env", "plugin:/here/y.so");
    expect_applied();
    cr_expect_str_eq(recipe.env, "plugin:/here/y.so");
}

Test(offer, refuses_another_environment_than_the_one_named_here) {
    set_flag("env", "native/breakout");
    expect_refused(FARM_E_USAGE, "the learner plays native/catch, but --env here is native/breakout");
    offer_env("plugin:/there/y.so");
    expect_refused(FARM_E_USAGE, "native/breakout");
    offer_env("gym/CartPole-v1");
    expect_refused(FARM_E_USAGE, "native/breakout");
}

Test(offer, accepts_no_file_from_the_learners_options) {
    offer_option("lib", "evil.so");
    expect_refused(FARM_E_USAGE, "env.lib");
    snprintf(offer->options[0][0], FARM_WIRE_OPTION_BYTES, "model");
    snprintf(offer->options[0][1], FARM_WIRE_OPTION_BYTES, "/there/model.xml");
    expect_refused(FARM_E_USAGE, "--env.model");
    set_flag("env.model", "/here/model.xml");
    expect_applied();
    cr_expect_str_eq(find_option("model"), "/here/model.xml");
}

// Each is an expression, a file's name, or a number that not every reader reads the same way. "passwd" exists in /etc.
static const char *const no_data[] = {
    "'\\x2fetc\\x2fshadow'",
    "b'..'",
    "__import__('os')",
    "(1, 2)",
    "[1]",
    "{}",
    "0.8,1.0",
    "a b",
    "",
    "model.xml",
    "./model",
    "..",
    ".",
    "~root",
    "/etc/shadow",
    "%2fetc",
    "a%b",
    "$HOME",
    "-rf",
    "-",
    "--list",
    "1e999",
    "-1e999",
    "0x10",
    "0b1",
    "1_000",
    "2j",
    "1-2J",
    "\303\251",
    "\377",
    "a\nb",
    "\x1b[31m",
    "passwd",
};
static const char *const data[] = {
    "3",    "-3",    "0.5", "1e-3",     "1e+30",     ".5",         "true",       "False", "no",
    "none", "human", "8x8", "NextStep", "ms_pacman", "infinite_x", "nan_policy", "a-b",
};

Test(offer, takes_only_numbers_and_words_from_the_learners_options) {
    char many[1001] = "", folder[] = "/tmp/offer-XXXXXX";
    cr_assert_eq(chdir("/etc"), 0);
    offer_option("key", "");
    for (size_t i = 0; i < sizeof no_data / sizeof *no_data; i++) {
        snprintf(offer->options[0][1], FARM_WIRE_OPTION_BYTES, "%s", no_data[i]);
        expect_refused(FARM_E_USAGE, "the learner's option env.key is '");
        cr_expect(strstr(error.message, "--env.key"), "%s", error.message);
        for (const char *c = error.message; *c; c++) cr_expect(*c >= ' ' && *c <= '~', "%s", no_data[i]);
    }
    memset(many, '9', sizeof many - 1);
    snprintf(offer->options[0][1], FARM_WIRE_OPTION_BYTES, "%s", many);
    expect_refused(FARM_E_USAGE, "env.key is '999");
    cr_assert(mkdtemp(folder) && !chdir(folder) && !symlink("/there/made_later", "link"));
    snprintf(offer->options[0][1], FARM_WIRE_OPTION_BYTES, "link");
    expect_refused(FARM_E_USAGE, "env.key is 'link'");
    cr_assert(!unlink("link") && !rmdir(folder));
    cr_expect_eq(recipe.option_count, 0);
    for (size_t i = 0; i < sizeof data / sizeof *data; i++) {
        snprintf(offer->options[0][1], FARM_WIRE_OPTION_BYTES, "%s", data[i]);
        expect_applied();
        cr_expect_str_eq(find_option("key"), data[i]);
    }
    set_flag("env.key", "/here/model.xml"); // wins over any
    snprintf(offer->options[0][1], FARM_WIRE_OPTION_BYTES, "%s", no_data[0]);
    expect_applied();
    cr_expect_str_eq(find_option("key"), "/here/model.xml");
}

Test(offer, checks_the_keys_of_the_learners_options) {
    static const char *const keys[] = {"", "a b", "a=b", "a/b", "..", "-a", "0", "a\x1b", "\303\251"};
    offer_option("", "1");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(offer->options[0][0], FARM_WIRE_OPTION_BYTES, "%s", keys[i]);
        expect_refused(FARM_E_USAGE, "a key has");
    }
    snprintf(offer->options[0][0], FARM_WIRE_OPTION_BYTES, "obs_keep");
    snprintf(offer->options[0][1], FARM_WIRE_OPTION_BYTES, "'\\x2f'");
    expect_refused(FARM_E_USAGE, "the learner's option obs_keep is ''\\x2f''");
    set_flag("obs_keep", "here");
    expect_applied();
    cr_expect_str_eq(recipe.obs_keep, "here");
}

Test(offer, an_offered_name_is_no_path_and_no_option) {
    static const char *const names[] = {"ale/../../x",  "ale/",          "/x",     "native",
                                        "native/..",    "ale/--list",    "../x/y", "a/b/c",
                                        "mujoco/x.xml", "native/catch ", "\377/a", "ale/Pong:x"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        offer_env(names[i]);
        expect_refused(FARM_E_USAGE, "not a name FAMILY/NAME");
    }
}

// This test's program is not in a build folder's place, so that it counts as an installed copy.
Test(offer, installs_no_packages_on_a_learners_word) {
    unsetenv("FARM_PYTHON");
    unsetenv("XDG_DATA_HOME");
    setenv("HOME", "/nonexistent", 1);
    offer_env("ale/Pong");
    expect_refused(FARM_E_USAGE, "the learner plays ale/Pong, whose packages are not installed here");
    set_flag("env", "ale/Pong");
    expect_applied();
}

Test(offer, bounds_the_shape_of_actors) {
    offer->spec.width = FARM_WIDTH_MAX;
    expect_refused(FARM_E_USAGE, "131072 environments");
    offer->spec.width = 8;
    offer->spec.answer[FARM_ANSWER_VALUE].every = 1 << 24;
    expect_refused(FARM_E_USAGE, "16777216 steps");
}

Test(offer, wrappers_are_code_that_each_machine_names_itself) {
    offer_env("gym/CartPole-v1");
    set_flag("env", "gym/CartPole-v1");
    offer_option("wrap", "os:system");
    expect_refused(FARM_E_USAGE, "must not choose: name this machine's by --wrap 'os:system'");
    cr_expect_str_eq(recipe.wrap, "none");
    set_flag("wrap", "here:Wrapper");
    expect_refused(FARM_E_USAGE, "the learner's wrap is os:system, but --wrap here is here:Wrapper");
    snprintf(offer->options[0][1], FARM_WIRE_OPTION_BYTES, "here:Wrapper");
    offer_option("obs_keep", "image");
    expect_applied();
    cr_expect_str_eq(recipe.obs_keep, "image");
    cr_expect_eq(recipe.option_count, 0);
    offer->option_count = 0;
    expect_refused(FARM_E_USAGE, "but --wrap here is here:Wrapper");
}

Test(offer, refuses_unknown_words) {
    snprintf(offer->bad_values, sizeof offer->bad_values, "explode");
    expect_refused(FARM_E_USAGE, "bad_values");
    snprintf(offer->bad_values, sizeof offer->bad_values, "count");
    char key[64];
    memset(key, 'x', sizeof key);
    key[sizeof key - 1] = 0;
    offer_option(key, "1");
    expect_refused(FARM_E_USAGE, "env.xxx");
}

// ---- the environment ----

static void expect_difference(const char *words) {
    cr_assert_eq(farm_run_offer_check(&env, &offer->spec, &error), FARM_E_INVALID);
    cr_assert(strstr(error.message, words), "%s", error.message);
    cr_assert(strstr(error.message, "native/catch is not what the learner plays"), "%s", error.message);
}

Test(offer, agrees_with_the_same_environment) {
    cr_expect_eq(farm_run_offer_check(&env, &offer->spec, &error), FARM_OK, "%s", error.message);
}

Test(offer, names_the_first_difference_of_observations) {
    struct farm_field_spec *field = &offer->spec.env.obs[0];
    field->dims[0]++;
    expect_difference("dimension 0 of observation");
    field->rank--;
    expect_difference("dimensions of observation");
    field->dtype = FARM_I32;
    expect_difference("type of observation");
    snprintf(field->name, sizeof field->name, "other");
    expect_difference("at the learner's");
    offer->spec.env.obs_count++;
    expect_difference("observation arrays");
}

Test(offer, names_the_first_difference_of_actions_and_frames) {
    struct farm_env_spec *there = &offer->spec.env;
    there->agents++;
    expect_difference("agents");
    there->frames_per_step++;
    expect_difference("frames a step");
    there->action.high[0] = 2;
    expect_difference("upper bound of action 0");
    there->action.low[0] = -2;
    expect_difference("lower bound of action 0");
    there->action.sizes[0]++;
    expect_difference("choices of action 0");
    there->action.dims++;
    expect_difference("dimensions of actions");
    there->action.kind = FARM_ACTION_CONTINUOUS;
    expect_difference("kind of actions");
}

Test(offer, names_a_different_answer_field) {
    offer->spec.answer[FARM_ANSWER_VALUE].values++;
    expect_difference("answer field value");
}
