// A learner's OFFER at a node: as bytes of the message, or as lines, a name and then KEY=VALUE, in a message that is
// otherwise right. What is applied obeys the rules of docs/SECURITY.md, which this file states again in its own words.
#include <ctype.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "algo/registry.h"
#include "fuzz.h"
#include "run/offer.h"

enum { RAW = 1, ENV_HERE = 2, OPTION_HERE = 4, OWN_HERE = 8 };
static const char file_here[] = "/here/model.xml", own_here[] = "\"here\", [1]";

static void take_lines(struct fuzz_input *input, struct farm_wire_offer *offer) {
    char *text = fuzz_take_text(input, input->left), *rest = text, *line = strsep(&rest, "\n");
    offer->spec = farm_ring_spec_plain(2, 3, 8, FARM_U8, 5, 4);
    snprintf(offer->bad_values, sizeof offer->bad_values, "count");
    snprintf(offer->env, sizeof offer->env, "%s", line);
    while ((line = strsep(&rest, "\n")) && offer->option_count < FARM_WIRE_OPTIONS_MAX) {
        char(*to)[FARM_WIRE_OPTION_BYTES] = offer->options[offer->option_count++], *key = strsep(&line, "=");
        snprintf(to[0], sizeof to[0], "%s", key);
        snprintf(to[1], sizeof to[1], "%s", line ? line : "");
    }
    free(text);
}

// Whether all characters are letters, digits or among `others`.
static bool is_of(const char *text, const char *others) {
    for (const char *c = text; *c; c++)
        if ((*c & 0x80 || !isalnum(*c)) && !strchr(others, *c)) return false;
    return text[0] != 0;
}

static void check_option(const struct farm_recipe_option *option) {
    const char *value = option->value;
    char *end;
    assert(is_of(option->key, "_.") && strcmp(option->key, "lib") != 0 && strlen(option->key) < sizeof option->key);
    assert(is_of(value, "_-.+") && !strstr(value, ".."));
    const double number = strtod(value, &end);
    if (!*end) assert(isfinite(number) && !strpbrk(value, "xXpPnN"));
    if (*end) assert(isalnum(*value) || *value == '_');
    if (*end) assert(!strpbrk(value, ".+") && faccessat(AT_FDCWD, value, F_OK, AT_SYMLINK_NOFOLLOW) != 0);
    if (isdigit(*value) && *end) assert(!strchr(value, '_') && !strchr("jJ", value[strlen(value) - 1]));
}

static void check_applied(const struct farm_recipe *recipe, unsigned here, const struct farm_wire_offer *offer) {
    const char *slash = strchr(recipe->env, '/');
    if (!(here & ENV_HERE)) {
        assert(is_of(recipe->env, "_-/") && slash > recipe->env && slash[1] && slash[1] != '-' &&
               !strchr(slash + 1, '/'));
        assert(strncmp(recipe->env, "gym/", 4) != 0);
    }
    assert(recipe->lanes >= 1 && recipe->envs_per_actor <= 65536 && recipe->ring_steps <= 1000000);
    assert(strcmp(recipe->wrap, "none") == 0 && offer->spec.answers == FARM_ANSWERS_CENTRAL);
    for (size_t i = 0; i < recipe->option_count; i++)
        if (recipe->options[i].layer == FARM_LAYER_FLAG)
            assert(strcmp(recipe->options[i].value, file_here) == 0);
        else
            check_option(&recipe->options[i]);
    assert(is_of(recipe->obs_drop, "_-.*?, "));
    assert(here & OWN_HERE ? !strcmp(recipe->obs_keep, own_here) : is_of(recipe->obs_keep, "_-.*?, "));
}

static void set_here(struct farm_recipe *recipe, const char *key, const char *value) {
    struct farm_error err;
    const enum farm_status status = farm_recipe_set(recipe, FARM_LAYER_FLAG, key, value, &err);
    assert(!status);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static struct farm_wire_offer made, offer;
    static struct farm_policy_description policy;
    static struct farm_recipe recipe;
    static uint8_t message[FARM_WIRE_MESSAGE_BYTES_MAX];
    struct fuzz_input input = {data, bytes};
    struct farm_error err = {0};
    uint8_t here;
    fuzz_take(&input, &here, 1);
    memset(&made, 0, sizeof made);
    if (!(here & RAW)) take_lines(&input, &made);
    const size_t put = here & RAW ? input.left : farm_wire_put_offer(&made, message, sizeof message);
    enum farm_status status = farm_wire_get_offer(here & RAW ? input.at : message, put, &offer, &err);
    farm_recipe_defaults(&recipe, farm_algo_family_at);
    if (!status && here & ENV_HERE)
        set_here(&recipe, "env", here & OPTION_HERE ? "plugin:./here.so" : "gym/CartPole-v1");
    if (!status && here & OPTION_HERE) set_here(&recipe, "env.model", file_here);
    if (!status && here & OWN_HERE) set_here(&recipe, "obs_keep", own_here);
    if (!status) status = farm_run_offer_apply(&offer, &recipe, &err);
    if (!status && offer.spec.answers == FARM_ANSWERS_LOCAL) status = farm_run_offer_policy(&offer, &policy, &err);
    if (!status) {
        check_applied(&recipe, here, &offer);
    } else {
        fuzz_check_refusal(status, &err);
        for (const uint8_t *c = (uint8_t *)err.message; *c; c++)
            assert(*c >= ' ' && *c != 0x7f && (*c != 0xc2 || c[1] < 0x80 || c[1] >= 0xa0));
    }
    return 0;
}
