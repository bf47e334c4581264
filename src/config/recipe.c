// See recipe.h. YAML is read and written with libyaml, whose documents keep each node's line.
#include "config/recipe.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

#include "base/cli.h"
#include "base/file.h"
#include "config/env_name.h"

enum { RECIPE_BYTES_MAX = 1 << 20, OWN_KEYS = FARM_RECIPE_OWN_KEYS };

enum {
    ENVS = FARM_USE_ENVS,
    EVAL = FARM_USE_EVAL,
    FPS = FARM_USE_FPS,
    BRIDGE = FARM_USE_BRIDGE,
    POLICY = FARM_USE_POLICY,
    NET = FARM_USE_NET,
    SERVE = FARM_USE_SERVE
};
static const struct farm_recipe_key keys[] = {
#define KEY(kind, key, value, ...) {#key, FARM_RECIPE_##kind, offsetof(struct farm_recipe, key), value, __VA_ARGS__},
#include "config/keys.h"
};

// The family of key i, and its number there; NULL: one of the recipe's own keys, or no key.
static const struct farm_recipe_family *family_of(const struct farm_recipe *recipe, size_t i, size_t *number) {
    if (i < OWN_KEYS || !recipe->families) return NULL;
    i -= OWN_KEYS;
    for (size_t f = 0;; f++) {
        const struct farm_recipe_family *family = recipe->families(f);
        *number = i;
        if (!family || i < family->key_count) return family;
        i -= family->key_count;
    }
}

const struct farm_recipe_key *farm_recipe_key_at(const struct farm_recipe *recipe, size_t i) {
    size_t number;
    const struct farm_recipe_family *family = family_of(recipe, i, &number);
    return i < OWN_KEYS ? &keys[i] : family ? &family->keys[number] : NULL;
}

bool farm_recipe_counts(const struct farm_recipe *recipe, size_t i) {
    size_t number;
    const struct farm_recipe_family *family = family_of(recipe, i, &number);
    return !family || strcmp(family->name, recipe->algo) == 0;
}

// The i-th key's value in a recipe.
static size_t offset_of(size_t i) {
    return i < OWN_KEYS ? keys[i].offset : offsetof(struct farm_recipe, values) + (i - OWN_KEYS) * sizeof(double);
}
static void *member(struct farm_recipe *recipe, size_t i) {
    return (char *)recipe + offset_of(i);
}
static const void *member_const(const struct farm_recipe *recipe, size_t i) {
    return (const char *)recipe + offset_of(i);
}

double farm_recipe_family_value(const struct farm_recipe *recipe, size_t k) {
    size_t number;
    for (size_t i = OWN_KEYS; farm_recipe_key_at(recipe, i); i++)
        if (farm_recipe_counts(recipe, i) && family_of(recipe, i, &number) && number == k)
            return recipe->values[i - OWN_KEYS];
    assert(!"key of the recipe's algorithm");
    return 0;
}

// ---- values ----

// The value's place among "a|b|c"; -1: not among them.
static int choice_of(const char *choices, const char *value) {
    const size_t length = strlen(value);
    int place = 0;
    for (const char *at = choices; length && at; place++) {
        const size_t bytes = strcspn(at, "|");
        if (bytes == length && strncmp(at, value, length) == 0) return place;
        at = at[bytes] ? at + bytes + 1 : NULL;
    }
    return -1;
}

static enum farm_status fail_choice(const struct farm_recipe_key *key, const char *value, struct farm_error *err) {
    return farm_fail(err, FARM_E_USAGE, "%s: must be one of %s (got '%.40s')", key->name, key->choices, value);
}

static enum farm_status store_text(const struct farm_recipe_key *key, const char *value, char *out,
                                   struct farm_error *err) {
    if (key->choices && choice_of(key->choices, value) < 0) return fail_choice(key, value, err);
    const size_t bytes = key->type == FARM_RECIPE_TEXT ? FARM_RECIPE_TEXT_BYTES : FARM_RECIPE_PATH_BYTES;
    if (!value[0] || strlen(value) >= bytes)
        return farm_fail(err, FARM_E_USAGE, "%s: '%.40s' is empty or too long (at most %zu bytes)", key->name, value,
                         bytes - 1);
    snprintf(out, bytes, "%s", value);
    return FARM_OK;
}

