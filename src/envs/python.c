// See python.h.
#include "envs/python.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/paths.h"
#include "base/program.h"
#include "base/thread.h"
#include "envs/plugin.h"

enum { SETUP_LIMIT_S = 3600 };

// Environments of our Python programs: `python START MODULE --env NAME` plays PREFIX/NAME. LABEL begins its messages.
static const struct farm_env_python {
    const char *prefix, *module, *label;
} pythons[] = {{"ale/", "actorfarm.ale_actor", "ale_actor: "},
               {"envpool/", "actorfarm.envpool_actor", "envpool_actor: "},
               {"pettingzoo/", "actorfarm.pettingzoo_actor", "pettingzoo_actor: "},
               {"gym/", "actorfarm.gym_actor", "gym_actor: "}};
enum { PYTHONS = sizeof pythons / sizeof *pythons };

// ---- running a Python program ----

char **farm_python_environment(const char *package) {
    static const char *const ours[] = {"OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "PYTHONSAFEPATH=farm"};
    static const char name[] = "PYTHONPATH=";
    const char *users = getenv("PYTHONPATH"), *safe = getenv("PYTHONSAFEPATH");
    const size_t set = sizeof ours / sizeof *ours - (safe && safe[0]);
    size_t count = 0, kept = 0;
    while (environ[count]) count++;
    char **environment = malloc((count + set + 2) * sizeof *environment + sizeof name + strlen(package) +
                                (users ? strlen(users) + 1 : 0));
    if (!environment) return NULL;
    for (size_t i = 0; i < count; i++) {
        bool replaced = strncmp(environ[i], name, strlen(name)) == 0;
        for (size_t k = 0; k < set; k++) replaced |= strncmp(environ[i], ours[k], strcspn(ours[k], "=") + 1) == 0;
        if (!replaced) environment[kept++] = environ[i];
    }
    for (size_t k = 0; k < set; k++) environment[kept++] = (char *)ours[k];
    char *path = environment[kept++] = (char *)(environment + count + set + 2);
    path = stpcpy(stpcpy(path, name), package);
    for (size_t length; users && *users; users += length + !!users[length]) {
        length = strcspn(users, ":");
        if (length) path += sprintf(path, ":%.*s", (int)length, users); // an empty one would be the current folder
    }
    environment[kept] = NULL;
    return environment;
}

void farm_python_start(const char *package, char *start, size_t bytes) {
    snprintf(start, bytes, "%s/actorfarm/start.py", package);
}

// What mends the Python environment.
static const char *remedy(void) {
    const char *chosen = getenv("FARM_PYTHON");
    if (chosen && chosen[0]) return " (FARM_PYTHON must name an interpreter that has ale-py and gymnasium)";
    return farm_path_choose(" (`make deps`, then `make`, installs it)", " (`farm setup` installs it)");
}

// Returns the program's stdout, which the caller frees. FARM_E_USAGE with its message if it ends with that status.
static enum farm_status run_python(const struct farm_env *env, char *const *argv, char **answer,
                                   struct farm_error *err) {
    char **environment = farm_python_environment(env->pythonpath);
    const struct farm_program program = {.path = env->python,
                                         .argv = argv,
                                         .environment = environment,
                                         .label = env->program->label,
                                         .apart = true, // the caller handles Ctrl-C
                                         .confined = env->confined,
                                         .limit_s = env->start_s,
                                         .remedy = " (--start-seconds)"};
    enum farm_status status = environment ? farm_program_read(&program, answer, err)
                                          : farm_fail_errno(err, FARM_E_LIMIT, "cannot run %s", env->python);
    free(environment);
    if (status == FARM_E_NOT_FOUND) return farm_fail_in(err, status, "the Python part does not run%s", remedy());
    return status && status != FARM_E_USAGE ? farm_fail_in(err, status, "%s %s", env->python, env->program->module)
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
    farm_log_warn("installing what is missing of farm's Python packages (about 450 MB from PyPI, once; "
                  "%.*s/requirements.txt)",
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

bool farm_env_would_install(const char *name) {
    char python[PATH_MAX];
    const char *chosen = getenv("FARM_PYTHON");
    return farm_env_is_python(name) && farm_path_installed() && !(chosen && chosen[0]) &&
           farm_path_python(python, sizeof python, NULL) == FARM_E_NOT_FOUND;
}

static enum farm_status find_python(struct farm_env *env, bool make, struct farm_error *err) {
    enum farm_status status = farm_path_python(env->python, sizeof env->python, err);
    if (make && farm_env_would_install(env->name)) {
        status = farm_env_setup(env->python, sizeof env->python, err);
        if (status) return status;
    }
    if (!status) status = farm_path_package(env->pythonpath, sizeof env->pythonpath, err);
    if (!status) return FARM_OK;
    return farm_fail_in(err, status, "no Python environment%s", status == FARM_E_NOT_FOUND ? remedy() : "");
}

// ---- its spec ----

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

static bool parse_spec(const char *name, const char *text, struct farm_env_spec *spec, struct farm_error *err) {
    json_t *document = farm_json_parse(text, strlen(text), "the output of --spec", err), *obs, *action;
    int repeat, agents = 1;
    if (!document) return false;
    memset(spec, 0, sizeof *spec);
    bool good = json_unpack(document, "{s:o, s:o, s:i, s?i}", "obs", &obs, "action", &action, "frames_per_step",
                            &repeat, "agents", &agents) == 0 &&
                json_array_size(obs) >= 1 && json_array_size(obs) <= FARM_OBS_FIELDS_MAX && repeat > 0 && agents > 0 &&
                parse_action(action, &spec->action);
    for (size_t i = 0; good && i < json_array_size(obs); i++) good = parse_field(json_array_get(obs, i), &spec->obs[i]);
    if (good) {
        spec->obs_count = (uint32_t)json_array_size(obs);
        spec->frames_per_step = (uint32_t)repeat;
        spec->agents = (uint32_t)agents;
    }
    for (size_t i = 0; good && i < json_array_size(json_object_get(document, "notes")); i++)
        farm_log_info("%s: %s", name, json_string_value(json_array_get(json_object_get(document, "notes"), i)));
    json_decref(document);
    return good ? !farm_plugin_check_spec(spec, err) : (farm_fail(err, FARM_E_FORMAT, "--spec printed no spec"), false);
}

// ---- environments ----

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
    char start[PATH_MAX + 32];
    char numbers[FARM_ENV_ARGUMENTS_MAX][24];
    char options[FARM_ENV_OPTIONS_MAX][sizeof((struct farm_recipe_option *)0)->key + FARM_RECIPE_PATH_BYTES];
};

enum farm_status farm_env_program_make(const struct farm_env *env, const char *module,
                                       const struct farm_env_argument *arguments, size_t count,
                                       struct farm_env_program *program, struct farm_error *err) {
    struct program_texts *texts = calloc(1, sizeof *texts);
    program->environment = texts ? farm_python_environment(env->pythonpath) : NULL;
    program->texts = texts;
    if (!program->environment) return farm_fail_errno(err, FARM_E_LIMIT, "the command line for %s", env->name);
    const char *name = module ? env->name : env->name + strlen(env->program->prefix);
    farm_python_start(env->pythonpath, texts->start, sizeof texts->start);
    const char *const words[] = {env->python, texts->start, module ? module : env->program->module, "--env", name};
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

enum farm_status farm_env_find_python(struct farm_env *env, struct farm_error *err) {
    struct farm_env_program program = {.texts = NULL};
    char *answer = NULL;
    env->kind = FARM_ENV_PYTHON;
    env->program = python_of(env->name);
    enum farm_status status = find_python(env, true, err);
    if (status) return farm_fail_in(err, status, "%s*", env->program->prefix);
    status = farm_env_program_make(env, NULL, &(struct farm_env_argument){"--spec", .alone = true}, 1, &program, err);
    if (!status) status = run_python(env, program.argv, &answer, err);
    if (!status && !parse_spec(env->name, answer, &env->spec, err))
        status = farm_fail_in(err, FARM_E_FORMAT, "%s", env->name);
    farm_env_program_free(&program);
    free(answer);
    return status;
}

enum farm_status farm_env_python_names(size_t family, double start_s, const char **prefix, char **names,
                                       struct farm_error *err) {
    *prefix = family < PYTHONS ? pythons[family].prefix : NULL;
    struct farm_env *env = *prefix ? calloc(1, sizeof *env) : NULL;
    if (!env) return *prefix ? farm_fail_errno(err, FARM_E_LIMIT, "list of environments") : FARM_OK;
    env->program = &pythons[family];
    env->start_s = start_s;
    enum farm_status status = find_python(env, false, err);
    char start[PATH_MAX + 32], *argv[] = {env->python, start, (char *)env->program->module, "--list", NULL};
    farm_python_start(env->pythonpath, start, sizeof start);
    if (!status) status = run_python(env, argv, names, err);
    free(env);
    return status;
}
