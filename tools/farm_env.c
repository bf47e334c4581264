// See farm_env.h.
#include "farm_env.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "actor/actor.h"
#include "base/cli.h"
#include "base/time.h"
#include "farm_paths.h"
#include "report/json.h"

enum { ANSWER_BYTES_MAX = 64 << 10, PYTHON_TIMEOUT_MS = 30000, NAMES_MAX = 1024 };

static const char ale_prefix[] = "ale/", ale_module[] = "actorfarm.ale_actor";

// ---- asking a Python program ----

// Our environment with PYTHONPATH, and without threads that nobody asked for (malloc'd vector; texts[0..2] are the
// caller's).
static char **python_environment(const char *pythonpath, char texts[3][PATH_MAX + 32]) {
    static const char *const names[] = {"PYTHONPATH=", "OMP_NUM_THREADS=", "OPENBLAS_NUM_THREADS="};
    size_t count = 0, kept = 0;
    while (environ[count]) count++;
    char **environment = malloc((count + 4) * sizeof *environment);
    if (!environment) return NULL;
    for (size_t i = 0; i < count; i++) {
        bool ours = false;
        for (size_t k = 0; k < 3; k++) ours |= strncmp(environ[i], names[k], strlen(names[k])) == 0;
        if (!ours) environment[kept++] = environ[i];
    }
    for (size_t k = 0; k < 3; k++) {
        snprintf(texts[k], PATH_MAX + 32, "%s%s", names[k], k == 0 ? pythonpath : "1");
        environment[kept++] = texts[k];
    }
    environment[kept] = NULL;
    return environment;
}

// Reads fd to its end into text (cut at bytes-1), until the deadline. False when that has passed.
static bool read_answer(int fd, char *text, size_t bytes, uint64_t deadline_ns) {
    size_t length = 0;
    for (;;) {
        uint64_t now = farm_now_ns();
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        int ready = now < deadline_ns ? poll(&readable, 1, (int)((deadline_ns - now) / 1000000u) + 1) : 0;
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) break;
        char rest[256];
        bool full = length == bytes - 1;
        ssize_t n = read(fd, full ? rest : text + length, full ? sizeof rest : bytes - 1 - length);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            text[length] = 0;
            return true;
        }
        if (!full) length += (size_t)n;
    }
    text[length] = 0;
    return false;
}

// The last line of a text that says anything, in place.
static const char *last_line(char *text) {
    size_t length = strlen(text);
    while (length && (text[length - 1] == '\n' || text[length - 1] == ' ')) text[--length] = 0;
    char *newline = strrchr(text, '\n');
    return newline ? newline + 1 : text;
}

static int spawn_python(const struct farm_env *env, char *const *argv, int output_fd, int error_fd, pid_t *pid) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    char texts[3][PATH_MAX + 32];
    char **environment = python_environment(env->pythonpath, texts);
    sigset_t nothing;
    sigemptyset(&nothing);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, output_fd, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, error_fd, STDERR_FILENO);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &nothing);
    posix_spawnattr_setpgroup(&attributes, 0); // Ctrl-C is ours to deal with
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    int failed = environment ? posix_spawn(pid, env->python, &files, &attributes, argv, environment) : ENOMEM;
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    free(environment);
    return failed;
}

// Runs the program with these arguments and returns what it wrote to stdout (malloc'd). FARM_E_USAGE where it says so
// (exit 2), else FARM_E_NOT_FOUND, both with its last line.
static enum farm_status ask_python(const struct farm_env *env, char *const *argv, char **answer,
                                   struct farm_error *err) {
    int output[2], errors = memfd_create("errors", MFD_CLOEXEC);
    char *text = malloc(ANSWER_BYTES_MAX), said[2048];
    pid_t pid;
    if (!text || errors < 0 || pipe2(output, O_CLOEXEC) < 0) {
        free(text);
        if (errors >= 0) close(errors);
        return farm_fail_errno(err, FARM_E_LIMIT, "cannot ask %s", env->python);
    }
    int failed = spawn_python(env, argv, output[1], errors, &pid), ended = 0;
    close(output[1]);
    bool complete = !failed && read_answer(output[0], text, ANSWER_BYTES_MAX,
                                           farm_now_ns() + (uint64_t)PYTHON_TIMEOUT_MS * 1000000u);
    close(output[0]);
    if (!failed && !complete) kill(pid, SIGKILL);
    if (!failed) waitpid(pid, &ended, 0);
    ssize_t n = pread(errors, said, sizeof said - 1, 0);
    said[n > 0 ? n : 0] = 0;
    close(errors);
    if (!failed && complete && WIFEXITED(ended) && WEXITSTATUS(ended) == 0) {
        *answer = text;
        return FARM_OK;
    }
    free(text);
    if (failed) return farm_fail(err, FARM_E_NOT_FOUND, "cannot start %s: %s", env->python, strerror(failed));
    if (!complete)
        return farm_fail(err, FARM_E_DEAD, "%s -m %s did not answer within %d s", env->python, ale_module,
                         PYTHON_TIMEOUT_MS / 1000);
    const char *why = last_line(said);
    if (WIFEXITED(ended) && WEXITSTATUS(ended) == 2)
        return farm_fail(err, FARM_E_USAGE, "%s", strncmp(why, "ale_actor: ", 11) == 0 ? why + 11 : why);
    return farm_fail(err, FARM_E_NOT_FOUND, "the Python part does not run (`make deps`, then `make`, bring it): %s",
                     why[0] ? why : "it gave no reason");
}