static enum farm_status fail_range(const struct farm_recipe_key *key, const char *value, struct farm_error *err) {
    return farm_fail(err, FARM_E_USAGE, "%s: %.40s is outside its range, %g to %g", key->name, value, key->least,
                     key->most);
}

// Converts, checks and stores a value at `to`, the key's member of a recipe.
static enum farm_status store_value(const struct farm_recipe_key *key, const char *value, void *to,
                                    struct farm_error *err) {
    switch (key->type) {
    case FARM_RECIPE_TEXT:
    case FARM_RECIPE_PATH:
    case FARM_RECIPE_LIST:
        return store_text(key, value, to, err);
    case FARM_RECIPE_BOOL:
        if (farm_parse_bool(value, to)) return FARM_OK;
        return farm_fail(err, FARM_E_USAGE, "%s: '%.40s' is neither true nor false", key->name, value);
    case FARM_RECIPE_CHOICE: {
        const double place = choice_of(key->choices, value);
        if (place < 0) return fail_choice(key, value, err);
        memcpy(to, &place, sizeof place);
        return FARM_OK;
    }
    case FARM_RECIPE_INT:
    case FARM_RECIPE_WHOLE: {
        int64_t number;
        if (!farm_parse_int(value, &number))
            return farm_fail(err, FARM_E_USAGE, "%s: '%.40s' is not a whole number (examples: 500000, 500k, 10M)",
                             key->name, value);
        if ((double)number < key->least || (double)number > key->most) return fail_range(key, value, err);
        const double same = (double)number;
        memcpy(to, key->type == FARM_RECIPE_INT ? (const void *)&number : &same, sizeof number);
        return FARM_OK;
    }
    case FARM_RECIPE_DOUBLE: {
        double number;
        if (!farm_parse_double(value, &number))
            return farm_fail(err, FARM_E_USAGE, "%s: '%.40s' is not a number", key->name, value);
        if (number < key->least || number > key->most) return fail_range(key, value, err);
        memcpy(to, &number, sizeof number);
        return FARM_OK;
    }
    }
    assert(!"type of key");
    return FARM_E_INVALID;
}

void farm_recipe_defaults(struct farm_recipe *recipe, farm_recipe_families *families) {
    const struct farm_recipe_key *key;
    memset(recipe, 0, sizeof *recipe);
    recipe->families = families;
    for (size_t i = 0; (key = farm_recipe_key_at(recipe, i)); i++) {
        assert(i < FARM_RECIPE_KEYS_MAX);
        enum farm_status status = store_value(key, key->default_text, member(recipe, i), NULL);
        assert(status == FARM_OK);
    }
}

void farm_recipe_default_before(struct farm_recipe *recipe) {
    for (size_t i = 0; i < OWN_KEYS; i++)
        if (keys[i].before && !recipe->layers[i]) store_value(&keys[i], keys[i].before, member(recipe, i), NULL);
}

// ---- setting ----

static enum farm_status set_option(struct farm_recipe *recipe, enum farm_recipe_layer layer, const char *key,
                                   const char *value, struct farm_error *err) {
    struct farm_recipe_option *option = NULL;
    for (size_t i = 0; i < recipe->option_count; i++)
        if (strcmp(recipe->options[i].key, key) == 0) option = &recipe->options[i];
    if (!key[0] || strlen(key) >= sizeof option->key || !value || strlen(value) >= sizeof option->value)
        return farm_fail(err, FARM_E_USAGE,
                         "env.%.40s: an option needs a name of 1 to %zu and a value of at most %zu bytes", key,
                         sizeof option->key - 1, sizeof option->value - 1);
    if (option && option->layer > layer) return FARM_OK;
    if (!option) {
        if (recipe->option_count == FARM_RECIPE_OPTIONS_MAX)
            return farm_fail(err, FARM_E_USAGE, "env.%s: more than %d options", key, FARM_RECIPE_OPTIONS_MAX);
        option = &recipe->options[recipe->option_count++];
    }
    snprintf(option->key, sizeof option->key, "%s", key);
    snprintf(option->value, sizeof option->value, "%s", value);
    option->layer = (uint8_t)layer;
    return FARM_OK;
}

