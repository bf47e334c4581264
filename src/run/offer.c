// See offer.h.
#include "run/offer.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cli.h"
#include "envs/python.h"
#include "envs/registry.h"

// CENTRAL: one in flight, the others until the learner's `consumed` returns. The most is a recipe's.
enum { STEPS = 4, STEPS_MAX = 1000000, LANE_BYTES = 16 << 20 };

// ---- a peer's words ----

#define DIGITS "0123456789"
#define WORD   DIGITS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-"

static bool consists_of(const char *text, const char *characters) {
    return text[0] && text[0] != '-' && !text[strspn(text, characters)];
}

// A word with a point, or that of a file or link here, is a file's name; 0b1, 1_000 and 2j are numbers to Python alone.
bool farm_run_offer_is_data(const char *value) {
    bool unused;
    char *end;
    const double number = strtod(value, &end);
    if (end != value && !*end) return isfinite(number) && consists_of(value + (*value == '-'), DIGITS "+-.eE");
    if (strchr(DIGITS, *value) && (strpbrk(value, "_jJ") || (*value == '0' && strpbrk(value, "bBoO")))) return false;
    return farm_parse_bool(value, &unused) ||
           (consists_of(value, WORD) && faccessat(AT_FDCWD, value, F_OK, AT_SYMLINK_NOFOLLOW) != 0);
}

// A copy for messages, without bytes that a terminal interprets or that JSON must not hold.
struct shown {
    char text[200];
};
static struct shown show(const char *text) {
    struct shown shown;
    snprintf(shown.text, sizeof shown.text, "%s", text);
    for (char *c = shown.text; *c; c++)
        if (*c < ' ' || *c > '~') *c = '?';
    return shown;
}

// ---- the recipe ----

// Why this machine must name the environment itself; NULL: a peer may. Files and Python modules are code.
static const char *why_not(const char *env) {
    const size_t family = strspn(env, WORD);
    if (farm_env_names_code(env) || strncmp(env, "gym/", 4) == 0) return "whose code a peer must not choose:";
    if (env[0] == '-' || !family || env[family] != '/' || !consists_of(env + family + 1, WORD))
        return "not a name FAMILY/NAME of letters, digits, _ and -:";
    return farm_env_would_install(env) ? "whose packages are not installed here, and a peer must not choose what is "
                                         "downloaded: `farm setup` installs them, or"
                                       : NULL;
}

static enum farm_status check_name(const char *offered, const struct farm_recipe *recipe, struct farm_error *err) {
    const bool here = farm_recipe_set_by(recipe, "env", FARM_LAYER_FLAG);
    const char *why = here ? NULL : why_not(offered);
    if (why)
        return farm_fail(err, FARM_E_USAGE, "the learner plays %s, %s name this machine's by --env", show(offered).text,
                         why);
    if (!here || (farm_env_names_file(offered) ? farm_env_names_file(recipe->env) : !strcmp(offered, recipe->env)))
        return FARM_OK;
    return farm_fail(err, FARM_E_USAGE, "the learner plays %s, but --env here is %s", show(offered).text, recipe->env);
}

static bool is_set_here(const struct farm_recipe *recipe, const char *option) {
    for (size_t i = 0; i < recipe->option_count; i++)
        if (strcmp(recipe->options[i].key, option) == 0 && recipe->options[i].layer == FARM_LAYER_FLAG) return true;
    return false;
}

// An option of the environment, or a recipe's key that travels as one: patterns of names, which are compared only.
// Whatever could be a file, a library or an expression is valid on the learner's machine only.
static enum farm_status set_option(const char *key, const char *value, struct farm_recipe *recipe,
                                   struct farm_error *err) {
    char name[64];
    bool own = false, good;
    for (size_t i = 0; i < FARM_ENV_KEYS; i++) own |= strcmp(key, farm_env_key(recipe, i).key) == 0;
    if (strcmp(key, "wrap") == 0) return FARM_OK; // check_wrap
    if (!consists_of(key, WORD ".") || strchr(DIGITS ".", key[0]) || strlen(key) >= sizeof recipe->options[0].key)
        return farm_fail(err, FARM_E_USAGE,
                         "the learner's option env.%s: a key has less than %zu letters, digits, _, - and ., a letter "
                         "first",
                         show(key).text, sizeof recipe->options[0].key);
    snprintf(name, sizeof name, "%s%s", own ? "" : "env.", key);
    if (own ? farm_recipe_set_by(recipe, key, FARM_LAYER_FLAG) : is_set_here(recipe, key)) return FARM_OK;
    good = own ? consists_of(value, WORD ".*?, ") && !strstr(value, "..")
               : strcmp(key, "lib") != 0 && farm_run_offer_is_data(value);
    if (good) return farm_recipe_set(recipe, FARM_LAYER_FILE, name, value, err);
    return farm_fail(err, FARM_E_USAGE,
                     "the learner's option %s is '%s', and a peer may send %s: name this machine's by --%s", name,
                     show(value).text,
                     own ? "letters, digits and _-.*?, only"
                         : "numbers, true, false and words of letters, digits, _ and - only, no file's name",
                     name);
}

