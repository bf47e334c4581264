// See registry.h.
#include "envs/registry.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cli.h"
#include "base/confine.h"
#include "base/log.h"
#include "base/paths.h"
#include "envs/native/native.h"
#include "envs/plugin.h"
#include "envs/python.h"

enum { NAMES_MAX = 4096 };

static const char plugin_prefix[] = "plugin:", libenv_prefix[] = "libenv:";

// Families of shipped plug-ins, built if their foreign library exists.
static const char *const plugin_families[] = {"procgen", "mujoco"};
enum { PLUGIN_FAMILIES = sizeof plugin_families / sizeof *plugin_families };

static bool starts_with(const char *name, const char *prefix) {
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

// ---- plug-ins ----

// Probes `name` of env->plugin (NULL: its first). *misses_name (may be NULL): a valid file without that environment.
static enum farm_status probe_env(struct farm_env *env, const char *name, bool *misses_name, struct farm_error *err) {
    struct farm_probe_answer *answer = malloc(sizeof *answer);
    if (!answer) return farm_fail_errno(err, FARM_E_LIMIT, "plug-in %s", env->plugin);
    env->kind = FARM_ENV_PLUGIN;
    enum farm_status status =
        farm_probe_plugin(env->plugin, name, env->options, env->option_count, env->start_s, env->confined, answer, err);
    if (!status) env->spec = answer->spec;
    if (!status) memcpy(env->name, answer->name, sizeof env->name);
    if (misses_name) *misses_name = answer->misses_name;
    free(answer);
    if (status == FARM_E_NOT_FOUND) status = FARM_E_USAGE; // the user gave the name
    if (status == FARM_E_DEAD) status = FARM_E_FORMAT;     // the file is at fault
    if (status && err) err->status = status;
    return status;
}

// Cuts "PATH[:NAME]" at the last colon if the whole is not a path. Returns NAME or NULL.
static const char *split_name(char *text) {
    const char *name = farm_path_cut_name(text);
    char *last = name || access(text, F_OK) == 0 ? NULL : strrchr(text, ':');
    if (!last) return name;
    *last = 0;
    return last + 1;
}

// Sets env->lasting of an existing file; name (may be NULL): the environment in it.
static void set_lasting_name(struct farm_env *env, const char *prefix, const char *file, const char *name) {
    char absolute[PATH_MAX];
    if (!realpath(file, absolute)) return;
    snprintf(env->lasting, sizeof env->lasting, "%s%s%s%s", prefix, absolute, name ? ":" : "", name ? name : "");
}

static enum farm_status find_user_plugin(const char *text, struct farm_env *env, struct farm_error *err) {
    if (strlen(text) >= sizeof env->plugin) return farm_fail(err, FARM_E_USAGE, "plugin:%.80s...: path too long", text);
    snprintf(env->plugin, sizeof env->plugin, "%s", text);
    const char *name = split_name(env->plugin);
    if (!env->plugin[0] || (name && !name[0]))
        return farm_fail(err, FARM_E_USAGE, "'plugin:%.200s' names no plug-in: plugin:PATH.so or plugin:PATH.so:NAME",
                         text);
    set_lasting_name(env, plugin_prefix, env->plugin, name);
    return probe_env(env, name, NULL, err);
}

// Sets env->plugin to envs/FAMILY.so. FARM_E_NOT_FOUND: it does not exist. FARM_E_PERMISSION.
static enum farm_status find_shipped(const char *family, size_t length, struct farm_env *env, struct farm_error *err) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    char folder[PATH_MAX - 256];
    if (!length || length > 64 || strspn(family, letters) < length)
        return farm_fail(err, FARM_E_NOT_FOUND, "not a family: %.64s", family);
    enum farm_status status = farm_path_envs(folder, sizeof folder, err);
    if (status) return status;
    snprintf(env->plugin, sizeof env->plugin, "%s/%.*s.so", folder, (int)length, family);
    return farm_path_check(env->plugin, R_OK, err);
}