// Whether the text is UTF-8 (RFC 3629), which YAML and JSON files of a run's folder require.
static bool is_utf8(const char *text) {
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    for (const uint8_t *at = (const uint8_t *)text; *at;) {
        int more = *at < 0x80 ? 0 : *at >> 5 == 6 ? 1 : *at >> 4 == 14 ? 2 : *at >> 3 == 30 ? 3 : -1;
        if (more < 0) return false;
        uint32_t code = *at++ & 0x7fu >> (more ? more + 1 : 0);
        for (int i = 0; i < more; i++, at++) {
            if (*at >> 6 != 2) return false;
            code = code << 6 | (*at & 0x3f);
        }
        if (code < least[more] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return false;
    }
    return true;
}

// The first key of this name from `from` on; SIZE_MAX: there is none.
static size_t find_key(const struct farm_recipe *recipe, const char *name, size_t from) {
    const struct farm_recipe_key *key;
    for (size_t i = from; (key = farm_recipe_key_at(recipe, i)); i++)
        if (strcmp(key->name, name) == 0) return i;
    return SIZE_MAX;
}

const struct farm_recipe_key *farm_recipe_find(const struct farm_recipe *recipe, const char *name) {
    const size_t i = find_key(recipe, name, 0);
    return i == SIZE_MAX ? NULL : farm_recipe_key_at(recipe, i);
}

int farm_recipe_choice(const struct farm_recipe *recipe, enum farm_recipe_own_key key) {
    return choice_of(keys[key].choices, member_const(recipe, key));
}

bool farm_recipe_set_by(const struct farm_recipe *recipe, const char *name, enum farm_recipe_layer layer) {
    const size_t i = find_key(recipe, name, 0);
    return i != SIZE_MAX && recipe->layers[i] >= layer;
}

// Whether an algorithm has this name; text receives all names, "a, b, c".
static bool is_algorithm(const struct farm_recipe *recipe, const char *name, char *text, size_t bytes) {
    bool found = strcmp(name, "auto") == 0 || !recipe->families;
    const struct farm_recipe_family *family;
    text[0] = 0;
    for (size_t f = 0; recipe->families && (family = recipe->families(f)); f++) {
        snprintf(text + strlen(text), bytes - strlen(text), "%s%s", f ? ", " : "", family->name);
        found |= strcmp(family->name, name) == 0;
    }
    return found;
}

enum farm_status farm_recipe_set(struct farm_recipe *recipe, enum farm_recipe_layer layer, const char *name,
                                 const char *value, struct farm_error *err) {
    char normal[64], names[256];
    if (strlen(name) >= sizeof normal) return farm_fail(err, FARM_E_NOT_FOUND, "unknown key '%.40s...'", name);
    if (!is_utf8(name) || (value && !is_utf8(value)))
        return farm_fail(err, FARM_E_USAGE, "%s: '%.40s' is not UTF-8 text", name, value ? value : "");
    for (size_t i = 0; i <= strlen(name); i++) normal[i] = name[i] == '-' ? '_' : name[i];
    if (strncmp(normal, "env.", 4) == 0) return set_option(recipe, layer, normal + 4, value ? value : "true", err);

    size_t i = find_key(recipe, normal, 0);
    if (i == SIZE_MAX && !value && strncmp(normal, "no_", 3) == 0) {
        i = find_key(recipe, normal + 3, 0);
        if (i >= OWN_KEYS || keys[i].type != FARM_RECIPE_BOOL) i = SIZE_MAX;
        value = "false";
    }
    if (i == SIZE_MAX) return farm_fail(err, FARM_E_NOT_FOUND, "unknown key '%s'", name);
    const char *const key_name = farm_recipe_key_at(recipe, i)->name;
    if (strcmp(key_name, "algo") == 0 && value && !is_algorithm(recipe, value, names, sizeof names))
        return farm_fail(err, FARM_E_USAGE, "algo: must be one of %s (got '%.40s')", names, value);
    for (; i != SIZE_MAX; i = find_key(recipe, key_name, i + 1)) {
        const struct farm_recipe_key *key = farm_recipe_key_at(recipe, i);
        if (!value && key->type != FARM_RECIPE_BOOL) return farm_fail(err, FARM_E_USAGE, "%s needs a value", name);
        char checked[FARM_RECIPE_PATH_BYTES];
        enum farm_status status = store_value(key, value ? value : "true", checked, err);
        if (status) return status;
        if (recipe->layers[i] > layer) continue;
        recipe->layers[i] = (uint8_t)layer;
        store_value(key, value ? value : "true", member(recipe, i), err);
        if (i == FARM_KEY_env) farm_env_name_settle(recipe->env);
    }
    return FARM_OK;
}

// ---- reading YAML ----

struct reading {
    struct farm_recipe *recipe;
    enum farm_recipe_layer layer;
    const char *where; // for messages
    bool seen[FARM_RECIPE_KEYS_MAX];
    struct farm_error *err;
};

static enum farm_status fail_at(const struct reading *reading, size_t line, const char *sentence) {
    return farm_fail(reading->err, FARM_E_USAGE, "%s:%zu: %s", reading->where, line + 1, sentence);
}

static enum farm_status fail_unknown_key(const struct reading *reading, size_t line, const char *name) {
    const char *names[FARM_RECIPE_KEYS_MAX];
    const struct farm_recipe_key *key;
    size_t count = 0;
    while ((key = farm_recipe_key_at(reading->recipe, count))) names[count++] = key->name;
    const char *near = farm_nearest(name, names, count);
    return farm_fail(reading->err, FARM_E_USAGE, "%s:%zu: unknown key '%.40s'%s%s%s (farm train --help lists all)",
                     reading->where, line + 1, name, near ? ": did you mean '" : "", near ? near : "",
                     near ? "'?" : "");
}

static enum farm_status set_pair(struct reading *reading, const yaml_node_t *key, const yaml_node_t *value) {
    const char *name = (const char *)key->data.scalar.value, *text = (const char *)value->data.scalar.value;
    const size_t line = value->start_mark.line;
    if (strlen(name) != key->data.scalar.length || strlen(text) != value->data.scalar.length)
        return fail_at(reading, line, "a key or a value holds a zero byte");
    const size_t i = find_key(reading->recipe, name, 0);
    if (i != SIZE_MAX && reading->seen[i])
        return farm_fail(reading->err, FARM_E_USAGE, "%s:%zu: key '%s' is given twice", reading->where, line + 1, name);
    if (i != SIZE_MAX) reading->seen[i] = true;
    enum farm_status status = farm_recipe_set(reading->recipe, reading->layer, name, text, reading->err);
    if (status == FARM_E_NOT_FOUND) return fail_unknown_key(reading, line, name);
    if (status) farm_fail_in(reading->err, FARM_E_USAGE, "%s:%zu", reading->where, line + 1);
    return status;
}

static enum farm_status read_mapping(struct reading *reading, yaml_document_t *document, const yaml_node_t *root) {
    if (root->type != YAML_MAPPING_NODE)
        return fail_at(reading, root->start_mark.line, "expected lines of 'key: value'");
    for (const yaml_node_pair_t *pair = root->data.mapping.pairs.start; pair < root->data.mapping.pairs.top; pair++) {
        const yaml_node_t *key = yaml_document_get_node(document, pair->key),
                          *value = yaml_document_get_node(document, pair->value);
        // Nodes are numbered as they appear: a key behind the pair before it, else it is an alias of an earlier node.
        const bool alias = pair > root->data.mapping.pairs.start && pair->key <= pair[-1].value;
        if (key->type != YAML_SCALAR_NODE || alias)
            return fail_at(reading, key->start_mark.line, "expected 'key: value' with a plain key");
        // A value that does not follow its key is an alias, too.
        if (value->type != YAML_SCALAR_NODE || pair->value != pair->key + 1)
            return fail_at(reading, value->start_mark.line, "a value must be plain: no list, mapping or alias");
        enum farm_status status = set_pair(reading, key, value);
        if (status) return status;
    }
    return FARM_OK;
}

// Reads the next document; *empty: the stream has ended. The caller deletes *document on FARM_OK.
static enum farm_status load_document(const struct reading *reading, yaml_parser_t *parser, yaml_document_t *document,
                                      bool *empty) {
    if (!yaml_parser_load(parser, document))
        return farm_fail(reading->err, FARM_E_USAGE, "%s:%zu: not valid YAML: %s", reading->where,
                         parser->problem_mark.line + 1, parser->problem ? parser->problem : "unreadable");
    *empty = !yaml_document_get_root_node(document);
    return FARM_OK;
}

static enum farm_status read_stream(struct reading *reading, yaml_parser_t *parser) {
    yaml_document_t document, second;
    bool empty = true;
    enum farm_status status = load_document(reading, parser, &document, &empty);
    if (status) return status;
    if (!empty) status = read_mapping(reading, &document, yaml_document_get_root_node(&document));
    yaml_document_delete(&document);
    if (status || empty) return status; // an empty file changes nothing
    if ((status = load_document(reading, parser, &second, &empty))) return status;
    const size_t line = second.start_mark.line;
    yaml_document_delete(&second);
    return empty ? FARM_OK : fail_at(reading, line, "more than one document");
}

enum farm_status farm_recipe_parse(struct farm_recipe *recipe, enum farm_recipe_layer layer, const char *text,
                                   size_t bytes, const char *where, struct farm_error *err) {
    struct reading reading = {.recipe = recipe, .layer = layer, .where = where, .err = err};
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser)) return farm_fail(err, FARM_E_LIMIT, "%s: out of memory", where);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    enum farm_status status = read_stream(&reading, &parser);
    yaml_parser_delete(&parser);
    return status;
}