static enum farm_status find_python(struct farm_env *env, struct farm_error *err) {
    if (farm_path_python(env->python, sizeof env->python, env->pythonpath, sizeof env->pythonpath)) return FARM_OK;
    return farm_fail(
        err, FARM_E_NOT_FOUND,
        "ale/* needs the Python environment in build/venv, which is not there: run `make deps`, then `make` (or "
        "name an interpreter that has ale-py by FARM_PYTHON)");
}

// ---- ALE ----

static bool parse_spec(const char *text, struct farm_env_spec *spec, struct farm_error *err) {
    json_t *document = farm_json_parse(text, strlen(text), "the answer of ale_actor --spec", err);
    if (!document) return false;
    const char *name, *dtype;
    int height, width, actions, repeat;
    bool good = json_unpack(document, "{s:[{s:s, s:s, s:[i, i]}], s:i, s:i}", "obs", "name", &name, "dtype", &dtype,
                            "dims", &height, &width, "actions", &actions, "frames_per_step", &repeat) == 0 &&
                strcmp(dtype, "u8") == 0 && height > 0 && width > 0 && actions > 0 && repeat > 0;
    if (good) {
        memset(spec, 0, sizeof *spec);
        spec->obs_count = 1;
        snprintf(spec->obs[0].name, sizeof spec->obs[0].name, "%s", name);
        spec->obs[0].dtype = FARM_U8;
        spec->obs[0].rank = 2;
        spec->obs[0].dims[0] = (uint32_t)height;
        spec->obs[0].dims[1] = (uint32_t)width;
        spec->action = (struct farm_action_spec){.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {(uint32_t)actions}};
        spec->frames_per_step = (uint32_t)repeat;
    } else {
        farm_fail(err, FARM_E_FORMAT, "ale_actor --spec answered something else than a game's shape");
    }
    json_decref(document);
    return good;
}

static enum farm_status find_ale(struct farm_env *env, struct farm_error *err) {
    char *argv[8 + 2 * FARM_RECIPE_OPTIONS_MAX], pairs[FARM_RECIPE_OPTIONS_MAX][144], *answer;
    size_t count = 0;
    snprintf(env->game, sizeof env->game, "%s", env->name + strlen(ale_prefix));
    enum farm_status status = find_python(env, err);
    if (status) return status;
    argv[count++] = env->python;
    argv[count++] = "-m";
    argv[count++] = (char *)ale_module;
    argv[count++] = "--spec";
    argv[count++] = "--game";
    argv[count++] = env->game;
    for (size_t i = 0; i < env->option_count; i++) {
        snprintf(pairs[i], sizeof pairs[i], "%s=%s", env->options[i].key, env->options[i].value);
        argv[count++] = "--option";
        argv[count++] = pairs[i];
    }
    argv[count] = NULL;
    if ((status = ask_python(env, argv, &answer, err))) return status;
    bool good = parse_spec(answer, &env->spec, err);
    free(answer);
    return good ? FARM_OK : FARM_E_FORMAT;
}

// ---- by name ----

static enum farm_status find_native(struct farm_env *env, struct farm_error *err) {
    const struct farm_env_config config = {.options = env->options, .option_count = env->option_count};
    char why[256] = "it gave no reason";
    memset(&env->spec, 0, sizeof env->spec);
    if (env->api->spec(&config, &env->spec, why, sizeof why)) return farm_fail(err, FARM_E_USAGE, "%s", why);
    return FARM_OK;
}

// The name that was meant: "ale/Pong" for "Pong", "native/catch" for "native/cacth"; NULL where none is near.
static const char *nearest_name(const struct farm_env_list *list, const char *name) {
    const char *names[NAMES_MAX] = {NULL};
    size_t count = list->count < NAMES_MAX ? list->count : NAMES_MAX;
    bool whole = strchr(name, '/') != NULL;
    for (size_t i = 0; i < count; i++) names[i] = whole ? list->names[i] : strchr(list->names[i], '/') + 1;
    const char *near = farm_nearest(name, names, count);
    for (size_t i = 0; near && i < count; i++)
        if (names[i] == near) return list->names[i];
    return NULL;
}

static enum farm_status unknown_name(const char *name, struct farm_error *err) {
    struct farm_env_list list;
    enum farm_status status = farm_env_list_make(&list, err);
    if (status) return status;
    const char *near = nearest_name(&list, name);
    farm_fail(err, FARM_E_USAGE, "unknown environment '%s'%s%s%s (farm envs lists what can run here)", name,
              near ? ": did you mean '" : "", near ? near : "", near ? "'?" : "");
    farm_env_list_free(&list);
    return FARM_E_USAGE;
}