// Wrappers are code: this machine names them itself, the same as the learner's.
static enum farm_status check_wrap(const struct farm_wire_offer *offer, const struct farm_recipe *recipe,
                                   struct farm_error *err) {
    const char *there = "none";
    for (uint32_t i = 0; i < offer->option_count; i++)
        if (strcmp(offer->options[i][0], "wrap") == 0) there = offer->options[i][1];
    if (strcmp(there, recipe->wrap) == 0) return FARM_OK;
    if (strcmp(recipe->wrap, "none") != 0)
        return farm_fail(err, FARM_E_USAGE, "the learner's wrap is %s, but --wrap here is %.300s", show(there).text,
                         recipe->wrap);
    return farm_fail(
        err, FARM_E_USAGE,
        "the learner wraps its environments by %s, code that a peer must not choose: name this machine's by "
        "--wrap '%s'",
        show(there).text, show(there).text);
}

enum farm_status farm_run_offer_apply(const struct farm_wire_offer *offer, struct farm_recipe *recipe,
                                      struct farm_error *err) {
    const struct farm_ring_spec *spec = &offer->spec;
    enum farm_status status = check_name(offer->env, recipe, err);
    if (!status) status = check_wrap(offer, recipe, err);
    const uint64_t envs = (uint64_t)spec->lanes * spec->width, steps = farm_run_offer_steps(offer);
    if (!status && (envs > FARM_WIDTH_MAX || steps > STEPS_MAX))
        status =
            farm_fail(err, FARM_E_USAGE, "the learner's actors have %llu environments and %llu steps: at most %d, %d",
                      (unsigned long long)envs, (unsigned long long)steps, FARM_WIDTH_MAX, STEPS_MAX);
    for (uint32_t i = 0; i < spec->number_count && !status; i++) // options of the environment
        if (!consists_of(spec->numbers[i], WORD ".") || strcmp(spec->numbers[i], "lib") == 0)
            status = farm_fail(err, FARM_E_USAGE, "the learner's number '%s': a peer must not choose it",
                               show(spec->numbers[i]).text);
    if (!status && !farm_recipe_set_by(recipe, "env", FARM_LAYER_FLAG))
        status = farm_recipe_set(recipe, FARM_LAYER_FILE, "env", offer->env, err);
    if (!status) status = farm_recipe_set(recipe, FARM_LAYER_FILE, "bad_values", show(offer->bad_values).text, err);
    for (uint32_t i = 0; i < offer->option_count && !status; i++)
        status = set_option(offer->options[i][0], offer->options[i][1], recipe, err);
    if (!status) status = farm_recipe_settle(recipe, err);
    if (status) return status == FARM_E_NOT_FOUND ? FARM_E_USAGE : status;
    recipe->seed = (int64_t)offer->seed;
    recipe->lanes = spec->lanes;
    recipe->envs_per_actor = (int64_t)envs;
    recipe->ring_steps = (int64_t)steps;
    recipe->frames = 0;
    recipe->seconds = 0;
    return FARM_OK;
}

enum farm_status farm_run_offer_policy(const struct farm_wire_offer *offer, struct farm_policy_description *policy,
                                       struct farm_error *err) {
    enum farm_status status = farm_policy_understand(offer->net, &offer->spec.env, policy, err);
    if (!status) status = farm_policy_check_ring(&policy->net, &policy->head, &offer->spec, err);
    return status ? farm_fail_in(err, status, "the learner's policy") : FARM_OK;
}

uint32_t farm_run_offer_steps(const struct farm_wire_offer *offer) {
    const struct farm_ring_spec *spec = &offer->spec;
    struct farm_ring_layout layout;
    uint64_t most = STEPS;
    if (spec->answers == FARM_ANSWERS_LOCAL && !farm_ring_layout_make(spec, &layout, NULL)) {
        const uint64_t held = LANE_BYTES / (layout.up_stride / spec->steps), least = 2ull * offer->window + STEPS;
        most = held > least ? held : least;
    }
    uint32_t steps = spec->steps < most ? spec->steps : (uint32_t)most;
    for (uint32_t f = 0; f < spec->answer_count; f++)
        if (spec->answer[f].every > steps) steps = spec->answer[f].every;
    return steps;
}