enum farm_status farm_recipe_load(struct farm_recipe *recipe, enum farm_recipe_layer layer, const char *path,
                                  struct farm_error *err) {
    char *text;
    size_t bytes;
    if (farm_file_read(path, RECIPE_BYTES_MAX, &text, &bytes, err)) return farm_fail_in(err, FARM_E_USAGE, "recipe");
    enum farm_status status = farm_recipe_parse(recipe, layer, text, bytes, path, err);
    free(text);
    return status;
}

// Files and flags may not set keys of another algorithm.
static enum farm_status check_families(const struct farm_recipe *recipe, struct farm_error *err) {
    const struct farm_recipe_key *key;
    size_t number;
    for (size_t i = OWN_KEYS; (key = farm_recipe_key_at(recipe, i)); i++) {
        bool counts = recipe->layers[i] < FARM_LAYER_FILE;
        for (size_t k = find_key(recipe, key->name, 0); k != SIZE_MAX && !counts;
             k = find_key(recipe, key->name, k + 1))
            counts = farm_recipe_counts(recipe, k);
        if (!counts)
            return farm_fail(err, FARM_E_USAGE,
                             "%s is a key of algorithm %s, but this run uses %s: --algo %s would use it", key->name,
                             family_of(recipe, i, &number)->name, recipe->algo, family_of(recipe, i, &number)->name);
    }
    return FARM_OK;
}

