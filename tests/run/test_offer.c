// What a node makes of a learner's offer, and what it refuses.
#include "run/offer.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algo/registry.h"
#include "envs/registry.h"

static struct farm_wire_offer *offer;
static struct farm_recipe recipe;
static struct farm_env env;
static struct farm_error error;

static void flag(const char *key, const char *value) {
    cr_assert_eq(farm_recipe_set(&recipe, FARM_LAYER_FLAG, key, value, &error), FARM_OK, "%s", error.message);
}

// Of a learner that plays native/catch with 2 lanes of 8 environments.
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

TestSuite(run, .init = make_offer, .fini = free_offer, .timeout = 30);

static void play(const char *name) {
    snprintf(offer->env, sizeof offer->env, "%s", name);
}

static void give_option(const char *key, const char *value) {
    snprintf(offer->options[offer->option_count][0], FARM_WIRE_OPTION_BYTES, "%s", key);
    snprintf(offer->options[offer->option_count++][1], FARM_WIRE_OPTION_BYTES, "%s", value);
}

static void taken(void) {
    cr_assert_eq(farm_run_offer_apply(offer, &recipe, &error), FARM_OK, "%s", error.message);
}

static void refused(enum farm_status wanted, const char *words) {
    cr_assert_eq(farm_run_offer_apply(offer, &recipe, &error), wanted);
    cr_assert(strstr(error.message, words), "%s", error.message);
}

static const char *option(const char *key) {
    for (size_t i = 0; i < recipe.option_count; i++)
        if (strcmp(recipe.options[i].key, key) == 0) return recipe.options[i].value;
    return "";
}

Test(run, takes_shape_and_seed_from_the_learner_and_actors_from_here) {
    flag("actors", "3");
    give_option("rows", "10");
    taken();
    cr_expect_str_eq(recipe.env, "native/catch");
    cr_expect_str_eq(recipe.bad_values, "reset");
    cr_expect_str_eq(option("rows"), "10");
    cr_expect_eq(recipe.actors, 3);
    cr_expect_eq(recipe.lanes, 2);
    cr_expect_eq(recipe.envs_per_actor, 16);
    cr_expect_eq(recipe.ring_steps, 4);
    cr_expect_eq((uint64_t)recipe.seed, UINT64_MAX - 6);
    cr_expect_eq(recipe.frames, 0);
    cr_expect_eq(recipe.seconds, 0);
}

Test(run, makes_rings_for_two_windows_where_actors_answer_themselves) {
    offer->spec.answers = FARM_ANSWERS_LOCAL;
    cr_expect_geq(farm_run_offer_steps(offer), 2 * offer->window);
    refused(FARM_E_UNSUPPORTED, "themselves");
}

Test(run, makes_rings_as_long_as_the_rarest_answer_field_needs) {
    offer->spec.answer[offer->spec.answer_count] = offer->spec.answer[FARM_ANSWER_VALUE];
    offer->spec.answer[offer->spec.answer_count++].every = 40;
    cr_expect_eq(farm_run_offer_steps(offer), 40);
}

Test(run, lets_no_peer_choose_code) {
    static const char *const names[] = {"plugin:/x/y.so", "plugin:/x/y.so:NAME", "libenv:/x/y.so", "gym/os:x"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        play(names[i]);
        refused(FARM_E_USAGE, "--env");
    }
}

Test(run, plays_the_plugin_that_is_named_here_in_place_of_the_learners) {
    play("plugin:/there/y.so");
    flag("env", "plugin:/here/y.so");
    taken();
    cr_expect_str_eq(recipe.env, "plugin:/here/y.so");
}

Test(run, refuses_another_environment_than_is_named_here) {
    flag("env", "native/breakout");
    refused(FARM_E_USAGE, "the learner plays native/catch, but --env here is native/breakout");
    play("plugin:/there/y.so");
    refused(FARM_E_USAGE, "native/breakout");
    play("gym/CartPole-v1");
    refused(FARM_E_USAGE, "native/breakout");
}

Test(run, takes_no_file_from_the_learners_options) {
    give_option("lib", "evil.so");
    refused(FARM_E_USAGE, "env.lib");
    snprintf(offer->options[0][0], FARM_WIRE_OPTION_BYTES, "model");
    snprintf(offer->options[0][1], FARM_WIRE_OPTION_BYTES, "/there/model.xml");
    refused(FARM_E_USAGE, "--env.model");
    flag("env.model", "/here/model.xml");
    taken();
    cr_expect_str_eq(option("model"), "/here/model.xml");
}

Test(run, refuses_words_that_no_recipe_has) {
    snprintf(offer->bad_values, sizeof offer->bad_values, "explode");
    refused(FARM_E_USAGE, "bad_values");
    snprintf(offer->bad_values, sizeof offer->bad_values, "count");
    char key[64];
    memset(key, 'x', sizeof key);
    key[sizeof key - 1] = 0;
    give_option(key, "1");
    refused(FARM_E_USAGE, "env.xxx");
}

// ---- the environment ----

static void differs(const char *words) {
    cr_assert_eq(farm_run_offer_check(&env, &offer->spec, &error), FARM_E_INVALID);
    cr_assert(strstr(error.message, words), "%s", error.message);
    cr_assert(strstr(error.message, "native/catch is not what the learner plays"), "%s", error.message);
}

Test(run, agrees_with_the_same_environment) {
    cr_expect_eq(farm_run_offer_check(&env, &offer->spec, &error), FARM_OK, "%s", error.message);
}

Test(run, names_the_first_difference_of_observations) {
    struct farm_field_spec *field = &offer->spec.env.obs[0];
    field->dims[0]++;
    differs("dimension 0 of observation");
    field->rank--;
    differs("dimensions of observation");
    field->dtype = FARM_I32;
    differs("type of observation");
    snprintf(field->name, sizeof field->name, "other");
    differs("at the learner's");
    offer->spec.env.obs_count++;
    differs("observation arrays");
}

Test(run, names_the_first_difference_of_actions_and_frames) {
    struct farm_env_spec *there = &offer->spec.env;
    there->frames_per_step++;
    differs("frames a step");
    there->action.high[0] = 2;
    differs("upper bound of action 0");
    there->action.low[0] = -2;
    differs("lower bound of action 0");
    there->action.sizes[0]++;
    differs("choices of action 0");
    there->action.dims++;
    differs("dimensions of actions");
    there->action.kind = FARM_ACTION_CONTINUOUS;
    differs("kind of actions");
}

Test(run, names_an_answer_field_that_is_another) {
    offer->spec.answer[FARM_ANSWER_VALUE].values++;
    differs("answer field value");
}
