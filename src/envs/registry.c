// See registry.h.
#include "envs/registry.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cli.h"
#include "base/json.h"
#include "base/log.h"
#include "base/paths.h"
#include "base/program.h"
#include "base/thread.h"
#include "envs/native/native.h"
#include "envs/plugin.h"

enum { PYTHON_LIMIT_S = 30, SETUP_LIMIT_S = 3600, NAMES_MAX = 4096 };

static const char plugin_prefix[] = "plugin:", libenv_prefix[] = "libenv:";

// Families of shipped plug-ins, built if their foreign library exists.
static const char *const plugin_families[] = {"procgen", "mujoco"};

// Environments of our Python programs: `python -m MODULE --env NAME` plays PREFIX/NAME. A program's messages begin with
// its label.
static const struct farm_env_python {
    const char *prefix, *module, *label;
} pythons[] = {{"ale/", "actorfarm.ale_actor", "ale_actor: "}, {"gym/", "actorfarm.gym_actor", "gym_actor: "}};
enum { PYTHONS = sizeof pythons / sizeof *pythons };

// ---- running a Python program ----

// This process's environment with our folder first in PYTHONPATH and one thread per library. The caller frees it: one
// block. NULL: no memory.
static char **python_environment(const char *pythonpath) {
    static const char *const threads[] = {"OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1"};
    static const char path[] = "PYTHONPATH=";
    enum { THREADS = sizeof threads / sizeof *threads };
    const char *users = getenv("PYTHONPATH");
    size_t count = 0, kept = 0;
    while (environ[count]) count++;
    const bool joined = users && users[0]; // an empty element would be the present folder
    const size_t path_bytes = sizeof path + strlen(pythonpath) + (joined ? 1 + strlen(users) : 0);
    char **environment = malloc((count + THREADS + 2) * sizeof *environment + path_bytes);
    if (!environment) return NULL;
    for (size_t i = 0; i < count; i++) {
        bool replaced = strncmp(environ[i], path, strlen(path)) == 0;
        for (size_t t = 0; t < THREADS; t++)
            replaced |= strncmp(environ[i], threads[t], strcspn(threads[t], "=") + 1) == 0;
        if (!replaced) environment[kept++] = environ[i];
    }
    for (size_t t = 0; t < THREADS; t++) environment[kept++] = (char *)threads[t];
    environment[kept] = (char *)(environment + count + THREADS + 2);
    snprintf(environment[kept++], path_bytes, "%s%s%s%s", path, pythonpath, joined ? ":" : "", joined ? users : "");
    environment[kept] = NULL;
    return environment;
}

// What mends the Python environment.
static const char *remedy(void) {
    const char *chosen = getenv("FARM_PYTHON");
    if (chosen && chosen[0]) return " (FARM_PYTHON must name an interpreter that has ale-py and gymnasium)";
    return farm_path_choose(" (`make deps`, then `make`, installs it)", " (`farm setup` installs it)");
}

// Runs the program and returns its stdout, which the caller frees. FARM_E_USAGE with the program's message if it ends
// with that status.
static enum farm_status run_python(const struct farm_env *env, char *const *argv, char **answer,
                                   struct farm_error *err) {
    char **environment = python_environment(env->pythonpath);
    const struct farm_program program = {.path = env->python,
                                         .argv = argv,
                                         .environment = environment,
                                         .label = env->program->label,
                                         .apart = true, // the caller handles Ctrl-C
                                         .limit_s = PYTHON_LIMIT_S};
    enum farm_status status = environment ? farm_program_read(&program, answer, err)
                                          : farm_fail_errno(err, FARM_E_LIMIT, "cannot run %s", env->python);
    free(environment);
    if (status == FARM_E_NOT_FOUND) return farm_fail_in(err, status, "the Python part does not run%s", remedy());
    return status && status != FARM_E_USAGE ? farm_fail_in(err, status, "%s -m %s", env->python, env->program->module)
                                            : status;
}