enum farm_status farm_env_find(const struct farm_recipe *recipe, struct farm_env *env, struct farm_error *err) {
    memset(env, 0, sizeof *env);
    snprintf(env->name, sizeof env->name, "%s", recipe->env);
    for (size_t i = 0; i < recipe->option_count; i++)
        env->options[i] = (struct farm_env_option){recipe->options[i].key, recipe->options[i].value};
    env->option_count = recipe->option_count;
    env->api = farm_native_env_find(env->name);
    if (env->api) return find_native(env, err);
    if (strncmp(env->name, ale_prefix, strlen(ale_prefix)) == 0 && env->name[strlen(ale_prefix)])
        return find_ale(env, err);
    return unknown_name(env->name, err);
}

const char *farm_env_life_option(const char *name) {
    if (strncmp(name, ale_prefix, strlen(ale_prefix)) == 0) return "episodic_life";
    return strcmp(name, "native/breakout") == 0 ? "life_loss" : NULL;
}

// ---- the list ----

static bool add_name(struct farm_env_list *list, const char *prefix, const char *name) {
    char(*names)[64] = realloc(list->names, (list->count + 1) * sizeof *names);
    if (!names) return false;
    list->names = names;
    snprintf(names[list->count++], sizeof *names, "%s%s", prefix, name);
    return true;
}

static void add_ale(struct farm_env_list *list) {
    struct farm_env env = {0};
    struct farm_error err = {0};
    char *answer = NULL;
    enum farm_status status = find_python(&env, &err);
    char *argv[] = {env.python, "-m", (char *)ale_module, "--list", NULL};
    if (!status) status = ask_python(&env, argv, &answer, &err);
    if (status) {
        snprintf(list->missing, sizeof list->missing, "%.500s", err.message);
        return;
    }
    char *rest = answer;
    for (char *name; (name = strsep(&rest, "\n")) && list->count < NAMES_MAX;)
        if (name[0] && !add_name(list, ale_prefix, name)) break;
    free(answer);
}

enum farm_status farm_env_list_make(struct farm_env_list *list, struct farm_error *err) {
    memset(list, 0, sizeof *list);
    const struct farm_env_api *api;
    for (size_t i = 0; (api = farm_native_env_at(i)); i++)
        if (!add_name(list, "", api->name)) return farm_fail_errno(err, FARM_E_LIMIT, "list of environments");
    add_ale(list);
    return FARM_OK;
}

void farm_env_list_free(struct farm_env_list *list) {
    free(list->names);
    *list = (struct farm_env_list){0};
}

// ---- an actor's command line ----

enum { PROGRAM_TEXT_BYTES = 160, PROGRAM_NUMBERS = 6 };

struct program_texts {
    char numbers[PROGRAM_NUMBERS][24];
    char options[FARM_RECIPE_OPTIONS_MAX][PROGRAM_TEXT_BYTES];
    char environment[3][PATH_MAX + 32];
};

enum farm_status farm_env_program_make(const struct farm_env *env, uint32_t actor, int up_fd, int down_fd,
                                       int learner_eventfd, uint64_t seed, uint64_t spin_ns,
                                       struct farm_env_program *program, struct farm_error *err) {
    static const char *const flags[PROGRAM_NUMBERS] = {"--actor",    "--up-fd", "--down-fd",
                                                       "--event-fd", "--seed",  "--spin-ns"};
    const uint64_t numbers[PROGRAM_NUMBERS] = {actor, (uint64_t)up_fd, (uint64_t)down_fd, (uint64_t)learner_eventfd,
                                               seed,  spin_ns};
    struct program_texts *texts = calloc(1, sizeof *texts);
    program->environment = texts ? python_environment(env->pythonpath, texts->environment) : NULL;
    program->texts = (char *)texts;
    if (!program->environment) return farm_fail_errno(err, FARM_E_LIMIT, "actor %u", actor);
    size_t count = 0;
    program->argv[count++] = (char *)env->python;
    program->argv[count++] = "-m";
    program->argv[count++] = (char *)ale_module;
    program->argv[count++] = "--game";
    program->argv[count++] = (char *)env->game;
    for (size_t i = 0; i < PROGRAM_NUMBERS; i++) {
        snprintf(texts->numbers[i], sizeof texts->numbers[i], "%llu", (unsigned long long)numbers[i]);
        program->argv[count++] = (char *)flags[i];
        program->argv[count++] = texts->numbers[i];
    }
    for (size_t i = 0; i < env->option_count; i++) {
        snprintf(texts->options[i], sizeof texts->options[i], "%s=%s", env->options[i].key, env->options[i].value);
        program->argv[count++] = "--option";
        program->argv[count++] = texts->options[i];
    }
    program->argv[count] = NULL;
    return FARM_OK;
}

void farm_env_program_free(struct farm_env_program *program) {
    free(program->environment);
    free(program->texts);
    program->environment = NULL;
    program->texts = NULL;
}
