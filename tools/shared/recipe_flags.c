// See recipe_flags.h.
#include "tools/shared/recipe_flags.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "algo/registry.h"
#include "base/paths.h"
#include "report/run_dir.h"
#include "run/trains.h"
#include "tools/shared/command.h"

struct keys {
    struct farm_recipe *recipe;
    const char *program;
    enum farm_recipe_use use;
    char names[FARM_RECIPE_KEYS_MAX][32]; // as flags
};

static bool is_flag(const struct keys *keys, const struct farm_recipe_key *key) {
    return keys->use == FARM_USE_TRAIN || key->uses & keys->use;
}

static void copy_with(char *to, size_t bytes, const char *from, char old, char new) {
    snprintf(to, bytes, "%s", from);
    for (; *to; to++)
        if (*to == old) *to = new;
}

static void name_keys(struct keys *keys) {
    const struct farm_recipe_key *key;
    size_t count = 0;
    for (size_t i = 0; (key = farm_recipe_key_at(keys->recipe, i)); i++)
        if (is_flag(keys, key)) copy_with(keys->names[count++], sizeof keys->names[0], key->name, '_', '-');
}

static enum farm_status set_key(void *context, const char *name, const char *value, struct farm_error *err) {
    const struct keys *keys = context;
    char key[64];
    copy_with(key, sizeof key, strncmp(name, "no-", 3) == 0 ? name + 3 : name, '-', '_');
    const struct farm_recipe_key *found = farm_recipe_find(keys->recipe, key);
    char joined[2 * FARM_RECIPE_PATH_BYTES];
    if (found && value && found->type == FARM_RECIPE_LIST && farm_recipe_set_by(keys->recipe, key, FARM_LAYER_FLAG)) {
        snprintf(joined, sizeof joined, "%s,%s", (const char *)keys->recipe + found->offset, value);
        value = joined;
    }
    if (!found || is_flag(keys, found)) return farm_recipe_set(keys->recipe, FARM_LAYER_FLAG, name, value, err);
    return farm_fail(err, FARM_E_USAGE, "--%s has no effect in %s (%s --help lists those that have)", name,
                     keys->program, keys->program);
}

static const char *key_name(void *context, size_t i) {
    const struct keys *keys = context;
    return i < FARM_RECIPE_KEYS_MAX && keys->names[i][0] ? keys->names[i] : NULL;
}

static void print_key_help(void *context) {
    const struct keys *keys = context;
    farm_recipe_print_help(keys->recipe, keys->use);
}

bool farm_read_recipe_flags(const struct farm_cli *cli, enum farm_recipe_use use, int argc, char **argv,
                            const char **word, struct farm_recipe *recipe, int *exit_status) {
    struct keys keys = {.recipe = recipe, .program = cli->program, .use = use};
    struct farm_cli whole = *cli;
    whole.other = set_key;
    whole.other_name = key_name;
    whole.other_help = print_key_help;
    whole.context = &keys;
    farm_recipe_defaults(recipe, farm_algo_family_at);
    name_keys(&keys);
    return farm_read_flags(&whole, argc, argv, word, exit_status);
}

enum farm_status farm_recipe_flags_metadata(struct farm_recipe *recipe, enum farm_recipe_layer layer, unsigned uses,
                                            const struct farm_checkpoint_metadata *metadata, const char *path,
                                            struct farm_error *err) {
    static const char prefix[] = "recipe.";
    if (!farm_checkpoint_get(metadata, "recipe.env") || !farm_checkpoint_get(metadata, "recipe.net"))
        return farm_fail(err, FARM_E_FORMAT,
                         "%s: a safetensors file that farm train has not written (it holds no recipe)", path);
    farm_recipe_default_before(recipe);
    for (uint32_t i = 0; i < metadata->count; i++) {
        if (strncmp(metadata->keys[i], prefix, strlen(prefix)) != 0) continue;
        const char *name = metadata->keys[i] + strlen(prefix);
        const struct farm_recipe_key *key = farm_recipe_find(recipe, name);
        if (key ? uses && !(key->uses & uses) : strncmp(name, "env.", 4) != 0) continue;
        if (farm_recipe_set(recipe, layer, name, metadata->values[i], err))
            return farm_fail_in(err, FARM_E_FORMAT, "%s", path);
    }
    return FARM_OK;
}