enum farm_status farm_recipe_vary(struct farm_recipe *recipe, bool continuous, bool frames, struct farm_error *err) {
    char *over = continuous ? recipe->continuous : recipe->pictures;
    if (!(continuous || frames) || !over[0]) return FARM_OK;
    const enum farm_status status = farm_recipe_load(recipe, FARM_LAYER_SHIPPED, over, err);
    const size_t used = strlen(recipe->under);
    if (used) snprintf(recipe->under + used, sizeof recipe->under - used, " and %s", over);
    over[0] = 0;
    return status ? status : farm_recipe_settle(recipe, err);
}

// envs_total or envs_per_actor, whichever the stronger layer sets.
static enum farm_status settle_environments(struct farm_recipe *recipe, struct farm_error *err) {
    const uint8_t total = recipe->layers[FARM_KEY_envs_total], each = recipe->layers[FARM_KEY_envs_per_actor];
    if (recipe->envs_total && recipe->envs_per_actor && total == each)
        return farm_fail(err, FARM_E_USAGE,
                         "envs_total (%lld) and envs_per_actor (%lld): the number of actors decides one by the other; "
                         "set one of them",
                         (long long)recipe->envs_total, (long long)recipe->envs_per_actor);
    if (recipe->envs_total && total > each && each) recipe->envs_per_actor = 0;
    if (recipe->envs_per_actor && each > total) recipe->envs_total = 0;
    return FARM_OK;
}