static bool is_ending(void *unused) {
    return farm_ending_pending();
}

enum farm_status farm_env_setup(char *python, size_t python_bytes, struct farm_error *err) {
    char found[PATH_MAX], script[PATH_MAX], bash[] = "bash", *argv[] = {bash, script, NULL}, *answer = NULL;
    const struct farm_program program = {.path = "/bin/bash",
                                         .argv = argv,
                                         .environment = environ,
                                         .label = "farm setup: ",
                                         .apart = true,
                                         .limit_s = SETUP_LIMIT_S,
                                         .stop = is_ending};
    const sigset_t ending = farm_ending_signals();
    sigset_t before;
    if (farm_path_setup(found, sizeof found, err) || !realpath(found, script))
        return farm_fail(err, FARM_E_UNSUPPORTED,
                         "this copy cannot install Python packages (`make deps` does so for a build folder)");
    farm_log_warn(
        "installing what is missing of the Python packages that ale/* and gym/* need (about 450 MB from PyPI, "
        "once; %.*s/requirements.txt)",
        (int)(strrchr(script, '/') - script), script);
    sigprocmask(SIG_BLOCK, &ending, &before);
    enum farm_status status = farm_program_read(&program, &answer, err);
    const int signal = status ? sigtimedwait(&ending, NULL, &(struct timespec){0}) : 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (signal > 0)
        return farm_fail(err, FARM_E_INTERRUPTED, "the Python packages are missing: SIG%s stopped `farm setup`",
                         sigabbrev_np(signal));
    if (status) return farm_fail_in(err, FARM_E_IO, "the Python packages are missing (`farm setup` tries again)");
    free(answer);
    return farm_path_python(python, python_bytes, err);
}

// make: on first need, an installed copy makes its Python environment.
static enum farm_status find_python(struct farm_env *env, bool make, struct farm_error *err) {
    const char *chosen = getenv("FARM_PYTHON");
    enum farm_status status = farm_path_python(env->python, sizeof env->python, err);
    if (status == FARM_E_NOT_FOUND && make && farm_path_installed() && !(chosen && chosen[0])) {
        status = farm_env_setup(env->python, sizeof env->python, err);
        if (status) return status;
    }
    if (!status) status = farm_path_package(env->pythonpath, sizeof env->pythonpath, err);
    if (!status) return FARM_OK;
    return farm_fail_in(err, status, "no Python environment%s", status == FARM_E_NOT_FOUND ? remedy() : "");
}

// ---- environments in Python ----

static bool parse_field(json_t *entry, struct farm_field_spec *field) {
    const char *name, *dtype;
    json_int_t choices = 0;
    json_t *dims;
    if (json_unpack(entry, "{s:s, s:s, s:o, s?I}", "name", &name, "dtype", &dtype, "dims", &dims, "choices", &choices))
        return false;
    snprintf(field->name, sizeof field->name, "%s", name);
    field->dtype = strcmp(dtype, "u8") == 0    ? FARM_U8
                   : strcmp(dtype, "i32") == 0 ? FARM_I32
                   : strcmp(dtype, "f32") == 0 ? FARM_F32
                                               : 0;
    field->rank = (uint32_t)json_array_size(dims);
    field->choices = (uint32_t)choices;
    if (field->rank < 1 || field->rank > FARM_FIELD_RANK_MAX || choices < 0 || choices > UINT32_MAX) return false;
    for (uint32_t i = 0; i < field->rank; i++) field->dims[i] = (uint32_t)json_integer_value(json_array_get(dims, i));
    return true;
}

