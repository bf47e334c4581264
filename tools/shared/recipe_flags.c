// See recipe_flags.h.
#include "tools/shared/recipe_flags.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "algo/registry.h"
#include "base/file.h"
#include "base/format.h"
#include "base/paths.h"
#include "envs/registry.h"
#include "report/run_dir.h"
#include "run/bridges.h"
#include "run/offer.h"
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

// ---- files that others may have written ----

// The flag of the layer's first key that makes code run or names a file; NULL: none does. Options of our own families
// in C and of ale/* are numbers and choices, whatever their text.
static const char *find_code(const struct farm_recipe *recipe, enum farm_recipe_layer layer, const char **value,
                             char flag[72]) {
    const bool plain = strncmp(recipe->env, "native/", 7) == 0 || strncmp(recipe->env, "ale/", 4) == 0;
    *value = recipe->env;
    if (recipe->layers[FARM_KEY_env] == layer && farm_env_names_code(*value)) return "env";
    *value = recipe->wrap;
    if (recipe->layers[FARM_KEY_wrap] == layer && strcmp(*value, "none") != 0) return "wrap";
    for (size_t i = 0; i < recipe->option_count && !plain; i++) {
        *value = recipe->options[i].value;
        snprintf(flag, 72, "env.%s", recipe->options[i].key);
        if (recipe->options[i].layer == layer && (strcmp(flag, "env.lib") == 0 || !farm_run_offer_is_data(*value)))
            return flag;
    }
    return NULL;
}

// The folder that holds the file counts as well, and the run's. A mount may give all files in it the folder's owner.
static enum farm_status check_own(int fd, struct farm_error *err) {
    char link[32], path[PATH_MAX];
    struct stat file, folder;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0 || path[0] != '/' || fstat(fd, &file)) return farm_fail_errno(err, FARM_E_PERMISSION, "%s", link);
    path[length] = 0;
    enum farm_status status = farm_file_check_own(fd, path, err);
    *strrchr(path, '/') = 0;
    if (!stat(path, &folder) && file.st_uid == folder.st_uid && !(file.st_mode & 022)) status = FARM_OK;
    if (!status) status = farm_folder_check_own(path[0] ? path : "/", true, err);
    char *name = strrchr(path, '/');
    if (status || !name || strcmp(name, "/checkpoints") != 0) return status;
    *name = 0;
    return farm_folder_check_own(path[0] ? path : "/", true, err);
}

// A name that loads code comes from a flag, or from a file that is this user's alone.
static enum farm_status check_code(const struct farm_recipe *recipe, enum farm_recipe_layer layer, int fd,
                                   const char *path, struct farm_error *err) {
    struct farm_error why;
    const char *value;
    char text[72];
    const char *flag = find_code(recipe, layer, &value, text);
    if (!flag || !check_own(fd, &why)) return FARM_OK;
    return farm_fail(err, FARM_E_PERMISSION, "%s names %s%s%.200s; add --%s to play it, if its code may run here (%s)",
                     path, strcmp(flag, "env") == 0 ? "" : flag, strcmp(flag, "env") == 0 ? "" : " ", value, flag,
                     why.message);
}

enum farm_status farm_recipe_flags_metadata(struct farm_recipe *recipe, enum farm_recipe_layer layer, unsigned uses,
                                            const struct farm_checkpoint_metadata *metadata, int fd, const char *path,
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
    return check_code(recipe, layer, fd, path, err);
}