// ---- the environment ----

static enum farm_status fail_different(struct farm_error *err, const char *what, double here, double there) {
    return farm_fail(err, FARM_E_INVALID, "%s: %.9g here, %.9g at the learner's", what, here, there);
}

static enum farm_status check_field(const struct farm_field_spec *here, const struct farm_field_spec *there, uint32_t f,
                                    struct farm_error *err) {
    char what[96];
    if (strncmp(here->name, there->name, sizeof here->name) != 0)
        return farm_fail(err, FARM_E_INVALID, "observation %u is %.24s here, %.24s at the learner's", f, here->name,
                         there->name);
    snprintf(what, sizeof what, "type of observation %.24s (1 u8, 2 i32, 3 f32)", here->name);
    if (here->dtype != there->dtype) return fail_different(err, what, here->dtype, there->dtype);
    snprintf(what, sizeof what, "dimensions of observation %.24s", here->name);
    if (here->rank != there->rank) return fail_different(err, what, here->rank, there->rank);
    for (uint32_t d = 0; d < here->rank && d < FARM_FIELD_RANK_MAX; d++) {
        snprintf(what, sizeof what, "dimension %u of observation %.24s", d, here->name);
        if (here->dims[d] != there->dims[d]) return fail_different(err, what, here->dims[d], there->dims[d]);
    }
    snprintf(what, sizeof what, "choices of observation %.24s", here->name);
    return here->choices == there->choices ? FARM_OK : fail_different(err, what, here->choices, there->choices);
}

static enum farm_status check_action(const struct farm_action_spec *here, const struct farm_action_spec *there,
                                     struct farm_error *err) {
    char what[64];
    if (here->kind != there->kind)
        return fail_different(err, "kind of actions (1 discrete, 2 multi-discrete, 3 continuous)", here->kind,
                              there->kind);
    if (here->dims != there->dims) return fail_different(err, "dimensions of actions", here->dims, there->dims);
    for (uint32_t d = 0; d < here->dims && d < FARM_ACTION_DIMS_MAX; d++) {
        snprintf(what, sizeof what, "choices of action %u", d);
        if (here->sizes[d] != there->sizes[d]) return fail_different(err, what, here->sizes[d], there->sizes[d]);
        snprintf(what, sizeof what, "lower bound of action %u", d);
        if (memcmp(&here->low[d], &there->low[d], sizeof here->low[d]) != 0)
            return fail_different(err, what, (double)here->low[d], (double)there->low[d]);
        snprintf(what, sizeof what, "upper bound of action %u", d);
        if (memcmp(&here->high[d], &there->high[d], sizeof here->high[d]) != 0)
            return fail_different(err, what, (double)here->high[d], (double)there->high[d]);
    }
    return FARM_OK;
}

static enum farm_status check_env(const struct farm_env_spec *here, const struct farm_env_spec *there,
                                  struct farm_error *err) {
    enum farm_status status = FARM_OK;
    if (here->obs_count != there->obs_count)
        return fail_different(err, "observation arrays", here->obs_count, there->obs_count);
    for (uint32_t f = 0; f < here->obs_count && f < FARM_OBS_FIELDS_MAX && !status; f++)
        status = check_field(&here->obs[f], &there->obs[f], f, err);
    if (!status) status = check_action(&here->action, &there->action, err);
    if (!status && here->frames_per_step != there->frames_per_step)
        return fail_different(err, "frames a step", here->frames_per_step, there->frames_per_step);
    if (!status && here->agents != there->agents)
        return fail_different(err, "agents that learn (--opponent FILE plays others)", here->agents, there->agents);
    return status;
}

static enum farm_status check_answers(const struct farm_ring_spec *there, struct farm_error *err) {
    struct farm_ring_spec here = {
        .lanes = there->lanes, .width = there->width, .steps = there->steps, .env = there->env};
    farm_ring_spec_answers(&here);
    for (uint32_t f = 0; f < here.answer_count; f++)
        if (f >= there->answer_count || here.answer[f].dtype != there->answer[f].dtype ||
            here.answer[f].values != there->answer[f].values || here.answer[f].per_step != there->answer[f].per_step)
            return farm_fail(err, FARM_E_INVALID, "answer field %.24s differs from the learner's", here.answer[f].name);
    return FARM_OK;
}

enum farm_status farm_run_offer_check(const struct farm_env *env, const struct farm_ring_spec *spec,
                                      struct farm_error *err) {
    enum farm_status status = check_env(&env->spec, &spec->env, err);
    if (!status) status = check_answers(spec, err);
    return status ? farm_fail_in(err, status, "%s is not what the learner plays", env->name) : FARM_OK;
}