static bool parse_action(json_t *entry, struct farm_action_spec *action) {
    const char *kind;
    int dims;
    if (json_unpack(entry, "{s:s, s:i}", "kind", &kind, "dims", &dims)) return false;
    action->kind = strcmp(kind, "discrete") == 0         ? FARM_ACTION_DISCRETE
                   : strcmp(kind, "multi_discrete") == 0 ? FARM_ACTION_MULTI_DISCRETE
                                                         : FARM_ACTION_CONTINUOUS;
    action->dims = (uint32_t)dims;
    if (dims < 1 || dims > FARM_ACTION_DIMS_MAX) return false;
    for (size_t i = 0; i < action->dims; i++) { // missing arrays read as 0
        action->sizes[i] = (uint32_t)json_integer_value(json_array_get(json_object_get(entry, "sizes"), i));
        action->low[i] = (float)json_number_value(json_array_get(json_object_get(entry, "low"), i));
        action->high[i] = (float)json_number_value(json_array_get(json_object_get(entry, "high"), i));
    }
    return true;
}

static bool parse_spec(const char *text, struct farm_env_spec *spec, struct farm_error *err) {
    json_t *document = farm_json_parse(text, strlen(text), "the output of --spec", err), *obs, *action;
    int repeat;
    if (!document) return false;
    memset(spec, 0, sizeof *spec);
    bool good =
        json_unpack(document, "{s:o, s:o, s:i}", "obs", &obs, "action", &action, "frames_per_step", &repeat) == 0 &&
        json_array_size(obs) >= 1 && json_array_size(obs) <= FARM_OBS_FIELDS_MAX && repeat > 0 &&
        parse_action(action, &spec->action);
    for (size_t i = 0; good && i < json_array_size(obs); i++) good = parse_field(json_array_get(obs, i), &spec->obs[i]);
    if (good) {
        spec->obs_count = (uint32_t)json_array_size(obs);
        spec->frames_per_step = (uint32_t)repeat;
    }
    json_decref(document);
    return good ? !farm_plugin_check_spec(spec, err) : (farm_fail(err, FARM_E_FORMAT, "--spec printed no spec"), false);
}

static const struct farm_env_python *python_of(const char *name) {
    for (size_t i = 0; i < PYTHONS; i++)
        if (strncmp(name, pythons[i].prefix, strlen(pythons[i].prefix)) == 0 && name[strlen(pythons[i].prefix)])
            return &pythons[i];
    return NULL;
}

bool farm_env_is_python(const char *name) {
    return python_of(name) != NULL;
}

struct program_texts {
    char numbers[FARM_ENV_ARGUMENTS_MAX][24];
    char options[FARM_RECIPE_OPTIONS_MAX + 1][sizeof((struct farm_recipe_option *)0)->key + FARM_RECIPE_PATH_BYTES];
};

enum farm_status farm_env_program_make(const struct farm_env *env, const char *module,
                                       const struct farm_env_argument *arguments, size_t count,
                                       struct farm_env_program *program, struct farm_error *err) {
    struct program_texts *texts = calloc(1, sizeof *texts);
    program->environment = texts ? python_environment(env->pythonpath) : NULL;
    program->texts = texts;
    if (!program->environment) return farm_fail_errno(err, FARM_E_LIMIT, "the command line for %s", env->name);
    const char *name = module ? env->name : env->name + strlen(env->program->prefix);
    const char *const words[] = {env->python, "-m", module ? module : env->program->module, "--env", name};
    size_t used = 0;
    for (; used < sizeof words / sizeof *words; used++) program->argv[used] = (char *)words[used];
    for (size_t i = 0; i < count; i++) {
        snprintf(texts->numbers[i], sizeof texts->numbers[i], "%llu", (unsigned long long)arguments[i].number);
        program->argv[used++] = (char *)arguments[i].flag;
        if (!arguments[i].alone)
            program->argv[used++] = arguments[i].text ? (char *)arguments[i].text : texts->numbers[i];
    }
    for (size_t i = 0; i < env->option_count; i++) {
        snprintf(texts->options[i], sizeof texts->options[i], "%s=%s", env->options[i].key, env->options[i].value);
        program->argv[used++] = (char *)"--option";
        program->argv[used++] = texts->options[i];
    }
    program->argv[used] = NULL;
    return FARM_OK;
}