enum farm_status farm_recipe_settle(struct farm_recipe *recipe, struct farm_error *err) {
    uint8_t frames = recipe->layers[FARM_KEY_frames], seconds = recipe->layers[FARM_KEY_seconds];
    if (frames > seconds) recipe->seconds = 0;
    if (seconds > frames) recipe->frames = 0;
    if (strcmp(recipe->algo, "auto") == 0 && recipe->families)
        snprintf(recipe->algo, sizeof recipe->algo, "%s", recipe->families(0)->name);
    if (settle_environments(recipe, err)) return FARM_E_USAGE;
    if (recipe->lstm && !farm_recipe_set_by(recipe, "last_inputs", FARM_LAYER_SHIPPED)) recipe->last_inputs = true;
    if (recipe->envs_per_actor % recipe->lanes)
        return farm_fail(
            err, FARM_E_USAGE,
            "envs_per_actor (%lld) must be a multiple of lanes (%lld): every lane has as many environments",
            (long long)recipe->envs_per_actor, (long long)recipe->lanes);
    if (recipe->lr_end > recipe->lr && recipe->layers[FARM_KEY_lr_end] < recipe->layers[FARM_KEY_lr])
        recipe->lr_end = recipe->lr; // the end of another schedule
    if (recipe->lr_end > recipe->lr)
        return farm_fail(err, FARM_E_USAGE, "lr_end (%g) is larger than lr (%g)", recipe->lr_end, recipe->lr);
    return check_families(recipe, err);
}

// ---- writing ----

// The shortest decimal that reads back as the same number. At least six digits, because %.1g prints 300 as 3e+02.
static void format_double(double value, char *text, size_t text_bytes) {
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, text_bytes, "%.*g", digits, value);
        if (strtod(text, NULL) == value) return;
    }
}

char *farm_recipe_value(const struct farm_recipe *recipe, size_t key, char *text, size_t text_bytes) {
    assert(farm_recipe_key_at(recipe, key) && text_bytes > 0);
    const void *from = member_const(recipe, key);
    switch (farm_recipe_key_at(recipe, key)->type) {
    case FARM_RECIPE_TEXT:
    case FARM_RECIPE_PATH:
    case FARM_RECIPE_LIST:
        snprintf(text, text_bytes, "%s", (const char *)from);
        break;
    case FARM_RECIPE_BOOL:
        snprintf(text, text_bytes, "%s", *(const bool *)from ? "true" : "false");
        break;
    case FARM_RECIPE_INT:
        snprintf(text, text_bytes, "%lld", (long long)*(const int64_t *)from);
        break;
    case FARM_RECIPE_DOUBLE:
    case FARM_RECIPE_WHOLE:
        format_double(*(const double *)from, text, text_bytes);
        break;
    case FARM_RECIPE_CHOICE: {
        const char *choice = farm_recipe_key_at(recipe, key)->choices;
        for (int place = (int)*(const double *)from; place > 0; place--) choice += strcspn(choice, "|") + 1;
        snprintf(text, text_bytes, "%.*s", (int)strcspn(choice, "|"), choice);
        break;
    }
    }
    return text;
}

