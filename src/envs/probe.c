// See probe.h. The child answers in a shared anonymous mapping and ends; pidfd_open(2) tells when.
#include "envs/probe.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/program.h"
#include "envs/plugin.h"

enum doing { DOING_LOAD, DOING_NAMES, DOING_SPEC, DOING_END };

// Written by the child, whose plug-in may scribble over it: believed after a check only.
struct shared {
    uint32_t doing;  // enum doing
    uint32_t status; // enum farm_status
    char message[sizeof((struct farm_error *)0)->message];
    struct farm_probe_answer answer;
};

// What is asked, and what the child needs for it.
struct question {
    const char *path, *name;
    const struct farm_env_option *options;
    size_t option_count;
    int errors; // memfd that takes what the plug-in prints
};

// ---- the child ----

static void list_names(const struct farm_plugin *plugin, struct farm_probe_answer *answer) {
    const struct farm_env_api *api;
    for (uint32_t i = 0; i < FARM_PROBE_NAMES_MAX && (api = farm_plugin_env_at(plugin, i)); i++) {
        if (api->name) snprintf(answer->names[answer->name_count++], sizeof answer->names[0], "%s", api->name);
    }
}

static enum farm_status answer_question(const struct question *question, struct shared *shared,
                                        struct farm_error *err) {
    struct farm_plugin plugin;
    struct farm_probe_answer *answer = &shared->answer;
    enum farm_status status = farm_plugin_open(question->path, NULL, &plugin, err);
    if (status) return status;
    shared->doing = DOING_NAMES;
    list_names(&plugin, answer);
    answer->misses_name = true; // it stays open, for closing and loading it again would be one more thing to fail
    if ((status = farm_plugin_open(question->path, question->name, &plugin, err))) return status;
    answer->misses_name = false;
    snprintf(answer->name, sizeof answer->name, "%s", plugin.api->name);
    shared->doing = DOING_SPEC;
    status = farm_plugin_spec(plugin.api, question->options, question->option_count, &answer->spec, err);
    shared->doing = DOING_END;
    return status;
}

// Dies with its parent, in a process group of its own, with standard signals, no descriptors but 0, 1 and 2 (what it
// prints goes into `errors`), no core file.
static void settle_child(const struct question *question, pid_t parent) {
    const struct sigaction standard = {.sa_handler = SIG_DFL};
    sigset_t nothing;
    sigemptyset(&nothing);
    setpgid(0, 0);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent) _exit(1);
    for (int number = 1; number < NSIG; number++) sigaction(number, &standard, NULL);
    sigprocmask(SIG_SETMASK, &nothing, NULL);
    int null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
    dup2(question->errors, STDOUT_FILENO);
    dup2(question->errors, STDERR_FILENO);
    close_range(STDERR_FILENO + 1, ~0u, 0);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
}

static _Noreturn void be_asked(const struct question *question, struct shared *shared, pid_t parent) {
    struct farm_error err = {0};
    settle_child(question, parent);
    const enum farm_status status = answer_question(question, shared, &err);
    memcpy(shared->message, err.message, sizeof shared->message);
    __atomic_store_n(&shared->status, (uint32_t)status, __ATOMIC_RELEASE);
    _exit(0);
}

// ---- the parent ----

// Printable ASCII that ends within its bytes.
static void clean(char *text, size_t bytes) {
    text[bytes - 1] = 0;
    for (char *at = text; *at; at++)
        if (*at < ' ' || *at > '~') *at = '?';
}

// The last line that the plug-in printed, as "; it said '...'".
static void read_last_words(int errors, char *words, size_t bytes) {
    char line[301];
    farm_program_last_line(errors, line, sizeof line);
    snprintf(words, bytes, line[0] ? "; it said '%s'" : "%s", line);
    clean(words, bytes);
}

static enum farm_status fail_dead(const struct question *question, const struct shared *shared, bool in_time, int ended,
                                  struct farm_error *err) {
    static const char *const doing[] = {"while it was loaded", "in farm_env_at", "in spec", "at its end"};
    const uint32_t at = __atomic_load_n(&shared->doing, __ATOMIC_RELAXED);
    const char *when = at <= DOING_END ? doing[at] : "somewhere";
    char words[512];
    read_last_words(question->errors, words, sizeof words);
    if (!in_time)
        return farm_fail(err, FARM_E_DEAD, "plug-in %s did not answer within %d s %s%s", question->path,
                         FARM_PROBE_TIMEOUT_MS / 1000, when, words);
    if (WIFSIGNALED(ended))
        return farm_fail(err, FARM_E_DEAD, "plug-in %s died of signal %d (%s) %s%s", question->path, WTERMSIG(ended),
                         strsignal(WTERMSIG(ended)), when, words);
    return farm_fail(err, FARM_E_DEAD, "plug-in %s ended its process (exit status %d) %s%s", question->path,
                     WEXITSTATUS(ended), when, words);
}

// Copies the answer, then checks it.
static enum farm_status take_answer(const struct question *question, const struct shared *shared,
                                    struct farm_probe_answer *answer, struct farm_error *err) {
    char message[sizeof shared->message];
    memcpy(answer, &shared->answer, sizeof *answer);
    memcpy(message, shared->message, sizeof message);
    const uint32_t status = __atomic_load_n(&shared->status, __ATOMIC_ACQUIRE);
    clean(message, sizeof message);
    clean(answer->name, sizeof answer->name);
    if (answer->name_count > FARM_PROBE_NAMES_MAX) answer->name_count = 0;
    for (uint32_t i = 0; i < answer->name_count; i++) clean(answer->names[i], sizeof answer->names[i]);
    if (status > FARM_E_INTERRUPTED)
        return farm_fail(err, FARM_E_FORMAT, "plug-in %s overwrote its answer", question->path);
    if (status) return farm_fail(err, (enum farm_status)status, "%s", message);
    return farm_plugin_check_spec(&answer->spec, err);
}

enum farm_status farm_probe_plugin(const char *path, const char *name, const struct farm_env_option *options,
                                   size_t option_count, struct farm_probe_answer *answer, struct farm_error *err) {
    struct question question = {path, name, options, option_count, memfd_create("plug-in", MFD_CLOEXEC)};
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(answer, 0, sizeof *answer);
    enum farm_status status = FARM_E_LIMIT;
    pid_t parent = getpid(), pid = -1;
    if (question.errors >= 0 && shared != MAP_FAILED) {
        shared->status = UINT32_MAX; // not answered
        fflush(NULL);
        pid = fork();
    }
    if (pid == 0) be_asked(&question, shared, parent);
    if (pid < 0) {
        farm_fail_errno(err, FARM_E_LIMIT, "cannot ask plug-in %s", path);
    } else {
        int ended = 0;
        const bool in_time = farm_program_await(pid, FARM_PROBE_TIMEOUT_MS * 1e-3, &ended);
        const bool answered = in_time && WIFEXITED(ended) && WEXITSTATUS(ended) == 0 && shared->status != UINT32_MAX;
        status =
            answered ? take_answer(&question, shared, answer, err) : fail_dead(&question, shared, in_time, ended, err);
    }
    if (shared != MAP_FAILED) munmap(shared, sizeof *shared);
    if (question.errors >= 0) close(question.errors);
    return status;
}
