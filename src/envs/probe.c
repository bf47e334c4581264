// See probe.h. The child writes to a shared anonymous mapping and ends.
#include "envs/probe.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/confine.h"
#include "base/program.h"
#include "envs/plugin.h"

enum phase { PHASE_LOAD, PHASE_NAMES, PHASE_SPEC, PHASE_END };

// The child writes it. Its plug-in may overwrite it, so the parent checks every value.
struct shared {
    uint32_t phase;  // enum phase
    uint32_t status; // enum farm_status
    char message[sizeof((struct farm_error *)0)->message];
    struct farm_probe_answer answer;
};

struct request {
    const char *path, *name;
    const struct farm_env_option *options;
    size_t option_count;
    double limit_s;
    bool confined;
    int errors; // memfd for the plug-in's output
};

// ---- the child ----

static void list_names(const struct farm_plugin *plugin, struct farm_probe_answer *answer) {
    const struct farm_env_api *api;
    for (uint32_t i = 0; i < FARM_PROBE_NAMES_MAX && (api = farm_plugin_env_at(plugin, i)); i++)
        if (api->name) snprintf(answer->names[answer->name_count++], sizeof answer->names[0], "%s", api->name);
}

static enum farm_status read_plugin(const struct request *request, struct shared *shared, struct farm_error *err) {
    struct farm_plugin plugin;
    struct farm_probe_answer *answer = &shared->answer;
    enum farm_status status = farm_plugin_open(request->path, NULL, &plugin, err);
    if (status) return status;
    shared->phase = PHASE_NAMES;
    list_names(&plugin, answer);
    answer->misses_name = true; // stays loaded: closing and loading it again could fail
    if ((status = farm_plugin_open(request->path, request->name, &plugin, err))) return status;
    answer->misses_name = false;
    snprintf(answer->name, sizeof answer->name, "%s", plugin.api->name);
    shared->phase = PHASE_SPEC;
    status = farm_plugin_spec(plugin.api, request->options, request->option_count, &answer->spec, err);
    shared->phase = PHASE_END;
    return status;
}

// The child dies with its parent, has a process group, default signals, descriptors 0 to 2 (output: `errors`), no core.
static void isolate_child(const struct request *request, pid_t parent) {
    const struct sigaction standard = {.sa_handler = SIG_DFL};
    sigset_t empty;
    sigemptyset(&empty);
    setpgid(0, 0);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent) _exit(1);
    for (int number = 1; number < NSIG; number++) sigaction(number, &standard, NULL);
    sigprocmask(SIG_SETMASK, &empty, NULL);
    int null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
    dup2(request->errors, STDOUT_FILENO);
    dup2(request->errors, STDERR_FILENO);
    farm_program_close(STDERR_FILENO + 1, ~0u);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
}

static _Noreturn void run_child(const struct request *request, struct shared *shared, pid_t parent) {
    struct farm_error err = {0};
    isolate_child(request, parent);
    enum farm_status status = request->confined ? farm_confine_environment(&err) : FARM_OK;
    if (!status) status = read_plugin(request, shared, &err);
    memcpy(shared->message, err.message, sizeof shared->message);
    __atomic_store_n(&shared->status, (uint32_t)status, __ATOMIC_RELEASE);
    _exit(0);
}

// ---- the parent ----

// Makes the text end within its bytes, in printable ASCII.
static void sanitize_text(char *text, size_t bytes) {
    text[bytes - 1] = 0;
    for (char *at = text; *at; at++)
        if (*at < ' ' || *at > '~') *at = '?';
}

// "; it said '...'" with the last line of the plug-in's output, or "".
static void read_last_line(int errors, char *text, size_t bytes) {
    char line[301];
    farm_program_last_line(errors, line, sizeof line);
    snprintf(text, bytes, line[0] ? "; it said '%s'" : "%s", line);
    sanitize_text(text, bytes);
}

static enum farm_status fail_dead(const struct request *request, const struct shared *shared, enum farm_status waited,
                                  int ended, struct farm_error *err) {
    static const char *const phases[] = {"while it was loaded", "in farm_env_at", "in spec", "at its end"};
    const uint32_t at = __atomic_load_n(&shared->phase, __ATOMIC_RELAXED);
    const char *when = at <= PHASE_END ? phases[at] : "in an unknown phase";
    char last[512];
    read_last_line(request->errors, last, sizeof last);
    if (waited == FARM_E_INTERRUPTED)
        return farm_fail(err, waited, "plug-in %s: a signal came %s", request->path, when);
    if (waited)
        return farm_fail(err, waited, "plug-in %s did not answer within %g s (--start-seconds) %s%s", request->path,
                         request->limit_s, when, last);
    if (WIFSIGNALED(ended))
        return farm_fail(err, FARM_E_DEAD, "plug-in %s died of signal %d (%s) %s%s", request->path, WTERMSIG(ended),
                         strsignal(WTERMSIG(ended)), when, last);
    return farm_fail(err, FARM_E_DEAD, "plug-in %s ended its process (exit status %d) %s%s", request->path,
                     WEXITSTATUS(ended), when, last);
}

// Copies the answer, then checks it.
static enum farm_status copy_answer(const struct request *request, const struct shared *shared,
                                    struct farm_probe_answer *answer, struct farm_error *err) {
    char message[sizeof shared->message];
    memcpy(answer, &shared->answer, sizeof *answer);
    memcpy(message, shared->message, sizeof message);
    const uint32_t status = __atomic_load_n(&shared->status, __ATOMIC_ACQUIRE);
    sanitize_text(message, sizeof message);
    sanitize_text(answer->name, sizeof answer->name);
    if (answer->name_count > FARM_PROBE_NAMES_MAX) answer->name_count = 0;
    for (uint32_t i = 0; i < answer->name_count; i++) sanitize_text(answer->names[i], sizeof answer->names[i]);
    if (status > FARM_E_INTERRUPTED)
        return farm_fail(err, FARM_E_FORMAT, "plug-in %s overwrote its answer", request->path);
    if (status) return farm_fail(err, (enum farm_status)status, "%s", message);
    return farm_plugin_check_spec(&answer->spec, err);
}

enum farm_status farm_probe_plugin(const char *path, const char *name, const struct farm_env_option *options,
                                   size_t option_count, double limit_s, bool confined, struct farm_probe_answer *answer,
                                   struct farm_error *err) {
    struct request request = {
        path, name, options, option_count, limit_s, confined, memfd_create("plug-in", MFD_CLOEXEC)};
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(answer, 0, sizeof *answer);
    enum farm_status status = FARM_E_LIMIT;
    pid_t parent = getpid(), pid = -1;
    if (request.errors >= 0 && shared != MAP_FAILED) {
        shared->status = UINT32_MAX; // not written yet
        fflush(NULL);
        pid = fork();
    }
    if (pid == 0) run_child(&request, shared, parent);
    if (pid < 0) {
        farm_fail_errno(err, FARM_E_LIMIT, "cannot probe plug-in %s", path);
    } else {
        int ended = 0;
        const enum farm_status waited = farm_program_await(pid, limit_s, &ended);
        const bool answered = !waited && WIFEXITED(ended) && WEXITSTATUS(ended) == 0 && shared->status != UINT32_MAX;
        status =
            answered ? copy_answer(&request, shared, answer, err) : fail_dead(&request, shared, waited, ended, err);
    }
    if (shared != MAP_FAILED) munmap(shared, sizeof *shared);
    if (request.errors >= 0) close(request.errors);
    return status;
}