static enum farm_status find_libenv(const char *path, struct farm_env *env, struct farm_error *err) {
    if (!path[0] || strlen(path) > sizeof env->lib - 8)
        return farm_fail(err, FARM_E_USAGE, "'libenv:%.200s' names no library: libenv:PATH.so", path);
    if (access(path, R_OK)) return farm_fail_errno(err, FARM_E_USAGE, "libenv:%s", path);
    const enum farm_status status = find_shipped("libenv", strlen("libenv"), env, err);
    if (status)
        return farm_fail_in(err, status, "libenv:* needs the plug-in libenv.so (%s)",
                            farm_path_choose("`make` builds it", FARM_PATH_INSTALL_ALL " adds it"));
    snprintf(env->lib, sizeof env->lib, "%s%s", strchr(path, '/') ? "" : "./", path);
    env->options[env->option_count++] = (struct farm_env_option){"lib", env->lib};
    set_lasting_name(env, libenv_prefix, env->lib, NULL);
    return probe_env(env, "libenv/any", NULL, err);
}

// ---- by name ----

// A similar name: "ale/Pong" for "Pong", "native/catch" for "native/cacth"; or NULL.
static const char *nearest_name(const struct farm_env_list *list, const char *name) {
    const char *names[NAMES_MAX] = {NULL};
    size_t count = list->count < NAMES_MAX ? list->count : NAMES_MAX;
    bool whole = strchr(name, '/') != NULL;
    for (size_t i = 0; i < count; i++) {
        const char *slash = strchr(list->names[i], '/');
        names[i] = whole || !slash ? list->names[i] : slash + 1;
    }
    const char *near = farm_nearest(name, names, count);
    for (size_t i = 0; near && i < count; i++)
        if (names[i] == near) return list->names[i];
    return NULL;
}

static const char *plugin_remedy(void) {
    return farm_path_choose("its plug-in is missing: `make deps`, then `make`, installs it if its library is available",
                            "its plug-in is missing: " FARM_PATH_INSTALL_ALL " adds it if its library is available");
}

// How to install a known family; "" for others.
static const char *remedy_for(const char *name) {
    for (size_t i = 0; i < PLUGIN_FAMILIES; i++)
        if (starts_with(name, plugin_families[i]) && strchr("/", name[strlen(plugin_families[i])]))
            return plugin_remedy();
    return "";
}

// A name that reads like an id of Gymnasium, where Gymnasium is. False: it does not.
static bool fail_for_id(const char *name, const struct farm_env_list *list, double start_s, struct farm_error *err) {
    struct farm_env *env = NULL;
    const char *version = strrchr(name, '-');
    const bool here = list->count && starts_with(list->names[list->count - 1], "gym/");
    if (!here || !version || version[1] != 'v' || !isdigit((unsigned char)version[2]) ||
        !(env = calloc(1, sizeof *env)))
        return false;
    snprintf(env->name, sizeof env->name, "gym/%.90s", name);
    env->start_s = start_s;
    if (!farm_env_find_python(env, err)) farm_fail(err, FARM_E_USAGE, "did you mean '%s'?", env->name);
    farm_fail_in(err, FARM_E_USAGE, "unknown environment '%s'", name);
    free(env);
    return true;
}

static enum farm_status fail_unknown(const char *name, bool family_here, double start_s, struct farm_error *err) {
    struct farm_env_list list;
    enum farm_status status = farm_env_list_make(&list, start_s, err);
    const char *near = status ? NULL : nearest_name(&list, name), *remedy = family_here ? "" : remedy_for(name);
    if (!status && !near && !family_here && !remedy[0] && fail_for_id(name, &list, start_s, err)) status = FARM_E_USAGE;
    if (!status)
        status = farm_fail(err, FARM_E_USAGE, "unknown environment '%s'%s%s%s (farm envs lists what can run here%s%s)",
                           name, near ? ": did you mean '" : "", near ? near : "", near ? "'?" : "",
                           remedy[0] ? "; " : "", remedy);
    farm_env_list_free(&list);
    return status;
}