void farm_env_program_free(struct farm_env_program *program) {
    free(program->environment);
    free(program->texts);
    *program = (struct farm_env_program){.texts = NULL};
}

static enum farm_status find_python_env(struct farm_env *env, struct farm_error *err) {
    struct farm_env_program program = {.texts = NULL};
    char *answer = NULL;
    env->kind = FARM_ENV_PYTHON;
    enum farm_status status = find_python(env, true, err);
    if (status) return farm_fail_in(err, status, "%s*", env->program->prefix);
    status = farm_env_program_make(env, NULL, &(struct farm_env_argument){"--spec", .alone = true}, 1, &program, err);
    if (!status) status = run_python(env, program.argv, &answer, err);
    if (!status && !parse_spec(answer, &env->spec, err)) status = farm_fail_in(err, FARM_E_FORMAT, "%s", env->name);
    farm_env_program_free(&program);
    free(answer);
    return status;
}

// ---- plug-ins ----

// Probes the environment `name` of env->plugin (NULL: its first). *misses_name (may be NULL): the file is valid, but
// has no such environment.
static enum farm_status probe_env(struct farm_env *env, const char *name, bool *misses_name, struct farm_error *err) {
    struct farm_probe_answer *answer = malloc(sizeof *answer);
    if (!answer) return farm_fail_errno(err, FARM_E_LIMIT, "plug-in %s", env->plugin);
    env->kind = FARM_ENV_PLUGIN;
    enum farm_status status = farm_probe_plugin(env->plugin, name, env->options, env->option_count, answer, err);
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

static enum farm_status find_native(struct farm_env *env, struct farm_error *err) {
    env->kind = FARM_ENV_NATIVE;
    return farm_plugin_spec(env->api, env->options, env->option_count, &env->spec, err);
}

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
    const size_t length = strcspn(name, "/");
    for (size_t i = 0; i < sizeof plugin_families / sizeof *plugin_families; i++)
        if (strlen(plugin_families[i]) == length && strncmp(plugin_families[i], name, length) == 0)
            return plugin_remedy();
    return "";
}

static enum farm_status fail_unknown(const char *name, bool family_here, struct farm_error *err) {
    struct farm_env_list list;
    enum farm_status status = farm_env_list_make(&list, err);
    const char *near = status ? NULL : nearest_name(&list, name), *remedy = family_here ? "" : remedy_for(name);
    if (!status)
        status = farm_fail(err, FARM_E_USAGE, "unknown environment '%s'%s%s%s (farm envs lists what can run here%s%s)",
                           name, near ? ": did you mean '" : "", near ? near : "", near ? "'?" : "",
                           remedy[0] ? "; " : "", remedy);
    farm_env_list_free(&list);
    return status;
}

static enum farm_status find_by_name(struct farm_env *env, struct farm_error *err) {
    env->api = farm_native_env_find(env->name);
    if (env->api) return find_native(env, err);
    env->program = python_of(env->name);
    if (env->program) return find_python_env(env, err);
    const char *slash = strchr(env->name, '/');
    bool misses_name = false;
    enum farm_status status = slash ? find_shipped(env->name, (size_t)(slash - env->name), env, err) : FARM_E_NOT_FOUND;
    if (status == FARM_E_PERMISSION) return status;
    const bool here = status == FARM_OK;
    if (here) status = probe_env(env, env->name, &misses_name, err);
    return here && !misses_name ? status : fail_unknown(env->name, here, err);
}