static enum farm_status load_base(struct farm_recipe *recipe, const char *base, struct farm_error *err) {
    const char *ending = strrchr(base, '.');
    struct farm_checkpoint_metadata metadata;
    if (!ending || strcmp(ending, ".safetensors") != 0) return farm_recipe_load(recipe, FARM_LAYER_SHIPPED, base, err);
    enum farm_status status = farm_checkpoint_read_metadata(base, &metadata, err);
    if (status) return status;
    status = farm_recipe_flags_metadata(recipe, FARM_LAYER_SHIPPED, 0, &metadata, base, err);
    farm_checkpoint_metadata_free(&metadata);
    return status;
}

static bool is_same_file(const char *a, const char *b) {
    struct stat first, second;
    return !stat(a, &first) && !stat(b, &second) && first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

// Finds the shipped recipe (path, "": none) for the environment and the algorithm of `recipe`, over which `file` (NULL:
// none) lies, and the one for continuous actions. *file becomes NULL if it is this shipped recipe.
static enum farm_status find_base(struct farm_recipe *recipe, const char **file, char *path, size_t path_bytes,
                                  struct farm_error *err) {
    char folder[FARM_RUN_PATH_MAX], twin[2 * FARM_RUN_PATH_MAX];
    struct farm_recipe named = *recipe; // with the file's environment and algorithm
    enum farm_status status = *file ? farm_recipe_load(&named, FARM_LAYER_FILE, *file, err) : FARM_OK;
    path[0] = recipe->continuous[0] = 0;
    if (status) return status;
    status = farm_path_recipes(folder, sizeof folder, err);
    if (status == FARM_E_PERMISSION) return farm_fail_in(err, status, "shipped recipes");
    if (status || strcmp(named.base, "none") == 0) return FARM_OK;
    if (!farm_recipe_shipped(folder, named.env, named.algo, false, path, path_bytes)) path[0] = 0;
    if (*file) {
        const char *slash = strrchr(*file, '/');
        snprintf(twin, sizeof twin, "%s/%s", folder, slash ? slash + 1 : *file);
        if (is_same_file(*file, path))
            *file = NULL;
        else if (is_same_file(*file, twin))
            path[0] = 0;
    }
    if (!path[0] ||
        !farm_recipe_shipped(folder, named.env, named.algo, true, recipe->continuous, sizeof recipe->continuous))
        recipe->continuous[0] = 0;
    return FARM_OK;
}

enum farm_status farm_recipe_flags_settle(struct farm_recipe *recipe, const char *file, const char *base,
                                          struct farm_error *err) {
    char path[FARM_RUN_PATH_MAX + 64] = "";
    if (base) farm_recipe_default_before(recipe);
    enum farm_status status = base ? FARM_OK : find_base(recipe, &file, path, sizeof path, err);
    if (!status && file) status = farm_recipe_load(recipe, FARM_LAYER_FILE, file, err);
    if (!base && path[0]) base = path;
    if (!status && base) status = load_base(recipe, base, err);
    snprintf(recipe->under, sizeof recipe->under, "%s", file ? path : "");
    snprintf(recipe->base, sizeof recipe->base, "none"); // it is whole now
    return status ? status : farm_recipe_settle(recipe, err);
}

bool farm_recipe_flags_train(const char *name, const struct farm_env_spec *spec, struct farm_error *err) {
    struct farm_recipe recipe;
    struct farm_net_io io;
    farm_recipe_defaults(&recipe, farm_algo_family_at);
    return !farm_recipe_set(&recipe, FARM_LAYER_FLAG, "env", name, err) &&
           !farm_recipe_flags_settle(&recipe, NULL, NULL, err) && !farm_run_trains(spec, &recipe, &io, err);
}