static void format_flag(const char *name, char *flag, size_t bytes) {
    snprintf(flag, bytes, "--%s", name);
    for (char *at = flag + 2; *at; at++)
        if (*at == '_') *at = '-';
}

enum farm_status farm_recipe_check_effect(const struct farm_recipe *recipe, size_t i,
                                          const struct farm_recipe_fact *facts, struct farm_error *err) {
    char flag[48], value[FARM_RECIPE_PATH_BYTES], name[32], text[FARM_RECIPE_PATH_BYTES];
    const struct farm_recipe_key *key = farm_recipe_key_at(recipe, i);
    const char *now = "";
    farm_recipe_value(recipe, i, value, sizeof value);
    if (!key->needs || (key->type == FARM_RECIPE_BOOL && strcmp(value, "false") == 0)) return FARM_OK;
    for (const char *at = key->needs; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
        char wanted[32] = "";
        const struct farm_recipe_fact *fact = facts;
        sscanf(at, "%31[^|=]=%31[^|]", name, wanted);
        while (fact->name && strcmp(fact->name, name) != 0) fact++;
        now = fact->name ? fact->value : farm_recipe_value(recipe, find_key(recipe, name, 0), text, sizeof text);
        const bool off = strcmp(now, "0") == 0 || strcmp(now, "false") == 0 || strcmp(now, "none") == 0;
        if (wanted[0] ? strcmp(now, wanted) == 0 : !off) return FARM_OK;
    }
    format_flag(key->name, flag, sizeof flag);
    return farm_fail(err, FARM_E_USAGE, "%s %s has no effect: it needs %s; this run has %s=%s", flag, value, key->needs,
                     name, now);
}

static bool add_pair(yaml_document_t *document, int mapping, const char *key, const char *value) {
    const int k = yaml_document_add_scalar(document, NULL, (const yaml_char_t *)key, -1, YAML_ANY_SCALAR_STYLE),
              v = yaml_document_add_scalar(document, NULL, (const yaml_char_t *)value, -1, YAML_ANY_SCALAR_STYLE);
    return k && v && yaml_document_append_mapping_pair(document, mapping, k, v);
}

static bool add_pairs(yaml_document_t *document, const struct farm_recipe *recipe) {
    char text[FARM_RECIPE_PATH_BYTES];
    const struct farm_recipe_key *key;
    const int mapping = yaml_document_add_mapping(document, NULL, YAML_BLOCK_MAPPING_STYLE);
    bool complete = mapping;
    for (size_t i = 0; complete && (key = farm_recipe_key_at(recipe, i)); i++)
        if (farm_recipe_counts(recipe, i))
            complete = add_pair(document, mapping, key->name, farm_recipe_value(recipe, i, text, sizeof text));
    for (size_t i = 0; complete && i < recipe->option_count; i++) {
        snprintf(text, sizeof text, "env.%s", recipe->options[i].key);
        complete = add_pair(document, mapping, text, recipe->options[i].value);
    }
    return complete;
}

// Consumes the document, complete or not.
static bool write_document(yaml_emitter_t *emitter, const struct farm_recipe *recipe) {
    yaml_document_t document;
    if (!yaml_document_initialize(&document, NULL, NULL, NULL, 1, 1)) return false;
    if (add_pairs(&document, recipe)) return yaml_emitter_dump(emitter, &document) && yaml_emitter_close(emitter);
    yaml_document_delete(&document);
    return false;
}

char *farm_recipe_format(const struct farm_recipe *recipe, size_t *bytes) {
    enum { CAPACITY = 256 << 10 }; // 33 texts of 1,023 bytes, each byte escaped to at most 4, and short ones
    char *text = malloc(CAPACITY);
    yaml_emitter_t emitter;
    if (!text || !yaml_emitter_initialize(&emitter)) {
        free(text);
        return NULL;
    }
    yaml_emitter_set_output_string(&emitter, (unsigned char *)text, CAPACITY - 1, bytes);
    yaml_emitter_set_encoding(&emitter, YAML_UTF8_ENCODING);
    const bool complete = write_document(&emitter, recipe);
    yaml_emitter_delete(&emitter);
    if (!complete) {
        free(text);
        return NULL;
    }
    text[*bytes] = 0;
    return text;
}