static bool starts_with(const char *name, const char *prefix) {
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

bool farm_env_names_file(const char *name) {
    return starts_with(name, plugin_prefix) || starts_with(name, libenv_prefix);
}

enum farm_status farm_env_find(const struct farm_recipe *recipe, struct farm_env *env, struct farm_error *err) {
    const char *name = recipe->env;
    memset(env, 0, sizeof *env);
    snprintf(env->lasting, sizeof env->lasting, "%s", name);
    for (size_t i = 0; i < recipe->option_count; i++)
        env->options[i] = (struct farm_env_option){recipe->options[i].key, recipe->options[i].value};
    env->option_count = recipe->option_count;
    if (starts_with(name, plugin_prefix)) return find_user_plugin(name + strlen(plugin_prefix), env, err);
    if (starts_with(name, libenv_prefix)) return find_libenv(name + strlen(libenv_prefix), env, err);
    if (strlen(name) >= sizeof env->name)
        return farm_fail(err, FARM_E_USAGE, "unknown environment '%.80s...': names have less than %zu characters", name,
                         sizeof env->name);
    snprintf(env->name, sizeof env->name, "%s", name);
    return find_by_name(env, err);
}

const char *farm_env_life_option(const char *name) {
    if (strncmp(name, "ale/", 4) == 0) return "episodic_life";
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

static void add_python(struct farm_env_list *list, const struct farm_env_python *program) {
    struct farm_env *env = calloc(1, sizeof *env);
    struct farm_error err = {0};
    char *answer = NULL;
    if (!env) return;
    env->program = program;
    enum farm_status status = find_python(env, false, &err);
    char *argv[] = {env->python, "-m", (char *)program->module, "--list", NULL};
    if (!status) status = run_python(env, argv, &answer, &err);
    if (status) add_missing(list, program->prefix, err.message);
    char *rest = answer;
    for (char *name; (name = strsep(&rest, "\n")) && list->count < NAMES_MAX;)
        if (name[0] && !add_name(list, program->prefix, name)) break;
    free(answer);
    free(env);
}

// The environments of a shipped plug-in, if its first one can run.
static void add_plugin(struct farm_env_list *list, const char *family, const char *path) {
    struct farm_probe_answer *answer = malloc(sizeof *answer);
    struct farm_error err = {0};
    if (!answer) return;
    enum farm_status status = farm_probe_plugin(path, NULL, NULL, 0, answer, &err);
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
static void add_plugins(struct farm_env_list *list) {
    char folder[PATH_MAX - 256], path[PATH_MAX];
    struct dirent **entries = NULL;
    bool found[sizeof plugin_families / sizeof *plugin_families] = {false};
    struct farm_error err;
    const enum farm_status there = farm_path_envs(folder, sizeof folder, &err);
    const int count = !there ? scandir(folder, &entries, is_shared_object, alphasort) : 0;
    for (int i = 0; i < count; i++) {
        char *family = entries[i]->d_name;
        snprintf(path, sizeof path, "%s/%s", folder, family);
        family[strlen(family) - 3] = 0;
        for (size_t f = 0; f < sizeof found / sizeof *found; f++)
            if (strcmp(family, plugin_families[f]) == 0) found[f] = true;
        if (strcmp(family, "libenv") != 0) add_plugin(list, family, path);
        free(entries[i]);
    }
    free(entries);
    for (size_t f = 0; f < sizeof found / sizeof *found; f++)
        if (!found[f])
            add_missing(list, plugin_families[f], there == FARM_E_PERMISSION ? err.message : plugin_remedy());
}

enum farm_status farm_env_list_make(struct farm_env_list *list, struct farm_error *err) {
    memset(list, 0, sizeof *list);
    const struct farm_env_api *api;
    for (size_t i = 0; (api = farm_native_env_at(i)); i++)
        if (!add_name(list, "", api->name)) return farm_fail_errno(err, FARM_E_LIMIT, "list of environments");
    add_plugins(list);
    for (size_t i = 0; i < PYTHONS; i++) add_python(list, &pythons[i]);
    return FARM_OK;
}

void farm_env_list_free(struct farm_env_list *list) {
    free(list->names);
    *list = (struct farm_env_list){0};
}