static enum farm_status find_by_name(struct farm_env *env, struct farm_error *err) {
    env->kind = FARM_ENV_NATIVE;
    env->api = farm_native_env_find(env->name);
    if (env->api) return farm_plugin_spec(env->api, env->options, env->option_count, &env->spec, err);
    if (farm_env_is_python(env->name)) return farm_env_find_python(env, err);
    const char *slash = strchr(env->name, '/');
    bool misses_name = false;
    enum farm_status status = slash ? find_shipped(env->name, (size_t)(slash - env->name), env, err) : FARM_E_NOT_FOUND;
    if (status == FARM_E_PERMISSION) return status;
    const bool here = status == FARM_OK;
    if (here) status = probe_env(env, env->name, &misses_name, err);
    return here && !misses_name ? status : fail_unknown(env->name, here, env->start_s, err);
}

bool farm_env_names_file(const char *name) {
    return starts_with(name, plugin_prefix) || starts_with(name, libenv_prefix);
}

bool farm_env_names_code(const char *name) {
    return farm_env_names_file(name) || starts_with(name, "libenv/") || starts_with(name, "pettingzoo/") ||
           (starts_with(name, "gym/") && strchr(name, ':'));
}

struct farm_env_option farm_env_key(const struct farm_recipe *recipe, size_t i) {
    return i == 0   ? (struct farm_env_option){"obs_keep", recipe->obs_keep}
           : i == 1 ? (struct farm_env_option){"obs_drop", recipe->obs_drop}
                    : (struct farm_env_option){"wrap", recipe->wrap};
}

enum farm_status farm_env_find(const struct farm_recipe *recipe, struct farm_env *env, struct farm_error *err) {
    const char *name = recipe->env;
    char lacks[256];
    memset(env, 0, sizeof *env);
    snprintf(env->lasting, sizeof env->lasting, "%s", name);
    for (size_t i = 0; i < recipe->option_count; i++)
        env->options[i] = (struct farm_env_option){recipe->options[i].key, recipe->options[i].value};
    env->option_count = recipe->option_count;
    env->start_s = recipe->start_seconds;
    env->confined = recipe->confine;
    if (env->confined && farm_confine_lacks(lacks, sizeof lacks)) farm_log_warn("--confine: %s", lacks);
    for (size_t i = 0; i < FARM_ENV_KEYS; i++) {
        const struct farm_env_option key = farm_env_key(recipe, i);
        if (strcmp(key.value, "none") == 0) continue;
        const bool chooses = strncmp(key.key, "obs_", 4) == 0;
        if (!starts_with(name, "gym/") && !starts_with(name, "pettingzoo/") &&
            !(chooses && starts_with(name, "envpool/")))
            return farm_fail(err, FARM_E_USAGE,
                             "%s '%.100s': only gym/*, pettingzoo/*%s take it, not %.200s (`%s: none` removes it)",
                             key.key, key.value, chooses ? ", envpool/*" : "", name, key.key);
        env->options[env->option_count++] = key;
    }
    if (starts_with(name, plugin_prefix)) return find_user_plugin(name + strlen(plugin_prefix), env, err);
    if (starts_with(name, libenv_prefix)) return find_libenv(name + strlen(libenv_prefix), env, err);
    if (strlen(name) >= sizeof env->name)
        return farm_fail(err, FARM_E_USAGE, "unknown environment '%.80s...': names have less than %zu characters", name,
                         sizeof env->name);
    snprintf(env->name, sizeof env->name, "%s", name);
    return find_by_name(env, err);
}

const char *farm_env_life_option(const char *name) {
    if (starts_with(name, "ale/") || starts_with(name, "envpool/")) return "episodic_life";
    return strcmp(name, "native/breakout") == 0 ? "life_loss" : NULL;
}

// ---- the list ----