// ---- shipped recipes and help ----

static bool name_file(const char *folder, const char *name, size_t length, const char *variant, const char *algo,
                      char *path, size_t path_bytes) {
    const int n =
        snprintf(path, path_bytes, "%s/%.*s%s%s%s.yaml", folder, (int)length, name, variant, algo[0] ? "_" : "", algo);
    return n > 0 && (size_t)n < path_bytes && access(path, F_OK) == 0;
}

bool farm_recipe_shipped(const char *folder, const char *env, const char *algo, const char *variant, char *path,
                         size_t path_bytes) {
    char name[64];
    const size_t whole = strlen(env), family = strcspn(env, "/");
    const size_t group = env[family] ? family + 1 + strcspn(env + family + 1, "-/") : whole;
    const bool any = strcmp(algo, "auto") == 0;
    if (whole >= sizeof name) return false;
    for (size_t i = 0; i <= whole; i++) name[i] = env[i] == '/' ? '_' : env[i];
    for (int k = any ? 3 : 0; k < 6; k++) {
        const size_t length = k % 3 == 0 ? whole : k % 3 == 1 ? group : family;
        const char *of = k < 3 ? algo : "";
        if (!name_file(folder, name, length, "", of, path, path_bytes)) continue;
        return !variant[0] || (k % 3 == 2 && name_file(folder, name, length, variant, of, path, path_bytes));
    }
    return false;
}

char *farm_recipe_shipped_keys(const struct farm_recipe *recipe, char *text, size_t text_bytes) {
    char value[FARM_RECIPE_PATH_BYTES];
    const struct farm_recipe_key *key;
    size_t used = 0;
    text[0] = 0;
    for (size_t i = 0; (key = farm_recipe_key_at(recipe, i)) && used < text_bytes; i++)
        if (recipe->layers[i] == FARM_LAYER_SHIPPED && farm_recipe_counts(recipe, i) &&
            strcmp(farm_recipe_value(recipe, i, value, sizeof value), key->default_text) != 0)
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%s: %s", used ? ", " : "", key->name, value);
    for (size_t i = 0; i < recipe->option_count && used < text_bytes; i++)
        if (recipe->options[i].layer == FARM_LAYER_SHIPPED)
            used += (size_t)snprintf(text + used, text_bytes - used, "%senv.%s: %s", used ? ", " : "",
                                     recipe->options[i].key, recipe->options[i].value);
    return text;
}

static void print_key(const struct farm_recipe_key *key, bool with_default) {
    char flag[48], default_text[96] = "";
    format_flag(key->name, flag, sizeof flag);
    if (with_default) snprintf(default_text, sizeof default_text, " [%s]", key->default_text);
    printf("  %-26s %s%s%s%s%s%s%s%s\n", flag, key->help, key->choices ? " (" : "", key->choices ? key->choices : "",
           key->choices ? ")" : "", key->needs ? " (needs " : "", key->needs ? key->needs : "", key->needs ? ")" : "",
           default_text);
}

void farm_recipe_print_help(const struct farm_recipe *recipe, enum farm_recipe_use use) {
    const struct farm_recipe_family *family;
    const bool all = use == FARM_USE_TRAIN;
    printf(all ? "\nrecipe keys, each also a line \"key: value\" of a recipe file (default in brackets):\n"
               : "\nrecipe keys:\n");
    for (size_t i = 0; i < OWN_KEYS; i++)
        if (all || keys[i].uses & use) print_key(&keys[i], all);
    printf("  %-26s %s\n", "--env.OPTION VALUE", "option of the environment, e.g. --env.noop_max 30 for ale/*");
    for (size_t f = 0; all && recipe->families && (family = recipe->families(f)); f++) {
        printf("\nkeys of --algo %s%s: %s\n", family->name, f ? "" : " (the default)", family->about);
        for (size_t k = 0; k < family->key_count; k++) print_key(&family->keys[k], true);
    }
}