// A run's own recipe, or a checkpoint that holds it.
static enum farm_status load_base(struct farm_recipe *recipe, const char *base, struct farm_error *err) {
    const char *ending = strrchr(base, '.');
    struct farm_checkpoint_metadata metadata;
    const int fd = open(base, O_PATH | O_CLOEXEC);
    enum farm_status status;
    if (!ending || strcmp(ending, ".safetensors") != 0) {
        status = farm_recipe_load(recipe, FARM_LAYER_SHIPPED, base, err);
        if (!status) status = check_code(recipe, FARM_LAYER_SHIPPED, fd, base, err);
    } else if (!(status = farm_checkpoint_read_metadata(base, &metadata, err))) {
        status = farm_recipe_flags_metadata(recipe, FARM_LAYER_SHIPPED, 0, &metadata, fd, base, err);
        farm_checkpoint_metadata_free(&metadata);
    }
    if (fd >= 0) close(fd);
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
    path[0] = recipe->continuous[0] = recipe->pictures[0] = 0;
    if (status) return status;
    status = farm_path_recipes(folder, sizeof folder, err);
    if (status == FARM_E_PERMISSION) return farm_fail_in(err, status, "shipped recipes");
    if (status || strcmp(named.base, "none") == 0) return FARM_OK;
    if (!farm_recipe_shipped(folder, named.env, named.algo, "", path, path_bytes)) path[0] = 0;
    if (*file) {
        const char *slash = strrchr(*file, '/');
        snprintf(twin, sizeof twin, "%s/%s", folder, slash ? slash + 1 : *file);
        if (is_same_file(*file, path))
            *file = NULL;
        else if (is_same_file(*file, twin))
            path[0] = 0;
    }
    char *const over[] = {recipe->continuous, recipe->pictures};
    for (size_t i = 0; i < 2; i++)
        if (!path[0] || !farm_recipe_shipped(folder, named.env, named.algo, i ? "_frames" : "_continuous", over[i],
                                             sizeof recipe->continuous))
            over[i][0] = 0;
    return FARM_OK;
}

enum farm_status farm_recipe_flags_settle(struct farm_recipe *recipe, const char *file, const char *base,
                                          struct farm_error *err) {
    char path[FARM_RUN_PATH_MAX + 64] = "";
    if (base) farm_recipe_default_before(recipe);
    enum farm_status status = base ? FARM_OK : find_base(recipe, &file, path, sizeof path, err);
    if (!status && file) status = farm_recipe_load(recipe, FARM_LAYER_FILE, file, err);
    if (!status && path[0]) status = farm_recipe_load(recipe, FARM_LAYER_SHIPPED, path, err);
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

// ---- other machines' actors ----

enum farm_status farm_listen_flags_settle(struct farm_listen_flags *flags, struct farm_error *err) {
    struct farm_run_listen *listen = &flags->request;
    if (!listen->address) {
        if (!listen->key && !flags->insecure && !listen->engine && !flags->expect_actors && !flags->bridges)
            return FARM_OK;
        return farm_fail(
            err, FARM_E_USAGE,
            "--key, --insecure, --expect-actors, --bridges and --bridge-engine go with --listen ADDR:PORT");
    }
    if (flags->expect_actors < 0 || flags->expect_actors > FARM_PLAN_ACTORS_MAX)
        return farm_fail(err, FARM_E_USAGE, "--expect-actors %lld: between 0 and %d", (long long)flags->expect_actors,
                         FARM_PLAN_ACTORS_MAX);
    if (flags->bridges < 0 || flags->bridges > FARM_RUN_BRIDGES_MAX)
        return farm_fail(err, FARM_E_USAGE, "--bridges %lld: between 1 and %d", (long long)flags->bridges,
                         FARM_RUN_BRIDGES_MAX);
    if (listen->key && flags->insecure)
        return farm_fail(err, FARM_E_USAGE, "--key FILE encrypts, --insecure does not: one of them");
    if (listen->key && access(listen->key, F_OK) != 0)
        return farm_fail(err, FARM_E_USAGE, "--key %s: there is no such file; `farm bridge keygen %s` makes one",
                         listen->key, farm_format_word(listen->key).text);
    listen->expect = (uint32_t)flags->expect_actors;
    listen->bridges = (uint32_t)flags->bridges;
    if (listen->key || flags->insecure) return FARM_OK;
    return farm_fail(
        err, FARM_E_USAGE,
        "--listen %s needs --key FILE (`farm bridge keygen FILE` makes it, and FILE.node for the nodes), or "
        "--insecure on a loopback or private address",
        listen->address);
}