static bool add_name(struct farm_env_list *list, const char *prefix, const char *name) {
    char(*names)[FARM_ENV_NAME_BYTES] = realloc(list->names, (list->count + 1) * sizeof *names);
    if (!names) return false;
    list->names = names;
    snprintf(names[list->count++], sizeof *names, "%s%s", prefix, name);
    return true;
}

// `family` may end with a slash.
static void add_missing(struct farm_env_list *list, const char *family, const char *why) {
    const size_t used = strlen(list->missing);
    snprintf(list->missing + used, sizeof list->missing - used, "%s%.*s/*: %.400s", used ? "\n" : "",
             (int)strcspn(family, "/"), family, why);
}

// False: there is no such family in Python.
static bool add_python(struct farm_env_list *list, size_t family, double start_s) {
    struct farm_error err = {0};
    const char *prefix;
    char *names = NULL;
    if (farm_env_python_names(family, start_s, &prefix, &names, &err)) add_missing(list, prefix, err.message);
    char *rest = names;
    for (char *name; (name = strsep(&rest, "\n")) && list->count < NAMES_MAX;)
        if (name[0] && !add_name(list, prefix, name)) break;
    free(names);
    return prefix != NULL;
}

// The environments of a shipped plug-in, if its first one can run.
static void add_plugin(struct farm_env_list *list, const char *family, const char *path, double start_s) {
    struct farm_probe_answer *answer = malloc(sizeof *answer);
    struct farm_error err = {0};
    if (!answer) return;
    enum farm_status status = farm_probe_plugin(path, NULL, NULL, 0, start_s, false, answer, &err);
    if (status) add_missing(list, family, err.message);
    for (uint32_t i = 0; !status && i < answer->name_count && list->count < NAMES_MAX; i++)
        if (!add_name(list, "", answer->names[i])) break;
    free(answer);
}

static int is_shared_object(const struct dirent *entry) {
    const size_t length = strlen(entry->d_name);
    return length > 3 && length < 64 && strcmp(entry->d_name + length - 3, ".so") == 0;
}

// Leaves out libenv.so, which needs a library: libenv:PATH.
static void add_plugins(struct farm_env_list *list, double start_s) {
    char folder[PATH_MAX - 256], path[PATH_MAX];
    struct dirent **entries = NULL;
    bool found[PLUGIN_FAMILIES] = {false};
    struct farm_error err;
    const enum farm_status there = farm_path_envs(folder, sizeof folder, &err);
    const int count = !there ? scandir(folder, &entries, is_shared_object, alphasort) : 0;
    for (int i = 0; i < count; i++) {
        char *family = entries[i]->d_name;
        snprintf(path, sizeof path, "%s/%s", folder, family);
        family[strlen(family) - 3] = 0;
        for (size_t f = 0; f < PLUGIN_FAMILIES; f++)
            if (strcmp(family, plugin_families[f]) == 0) found[f] = true;
        if (strcmp(family, "libenv") != 0) add_plugin(list, family, path, start_s);
        free(entries[i]);
    }
    free(entries);
    for (size_t f = 0; f < PLUGIN_FAMILIES; f++)
        if (!found[f])
            add_missing(list, plugin_families[f], there == FARM_E_PERMISSION ? err.message : plugin_remedy());
}

enum farm_status farm_env_list_make(struct farm_env_list *list, double start_s, struct farm_error *err) {
    struct farm_recipe standard;
    memset(list, 0, sizeof *list);
    farm_recipe_defaults(&standard, NULL);
    if (!(start_s > 0)) start_s = standard.start_seconds;
    const struct farm_env_api *api;
    for (size_t i = 0; (api = farm_native_env_at(i)); i++)
        if (!add_name(list, "", api->name)) return farm_fail_errno(err, FARM_E_LIMIT, "list of environments");
    add_plugins(list, start_s);
    for (size_t i = 0; add_python(list, i, start_s);) i++;
    return FARM_OK;
}

void farm_env_list_free(struct farm_env_list *list) {
    free(list->names);
    *list = (struct farm_env_list){0};
}
