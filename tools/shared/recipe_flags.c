// See farm_recipe_cli.h.
#include "tools/shared/recipe_flags.h"

#include <stdio.h>

#include "algo/registry.h"
#include "base/paths.h"
#include "report/run_dir.h"

struct keys {
    struct farm_recipe *recipe;
    char names[FARM_RECIPE_KEYS_MAX][32]; // as flags
};

static void name_keys(struct keys *keys) {
    const struct farm_recipe_key *key;
    for (size_t i = 0; (key = farm_recipe_key_at(keys->recipe, i)); i++) {
        snprintf(keys->names[i], sizeof keys->names[i], "%s", key->name);
        for (char *at = keys->names[i]; *at; at++)
            if (*at == '_') *at = '-';
    }
}

static enum farm_status set_key(void *context, const char *name, const char *value, struct farm_error *err) {
    const struct keys *keys = context;
    return farm_recipe_set(keys->recipe, FARM_LAYER_FLAG, name, value, err);
}

static const char *key_name(void *context, size_t i) {
    const struct keys *keys = context;
    return farm_recipe_key_at(keys->recipe, i) ? keys->names[i] : NULL;
}

static void print_key_help(void *context) {
    const struct keys *keys = context;
    farm_recipe_print_help(keys->recipe);
}

enum farm_status farm_recipe_flags_parse(const struct farm_cli *cli, int argc, char **argv, const char **word,
                                         struct farm_recipe *recipe, bool *help, struct farm_error *err) {
    struct keys keys = {.recipe = recipe};
    struct farm_cli whole = *cli;
    whole.other = set_key;
    whole.other_name = key_name;
    whole.other_help = print_key_help;
    whole.context = &keys;
    farm_recipe_defaults(recipe, farm_algo_family_at);
    name_keys(&keys);
    enum farm_status status = farm_cli_parse(&whole, argc, argv, word, word ? 1 : 0, NULL, help, err);
    if (!status && *help) farm_cli_print_help(&whole);
    return status;
}

enum farm_status farm_recipe_flags_settle(struct farm_recipe *recipe, const char *file, const char *base,
                                          struct farm_error *err) {
    char path[FARM_RUN_PATH_MAX + 64], folder[FARM_RUN_PATH_MAX];
    enum farm_status status = file ? farm_recipe_load(recipe, FARM_LAYER_FILE, file, err) : FARM_OK;
    if (!base && farm_path_recipes(folder, sizeof folder) &&
        farm_recipe_shipped(folder, recipe->env, path, sizeof path))
        base = path;
    if (!status && base) status = farm_recipe_load(recipe, FARM_LAYER_SHIPPED, base, err);
    return status ? status : farm_recipe_settle(recipe, err);
}
